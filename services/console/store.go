package console

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/agent/agentapi"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations is the schema console, for the migrate command.
func Migrations() pg.Migrations { return pg.Sub("console", migrations) }

type store struct{ pool *pgxpool.Pool }

func note(ctx context.Context, tx pgx.Tx, operator, what, subject, detail string) error {
	_, err := tx.Exec(ctx, `INSERT INTO console.events (operator, what, subject, detail) VALUES ($1, $2, $3, $4)`, operator, what, subject, detail)
	return err
}

func (s *store) inTx(ctx context.Context, f func(pgx.Tx) error) error {
	return pg.Error(pgx.BeginFunc(ctx, s.pool, f))
}

func (s *store) operators(ctx context.Context) (int, error) {
	var n int
	err := s.pool.QueryRow(ctx, `SELECT count(*) FROM console.operators`).Scan(&n)
	return n, pg.Error(err)
}

// firstOperator makes an operator while there is none. Two consoles that start at
// once make one: the second waits for the first one's row and finds it.
func (s *store) firstOperator(ctx context.Context, name, hash string, tell func() error) (bool, error) {
	made := false
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `INSERT INTO console.operators (name, hash) SELECT $1, $2
			WHERE NOT EXISTS (SELECT FROM console.operators) ON CONFLICT DO NOTHING`, name, hash)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		made = true
		if err := note(ctx, tx, name, eventOperator, name, ""); err != nil {
			return err
		}
		return tell()
	})
	return made && err == nil, err
}

func (s *store) operatorHash(ctx context.Context, name string) (string, error) {
	var hash string
	err := s.pool.QueryRow(ctx, `SELECT hash FROM console.operators WHERE name = $1`, name).Scan(&hash)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return hash, pg.Error(err)
}

func (s *store) setHash(ctx context.Context, name, old, hash string, keep sessionKey) (bool, error) {
	done := false
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE console.operators SET hash = $3 WHERE name = $1 AND hash = $2`, name, old, hash)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE console.sessions SET ended_at = clock_timestamp()
			WHERE operator = $1 AND key <> $2 AND ended_at IS NULL`, name, keep[:]); err != nil {
			return err
		}
		done = true
		return note(ctx, tx, name, eventPassword, name, "")
	})
	return done && err == nil, err
}

func (s *store) addSession(ctx context.Context, key sessionKey, operator string, ends time.Time) error {
	return s.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO console.sessions (key, operator, ends_at) VALUES ($1, $2, $3)`, key[:], operator, ends); err != nil {
			return err
		}
		return note(ctx, tx, operator, eventSignIn, "", "")
	})
}

func (s *store) session(ctx context.Context, key sessionKey) (operator string, ends time.Time, err error) {
	err = s.pool.QueryRow(ctx, `SELECT operator, ends_at FROM console.sessions
		WHERE key = $1 AND ended_at IS NULL AND ends_at > clock_timestamp()`, key[:]).Scan(&operator, &ends)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", time.Time{}, nil
	}
	return operator, ends, pg.Error(err)
}

func (s *store) endSession(ctx context.Context, key sessionKey) error {
	return s.inTx(ctx, func(tx pgx.Tx) error {
		var operator string
		err := tx.QueryRow(ctx, `UPDATE console.sessions SET ended_at = clock_timestamp()
			WHERE key = $1 AND ended_at IS NULL RETURNING operator`, key[:]).Scan(&operator)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // it had ended
		}
		if err != nil {
			return err
		}
		return note(ctx, tx, operator, eventSignOut, "", "")
	})
}

const jobColumns = `id, kind, args, operator, reason, state, detail, created_at, ended_at`

func scanJob(row pgx.CollectableRow) (Job, error) {
	var j Job
	var args []byte
	err := row.Scan(&j.ID, &j.Kind, &args, &j.Operator, &j.Reason, &j.State, &j.Detail, &j.At, &j.Ended)
	if err == nil {
		err = json.Unmarshal(args, &j.Args)
	}
	return j, err
}

func (s *store) addJob(ctx context.Context, j Job) (Job, error) {
	args, err := json.Marshal(j.Args)
	if err != nil {
		return Job{}, err
	}
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `INSERT INTO console.jobs (id, kind, args, operator, reason) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING`,
			j.ID, j.Kind, args, j.Operator, j.Reason)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		return note(ctx, tx, j.Operator, eventJob, j.Subject(), j.Kind+" "+j.ID+": "+j.Reason)
	})
	if err != nil {
		return Job{}, err
	}
	return s.job(ctx, j.ID)
}

func (s *store) job(ctx context.Context, id string) (Job, error) {
	rows, err := s.pool.Query(ctx, `SELECT `+jobColumns+` FROM console.jobs WHERE id = $1`, id)
	if err != nil {
		return Job{}, pg.Error(err)
	}
	j, err := pgx.CollectExactlyOneRow(rows, scanJob)
	if errors.Is(err, pgx.ErrNoRows) {
		return Job{}, errs.ErrNotFound
	}
	return j, pg.Error(err)
}

func (s *store) openJobs(ctx context.Context) ([]Job, error) {
	rows, err := s.pool.Query(ctx, `SELECT `+jobColumns+` FROM console.jobs WHERE state = 'OPEN' ORDER BY created_at, id LIMIT 100`)
	if err != nil {
		return nil, pg.Error(err)
	}
	all, err := pgx.CollectRows(rows, scanJob)
	return all, pg.Error(err)
}

func (s *store) endJob(ctx context.Context, j Job) error {
	return s.inTx(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE console.jobs SET state = $2, detail = $3, ended_at = clock_timestamp() WHERE id = $1 AND state = 'OPEN'`,
			j.ID, j.State, j.Detail)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		what := eventDone
		if j.State == agentapi.JobFailed {
			what = eventFailed
		}
		return note(ctx, tx, j.Operator, what, j.Subject(), j.Kind+" "+j.ID+": "+j.Detail)
	})
}

func (s *store) events(ctx context.Context, f Filter, limit int) ([]Event, error) {
	if f.Before <= 0 {
		f.Before = math.MaxInt64
	}
	rows, err := s.pool.Query(ctx, `SELECT seq, at, operator, what, subject, detail FROM console.events
		WHERE seq < $1 AND ($2 = '' OR operator = $2) AND ($3 = '' OR what = $3) AND ($4 = '' OR subject = $4)
		ORDER BY seq DESC LIMIT $5`, f.Before, f.Operator, f.What, f.Subject, limit)
	if err != nil {
		return nil, pg.Error(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Event])
	return all, pg.Error(err)
}
