package pg

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// The refusals of an Idempotency-Key.
var (
	ErrKeyMissing  = errs.New(errs.Invalid, "IDEMPOTENCY_KEY_MISSING", "this request needs an Idempotency-Key header of 1 to 128 visible characters").At("Idempotency-Key")
	ErrKeyReused   = errs.New(errs.Unprocessable, "IDEMPOTENCY_KEY_REUSED", "this Idempotency-Key was used for another request").At("Idempotency-Key")
	ErrKeyInFlight = errs.New(errs.Conflict, "IDEMPOTENCY_KEY_IN_FLIGHT", "a request with this Idempotency-Key is under way").At("Idempotency-Key").After(time.Second)
)

// Key names one request of one actor, scoped to a route. Hash is of the
// request's canonical body.
type Key struct {
	Actor id.ID
	Route string // "POST /orders"
	Key   string
	Hash  []byte
}

// Record is the answer kept under a key. Status 0: not decided yet, Ref names
// what will decide it.
type Record struct {
	Ref      string
	Status   int
	Location string
	Body     []byte
}

// Claim starts the effect behind a key inside the caller's transaction. It gives
// the record when the effect was there before, nil when the caller is to make it
// and then call Keep. "In flight" is a try-lock on the key for the time of one
// transaction.
func Claim(ctx context.Context, tx *Tx, k Key) (*Record, error) {
	var got bool
	err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock(hashtextextended($1, $2))",
		k.Route+"\n"+k.Actor.String()+"\n"+k.Key, int64(tx.Slot)).Scan(&got)
	if err != nil {
		return nil, err
	}
	if !got {
		return nil, ErrKeyInFlight
	}
	return Kept(ctx, tx, tx.Slot, k)
}

// Kept reads the record under a key, nil when there is none, ErrKeyReused when it
// is of another body.
func Kept(ctx context.Context, tx pgx.Tx, slot routing.Slot, k Key) (*Record, error) {
	var r Record
	var same bool
	err := tx.QueryRow(ctx, `SELECT ref, coalesce(status, 0), location, body, hash = $5 FROM cell.idempotency
		WHERE slot = $1 AND actor = $2 AND route = $3 AND key = $4`,
		slot, k.Actor, k.Route, k.Key, k.Hash).Scan(&r.Ref, &r.Status, &r.Location, &r.Body, &same)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	case !same:
		return nil, ErrKeyReused
	}
	return &r, nil
}

// Keep writes the record of an effect made in this transaction; r.Status 0 when
// its answer isn't decided yet.
func Keep(ctx context.Context, tx *Tx, k Key, r Record) error {
	_, err := tx.Exec(ctx, `INSERT INTO cell.idempotency (slot, actor, route, key, hash, ref, status, location, body)
		VALUES ($1, $2, $3, $4, $5, $6, nullif($7, 0), $8, $9)`,
		tx.Slot, k.Actor, k.Route, k.Key, k.Hash, r.Ref, r.Status, r.Location, r.Body)
	return err
}

// Decide stores the first answer to an undecided key and gives the one that
// counts: the caller's, or the one that was first.
func Decide(ctx context.Context, tx *Tx, actor id.ID, route, key string, r Record) (Record, error) {
	_, err := tx.Exec(ctx, `UPDATE cell.idempotency SET status = $5, location = $6, body = $7
		WHERE slot = $1 AND actor = $2 AND route = $3 AND key = $4 AND status IS NULL`,
		tx.Slot, actor, route, key, r.Status, r.Location, r.Body)
	if err != nil {
		return Record{}, err
	}
	var out Record
	err = tx.QueryRow(ctx, `SELECT ref, coalesce(status, 0), location, body FROM cell.idempotency
		WHERE slot = $1 AND actor = $2 AND route = $3 AND key = $4`, tx.Slot, actor, route, key).
		Scan(&out.Ref, &out.Status, &out.Location, &out.Body)
	return out, err
}
