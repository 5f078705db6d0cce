package transfer_test

import (
	"testing"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/transfer"
)

// The payee's row has the very moment at which the payer's began, also when only
// the CANCEL arrived.
func TestBeginningIsCarried(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := id.Make(1, 3, false)
	deposit(t, w.dbs[0], alice, "CNY", 1000, "deposit:1")
	credited, cancelled := w.start(alice, bob, 10), w.start(alice, bob, 20)
	if err := w.cancel(cancelled); err != nil {
		t.Fatal(err)
	}
	for _, m := range w.open() {
		if m.ID == bus.MessageID(transfer.KindCredit, bus.IDKey(cancelled)) {
			continue // it is lost
		}
		if _, err := w.request(m, nil, false); err != nil {
			t.Fatal(err)
		}
	}
	for n, want := range map[string]string{credited.String(): "CREDITED", cancelled.String(): "CANCELLED"} {
		var began, carried, state string
		if err := w.dbs[0].Super.QueryRow(t.Context(), "SELECT created_at::text FROM cell.transfers WHERE id = "+n).Scan(&began); err != nil {
			t.Fatal(err)
		}
		if err := w.dbs[1].Super.QueryRow(t.Context(), "SELECT coalesce(begun_at::text, 'nothing'), state FROM cell.credits WHERE transfer_id = "+n).Scan(&carried, &state); err != nil {
			t.Fatal(err)
		}
		if carried != began || state != want {
			t.Errorf("transfer %s began at %s, its destination (%s, want %s) has %s", n, began, state, want, carried)
		}
	}
}
