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
	// databaseClock is what is taken for the database's clock, given what it shows;
	// tests move it with the own one.
	databaseClock func(shows time.Time) time.Time
}

// decision decides for a batch over the row; a zero database time is not known yet.
type decision func(r row, incarnation string, database time.Time) (row, []answer)

// memo is a kind's row as this process left it, for the next transaction to try
// without asking; found false = not known.
type memo = row

// lease is one transaction for a batch of requests of one kind: lock the kind's
// row, decide, store the row and a journal row for each lease, commit. It counts
// only when the server said COMMIT; after anything else the ranges are nobody's. A
// refusal by decide still stores the row, if that changed.
//
// Usually nobody else has written since the last one: then the decision is made
// beforehand and the whole is one trip that changes nothing when it was wrong.
func (s *store) lease(ctx context.Context, kind string, asks []idgenapi.LeaseRequest, known *memo, decide decision, clock func() time.Time) ([]answer, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, pg.Error(err)
	}
	defer release(ctx, conn)
	was := *known
	*known = memo{} // until this one has gone well
	if was.found {
		next, answers := decide(was, was.incarnation, clock())
		done, err := s.quick(ctx, conn, kind, asks, was, next, answers, clock())
		if err != nil {
			return nil, fmt.Errorf("store leases of %s: %w", kind, err)
		}
		if done {
			*known = next
			return answers, nil
		}
	}
	was, incarnation, database, err := lockRow(ctx, conn, kind)
	if err != nil {
		return nil, fmt.Errorf("lock the row of %s: %w", kind, pg.Error(err))
	}
	if err := s.step("locked"); err != nil {
		return nil, err
	}
	next, answers := decide(was, incarnation, s.databaseClock(database))
	if next == was {
		*known = next
		return answers, nil
	}
	if err := s.step("decided"); err != nil {
		return nil, err
	}
	if err := save(ctx, conn, kind, asks, was, next, answers); err != nil {
		return nil, fmt.Errorf("store leases of %s: %w", kind, err)
	}
	if err := s.step("committed"); err != nil {
		return nil, err
	}
	if was.found { // a row that was just made may be another's
		*known = next
	}
	return answers, nil
}

// inStep is how far the database's clock may be from the own one for a decision
// that was made without asking it. The pause has 5 s for what that is worth.
const inStep = time.Second

// quick stores what was decided over the row as it was last known, if it is still
// so, the database still the same life of itself, and its clock in step; false =
// not so, nothing was changed.
func (s *store) quick(ctx context.Context, conn *pgxpool.Conn, kind string, asks []idgenapi.LeaseRequest, was, next row, answers []answer, own time.Time) (bool, error) {
	if next.hi == was.hi || next != (row{found: true, hi: next.hi, incarnation: was.incarnation, pausedUntil: was.pausedUntil}) {
		return false, nil // no lease, or something begins: not without a look
	}
	if err := s.step("decided"); err != nil {
		return false, err
	}
	lo, hi, holder := granted(asks, answers)
	var b pgx.Batch
	var stored int64
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	b.Queue(`
		WITH hit AS (
			UPDATE idgen.kinds SET hi = $2
			WHERE kind = $1 AND hi = $3 AND incarnation = $4 AND paused_until = $5
				AND idgen.incarnation() = $4 AND clock_timestamp() BETWEEN $6 AND $7
			RETURNING number)
		INSERT INTO idgen.journal (number, lo, hi, holder)
		SELECT hit.number, u.lo, u.hi, u.holder FROM hit, unnest($8::bigint[], $9::bigint[], $10::text[]) u(lo, hi, holder)`,
		kind, next.hi, was.hi, was.incarnation, was.pausedUntil, own.Add(-inStep), own.Add(inStep), lo, hi, holder,
	).Exec(func(t pgconn.CommandTag) error {
		stored = t.RowsAffected()
		return nil
	})
	if err := commit(ctx, conn, &b); err != nil || stored == 0 {
		return false, err
	}
	return true, s.step("committed")
}

