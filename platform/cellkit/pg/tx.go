package pg

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// Entry is what a write transaction enters: a slot, at the epoch its router
// knew, for a user (0 = nobody in particular).
type Entry struct {
	Slot  routing.Slot
	Epoch routing.Epoch
	User  id.ID
}

// Tx is a transaction that has entered a slot.
type Tx struct {
	pgx.Tx
	Entry
	after []func()
}

// AfterCommit runs f once the transaction is known to be committed.
func (t *Tx) AfterCommit(f func()) { t.after = append(t.after, f) }

const (
	begin  = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
	commit = "SELECT cell.leave(); COMMIT; SELECT cell.committed()"
	tries  = 3
)

// InSlot runs fn in a write transaction that entered e (P1). fn may run again
// after a deadlock, so it must have no effect outside the transaction other than
// through AfterCommit. Errors come as *errs.Error where the database's answer
// has one (Misrouted, Unavailable, OUTCOME_UNKNOWN); fn's own errors come as
// they are.
func InSlot(ctx context.Context, pool *pgxpool.Pool, e Entry, fn func(*Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, TxTimeout)
	defer cancel()
	for try := 1; ; try++ {
		err := once(ctx, pool, e, fn)
		if err == nil || !again(err) {
			return err
		}
		if try == tries || !letPass(ctx, try) {
			return errs.ErrUnavailable.Because(err)
		}
	}
}

// letPass waits for who was in the way: an aborted writer that comes back at once
// takes its row before the one that waits for it has woken up, and they meet again.
func letPass(ctx context.Context, try int) bool {
	t := time.NewTimer(time.Duration(try) * (50*time.Millisecond + rand.N(50*time.Millisecond)))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func once(ctx context.Context, pool *pgxpool.Pool, e Entry, fn func(*Tx) error) error {
	// The simple protocol takes both statements in one trip; the values are integers.
	begin := begin + "; SELECT cell.enter(" + strconv.Itoa(int(e.Slot)) + "," +
		strconv.FormatInt(int64(e.Epoch), 10) + "," + strconv.FormatInt(int64(e.User), 10) + ")"
	ptx, err := pool.BeginTx(ctx, pgx.TxOptions{BeginQuery: begin, CommitQuery: commit})
	if err != nil {
		return Error(err)
	}
	tx := &Tx{Tx: ptx, Entry: e}
	if err := fn(tx); err != nil {
		rollback(ctx, ptx)
		return Error(err)
	}
	if err := ptx.Commit(ctx); err != nil {
		rollback(ctx, ptx)
		return commitError(err)
	}
	for _, f := range tx.after {
		f()
	}
	return nil
}

// commitError keeps apart the commits that were refused from those nobody
// knows of. The server names no statement, and what ends a session, a statement
// or the server's own strength (classes 53, 57, 58, XX) may have come after COMMIT.
func commitError(err error) error {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) || pe.Code == "SL009" || slices.Contains([]string{"08", "53", "57", "58", "XX"}, pe.Code[:2]) {
		return errs.ErrUnknown.Because(err)
	}
	return Error(err) // leave's refusal, a deferred check, a transaction that had failed: nothing is left of it
}

// rollback gives the connection back even when ctx is over.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = tx.Rollback(ctx) // a failure closes the connection, which rolls back too
}

// See reads a slot (P1.4): fn runs in a read-only transaction; stale says that
// this cell is a standby of the slot or that its lease is over. A slot that is
// neither owned nor stood by for is Misrouted.
func See(ctx context.Context, pool *pgxpool.Pool, slot routing.Slot, fn func(tx pgx.Tx, stale bool) error) error {
	ctx, cancel := context.WithTimeout(ctx, TxTimeout)
	defer cancel()
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return Error(err)
	}
	defer rollback(ctx, tx)
	var stale bool
	if err := tx.QueryRow(ctx, "SELECT cell.see($1)", slot).Scan(&stale); err != nil {
		return Error(err)
	}
	return Error(fn(tx, stale))
}

// RetryDeadline is a small helper for parts that wait for the database: it runs
// f until it succeeds or ctx ends, with growing pauses up to 2 s.
func RetryDeadline(ctx context.Context, f func(context.Context) error) error {
	pause := 50 * time.Millisecond
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (last: %w)", ctx.Err(), err)
		case <-time.After(pause):
		}
		pause = min(2*pause, 2*time.Second)
	}
}
