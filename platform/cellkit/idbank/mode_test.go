package idbank

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
)

// The database's side of the mode bit, at a table that takes IDs.
func TestModeBitIsChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.bank(w.file)
	g := numbers(t, b, "a", 1000)
	sequence := func(counter int64, machine int) int64 { return counter<<8 | int64(machine) }
	at := id.SeqAt(time.Now())
	for _, tc := range []struct {
		name string
		id   id.ID
		slot int
		ok   bool
	}{
		{"out of a segment", id.Make(at, 5, false), 5, true},
		{"out of a segment, an hour ahead", id.Make(at+id.SeqAt(id.Epoch.Add(time.Hour)), 5, false), 5, true},
		{"without a sequence", id.Make(0, 5, false), 5, false},
		{"negative", -id.Make(at, 5, false), 5, false},
		{"of another slot", id.Make(at, 5, false), 6, false},
		{"out of this cell's fallback", id.Make(sequence(g.Lo, g.Machine), 5, true), 5, true},
		{"the last that was granted", id.Make(sequence(g.Hi-1, g.Machine), 5, true), 5, true},
		{"the next one, not granted", id.Make(sequence(g.Hi, g.Machine), 5, true), 5, false},
		{"of a machine that nobody has", id.Make(sequence(g.Lo, g.Machine+1), 5, true), 5, false},
		{"out of another cell's fallback", id.Make(sequence(g.Lo, 9<<3), 5, true), 5, true},
		{"out of another cell's fallback, a year ahead", id.Make(sequence(g.Lo+365*86400<<9, 9<<3), 5, true), 5, false},
		{"of no cell's fallback", id.Make(sequence(g.Lo, 3), 5, true), 5, false},
		{"a fallback's, its bit lost", id.Make(sequence(g.Lo, g.Machine), 5, false), 5, false},
		{"a segment's, its bit set, by chance of this machine", id.Make(at&^255|int64(g.Machine), 5, true), 5, false},
	} {
		err := pg.InSlot(t.Context(), w.App, pg.Entry{Slot: 5, Epoch: 1}, func(tx *pg.Tx) error {
			_, err := tx.Exec(t.Context(), "INSERT INTO cell.wallets (slot, user_id, currency) VALUES ($1, $2, 'EUR')", tc.slot, tc.id)
			return err
		})
		if (err == nil) != tc.ok || tc.slot == 5 && err != nil && !strings.Contains(fmt.Sprint(err), "23514") {
			t.Errorf("%s: %v, want ok = %v", tc.name, err, tc.ok)
		}
	}
}

// What idgen's ranges become has mode 0: the bank can't hold another.
func TestBankHoldsSequencesOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, r := range []Range{{id.MaxSeq - 5, id.MaxSeq + 1}, {1 << 62, 1<<62 + 5}, {0, 5}, {-5, 5}, {5, 5}} {
		if err := (Postgres{w.pool}).Deposit(t.Context(), "order", r); err == nil {
			t.Errorf("%v was taken into the bank", r)
		}
	}
}

// A cell that came after the thirty-second has no fallback, and says so.
func TestCellWithoutFallback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(t, "UPDATE cell.identity SET ordinal = 32")
	b := w.bank(w.file)
	if _, err := b.Fallback(t.Context(), FallbackRequest{Holder: "a", Size: 10}); err == nil || !strings.Contains(err.Error(), "ordinal is 32") {
		t.Errorf("%v, want the ordinal as the reason", err)
	}
	if f := b.Figures(t.Context()); f.Bank == nil || f.Bank.NoFallback == "" {
		t.Errorf("%+v", f)
	}
	w.deposit(t, "order", 100, 1100)
	withdraw(t, b, "order", 100, Withdrawal{100, 200})
}
