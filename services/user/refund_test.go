package user

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/services/user/userapi"
)

// sure asks again, under the same key, when the machine had no time for it.
func (w *world) sure(user id.ID, method, path, body, key string) response {
	w.t.Helper()
	for tries := 1; ; tries++ {
		a := w.as(user, method, path, body, key)
		if a.status != http.StatusServiceUnavailable || tries == 30 {
			return a
		}
	}
}

func (w *world) pay(from, to id.ID, amount int64) userapi.Transfer {
	w.t.Helper()
	a := w.sure(from, "POST", "/api/v1/transfers", fmt.Sprintf(`{"to_user":"%d","amount":%d}`, to, amount), fmt.Sprint("pay", w.seq.Add(1)))
	var out userapi.Transfer
	a.decode(w.t, &out)
	if a.status != http.StatusAccepted {
		w.t.Fatalf("pay = %d %s", a.status, a.body)
	}
	return out
}

// told reads a transfer at the home of one of its parties, whatever slot its ID has.
func (w *world) told(user, n id.ID) (out userapi.Transfer) {
	w.t.Helper()
	if a := w.sure(user, "GET", "/api/v1/transfers/"+n.String(), "", ""); a.status == http.StatusOK {
		a.decode(w.t, &out)
	}
	return out
}

func (w *world) ended(user id.ID, n id.ID, state string) {
	w.t.Helper()
	waitFor(w.t, func() bool { return w.told(user, n).State == state })
}

func (w *world) available(user id.ID) int64 {
	w.t.Helper()
	var out userapi.Wallet
	w.sure(user, "GET", "/api/v1/wallet", "", "").decode(w.t, &out)
	return out.Balances[0].Available
}

// said is a history in one line.
func said(t userapi.Transfer) string {
	var out []string
	for _, e := range t.History {
		word := e.Side + " " + e.State
		for _, more := range []string{e.Reason, fmt.Sprint(e.Attempts), fmt.Sprint(e.Amount)} {
			if more != "" && more != "0" {
				word += " " + more
			}
		}
		out = append(out, word)
	}
	return strings.Join(out, ", ")
}

