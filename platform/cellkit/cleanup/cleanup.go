package cleanup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/standby"
)

// Options of one cell's clean-up.
type Options struct {
	Cell  string
	Pool  *pgxpool.Pool // of any role that reads cell.cleanup
	DSN   string        // as the applier's role
	Log   *slog.Logger
	Batch int           // rows at most in one transaction, 0 = 1000, which is the limit
	Pause time.Duration // at least, between batches, 0 = 100 ms
	Look  time.Duration // between looks when there is nothing to do, 0 = 5 s
}

// patience is how many times as long as a batch took the pause after it is: the
// clean-up has at most a fifth of one connection's time.
const patience = 4

// Run cleans up what is on the list, until ctx ends.
func Run(ctx context.Context, o Options) error {
	if o.Batch == 0 {
		o.Batch = 1000
	}
	if o.Pause == 0 {
		o.Pause = 100 * time.Millisecond
	}
	if o.Look == 0 {
		o.Look = 5 * time.Second
	}
	var said string
	for ctx.Err() == nil {
		err := o.round(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			o.Log.Warn("cleaning up", "error", err)
		}
		wait(ctx, o.Look)
	}
	return nil
}

// round works until the list has nothing more to do. It connects only when there
// is something.
func (o Options) round(ctx context.Context) error {
	var open bool
	look, cancel := context.WithTimeout(ctx, pg.TxTimeout)
	defer cancel()
	if err := o.Pool.QueryRow(look, "SELECT EXISTS (SELECT FROM cell.cleanup WHERE state = 'open')").Scan(&open); err != nil || !open {
		return pg.Error(err)
	}
	// The origin is named for this cell, which is no source of its own.
	c, err := standby.Connect(ctx, o.DSN, o.Cell, o.Cell)
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the server notices either way
	// Who changes a role waits for the batch.
	if _, err := c.Exec(ctx, fmt.Sprintf("SET statement_timeout = %d", pg.TxTimeout.Milliseconds())); err != nil {
		return err
	}
	start, slots, rows := time.Now(), 0, 0
	for ctx.Err() == nil {
		before := time.Now()
		s, r, err := batch(ctx, c, o.Batch)
		if err != nil {
			return errors.Join(err, ctx.Err())
		}
		slots, rows = slots+s, rows+r
		if s+r == 0 {
			break
		}
		wait(ctx, max(o.Pause, patience*time.Since(before)))
	}
	o.Log.Info("cleaned up what the cell let go of", "slots", slots, "rows", rows, "took", time.Since(start).Round(time.Millisecond))
	return ctx.Err()
}

func batch(ctx context.Context, c *pgx.Conn, limit int) (slots, rows int, err error) {
	err = c.QueryRow(ctx, "SELECT slots, rows FROM cell.clean_up($1)", limit).Scan(&slots, &rows)
	return slots, rows, err
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
