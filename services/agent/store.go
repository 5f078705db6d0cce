package agent

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
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

// apply brings cell.slots to a table, in one transaction with its version. In a
// database that still has the table before, only what the two differ in is sent:
// to look at all 16,384 rows costs tens of milliseconds, in each cell at the time
// at which all its processes take the table.
//
// Standbys that change at an equal epoch go first, some at a time: a table may
// change thousands, and what one transaction has locked waits for the last of them.
func (s store) apply(ctx context.Context, before, t *routing.Table, signed []byte) (changed int, err error) {
	if changed, err = s.changeStandbys(ctx, before, t); err != nil {
		return changed, err
	}
	var rest int
	// Thousands of slots under their locks may take longer than a request's transaction.
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL statement_timeout = '20s'"); err != nil {
			return err
		}
		if before != nil {
			// apply_table's own lock: what is read next is still so when it runs.
			if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(4402)"); err != nil {
				return err
			}
			same, err := holds(ctx, tx, before, t)
			if err != nil {
				return err
			}
			if !same { // somebody put another database there
				before = nil
			}
		}
		r := differing(before, t)
		return tx.QueryRow(ctx, "SELECT cell.apply_table($1, $2, $3, $4, $5, $6)",
			t.Version(), signed, r.slots, r.owners, r.standbys, r.epochs).Scan(&rest)
	})
	return changed + rest, pg.Error(err)
}

// holds says that the database is at the table before, but for changes to t.
func holds(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, before, t *routing.Table,
) (same bool, err error) {
	err = q.QueryRow(ctx, "SELECT EXISTS (SELECT FROM cell.route WHERE version = $1 AND (begun <= $1 OR begun = $2))", before.Version(), t.Version()).Scan(&same)
	return same, err
}

// atOnce is how many slots change their standby or incoming cell in one
// transaction: all of them are locked to writers until it ends. A writer who
// doesn't come out in lockLimit isn't waited for: others would queue behind.
const (
	atOnce    = 64
	lockLimit = "SET LOCAL lock_timeout = '200ms'"
)

// changeStandbys does what of a table changes standbys only. Done in part it stays
// so, and is asked again.
func (s store) changeStandbys(ctx context.Context, before, t *routing.Table) (changed int, err error) {
	if before != nil {
		same, err := holds(ctx, s.pool, before, t)
		if err != nil {
			return 0, pg.Error(err)
		}
		if !same {
			before = nil
		}
	}
	r := differing(before, t)
	for lo := 0; lo < len(r.slots); lo += atOnce {
		hi := min(lo+atOnce, len(r.slots))
		var n int
		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, lockLimit); err != nil {
				return err
			}
			return tx.QueryRow(ctx, "SELECT cell.change_standbys($1, $2, $3, $4, $5)",
				t.Version(), r.slots[lo:hi], r.owners[lo:hi], r.standbys[lo:hi], r.epochs[lo:hi]).Scan(&n)
		})
		if err != nil {
			return changed, pg.Error(err)
		}
		changed += n
	}
	return changed, nil
}

// setIncoming has cells brought to slots of this cell beside their standbys, or
// lets go of them (""). What was done before an error stays done.
func (s store) setIncoming(ctx context.Context, slots []int32, target string) (changed int, err error) {
	for part := range slices.Chunk(slots, atOnce) {
		var n int
		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, lockLimit); err != nil {
				return err
			}
			return tx.QueryRow(ctx, "SELECT cell.set_incoming($1, $2)", part, target).Scan(&n)
		})
		if err != nil {
			return changed, pg.Error(err)
		}
		changed += n
	}
	return changed, nil
}

// gateIncoming has the outputs of slots wait for their incoming cell too. What was
// sent before it lies before the place that is told on to that cell at once.
func (s store) gateIncoming(ctx context.Context, slots []int32, target string) (lsn string, err error) {
	gate := 0
	for part := range slices.Chunk(slots, atOnce) {
		var n int
		if err := s.pool.QueryRow(ctx, "SELECT cell.gate_incoming($1, $2)", part, target).Scan(&n); err != nil {
			return "", pg.Error(err)
		}
		gate += n
	}
	if gate != len(slots) {
		return "", errs.ErrUnavailable.Msgf("%s is the incoming cell of %d of %d slots", target, gate, len(slots))
	}
	err = s.pool.QueryRow(ctx, "SELECT pg_logical_emit_message(true, 'cellmart.hold', $1)::text", target).Scan(&lsn)
	return lsn, pg.Error(err)
}

// here is the database's incarnation as its changes name it, its end of WAL (all
// that was committed lies before it), and the version of the table it has.
func (s store) here(ctx context.Context) (out agentapi.Here, err error) {
	err = s.pool.QueryRow(ctx, `SELECT i.incarnation::text || '.' || ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int,
			pg_current_wal_insert_lsn()::text, coalesce((SELECT version FROM cell.route), 0)
		FROM cell.identity i`).Scan(&out.Incarnation, &out.LSN, &out.AppliedRoute)
	return out, pg.Error(err)
}

// slotRows are rows of a table as arrays, for SQL.
type slotRows struct {
	slots            []int32
	owners, standbys []string
	epochs           []int64
}

// differing gives the rows of t that aren't the same in the table before, which
// may be nil.
func differing(before, t *routing.Table) slotRows {
	r := slotRows{slots: []int32{}, owners: []string{}, standbys: []string{}, epochs: []int64{}}
	add := func(n routing.Slot) {
		a, ok := t.Slot(n)
		if !ok {
			return
		}
		if before != nil {
			if was, ok := before.Slot(n); ok && was == a {
				return
			}
		}
		r.slots = append(r.slots, int32(n))
		r.owners, r.standbys = append(r.owners, a.Owner), append(r.standbys, a.Standby)
		r.epochs = append(r.epochs, int64(a.Epoch))
	}
	for n := range routing.Slot(routing.Slots) {
		add(n)
	}
	for _, n := range t.PrivateSlots() {
		add(n)
	}
	return r
}

// counts are what status shows of the slots that the cell owns.
type counts struct {
	LeaseLeftMS  float64 // +Inf = never ends
	Owned        int
	Due, Open    int // relay notes that are due, requests without their final reply
	OldestOpenMS float64
	Parked       int
	Stuck        int // transfers not ended, older than 30 s
}

func (s store) counts(ctx context.Context) (c counts, err error) {
	err = s.pool.QueryRow(ctx, own(`SELECT cell.lease_left_ms(),
		(SELECT count(*) FROM cell.owned),
		(SELECT count(*) FROM {cell.relay} r WHERE due <= now()),
		(SELECT count(*) FROM {cell.relay} r),
		(SELECT coalesce(extract(epoch FROM now() - min(o.created_at)) * 1000, 0)::float8 FROM {cell.relay} r JOIN cell.outbox o USING (slot, id)),
		(SELECT count(*) FROM {cell.parked} p WHERE resolved_at IS NULL),
		(SELECT count(*) FROM {cell.transfers} t WHERE ended_at IS NULL AND created_at < now() - interval '30 s')`)).
		Scan(&c.LeaseLeftMS, &c.Owned, &c.Due, &c.Open, &c.OldestOpenMS, &c.Parked, &c.Stuck)
	return c, pg.Error(err)
}