func TestRefund(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	w.live()
	ann, bob, carol := w.newUser("c1", w.phoneAt("c1", 0)).ID, w.newUser("c2", w.phoneAt("c1", 1)).ID, w.newUser("c2", w.phoneAt("c1", 2)).ID
	w.deposit(ann, 1000)
	sent := w.pay(ann, bob, 300)
	w.ended(ann, sent.ID, "SETTLED")
	path := "/api/v1/transfers/" + sent.ID.String() + "/refunds"
	for _, tc := range []struct {
		name string
		by   id.ID
		path string
		body string
		key  string
		want int
		code string
	}{
		{"without a key", bob, path, `{}`, "", 400, "IDEMPOTENCY_KEY_MISSING"},
		{"by the payer", ann, path, `{}`, "r", 404, "NOT_FOUND"},
		{"by somebody else", carol, path, `{}`, "r", 404, "NOT_FOUND"},
		{"of words", bob, "/api/v1/transfers/x/refunds", `{}`, "r", 404, "NOT_FOUND"},
		{"of what never was", bob, "/api/v1/transfers/77/refunds", `{}`, "r", 404, "NOT_FOUND"},
		{"below zero", bob, path, `{"amount":-1}`, "r", 400, "INVALID_INPUT"},
		{"a memo without end", bob, path, `{"memo":"` + strings.Repeat("x", 201) + `"}`, "r", 400, "INVALID_INPUT"},
		{"more than came", bob, path, `{"amount":301}`, "r", 422, "REFUND_LIMIT"},
	} {
		a := w.sure(tc.by, "POST", tc.path, tc.body, tc.key)
		if a.status != tc.want || !strings.Contains(a.body, tc.code) && tc.code != "INVALID_INPUT" {
			t.Errorf("%s: %d %s, want %d %s", tc.name, a.status, a.body, tc.want, tc.code)
		}
	}
	a := w.sure(bob, "POST", path, `{"amount":100,"memo":"broken"}`, "k")
	var back userapi.Transfer
	a.decode(t, &back)
	if a.status != 202 || back.Kind != "refund" || back.RefundOf != sent.ID || back.FromUser != bob || back.ToUser != ann || back.Amount != 100 || back.Memo != "broken" {
		t.Fatalf("refund = %d %s", a.status, a.body)
	}
	if again := w.sure(bob, "POST", path, `{"amount":100,"memo":"broken"}`, "k"); again.body != a.body || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the same once more = %d %s", again.status, again.body)
	}
	if other := w.sure(bob, "POST", path, `{"amount":99}`, "k"); other.status != 422 || !strings.Contains(other.body, "IDEMPOTENCY_KEY_REUSED") {
		t.Errorf("another refund with that key = %d %s", other.status, other.body)
	}
	w.ended(bob, back.ID, "SETTLED")
	var rest userapi.Transfer
	w.sure(bob, "POST", path, `{}`, "k2").decode(t, &rest)
	if rest.Amount != 200 {
		t.Errorf("the rest = %+v", rest)
	}
	if a := w.sure(bob, "POST", path, `{}`, "k3"); a.status != 422 || !strings.Contains(a.body, "REFUND_LIMIT") {
		t.Errorf("one more = %d %s", a.status, a.body)
	}
	w.ended(bob, rest.ID, "SETTLED")
	if w.available(ann) != 1000 || w.available(bob) != 0 {
		t.Errorf("ann has %d, bob %d", w.available(ann), w.available(bob))
	}
	// Each party is told by their own home, from its own rows.
	payer, payee := w.told(ann, sent.ID), w.told(bob, sent.ID)
	if payer.State != "SETTLED" || payer.Refunded != 300 || payee.State != "CREDITED" || payee.Refunded != 300 || payee.Direction != "in" {
		t.Errorf("payer is told %+v, payee %+v", payer, payee)
	}
	if got := said(payer); got != "payer FROZEN, payee CREDITED, payer SETTLED, payee REFUND 100, payee REFUND 200" {
		t.Errorf("history of the payer: %s", got)
	}
	if got := said(payee); got != "payee CREDITED, payee REFUND 100, payee REFUND 200" {
		t.Errorf("history of the payee: %s", got)
	}
	if seen := w.told(carol, sent.ID); seen.ID != 0 {
		t.Errorf("somebody else is told %+v", seen)
	}
}

// What goes on while the payee's cell is away is told too: how often it was asked,
// and that the money was asked back.
func TestHistoryOfAnOpenTransfer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	w.live()
	ann, bob := w.newUser("c1", w.phoneAt("c1", 0)).ID, w.newUser("c2", w.phoneAt("c1", 1)).ID
	w.deposit(ann, 1000)
	waitFor(t, w.quiet)
	w.setCut("c2", true)
	sent := w.pay(ann, bob, 300)
	w.cells["c1"].db.Plant(t, "UPDATE cell.relay SET attempts = 7")
	if got := said(w.told(ann, sent.ID)); got != "payer FROZEN 7" {
		t.Errorf("history: %s", got)
	}
	w.sure(ann, "POST", "/api/v1/transfers/"+sent.ID.String()+"/cancel", "", "")
	if got := said(w.told(ann, sent.ID)); got != "payer FROZEN 7, payer CANCELLING USER" {
		t.Errorf("history: %s", got)
	}
	if a := w.sure(bob, "GET", "/api/v1/transfers/"+sent.ID.String(), "", ""); a.status != 404 {
		t.Errorf("the payee's home knows of what hasn't come: %d %s", a.status, a.body)
	}
}

