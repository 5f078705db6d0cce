package outputcommit

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// place is what a message's claim found of its slot.
type place struct {
	slot              routing.Slot
	epoch             routing.Epoch
	standby, incoming string
}

// What cell.uncover says of a slot.
const (
	isUncovered = "uncovered"
	isBusy      = "busy"
	isMoved     = "moved"
	isGone      = "gone"
)

// verdict is its word on one.
type verdict struct {
	place             // as asked
	verdict           string
	standby, incoming string // as they are
	mark              Mark
	marked            bool
}

// uncover writes the rows.
func (g *Gate) uncover(ctx context.Context, asked []place, groups map[place]*group) ([]verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, dbLimit)
	defer cancel()
	slots, epochs, sent := make([]int32, len(asked)), make([]int64, len(asked)), make([]int64, len(asked))
	standbys, incomings := make([]string, len(asked)), make([]string, len(asked))
	by := map[routing.Slot]place{}
	for i, k := range asked {
		slots[i], epochs[i], sent[i], standbys[i], incomings[i] = int32(k.slot), int64(k.epoch), groups[k].sent, k.standby, k.incoming
		by[k.slot] = k
	}
	rows, err := g.o.Pool.Query(ctx, `SELECT slot, verdict, standby, incoming, incarnation, token, coalesce(since, 'epoch'), marked
		FROM cell.uncover($1, $2, (SELECT array_agg('0/0'::pg_lsn + n ORDER BY i) FROM unnest($3::bigint[]) WITH ORDINALITY AS u(n, i)), $4, $5)`,
		slots, epochs, sent, standbys, incomings)
	if err != nil {
		return nil, pg.Error(err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (v verdict, err error) {
		err = r.Scan(&v.mark.Slot, &v.verdict, &v.standby, &v.incoming, &v.mark.Incarnation, &v.mark.Token, &v.mark.Since, &v.marked)
		v.place = by[v.mark.Slot]
		v.mark.Epoch = v.epoch
		return v, err
	})
	if err == nil && len(out) != len(asked) {
		err = fmt.Errorf("%d of %d slots have a verdict", len(out), len(asked))
	}
	return out, pg.Error(err)
}

// noteMarked notes that the voters know of marks. If it can't be noted they are told
// once more.
func (g *Gate) noteMarked(ctx context.Context, marks []Mark) {
	ctx, cancel := context.WithTimeout(ctx, dbLimit)
	defer cancel()
	slots, tokens := keys(marks)
	_, err := g.o.Pool.Exec(ctx, `WITH mine AS MATERIALIZED (
			SELECT c.slot FROM cell.uncovered c WHERE c.slot = ANY ($1) ORDER BY c.slot FOR UPDATE)
		UPDATE cell.uncovered c SET marked_at = clock_timestamp()
		FROM mine JOIN unnest($1::int[], $2::bigint[]) AS u(slot, token) ON u.slot = mine.slot
		WHERE c.slot = mine.slot AND c.token = u.token AND c.marked_at IS NULL`, slots, tokens)
	if err != nil && ctx.Err() == nil {
		g.o.Log.Warn("marks that the voters know", "error", pg.Error(err))
	}
}

func keys(marks []Mark) (slots []int32, tokens []int64) {
	for _, m := range marks {
		slots, tokens = append(slots, int32(m.Slot)), append(tokens, m.Token)
	}
	return slots, tokens
}

// row is one of cell.uncovered, beside what the slot is now.
type row struct {
	mark              Mark
	sent              int64
	marked            bool
	age               time.Duration
	owned             bool // by this cell, at the mark's epoch
	standby, incoming string
}

// Querier is a connection, a transaction or a pool.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func readRows(ctx context.Context, q Querier) ([]row, error) {
	rows, err := q.Query(ctx, `SELECT c.slot, c.epoch, c.since, c.sent - '0/0'::pg_lsn, c.token, c.marked_at IS NOT NULL,
			greatest(extract(epoch FROM clock_timestamp() - c.since), 0)::float8,
			coalesce(s.role = 'owner' AND s.epoch = c.epoch, false), coalesce(s.standby, ''), CASE WHEN s.gates THEN coalesce(s.incoming, '') ELSE '' END, i.name
		FROM cell.uncovered c CROSS JOIN (SELECT cell.incarnation() AS name) i LEFT JOIN cell.slots s ON s.slot = c.slot ORDER BY c.slot`)
	if err != nil {
		return nil, pg.Error(err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (v row, err error) {
		var age float64
		err = r.Scan(&v.mark.Slot, &v.mark.Epoch, &v.mark.Since, &v.sent, &v.mark.Token, &v.marked, &age, &v.owned, &v.standby, &v.incoming, &v.mark.Incarnation)
		v.age = time.Duration(age * float64(time.Second))
		return v, err
	})
	return out, pg.Error(err)
}

