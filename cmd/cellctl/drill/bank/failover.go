package bank

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

const (
	slotsAtOnce = 6                // of people, in one promotion
	probes      = 3                // transfers that are sure to be lost with it
	probeLimit  = time.Second      // of the 2 s after which the slot is marked
	toPromote   = 90 * time.Second // for another try: what is uncovered is refused, as it must be
	toCover     = time.Minute      // for some copies to be in sync, whatever was broken
)

// promote fails some slots over at a moment when their standby lacks what their owner
// has answered last.
func (f *faults) promote(ctx context.Context, _, _ string, gap time.Duration) error {
	return f.failover(ctx, gap, nil)
}

// failover cuts a standby off, has money sent that it can't know of, fences the owner
// and promotes. between is what happens before the fence, with the transfers that
// were sent.
func (f *faults) failover(ctx context.Context, gap time.Duration, between func(context.Context, Place, []*write) error) error {
	if f.b.o.Databases == nil {
		return cellkit.Usage{Err: errNotHere}
	}
	for end, try := time.Now().Add(toPromote), 0; ; try++ {
		at, err := f.choose(ctx, int(gap.Milliseconds())+try)
		if err != nil {
			return err
		}
		err = f.fail(ctx, at, gap/time.Duration(4*(1+try)), between)
		if !errors.Is(err, errNothing) || time.Now().After(end) {
			return err
		}
		f.mu.Lock()
		f.refused[reason(err)]++
		f.mu.Unlock()
		f.b.o.Event("%s are not promoted: %v", at, err)
	}
}

// errSlow says that the machine is too slow for a promotion within the 2 s for which
// outputs are held.
var errSlow = errors.New("no transfer was answered in time")

// reason of a refusal, for counting.
func reason(err error) string {
	switch {
	case errors.Is(err, ErrUncovered):
		return "not covered"
	case errors.Is(err, errSlow):
		return "nobody was answered in time"
	}
	return "other"
}

// choose gives slots of people with one owner and one standby that has all of it, as
// soon as there are some.
func (f *faults) choose(ctx context.Context, turn int) (Place, error) {
	ctx, cancel := context.WithTimeout(ctx, toCover)
	defer cancel()
	for {
		all, err := f.promoter.Places(ctx, f.b.slots())
		if err == nil && len(all) == 0 {
			err = errors.New("no slot has a standby")
		}
		for i := range all {
			at := all[(turn+i)%len(all)]
			if n := len(at.Slots); n > slotsAtOnce {
				first := turn % (n - slotsAtOnce)
				at.Slots, at.Epochs = at.Slots[first:first+slotsAtOnce], at.Epochs[first:first+slotsAtOnce]
			}
			if err = errors.Join(f.promoter.InSync(ctx, at), f.promoter.Unmarked(ctx, at)); err == nil {
				return at, nil
			}
		}
		if pause(ctx, askAgain) != nil {
			return Place{}, err
		}
	}
}

func (f *faults) fail(ctx context.Context, at Place, gap time.Duration, between func(context.Context, Place, []*write) error) (err error) {
	f.links.Lock()
	defer f.links.Unlock()
	agent := f.b.o.Agents[at.Owner]
	lift := func(ctx context.Context) error {
		return until(ctx, func() error { return agent.SetFault(ctx, at.Standby, agentapi.Fault{}) })
	}
	f.b.o.After(lift)
	if err := until(ctx, func() error { return agent.SetFault(ctx, at.Standby, agentapi.Fault{CutIn: true, CutOut: true}) }); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lift(context.WithoutCancel(ctx))) }()
	sent := f.probe(ctx, at)
	if !slices.ContainsFunc(sent, f.b.book.answered) {
		return fmt.Errorf("%w: %w", errNothing, errSlow) // nothing would be lost
	}
	if between != nil {
		if err := between(ctx, at, sent); err != nil {
			return err
		}
	}
	_ = pause(ctx, gap)
	// What was begun is brought to an end, whoever has lost patience meanwhile.
	ctx = context.WithoutCancel(ctx)
	if err := f.promoter.Promote(ctx, at, "drill bank"); err != nil {
		return err
	}
	lost, err := f.lostFrom(ctx, at)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.promoted++
	f.moved = append(f.moved, at)
	f.spans = append(f.spans, span{at.Slots, lost, time.Now().Add(oneTry)}) // an answer may be that late
	f.mu.Unlock()
	f.b.o.Event("%s is promoted: it has not seen the last %v", at, time.Since(lost).Round(time.Millisecond))
	return nil
}

