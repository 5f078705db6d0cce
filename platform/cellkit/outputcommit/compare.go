package outputcommit

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

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
	if len(theirs)+len(rows) == 0 {
		*compared = time.Now()
		return nil
	}
	// Only now: a mark that was made meanwhile has its row already.
	if rows, err = readRows(look, g.o.Pool); err != nil {
		return err
	}
	incarnation, newest, err := readIncarnation(look, g.o.Pool)
	if err != nil {
		return err
	}
	over, lost, unknown := compare(rows, theirs, incarnation, newest)
	if unknown > 0 { // this database went back to before it made them
		g.o.Log.Error("marks that this database doesn't know of stay", "slots", unknown)
	}
	if (len(over) == 0 || g.call(ctx, over, g.o.Mark.Lift)) && (len(lost) == 0 || g.call(ctx, lost, g.o.Mark.Mark)) {
		*compared = time.Now()
	}
	return nil
}

// compare says which of the voters' marks are over, and which rows they have lost. A
// mark with a token that was never given here may be of what was sent before a disk
// went back: it stays.
func compare(rows []row, theirs []Mark, incarnation string, newest int64) (over, lost []Mark, unknown int) {
	type key struct {
		slot  routing.Slot
		token int64
	}
	ours, known := map[key]bool{}, map[key]bool{}
	for _, m := range theirs {
		if m.Incarnation == incarnation {
			known[key{m.Slot, m.Token}] = true
		}
	}
	for _, r := range rows {
		k := key{r.mark.Slot, r.mark.Token}
		ours[k] = true
		if r.owned && r.marked && !known[k] {
			lost = append(lost, r.mark)
		}
	}
	for _, m := range theirs {
		switch {
		case m.Incarnation != incarnation || ours[key{m.Slot, m.Token}]:
		case m.Token > newest:
			unknown++
		default:
			over = append(over, m)
		}
	}
	return over, lost, unknown
}

// proveAtOnce is how many slots are marked in one transaction: each takes a lock.
const proveAtOnce = 256

// prove marks every slot if something may have left without being held, and without a
// row: before there was output commit, or while it was off. The standbys of most of
// them have everything, and lift that within seconds.
func (g *Gate) prove(ctx context.Context) error {
	look, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	held, err := g.wasHeld(look)
	if err != nil || held {
		return err
	}
	all, at, err := g.ownPlaces(look)
	if err != nil {
		return err
	}
	g.o.Log.Warn("outputs may have left that no standby has: all slots are marked until theirs have passed this place", "slots", len(all))
	for len(all) > 0 {
		part := all[:min(proveAtOnce, len(all))]
		all = all[len(part):]
		groups := map[place]*group{}
		for _, k := range part {
			groups[k] = &group{sent: at}
		}
		rows, err := g.uncover(look, part, groups)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if r.verdict == isBusy || r.verdict == isMoved {
				all = append(all, place{r.slot, r.epoch, r.standby, r.incoming})
				pause(look, time.Millisecond)
			}
		}
	}
	return setHeld(look, g.o.Pool, true)
}

// Off notes in a cell's database that its outputs aren't held from here on: who holds
// them again marks all slots first. It returns when that is written, or ctx ends.
func Off(ctx context.Context, pool *pgxpool.Pool) error {
	return pg.RetryDeadline(ctx, func(ctx context.Context) error { return setHeld(ctx, pool, false) })
}
