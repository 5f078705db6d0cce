package standby

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/cdc"
)

// flush applies the round: whole rows a table at a time, those that leave out
// large values one by one.
func (b *batch) flush(ctx context.Context) error {
	edits := b.round.edits
	if len(edits) == 0 {
		return nil
	}
	b.round = round{}
	var order []string
	groups := map[string][]*edit{}
	var patches []*edit
	for _, e := range edits {
		if e.base > 0 {
			patches = append(patches, e)
			continue
		}
		if groups[e.id] == nil {
			order = append(order, e.id)
		}
		groups[e.id] = append(groups[e.id], e)
	}
	for _, id := range order {
		g := groups[id]
		// Keys begin with the slot: what comes in their order finds its pages in the cache.
		slices.SortStableFunc(g, func(x, y *edit) int { return cmp.Compare(x.slot, y.slot) })
		l := g[0].layout
		if err := b.guard(ctx, g[0], func() error { return b.bulk(ctx, l.t.upsert(l.columns), arrays(g, l.use)) }); err != nil {
			return fmt.Errorf("%s: %w", l.t.name, err)
		}
	}
	for _, e := range patches {
		if err := b.guard(ctx, e, func() error { return b.patch(ctx, e) }); err != nil {
			return fmt.Errorf("%s: %w", e.t.name, err)
		}
	}
	return nil
}

// guard lets a change that can't be applied stop its slot alone, where changes
// come one by one. Its copy then replaces what is here.
func (b *batch) guard(ctx context.Context, e *edit, f func() error) error {
	if !b.careful {
		return f()
	}
	if _, err := b.conn.Exec(ctx, "SAVEPOINT one"); err != nil {
		return err
	}
	err := f()
	if err == nil {
		_, err = b.conn.Exec(ctx, "RELEASE SAVEPOINT one")
		return err
	}
	if !slotTrouble(err) {
		return err
	}
	if _, err := b.conn.Exec(ctx, "ROLLBACK TO SAVEPOINT one"); err != nil {
		return err
	}
	b.stop(b.states[e.slot], b.states[e.slot].epoch, true, fmt.Sprintf("a row of %s can't be applied: %v", e.t.name, err))
	return nil
}

// patch applies a row that leaves out what was large and unchanged. While a slot
// is copied, the version beneath may come later: it waits for the copy's end.
func (b *batch) patch(ctx context.Context, e *edit) error {
	ok, err := b.tryPatch(ctx, e)
	if err != nil || ok {
		return err
	}
	st := b.states[e.slot]
	if st.state != copying {
		b.stop(st, st.epoch, false, "a change of "+e.t.name+" is of a version that isn't here")
		return nil
	}
	body := cdc.Encode(nil, []cdc.Message{{Kind: cdc.KindTx, Rows: []cdc.Row{e.row}}})
	_, err = b.conn.Exec(ctx, "INSERT INTO cell.standby_pending (slot, base, body) VALUES ($1, $2, $3)", e.slot, e.base, body)
	return err
}

func (b *batch) tryPatch(ctx context.Context, e *edit) (bool, error) {
	b.counts.patches++
	var columns []string
	args := e.keyArgs()
	args = append(args, e.base, e.epoch, e.rev)
	for i, at := range e.use {
		switch v := e.row.Values[at]; v.State {
		case cdc.Sent:
			columns, args = append(columns, e.columns[i]), append(args, v.Text)
		case cdc.Null:
			columns, args = append(columns, e.columns[i]), append(args, nil)
		}
	}
	tag, err := b.conn.Exec(ctx, e.t.patch(columns), args...)
	if err != nil || tag.RowsAffected() == 1 {
		return err == nil, err
	}
	var epoch, rev int64
	err = b.conn.QueryRow(ctx, e.t.find(), e.keyArgs()...).Scan(&epoch, &rev)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil && (epoch > e.epoch || epoch == e.epoch && rev >= e.rev), err
}

func (e *edit) keyArgs() []any {
	var out []any
	for _, i := range e.key {
		out = append(out, e.row.Values[i].Text)
	}
	return out
}

// delete takes a row away: by the administrator's hand only, the application
// never deletes. A copy that runs may bring it back, and isn't taken.
func (b *batch) delete(ctx context.Context, e *edit) error {
	if err := b.flush(ctx); err != nil {
		return err
	}
	if st := b.states[e.slot]; st.state == copying {
		b.stop(st, st.epoch, true, "a row was deleted while the slot was copied")
		return nil
	}
	return b.guard(ctx, e, func() error {
		_, err := b.conn.Exec(ctx, e.t.remove(), e.keyArgs()...)
		return err
	})
}

// stage keeps a chunk until its transaction's end has come: memory stays bounded,
// and nobody sees half of it.
func (b *batch) stage(ctx context.Context, c *cdc.Change) error {
	if c.Chunk == 1 {
		if err := b.dropChunks(ctx); err != nil {
			return err
		}
	}
	seen := map[int]bool{}
	slots := []int{}
	for _, r := range c.Rows {
		slot, ok := slotOf(r)
		if ok && !seen[slot] {
			seen[slot] = true
			slots = append(slots, slot)
		}
	}
	_, err := b.conn.Exec(ctx, "INSERT INTO cell.standby_chunks (source, chunk, slots, body) VALUES ($1, $2, $3, $4) ON CONFLICT (source, chunk) DO UPDATE SET slots = excluded.slots, body = excluded.body",
		b.s.zone, c.Chunk, slots, cdc.Encode(nil, []cdc.Message{c.Message}))
	return err
}