// lostFrom is the time, by the owner's clock, of the newest commit that the standby
// has of it: what was answered later may be lost.
func (f *faults) lostFrom(ctx context.Context, at Place) (from time.Time, err error) {
	err = until(ctx, func() error {
		return f.promoter.on(ctx, at.Standby, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, "SELECT at FROM cell.watermarks WHERE source = $1 AND at IS NOT NULL", at.Owner).Scan(&from)
		})
	})
	return from, err
}

// probe has some of the slots' people send money to a third cell, as fast as that
// goes: the standby is cut off, so it can't have it.
func (f *faults) probe(ctx context.Context, at Place) []*write {
	table, _, err := f.b.o.Agents[at.Owner].Route(ctx, -1)
	if err != nil || table == nil {
		return nil
	}
	var to *person
	for _, who := range f.b.people.all {
		if a, _ := table.Slot(who.id.Slot()); a.Owner != at.Owner && a.Owner != at.Standby {
			to = who
			break
		}
	}
	if to == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	var group errgroup.Group
	var sent []*write
	for _, who := range f.b.people.all {
		if !slices.Contains(at.Slots, who.id.Slot()) || len(sent) == probes {
			continue
		}
		w := f.b.ordered(step{kind: transfers, who: who.n, to: to.n, currency: currencies[0], amount: 7})
		sent = append(sent, w)
		group.Go(func() error { return f.b.put(ctx, w, false) })
	}
	_ = group.Wait() // what isn't known is asked again at the end
	return sent
}

// Home gives every slot back to the owner that it had before the run, without a loss.
// Done again it does nothing.
func (b *Bank) Home(ctx context.Context) error {
	f := b.faults
	f.mu.Lock()
	moved := slices.Clone(f.moved)
	f.mu.Unlock()
	first := map[routing.Slot]string{}
	var slots []routing.Slot
	for _, at := range moved {
		for _, s := range at.Slots {
			if first[s] == "" {
				first[s] = at.Owner
				slots = append(slots, s)
			}
		}
	}
	var now []Place
	err := until(ctx, func() (err error) {
		if now, err = f.promoter.Places(ctx, slots); err != nil {
			return err
		}
		seen := 0
		for _, at := range now {
			seen += len(at.Slots)
		}
		if seen < len(slots) { // a table is on its way
			return fmt.Errorf("%d of %d slots have an owner and a standby", seen, len(slots))
		}
		return nil
	})
	if err != nil {
		return err
	}
	given := 0
	for _, at := range now {
		back := Place{Owner: at.Owner, Standby: at.Standby}
		for i, s := range at.Slots {
			if first[s] == at.Standby {
				back.Slots, back.Epochs = append(back.Slots, s), append(back.Epochs, at.Epochs[i])
			}
		}
		if len(back.Slots) == 0 {
			continue
		}
		if err := until(ctx, func() error { return f.promoter.InSync(ctx, back) }); err != nil {
			return err
		}
		err := errNothing
		for try := 0; errors.Is(err, errNothing) && try < 5; try++ {
			err = f.promoter.HandOver(ctx, back, "drill bank: as before")
		}
		if err != nil {
			return err
		}
		given += len(back.Slots)
	}
	if given > 0 {
		b.o.Event("%d slots are with their first owners again", given)
	}
	return nil
}
