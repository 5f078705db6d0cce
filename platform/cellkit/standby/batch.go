package standby

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/cdc"
)

// batch is one transaction of the applier: rows, the state of copies, and the
// position after them.
type batch struct {
	*session
	s       *source
	changes []cdc.Change
	after   cdc.Position
	careful bool // each row by itself: one of a slot that can't be applied stops that slot alone

	slots     map[int]bool // to enter; true = exclusive
	states    map[int]*slotState
	round     round
	dirty     map[int]*slotState
	touched   bool // what this cell is to some slot, or a copy's state, is another
	next      stored
	at        time.Time
	ended     bool // a copy's end is in it
	counts    counts
	stopped   map[string]int // by reason
	openChunk []int          // changes of a transaction whose end isn't in this batch
	staged    bool           // the one change ends a transaction whose earlier chunks are in the database
}

// counts are of one batch, and of a source since the start.
type counts struct {
	rows, older, foreign, copies, patches int64
}

// slotState is what this cell is to a slot, and how far its copy is.
type slotState struct {
	slot   int
	role   string
	epoch  int64
	owner  string
	source string // of the copy, with the epoch that it is of
	copied int64
	state  string
	reason string
	copy   string
	cover  bool
	fresh  bool
	end    *cdc.LSN
}

const (
	copying = "copying"
	inSync  = "in_sync"
	stopped = "stopped"
)

// here says whether this cell keeps a copy of a source's slot.
func (st *slotState) here(source string) bool {
	return st != nil && (st.role == "standby" || st.role == "incoming") && st.owner == source
}

// taken says whether the copy is of this owner and epoch, and its changes are applied.
func (st *slotState) taken(source string) bool {
	return st.source == source && st.copied == st.epoch && (st.state == copying || st.state == inSync)
}

// enters notes a slot whose shared lock the batch takes, if not the exclusive one.
func (b *batch) enters(slot int) {
	if _, noted := b.slots[slot]; !noted {
		b.slots[slot] = false
	}
}

