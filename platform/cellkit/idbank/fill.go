package idbank

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"example.com/cellmart/platform/cellkit/id"
)

// How the bank is filled.
const (
	fillEvery   = 10 * time.Second
	stockFor    = 24 * time.Hour
	fillBelow   = 0.5         // of idgen's budget: the rest is for processes
	fresh       = time.Minute // a process that said nothing for that long uses nothing
	forgotten   = time.Hour   // then it isn't shown any more
	mostReports = 256
)

// Look is what the database shows.
type Look struct {
	Stock    map[string]int64 // by kind
	Machines []id.MachineFigures
	Counter  int64
	Ordinal  int
	Losses   int
	Why      string
	LostAt   *time.Time
}

// Budget is how idgen stands with a kind.
type Budget struct {
	Used      float64
	YearsLeft float64
	PausedFor time.Duration
}

// fillStatus is how the last try to fill a kind went.
type fillStatus struct {
	target int64
	budget *Budget
	at     time.Time // of budget
	err    string
}

// Heard takes what a process says of its IDs.
func (b *Bank) Heard(r id.Report) {
	b.seen.Lock()
	defer b.seen.Unlock()
	now := time.Now()
	for name, s := range b.said {
		if now.Sub(s.at) > forgotten {
			delete(b.said, name)
		}
	}
	if _, known := b.said[r.Process]; known || len(b.said) < mostReports {
		b.said[r.Process] = said{now, r}
	}
}

// rates are what the cell's processes use, by kind.
func (b *Bank) rates() map[string]float64 {
	b.seen.Lock()
	defer b.seen.Unlock()
	out := map[string]float64{}
	for _, s := range b.said {
		if time.Since(s.at) > fresh {
			continue
		}
		for _, k := range s.report.Kinds {
			out[k.Kind] += k.Rate
		}
	}
	return out
}

// Run fills the bank until ctx ends.
func (b *Bank) Run(ctx context.Context) error {
	if b.o.Lease == nil || b.o.Budgets == nil || b.o.Database == nil {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(fillEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		b.Fill(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// Fill is one round: at most one lease per kind, towards a day's stock at the
// cell's rate, and only while idgen's budget is under half used. Run calls it; one
// at a time.
func (b *Bank) Fill(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, fillEvery)
	defer cancel()
	rates := b.rates()
	budgets, err := b.o.Budgets(ctx)
	asked := time.Now()
	var look Look
	if err == nil {
		look, err = b.o.Database.Look(ctx)
	}
	for _, kind := range slices.Sorted(maps.Keys(rates)) {
		st := fillStatus{target: int64(max(rates[kind]*stockFor.Seconds(), id.FirstLease)), at: asked}
		budget, known := budgets[kind]
		if known {
			st.budget = &budget
		}
		failed := err
		if missing := st.target - look.Stock[kind]; failed == nil && known && missing > 0 && budget.Used < fillBelow {
			failed = b.deposit(ctx, kind, min(missing, id.MaxLease))
		}
		if failed != nil {
			st.err = failed.Error()
		}
		b.note(kind, st)
	}
}

func (b *Bank) note(kind string, st fillStatus) {
	b.seen.Lock()
	defer b.seen.Unlock()
	was := b.fill[kind]
	if st.budget == nil { // the last that was known, with its age
		st.budget, st.at = was.budget, was.at
	}
	b.fill[kind] = st
	if st.err != "" && was.err == "" {
		b.o.Log.Warn("the bank isn't filled", "kind", kind, "error", st.err)
	}
}

var errNotBelieved = errors.New("a grant was put aside")

func (b *Bank) deposit(ctx context.Context, kind string, size int64) error {
	floor := b.floors[kind]
	lo, hi, err := b.o.Lease(ctx, kind, floor, size)
	if err != nil {
		return err
	}
	if err := id.CheckGrant(id.Grant{Lo: lo, Hi: hi, Floor: floor, Size: size, Now: b.o.Clock()}); err != nil {
		b.o.Log.Error("a grant of IDs was put aside", "alarm", "ids.grant", "source", "idgen", "kind", kind, "lo", lo, "hi", hi, "error", err)
		return errors.Join(errNotBelieved, err)
	}
	b.floors[kind] = hi
	return b.o.Database.Deposit(ctx, kind, Range{lo, hi})
}

// Figures are all that the agent knows of its zone's IDs. What can't be asked is
// nil, with the reason.
func (b *Bank) Figures(ctx context.Context) id.CellFigures {
	out := id.CellFigures{Cell: b.o.Cell}
	now := time.Now() // for ages; the clock below can be set
	b.seen.Lock()
	for _, name := range slices.Sorted(maps.Keys(b.said)) {
		s := b.said[name]
		out.Processes = append(out.Processes, id.ProcessFigures{AgeMS: now.Sub(s.at).Milliseconds(), Report: s.report})
	}
	fill := maps.Clone(b.fill)
	b.seen.Unlock()
	if b.o.Database == nil {
		return out
	}
	look, err := b.o.Database.Look(ctx)
	if err != nil {
		out.BankError = err.Error()
		return out
	}
	bank := &id.BankFigures{Ordinal: look.Ordinal, Counter: look.Counter, Losses: look.Losses, LostWhy: look.Why, LostAt: look.LostAt, Machines: look.Machines}
	for i := range bank.Machines {
		m := &bank.Machines[i]
		m.AheadS = float64(m.Ceiling-id.FallbackAt(b.o.Clock())) / 512
	}
	kinds := maps.Clone(look.Stock)
	for kind := range fill {
		kinds[kind] += 0
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		k := id.BankKind{Kind: kind, Stock: kinds[kind]}
		if st, ok := fill[kind]; ok {
			k.Target, k.Error = &st.target, st.err
			if st.budget != nil {
				age := now.Sub(st.at).Milliseconds()
				k.BudgetUsed, k.YearsLeft, k.IDGenAgeMS = &st.budget.Used, &st.budget.YearsLeft, &age
			}
		}
		bank.Kinds = append(bank.Kinds, k)
	}
	if look.Ordinal < 1 || look.Ordinal > id.MaxOrdinal {
		bank.NoFallback = ErrOrdinal.Message
	}
	out.Bank = bank
	return out
}
