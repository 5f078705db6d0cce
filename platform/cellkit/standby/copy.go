package standby

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/cdc"
)

// slotRow is a row of the owner's cell.slots.
type slotRow struct {
	slot                     int
	epoch                    int64
	owner, standby, incoming string
}

func readSlotRow(r cdc.Row) (o slotRow, ok bool) {
	if r.Op == cdc.Delete {
		return o, false // nobody deletes them; the table says what a slot is
	}
	if v, _ := r.Value("state"); v.Text == "given" {
		return o, false // counts as the next epoch: the table follows
	}
	var err error
	if o.slot, ok = slotOf(r); !ok {
		return o, false
	}
	if o.epoch, err = strconv.ParseInt(r.Text("epoch"), 10, 64); err != nil {
		return o, false
	}
	o.owner, o.standby, o.incoming = r.Text("owner"), r.Text("standby"), r.Text("incoming")
	return o, true
}

func slotOf(r cdc.Row) (int, bool) {
	slot, err := strconv.Atoi(r.Text("slot"))
	return slot, err == nil
}

// follow takes what the owner says of a slot. In a copy it also says that the
// copy has the slot's rows: without it, nothing would tell an empty slot from one
// that the owner doesn't send here.
func (b *batch) follow(ctx context.Context, c *cdc.Change, r cdc.Row) error {
	o, ok := readSlotRow(r)
	if !ok {
		return nil
	}
	if b.slots[o.slot] {
		if err := b.flush(ctx); err != nil {
			return err
		}
		b.touched = true
		var empty string
		if err := b.conn.QueryRow(ctx, "SELECT cell.follow_slot($1, $2, $3, $4, nullif($5, $7), nullif($6, $7))::text",
			b.s.zone, o.slot, o.epoch, o.owner, o.standby, o.incoming, "").Scan(&empty); err != nil {
			return err
		}
		if err := b.reread(ctx, o.slot); err != nil {
			return err
		}
	}
	st := b.states[o.slot]
	if c.Kind != cdc.KindCopy || !st.here(b.s.zone) || st.state != copying || st.copy != c.Message.Copy {
		return nil
	}
	if o.owner == b.s.zone && o.epoch == st.epoch && st.copied == st.epoch && (o.standby == b.s.a.o.Cell || o.incoming == b.s.a.o.Cell) {
		st.cover = true
		b.dirty[st.slot] = st
	}
	return nil
}

// reread is what enter has read, once more, after a change of the slot's row.
// What this batch did to the copy's state stays, if the slot is still kept.
func (b *batch) reread(ctx context.Context, slot int) error {
	had := b.states[slot]
	rows, err := b.conn.Query(ctx, entering("'{}', $1"), []int{slot})
	if err != nil {
		return err
	}
	delete(b.states, slot)
	if err := b.readStates(rows); err != nil {
		return err
	}
	st := b.states[slot]
	if st == nil || b.dirty[slot] == nil {
		return nil
	}
	if st.role != "standby" && st.role != "incoming" {
		delete(b.dirty, slot)
		return nil
	}
	had.role, had.epoch, had.owner = st.role, st.epoch, st.owner
	b.states[slot] = had
	return nil
}

// begin takes a copy's begin: from here on the slots' changes are applied, and
// what is here from before an epoch of the owner's goes (P3.7): the tail that
// nobody else has would stay, since the larger version wins.
func (b *batch) begin(ctx context.Context, c *cdc.Change) error {
	name := c.Message.Copy
	if c.Slots != nil {
		if name == b.next.SlotCopy {
			return nil // once more
		}
		b.next.SlotCopy, b.next.SlotCopyN, b.next.Ended = name, 0, false
	} else {
		b.next.SlotCopy, b.next.SlotCopyN, b.next.Ended = "", 0, false
	}
	if err := b.flush(ctx); err != nil {
		return err
	}
	b.counts.copies++
	var all []int
	old := map[int64][]int{} // slots, by the epoch that their rows go below
	for _, st := range b.states {
		if !st.here(b.s.zone) || c.Slots != nil && !slices.Contains(c.Slots, int32(st.slot)) {
			continue
		}
		all = append(all, st.slot)
		switch {
		case st.fresh:
			old[math.MaxInt64] = append(old[math.MaxInt64], st.slot)
		case st.source != b.s.zone || st.copied != st.epoch:
			old[st.epoch] = append(old[st.epoch], st.slot)
		}
		st.source, st.copied, st.state, st.reason, st.copy, st.cover, st.fresh, st.end = b.s.zone, st.epoch, copying, "", name, false, false, nil
		b.dirty[st.slot] = st
	}
	if len(all) == 0 {
		return nil
	}
	if _, err := b.conn.Exec(ctx, "DELETE FROM cell.standby_pending WHERE slot = ANY ($1)", all); err != nil {
		return err
	}
	for _, t := range b.layouts.tables {
		for epoch, slots := range old {
			if _, err := b.conn.Exec(ctx, t.deletes, slots, epoch); err != nil {
				return err
			}
		}
	}
	return nil
}