// run applies the batch. Data, copies and watermark are one commit.
func (b *batch) run(ctx context.Context) error {
	b.slots, b.dirty, b.stopped = map[int]bool{}, map[int]*slotState{}, map[string]int{}
	b.next = b.stored
	b.next.Position = b.after
	if err := b.gather(ctx); err != nil {
		return err
	}
	tx, err := b.conn.Begin(ctx)
	if err != nil {
		return err
	}
	if err := b.inside(ctx); err != nil {
		return err // the connection is closed, or the caller rolls back
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	b.session.stored, b.session.begun = b.next, true
	return nil
}

func (b *batch) inside(ctx context.Context) error {
	if len(b.slots) > 0 {
		if err := b.enter(ctx); err != nil {
			return err
		}
	}
	for i := range b.changes {
		if err := b.change(ctx, i); err != nil {
			return err
		}
	}
	if err := b.flush(ctx); err != nil {
		return err
	}
	return b.finish(ctx)
}

// gather finds the slots that the batch touches, before it locks them.
func (b *batch) gather(ctx context.Context) error {
	b.openChunk = nil
	var owners []slotRow
	for i := range b.changes {
		c := &b.changes[i]
		switch {
		case c.Kind == cdc.KindTx && c.Chunks == 0:
			b.openChunk = append(b.openChunk, i)
		case c.Kind == cdc.KindTx && c.Chunks > 1:
			b.openChunk = nil
		}
		switch c.Kind {
		case cdc.KindBegin, cdc.KindEnd:
			if err := b.gatherCopy(ctx, c); err != nil {
				return err
			}
		}
		for _, r := range c.Rows {
			if r.Table == slotsTable && c.Kind == cdc.KindSchema {
				continue
			}
			if r.Table == slotsTable {
				if row, ok := readSlotRow(r); ok {
					owners = append(owners, row)
					b.enters(row.slot)
				}
				continue
			}
			l, err := b.layouts.of(r)
			if err != nil {
				return err
			}
			if c.Kind == cdc.KindSchema {
				continue // its columns are known here: that is all it asks
			}
			var slot int
			if slot, err = strconv.Atoi(r.Values[l.slot].Text); err != nil {
				return fmt.Errorf("slot of a row of %s: %w", r.Table, err)
			}
			b.enters(slot)
		}
	}
	if len(b.changes) == 1 && b.changes[0].Chunks > 1 {
		b.staged = true
		var slots []int
		err := b.conn.QueryRow(ctx, "SELECT coalesce(array_agg(DISTINCT n), '{}') FROM cell.standby_chunks, unnest(slots) n WHERE source = $1", b.s.zone).Scan(&slots)
		if err != nil {
			return err
		}
		for _, slot := range slots {
			b.enters(slot)
		}
	}
	if len(owners) == 0 {
		return nil
	}
	return b.gatherOwners(ctx, owners)
}

// gatherCopy adds a copy's slots: those that it names, else all that this cell
// keeps of the source.
func (b *batch) gatherCopy(ctx context.Context, c *cdc.Change) error {
	for _, s := range c.Slots {
		b.enters(int(s))
	}
	q := "SELECT slot FROM cell.slots WHERE owner = $1 AND role IN ('standby', 'incoming') AND $2 <> ''"
	if c.Kind == cdc.KindEnd {
		q = "SELECT slot FROM cell.standby_slots WHERE source = $1 AND copy = $2 AND state = 'copying'"
	} else if c.Slots != nil {
		return nil
	}
	rows, err := b.conn.Query(ctx, q, b.s.zone, c.Message.Copy)
	if err != nil {
		return err
	}
	var slot int
	_, err = pgx.ForEachRow(rows, []any{&slot}, func() error {
		b.enters(slot)
		return nil
	})
	return err
}

// gatherOwners finds out which of the owner's rows would change one here: only
// those slots are locked exclusively, and never one that is owned here: its users
// would wait for the whole batch, and follow_slot leaves it as it is.
func (b *batch) gatherOwners(ctx context.Context, owners []slotRow) error {
	var slots []int
	for _, o := range owners {
		slots = append(slots, o.slot)
	}
	rows, err := b.conn.Query(ctx, "SELECT slot, epoch, owner, coalesce(standby, ''), coalesce(incoming, ''), role = 'owner' FROM cell.slots WHERE slot = ANY ($1)", slots)
	if err != nil {
		return err
	}
	have, mine := map[int]slotRow{}, map[int]bool{}
	var o slotRow
	var own bool
	if _, err := pgx.ForEachRow(rows, []any{&o.slot, &o.epoch, &o.owner, &o.standby, &o.incoming, &own}, func() error {
		have[o.slot], mine[o.slot] = o, own
		return nil
	}); err != nil {
		return err
	}
	for _, o := range owners {
		if have[o.slot] != o && !mine[o.slot] {
			b.slots[o.slot] = true
		}
		have[o.slot] = o // the next one of this batch is compared with it
	}
	return nil
}

// enter takes the locks, ascending, and then reads what this cell is to the slots.
func (b *batch) enter(ctx context.Context) error {
	all, exclusive := []int{}, []int{}
	for slot, own := range b.slots {
		if all = append(all, slot); own {
			exclusive = append(exclusive, slot)
		}
	}
	slices.Sort(all)
	rows, err := b.conn.Query(ctx, entering("$1, $2"), all, exclusive)
	if err != nil {
		return err
	}
	b.states = make(map[int]*slotState, len(all))
	return b.readStates(rows)
}

// entering takes locks and tells what this cell is to the slots: thousands, nearly
// all alike. The function's arguments are shared and exclusive slots.
func entering(slots string) string {
	return "SELECT array_agg(slot), role, epoch, owner, source, copied_epoch, state, copy, covered, fresh FROM cell.enter_applier(" + slots + ") GROUP BY 2, 3, 4, 5, 6, 7, 8, 9, 10"
}

func (b *batch) readStates(rows pgx.Rows) error {
	var slots []int32
	var st slotState
	_, err := pgx.ForEachRow(rows, []any{&slots, &st.role, &st.epoch, &st.owner, &st.source, &st.copied, &st.state, &st.copy, &st.cover, &st.fresh}, func() error {
		alike := make([]slotState, len(slots))
		for i, slot := range slots {
			alike[i] = st
			alike[i].slot = int(slot)
			b.states[int(slot)] = &alike[i]
		}
		return nil
	})
	return err
}

// change takes the batch's next change.
func (b *batch) change(ctx context.Context, i int) error {
	c := &b.changes[i]
	switch c.Kind {
	case cdc.KindTx:
		if c.Chunks > 0 && c.At.After(b.at) {
			b.at = c.At
		}
		if slices.Contains(b.openChunk, i) {
			return b.stage(ctx, c)
		}
		if c.Chunks > 1 && !b.staged { // came again, after some of it was kept
			if err := b.dropChunks(ctx); err != nil {
				return err
			}
		}
		if b.staged {
			if err := b.unstage(ctx, c, func(c *cdc.Change) error { return errors.Join(b.rows(ctx, c), b.flush(ctx)) }); err != nil {
				return err
			}
		}
		return b.rows(ctx, c)
	case cdc.KindBegin:
		return b.begin(ctx, c)
	case cdc.KindCopy, cdc.KindEnd:
		if c.Slots != nil {
			if ok, err := b.inOrder(ctx, c); !ok {
				return err
			}
		}
		if c.Kind == cdc.KindEnd {
			return b.end(ctx, c)
		}
		return b.rows(ctx, c)
	}
	return nil
}

// rows takes a change's rows into the round.
func (b *batch) rows(ctx context.Context, c *cdc.Change) error {
	for _, r := range c.Rows {
		if r.Table == slotsTable {
			if err := b.follow(ctx, c, r); err != nil {
				return err
			}
			continue
		}
		e, err := b.layouts.edit(r, c.Kind == cdc.KindCopy)
		if err != nil {
			return err
		}
		if !b.wanted(c, e) {
			continue
		}
		if b.counts.rows++; r.Op == cdc.Delete {
			if err := b.delete(ctx, e); err != nil {
				return err
			}
			continue
		}
		if !b.careful && b.round.add(e) {
			continue
		}
		if err := b.flush(ctx); err != nil {
			return err
		}
		b.round.add(e)
		if b.careful {
			if err := b.flush(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// wanted is the fence's second half: role and epoch were read under the lock.
func (b *batch) wanted(c *cdc.Change, e *edit) bool {
	st := b.states[e.slot]
	if !st.here(b.s.zone) {
		b.counts.foreign++
		return false
	}
	if c.Kind == cdc.KindCopy {
		return st.state == copying && st.source == b.s.zone && st.copied == st.epoch && st.copy == c.Message.Copy
	}
	if e.row.Op != cdc.Delete {
		switch {
		case e.epoch < st.epoch: // of an owner before this one, or before it was that
			b.counts.older++
			return false
		case e.epoch > st.epoch:
			b.stop(st, e.epoch, false, fmt.Sprintf("the source is at epoch %d already, this cell's table at %d", e.epoch, st.epoch))
			return false
		}
	}
	return st.taken(b.s.zone)
}

// stop ends the following of one slot; the others go on. It is copied anew once
// this cell is at the epoch.
func (b *batch) stop(st *slotState, epoch int64, fresh bool, reason string) {
	if st.state == stopped && st.source == b.s.zone && st.copied == epoch {
		st.fresh = st.fresh || fresh
		return
	}
	b.stopped[reason]++
	// A copy at another epoch takes nothing over from what is here, and this one hasn't begun.
	fresh = fresh || st.source != b.s.zone || st.copied != epoch
	st.source, st.copied, st.state, st.reason, st.copy, st.cover, st.end = b.s.zone, epoch, stopped, reason, "", false, nil
	st.fresh = st.fresh || fresh
	b.dirty[st.slot] = st
}
