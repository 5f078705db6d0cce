package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// Task is what an operator can have done. None of them moves money by itself: two
// ask, and the third begins a transfer.
type Task string

// The tasks.
const (
	TaskRetry   Task = "retry"   // ask again now, handle again what was parked
	TaskCancel  Task = "cancel"  // ask for it back
	TaskReverse Task = "reverse" // give all of the rest back, from what the payee has, else owes
)

// The states of a job.
const (
	JobOpen   = "OPEN"
	JobDone   = "DONE"
	JobFailed = "FAILED"
)

// RouteReverse is what the record of a reversal is kept under, beside those of
// people's refunds.
const RouteReverse = "operator: reverse"

// memoReverse is what the parties read; the operator's reason isn't for them.
const memoReverse = "reversed by the operator"

// Job is a task for one transfer, in one slot: the payer's, or for what is parked
// there and for reversing, the payee's.
type Job struct {
	ID        string
	Transfer  id.ID
	Slot      routing.Slot
	What      Task
	Reason    string
	State     string
	Detail    string // what came of it
	CreatedAt time.Time
	EndedAt   *time.Time
}

const jobColumns = `j.id, j.transfer, j.slot, j.what, j.reason, j.state, j.detail, j.created_at, j.ended_at`

// ErrOtherJob is given when an ID is used for two different jobs.
var ErrOtherJob = errs.New(errs.Conflict, "JOB_CONFLICT", "this job ID belongs to another job")

// AskJob keeps a job to be done, once for each ID, as the agent's role.
func AskJob(ctx context.Context, pool *pgxpool.Pool, j Job) (Job, error) {
	_, err := pool.Exec(ctx, `INSERT INTO cell.transfer_jobs (id, transfer, slot, what, reason) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (id) DO NOTHING`,
		j.ID, j.Transfer, j.Slot, string(j.What), j.Reason)
	if err != nil {
		return j, pg.Error(err)
	}
	kept, err := GetJob(ctx, pool, j.ID)
	if err == nil && (kept.Transfer != j.Transfer || kept.Slot != j.Slot || kept.What != j.What) {
		err = ErrOtherJob
	}
	return kept, err
}

// GetJob reads a job; errs.ErrNotFound.
func GetJob(ctx context.Context, pool *pgxpool.Pool, job string) (Job, error) {
	rows, err := pool.Query(ctx, `SELECT `+jobColumns+` FROM cell.transfer_jobs j WHERE id = $1`, job)
	if err != nil {
		return Job{}, pg.Error(err)
	}
	j, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Job])
	if errors.Is(err, pgx.ErrNoRows) {
		err = errs.ErrNotFound
	}
	return j, pg.Error(err)
}

// Parked is a message about a transfer that nobody could handle.
type Parked struct {
	bus.ParkedKey
	Kind     string
	Transfer string
	Reason   string
	AgeMS    int64
	Message  json.RawMessage
}

// ListParked lists what is parked in this cell's slots, oldest first: of one
// transfer, or of all ("").
func ListParked(ctx context.Context, pool *pgxpool.Pool, transfer string, limit int) ([]Parked, error) {
	rows, err := pool.Query(ctx, `SELECT p.slot, p.from_slot, p.id, p.digest, p.message->>'kind', p.message->>'key', p.reason,
			(extract(epoch FROM clock_timestamp() - p.parked_at) * 1000)::bigint, p.message
		FROM cell.parked p WHERE p.resolved_at IS NULL AND EXISTS (SELECT FROM cell.owned s WHERE s.slot = p.slot)
			AND p.message->>'kind' LIKE 'transfer.%' AND ($1 = '' OR p.message->>'key' = $1)
		ORDER BY p.parked_at LIMIT $2`, transfer, limit)
	if err != nil {
		return nil, pg.Error(err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Parked, err error) {
		err = row.Scan(&p.Slot, &p.From, &p.ID, &p.Digest, &p.Kind, &p.Transfer, &p.Reason, &p.AgeMS, &p.Message)
		return p, err
	})
}

// Worker does the jobs that operators ask for, in the service that handles
// transfers.
type Worker struct {
	Pool   *pgxpool.Pool // as the application's role
	Next   func(kind string, slot routing.Slot) (id.ID, error)
	Unpark func(context.Context, bus.ParkedKey) bus.Result
	Log    *slog.Logger
}

