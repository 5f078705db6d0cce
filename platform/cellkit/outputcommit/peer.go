package outputcommit

import (
	"context"
	"slices"
	"time"

	"example.com/cellmart/platform/routing"
)

// Question asks a standby's agent how far it is with this cell: at once if it has
// passed LSN, or if one of the slots isn't in sync there; else as soon as it has, and
// after MaxWait anyway.
type Question struct {
	Source string
	LSN    int64
	Slots  []routing.Slot
}

// Answer is out of one snapshot of the standby's own database.
type Answer struct {
	Incarnation string                         // of the source's database; "" = nothing was ever applied
	LSN         int64                          // everything of the source up to there is applied
	InSync      map[routing.Slot]routing.Epoch // of the slots that were asked for
}

// syncs says that a slot is in sync at its owner's epoch, in that database.
func (a Answer) syncs(slot routing.Slot, epoch routing.Epoch, incarnation string) bool {
	have, ok := a.InSync[slot]
	return ok && have == epoch && a.Incarnation == incarnation
}

// Ask asks one cell.
type Ask func(ctx context.Context, q Question) (Answer, error)

// MaxWait is how long an agent lets a question wait.
const MaxWait = 500 * time.Millisecond

const (
	askLimit  = Limit // for an answer
	idleEach  = time.Second
	againLong = 250 * time.Millisecond // after an error, or an answer that changed nothing
	stuckEach = 250 * time.Millisecond
)

// peer is a cell that stands by for this one.
type peer struct {
	name string
	ask  Ask // nil = there is no way to it
	kick chan struct{}

	// Under the gate's mutex:
	asking time.Time // since when a question has no answer; zero = none has been asked, or it answered
	fresh  []*ticket // that no question was asked for
	asked  []*ticket
	looked time.Time // when those of asked that are stuck were last asked for
	about  map[routing.Slot]bool
	behind int64  // where an output waited for Limit, that it hasn't passed; 0 = none
	of     string // the incarnation of that
}

// late notes that a message waited in vain.
func (p *peer) late(t *ticket) {
	if t.Incarnation != p.of {
		p.of, p.behind = t.Incarnation, 0
	}
	p.behind = max(p.behind, t.At)
}

func (p *peer) join(t *ticket) {
	p.fresh = append(p.fresh, t)
	signal(p.kick)
}

// silent says that it hasn't answered for so long that waiting is in vain.
func (p *peer) silent(now time.Time) bool {
	return p.ask == nil || !p.asking.IsZero() && now.Sub(p.asking) >= Limit
}

// hopeless says that an output that comes now would wait in vain.
func (p *peer) hopeless() bool { return p.behind > 0 || p.silent(time.Now()) }

// follow asks one cell for ever: for what waits, or just whether it is there.
func (g *Gate) follow(ctx context.Context, p *peer) {
	silent := false
	for ctx.Err() == nil {
		q := g.question(p)
		look, cancel := context.WithTimeout(ctx, askLimit)
		a, err := p.ask(look, q)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if silent != (err != nil) {
			silent = err != nil
			g.o.Log.Info("standby", "cell", p.name, "error", err) // nil = it answers again
		}
		if err != nil {
			pause(ctx, againLong)
			continue
		}
		switch more, some := g.take(p, a); {
		case !more:
			rest(ctx, p, idleEach)
		case !some:
			rest(ctx, p, againLong/5)
		}
	}
}

// rest waits, but not when there is something new to ask for.
func rest(ctx context.Context, p *peer, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-p.kick:
	}
}

// question is about all that waits: the least position of it. What is stuck is asked
// for now and then: a slot that isn't in sync has its answer at once.
func (g *Gate) question(p *peer) Question {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-p.kick:
	default:
	}
	if p.asking.IsZero() {
		p.asking = now
	}
	q := Question{Source: g.o.Cell, Slots: []routing.Slot{}}
	p.about = map[routing.Slot]bool{}
	look := now.Sub(p.looked) >= stuckEach
	if look {
		p.looked = now
	}
	p.asked = slices.DeleteFunc(append(p.asked, p.fresh...), func(t *ticket) bool {
		n := t.need(p)
		if n == nil {
			return true
		}
		if !n.stuck && (q.LSN == 0 || t.At < q.LSN) {
			q.LSN = t.At
		}
		if (!n.stuck || look) && !p.about[t.Slot] {
			p.about[t.Slot] = true
			q.Slots = append(q.Slots, t.Slot)
		}
		return false
	})
	p.fresh = nil
	return q
}

// need gives what a ticket needs of a cell; nil = nothing, or it waits no more.
func (t *ticket) need(p *peer) *need {
	if t.state == waits {
		for i := range t.needs {
			if t.needs[i].peer == p {
				return &t.needs[i]
			}
		}
	}
	return nil
}

// take uses an answer. It says whether more waits for this cell, and whether it
// has brought something.
func (g *Gate) take(p *peer, a Answer) (more, some bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p.asking = time.Time{}
	if a.LSN >= p.behind || a.Incarnation != p.of {
		p.behind = 0
	}
	for _, t := range p.asked {
		n := t.need(p)
		if n == nil {
			continue
		}
		inSync := a.syncs(t.Slot, t.Epoch, t.Incarnation)
		switch {
		case !p.about[t.Slot]:
		case inSync && a.LSN >= t.At:
			g.has(t, p)
			some = true
		case inSync:
			n.stuck = false
		case g.o.Strict:
			n.stuck = true
		default:
			g.delay(t, apart)
			some = true
		}
		more = more || t.need(p) != nil
	}
	return more || len(p.fresh) > 0, some
}

// has notes that a ticket needs this cell no more. With mu held.
func (g *Gate) has(t *ticket, p *peer) {
	t.needs = slices.DeleteFunc(t.needs, func(n need) bool { return n.peer == p })
	if len(t.needs) == 0 {
		g.finish(t)
		g.release(t, covered)
	}
}
