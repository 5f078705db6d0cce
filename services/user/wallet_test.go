package user

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/services/user/userapi"
)

func TestHidden(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "", "A": "A***", "Al": "A***", "Ann": "A***n", "Ann Li": "A***i", "安": "安***", "张三": "张***", "欧阳修远": "欧***远"} {
		if got := hidden(in); got != want {
			t.Errorf("hidden(%q) = %q, want %q", in, got, want)
		}
	}
}

// S-M08: withdrawals at once take what there is, and no more.
func TestScenario_M08_Withdrawals(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1")
	w.live()
	ann := w.newUser("c1", w.phoneAt("c1", 0)).ID
	w.deposit(ann, 1000)
	var ok atomic.Int64
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			a := w.as(ann, "POST", "/api/v1/wallet/withdrawals", `{"amount":30}`, fmt.Sprint("w", i))
			switch {
			case a.status == http.StatusCreated:
				ok.Add(1)
			case a.status != 422 || !strings.Contains(a.body, "INSUFFICIENT_FUNDS"):
				t.Errorf("withdrawal %d = %d %s", i, a.status, a.body)
			}
		})
	}
	wg.Wait()
	var out userapi.Wallet
	w.as(ann, "GET", "/api/v1/wallet", "", "").decode(t, &out)
	if ok.Load() != 33 || out.Balances[0].Available != 10 {
		t.Errorf("%d withdrawals, %+v, want 33 and 10", ok.Load(), out)
	}
	// A refusal is nobody's answer for ever: with the money there, the key is good.
	w.deposit(ann, 100)
	a := w.as(ann, "POST", "/api/v1/wallet/withdrawals", `{"amount":105}`, "later")
	var done userapi.Withdrawal
	a.decode(t, &done)
	if a.status != 201 || done.Amount != 105 || done.Balance.Available != 5 || done.Balance.Digits != 2 {
		t.Errorf("withdrawal = %d %s", a.status, a.body)
	}
	// The newest line first; each line's balance is the one after it.
	var before int64 = 5
	lines := 0
	for cursor := ""; ; {
		var st userapi.Statement
		w.as(ann, "GET", "/api/v1/wallet/statement?limit=10"+cursor, "", "").decode(t, &st)
		for _, e := range st.Items {
			lines++
			if e.Available != before {
				t.Errorf("line %d: %d available, want %d", e.Seq, e.Available, before)
			}
			switch e.Step {
			case "withdraw":
				before += e.Amount
			case "deposit":
				before -= e.Amount
			}
		}
		if st.NextCursor == "" {
			break
		}
		if len(st.Items) != 10 {
			t.Errorf("a page of %d with a next one", len(st.Items))
		}
		cursor = "&cursor=" + st.NextCursor
		if lines == 20 { // what comes meanwhile moves no line of the pages to come
			w.deposit(ann, 1)
		}
	}
	if before != 0 || lines != 36 {
		t.Errorf("%d lines go back to %d, want 36 to 0", lines, before)
	}
}

func (w *world) preview(user id.ID, body string) (p userapi.Preview, a response) {
	w.t.Helper()
	a = w.as(user, "POST", "/api/v1/transfers/preview", body, "")
	if a.status == http.StatusOK {
		a.decode(w.t, &p)
	}
	return p, a
}

