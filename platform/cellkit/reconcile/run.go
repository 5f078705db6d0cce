package reconcile

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options of a cell's side.
type Options struct {
	Cell  string
	Pool  *pgxpool.Pool     // the cell's database, a role that reads
	Peers map[string]Caller // the other cells' agents
	Log   *slog.Logger

	// Of Run; 0 = what is said there.
	Each     time.Duration // between two looks at a pair's recent hours: 15 s
	Patience int           // a pause is at least so many times what was done before it took: 100
	Recent   time.Duration // 3 h
	Window   time.Duration // of older hours, at a time: 24 h
	Slow     time.Duration // between two windows, when all hours were compared once: 1 min

	Settled time.Duration // what began so long ago is committed, or never will be: 3 s, a transaction has 2
}

// Reconciler is one cell's side: it compares its own transfers, and answers others.
type Reconciler struct {
	o    Options
	busy chan struct{} // a comparison that somebody asked for
	now  chan struct{} // Run or Again: who looks later also writes down later

	mu    sync.Mutex
	pairs map[string]*state // by the payees' cell
}

// New makes one; nothing is asked before Run or Compare.
func New(o Options) *Reconciler {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Each, o.Patience = cmp.Or(o.Each, 15*time.Second), cmp.Or(o.Patience, 100)
	o.Slow = cmp.Or(o.Slow, time.Minute)
	o.Settled = cmp.Or(o.Settled, 3*time.Second)
	o.Recent, o.Window = cmp.Or(o.Recent, 3*time.Hour), cmp.Or(o.Window, 24*time.Hour)
	return &Reconciler{o: o, busy: make(chan struct{}, 1), now: make(chan struct{}, 1), pairs: map[string]*state{}}
}

// state is what is known of the transfers to one cell.
type state struct {
	recent time.Time // of the last look at the recent hours; zero = none
	whole  time.Time // when the last look at all hours began
	slow   time.Time // of the last window of older hours
	rest   time.Time // until then no other: the last one cost much and came to nothing
	pass   pass
	figure Figure
	known  map[ref]Difference

	// Of the recent hours, and of the others.
	notLooked [2]int
	wrong     [2]string        // why the last comparison wasn't one, or not of everything
	width     [2]time.Duration // of a window, 0 = the usual one: narrower while that is too much
}

const recentHours, otherHours = 0, 1

// Figure is what is known of a pair. A nil age is: not yet.
type Figure struct {
	To          string
	RecentMS    *int64 // since the recent hours were compared
	WholeMS     *int64 // since the oldest part of the last look at all hours
	Transfers   int64  // compared by the last look at all hours; of the recent ones while there was none
	Open        int    // in flight, of the recent ones
	Differences []Difference
	NotLooked   int    // differ in a digest only: too many
	Error       string // why the last comparison wasn't one, or not of everything
}

// Figures says what is known of all pairs, by the payees' cell.
func (r *Reconciler) Figures() []Figure {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []Figure{}
	age := func(at time.Time) *int64 {
		if at.IsZero() {
			return nil
		}
		ms := time.Since(at).Milliseconds()
		return &ms
	}
	for _, to := range slices.Sorted(maps.Keys(r.pairs)) {
		s := r.pairs[to]
		f := s.figure
		f.To, f.RecentMS, f.WholeMS, f.NotLooked = to, age(s.recent), age(s.whole), s.notLooked[0]+s.notLooked[1]
		f.Error = s.wrong[recentHours]
		if why := s.wrong[otherHours]; why != "" && why != f.Error {
			f.Error = strings.TrimPrefix(f.Error+"; older hours: "+why, "; ")
		}
		f.Differences = slices.SortedFunc(maps.Values(s.known), func(a, b Difference) int {
			return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Kind, b.Kind))
		})
		out = append(out, f)
	}
	return out
}

