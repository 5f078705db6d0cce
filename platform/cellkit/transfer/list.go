package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// Item is a line of a user's list: a transfer sent, or money received.
type Item struct {
	ID        id.ID
	Incoming  bool
	Kind      Kind
	From, To  id.ID
	Amount    int64
	Currency  string
	State     string // a State, or CREDITED
	Reason    string
	Memo      string
	OrderID   id.ID
	CreatedAt time.Time
	EndedAt   *time.Time
	RefundOf  id.ID // kind Refund
	Refunded  int64 // what was given back of it
}

// Place is where a list goes on: after this line. The zero Place is the start.
type Place struct {
	At time.Time `json:"at"`
	ID id.ID     `json:"id"`
}

// List gives a user's transfers in the user's slot, newest first: all sent, and
// what was received.
func List(ctx context.Context, tx pgx.Tx, slot routing.Slot, user id.ID, after Place, limit int) ([]Item, error) {
	if after.ID == 0 {
		after = Place{At: time.Now().Add(24 * time.Hour), ID: 1<<63 - 1}
	}
	rows, err := tx.Query(ctx, `
		(SELECT id, false AS incoming, kind, from_user, to_user, amount, currency, state, reason, memo, order_id, created_at, ended_at, refund_of, refunded
			FROM cell.transfers WHERE slot = $1 AND from_user = $2 AND (created_at, id) < ($3, $4)
			ORDER BY created_at DESC, id DESC LIMIT $5)
		UNION ALL
		(SELECT transfer_id, true, kind, from_user, user_id, amount, currency, state, reason, memo, 0, created_at, created_at, refund_of, refunded
			FROM cell.credits WHERE slot = $1 AND user_id = $2 AND state = 'CREDITED' AND (created_at, transfer_id) < ($3, $4)
			ORDER BY created_at DESC, transfer_id DESC LIMIT $5)
		ORDER BY created_at DESC, id DESC LIMIT $5`, slot, user, after.At, after.ID, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Item])
}

// Stuck is a transfer that has not ended, for operators.
type Stuck struct {
	Slot     routing.Slot
	ID       id.ID
	Kind     Kind
	State    State
	From     id.ID
	To       id.ID
	ToSlot   routing.Slot
	Amount   int64
	Currency string
	AgeMS    int64
	Attempts int             // of the questions still open
	Answer   json.RawMessage // the last one, when it could not be acted on
	Parked   string          // why not
}

// stuckSQL finds open transfers by an index of their own, and of each its messages
// by their keys: whatever has ended isn't read.
const stuckSQL = `
	SELECT t.slot, t.id, t.kind, t.state, t.from_user, t.to_user, t.to_slot, t.amount, t.currency,
		(extract(epoch FROM clock_timestamp() - t.created_at) * 1000)::bigint,
		coalesce((SELECT max(r.attempts) FROM cell.relay r WHERE r.slot = t.slot AND r.id IN ('transfer.credit:' || t.id, 'transfer.cancel:' || t.id)), 0),
		p.body, coalesce(p.reason, '')
	FROM cell.transfers t LEFT JOIN LATERAL (
		SELECT p.message->'body' AS body, p.reason FROM cell.parked p
		WHERE p.slot = t.slot AND p.from_slot = t.to_slot AND p.id IN ('re:' || t.slot || ':transfer.credit:' || t.id, 're:' || t.slot || ':transfer.cancel:' || t.id)
			AND p.resolved_at IS NULL ORDER BY p.parked_at DESC LIMIT 1) p ON true
	WHERE t.ended_at IS NULL AND t.created_at < now() - make_interval(secs => $1) AND EXISTS (SELECT FROM cell.owned s WHERE s.slot = t.slot)
	ORDER BY t.created_at, t.id LIMIT $2`

// ListStuck lists this cell's transfers that are older than age and have not
// ended, oldest first. The pool may be of any role that reads.
func ListStuck(ctx context.Context, pool *pgxpool.Pool, age time.Duration, limit int) ([]Stuck, error) {
	rows, err := pool.Query(ctx, stuckSQL, age.Seconds(), limit)
	if err != nil {
		return nil, pg.Error(err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Stuck])
}

// expireBatch bounds one round, so that a round ends soon after ctx does.
const expireBatch = 100

// Expire asks back the transfers of this cell whose deadline has passed and
// gives how many. It never moves money: the destination decides.
func Expire(ctx context.Context, pool *pgxpool.Pool) (int, error) {
	type due struct {
		Slot  routing.Slot
		Epoch routing.Epoch
		ID    id.ID
	}
	// An order's payment has no way back, and a reversal isn't the clock's to ask back: their deadline only makes them stuck.
	rows, err := pool.Query(ctx, `SELECT t.slot, s.epoch, t.id FROM cell.transfers t
		CROSS JOIN LATERAL (SELECT epoch FROM cell.owned o WHERE o.slot = t.slot AND o.active OFFSET 0) s
		WHERE t.ended_at IS NULL AND t.state = 'FROZEN' AND t.kind <> 'order' AND NOT t.by_operator AND t.deadline < now()
		ORDER BY t.deadline LIMIT $1`, expireBatch)
	if err != nil {
		return 0, pg.Error(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[due])
	if err != nil {
		return 0, pg.Error(err)
	}
	n := 0
	var failed error // one slot that can't be entered must not keep the others waiting
	for _, d := range list {
		err := pg.InSlot(ctx, pool, pg.Entry{Slot: d.Slot, Epoch: d.Epoch}, func(tx *pg.Tx) error {
			t, err := lock(ctx, tx, d.ID)
			if err != nil || t.State != Frozen { // ended meanwhile
				return err
			}
			_, err = Cancel(ctx, tx, d.ID, WishDeadline)
			return err
		})
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		n++
	}
	return n, failed
}

// RunExpire calls Expire every interval until ctx ends.
func RunExpire(ctx context.Context, pool *pgxpool.Pool, interval time.Duration, log *slog.Logger) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		n, err := Expire(ctx, pool)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			log.Warn("transfers past their deadline", "error", err)
		case n > 0:
			log.Info("transfers asked back at their deadline", "count", n)
		}
		if n == expireBatch {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