// Run does what there is every interval until ctx ends.
func (w Worker) Run(ctx context.Context, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := w.Do(ctx); err != nil && ctx.Err() == nil {
			w.Log.Warn("operators' jobs on transfers", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Do does every open job once. One that fails for a passing reason stays open and
// holds up no other.
func (w Worker) Do(ctx context.Context) error {
	type due struct {
		Job
		Epoch  routing.Epoch // 0: the slot isn't this cell's
		Active bool
	}
	rows, err := w.Pool.Query(ctx, `SELECT `+jobColumns+`, coalesce(s.epoch, 0), coalesce(s.active, false)
		FROM cell.transfer_jobs j LEFT JOIN cell.owned s ON s.slot = j.slot WHERE j.state = 'OPEN' ORDER BY j.created_at LIMIT 100`)
	if err != nil {
		return pg.Error(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[due])
	if err != nil {
		return pg.Error(err)
	}
	var failed error
	for _, d := range list {
		switch {
		case d.Epoch == 0:
			_, err = w.Pool.Exec(ctx, endJob, d.ID, JobFailed, fmt.Sprintf("slot %d isn't this cell's any more", d.Slot))
		case d.Active:
			err = w.do(ctx, pg.Entry{Slot: d.Slot, Epoch: d.Epoch}, d.Job)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

const endJob = `UPDATE cell.transfer_jobs SET state = $2, detail = $3, ended_at = now() WHERE id = $1 AND state = 'OPEN'`

// do has a job's effect and its end in one transaction; what a refused effect did
// is undone to before it.
func (w Worker) do(ctx context.Context, e pg.Entry, j Job) error {
	var was unparked
	if j.What == TaskRetry {
		var err error
		if was, err = w.unpark(ctx, j); err != nil {
			return err
		}
	}
	return pg.InSlot(ctx, w.Pool, e, func(tx *pg.Tx) error {
		var open bool
		err := tx.QueryRow(ctx, "SELECT state = 'OPEN' FROM cell.transfer_jobs WHERE id = $1 FOR UPDATE", j.ID).Scan(&open)
		if err != nil || !open {
			return err
		}
		state, detail := JobDone, ""
		err = pgx.BeginFunc(ctx, tx.Tx, func(inner pgx.Tx) (err error) {
			detail, err = w.effect(ctx, &pg.Tx{Tx: inner, Entry: tx.Entry}, j, was)
			return err
		})
		if was.stays {
			state = JobFailed
		}
		var refusal *errs.Error
		switch {
		case errors.As(err, &refusal) && !passing(err):
			state, detail = JobFailed, refusal.Message
		case err != nil:
			return err
		}
		w.Log.Info("an operator's job on a transfer", "job", j.ID, "transfer", j.Transfer, "what", j.What, "reason", j.Reason, "state", state, "detail", detail)
		_, err = tx.Exec(ctx, endJob, j.ID, state, detail)
		return err
	})
}

var errNothing = errs.New(errs.Conflict, "TRANSFER_NOTHING_OPEN", "nothing is open here: no question, and nothing parked")

func (w Worker) effect(ctx context.Context, tx *pg.Tx, j Job, was unparked) (string, error) {
	switch j.What {
	case TaskRetry:
		var n int
		if err := tx.QueryRow(ctx, "SELECT cell.ask_again($1, $2)", tx.Slot, Questions(j.Transfer)).Scan(&n); err != nil {
			return "", err
		}
		if n > 0 {
			was.said = append(was.said, fmt.Sprintf("%d open, asked again", n))
		}
		if len(was.said) == 0 { // killed before this could be written down?
			had, err := handledSince(ctx, tx, j)
			if err != nil {
				return "", err
			}
			was.said = had
		}
		if len(was.said) == 0 {
			return "", errNothing
		}
		return strings.Join(was.said, "; "), nil
	case TaskCancel:
		t, err := Cancel(ctx, tx, j.Transfer, WishOperator)
		return fmt.Sprintf("%s: slot %d is asked, and decides", t.State, t.ToSlot), err
	case TaskReverse:
		return w.reverse(ctx, tx, j)
	}
	return "", errs.Field("what", "there is no task %q", j.What)
}

// reverse is a refund under the job's ID: were the job asked for again elsewhere,
// it would find the first one's record.
func (w Worker) reverse(ctx context.Context, tx *pg.Tx, j Job) (string, error) {
	c, err := lockCredit(ctx, tx, j.Transfer)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", errs.ErrNotFound
	} else if err != nil {
		return "", err
	}
	hash := sha256.Sum256([]byte(j.Transfer.String()))
	key := pg.Key{Actor: c.To, Route: RouteReverse, Key: j.ID, Hash: hash[:]}
	old, err := pg.Claim(ctx, tx, key)
	if err != nil {
		return "", err
	}
	if old != nil {
		return "it was begun before, as transfer " + old.Ref, nil
	}
	n, err := w.Next("transfer", c.To.Slot())
	if err != nil {
		return "", err
	}
	t, err := GiveBack(ctx, tx, Back{ID: n, Of: j.Transfer, Memo: memoReverse})
	if err != nil {
		return "", err
	}
	err = pg.Keep(ctx, tx, key, pg.Record{Ref: n.String(), Status: 202})
	return fmt.Sprintf("transfer %s gives back %d %s, %d of them owed by the payee", n, t.Amount, t.Currency, t.Owed), err
}

// passing says whether an error may be gone the next time by itself.
func passing(err error) bool {
	return errs.IsKind(err, errs.Unavailable) || errs.IsKind(err, errs.Misrouted)
}

// handledSince are the messages that were parked, and were handled after the job was
// asked for.
func handledSince(ctx context.Context, tx *pg.Tx, j Job) ([]string, error) {
	rows, err := tx.Query(ctx, `SELECT (message->>'kind') || ' was parked, and is handled now' FROM cell.parked
		WHERE slot = $1 AND message->>'key' = $2 AND message->>'kind' LIKE 'transfer.%' AND resolved_at >= $3 ORDER BY resolved_at`, tx.Slot, j.Transfer.String(), j.CreatedAt)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// unparked is what came of parked messages.
type unparked struct {
	said  []string
	stays bool // one that still can't be handled
}

// unpark has what is parked of the job's transfer, in its slot, handled again.
func (w Worker) unpark(ctx context.Context, j Job) (out unparked, err error) {
	list, err := ListParked(ctx, w.Pool, j.Transfer.String(), 100)
	if err != nil {
		return out, err
	}
	for _, p := range list {
		if p.Slot != j.Slot {
			continue
		}
		res := w.Unpark(ctx, p.ParkedKey)
		if res.Outcome == bus.Again && passing(res.Err) {
			return out, res.Err
		}
		line := fmt.Sprintf("%s was parked, and is %s now", p.Kind, res.Outcome)
		if res.Err != nil {
			line, out.stays = fmt.Sprintf("%s stays parked: %v", p.Kind, res.Err), true
		}
		out.said = append(out.said, line)
	}
	return out, nil
}
