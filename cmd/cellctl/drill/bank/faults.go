package bank

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

// System is what the demo is broken with. What can't be done to it here is a
// cellkit.Usage error, and left out.
type System interface {
	Stop(ctx context.Context, part string, kill bool) error
	Start(ctx context.Context, part string) error
	KeepStore(ctx context.Context, cell string) error
	LoseStore(ctx context.Context, cell string, back bool) error
	DropStoreCopy(ctx context.Context, cell string) error
	SetClock(ctx context.Context, cell string, d time.Duration) error
	// DropStreams deletes the streams of a cell's NATS that messages leave by.
	DropStreams(ctx context.Context, cell string) (int, error)
	// FlushRedis empties a cell's Redis.
	FlushRedis(ctx context.Context, cell string) error
	// HoldNothing starts a cell's agent again without output commit.
	HoldNothing(ctx context.Context, cell string) (undo func(context.Context) error, err error)
}

// span is from when to when a slot's owner answered what its standby never had.
type span struct {
	slots    []routing.Slot
	from, to time.Time
}

// during says whether a moment lies in one of the spans.
func during(all []span, at time.Time) bool {
	return slices.ContainsFunc(all, func(s span) bool { return !at.Before(s.from) && !at.After(s.to) })
}

// fault is one thing that is broken and mended again. gap is a moment that the seed
// chose, cell and other are cells.
type fault struct {
	name string
	do   func(ctx context.Context, cell, other string, gap time.Duration) error
}

// faults breaks things: two at a time, one of processes, stores and owners of slots,
// one of links and clocks.
type faults struct {
	b        *Bank
	promoter Promoter
	links    sync.Mutex // a promotion cuts links itself

	mu       sync.Mutex
	done     map[string]int
	skipped  map[string]string // what can't be done here, and why
	refused  map[string]int    // promotions, by reason
	spans    []span
	moved    []Place // as they were before
	promoted int
}

func newFaults(b *Bank) *faults {
	return &faults{b: b, promoter: Promoter{Control: b.o.Control, Databases: b.o.Databases},
		done: map[string]int{}, skipped: map[string]string{}, refused: map[string]int{}}
}

func (f *faults) decks() (machines, wires []fault) {
	parts := []string{"user", "agent", "postgres"}
	if !f.b.o.Short {
		parts = append(parts, "gateway", "nats")
	}
	for _, name := range parts {
		machines = append(machines, fault{"kill " + name, func(ctx context.Context, cell, _ string, gap time.Duration) error {
			return f.kill(ctx, cell+"/"+name, gap)
		}})
	}
	if !f.b.o.Short {
		machines = append(machines, fault{"delete streams", f.deleteStreams})
		for _, part := range []string{"global/control", "global/idgen"} {
			machines = append(machines, fault{"kill " + part, func(ctx context.Context, _, _ string, gap time.Duration) error { return f.kill(ctx, part, gap) }})
		}
	}
	machines = append(machines, fault{"delete store", f.deleteStore}, fault{"roll back store", f.rollBackStore}, fault{"flush redis", f.flush})
	for range f.b.size.promote {
		machines = append(machines, fault{promotion, f.promote})
	}
	wires = []fault{{"cut one way", f.cut(agentapi.Fault{CutOut: true})}, {"cut both ways", f.cut(agentapi.Fault{CutOut: true, CutIn: true})},
		{"cut other way", f.cut(agentapi.Fault{CutIn: true})}, {"set clock", f.clock}}
	return machines, wires
}

const promotion = "promote"

// run breaks things for as long as the run lasts, and until each was done once.
func (f *faults) run(ctx context.Context, lasts time.Duration) error {
	machines, wires := f.decks()
	end := time.Now().Add(lasts)
	var going sync.WaitGroup
	var errs [2]error
	for i, deck := range [][]fault{machines, wires} {
		going.Go(func() { errs[i] = f.lane(ctx, deck, rand.New(rand.NewPCG(f.b.o.Seed, uint64(i))), end) })
	}
	going.Wait()
	return errors.Join(errs[:]...)
}

func (f *faults) lane(ctx context.Context, deck []fault, random *rand.Rand, end time.Time) error {
	cells := f.b.o.Cells
	for round := 0; ; round++ {
		random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		for _, x := range deck {
			if round > 0 && time.Now().After(end) {
				return nil
			}
			a := random.IntN(len(cells))
			b := (a + 1 + random.IntN(len(cells)-1)) % len(cells)
			gap := time.Duration(random.Int64N(int64(time.Second)))
			if pause(ctx, gap/2) != nil {
				return ctx.Err()
			}
			if err := f.one(ctx, x, cells[a].Name, cells[b].Name, gap); err != nil {
				return fmt.Errorf("%s: %w", x.name, err)
			}
		}
	}
}

// one breaks one thing, and counts it.
func (f *faults) one(ctx context.Context, x fault, cell, other string, gap time.Duration) error {
	err := x.do(ctx, cell, other, gap)
	var usage cellkit.Usage
	f.mu.Lock()
	defer f.mu.Unlock()
	if errors.As(err, &usage) {
		f.skipped[x.name] = usage.Error()
		return nil
	}
	if err == nil {
		f.done[x.name]++
	}
	return err
}