// unstage gives the earlier chunks of the transaction that ends with c, one at a
// time. The batch has no other change.
func (b *batch) unstage(ctx context.Context, c *cdc.Change, f func(*cdc.Change) error) error {
	for n := 1; n < c.Chunk; n++ {
		var body []byte
		err := b.conn.QueryRow(ctx, "SELECT body FROM cell.standby_chunks WHERE source = $1 AND chunk = $2", b.s.zone, n).Scan(&body)
		if err != nil {
			return fmt.Errorf("chunk %d of %s: %w", n, c.Commit, err)
		}
		ms, err := cdc.Decode(body)
		if err != nil {
			return err
		}
		for _, m := range ms {
			if m.Commit != c.Commit {
				return fmt.Errorf("chunk %d is of %s, not of %s", n, m.Commit, c.Commit)
			}
			if err := f(&cdc.Change{Message: m}); err != nil {
				return err
			}
		}
	}
	return b.dropChunks(ctx)
}

func (b *batch) dropChunks(ctx context.Context) error {
	_, err := b.conn.Exec(ctx, "DELETE FROM cell.standby_chunks WHERE source = $1", b.s.zone)
	return err
}

// finish writes what became of the copies, and the position.
func (b *batch) finish(ctx context.Context) error {
	if b.after.State == cdc.Unknown && (b.session.stored.State != cdc.Unknown || !b.begun) {
		// What comes next isn't the continuation: no copy can be relied on from here.
		reason := b.s.gapReason()
		b.touched = true
		if _, err := b.conn.Exec(ctx, `UPDATE cell.standby_slots SET state = 'stopped', reason = $2, copy = '', copy_end = NULL, since = clock_timestamp()
			WHERE source = $1 AND state <> 'stopped'`, b.s.zone, reason); err != nil {
			return err
		}
		if err := b.dropChunks(ctx); err != nil {
			return err
		}
	}
	if err := b.writeStates(ctx); err != nil {
		return err
	}
	if (b.ended || b.s.ending) && b.after.State == cdc.Live {
		if err := b.settle(ctx); err != nil {
			return err
		}
	}
	return b.store(ctx, b.s.zone, b.next, b.at)
}

func (b *batch) writeStates(ctx context.Context) error {
	if len(b.dirty) == 0 {
		return nil
	}
	b.touched = true
	var slots []int
	var epochs []int64
	var states, reasons, copies []string
	var covers, freshs []bool
	var ends []*string
	for slot, st := range b.dirty {
		slots, epochs, states, reasons, copies = append(slots, slot), append(epochs, st.copied), append(states, st.state), append(reasons, st.reason), append(copies, st.copy)
		covers, freshs = append(covers, st.cover), append(freshs, st.fresh)
		var end *string
		if st.end != nil {
			text := st.end.String()
			end = &text
		}
		ends = append(ends, end)
	}
	_, err := b.conn.Exec(ctx, `
		INSERT INTO cell.standby_slots AS p (slot, source, epoch, state, reason, copy, covered, fresh, copy_end, tries)
		SELECT u.slot, $1, u.epoch, u.state, u.reason, u.copy, u.covered, u.fresh, u.copy_end::pg_lsn, (u.state = 'stopped')::int
		FROM unnest($2::int[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::boolean[], $8::boolean[], $9::text[])
			AS u(slot, epoch, state, reason, copy, covered, fresh, copy_end)
		ON CONFLICT (slot) DO UPDATE SET source = excluded.source, epoch = excluded.epoch, state = excluded.state, reason = excluded.reason,
			copy = excluded.copy, covered = excluded.covered, fresh = excluded.fresh, copy_end = excluded.copy_end,
			tries = p.tries + excluded.tries,
			since = CASE WHEN (p.source, p.epoch, p.state) = (excluded.source, excluded.epoch, excluded.state) THEN p.since ELSE clock_timestamp() END`,
		b.s.zone, slots, epochs, states, reasons, copies, covers, freshs, ends)
	return err
}

// settle finds the slots whose copy has ended before a place that the stream has
// passed: from here on they are what the owner has, at the watermark.
func (b *batch) settle(ctx context.Context) error {
	b.touched = true
	_, err := b.conn.Exec(ctx, `
		UPDATE cell.standby_slots p SET state = 'in_sync', reason = '', copy_end = NULL, tries = 0, since = clock_timestamp()
		WHERE p.source = $1 AND p.state = 'copying' AND p.covered AND p.copy_end <= $2::text::pg_lsn`, b.s.zone, b.after.LSN.String())
	if err != nil {
		return err
	}
	return b.conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM cell.standby_slots WHERE source = $1 AND state = 'copying' AND copy_end IS NOT NULL)", b.s.zone).Scan(&b.ended)
}
