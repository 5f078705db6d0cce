package transfer_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/transfer"
)

// Go's list and the database's are the same.
func TestCurrencies(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	seen := map[int]bool{}
	for _, c := range append(transfer.Currencies(), "XAU", "cny", "", "CNYX", "GBP") {
		var inDB *int
		if err := db.App.QueryRow(t.Context(), "SELECT cell.minor_digits($1)", c).Scan(&inDB); err != nil {
			t.Fatal(err)
		}
		n, ok := transfer.Digits(c)
		if ok != (inDB != nil) || ok && *inDB != n || ok != transfer.ValidCurrency(c) {
			t.Errorf("%q: %d, %v here, %v in the database", c, n, ok, inDB)
		}
		if ok {
			seen[n] = true
		}
	}
	if !seen[0] || !seen[2] || !seen[3] || len(seen) != 3 {
		t.Errorf("digits %v, want 0, 2 and 3", seen)
	}
	// Each has its own wallet, in its own smallest unit.
	for i, c := range transfer.Currencies() {
		deposit(t, db, anna, c, int64(i+1), "d:"+c)
	}
	for i, c := range transfer.Currencies() {
		if b := balance(t, db, anna, c); b.Available != int64(i+1) {
			t.Errorf("%s: %+v", c, b)
		}
	}
	check(t, db)
}

// The books' rules in the database itself: plain SQL of the application's role
// can't write what breaks them.
func TestLedgerIsCheckedByTheDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	deposit(t, db, anna, "CNY", 100, "d:1")
	posting := func(debit, credit string, amount int, currency, ref, step string, available int) string {
		return fmt.Sprintf(`INSERT INTO cell.postings (slot, user_id, currency, seq, debit, credit, amount, ref, step, available, frozen)
			VALUES (%d, %d, '%s', 2, '%s', '%s', %d, '%s', '%s', %d, 5)`, anna.Slot(), anna, currency, debit, credit, amount, ref, step, available)
	}
	sent := func(kind string, to, amount int, currency string, refundOf, refunded int) string {
		return fmt.Sprintf(`INSERT INTO cell.transfers (slot, id, kind, from_user, to_user, to_slot, amount, currency, state, deadline, refund_of, refunded)
			VALUES (%d, %d, '%s', 1, %d, 8, %d, '%s', 'FROZEN', now(), %d, %d)`, anna.Slot(), anna, kind, to, amount, currency, refundOf, refunded)
	}
	came := func(kind string, amount int, currency string, refundOf, refunded int) string {
		return fmt.Sprintf(`INSERT INTO cell.credits (slot, transfer_id, kind, user_id, from_user, from_slot, amount, currency, state, refund_of, refunded)
			VALUES (%d, 5, '%s', %d, 2, 8, %d, '%s', 'CREDITED', %d, %d)`, anna.Slot(), kind, anna, amount, currency, refundOf, refunded)
	}
	set := func(what string) string { return "UPDATE cell.wallets SET " + what }
	for _, c := range []struct{ name, sql, constraint string }{
		{"both legs on one account", posting("frozen", "frozen", 5, "CNY", "r:1", "s", 95), "postings_check"},
		{"an account that isn't one", posting("available", "pocket", 5, "CNY", "r:1", "s", 95), "postings_accounts"},
		{"from an account that isn't one", posting("pocket", "frozen", 5, "CNY", "r:1", "s", 95), "postings_accounts"},
		{"an entry of nothing", posting("available", "frozen", 0, "CNY", "r:1", "s", 95), "postings_amount_check"},
		{"an entry below zero", posting("available", "frozen", -5, "CNY", "r:1", "s", 95), "postings_amount_check"},
		{"an entry in gold", posting("available", "frozen", 5, "XAU", "r:1", "s", 95), "postings_known_currency"},
		{"an entry of no name", posting("available", "frozen", 5, "CNY", "", "s", 95), "postings_named"},
		{"an entry of no step", posting("available", "frozen", 5, "CNY", "r:1", "", 95), "postings_named"},
		{"an entry that leaves less than nothing", posting("available", "frozen", 5, "CNY", "r:1", "s", -1), "postings_balances"},
		{"a wallet in gold", set("currency = 'XAU'"), "wallets_known_currency"},
		{"money from nowhere", set("available = available + 1"), "wallets_zero"},
		{"less than nothing", set("available = -1, external = 1"), "wallets_available"},
		{"a debt that was overpaid", set("recovery = 1, available = 99"), "wallets_recovery"},
		{"spent less than nothing", set("spent = -1"), "wallets_spent"},
		{"a transfer in gold", sent("transfer", 2, 5, "XAU", 0, 0), "transfers_known_currency"},
		{"a transfer to oneself", sent("transfer", 1, 5, "CNY", 0, 0), "transfers_self"},
		{"a gift", sent("gift", 2, 5, "CNY", 0, 0), "transfers_kind"},
		{"a refund of nothing", sent("refund", 2, 5, "CNY", 0, 0), "transfers_points"},
		{"a transfer that is a refund", sent("transfer", 2, 5, "CNY", 9, 0), "transfers_points"},
		{"given back more than was sent", sent("transfer", 2, 5, "CNY", 0, 6), "transfers_refunded"},
		{"given back more than came in", came("transfer", 5, "CNY", 0, 6), "credits_refunded"},
		{"a credit in gold", came("transfer", 5, "XAU", 0, 0), "credits_known_currency"},
		{"a credit of nothing", came("transfer", 0, "CNY", 0, 0), "credits_amount"},
		{"a credited gift", came("gift", 5, "CNY", 0, 0), "credits_kind"},
		{"a credited refund of nothing", came("refund", 5, "CNY", 0, 0), "credits_points"},
	} {
		err := inSlot(t, db, anna.Slot(), func(tx *pg.Tx) error {
			_, err := tx.Exec(t.Context(), c.sql)
			return err
		})
		if !pg.IsCheck(err, c.constraint) {
			t.Errorf("%s: %v, want %s", c.name, err, c.constraint)
		}
	}
	// A step of a transfer is there once, whatever its accounts and amount.
	err := inSlot(t, db, anna.Slot(), func(tx *pg.Tx) error {
		_, err := tx.Exec(t.Context(), posting("available", "frozen", 5, "CNY", "d:1", "deposit", 95))
		return err
	})
	if !pg.IsUnique(err, "postings_slot_ref_step_key") {
		t.Errorf("a step twice: %v", err)
	}
	check(t, db)
}