// granted are the leases among the answers, as columns.
func granted(asks []idgenapi.LeaseRequest, answers []answer) (lo, hi []int64, holder []string) {
	for i, a := range answers {
		if a.err == nil {
			lo, hi, holder = append(lo, a.lease.Lo), append(hi, a.lease.Hi), append(holder, asks[i].Holder)
		}
	}
	return lo, hi, holder
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

// save stores and commits.
func save(ctx context.Context, conn *pgxpool.Conn, kind string, asks []idgenapi.LeaseRequest, was, next row, answers []answer) error {
	var b pgx.Batch
	if was.found {
		b.Queue("UPDATE idgen.kinds SET hi = $2, incarnation = $3, paused_until = $4 WHERE kind = $1",
			kind, next.hi, next.incarnation, next.pausedUntil)
	} else {
		// Nobody could lock a missing row: of two that insert it, the first one's
		// pause stands. It begins above all that the journal knows.
		b.Queue(`INSERT INTO idgen.kinds (kind, number, hi, incarnation, paused_until)
			VALUES ($1, $2, (SELECT coalesce(max(hi), 0) FROM idgen.journal WHERE number = $2), $3, $4)
			ON CONFLICT DO NOTHING`, kind, number(kind), next.incarnation, next.pausedUntil)
	}
	if lo, hi, holder := granted(asks, answers); lo != nil {
		b.Queue(`INSERT INTO idgen.journal (number, lo, hi, holder)
			SELECT $1, u.lo, u.hi, u.holder FROM unnest($2::bigint[], $3::bigint[], $4::text[]) u(lo, hi, holder)`, number(kind), lo, hi, holder)
	}
	return commit(ctx, conn, &b)
}

// commit sends a batch with a COMMIT, which must be a clean one: Postgres answers
// ROLLBACK to the COMMIT of a transaction that had failed.
func commit(ctx context.Context, conn *pgxpool.Conn, b *pgx.Batch) error {
	var tag pgconn.CommandTag
	b.Queue("COMMIT").Exec(func(t pgconn.CommandTag) error {
		tag = t
		return nil
	})
	err := conn.SendBatch(ctx, b).Close()
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

// holders gives who leased of a kind above a sequence, each with the beginning of
// its last lease. Leases begin at their time or above, so the key finds the latest.
func (s *store) holders(ctx context.Context, kind string, above int64) (map[string]int64, error) {
	rows, err := s.pool.Query(ctx, "SELECT holder, max(lo) FROM idgen.journal WHERE number = $1 AND lo > $2 GROUP BY holder", number(kind), above)
	if err != nil {
		return nil, pg.Error(err)
	}
	out := map[string]int64{}
	var holder string
	var lo int64
	_, err = pgx.ForEachRow(rows, []any{&holder, &lo}, func() error {
		out[holder] = lo
		return nil
	})
	return out, pg.Error(err)
}

// status gives the rows; PausedForMS holds the end of the pause, for the service
// to turn into a length on its clock.
func (s *store) status(ctx context.Context) (idgenapi.Status, error) {
	var out idgenapi.Status
	if err := s.pool.QueryRow(ctx, "SELECT idgen.incarnation()").Scan(&out.Incarnation); err != nil {
		return out, pg.Error(err)
	}
	rows, err := s.pool.Query(ctx, `
		SELECT u.k, coalesce(r.hi, 0), coalesce(r.paused_until, 0), r.incarnation IS DISTINCT FROM $2
		FROM unnest($1::text[]) WITH ORDINALITY u(k, n) LEFT JOIN idgen.kinds r ON r.kind = u.k ORDER BY u.n`,
		idgenapi.Kinds(), out.Incarnation)
	if err != nil {
		return out, pg.Error(err)
	}
	out.Kinds, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (idgenapi.KindStatus, error) {
		var k idgenapi.KindStatus
		err := r.Scan(&k.Kind, &k.Hi, &k.PausedForMS, &k.Changed)
		return k, err
	})
	return out, pg.Error(err)
}