// inOrder says whether a message of some slots' copy is the next one. The
// follower passes them on without counting.
func (b *batch) inOrder(ctx context.Context, c *cdc.Change) (bool, error) {
	if c.Message.Copy != b.next.SlotCopy || c.N <= b.next.SlotCopyN {
		return false, nil
	}
	if c.N != b.next.SlotCopyN+1 {
		reason := fmt.Sprintf("message %d of the copy comes after %d", c.N, b.next.SlotCopyN)
		b.next.SlotCopy, b.next.SlotCopyN, b.next.Ended = "", 0, true
		if err := b.flush(ctx); err != nil {
			return false, err
		}
		for _, st := range b.states {
			if st.state == copying && st.copy == c.Message.Copy {
				b.stop(st, st.epoch, false, reason)
			}
		}
		_, err := b.conn.Exec(ctx, "UPDATE cell.standby_slots SET state = 'stopped', reason = $3, copy = '', tries = tries + 1 WHERE source = $1 AND copy = $2 AND state = 'copying'",
			b.s.zone, c.Message.Copy, reason)
		return false, err
	}
	b.next.SlotCopyN = c.N
	if c.Kind == cdc.KindEnd {
		b.next.Ended = true
	}
	return true, nil
}

// end takes a copy's end: the slots that it covered are in sync once the stream
// has passed the place that the copy was made at.
func (b *batch) end(ctx context.Context, c *cdc.Change) error {
	if err := b.flush(ctx); err != nil {
		return err
	}
	var covered []int
	for _, st := range b.states {
		if !st.here(b.s.zone) || st.state != copying || st.copy != c.Message.Copy {
			continue
		}
		if !st.cover || st.copied != st.epoch {
			b.stop(st, st.epoch, false, "the owner doesn't count this cell as the slot's standby yet")
			continue
		}
		covered = append(covered, st.slot)
	}
	slices.Sort(covered)
	if err := b.applyPending(ctx, covered); err != nil {
		return err
	}
	for _, slot := range covered {
		if st := b.states[slot]; st.state == copying {
			lsn := c.LSN
			st.end = &lsn
			b.dirty[slot] = st
		}
	}
	b.ended = true
	return nil
}

// applyPending brings the changes that had to wait for the copy's rows.
func (b *batch) applyPending(ctx context.Context, slots []int) error {
	rows, err := b.conn.Query(ctx, "DELETE FROM cell.standby_pending WHERE slot = ANY ($1) RETURNING slot, seq, base, body", slots)
	if err != nil {
		return err
	}
	type pending struct {
		slot int
		seq  int64
		base int64
		body []byte
	}
	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (p pending, err error) { return p, r.Scan(&p.slot, &p.seq, &p.base, &p.body) })
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(x, y pending) int { return int(x.seq - y.seq) })
	for _, p := range all {
		ms, err := cdc.Decode(p.body)
		if err != nil {
			return err
		}
		for _, r := range ms[0].Rows {
			e, err := b.layouts.edit(r, false)
			if err != nil {
				return err
			}
			e.base = p.base
			st := b.states[p.slot]
			if st.state != copying || e.epoch < st.epoch {
				continue
			}
			err = b.guard(ctx, e, func() error {
				ok, err := b.tryPatch(ctx, e)
				if err == nil && !ok {
					b.stop(st, st.epoch, false, "a change of "+e.t.name+" is of a version that the copy didn't bring")
				}
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
