package agent

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/reconcile"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/agent/agentapi"
)

// The look at the books goes on by itself: what is wrong is counted by invariant,
// what is mended is gone, and each figure has an age.
func TestBooksAreLookedAt(t *testing.T) {
	t.Parallel()
	db, s := wholeCell(t)
	m := obs.New("c1", "agent")
	b := &books{last: map[string]bookLook{}, pairs: reconcile.New(reconcile.Options{Cell: "c1", Pool: s.pool, Each: time.Millisecond, Patience: 1})}
	exportBooks(m, b)
	if l := b.looks(); len(l) != 0 {
		t.Errorf("nobody has looked, and %+v is known", l)
	}
	if got := gauge(t, m, "cellmart_ledger_violations"); got != "NaN" {
		t.Errorf("nobody has looked, and the metric says %s", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.watch(ctx, &s, slog.New(slog.DiscardHandler), time.Millisecond) }()
	is := func(i3, i4 int64) func() bool {
		return func() bool {
			l := b.looks()
			return len(l) == 2 && l[0].ID == "I3" && l[0].Violations == i3 && l[1].ID == "I4" && l[1].Violations == i4
		}
	}
	soon(t, "nothing is wrong", is(0, 0))
	db.Plant(t, in(ownSlot, `INSERT INTO cell.wallets (slot, epoch, rev, user_id, currency, available, external) VALUES ($slot, 1, 1, $1, 'CNY', 7, -7), ($slot, 1, 1, $2, 'CNY', 0, 0);
		INSERT INTO cell.transfers (slot, epoch, rev, id, kind, from_user, to_user, to_slot, amount, currency, state, deadline, ended_at)
			VALUES ($slot, 1, 1, $5, 'transfer', $1, $2, $slot, 5, 'CNY', 'SETTLED', now(), now())`))
	soon(t, "a wallet without postings, a settle without its clearing", is(1, 1))
	db.Plant(t, in(ownSlot, "DELETE FROM cell.wallets; DELETE FROM cell.transfers"))
	soon(t, "both are mended", is(0, 0))
	cancel()
	<-done
	soon(t, "what is known gets old", func() bool { return b.looks()[0].AgeMS > 20 })
	if got := gauge(t, m, "cellmart_ledger_violations"); got != "0" {
		t.Errorf("the metric says %s", got)
	}
}

// A pair of the cell with itself is compared too; the facts have what holds at that
// moment, however long ago the last look was.
func TestFactsLookAgain(t *testing.T) {
	t.Parallel()
	db, s := wholeCell(t)
	m := obs.New("c1", "agent")
	b := &books{last: map[string]bookLook{}, pairs: reconcile.New(reconcile.Options{Cell: "c1", Pool: s.pool, Each: time.Millisecond, Patience: 1})}
	exportBooks(m, b)
	db.Plant(t, in(ownSlot, `INSERT INTO cell.transfers (slot, epoch, rev, id, kind, from_user, to_user, to_slot, amount, currency, state, deadline, created_at, ended_at)
		VALUES ($slot, 1, 1, $5, 'transfer', $1, $2, $slot, 5, 'CNY', 'SETTLED', now(), now() - interval '1 h', now())`))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = b.pairs.Run(ctx) }()
	soon(t, "it is named", func() bool { r := b.reconciled(); return len(r) == 1 && r[0].Different == 1 && r[0].WholeAgeMS != nil })
	cancel()
	<-done
	if got := gauge(t, m, "cellmart_reconcile_differences"); got != "1" {
		t.Errorf("the metric says %s", got)
	}
	text := func() (f agentapi.Facts, out []string) {
		b.add(t.Context(), &f)
		for _, r := range f.Reconciled {
			out = append(out, r.Differences...)
		}
		return f, out
	}
	if f, got := text(); !cmp.Equal([]string{in(ownSlot, "transfer $5 is SETTLED, its destination has no credit")}, got) || f.Reconciled[0].Stale {
		t.Errorf("%+v", f)
	}
	db.Plant(t, "DELETE FROM cell.transfers")
	if f, got := text(); len(got) != 0 || f.Reconciled[0].Different != 0 || f.Reconciled[0].Stale {
		t.Errorf("%+v", f)
	}
}

// The operator and other cells' agents ask over HTTP, with the operator's key only.
func TestReconcileIsAskedOverHTTP(t *testing.T) {
	t.Parallel()
	db, s := wholeCell(t)
	db.Plant(t, in(ownSlot, `INSERT INTO cell.transfers (slot, epoch, rev, id, kind, from_user, to_user, to_slot, amount, currency, state, deadline, created_at, ended_at)
		VALUES ($slot, 1, 1, $5, 'transfer', $1, $2, $slot, 5, 'CNY', 'SETTLED', now(), now() - interval '1 h', now())`))
	srv := &server{cell: "c1", operator: "secret", books: &books{pairs: reconcile.New(reconcile.Options{Cell: "c1", Pool: s.pool})}}
	o := web.Options{Service: "agent", Cell: "c1", Log: slog.New(slog.DiscardHandler)}
	for name, h := range map[string]http.Handler{"operator": srv.local(o), "peer": srv.peer(o)} {
		at := httptest.NewServer(h)
		t.Cleanup(at.Close)
		r, err := reconcile.Run(t.Context(), map[string]*agentapi.Client{"c1": {BaseURL: at.URL, OperatorKey: "secret"}}, reconcile.Ask{})
		if err != nil || r.Equal() || len(r.NotCompared) != 0 || len(r.Differences) != 1 || r.Differences[0].Kind != reconcile.NoCredit || r.Transfers != 1 {
			t.Errorf("%s: %v, %+v", name, err, r)
		}
		r, err = reconcile.Run(t.Context(), map[string]*agentapi.Client{"c1": {BaseURL: at.URL, OperatorKey: "wrong"}}, reconcile.Ask{})
		if err != nil || r.Equal() || len(r.NotCompared) != 1 || len(r.Summary) != 0 {
			t.Errorf("%s, without the key: %v, %+v", name, err, r)
		}
	}
}

func gauge(t *testing.T, m *obs.Metrics, name string) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, name+"{") {
			return strings.Fields(line)[1]
		}
	}
	return "not there"
}

func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-limit:
			t.Fatalf("not within a minute: %s", what)
		case <-tick.C:
		}
	}
}
