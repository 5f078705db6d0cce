package control

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/control/controlapi"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations is the schema control, for the migrate command.
func Migrations() pg.Migrations { return pg.Sub("control", migrations) }

// publishLock is held by who publishes. The primary key alone would keep two from
// storing the same version; the lock makes the second wait and then see it.
const publishLock = 4405

type store struct {
	pool *pgxpool.Pool

	// step is called at each step of publish; tests die there.
	step func(name string) error
}

// newest gives the signed bytes of the newest table if its version is above
// after, else nil.
func (s *store) newest(ctx context.Context, after int64) ([]byte, error) {
	return newest(ctx, s.pool, after)
}

func newest(ctx context.Context, q interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, after int64,
) ([]byte, error) {
	var b []byte
	err := q.QueryRow(ctx, `SELECT signed FROM control.route_versions WHERE version > $1 ORDER BY version DESC LIMIT 1`, after).Scan(&b)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return b, pg.Error(err)
}

// publish stores what next makes of the newest table (nil when there is none).
// An error of next changes nothing and comes back as it is.
func (s *store) publish(ctx context.Context, reason string, next nextFunc) error {
	return s.publishParts(ctx, reason, next, nil)
}

type nextFunc func(newest []byte) (version int64, signed []byte, err error)

// publishParts is publish, and in the same transaction it notes that the table
// switches these parts of exchanges: all, or none and errAgain.
func (s *store) publishParts(ctx context.Context, reason string, next nextFunc, parts []part) error {
	committing := false
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, publishLock); err != nil {
			return err
		}
		if err := s.step("locked"); err != nil {
			return err
		}
		// A statement of its own: it sees what was committed before the lock came.
		cur, err := newest(ctx, tx, 0)
		if err != nil {
			return err
		}
		version, signed, err := next(cur)
		if err != nil {
			return err
		}
		if err := s.step("signed"); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `INSERT INTO control.route_versions (version, signed, reason)
			SELECT $1, $2, $3 WHERE $1 = (SELECT coalesce(max(version), 0) + 1 FROM control.route_versions)`, version, signed, reason)
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return controlapi.ErrVersion.Msgf("version %d does not follow the newest", version)
		}
		if err := switched(ctx, tx, parts, version); err != nil {
			return err
		}
		if err := s.step("inserted"); err != nil {
			return err
		}
		committing = true
		return nil
	})
	var known *errs.Error
	if err != nil && committing && !errors.As(err, &known) {
		return errs.ErrUnknown.Because(err) // the COMMIT may have come through
	}
	if err != nil {
		return pg.Error(err)
	}
	return s.step("committed")
}

// versions lists the newest stored versions.
func (s *store) versions(ctx context.Context, limit int) ([]controlapi.Version, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT version, reason, created_at, floor(extract(epoch FROM clock_timestamp() - created_at) * 1000)::bigint, octet_length(signed)
		FROM control.route_versions ORDER BY version DESC LIMIT $1`, limit)
	if err != nil {
		return nil, pg.Error(err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (controlapi.Version, error) {
		var v controlapi.Version
		err := r.Scan(&v.Version, &v.Reason, &v.CreatedAt, &v.AgeMS, &v.Bytes)
		return v, err
	})
	if err != nil {
		return nil, fmt.Errorf("list versions: %w", pg.Error(err))
	}
	return out, nil
}