// The payee's cell is away: the payer sees who would get the money all the same, by
// phone and by number, and under the newest name.
func TestPreviewWithoutThePayeesCell(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	w.live()
	ann, bob := w.newUser("c1", w.phoneAt("c1", 0)).ID, w.newUser("c2", w.phoneAt("c2", 1))
	w.deposit(ann, 1000)
	waitFor(t, w.quiet)
	seen := func(name string) {
		t.Helper()
		for _, to := range []string{fmt.Sprintf(`"to_user":"%d"`, bob.ID), fmt.Sprintf(`"to_phone":%q`, bob.Phone)} {
			p, a := w.preview(ann, `{"amount":300,`+to+`}`)
			if p.ToUser != bob.ID || p.ToName != name || p.Amount != 300 || p.Currency != "CNY" || p.Digits != 2 || p.Available != 1000 || p.LeftToday != nil {
				t.Errorf("%s: %d %s, want %s", to, a.status, a.body, name)
			}
			if strings.Contains(a.body, bob.Name) || strings.Contains(a.body, bob.Phone) {
				t.Errorf("too much is told: %s", a.body)
			}
		}
	}
	w.setCut("c2", true)
	seen("A***n")
	w.setCut("c2", false)
	for _, n := range []string{"Bob", "Bobby", "Bobby"} { // the last is no news
		if a := w.as(bob.ID, "PATCH", "/api/v1/me", fmt.Sprintf(`{"name":%q}`, n), ""); a.status != 200 {
			t.Fatalf("rename = %d %s", a.status, a.body)
		}
	}
	waitFor(t, w.quiet)
	w.setCut("c2", true)
	seen("B***y")
	// Any order: an older name that arrives late changes nothing, nor does the copy of
	// the phone's home.
	c1 := w.cells["c1"]
	err := c1.svc.store.write(t.Context(), pg.Entry{Slot: c1.slot(), Epoch: 1}, func(tx *pg.Tx) error {
		mac := c1.svc.mac(strings.TrimPrefix(bob.Phone, "+"))
		for _, b := range []claimBody{{Name: "B***b", NameNo: 1}, {Name: "A***n"}, {}} {
			b.MAC, b.User = mac, bob.ID
			if there, err := copyClaim(t.Context(), tx, b); there != bob.ID || err != nil {
				t.Errorf("copy %+v: %d, %v", b, there, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	seen("B***y")
	// A copy from before has no name; this cell's own users have theirs at home.
	for _, c := range w.cells {
		c.db.Plant(t, "UPDATE users.claim_copies SET name = '', name_no = -1")
	}
	seen("")
	if p, a := w.preview(ann, fmt.Sprintf(`{"amount":1,"to_user":"%d"}`, w.newUser("c1", w.phoneAt("c1", 5)).ID)); p.ToName != "A***n" {
		t.Errorf("of the own cell: %s", a.body)
	}
}

// Only what was looked at is sent.
func TestConfirm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1")
	w.live()
	ann, bob, eve := w.newUser("c1", w.phoneAt("c1", 0)).ID, w.newUser("c1", w.phoneAt("c1", 1)), w.newUser("c1", w.phoneAt("c1", 2))
	w.deposit(ann, 1000)
	w.deposit(eve.ID, 1000)
	p, a := w.preview(ann, fmt.Sprintf(`{"amount":100,"to_phone":%q}`, bob.Phone))
	if a.status != 200 || p.ExpiresAt.Before(time.Now().Add(9*time.Minute)) {
		t.Fatalf("preview = %d %s", a.status, a.body)
	}
	body := func(to userapi.User, amount int, currency, confirm string) string {
		return fmt.Sprintf(`{"to_phone":%q,"amount":%d,"currency":%q,"confirm":%q}`, to.Phone, amount, currency, confirm)
	}
	for what, a := range map[string]response{
		"another payee":    w.as(ann, "POST", "/api/v1/transfers", body(eve, 100, "CNY", p.Confirm), "k"),
		"another amount":   w.as(ann, "POST", "/api/v1/transfers", body(bob, 101, "CNY", p.Confirm), "k"),
		"another currency": w.as(ann, "POST", "/api/v1/transfers", body(bob, 100, "USD", p.Confirm), "k"),
		"another payer":    w.as(eve.ID, "POST", "/api/v1/transfers", body(bob, 100, "CNY", p.Confirm), "k"),
		"tampered":         w.as(ann, "POST", "/api/v1/transfers", body(bob, 100, "CNY", tampered(p.Confirm)), "k"),
	} {
		if a.status != 422 || !strings.Contains(a.body, "NOT_CONFIRMED") {
			t.Errorf("%s = %d %s", what, a.status, a.body)
		}
	}
	first := w.as(ann, "POST", "/api/v1/transfers", body(bob, 100, "CNY", p.Confirm), "k")
	if first.status != 202 {
		t.Fatalf("as looked at = %d %s", first.status, first.body)
	}
	// Too late for another transfer, but not for the answer to the one that was sent.
	w.cells["c1"].svc.now = func() time.Time { return p.ExpiresAt }
	if a := w.as(ann, "POST", "/api/v1/transfers", body(bob, 100, "CNY", p.Confirm), "k2"); a.status != 422 || !strings.Contains(a.body, "NOT_CONFIRMED") {
		t.Errorf("too late = %d %s", a.status, a.body)
	}
	again := w.as(ann, "POST", "/api/v1/transfers", body(bob, 100, "CNY", p.Confirm), "k")
	unconfirmed := w.as(ann, "POST", "/api/v1/transfers", fmt.Sprintf(`{"to_phone":%q,"amount":100,"currency":"CNY"}`, bob.Phone), "k")
	if again.body != first.body || unconfirmed.body != first.body {
		t.Errorf("again = %d %s, %d %s", again.status, again.body, unconfirmed.status, unconfirmed.body)
	}
}

// S-M08: the limits of one transfer and of a day, one by one and 100 at once.
func TestScenario_M08_Limits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1")
	w.cells["c1"].svc.limits = map[string]transfer.Limits{"CNY": {Each: 300, Day: 1000}}
	w.live()
	ann, bob := w.newUser("c1", w.phoneAt("c1", 0)).ID, w.newUser("c1", w.phoneAt("c1", 1)).ID
	w.deposit(ann, 100_000)
	to := func(amount int) string { return fmt.Sprintf(`{"to_user":"%d","amount":%d}`, bob, amount) }
	over := w.as(ann, "POST", "/api/v1/transfers", to(301), "over")
	if over.status != 422 || !strings.Contains(over.body, `"LIMIT"`) {
		t.Errorf("over its limit = %d %s", over.status, over.body)
	}
	var row userapi.Transfer
	w.as(ann, "GET", over.header.Get("Location"), "", "").decode(t, &row)
	if row.State != "REJECTED" || row.Reason != "LIMIT" {
		t.Errorf("its row = %+v", row)
	}
	if a := w.as(ann, "POST", "/api/v1/transfers", to(301), "over"); a.status != 422 || !strings.Contains(a.body, `"LIMIT"`) || a.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("again = %d %s", a.status, a.body)
	}
	if _, a := w.preview(ann, to(301)); a.status != 422 || !strings.Contains(a.body, `"LIMIT"`) {
		t.Errorf("preview over the limit = %d %s", a.status, a.body)
	}
	if p, a := w.preview(ann, to(300)); p.LeftToday == nil || *p.LeftToday != 1000 {
		t.Errorf("preview = %d %s", a.status, a.body)
	}
	var ok atomic.Int64
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			switch a := w.as(ann, "POST", "/api/v1/transfers", to(30), fmt.Sprint("k", i)); {
			case a.status == http.StatusAccepted:
				ok.Add(1)
			case a.status != 422 || !strings.Contains(a.body, `"LIMIT"`):
				t.Errorf("transfer %d = %d %s", i, a.status, a.body)
			}
		})
	}
	wg.Wait()
	if ok.Load() != 33 {
		t.Errorf("%d transfers of 30, want 33", ok.Load())
	}
	if p, a := w.preview(ann, to(10)); p.LeftToday == nil || *p.LeftToday != 10 {
		t.Errorf("preview at the end of the day's = %d %s", a.status, a.body)
	}
	if _, a := w.preview(ann, to(11)); a.status != 422 || !strings.Contains(a.body, `"LIMIT"`) {
		t.Errorf("preview over the day's = %d %s", a.status, a.body)
	}
	// Out of the wallet into the world is no transfer; another currency has no limit.
	if a := w.as(ann, "POST", "/api/v1/wallet/withdrawals", `{"amount":5000}`, "w"); a.status != 201 {
		t.Errorf("withdrawal = %d %s", a.status, a.body)
	}
	w.as(ann, "POST", "/api/v1/wallet/deposits", `{"amount":5000,"currency":"JPY"}`, "yen")
	if a := w.as(ann, "POST", "/api/v1/transfers", fmt.Sprintf(`{"to_user":"%d","amount":5000,"currency":"JPY"}`, bob), "yen"); a.status != 202 {
		t.Errorf("in yen = %d %s", a.status, a.body)
	}
	// What came back is free again.
	w.cells["c1"].svc.limits = map[string]transfer.Limits{"CNY": {Day: 1000}}
	a := w.as(ann, "POST", "/api/v1/transfers", fmt.Sprintf(`{"to_user":"%d","amount":10}`, bob+1<<40), "nobody")
	waitFor(t, func() bool {
		return strings.Contains(w.as(ann, "GET", a.header.Get("Location"), "", "").body, "REVERSED")
	})
	if p, a := w.preview(ann, to(10)); p.LeftToday == nil || *p.LeftToday != 10 {
		t.Errorf("after one came back = %d %s", a.status, a.body)
	}
}
