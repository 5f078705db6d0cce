package idbank

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
)

// Postgres is the cell's database, schema cell, as cellmart_agent.
type Postgres struct{ Pool *pgxpool.Pool }

// few is how many of a kind's ranges one transaction looks at: it takes from the
// first only.
const few = 4

// Update is one transaction under the lock of the life row, so books are kept one
// at a time. The lock comes first and the rest is read in statements of their own:
// what the lock waited for may have changed it.
func (p Postgres) Update(ctx context.Context, kind string, fn func(*Book) error) error {
	ctx, cancel := context.WithTimeout(ctx, pg.TxTimeout)
	defer cancel()
	err := pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error {
		// An answer follows this commit: it must be on disk, whatever the server's setting.
		if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit = on"); err != nil {
			return err
		}
		k, err := read(ctx, tx, kind)
		if err != nil {
			return err
		}
		was := *k
		was.Ranges = slices.Clone(k.Ranges)
		if err := fn(k); err != nil {
			return err
		}
		return save(ctx, tx, kind, &was, k)
	})
	return pg.Error(err)
}

func read(ctx context.Context, tx pgx.Tx, kind string) (*Book, error) {
	var k Book
	var b pgx.Batch
	b.Queue("SELECT counter FROM cell.id_life FOR UPDATE").QueryRow(func(r pgx.Row) error { return r.Scan(&k.Counter) })
	b.Queue("SELECT d.system, d.timeline, i.ordinal, clock_timestamp() FROM cell.id_database() d, cell.identity i").QueryRow(func(r pgx.Row) error {
		return r.Scan(&k.System, &k.Timeline, &k.Ordinal, &k.Clock)
	})
	b.Queue("SELECT lo, hi FROM cell.id_bank WHERE kind = $1 ORDER BY hi LIMIT $2", kind, few).Query(func(rows pgx.Rows) (err error) {
		k.Ranges, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Range])
		return err
	})
	b.Queue("SELECT number, first, ceiling, holder, granted FROM cell.id_machines").Query(func(rows pgx.Rows) error {
		var n int
		var m Machine
		_, err := pgx.ForEachRow(rows, []any{&n, &m.First, &m.Ceiling, &m.Holder, &m.Granted}, func() error {
			k.Machines[n] = m
			return nil
		})
		return err
	})
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("read the book of IDs: %w", err)
	}
	return &k, nil
}

func save(ctx context.Context, tx pgx.Tx, kind string, was, is *Book) error {
	var b pgx.Batch
	if is.Lost != "" {
		b.Queue("DELETE FROM cell.id_bank")
		b.Queue("UPDATE cell.id_life SET counter = $1, losses = losses + 1, why = $2, lost_at = clock_timestamp()", is.Counter, is.Lost)
	} else {
		b.Queue("UPDATE cell.id_life SET counter = $1", is.Counter)
		for _, r := range was.Ranges {
			i := slices.IndexFunc(is.Ranges, func(n Range) bool { return n.Hi == r.Hi })
			switch {
			case i < 0:
				b.Queue("DELETE FROM cell.id_bank WHERE kind = $1 AND hi = $2", kind, r.Hi)
			case is.Ranges[i].Lo != r.Lo:
				b.Queue("UPDATE cell.id_bank SET lo = $3 WHERE kind = $1 AND hi = $2", kind, r.Hi, is.Ranges[i].Lo)
			}
		}
	}
	for n, m := range is.Machines {
		if m != was.Machines[n] {
			b.Queue(`INSERT INTO cell.id_machines (number, first, ceiling, holder, granted) VALUES ($1, $2, $3, $4, $5)
				ON CONFLICT (number) DO UPDATE SET first = excluded.first, ceiling = excluded.ceiling, holder = excluded.holder, granted = excluded.granted`,
				n, m.First, m.Ceiling, m.Holder, m.Granted)
		}
	}
	return tx.SendBatch(ctx, &b).Close()
}

// Deposit adds a range. If nobody knows whether it was committed, it is in the
// bank or lost: either will do.
func (p Postgres) Deposit(ctx context.Context, kind string, r Range) error {
	_, err := p.Pool.Exec(ctx, "INSERT INTO cell.id_bank (kind, lo, hi) VALUES ($1, $2, $3)", kind, r.Lo, r.Hi)
	return pg.Error(err)
}

// Look reads all there is to show.
func (p Postgres) Look(ctx context.Context) (Look, error) {
	out := Look{Stock: map[string]int64{}}
	if _, err := p.Pool.Exec(ctx, "DELETE FROM cell.id_bank WHERE at < now() - make_interval(secs => $1)", id.BankAge.Seconds()); err != nil {
		return out, pg.Error(err)
	}
	var lostAt *time.Time
	err := p.Pool.QueryRow(ctx, "SELECT l.counter, l.losses, l.why, l.lost_at, i.ordinal FROM cell.id_life l, cell.identity i").
		Scan(&out.Counter, &out.Losses, &out.Why, &lostAt, &out.Ordinal)
	if err != nil {
		return out, pg.Error(err)
	}
	out.LostAt = lostAt
	rows, qerr := p.Pool.Query(ctx, "SELECT kind, sum(hi - lo)::bigint FROM cell.id_bank GROUP BY kind")
	var kind string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&kind, &n}, func() error {
		out.Stock[kind] = n
		return nil
	})
	if err = errors.Join(qerr, err); err != nil {
		return out, pg.Error(err)
	}
	rows, qerr = p.Pool.Query(ctx, "SELECT number, ceiling, holder FROM cell.id_machines ORDER BY number")
	var m id.MachineFigures
	_, err = pgx.ForEachRow(rows, []any{&m.Number, &m.Ceiling, &m.Holder}, func() error {
		out.Machines = append(out.Machines, m)
		return nil
	})
	return out, pg.Error(errors.Join(qerr, err))
}
