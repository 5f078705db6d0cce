package transfer_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/transfer"
)

// credited is who received a transfer, 0 = nobody yet.
func (w *world) credited(n id.ID) (user id.ID) {
	w.t.Helper()
	for _, db := range w.dbs {
		err := db.Super.QueryRow(w.t.Context(), "SELECT user_id FROM cell.credits WHERE transfer_id = $1", n).Scan(&user)
		if err == nil {
			return user
		} else if !errors.Is(err, pgx.ErrNoRows) {
			w.t.Fatal(err)
		}
	}
	return 0
}

// giveBack has the payee of a transfer give back some of it, or the rest.
func (w *world) giveBack(n id.ID, amount int64) (transfer.Transfer, error) {
	user := w.credited(n)
	if user == 0 {
		return transfer.Transfer{}, errs.ErrNotFound
	}
	w.seq++
	return w.back(transfer.Back{ID: id.Make(1000+w.seq, user.Slot(), false), Of: n, By: user, Amount: amount})
}

func (w *world) back(b transfer.Back) (t transfer.Transfer, err error) {
	err = inSlot(w.t, w.db(b.ID.Slot()), b.ID.Slot(), func(tx *pg.Tx) error {
		t, err = transfer.GiveBack(w.t.Context(), tx, b)
		return err
	})
	return t, err
}

func refused(err error) bool {
	return errs.IsKind(err, errs.NotFound) || errors.Is(err, transfer.ErrNotRefundable) || errors.Is(err, transfer.ErrRefundLimit) ||
		errors.Is(err, transfer.ErrInsufficientFunds)
}

// row reads both sides' count of what came back of a transfer.
func (w *world) refunded(n id.ID) (source, dest int64) {
	w.t.Helper()
	to := w.credited(n)
	err := errors.Join(
		w.db(n.Slot()).Super.QueryRow(w.t.Context(), "SELECT refunded FROM cell.transfers WHERE slot = $1 AND id = $2", n.Slot(), n).Scan(&source),
		w.db(to.Slot()).Super.QueryRow(w.t.Context(), "SELECT refunded FROM cell.credits WHERE slot = $1 AND transfer_id = $2", to.Slot(), n).Scan(&dest))
	if err != nil {
		w.t.Fatal(err)
	}
	return source, dest
}