// An account is closed once nothing is in it; then it gets nothing more, and what
// was sent to it is back with its reason, also what was a refund.
func TestClosedAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	w.live()
	ann, bob := w.newUser("c1", w.phoneAt("c1", 0)).ID, w.newUser("c2", w.phoneAt("c1", 1))
	w.deposit(ann, 1000)
	w.deposit(bob.ID, 500)
	waitFor(t, w.quiet)
	closing := func() response { return w.sure(bob.ID, "DELETE", "/api/v1/me", "", "") }
	refuses := func(why string) {
		t.Helper()
		if a := closing(); a.status != 409 || !strings.Contains(a.body, "ACCOUNT_NOT_EMPTY") {
			t.Errorf("%s: %d %s", why, a.status, a.body)
		}
	}
	refuses("money is in it")
	w.setCut("c1", true)
	sent := w.pay(bob.ID, ann, 500)
	refuses("money is on its way")
	w.setCut("c1", false)
	w.ended(bob.ID, sent.ID, "SETTLED")
	for range 2 { // and once more
		if a := closing(); a.status != 204 {
			t.Fatalf("close = %d %s", a.status, a.body)
		}
	}
	if a := w.sure(bob.ID, "GET", "/api/v1/me", "", ""); a.status != 404 {
		t.Errorf("me = %d %s", a.status, a.body)
	}
	if a := w.sure(bob.ID, "POST", "/api/v1/wallet/deposits", `{"amount":1}`, "late"); a.status != 404 {
		t.Errorf("deposit = %d %s", a.status, a.body)
	}
	late := w.pay(ann, bob.ID, 100)
	var back userapi.Transfer
	w.sure(ann, "POST", "/api/v1/transfers/"+sent.ID.String()+"/refunds", `{}`, "k").decode(t, &back)
	for _, n := range []id.ID{late.ID, back.ID} {
		w.ended(ann, n, "REVERSED")
		if got := w.told(ann, n); got.Reason != "PAYEE_CLOSED" {
			t.Errorf("%+v, want PAYEE_CLOSED", got)
		}
	}
	if got := said(w.told(ann, late.ID)); got != "payer FROZEN, payee REFUSED PAYEE_CLOSED, payer REVERSED PAYEE_CLOSED" {
		t.Errorf("history: %s", got)
	}
	if got := w.told(ann, sent.ID); got.Refunded != 0 || w.available(ann) != 1500 {
		t.Errorf("%+v, ann has %d", got, w.available(ann))
	}
}

// Whoever has seen an account open ends before it is closed, and closing sees what
// they did.
func TestClosingWaitsForCredits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1")
	w.live()
	ann := w.newUser("c1", w.phoneAt("c1", 0)).ID
	waitFor(t, w.quiet)
	c, r := w.cells["c1"], pg.Entry{Slot: ann.Slot(), Epoch: 1}
	closed := make(chan error, 1)
	raw, err := c.db.Super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // after a commit
	if _, err := raw.Exec(t.Context(), "SELECT cell.enter($1, 1, 0)", int32(r.Slot)); err != nil {
		t.Fatal(err)
	}
	credit := &pg.Tx{Tx: raw, Entry: r}
	if ok, _, err := payee(t.Context(), credit, ann); !ok || err != nil {
		t.Fatalf("payee: %v, %v", ok, err)
	}
	go func() {
		for { // it doesn't wait for long
			err := c.svc.store.write(t.Context(), r, func(tx *pg.Tx) error { return closeAccount(t.Context(), tx, ann) })
			if !errs.IsKind(err, errs.Unavailable) {
				closed <- err
				return
			}
		}
	}()
	waitFor(t, func() (waits bool) {
		err := c.db.Super.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`, int64(r.Slot)).Scan(&waits)
		return err == nil && waits
	})
	err = errors.Join(transfer.Post(t.Context(), credit, transfer.Posting{User: ann, Currency: "CNY", Debit: transfer.Clearing, Credit: transfer.Available,
		Amount: 5, Ref: "transfer:1", Step: "credit"}), raw.Commit(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if err := <-closed; !errs.IsKind(err, errs.Conflict) {
		t.Errorf("close = %v, want ACCOUNT_NOT_EMPTY", err)
	}
	// What is refused anyway waits for nobody, and nobody for it.
	inside, err := c.db.Super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // only a lock
	if _, err := inside.Exec(t.Context(), "SELECT cell.enter($1, 1, 0)", int32(r.Slot)); err != nil {
		t.Fatal(err)
	}
	for tries := 1; ; tries++ {
		err := c.svc.store.write(t.Context(), r, func(tx *pg.Tx) error { return closeAccount(t.Context(), tx, ann) })
		if errs.IsKind(err, errs.Conflict) {
			break
		}
		if tries == 10 {
			t.Fatalf("close while somebody is in the slot = %v, want ACCOUNT_NOT_EMPTY", err)
		}
	}
}
