package control

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/control/controlapi"
)

// setMarks is one transaction: all of it is stored, or nothing.
func (s *store) setMarks(ctx context.Context, m controlapi.MarkChange) error {
	return pg.Error(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if len(m.Lift) > 0 {
			slots, _, incarnations, tokens, _ := columns(m.Lift)
			// Locked in the order of slots, as the other statement does: two requests never wait for each other in a circle.
			_, err := tx.Exec(ctx, `WITH mine AS MATERIALIZED (
					SELECT k.slot FROM control.marks k WHERE k.cell = $1 AND k.slot = ANY ($2) ORDER BY k.slot FOR UPDATE)
				DELETE FROM control.marks k USING mine JOIN unnest($2::int[], $3::text[], $4::bigint[]) AS u(slot, incarnation, token) ON u.slot = mine.slot
				WHERE k.cell = $1 AND k.slot = mine.slot AND k.incarnation = u.incarnation AND k.token <= u.token`, m.Cell, slots, incarnations, tokens)
			if err != nil {
				return err
			}
		}
		if len(m.Set) == 0 {
			return nil
		}
		slots, epochs, incarnations, tokens, since := columns(m.Set)
		_, err := tx.Exec(ctx, `INSERT INTO control.marks AS k (cell, slot, epoch, incarnation, token, since)
			SELECT DISTINCT ON (slot) $1, slot, epoch, incarnation, token, since
			FROM unnest($2::int[], $3::bigint[], $4::text[], $5::bigint[], $6::timestamptz[]) AS u(slot, epoch, incarnation, token, since) ORDER BY slot, token DESC
			ON CONFLICT (cell, slot) DO UPDATE SET epoch = excluded.epoch, incarnation = excluded.incarnation, token = excluded.token,
				since = excluded.since, marked_at = clock_timestamp()
			WHERE k.incarnation <> excluded.incarnation AND k.epoch <= excluded.epoch OR k.incarnation = excluded.incarnation AND k.token < excluded.token`,
			m.Cell, slots, epochs, incarnations, tokens, since)
		return err
	}))
}

func columns(marks []controlapi.Mark) (slots []int32, epochs []int64, incarnations []string, tokens []int64, since []time.Time) {
	for _, m := range marks {
		slots, epochs, incarnations = append(slots, int32(m.Slot)), append(epochs, int64(m.Epoch)), append(incarnations, m.Incarnation)
		tokens, since = append(tokens, m.Token), append(since, m.Since)
	}
	return slots, epochs, incarnations, tokens, since
}

// marks lists them by slot; those of one cell unless that is "".
func (s *store) marks(ctx context.Context, cell string) ([]controlapi.Marked, error) {
	rows, err := s.pool.Query(ctx, `SELECT cell, slot, epoch, incarnation, token, since, (extract(epoch FROM clock_timestamp() - marked_at) * 1000)::bigint
		FROM control.marks WHERE $1 IN ('', cell) ORDER BY slot, cell`, cell)
	if err != nil {
		return nil, pg.Error(err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (m controlapi.Marked, err error) {
		err = r.Scan(&m.Cell, &m.Slot, &m.Epoch, &m.Incarnation, &m.Token, &m.Since, &m.AgeMS)
		return m, err
	})
	if out == nil {
		out = []controlapi.Marked{}
	}
	return out, pg.Error(err)
}