// until asks again while what is needed for it is broken itself.
func until(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := do()
		var usage cellkit.Usage
		if err == nil || errors.As(err, &usage) || pause(ctx, askAgain) != nil {
			return err
		}
	}
}

func (f *faults) kill(ctx context.Context, part string, gap time.Duration) error {
	s := f.b.o.System
	if err := s.Stop(ctx, part, true); err != nil {
		return err
	}
	f.b.o.Event("%s is killed", part)
	start := func(ctx context.Context) error { return until(ctx, func() error { return s.Start(ctx, part) }) }
	if pause(ctx, gap) != nil {
		return errors.Join(ctx.Err(), start(context.WithoutCancel(ctx)))
	}
	return start(ctx)
}

func (f *faults) deleteStore(ctx context.Context, cell, _ string, _ time.Duration) error {
	if err := f.b.o.System.LoseStore(ctx, cell, false); err != nil {
		return err
	}
	f.b.o.Event("%s's NATS was killed and its store deleted", cell)
	return nil
}

func (f *faults) rollBackStore(ctx context.Context, cell, _ string, gap time.Duration) error {
	s := f.b.o.System
	if err := s.KeepStore(ctx, cell); err != nil {
		return err
	}
	_ = pause(ctx, 2*time.Second+2*gap) // the store goes back by this much, also when it ends here
	if err := s.LoseStore(context.WithoutCancel(ctx), cell, true); err != nil {
		return errors.Join(err, s.DropStoreCopy(context.WithoutCancel(ctx), cell))
	}
	f.b.o.Event("%s's NATS was killed and its store went back", cell)
	return nil
}

func (f *faults) deleteStreams(ctx context.Context, cell, _ string, _ time.Duration) error {
	n := 0
	err := until(ctx, func() (err error) {
		n, err = f.b.o.System.DropStreams(ctx, cell)
		return err
	})
	if err == nil {
		f.b.o.Event("%d streams of %s are deleted", n, cell)
	}
	return err
}

func (f *faults) flush(ctx context.Context, cell, _ string, _ time.Duration) error {
	err := until(ctx, func() error { return f.b.o.System.FlushRedis(ctx, cell) })
	if err == nil {
		f.b.o.Event("%s's Redis is flushed", cell)
	}
	return err
}

// cut cuts the link of two cells at the first one's agent. An agent that starts anew
// knows nothing of it.
func (f *faults) cut(how agentapi.Fault) func(context.Context, string, string, time.Duration) error {
	return func(ctx context.Context, cell, other string, gap time.Duration) error {
		f.links.Lock()
		defer f.links.Unlock()
		lift := func(ctx context.Context) error {
			return until(ctx, func() error { return f.b.o.Agents[cell].SetFault(ctx, other, agentapi.Fault{}) })
		}
		f.b.o.After(lift)
		if err := until(ctx, func() error { return f.b.o.Agents[cell].SetFault(ctx, other, how) }); err != nil {
			return err
		}
		f.b.o.Event("%s's link to %s is cut: out %t, in %t", cell, other, how.CutOut, how.CutIn)
		_ = pause(ctx, 500*time.Millisecond+3*gap)
		return lift(context.WithoutCancel(ctx))
	}
}

// clock sets a cell's clock wrong by up to two minutes, either way.
func (f *faults) clock(ctx context.Context, cell, _ string, gap time.Duration) error {
	d := (gap - 500*time.Millisecond) * 240
	set := func(ctx context.Context, d time.Duration) error {
		return until(ctx, func() error { return f.b.o.System.SetClock(ctx, cell, d) })
	}
	f.b.o.After(func(ctx context.Context) error { return set(ctx, 0) })
	if err := set(ctx, d); err != nil {
		return err
	}
	f.b.o.Event("the clock of %s's processes is %v off", cell, d.Round(time.Second))
	_ = pause(ctx, 2*time.Second)
	return set(context.WithoutCancel(ctx), 0)
}

// lost are the spans in which a slot lost what it had answered.
func (f *faults) lost(slot routing.Slot) (out []span) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.spans {
		if slices.Contains(s.slots, slot) {
			out = append(out, s)
		}
	}
	return out
}

// Figures are the counts of the run.
func (b *Bank) Figures() map[string]any {
	f := b.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]any{
		"people": len(b.people.all), "accounts": len(b.people.all) * len(currencies), "steps": b.steps.Load(), "steps_left_out": b.late.Load(),
		"asked_again": b.people.tries.Load(), "logged_in_again": b.people.again.Load(),
		"wallet_reads": b.walletReads.Load(), "postings_read": b.postings.Load(), "i3_looks": b.looked.Load(), "i3_unknown": b.unlooked.Load(),
		"promotions": f.promoted, "promotions_refused": maps.Clone(f.refused), "faults": maps.Clone(f.done), "faults_not_here": slices.Sorted(maps.Keys(f.skipped)),
	}
	ends, refused := map[string]int{}, map[string]int{}
	again, unknown := 0, 0
	for _, w := range b.book.all() {
		switch {
		case !w.known:
			unknown++
		case w.refused != "":
			refused[string(w.kind)+" "+w.refused]++
		case w.state != "":
			ends[string(w.kind)+" "+w.state]++
		default:
			ends[string(w.kind)]++
		}
		again += len(w.lost)
	}
	out["ends"], out["refusals"], out["lost_and_done_again"], out["unknown"] = ends, refused, again, unknown
	return out
}
