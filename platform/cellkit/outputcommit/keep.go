package outputcommit

import (
	"context"
	"math"
	"sync"
	"time"

	"example.com/cellmart/platform/routing"
)

const (
	keepEach      = time.Second
	reconcileEach = 30 * time.Second
)

// keep looks after the marks for ever: it reads them, tells the voters of those that
// they don't know, and lifts those that are over.
func (g *Gate) keep(ctx context.Context) {
	var compared time.Time
	said, proven := "", false
	for ctx.Err() == nil {
		var err error
		if !proven {
			err = g.prove(ctx)
			proven = err == nil
		}
		if err == nil {
			err = g.lookAfter(ctx, &compared)
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != said && ctx.Err() == nil {
			said = text
			g.o.Log.Warn("marks of uncovered slots", "error", text) // "" = it's well again
		}
		pause(ctx, keepEach)
	}
}

func (g *Gate) lookAfter(ctx context.Context, compared *time.Time) error {
	look, cancel := context.WithTimeout(ctx, dbLimit)
	rows, err := readRows(look, g.o.Pool)
	cancel()
	if err != nil {
		return err
	}
	g.read(rows)
	if err := g.refresh(ctx); err != nil {
		return err
	}
	g.mu.Lock()
	deaf, missed := time.Since(g.deaf) < deafFor, !g.deaf.IsZero()
	g.mu.Unlock()
	if !deaf && g.o.Mark != nil {
		var fresh []Mark
		for _, r := range rows {
			if r.owned && !r.marked {
				fresh = append(fresh, r.mark)
			}
		}
		if len(fresh) > 0 {
			if deaf = !g.call(ctx, fresh, g.o.Mark.Mark); !deaf {
				g.noteMarked(ctx, fresh)
			}
		}
	}
	lifted, err := g.lift(ctx, rows)
	if err != nil {
		return err
	}
	if g.o.Mark == nil || deaf {
		if len(lifted) > 0 {
			*compared = time.Time{} // later
		}
		return nil
	}
	if missed || time.Since(*compared) >= reconcileEach {
		return g.reconcile(ctx, rows, compared)
	}
	if len(lifted) > 0 && !g.call(ctx, lifted, g.o.Mark.Lift) {
		*compared = time.Time{}
	}
	return nil
}

// read takes the rows for what is marked: after a start, and from another dispatcher
// of this cell.
func (g *Gate) read(rows []row) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shown.marks(rows)
	clear(g.uncovered)
	for _, r := range rows {
		if r.owned {
			g.uncovered[r.mark.Slot] = r.mark.Epoch
		}
	}
	for slot := range g.closing {
		if _, ok := g.uncovered[slot]; !ok {
			delete(g.closing, slot)
		}
	}
	if !g.o.Strict {
		for _, t := range g.order { // claimed before it was known that waiting is in vain
			if t.state == waits && g.marked(t) {
				g.delay(t, apart)
			}
		}
	}
	g.metrics.marked.Set(float64(len(g.uncovered)))
}

// refresh looks what the slots are whose outputs have waited for long: those that
// others own go, and those that others gate wait for these.
func (g *Gate) refresh(ctx context.Context) error {
	g.mu.Lock()
	old := map[routing.Slot]bool{}
	for _, t := range g.order {
		if t.state == waits && time.Since(t.since) >= keepEach {
			old[t.Slot] = true
		}
	}
	g.mu.Unlock()
	if len(old) == 0 {
		return nil
	}
	now, incarnation, err := g.places(ctx, old)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.order {
		if t.state != waits || !old[t.Slot] {
			continue
		}
		is, owned := now[t.Slot]
		switch {
		case !owned || is.epoch != t.Epoch || incarnation != t.Incarnation:
			g.drop(t)
		case is.standby != t.Standby || is.incoming != t.Incoming:
			g.finish(t)
			h := t.Held
			h.Standby, h.Incoming = is.standby, is.incoming
			g.hold(&ticket{Held: h, since: t.since})
		}
	}
	return nil
}

// lift ends the marks of slots whose standbys have passed everything that was sent,
// and of slots that aren't this cell's at that epoch any more.
func (g *Gate) lift(ctx context.Context, rows []row) ([]Mark, error) {
	answers := g.askMarked(ctx, rows)
	var over []row
	var sent []int64
	g.mu.Lock()
	for _, r := range rows {
		least := int64(math.MaxInt64)
		if r.owned {
			for _, cell := range r.gates() {
				a, ok := answers[cell]
				if !ok || !a.syncs(r.mark.Slot, r.mark.Epoch, r.mark.Incarnation) {
					least = 0
				}
				least = min(least, a.LSN)
			}
			if least < r.sent || len(r.gates()) == 0 { // without a standby nobody can have it
				continue
			}
			g.closing[r.mark.Slot] = true // what comes now waits, so that the position stands still
		}
		over, sent = append(over, r), append(sent, least)
	}
	g.mu.Unlock()
	if len(over) == 0 {
		return nil, nil
	}
	if err := g.at("lift"); err != nil {
		return nil, err
	}
	lifted, err := g.remove(ctx, over, sent)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	for _, m := range lifted {
		if g.uncovered[m.Slot] == m.Epoch {
			delete(g.uncovered, m.Slot)
			delete(g.closing, m.Slot)
		}
	}
	g.metrics.marked.Set(float64(len(g.uncovered)))
	g.mu.Unlock()
	if len(lifted) > 0 {
		g.o.Log.Info("slots are covered again", "slots", len(lifted))
	}
	return lifted, g.at("lifted")
}

// gates are the cells that a slot's outputs wait for.
func (r row) gates() (cells []string) {
	for _, cell := range []string{r.standby, r.incoming} {
		if cell != "" {
			cells = append(cells, cell)
		}
	}
	return cells
}

// askMarked asks the standbys of marked slots, but not those that are silent: which
// of them are in sync, and then for the position of those that are.
func (g *Gate) askMarked(ctx context.Context, rows []row) map[string]Answer {
	slots := map[string][]row{}
	for _, r := range rows {
		if r.owned {
			for _, cell := range r.gates() {
				slots[cell] = append(slots[cell], r)
			}
		}
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	out := map[string]Answer{}
	for cell, list := range slots {
		g.mu.Lock()
		p := g.peer(cell)
		silent := p.silent(time.Now())
		g.mu.Unlock()
		if silent {
			continue
		}
		all.Go(func() {
			look, cancel := context.WithTimeout(ctx, askLimit)
			defer cancel()
			q := Question{Source: g.o.Cell}
			for _, r := range list {
				q.Slots = append(q.Slots, r.mark.Slot)
			}
			a, err := p.ask(look, q)
			if err != nil {
				return
			}
			q.Slots = nil
			for _, r := range list {
				if a.syncs(r.mark.Slot, r.mark.Epoch, r.mark.Incarnation) {
					q.Slots, q.LSN = append(q.Slots, r.mark.Slot), max(q.LSN, r.sent)
				}
			}
			if len(q.Slots) > 0 && a.LSN < q.LSN {
				if a, err = p.ask(look, q); err != nil {
					return
				}
			}
			mu.Lock()
			defer mu.Unlock()
			out[cell] = a
		})
	}
	all.Wait()
	return out
}
