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
	said := ""
	for ctx.Err() == nil {
		err := g.lookAfter(ctx, &compared)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != said && ctx.Err() == nil {
			said = text
			g.o.Log.Warn("marks of uncovered slots", "error", text) // "" = it's well again
		}
		t := time.NewTimer(keepEach)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
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
	g.mu.Lock()
	deaf, missed := time.Since(g.deaf) < deafFor, !g.deaf.IsZero()
	g.mu.Unlock()
	if !deaf {
		var fresh []Mark
		for _, r := range rows {
			if r.owned && !r.marked {
				fresh = append(fresh, r.mark)
			}
		}
		if len(fresh) > 0 {
			deaf = !g.told(ctx, fresh)
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
	for _, t := range g.order { // claimed before it was known that waiting is in vain
		if epoch, ok := g.uncovered[t.Slot]; ok && epoch == t.Epoch && !t.late && !g.o.Strict {
			g.delay(t)
		}
	}
	g.metrics.marked.Set(float64(len(g.uncovered)))
}

// lift ends the marks of slots whose standbys have passed everything that was sent,
// and of slots that aren't this cell's at that epoch any more.
func (g *Gate) lift(ctx context.Context, rows []row) ([]Mark, error) {
	answers := g.askMarked(ctx, rows)
	var over []row
	var sent []int64
	for _, r := range rows {
		if !r.owned {
			over, sent = append(over, r), append(sent, math.MaxInt64)
			continue
		}
		standby, incoming := r.standby, r.incoming
		if standby == "" {
			standby, incoming = incoming, ""
		}
		a, ok := answers[standby]
		if !ok || !a.has(r) {
			continue
		}
		least := a.LSN
		if incoming != "" {
			b, ok := answers[incoming]
			if !ok || b.syncs(r) && !b.has(r) {
				continue
			}
			if b.syncs(r) {
				least = min(least, b.LSN)
			}
		}
		over, sent = append(over, r), append(sent, least)
	}
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
		}
	}
	g.metrics.marked.Set(float64(len(g.uncovered)))
	g.mu.Unlock()
	if len(lifted) > 0 {
		g.o.Log.Info("slots are covered again", "slots", len(lifted))
	}
	return lifted, g.at("lifted")
}

func (a Answer) syncs(r row) bool {
	epoch, ok := a.InSync[r.mark.Slot]
	return ok && epoch == r.mark.Epoch && a.Incarnation == r.mark.Incarnation
}

func (a Answer) has(r row) bool { return a.syncs(r) && a.LSN >= r.sent }

// askMarked asks the standbys of marked slots, but not those that are silent.
func (g *Gate) askMarked(ctx context.Context, rows []row) map[string]Answer {
	slots := map[string][]routing.Slot{}
	for _, r := range rows {
		for _, name := range []string{r.standby, r.incoming} {
			if r.owned && name != "" {
				slots[name] = append(slots[name], r.mark.Slot)
			}
		}
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	out := map[string]Answer{}
	for name, list := range slots {
		g.mu.Lock()
		p := g.peer(name)
		silent := p.silent(time.Now())
		g.mu.Unlock()
		if silent {
			continue
		}
		all.Go(func() {
			look, cancel := context.WithTimeout(ctx, askLimit)
			defer cancel()
			a, err := p.ask(look, Question{Source: g.o.Cell, Slots: list})
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out[name] = a
		})
	}
	all.Wait()
	return out
}

// reconcile lifts marks that the voters have of this database and that it hasn't (a
// lift that didn't get through, or a mark that came after its lift), and tells them
// of those that they knew and know no more.
func (g *Gate) reconcile(ctx context.Context, rows []row, compared *time.Time) error {
	look, cancel := context.WithTimeout(ctx, 2*markLimit)
	defer cancel()
	theirs, err := g.o.Mark.Marks(look)
	if ctx.Err() != nil {
		return nil
	}
	if g.heardVoters(err); err != nil {
		return nil
	}
	if len(theirs)+len(rows) > 0 { // a mark that was made meanwhile has its row already
		if rows, err = readRows(look, g.o.Pool); err != nil {
			return err
		}
	}
	type key struct {
		slot        routing.Slot
		token       int64
		incarnation string
	}
	ours, known := map[key]bool{}, map[key]bool{}
	for _, m := range theirs {
		known[key{m.Slot, m.Token, m.Incarnation}] = true
	}
	incarnation := ""
	var lost []Mark
	for _, r := range rows {
		k := key{r.mark.Slot, r.mark.Token, r.mark.Incarnation}
		ours[k], incarnation = true, r.mark.Incarnation
		if r.owned && r.marked && !known[k] {
			lost = append(lost, r.mark)
		}
	}
	if len(theirs) > 0 && incarnation == "" {
		if incarnation, err = readIncarnation(look, g.o.Pool); err != nil {
			return err
		}
	}
	var over []Mark
	for _, m := range theirs {
		if m.Incarnation == incarnation && !ours[key{m.Slot, m.Token, m.Incarnation}] {
			over = append(over, m)
		}
	}
	if (len(over) == 0 || g.call(ctx, over, g.o.Mark.Lift)) && (len(lost) == 0 || g.call(ctx, lost, g.o.Mark.Mark)) {
		*compared = time.Now()
	}
	return nil
}
