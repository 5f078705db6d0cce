package outputcommit

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// state is what a message's claim found of its slot.
type state struct {
	slot              routing.Slot
	epoch             routing.Epoch
	standby, incoming string
}

// verdict is what cell.uncover says of a slot.
type verdict struct {
	state             // as asked
	verdict           string
	standby, incoming string // as they are
	mark              Mark
	marked            bool
}

// uncover writes the rows.
func (g *Gate) uncover(ctx context.Context, asked []state, groups map[state]*group) ([]verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, dbLimit)
	defer cancel()
	slots, epochs, sent := make([]int32, len(asked)), make([]int64, len(asked)), make([]int64, len(asked))
	standbys, incomings := make([]string, len(asked)), make([]string, len(asked))
	by := map[routing.Slot]state{}
	incarnation := ""
	for i, k := range asked {
		slots[i], epochs[i], sent[i], standbys[i], incomings[i] = int32(k.slot), int64(k.epoch), groups[k].sent, k.standby, k.incoming
		by[k.slot] = k
		incarnation = groups[k].tickets[0].Incarnation
	}
	rows, err := g.o.Pool.Query(ctx, `SELECT slot, verdict, standby, incoming, token, coalesce(since, 'epoch'), marked
		FROM cell.uncover($1, $2, (SELECT array_agg('0/0'::pg_lsn + n ORDER BY i) FROM unnest($3::bigint[]) WITH ORDINALITY AS u(n, i)), $4, $5)`,
		slots, epochs, sent, standbys, incomings)
	if err != nil {
		return nil, pg.Error(err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (v verdict, err error) {
		err = r.Scan(&v.mark.Slot, &v.verdict, &v.standby, &v.incoming, &v.mark.Token, &v.mark.Since, &v.marked)
		v.state = by[v.mark.Slot]
		v.mark.Epoch, v.mark.Incarnation = v.epoch, incarnation
		return v, err
	})
	if err == nil && len(out) != len(asked) {
		err = fmt.Errorf("%d of %d slots have a verdict", len(out), len(asked))
	}
	return out, pg.Error(err)
}

// noteMarked notes that the voters know of marks.
func (g *Gate) noteMarked(ctx context.Context, marks []Mark) error {
	ctx, cancel := context.WithTimeout(ctx, dbLimit)
	defer cancel()
	slots, tokens := keys(marks)
	_, err := g.o.Pool.Exec(ctx, `UPDATE cell.uncovered c SET marked_at = clock_timestamp()
		FROM unnest($1::int[], $2::bigint[]) AS u(slot, token) WHERE c.slot = u.slot AND c.token = u.token AND c.marked_at IS NULL`, slots, tokens)
	return pg.Error(err)
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
			coalesce(s.role = 'owner' AND s.epoch = c.epoch, false), coalesce(s.standby, ''), coalesce(s.incoming, ''),
			i.incarnation::text || '.' || ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int
		FROM cell.uncovered c CROSS JOIN cell.identity i LEFT JOIN cell.slots s ON s.slot = c.slot ORDER BY c.slot`)
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
	got, err := g.o.Pool.Query(ctx, `DELETE FROM cell.uncovered c USING unnest($1::int[], $2::bigint[], $3::bigint[]) AS u(slot, token, sent)
		WHERE c.slot = u.slot AND c.token = u.token AND c.sent <= '0/0'::pg_lsn + u.sent RETURNING c.slot`, slots, tokens, sent)
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