// Money paid for somebody who hadn't it is owed by them, and no more is ever paid
// back than is owed.
func TestRecovery(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	post := func(debit, credit transfer.Account, amount int64, step string) error {
		return inSlot(t, db, anna.Slot(), func(tx *pg.Tx) error {
			return transfer.Post(t.Context(), tx, transfer.Posting{User: anna, Currency: "JPY", Debit: debit, Credit: credit, Amount: amount, Ref: "r:1", Step: step})
		})
	}
	for _, c := range []struct {
		name          string
		debit, credit transfer.Account
		amount        int64
		want          error
	}{
		{"pays back what isn't owed", transfer.External, transfer.Recovery, 1, transfer.ErrInsufficientFunds},
		{"is paid for", transfer.Recovery, transfer.Clearing, 300, nil},
		{"gets money", transfer.External, transfer.Available, 500, nil},
		{"pays back more than is owed", transfer.Available, transfer.Recovery, 301, transfer.ErrInsufficientFunds},
		{"pays back all", transfer.Available, transfer.Recovery, 300, nil},
		{"pays back once more", transfer.Available, transfer.Recovery, 1, transfer.ErrInsufficientFunds},
	} {
		if err := post(c.debit, c.credit, c.amount, c.name); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if b := balance(t, db, anna, "JPY"); b.Available != 200 {
		t.Errorf("balance = %+v", b)
	}
	check(t, db)
}

func TestParseLimits(t *testing.T) {
	t.Parallel()
	got, err := transfer.ParseLimits([]string{"CNY=5000000", "JPY=1"}, []string{"CNY=9000000", "KWD=3"})
	want := map[string]transfer.Limits{"CNY": {Each: 5_000_000, Day: 9_000_000}, "JPY": {Each: 1}, "KWD": {Day: 3}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if got, err := transfer.ParseLimits(nil, nil); err != nil || len(got) != 0 {
		t.Errorf("none: %v, %v", got, err)
	}
	for _, bad := range []string{"CNY", "CNY=", "CNY=0", "CNY=-1", "CNY=x", "CNY=9223372036854775808", "XAU=1", "=1", "cny=1"} {
		for i := range 2 {
			lists := [2][]string{}
			lists[i] = []string{bad}
			if got, err := transfer.ParseLimits(lists[0], lists[1]); err == nil {
				t.Errorf("%q is %v", bad, got)
			}
		}
	}
	if _, err := transfer.ParseLimits([]string{"CNY=1", "CNY=2"}, nil); err == nil {
		t.Error("two limits of one currency")
	}
}