// Run compares all pairs of this cell again and again until ctx ends: the recent
// hours each time, of the others one window.
func (r *Reconciler) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		worked := time.Duration(0)
		mine, cells, err := r.cells(ctx)
		if err != nil && ctx.Err() == nil {
			r.o.Log.Warn("reconciliation: who owns slots isn't known", "error", err)
		}
		for _, to := range cells {
			if !r.alone(ctx) {
				return nil
			}
			worked += r.step(ctx, mine, to)
			<-r.now
		}
		wait(ctx, max(r.o.Each, time.Duration(r.o.Patience)*worked))
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// cells are those that own slots; what is known of others is forgotten.
func (r *Reconciler) cells(ctx context.Context) (mine ranges, cells []string, err error) {
	err = r.read(ctx, func(tx pgx.Tx) (err error) { mine, err = rangesOf(ctx, tx); return err })
	if err != nil {
		return mine, nil, err
	}
	cells = slices.Sorted(maps.Keys(mine.of))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, to := range cells {
		if r.pairs[to] == nil {
			r.pairs[to] = &state{known: map[ref]Difference{}}
		}
	}
	maps.DeleteFunc(r.pairs, func(to string, _ *state) bool { return !slices.Contains(cells, to) })
	return mine, cells, nil
}

func (r *Reconciler) known(to string) []ref {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.pairs[to]
	if s == nil {
		return nil
	}
	return unique(slices.Collect(maps.Keys(s.known)))
}

// note keeps what a comparison said; done is what else changes when it succeeded.
// All that was known was looked at again with it; after an error it stays known.
func (r *Reconciler) note(ctx context.Context, to string, hours int, p Pair, err error, done func(*state)) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.pairs[to]
	if s == nil {
		return
	}
	if err != nil {
		s.wrong[hours] = err.Error()
		r.o.Log.Debug("reconciliation", "to", to, "error", err)
		return
	}
	s.wrong[hours] = ""
	if len(p.NotCompared) > 0 {
		s.wrong[hours] = p.NotCompared[0]
	}
	if p.To != "" {
		r.found(s, p)
	}
	done(s)
}

func (r *Reconciler) found(s *state, p Pair) {
	had := s.known
	s.known = map[ref]Difference{}
	for _, k := range p.unsure {
		if d, ok := had[k]; ok {
			s.known[k] = d
		}
	}
	for _, d := range p.Differences {
		k := ref{d.ID, d.FromSlot, d.ToSlot}
		if _, ok := had[k]; !ok {
			r.o.Log.Error("a transfer's two sides don't match", "alarm", true, "kind", d.Kind, "transfer", d.ID.String(), "from", d.From, "to", d.To, "text", d.Text)
		}
		s.known[k] = d
	}
}

// alone waits until nobody else looks and writes down; false when ctx ended.
func (r *Reconciler) alone(ctx context.Context) bool {
	select {
	case r.now <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// Again looks at the differences that are known, so that Figures says what is so
// now. Where that fails, which it says by the payees' cell, they stay as they were.
func (r *Reconciler) Again(ctx context.Context) map[string]error {
	r.mu.Lock()
	cells := slices.Sorted(maps.Keys(r.pairs))
	r.mu.Unlock()
	failed := map[string]error{}
	for _, to := range cells {
		if err := r.again(ctx, to); err != nil {
			failed[to] = err
		}
	}
	return failed
}

func (r *Reconciler) again(ctx context.Context, to string) error {
	if len(r.known(to)) == 0 {
		return nil
	}
	if !r.alone(ctx) {
		return ctx.Err()
	}
	defer func() { <-r.now }()
	refs := r.known(to)
	other, err := r.other(to)
	if err != nil {
		return err
	}
	all, unsure, err := r.look(ctx, other, refs)
	if err == nil {
		r.keep(to, refs, all, unsure)
	}
	return err
}

// keep forgets those of refs that are no differences any more.
func (r *Reconciler) keep(to string, refs []ref, all []Difference, unsure []ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.pairs[to]
	if s == nil {
		return
	}
	for _, k := range refs {
		if !slices.Contains(unsure, k) {
			delete(s.known, k)
		}
	}
	for _, d := range all {
		s.known[ref{d.ID, d.FromSlot, d.ToSlot}] = d
	}
}
