package agent

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// store is the cell's database as the agent's role sees it. In the global zone
// there is none.
type store struct{ pool *pgxpool.Pool }

// holdLease writes a lease that never ends, unless the one there is good: after a
// postmaster start the old one is void (P2.1).
func (s store) holdLease(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, "SELECT cell.set_lease('infinity') WHERE NOT cell.lease_left_ms() > 0")
	return pg.Error(err)
}

// version is that of the table in the database, 0 when there is none.
func (s store) version(ctx context.Context) (v int64, err error) {
	err = s.pool.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM cell.route").Scan(&v)
	return v, pg.Error(err)
}

// stored gives the signed table in the database, nil when there is none.
func (s store) stored(ctx context.Context) ([]byte, error) {
	rows, err := s.pool.Query(ctx, "SELECT signed FROM cell.route")
	if err != nil {
		return nil, pg.Error(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil || len(all) == 0 {
		return nil, pg.Error(err)
	}
	return all[0], nil
}

// apply brings cell.slots to a table, in one transaction with its version.
func (s store) apply(ctx context.Context, t *routing.Table, signed []byte) (changed int, err error) {
	var slots []int32
	var owners, standbys []string
	var epochs []int64
	add := func(n routing.Slot) {
		if a, ok := t.Slot(n); ok {
			slots = append(slots, int32(n))
			owners = append(owners, a.Owner)
			standbys = append(standbys, a.Standby)
			epochs = append(epochs, int64(a.Epoch))
		}
	}
	for n := range routing.Slot(routing.Slots) {
		add(n)
	}
	for _, n := range t.PrivateSlots() {
		add(n)
	}
	// Thousands of slots under their locks may take longer than a request's transaction.
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL statement_timeout = '20s'"); err != nil {
			return err
		}
		return tx.QueryRow(ctx, "SELECT cell.apply_table($1, $2, $3, $4, $5, $6)",
			t.Version(), signed, slots, owners, standbys, epochs).Scan(&changed)
	})
	return changed, pg.Error(err)
}

// counts are what status shows of the database.
type counts struct {
	LeaseLeftMS  float64 // +Inf = never ends
	Owned        int
	Due, Open    int // relay notes that are due, requests without their final reply
	OldestOpenMS float64
	Parked       int
	Stuck        int // transfers not ended, older than 30 s
}

func (s store) counts(ctx context.Context) (c counts, err error) {
	err = s.pool.QueryRow(ctx, `SELECT cell.lease_left_ms(),
		(SELECT count(*) FROM cell.slots WHERE role = 'owner'),
		(SELECT count(*) FROM cell.relay WHERE due <= now()),
		(SELECT count(*) FROM cell.relay),
		(SELECT coalesce(extract(epoch FROM now() - min(o.created_at)) * 1000, 0)::float8 FROM cell.relay r JOIN cell.outbox o USING (slot, id)),
		(SELECT count(*) FROM cell.parked WHERE resolved_at IS NULL),
		(SELECT count(*) FROM cell.transfers WHERE ended_at IS NULL AND created_at < now() - interval '30 s')`).
		Scan(&c.LeaseLeftMS, &c.Owned, &c.Due, &c.Open, &c.OldestOpenMS, &c.Parked, &c.Stuck)
	return c, pg.Error(err)
}
