package idgen

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/idgen/idgenapi"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations is the schema idgen, for the migrate command.
func Migrations() pg.Migrations { return pg.Sub("idgen", migrations) }

// errOverlap: the exclusion constraint refused a range. Only a bug, or a hand in
// the tables, gets here.
var errOverlap = errs.New(errs.Internal, "IDGEN_OVERLAP", "the range was leased before")

// Setup writes the first rows of a database that never leased, with its present
// incarnation, so that a fresh system doesn't begin with a pause. It runs after
// the migrations, as the role that owns the schema. Any trace of use, and it
// leaves the rows alone: a missing one then counts as changed.
func Setup(ctx context.Context, dsn string) error {
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return pg.Error(err)
	}
	defer c.Close(context.WithoutCancel(ctx))
	return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "LOCK TABLE idgen.kinds, idgen.journal IN EXCLUSIVE MODE"); err != nil { // against a lease or another set-up meanwhile
			return err
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO idgen.kinds (kind, number, hi, incarnation)
			SELECT k, n, 0, idgen.incarnation() FROM unnest($1::text[]) WITH ORDINALITY u(k, n)
			WHERE NOT EXISTS (SELECT FROM idgen.kinds) AND NOT EXISTS (SELECT FROM idgen.journal)`, idgenapi.Kinds())
		return err
	})
}

type store struct {
	pool *pgxpool.Pool

	// step is called between the steps of a lease; tests die there.
	step func(name string) error
}

// lease is one transaction: lock the kind's row, decide, store the row and a
// journal row, commit. Two trips, since every lease of the kind waits for the
// lock. It counts only when the server said COMMIT; after anything else the range
// is nobody's. A refusal by decide still stores the row, if that changed.
func (s *store) lease(ctx context.Context, ask idgenapi.LeaseRequest, decide func(r row, incarnation string, database time.Time) (row, idgenapi.Lease, error)) (idgenapi.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, pg.TxTimeout)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return idgenapi.Lease{}, pg.Error(err)
	}
	defer release(ctx, conn)

	was, incarnation, database, err := lockRow(ctx, conn, ask.Kind)
	if err != nil {
		return idgenapi.Lease{}, fmt.Errorf("lock the row of %s: %w", ask.Kind, pg.Error(err))
	}
	if err := s.step("locked"); err != nil {
		return idgenapi.Lease{}, err
	}
	next, lease, refusal := decide(was, incarnation, database)
	if next == was {
		return idgenapi.Lease{}, refusal
	}
	if err := s.step("decided"); err != nil {
		return idgenapi.Lease{}, err
	}
	if err := save(ctx, conn, ask, was, next, lease); err != nil {
		return idgenapi.Lease{}, fmt.Errorf("store a lease of %s: %w", ask.Kind, err)
	}
	if err := s.step("committed"); err != nil {
		return idgenapi.Lease{}, err
	}
	return lease, refusal
}

// release rolls back what is still open. If even that fails the pool closes the
// connection, which does the same.
func release(ctx context.Context, conn *pgxpool.Conn) {
	if pc := conn.Conn().PgConn(); !pc.IsClosed() && pc.TxStatus() != 'I' {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = conn.Exec(ctx, "ROLLBACK")
	}
	conn.Release()
}

func lockRow(ctx context.Context, conn *pgxpool.Conn, kind string) (r row, incarnation string, database time.Time, err error) {
	var b pgx.Batch
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	b.Queue("SELECT hi, incarnation, paused_until FROM idgen.kinds WHERE kind = $1 FOR UPDATE", kind).QueryRow(func(q pgx.Row) error {
		r.found = true
		err := q.Scan(&r.hi, &r.incarnation, &r.pausedUntil)
		if errors.Is(err, pgx.ErrNoRows) {
			r = row{}
			return nil
		}
		return err
	})
	// After the lock: what it waited for may have changed.
	b.Queue("SELECT idgen.incarnation(), clock_timestamp()").QueryRow(func(q pgx.Row) error { return q.Scan(&incarnation, &database) })
	err = conn.SendBatch(ctx, &b).Close()
	return r, incarnation, database, err
}

// save stores and commits. The commit must be a clean one: Postgres answers
// ROLLBACK to the COMMIT of a transaction that had failed.
func save(ctx context.Context, conn *pgxpool.Conn, ask idgenapi.LeaseRequest, was, next row, lease idgenapi.Lease) error {
	n := number(ask.Kind)
	var b pgx.Batch
	if was.found {
		b.Queue("UPDATE idgen.kinds SET hi = $2, incarnation = $3, paused_until = $4 WHERE kind = $1",
			ask.Kind, next.hi, next.incarnation, next.pausedUntil)
	} else {
		// Nobody could lock a missing row: of two that insert it, the first one's
		// pause stands. It begins above all that the journal knows.
		b.Queue(`INSERT INTO idgen.kinds (kind, number, hi, incarnation, paused_until)
			VALUES ($1, $2, (SELECT coalesce(max(hi), 0) FROM idgen.journal WHERE number = $2), $3, $4)
			ON CONFLICT DO NOTHING`, ask.Kind, n, next.incarnation, next.pausedUntil)
	}
	if lease.Hi > 0 {
		b.Queue("INSERT INTO idgen.journal (number, lo, hi, holder) VALUES ($1, $2, $3, $4)", n, lease.Lo, lease.Hi, ask.Holder)
	}
	var tag pgconn.CommandTag
	b.Queue("COMMIT").Exec(func(t pgconn.CommandTag) error {
		tag = t
		return nil
	})
	err := conn.SendBatch(ctx, &b).Close()
	var pe *pgconn.PgError
	switch {
	case errors.As(err, &pe) && (pe.Code == "23P01" || pe.Code == "23505" || pe.Code == "IG001"): // exclusion, key, trigger
		return errOverlap.Because(err)
	case err != nil:
		return pg.Error(err)
	case tag.String() != "COMMIT":
		return errs.ErrUnavailable.Because(fmt.Errorf("the commit answered %q", tag))
	}
	return nil
}

// status gives the rows; PausedForMS holds the end of the pause, for the service
// to turn into a length on its clock.
func (s *store) status(ctx context.Context) (idgenapi.Status, error) {
	var out idgenapi.Status
	if err := s.pool.QueryRow(ctx, "SELECT idgen.incarnation()").Scan(&out.Incarnation); err != nil {
		return out, pg.Error(err)
	}
	rows, err := s.pool.Query(ctx, `
		SELECT u.k, coalesce(r.hi, 0), coalesce(r.paused_until, 0), r.incarnation IS DISTINCT FROM $2,
			(SELECT count(*) FROM idgen.journal j WHERE j.number = u.n)
		FROM unnest($1::text[]) WITH ORDINALITY u(k, n) LEFT JOIN idgen.kinds r ON r.kind = u.k ORDER BY u.n`,
		idgenapi.Kinds(), out.Incarnation)
	if err != nil {
		return out, pg.Error(err)
	}
	out.Kinds, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (idgenapi.KindStatus, error) {
		var k idgenapi.KindStatus
		err := r.Scan(&k.Kind, &k.Hi, &k.PausedForMS, &k.Changed, &k.Leases)
		return k, err
	})
	return out, pg.Error(err)
}
