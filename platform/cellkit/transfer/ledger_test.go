package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/platform/routing"
)

const anna = id.ID(1<<14 | 7)

// inSlot runs a transaction, and once more when the machine had no time for it:
// what the tests do in one does nothing the second time.
func inSlot(t testing.TB, db *pgtest.DB, slot routing.Slot, fn func(*pg.Tx) error) error {
	t.Helper()
	for tries := 1; ; tries++ {
		err := pg.InSlot(t.Context(), db.App, pg.Entry{Slot: slot, Epoch: 1}, fn)
		if !errs.IsKind(err, errs.Unavailable) || tries == 30 {
			return err
		}
	}
}

func deposit(t testing.TB, db *pgtest.DB, user id.ID, currency string, amount int64, ref string) {
	t.Helper()
	err := inSlot(t, db, user.Slot(), func(tx *pg.Tx) error {
		return transfer.Post(t.Context(), tx, transfer.Posting{User: user, Currency: currency, Debit: transfer.External,
			Credit: transfer.Available, Amount: amount, Ref: ref, Step: "deposit"})
	})
	if err != nil && !errors.Is(err, transfer.ErrPosted) { // in a try whose outcome wasn't known
		t.Fatalf("deposit: %v", err)
	}
}

// check holds the books of a database against I3: every wallet sums to zero and
// equals the sum of its entries, seq has no gap, nothing is spent that isn't there.
func check(t testing.TB, db *pgtest.DB) {
	t.Helper()
	for name, q := range map[string]string{
		"a wallet does not sum to zero": `SELECT count(*) FROM cell.wallets WHERE available + frozen + clearing + external + suspense + recovery <> 0`,
		"an account is below zero":      `SELECT count(*) FROM cell.wallets WHERE available < 0 OR frozen < 0 OR suspense < 0 OR recovery > 0`,
		"a balance is not the sum of its entries": `SELECT count(*) FROM cell.wallets w
			WHERE available <> (SELECT coalesce(sum(amount * ((credit = 'available')::int - (debit = 'available')::int)), 0) FROM cell.postings p
				WHERE p.slot = w.slot AND p.user_id = w.user_id AND p.currency = w.currency)
			OR frozen <> (SELECT coalesce(sum(amount * ((credit = 'frozen')::int - (debit = 'frozen')::int)), 0) FROM cell.postings p
				WHERE p.slot = w.slot AND p.user_id = w.user_id AND p.currency = w.currency)`,
		"entries have a gap": `SELECT count(*) FROM cell.wallets w WHERE seq <> (SELECT count(*) FROM cell.postings p
				WHERE p.slot = w.slot AND p.user_id = w.user_id AND p.currency = w.currency)`,
		"an entry's balances are not those after it": `SELECT count(*) FROM cell.wallets w JOIN cell.postings p USING (slot, user_id, currency, seq)
			WHERE p.available <> w.available OR p.frozen <> w.frozen`,
		"more or less is given back than refunds say": `SELECT count(*) FROM cell.credits c WHERE refunded <> (SELECT coalesce(sum(amount), 0) FROM cell.transfers t
				WHERE t.slot = c.slot AND t.refund_of = c.transfer_id AND t.state NOT IN ('REVERSED', 'REJECTED'))`,
		"more or less came back than refunds say": `SELECT count(*) FROM cell.transfers t WHERE refunded <> (SELECT coalesce(sum(amount), 0) FROM cell.credits c
				WHERE c.slot = t.slot AND c.refund_of = t.id AND c.state = 'CREDITED')`,
		"frozen is not the open transfers": `SELECT count(*) FROM cell.wallets w WHERE frozen <> (SELECT coalesce(sum(amount), 0) FROM cell.transfers t
				WHERE t.slot = w.slot AND t.from_user = w.user_id AND t.currency = w.currency AND ended_at IS NULL)`,
	} {
		var n int
		if err := db.Super.QueryRow(context.Background(), q).Scan(&n); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if n != 0 {
			t.Errorf("%s: %s (%d)", db.Cell, name, n)
		}
	}
}

