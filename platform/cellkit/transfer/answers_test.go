package transfer_test

import (
	"errors"
	"testing"
)

// The answers to CREDIT and CANCEL arrive together: each holds its own request
// locked, and the one that ends the transfer must not wait for the other's, which
// waits for the transfer.
func TestAnswersAtOnceDontWaitForEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	n := w.start(anna, bob, 10)
	if err := w.cancel(n); err != nil {
		t.Fatal(err)
	}
	list := w.open()
	if len(list) != 2 {
		t.Fatalf("%d open requests, want CREDIT and CANCEL", len(list))
	}
	for i, m := range list { // either may be the first to be answered
		other := list[1-i]
		r, err := w.request(m, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		held, err := w.dbs[0].Super.Begin(t.Context())
		if err == nil {
			_, err = held.Exec(t.Context(), "SELECT FROM cell.outbox WHERE slot = $1 AND id = $2 FOR UPDATE", anna.Slot(), other.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		err = w.answer(r, nil, i == 0) // the first is undone again
		_ = held.Rollback(t.Context())
		if i == 0 && !errors.Is(err, errCrash) || i == 1 && err != nil {
			t.Errorf("%s answered while the answer to %s is handled = %v", m.ID, other.ID, err)
		}
	}
	w.drain() // whose answer was in work is closed by that
	w.audit(1000)
}
