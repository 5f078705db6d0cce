package bank

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/services/user/userapi"
)

func made(id string, amount int64) answer {
	return answer{status: 202, body: fmt.Appendf(nil, `{"id":%q,"amount":%d,"state":"FROZEN"}`, id, amount)}
}

// What everybody must have is what their answers come to, and nothing else.
func TestExpected(t *testing.T) {
	t.Parallel()
	var b book
	put := func(w *write, a answer, state string) {
		b.add(w)
		if bad := b.take(w, a, false); bad != "" {
			t.Error(bad)
		}
		w.state = state
	}
	put(&write{kind: deposits, who: 0, currency: "CNY", amount: 100}, made("16385", 100), "")
	put(&write{kind: withdraws, who: 0, currency: "CNY", amount: 5}, made("16386", 5), "")
	put(&write{kind: transfers, who: 0, to: 1, currency: "CNY", amount: 30}, made("16387", 30), settled)
	put(&write{kind: transfers, who: 0, to: 1, currency: "CNY", amount: 7}, made("16388", 7), reversed)
	put(&write{kind: refunds, who: 1, to: 0, currency: "CNY", amount: 10}, made("16389", 10), settled)
	put(&write{kind: transfers, who: 1, to: 0, currency: "CNY", amount: 900}, answer{status: 422, body: []byte(`{"code":"INSUFFICIENT_FUNDS"}`)}, "")
	b.add(&write{kind: deposits, who: 1, currency: "CNY", amount: 1000}) // nobody has answered
	want := map[account]int64{{0, "CNY"}: 1 + 100 - 5 - 30 + 10, {1, "CNY"}: 30 - 10, {1, "JPY"}: 2}
	got := b.expected(map[account]int64{{0, "CNY"}: 1, {1, "JPY"}: 2})
	if d := cmp.Diff(want, got, cmp.AllowUnexported(account{})); d != "" {
		t.Errorf("expected (-want +got):\n%s", d)
	}
}

// The same question has one answer, unless the slot has lost it.
func TestTakeAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		again answer
		lossy bool
		bad   string
		lost  int
	}{
		"the same":             {made("16385", 10), false, "", 0},
		"another":              {made("16386", 10), false, "was answered 16385, and asked again 16386", 0},
		"another, lost":        {made("16386", 10), true, "", 1},
		"refused now":          {answer{status: 422, body: []byte(`{"code":"LIMIT"}`)}, false, "LIMIT", 0},
		"refused now, lost":    {answer{status: 422, body: []byte(`{"code":"LIMIT"}`)}, true, "", 1},
		"another amount":       {made("16385", 11), false, "asked for 10 and got 11", 0},
		"no answer to be read": {answer{status: 202, body: []byte("{}")}, true, "is no answer", 0},
	} {
		var b book
		w := &write{kind: transfers, currency: "CNY", amount: 10, key: "k"}
		b.add(w)
		if bad := b.take(w, made("16385", 10), false); bad != "" {
			t.Fatal(bad)
		}
		first := w.answered
		bad := b.take(w, tc.again, tc.lossy)
		if (bad == "") != (tc.bad == "") || !strings.Contains(bad, tc.bad) || len(w.lost) != tc.lost {
			t.Errorf("%s: %q with %v lost, want %q with %d", name, bad, w.lost, tc.bad, tc.lost)
		}
		if w.answered != first {
			t.Errorf("%s: an answer's time is that of the first", name)
		}
	}
}

func TestDuring(t *testing.T) {
	t.Parallel()
	at := time.Unix(100, 0)
	all := []span{{from: at, to: at.Add(time.Second)}}
	for d, want := range map[time.Duration]bool{-time.Millisecond: false, 0: true, time.Second: true, time.Second + 1: false} {
		if got := during(all, at.Add(d)); got != want {
			t.Errorf("during %v = %v", d, got)
		}
	}
}

// Each way in which a statement can be wrong is seen.
func TestStatement(t *testing.T) {
	t.Parallel()
	good := func() []userapi.Entry {
		return []userapi.Entry{
			{Seq: 4, From: "clearing", To: "available", Amount: 3, Ref: "transfer:2", Step: "credit", Available: 73},
			{Seq: 3, From: "frozen", To: "clearing", Amount: 30, Ref: "transfer:1", Step: "settle", Available: 70},
			{Seq: 2, From: "available", To: "frozen", Amount: 30, Ref: "transfer:1", Step: "freeze", Available: 70, Frozen: 30},
			{Seq: 1, From: "external", To: "available", Amount: 100, Ref: "deposit:1", Step: "deposit", Available: 100},
		}
	}
	if bad := statement(good()); bad != "" {
		t.Errorf("a good one: %s", bad)
	}
	for name, change := range map[string]func([]userapi.Entry){
		"a balance":     func(e []userapi.Entry) { e[0].Available++ },
		"frozen":        func(e []userapi.Entry) { e[2].Frozen-- },
		"a hole":        func(e []userapi.Entry) { e[0].Seq++ },
		"an amount":     func(e []userapi.Entry) { e[1].Amount-- },
		"below zero":    func(e []userapi.Entry) { e[3].Available = -1 },
		"one account":   func(e []userapi.Entry) { e[3].From = "available" },
		"nothing moved": func(e []userapi.Entry) { e[3].Amount = 0 },
	} {
		all := good()
		change(all)
		if statement(all) == "" {
			t.Errorf("%s isn't seen", name)
		}
	}
	all := good()
	again := all[0]
	again.Step = "credit again"
	all = append([]userapi.Entry{again}, all...)
	if d := cmp.Diff([]string{"transfer:2"}, twice(all)); d != "" {
		t.Errorf("twice (-want +got):\n%s", d)
	}
	back := again
	back.From, back.To = again.To, again.From
	if got := twice(append(all, back)); len(got) > 0 {
		t.Errorf("taken back, and still %v", got)
	}
}

// What passes is asked again, what is said for good isn't.
func TestPassing(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]bool{200: false, 404: false, 409: false, 421: true, 422: false, 429: true, 500: true, 503: true} {
		if got := passing(answer{status: status, body: []byte(`{"code":"TRANSFER_ENDED"}`)}); got != want {
			t.Errorf("passing(%d) = %v", status, got)
		}
	}
	if !passing(answer{status: http.StatusConflict, body: []byte(`{"code":"IDEMPOTENCY_KEY_IN_FLIGHT"}`)}) {
		t.Error("a key in flight is for good")
	}
}

// The same seed gives the same steps, nobody pays themselves, and every kind comes.
func TestPlan(t *testing.T) {
	t.Parallel()
	a, b := newPlanner(3, 24), newPlanner(3, 24)
	seen := map[kind]int{}
	for range 200 {
		x := a.next()
		if y := b.next(); x != y {
			t.Fatalf("%+v, then %+v", x, y)
		}
		if x.who == x.to || x.amount < 1 || x.amount > largest {
			t.Fatalf("%+v", x)
		}
		seen[x.kind]++
	}
	for _, m := range mix {
		if seen[m.kind] != 10*m.n {
			t.Errorf("%d of 200 are %s, want %d", seen[m.kind], m.kind, 10*m.n)
		}
	}
}