func balance(t testing.TB, db *pgtest.DB, user id.ID, currency string) (out transfer.Balance) {
	t.Helper()
	err := pg.See(t.Context(), db.App, user.Slot(), func(tx pgx.Tx, _ bool) error {
		list, err := transfer.Balances(t.Context(), tx, user.Slot(), user)
		for _, b := range list {
			if b.Currency == currency {
				out = b
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPost(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := 0
	post := func(debit, credit transfer.Account, amount int64, step string) error {
		return inSlot(t, db, anna.Slot(), func(tx *pg.Tx) error {
			err := transfer.Post(t.Context(), tx, transfer.Posting{User: anna, Currency: "CNY", Debit: debit, Credit: credit,
				Amount: amount, Ref: "r:1", Step: step})
			if err != nil {
				// A refusal leaves the transaction usable and without a trace.
				if execErr := tx.QueryRow(t.Context(), "SELECT count(*) FROM cell.postings").Scan(&n); execErr != nil {
					t.Errorf("after %v: %v", err, execErr)
				}
			}
			return err
		})
	}
	for _, c := range []struct {
		name          string
		debit, credit transfer.Account
		amount        int64
		step          string
		want          error
	}{
		{"spend of a wallet that isn't there", "available", "frozen", 1, "s0", transfer.ErrInsufficientFunds},
		{"deposit makes the wallet", "external", "available", 1000, "deposit", nil},
		{"the same step again", "external", "available", 1000, "deposit", transfer.ErrPosted},
		{"the same step with another amount", "external", "available", 1, "deposit", transfer.ErrPosted},
		{"more than there is", "available", "frozen", 1001, "s1", transfer.ErrInsufficientFunds},
		{"all there is", "available", "frozen", 1000, "s2", nil},
		{"one more", "available", "frozen", 1, "s3", transfer.ErrInsufficientFunds},
		{"more frozen than there is", "frozen", "clearing", 1001, "s4", transfer.ErrInsufficientFunds},
		{"suspense is empty", "suspense", "available", 1, "s5", transfer.ErrInsufficientFunds},
		{"zero", "external", "available", 0, "s6", transfer.ErrAmount},
		{"negative", "external", "available", -5, "s7", transfer.ErrAmount},
		{"over what a wallet holds", "external", "available", transfer.MaxBalance + 1, "s8", transfer.ErrBalanceLimit},
		{"out of the freeze", "frozen", "available", 1000, "s9", nil},
		{"up to the limit", "external", "available", transfer.MaxBalance - 1000, "s10", nil},
		{"over the limit by one", "clearing", "available", 1, "s11", transfer.ErrBalanceLimit},
		{"into suspense all the same", "clearing", "suspense", 1, "s12", nil},
	} {
		if err := post(c.debit, c.credit, c.amount, c.step); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if got, want := balance(t, db, anna, "CNY").Available, int64(transfer.MaxBalance); got != want {
		t.Errorf("available = %d, want %d", got, want)
	}
	err := inSlot(t, db, anna.Slot(), func(tx *pg.Tx) error {
		return transfer.Post(t.Context(), tx, transfer.Posting{User: anna, Currency: "XXX", Debit: "external", Credit: "available", Amount: 1, Ref: "r:2", Step: "d"})
	})
	if !errors.Is(err, transfer.ErrAmount) {
		t.Errorf("another currency: %v", err)
	}
	check(t, db)
}

// The last line of defence: plain SQL of the application's role can't break the
// books of a wallet.
func TestWalletIsCheckedByTheDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	deposit(t, db, anna, "CNY", 100, "d:1")
	for _, set := range []string{"available = available + 1", "available = -1, external = external + 101", "frozen = -1, available = 101", "suspense = -1, available = 101"} {
		err := inSlot(t, db, anna.Slot(), func(tx *pg.Tx) error {
			_, err := tx.Exec(t.Context(), "UPDATE cell.wallets SET "+set)
			return err
		})
		if !pg.IsCheck(err, "") {
			t.Errorf("SET %s: %v, want a check violation", set, err)
		}
	}
	check(t, db)
}

func TestScenario_M08_ParallelSpends(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	deposit(t, db, anna, "CNY", 100*10, "d:1")
	const spenders, each = 100, 30 // money for 33 of them
	var ok atomic.Int64
	var wg sync.WaitGroup
	for i := range spenders {
		wg.Go(func() {
			err := inSlot(t, db, anna.Slot(), func(tx *pg.Tx) error {
				return transfer.Start(t.Context(), tx, transfer.Order{ID: id.Make(int64(100+i), anna.Slot(), false), From: anna, To: 1<<14 | 8,
					ToSlot: 8, Amount: each, Currency: "CNY"})
			})
			switch {
			case err == nil:
				ok.Add(1)
			case !errors.Is(err, transfer.ErrInsufficientFunds):
				t.Errorf("spender %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if ok.Load() != 33 {
		t.Errorf("%d spends went through, want 33", ok.Load())
	}
	if b := balance(t, db, anna, "CNY"); b.Available != 10 || b.Frozen != 990 {
		t.Errorf("balance = %+v, want 10 available, 990 frozen", b)
	}
	check(t, db)
}

func TestScenario_M08_BadAmounts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	deposit(t, db, anna, "CNY", 1000, "d:1")
	good := transfer.Order{From: anna, To: 1<<14 | 8, ToSlot: 8, Amount: 10, Currency: "CNY"}
	for i, c := range []struct {
		name string
		edit func(*transfer.Order)
		want error
	}{
		{"zero", func(o *transfer.Order) { o.Amount = 0 }, transfer.ErrAmount},
		{"negative", func(o *transfer.Order) { o.Amount = -10 }, transfer.ErrAmount},
		{"smallest int64", func(o *transfer.Order) { o.Amount = -1 << 63 }, transfer.ErrAmount},
		{"largest int64", func(o *transfer.Order) { o.Amount = 1<<63 - 1 }, transfer.ErrAmount},
		{"over the limit", func(o *transfer.Order) { o.Amount = transfer.MaxAmount + 1 }, transfer.ErrAmount},
		{"to oneself", func(o *transfer.Order) { o.To, o.ToSlot = anna, anna.Slot() }, transfer.ErrSelf},
		{"a currency that nobody has", func(o *transfer.Order) { o.Currency = "XAU" }, transfer.ErrAmount},
		{"a currency that the payer hasn't", func(o *transfer.Order) { o.Currency = "USD" }, transfer.ErrInsufficientFunds},
		{"more than there is", func(o *transfer.Order) { o.Amount = 1001 }, transfer.ErrInsufficientFunds},
		{"good", func(*transfer.Order) {}, nil},
	} {
		o := good
		o.ID = id.Make(int64(i+1), anna.Slot(), false)
		c.edit(&o)
		err := inSlot(t, db, anna.Slot(), func(tx *pg.Tx) error { return transfer.Start(t.Context(), tx, o) })
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if b := balance(t, db, anna, "CNY"); b.Available != 990 || b.Frozen != 10 {
		t.Errorf("balance = %+v, want 990 available, 10 frozen", b)
	}
	check(t, db)
}

func TestTryKeepsTheRejected(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := transfer.Order{ID: id.Make(1, anna.Slot(), false), From: anna, To: 1<<14 | 8, ToSlot: 8, Amount: 10, Currency: "CNY", Memo: "lunch"}
	for range 2 { // the second finds the row
		err := inSlot(t, db, anna.Slot(), func(tx *pg.Tx) error {
			got, err := transfer.Try(t.Context(), tx, o)
			if err == nil && (got.State != transfer.Rejected || got.Reason != "INSUFFICIENT_FUNDS" || got.EndedAt == nil) {
				t.Errorf("Try = %+v, want REJECTED", got)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var sent int
	if err := db.Super.QueryRow(t.Context(), "SELECT count(*) FROM cell.outbox").Scan(&sent); err != nil || sent != 0 {
		t.Errorf("%d messages of a rejected transfer, %v", sent, err)
	}
	o.Amount = 11
	err := inSlot(t, db, anna.Slot(), func(tx *pg.Tx) error { return transfer.Start(t.Context(), tx, o) })
	if !errors.Is(err, transfer.ErrOtherTransfer) {
		t.Errorf("the same ID for another transfer: %v", err)
	}
}

func TestStatementPages(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for i := range 7 {
		deposit(t, db, anna, "CNY", int64(i+1), fmt.Sprint("d:", i))
	}
	deposit(t, db, anna, "USD", 5, "d:usd")
	var seen []int64
	err := pg.See(t.Context(), db.App, anna.Slot(), func(tx pgx.Tx, _ bool) error {
		for before := int64(0); ; {
			page, err := transfer.Statement(t.Context(), tx, anna.Slot(), anna, "CNY", before, 3)
			if err != nil || len(page) == 0 {
				return err
			}
			for _, e := range page {
				seen = append(seen, e.Amount)
				before = e.Seq
			}
		}
	})
	if err != nil || fmt.Sprint(seen) != "[7 6 5 4 3 2 1]" {
		t.Errorf("statement = %v, %v", seen, err)
	}
}

func TestGetOfNobody(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	err := pg.See(t.Context(), db.App, 7, func(tx pgx.Tx, _ bool) error {
		_, err := transfer.Get(t.Context(), tx, 7, 12345)
		return err
	})
	if !errors.Is(err, errs.ErrNotFound) {
		t.Errorf("Get = %v", err)
	}
}
