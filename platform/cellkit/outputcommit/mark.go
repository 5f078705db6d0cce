package outputcommit

import (
	"context"
	"slices"
	"time"

	"example.com/cellmart/platform/routing"
)

// Mark says that outputs of a slot have left although its standby may not have them:
// until the mark is lifted nobody may be promoted on the copy.
type Mark struct {
	Slot        routing.Slot
	Epoch       routing.Epoch // of the owner
	Incarnation string
	Token       int64 // grows from mark to mark within the incarnation: a lift names the newest that it lifts
	Since       time.Time
}

// Marker is who must know of the marks before anything is sent on. Each call may be
// made twice, and is given up after half a second.
type Marker interface {
	Mark(ctx context.Context, marks []Mark) error
	Lift(ctx context.Context, marks []Mark) error
	Marks(ctx context.Context) ([]Mark, error) // of this cell
}

const (
	markLimit = 500 * time.Millisecond // for the voters
	deafFor   = 2 * time.Second        // between two tries when they didn't answer; nobody waits for those
	maxMarks  = 2000                   // in one call
	busyEach  = 20 * time.Millisecond
	dbLimit   = time.Second
	dbAgain   = 250 * time.Millisecond
)

// mark sends on what doesn't wait any more: the row first, then the voters, then
// the message.
func (g *Gate) mark(ctx context.Context) {
	defer g.telling.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		}
		g.mu.Lock()
		late := g.late
		g.late = nil
		g.mu.Unlock()
		if len(late) == 0 {
			continue
		}
		if again, after := g.markAll(ctx, late); len(again) > 0 {
			pause(ctx, after)
			g.mu.Lock()
			g.late = append(g.late, again...)
			g.mu.Unlock()
			signal(g.wake)
		}
	}
}

// group is the late tickets of one slot.
type group struct {
	tickets []*ticket
	sent    int64
}

// markAll gives the tickets that must be tried again, and when.
func (g *Gate) markAll(ctx context.Context, late []*ticket) (again []*ticket, after time.Duration) {
	groups := map[place]*group{}
	var asked []place
	for _, t := range late {
		if t.state == done { // claimed again, and held anew
			continue
		}
		k := place{t.Slot, t.Epoch, t.Standby, t.Incoming}
		if groups[k] == nil {
			groups[k] = &group{}
			asked = append(asked, k)
		}
		groups[k].tickets = append(groups[k].tickets, t)
		groups[k].sent = max(groups[k].sent, t.At)
	}
	if err := g.at("mark"); err != nil {
		return late, dbAgain
	}
	// A slot is asked for once in a statement: of two states of it one is old, and comes to nothing.
	for _, batch := range once(asked) {
		rows, err := g.uncover(ctx, batch, groups)
		if err != nil {
			if ctx.Err() == nil {
				g.o.Log.Warn("outputs wait: slots can't be marked uncovered", "slots", len(batch), "error", err)
			}
			for _, k := range batch {
				again = append(again, groups[k].tickets...)
			}
			after = dbAgain
			continue
		}
		if err := g.at("marked"); err != nil {
			return late, dbAgain
		}
		again = append(again, g.sendAll(ctx, rows, groups)...)
	}
	return again, max(after, busyEach)
}

// once splits places into lists that have each slot once.
func once(all []place) [][]place {
	var out [][]place
	for len(all) > 0 {
		var batch, rest []place
		seen := map[routing.Slot]bool{}
		for _, k := range all {
			if seen[k.slot] {
				rest = append(rest, k)
				continue
			}
			seen[k.slot] = true
			batch = append(batch, k)
		}
		out, all = append(out, batch), rest
	}
	return out
}

// sendAll sends on what is marked. New marks wait for the voters, and nothing else
// does.
func (g *Gate) sendAll(ctx context.Context, rows []verdict, groups map[place]*group) (again []*ticket) {
	var fresh []verdict
	g.mu.Lock()
	deaf := g.o.Mark == nil || !g.deaf.IsZero() // keep finds out when they are back
	for _, r := range rows {
		if r.verdict == isUncovered && !r.marked && !deaf {
			fresh = append(fresh, r)
			continue
		}
		again = append(again, g.sendOn(r, groups[r.place], r.marked)...)
	}
	g.mu.Unlock()
	if len(fresh) == 0 {
		return again
	}
	g.telling.Go(func() {
		marks := make([]Mark, len(fresh))
		for i, r := range fresh {
			marks[i] = r.mark
		}
		told := g.call(ctx, marks, g.o.Mark.Mark)
		if g.at("told") != nil {
			return
		}
		g.mu.Lock()
		for _, r := range fresh {
			g.sendOn(r, groups[r.place], told)
		}
		g.mu.Unlock()
		if told {
			g.noteMarked(ctx, marks)
		}
	})
	return again
}

// sendOn does with a slot's tickets what its row says. With mu held.
func (g *Gate) sendOn(r verdict, of *group, told bool) (again []*ticket) {
	if r.verdict == isUncovered {
		g.uncovered[r.slot] = r.epoch
		g.metrics.marked.Set(float64(len(g.uncovered)))
	}
	for _, t := range of.tickets {
		switch {
		case t.state == done: // held anew meanwhile
		case r.verdict == isBusy:
			again = append(again, t)
		case r.verdict == isGone || r.mark.Incarnation != t.Incarnation:
			g.drop(t)
		case r.verdict == isMoved: // others are its standbys now: it waits for those
			g.finish(t)
			h := t.Held
			h.Standby, h.Incoming = r.standby, r.incoming
			g.hold(&ticket{Held: h, since: time.Now()})
		default:
			how := uncovered
			if t.state == vain {
				how = timed
			}
			if !told {
				how = unmarked
			}
			g.finish(t)
			g.release(t, how)
		}
	}
	return again
}

// call tells the voters something of marks.
func (g *Gate) call(ctx context.Context, marks []Mark, f func(context.Context, []Mark) error) bool {
	look, cancel := context.WithTimeout(ctx, markLimit)
	defer cancel()
	for list := range slices.Chunk(marks, maxMarks) {
		err := f(look, list)
		if ctx.Err() != nil {
			return false
		}
		if g.heardVoters(err); err != nil {
			return false
		}
	}
	return true
}

// heardVoters notes whether they answer.
func (g *Gate) heardVoters(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := !g.deaf.IsZero()
	if err == nil {
		g.deaf = time.Time{}
	} else {
		g.deaf = time.Now()
	}
	if was != (err != nil) {
		g.o.Log.Warn("who keeps the marks of uncovered slots", "error", err) // nil = it answers again
	}
}

func (g *Gate) at(step string) error {
	if g.o.step == nil {
		return nil
	}
	return g.o.step(step)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
