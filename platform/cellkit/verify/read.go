package verify

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const selectStates = `
	SELECT s.slot, s.epoch, s.role, s.state = 'given', s.owner, coalesce(s.standby, ''), coalesce(s.incoming, ''), coalesce(b.state, ''), coalesce(b.reason, '')
	FROM cell.slots s LEFT JOIN cell.standing_by b ON b.slot = s.slot`

func scanStates(rows pgx.Rows, err error) ([]slotState, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[slotState])
}

// states of some slots, ascending.
func states(ctx context.Context, c *pgx.Conn, slots []int32) ([]slotState, error) {
	return scanStates(c.Query(ctx, selectStates+" WHERE s.slot = ANY ($1) ORDER BY s.slot", slots))
}

func (s *Server) slots(ctx context.Context) (cellSlots, error) {
	out := cellSlots{Cell: s.o.Cell, Tables: []table{}}
	c, err := s.connect(ctx)
	if err != nil {
		return out, err
	}
	defer closeConn(c)
	out.Slots, err = scanStates(c.Query(ctx, selectStates+" WHERE s.role <> 'none' ORDER BY s.slot"))
	if err != nil {
		return out, err
	}
	rows, err := c.Query(ctx, "SELECT u.name, c.columns, c.key FROM cell.unit_tables u, cell.row_columns(u.name) c ORDER BY u.name")
	if err != nil {
		return out, err
	}
	out.Tables, err = pgx.CollectRows(rows, pgx.RowToStructByPos[table])
	return out, err
}

func digest(ctx context.Context, c *pgx.Conn, q question) ([]slotDigest, error) {
	rows, err := c.Query(ctx, "SELECT t.name, d.slot, d.n, d.sum::text, d.xor FROM unnest($1::text[]) AS t(name), cell.digest(t.name, $2) d", q.Tables, q.Slots)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[slotDigest])
}

func rows(ctx context.Context, c *pgx.Conn, q question) ([]row, error) {
	got, err := c.Query(ctx, "SELECT key, epoch, rev, hash FROM cell.digest_rows($1, $2, $3, $4, $5)", q.Table, q.Slot, q.After, q.Upto, min(max(q.Limit, 1), pageMost))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(got, pgx.RowToStructByPos[row])
}

func columns(ctx context.Context, c *pgx.Conn, q question) (map[string]int64, error) {
	got, err := c.Query(ctx, "SELECT name, hash FROM cell.digest_columns($1, $2, $3)", q.Table, q.Slot, q.Key)
	if err != nil {
		return nil, err
	}
	out := map[string]int64{}
	var name string
	var hash int64
	_, err = pgx.ForEachRow(got, []any{&name, &hash}, func() error { out[name] = hash; return nil })
	return out, err
}

const straysListed = 20 // rows of each slot's table

// strays looks for rows of slots that are nobody's here, in one snapshot.
func (s *Server) strays(ctx context.Context) ([]stray, error) {
	c, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer closeConn(c)
	out := []stray{}
	err = pgx.BeginTxFunc(ctx, c, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		got, err := tx.Query(ctx, `SELECT u.name, r.slot, r.n, r."left" FROM cell.unit_tables u, cell.strays(u.name) r ORDER BY u.name, r.slot`)
		if err != nil {
			return err
		}
		var one stray
		if _, err := pgx.ForEachRow(got, []any{&one.Table, &one.Slot, &one.N, &one.Left}, func() error {
			out = append(out, one)
			return nil
		}); err != nil {
			return err
		}
		listed := 0
		for i := range out {
			if o := &out[i]; !o.Left && listed < pageMost {
				if o.Rows, err = rows(ctx, c, question{Table: o.Table, Slot: o.Slot, Limit: straysListed}); err != nil {
					return err
				}
				listed += len(o.Rows)
			}
		}
		return nil
	})
	return out, err
}