// remove deletes marks up to whose positions the standbys are, or that are of an
// epoch that is over. Who sends at the same moment has its row, and its position,
// first: then nothing is deleted.
func (g *Gate) remove(ctx context.Context, rows []row, sent []int64) ([]Mark, error) {
	ctx, cancel := context.WithTimeout(ctx, dbLimit)
	defer cancel()
	var marks []Mark
	by := map[routing.Slot]Mark{}
	for _, r := range rows {
		marks = append(marks, r.mark)
		by[r.mark.Slot] = r.mark
	}
	slots, tokens := keys(marks)
	got, err := g.o.Pool.Query(ctx, `WITH mine AS MATERIALIZED (
			SELECT c.slot FROM cell.uncovered c WHERE c.slot = ANY ($1) ORDER BY c.slot FOR UPDATE)
		DELETE FROM cell.uncovered c USING mine JOIN unnest($1::int[], $2::bigint[], $3::bigint[]) AS u(slot, token, sent) ON u.slot = mine.slot
		WHERE c.slot = mine.slot AND c.token = u.token AND c.sent <= '0/0'::pg_lsn + u.sent RETURNING c.slot`, slots, tokens, sent)
	if err != nil {
		return nil, pg.Error(err)
	}
	out, err := pgx.CollectRows(got, func(r pgx.CollectableRow) (Mark, error) {
		var slot routing.Slot
		err := r.Scan(&slot)
		return by[slot], err
	})
	return out, pg.Error(err)
}

// places tells what this cell has of slots that it owns.
func (g *Gate) places(ctx context.Context, of map[routing.Slot]bool) (now map[routing.Slot]place, incarnation string, err error) {
	ctx, cancel := context.WithTimeout(ctx, dbLimit)
	defer cancel()
	var slots []int32
	for s := range of {
		slots = append(slots, int32(s))
	}
	list, err := g.readPlaces(ctx, "s.slot = ANY ($1)", slots)
	if err != nil {
		return nil, "", err
	}
	now = map[routing.Slot]place{}
	for _, k := range list {
		now[k.slot] = k
	}
	incarnation, _, err = readIncarnation(ctx, g.o.Pool)
	return now, incarnation, err
}

// ownPlaces is all slots that this cell owns and somebody stands by for, and a place
// behind all that they have committed.
func (g *Gate) ownPlaces(ctx context.Context) (all []place, at int64, err error) {
	err = g.o.Pool.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").Scan(&at)
	if err != nil {
		return nil, 0, pg.Error(err)
	}
	all, err = g.readPlaces(ctx, "s.standby IS NOT NULL")
	return all, at, err
}

func (g *Gate) readPlaces(ctx context.Context, which string, args ...any) ([]place, error) {
	rows, err := g.o.Pool.Query(ctx, `SELECT s.slot, s.epoch, coalesce(s.standby, ''), CASE WHEN s.gates THEN coalesce(s.incoming, '') ELSE '' END
		FROM cell.slots s WHERE s.role = 'owner' AND s.state = 'active' AND `+which, args...)
	if err != nil {
		return nil, pg.Error(err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (k place, err error) {
		err = r.Scan(&k.slot, &k.epoch, &k.standby, &k.incoming)
		return k, err
	})
	return out, pg.Error(err)
}

// readIncarnation names the database, and its newest token.
func readIncarnation(ctx context.Context, q Querier) (name string, newest int64, err error) {
	rows, err := q.Query(ctx, "SELECT cell.incarnation(), CASE WHEN is_called THEN last_value ELSE 0 END FROM cell.uncovered_token_seq")
	if err != nil {
		return "", 0, pg.Error(err)
	}
	_, err = pgx.ForEachRow(rows, []any{&name, &newest}, func() error { return nil })
	return name, newest, pg.Error(err)
}

func (g *Gate) wasHeld(ctx context.Context) (held bool, err error) {
	err = g.o.Pool.QueryRow(ctx, "SELECT held FROM cell.output_commit").Scan(&held)
	return held, pg.Error(err)
}

func setHeld(ctx context.Context, pool *pgxpool.Pool, held bool) error {
	_, err := pool.Exec(ctx, "UPDATE cell.output_commit SET held = $1 WHERE held <> $1", held)
	return pg.Error(err)
}
