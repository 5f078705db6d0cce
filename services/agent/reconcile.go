package agent

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/reconcile"
	"example.com/cellmart/services/agent/agentapi"
)

const (
	booksEach     = time.Minute
	shownDiffer   = 20
	againPatience = 10 * time.Second
)

// books is the cell's own, running look at its money: its ledger (I3), and both
// sides of its transfers (I4).
type books struct {
	pairs    *reconcile.Reconciler
	patience int // the pause after a look is so many times what it took

	mu   sync.Mutex
	last map[string]bookLook // by invariant
}

type bookLook struct {
	checked, violations int64
	at                  time.Time
}

// keepBooks runs it.
func keepBooks(ctx context.Context, group *errgroup.Group, c Config, db *store, log *slog.Logger, m *obs.Metrics) *books {
	log = log.With("part", "books")
	peers := map[string]reconcile.Caller{}
	dialer := link.Dialer{Addr: c.LinkAddr}
	for zone := range c.Peers {
		if zone != Global {
			way := &http.Transport{DialContext: dialer.DialContext(zone, "agent"), MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}
			peers[zone] = &agentapi.Client{BaseURL: "http://" + zone, HTTP: &http.Client{Transport: way}, OperatorKey: c.Operator}
		}
	}
	b := &books{patience: 50, last: map[string]bookLook{}, pairs: reconcile.New(reconcile.Options{Cell: c.Zone, Pool: db.pool, Peers: peers, Log: log})}
	group.Go(func() error { return b.pairs.Run(ctx) })
	group.Go(func() error { b.watch(ctx, db, log, booksEach); return nil })
	exportBooks(m, b)
	return b
}

// watch looks at the own database again and again. A look that fails leaves what is
// known to get old.
func (b *books) watch(ctx context.Context, db *store, log *slog.Logger, each time.Duration) {
	for ctx.Err() == nil {
		start := time.Now()
		found, err := db.countBooks(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.Warn("looking at the books", "error", err)
		default:
			b.note(found, start, log)
		}
		pause(ctx, max(each, time.Duration(b.patience)*time.Since(start)))
	}
}

func (b *books) note(found map[string]bookLook, at time.Time, log *slog.Logger) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, l := range found {
		if n := l.violations; n > 0 && n != b.last[id].violations {
			log.Error("the books don't hold: cellctl invariants names it", "alarm", true, "invariant", id, "violations", n)
		}
		l.at = at
		b.last[id] = l
	}
}

// looks is what the last look found; empty while there was none.
func (b *books) looks() []agentapi.LedgerLook {
	out := []agentapi.LedgerLook{}
	if b == nil {
		return out
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range []string{"I3", "I4"} {
		if l, ok := b.last[id]; ok {
			out = append(out, agentapi.LedgerLook{ID: id, Checked: l.checked, Violations: l.violations, AgeMS: time.Since(l.at).Milliseconds()})
		}
	}
	return out
}

// reconciled is what is known of the pairs; nil in the global zone.
func (b *books) reconciled() []agentapi.Reconciled {
	if b == nil {
		return nil
	}
	out := []agentapi.Reconciled{}
	for _, f := range b.pairs.Figures() {
		r := agentapi.Reconciled{
			To: f.To, RecentAgeMS: f.RecentMS, WholeAgeMS: f.WholeMS, Transfers: f.Transfers, Open: f.Open, Error: f.Error,
			Different: len(f.Differences) + f.NotLooked, Differences: []string{},
		}
		for i, d := range f.Differences {
			if i < shownDiffer {
				r.Differences = append(r.Differences, d.Text)
			}
		}
		out = append(out, r)
	}
	return out
}

// add puts it into a cell's facts, after another look at the differences that are
// known: what was mended meanwhile is none.
func (b *books) add(ctx context.Context, f *agentapi.Facts) {
	if b == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, againPatience)
	defer cancel()
	failed := b.pairs.Again(ctx)
	f.Books, f.Reconciled = b.looks(), b.reconciled()
	for i := range f.Reconciled {
		r := &f.Reconciled[i]
		if err := failed[r.To]; err != nil {
			r.Stale, r.Error = true, err.Error()
		}
	}
}

// exportBooks shows it; NaN is unknown.
func exportBooks(m *obs.Metrics, b *books) {
	worst := func(of func(agentapi.Reconciled) *int64) float64 {
		out := math.NaN()
		for i, r := range b.reconciled() {
			n := of(r)
			if n == nil {
				return math.NaN()
			}
			if i == 0 || float64(*n) > out {
				out = float64(*n)
			}
		}
		return out
	}
	show := func(name, help string, value func() float64) { m.GaugeFunc(name, help, value) }
	recent := func(r agentapi.Reconciled) *int64 { return r.RecentAgeMS }
	show("cellmart_reconcile_differences", "transfers from this cell whose two sides don't match (I4)", func() float64 {
		n := 0
		for _, r := range b.reconciled() {
			n += r.Different
		}
		if n == 0 && math.IsNaN(worst(recent)) {
			return math.NaN() // of one cell nothing is known
		}
		return float64(n)
	})
	show("cellmart_reconcile_open", "transfers from this cell that are in flight, of the recent hours", func() float64 {
		n := 0
		for _, r := range b.reconciled() {
			n += r.Open
		}
		if math.IsNaN(worst(recent)) {
			return math.NaN()
		}
		return float64(n)
	})
	show("cellmart_reconcile_recent_age_seconds", "how long ago the recent hours' transfers were compared, of the worst pair of cells", func() float64 { return worst(recent) / 1000 })
	show("cellmart_reconcile_whole_age_seconds", "how long ago all transfers were compared, of the worst pair of cells", func() float64 {
		return worst(func(r agentapi.Reconciled) *int64 { return r.WholeAgeMS }) / 1000
	})
	for _, id := range []string{"I3", "I4"} {
		of := func(value func(agentapi.LedgerLook) float64) func() float64 {
			return func() float64 {
				for _, l := range b.looks() {
					if l.ID == id {
						return value(l)
					}
				}
				return math.NaN()
			}
		}
		name := map[string]string{"I3": "ledger", "I4": "clearing"}[id]
		show("cellmart_"+name+"_violations", "violations of "+id+" in the cell's own database as of the last look", of(func(l agentapi.LedgerLook) float64 { return float64(l.Violations) }))
		show("cellmart_"+name+"_age_seconds", "how long ago the last look at "+id+" was", of(func(l agentapi.LedgerLook) float64 { return float64(l.AgeMS) / 1000 }))
	}
}
