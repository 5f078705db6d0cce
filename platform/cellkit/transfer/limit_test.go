package transfer_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/transfer"
)

func spent(t testing.TB, db *pgtest.DB, user id.ID) (a transfer.Allowance) {
	t.Helper()
	err := pg.See(t.Context(), db.App, user.Slot(), func(tx pgx.Tx, _ bool) (err error) {
		a, err = transfer.Allowed(t.Context(), tx, user.Slot(), user, "CNY")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestLimits(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if a := spent(t, db, anna); a != (transfer.Allowance{}) {
		t.Errorf("without a wallet: %+v", a)
	}
	deposit(t, db, anna, "CNY", 10_000, "d:1")
	deposit(t, db, anna, "USD", 10_000, "d:2")
	limits := transfer.Limits{Each: 500, Day: 1000}
	seq := int64(0)
	try := func(amount int64, currency string, l transfer.Limits) transfer.Transfer {
		t.Helper()
		seq++
		o := transfer.Order{ID: id.Make(seq, anna.Slot(), false), From: anna, To: bob, ToSlot: bob.Slot(), Amount: amount, Currency: currency, Limits: l}
		var got transfer.Transfer
		for range 2 { // the second finds the first, and counts nothing
			err := inSlot(t, db, anna.Slot(), func(tx *pg.Tx) (err error) { got, err = transfer.Try(t.Context(), tx, o); return err })
			if err != nil {
				t.Fatal(err)
			}
		}
		return got
	}
	for _, c := range []struct {
		name     string
		amount   int64
		currency string
		limits   transfer.Limits
		want     transfer.State
		reason   string
		spent    int64
	}{
		{"one over its own limit", 501, "CNY", limits, transfer.Rejected, "LIMIT", 0},
		{"at its own limit", 500, "CNY", limits, transfer.Frozen, "", 500},
		{"one over the day's", 501, "CNY", transfer.Limits{Day: 1000}, transfer.Rejected, "LIMIT", 500},
		{"up to the day's", 500, "CNY", limits, transfer.Frozen, "", 1000},
		{"the smallest above", 1, "CNY", limits, transfer.Rejected, "LIMIT", 1000},
		{"another currency's day", 500, "USD", limits, transfer.Frozen, "", 1000},
		{"no limit is asked for: counted all the same", 7, "CNY", transfer.Limits{}, transfer.Frozen, "", 1007},
		{"more than there is, within the limit", 20_000, "CNY", transfer.Limits{Day: 1 << 40}, transfer.Rejected, "INSUFFICIENT_FUNDS", 1007},
		{"the largest limit and amount", transfer.MaxAmount, "CNY", transfer.Limits{Each: 1<<63 - 1, Day: 1<<63 - 1}, transfer.Rejected, "INSUFFICIENT_FUNDS", 1007},
	} {
		got := try(c.amount, c.currency, c.limits)
		if got.State != c.want || got.Reason != c.reason {
			t.Errorf("%s: %s %s, want %s %s", c.name, got.State, got.Reason, c.want, c.reason)
		}
		if a := spent(t, db, anna); a.Spent != c.spent {
			t.Errorf("%s: spent %d, want %d", c.name, a.Spent, c.spent)
		}
	}
	// Start leaves no trace of a refusal.
	err := inSlot(t, db, anna.Slot(), func(tx *pg.Tx) error {
		return transfer.Start(t.Context(), tx, transfer.Order{ID: id.Make(99, anna.Slot(), false), From: anna, To: bob, ToSlot: bob.Slot(), Amount: 1, Currency: "CNY", Limits: limits})
	})
	if !errors.Is(err, transfer.ErrLimit) {
		t.Errorf("Start = %v", err)
	}
	// The next day begins at nothing.
	db.Plant(t, "UPDATE cell.wallets SET spent_on = spent_on - 1")
	if a := spent(t, db, anna); a.Spent != 0 || a.Available != 10_000-1007 {
		t.Errorf("the next day: %+v", a)
	}
	if got := try(500, "CNY", limits); got.State != transfer.Frozen {
		t.Errorf("the next day: %s %s", got.State, got.Reason)
	}
	if a := spent(t, db, anna); a.Spent != 500 {
		t.Errorf("spent on the next day: %+v", a)
	}
	// A transaction that began before midnight and ends after one of the new day counts there.
	db.Plant(t, "UPDATE cell.wallets SET spent_on = spent_on + 1, spent = 1000")
	if got := try(500, "CNY", limits); got.State != transfer.Rejected {
		t.Errorf("around midnight: %s %s, want it refused", got.State, got.Reason)
	}
	if a := spent(t, db, anna); a.Spent != 1000 {
		t.Errorf("spent around midnight: %+v", a)
	}
	check(t, db)
}

// What comes back is free again, on the day that it was sent; a refusal of an
// earlier day's transfer leaves today's total alone.
func TestLimitsOfWhatComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	w.start(anna, bob, 100)
	w.start(anna, nobody, 30)
	if a := spent(t, w.dbs[0], anna); a.Spent != 130 {
		t.Errorf("on the way: %+v", a)
	}
	w.drain()
	if a := spent(t, w.dbs[0], anna); a.Spent != 100 {
		t.Errorf("one came back: %+v", a)
	}
	old := w.start(anna, nobody, 50)
	w.dbs[0].Plant(t, "UPDATE cell.transfers SET created_at = created_at - interval '1 day' WHERE id = "+old.String())
	w.drain()
	if a := spent(t, w.dbs[0], anna); a.Spent != 150 {
		t.Errorf("yesterday's came back: %+v", a)
	}
	w.audit(1000)
}

// S-M08: 100 at once at the limit of the day; exactly what fits goes through.
func TestScenario_M08_ParallelSpendsAtTheLimit(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	deposit(t, db, anna, "CNY", 100_000, "d:1")
	var ok atomic.Int64
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			err := inSlot(t, db, anna.Slot(), func(tx *pg.Tx) error {
				return transfer.Start(t.Context(), tx, transfer.Order{ID: id.Make(int64(100+i), anna.Slot(), false), From: anna, To: bob, ToSlot: bob.Slot(),
					Amount: 30, Currency: "CNY", Limits: transfer.Limits{Each: 30, Day: 1000}})
			})
			switch {
			case err == nil:
				ok.Add(1)
			case !errors.Is(err, transfer.ErrLimit):
				t.Errorf("spender %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if a := spent(t, db, anna); ok.Load() != 33 || a.Spent != 990 || a.Available != 100_000-990 {
		t.Errorf("%d went through, %+v, want 33, 990 spent", ok.Load(), a)
	}
	check(t, db)
}