// 100 refunds at once give back what came, and not a unit more.
func TestRefundsAtOnceGiveBackWhatCame(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	deposit(t, w.dbs[1], bob, "CNY", 1000, "d:2")
	n := w.start(anna, bob, 100)
	for _, m := range w.open() { // the answer is still on its way: the payee may give back what it has all the same
		if _, err := w.request(m, nil, false); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	began := 0
	for i := range 100 {
		wg.Go(func() {
			_, err := w.back(transfer.Back{ID: id.Make(int64(2000+i), bob.Slot(), false), Of: n, By: bob, Amount: 3})
			switch {
			case err == nil:
				mu.Lock()
				began++
				mu.Unlock()
			case !errors.Is(err, transfer.ErrRefundLimit):
				t.Errorf("refund %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if began != 33 {
		t.Errorf("%d refunds of 3 began, want 33 of 100", began)
	}
	if rest, err := w.giveBack(n, 0); err != nil || rest.Amount != 1 || rest.Kind != transfer.Refund || rest.RefundOf != n {
		t.Errorf("the rest: %+v, %v, want 1", rest, err)
	}
	if _, err := w.giveBack(n, 0); !errors.Is(err, transfer.ErrRefundLimit) {
		t.Errorf("one more: %v", err)
	}
	w.drain()
	if a, b := balance(t, w.dbs[0], anna, "CNY"), balance(t, w.dbs[1], bob, "CNY"); a.Available != 1000 || b.Available != 1000 {
		t.Errorf("anna %+v, bob %+v, want all back", a, b)
	}
	if s, d := w.refunded(n); s != 100 || d != 100 {
		t.Errorf("%d came back by the source, %d by the destination, want 100", s, d)
	}
	w.audit(2000)
}

// What is nobody's to give back leaves no trace.
func TestRefundIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	n, never := w.start(anna, bob, 100), w.start(anna, nobody, 5)
	w.drain()
	spent := w.start(bob, carol, 60)
	w.drain()
	back, err := w.giveBack(n, 40)
	if err != nil {
		t.Fatal(err)
	}
	w.drain()
	for name, tc := range map[string]struct {
		b    transfer.Back
		want error
	}{
		"by somebody else":      {transfer.Back{Of: n, By: carol}, errs.ErrNotFound},
		"of nothing":            {transfer.Back{Of: n + 1<<20, By: bob}, errs.ErrNotFound},
		"of what was refused":   {transfer.Back{Of: never, By: nobody}, transfer.ErrNotRefundable},
		"more than came":        {transfer.Back{Of: n, By: bob, Amount: 61}, transfer.ErrRefundLimit},
		"what was spent":        {transfer.Back{Of: n, By: bob, Amount: 60}, transfer.ErrInsufficientFunds},
		"less than nothing":     {transfer.Back{Of: n, By: bob, Amount: -1}, transfer.ErrAmount},
		"by the payer":          {transfer.Back{Of: spent, By: bob}, errs.ErrNotFound},
		"another's ID":          {transfer.Back{ID: back.ID, Of: spent, By: carol}, transfer.ErrOtherTransfer},
		"as the payer, refunds": {transfer.Back{ID: id.Make(9, anna.Slot(), false), Of: back.ID, By: anna}, transfer.ErrNotRefundable},
	} {
		if tc.b.ID == 0 {
			tc.b.ID = id.Make(5000, bob.Slot(), false)
		}
		if tc.b.By == nobody {
			tc.b.ID = id.Make(5000, nobody.Slot(), false)
		}
		if _, err := w.back(tc.b); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	if again, err := w.back(transfer.Back{ID: back.ID, Of: n, By: bob, Amount: 40}); err != nil || again.ID != back.ID {
		t.Errorf("the same once more: %+v", again)
	}
	w.drain()
	w.audit(1000)
}

// A refund that came to nothing, refused or asked back, may be made anew.
func TestRefundThatCameToNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[1], nobody, "CNY", 1000, "d:1")
	n := w.start(nobody, anna, 100)
	w.drain()
	for i := range 2 { // the account of the payer is closed meanwhile
		back, err := w.giveBack(n, 0)
		if err != nil || back.Amount != 100 {
			t.Fatalf("refund %d: %+v, %v", i, back, err)
		}
		if i == 1 {
			if err := w.cancel(back.ID); err != nil {
				t.Fatal(err)
			}
			list := w.open()
			for _, m := range list {
				if m.Kind == transfer.KindCancel {
					if _, err := w.request(m, nil, false); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		w.drain()
		s, d := w.refunded(n)
		if got := w.state(back.ID); got != transfer.Reversed || s != 0 || d != 0 {
			t.Errorf("the refund is %s, %d and %d came back, want REVERSED and nothing", got, s, d)
		}
		if b := balance(t, w.dbs[0], anna, "CNY"); b.Available != 100 || b.Frozen != 0 {
			t.Errorf("anna has %+v, want the 100", b)
		}
	}
	w.audit(1000)
}

// An operator takes a transfer back although its payee has spent it: what is
// missing is owed, and no longer once the reversal comes to nothing.
func TestReversalOwesWhatIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	deposit(t, w.dbs[1], nobody, "CNY", 1000, "d:2")
	recovery := func(user id.ID) (r int64) {
		t.Helper()
		if err := w.db(user.Slot()).Super.QueryRow(t.Context(), "SELECT recovery FROM cell.wallets WHERE user_id = $1", user).Scan(&r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	n := w.start(anna, bob, 100)
	w.drain()
	w.start(bob, carol, 70)
	w.drain()
	back, err := w.back(transfer.Back{ID: id.Make(5000, bob.Slot(), false), Of: n, Memo: "fraud"})
	if err != nil || back.Amount != 100 || back.Owed != 70 {
		t.Fatalf("reversal: %+v, %v", back, err)
	}
	w.drain()
	if a := balance(t, w.dbs[0], anna, "CNY"); a.Available != 1000 || recovery(bob) != -70 || balance(t, w.dbs[1], bob, "CNY").Available != 0 {
		t.Errorf("anna has %+v, bob owes %d, want 1000 and 70", a, recovery(bob))
	}
	w.audit(2000 + 70)
	n = w.start(nobody, anna, 50) // and now the payer can't have it
	w.drain()
	w.start(anna, carol, 1030)
	w.drain()
	if back, err = w.back(transfer.Back{ID: id.Make(5001, anna.Slot(), false), Of: n}); err != nil || back.Owed != 30 {
		t.Fatalf("reversal: %+v, %v", back, err)
	}
	w.drain()
	if a := balance(t, w.dbs[0], anna, "CNY"); w.state(back.ID) != transfer.Reversed || a.Available != 20 || recovery(anna) != 0 {
		t.Errorf("%s: anna has %+v and owes %d, want 20 and nothing", w.state(back.ID), a, recovery(anna))
	}
	w.audit(2000 + 70)
}

// A reversal is neither its payee's nor the deadline's to ask back, only an
// operator's.
func TestReversalIsTheOperators(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	n := w.start(anna, bob, 100)
	w.drain()
	back, err := w.back(transfer.Back{ID: id.Make(5000, bob.Slot(), false), Of: n})
	if err != nil || !back.ByOperator {
		t.Fatalf("reversal: %+v, %v", back, err)
	}
	if err := w.cancel(back.ID); !errors.Is(err, transfer.ErrNoCancel) {
		t.Errorf("cancelled by its sender: %v", err)
	}
	w.dbs[1].Plant(t, "UPDATE cell.transfers SET deadline = now() - interval '1 h'")
	if n, err := transfer.Expire(t.Context(), w.dbs[1].App); n != 0 || err != nil || w.state(back.ID) != transfer.Frozen {
		t.Errorf("past its deadline: %d asked back, %v, %s", n, err, w.state(back.ID))
	}
	err = inSlot(t, w.dbs[1], bob.Slot(), func(tx *pg.Tx) error {
		_, err := transfer.Cancel(t.Context(), tx, back.ID, transfer.WishOperator)
		return err
	})
	if err != nil || w.state(back.ID) != transfer.Cancelling {
		t.Errorf("asked back by an operator: %v, %s", err, w.state(back.ID))
	}
	w.drain()
	w.audit(1000)
}

// The payment of an order is given back from where it is: the seller's balance, or
// suspense. Who bought from themselves gives back to themselves.
func TestRefundOfAnOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	ctx := t.Context()
	err := inSlot(t, w.dbs[0], anna.Slot(), func(tx *pg.Tx) error {
		var err error
		for i, to := range []id.ID{bob, nobody, anna} {
			err = errors.Join(err, transfer.Start(ctx, tx, transfer.Order{ID: id.Make(int64(50+i), anna.Slot(), false), Kind: transfer.Sales, From: anna, To: to,
				ToSlot: to.Slot(), Amount: 30, Currency: "CNY", OrderID: 9}))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w.drain()
	for i, to := range []id.ID{bob, nobody, anna} {
		b := transfer.Back{ID: id.Make(5000, to.Slot(), false), Of: id.Make(int64(50+i), anna.Slot(), false), By: to}
		if to == nobody {
			b.By = 0
		}
		back, err := w.back(b)
		if err != nil || back.Amount != 30 || back.Owed != 0 || (back.TakenFrom == transfer.Suspense) != (to == nobody) {
			t.Errorf("refund by %d: %+v, %v", to, back, err)
		}
	}
	w.drain()
	if a := balance(t, w.dbs[0], anna, "CNY"); a.Available != 1000 {
		t.Errorf("anna has %+v, want all back", a)
	}
	w.audit(1000)
}

// A refund that no refund of that transfer can be is parked; nothing is posted.
func TestForgedRefundIsParked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	deposit(t, w.dbs[1], bob, "CNY", 1000, "d:2")
	n, reversed := w.start(anna, bob, 100), w.start(anna, nobody, 100)
	w.drain()
	if _, err := w.giveBack(n, 60); err != nil {
		t.Fatal(err)
	}
	w.drain()
	body := func(of, from, to id.ID, amount int64, currency, kind string) json.RawMessage {
		return json.RawMessage(fmt.Sprintf(`{"transfer":"%d","kind":%q,"from":"%d","to":"%d","amount":%d,"currency":%q,"refund_of":"%d"}`,
			id.Make(7000, bob.Slot(), false), kind, from, to, amount, currency, of))
	}
	for name, b := range map[string]json.RawMessage{
		"more than is left":       body(n, bob, anna, 41, "CNY", "refund"),
		"by somebody else":        body(n, carol, anna, 1, "CNY", "refund"),
		"another currency":        body(n, bob, anna, 1, "USD", "refund"),
		"of what was never sent":  body(n+1<<20, bob, anna, 1, "CNY", "refund"),
		"of what came to nothing": body(reversed, nobody, anna, 1, "CNY", "refund"),
		"a transfer that refunds": body(n, bob, anna, 1, "CNY", "transfer"),
		"of nothing":              body(0, bob, anna, 1, "CNY", "refund"),
	} {
		m := bus.Message{ID: "transfer.credit:7000", Kind: transfer.KindCredit, From: bob.Slot(), To: anna.Slot(), Body: b}
		if _, err := w.request(m, nil, false); !isParked(err) {
			t.Errorf("%s: %v, want parked", name, err)
		}
	}
	w.audit(2000)
}
