package outputcommit

import (
	"context"
	"time"

	"example.com/cellmart/platform/routing"
)

// Question asks a standby's agent how far it is with this cell: at once if it has
// passed LSN, or if one of the slots isn't in sync there; else as soon as it has, and
// after a second anyway.
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
	heard  time.Time // when it last answered
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
func (p *peer) silent(now time.Time) bool { return p.ask == nil || now.Sub(p.heard) >= Limit }

// hopeless says that an output that comes now would wait in vain.
func (p *peer) hopeless() bool { return p.behind > 0 || p.silent(time.Now()) }

// follow asks one cell for ever: for what waits, or just whether it is there.
func (g *Gate) follow(ctx context.Context, p *peer) {
	said := ""
	for ctx.Err() == nil {
		q := g.question(p)
		look, cancel := context.WithTimeout(ctx, askLimit)
		a, err := p.ask(look, q)
		cancel()
		if ctx.Err() != nil {
			return
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != said && (text == "") != (said == "") {
			g.o.Log.Info("standby", "cell", p.name, "error", text) // "" = it answers again
		}
		said = text
		wait := time.Duration(0)
		if err != nil {
			wait = againLong
		} else if more, some := g.take(p, a); !more {
			wait = idleEach
		} else if !some {
			wait = againLong / 5
		}
		if wait > 0 {
			g.rest(ctx, p, wait, err == nil)
		}
	}
}

// rest waits, but not when there is something new to ask for.
func (g *Gate) rest(ctx context.Context, p *peer, d time.Duration, kicked bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	kick := p.kick
	if !kicked {
		kick = nil
	}
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-kick:
	}
}

// question is about all that waits: the least position of it.
func (g *Gate) question(p *peer) Question {
	g.mu.Lock()
	defer g.mu.Unlock()
	p.asked = append(p.asked, p.fresh...)
	p.fresh = nil
	select {
	case <-p.kick:
	default:
	}
	q := Question{Source: g.o.Cell, Slots: []routing.Slot{}}
	var asked []*ticket
	p.about = map[routing.Slot]bool{}
	add := func(t *ticket) {
		if !p.about[t.Slot] {
			p.about[t.Slot] = true
			q.Slots = append(q.Slots, t.Slot)
		}
	}
	for _, t := range p.asked {
		if !t.waitsFor(p) {
			continue
		}
		asked = append(asked, t)
		if t.stuck && t.standby == p {
			continue
		}
		if add(t); q.LSN == 0 || t.At < q.LSN {
			q.LSN = t.At
		}
	}
	p.asked = asked
	if time.Since(p.looked) >= stuckEach {
		p.looked = time.Now()
		for _, t := range p.asked {
			if t.stuck {
				add(t)
			}
		}
	}
	return q
}

func (t *ticket) waitsFor(p *peer) bool { return !t.late && (t.standby == p || t.incoming == p) }

// take uses an answer. It says whether more waits for this cell, and whether it
// has brought something.
func (g *Gate) take(p *peer, a Answer) (more, some bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p.heard = time.Now()
	if a.LSN >= p.behind || a.Incarnation != p.of {
		p.behind = 0
	}
	for _, t := range p.asked {
		if !t.waitsFor(p) || !p.about[t.Slot] {
			continue
		}
		epoch, in := a.InSync[t.Slot]
		inSync := in && epoch == t.Epoch && a.Incarnation == t.Incarnation
		switch {
		case inSync && a.LSN >= t.At:
			g.has(t, p)
			some = true
		case inSync:
			t.stuck = false
		case t.incoming == p: // it isn't in sync, and nobody relies on it before it is
			g.has(t, p)
			some = true
		case g.o.Strict:
			t.stuck = true
		default:
			g.delay(t)
			some = true
		}
	}
	for _, t := range p.asked {
		more = more || t.waitsFor(p)
	}
	return more || len(p.fresh) > 0, some
}

// has notes that a ticket needs this cell no more. With mu held.
func (g *Gate) has(t *ticket, p *peer) {
	if t.standby == p {
		t.standby = nil
	} else {
		t.incoming = nil
	}
	if t.standby == nil && t.incoming == nil {
		g.finish(t)
		g.release(t, covered)
	}
}
