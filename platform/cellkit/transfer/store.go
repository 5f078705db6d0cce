package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// DefaultDeadline is when a transfer without an answer asks to be cancelled.
const DefaultDeadline = time.Hour

// Order is what Start is asked to do.
type Order struct {
	ID       id.ID // of the transfer, in the payer's slot
	Kind     Kind  // User when empty
	From, To id.ID
	ToSlot   routing.Slot // the payee's
	Amount   int64
	Currency string
	Memo     string
	OrderID  id.ID     // kind Sales: the order that is paid
	Deadline time.Time // zero: in an hour
	Frozen   bool      // the order has frozen the money already
	Limits   Limits    // kind User

	back // kind Refund: GiveBack fills it
}

// Limits holds what one user sends to others in one currency, 0 = no limit. Each
// is of one transfer, Day of all of one day (UTC): what came back is free again.
type Limits struct{ Each, Day int64 }

// Transfer is the source's row.
type Transfer struct {
	ID        id.ID
	Kind      Kind
	From, To  id.ID
	ToSlot    routing.Slot
	Amount    int64
	Currency  string
	State     State
	Reason    string
	Memo      string
	OrderID   id.ID
	Deadline  time.Time
	CreatedAt time.Time
	EndedAt   *time.Time
	RefundOf  id.ID   // kind Refund: of which transfer
	Refunded  int64   // what has come back of it
	TakenFrom Account // kind Refund: where its money was: Available, Suspense
	Owed      int64   // kind Refund: the part that its sender owes since

	ByOperator bool // kind Refund: a reversal, which only an operator can ask back
}

const columns = `id, kind, from_user, to_user, to_slot, amount, currency, state, reason, memo, order_id, deadline, created_at, ended_at,
	refund_of, refunded, taken_from, owed, by_operator`

// ErrSelf refuses a transfer to oneself.
var ErrSelf = errs.New(errs.Invalid, "SELF_TRANSFER", "payer and payee are the same").At("to_user")

// ErrOtherTransfer is given when an ID is used for two different transfers.
var ErrOtherTransfer = errs.New(errs.Internal, "TRANSFER_CONFLICT", "this transfer ID belongs to another transfer")

// Ref is how postings name a transfer.
func Ref(transfer id.ID) string { return "transfer:" + transfer.String() }

func (o *Order) check() error {
	if o.Kind == "" {
		o.Kind = User
	}
	if o.Deadline.IsZero() {
		o.Deadline = time.Now().Add(DefaultDeadline)
	}
	switch {
	case o.Amount <= 0 || (o.Amount > MaxAmount && o.Kind == User) || !ValidCurrency(o.Currency):
		return ErrAmount
	case o.From == o.To && o.Kind == User:
		return ErrSelf
	case o.ID <= 0 || o.From <= 0 || o.To <= 0 || !o.Kind.known() || (o.Kind == Sales) != (o.OrderID > 0) || (o.Kind == Refund) != (o.of > 0):
		return fmt.Errorf("transfer %d of kind %q from %d to %d for order %d", o.ID, o.Kind, o.From, o.To, o.OrderID)
	}
	return nil
}

// Start freezes the money (unless Frozen) and sends the CREDIT, in the
// caller's transaction, which has entered the payer's slot. Without enough
// money, or over the limits, it gives ErrInsufficientFunds or ErrLimit and leaves
// no trace. The same order once more does nothing.
func Start(ctx context.Context, tx *pg.Tx, o Order) error {
	_, err := start(ctx, tx, o, false)
	return err
}

// Try is Start that keeps those two refusals as a row in state Rejected: look at
// the State.
func Try(ctx context.Context, tx *pg.Tx, o Order) (Transfer, error) {
	return start(ctx, tx, o, true)
}

func start(ctx context.Context, tx *pg.Tx, o Order, keepRejected bool) (Transfer, error) {
	if err := o.check(); err != nil {
		return Transfer{}, err
	}
	t := Transfer{ID: o.ID, Kind: o.Kind, From: o.From, To: o.To, ToSlot: o.ToSlot, Amount: o.Amount, Currency: o.Currency,
		State: Frozen, Memo: o.Memo, OrderID: o.OrderID, Deadline: o.Deadline, RefundOf: o.of, TakenFrom: Available, Owed: o.owed, ByOperator: o.byOperator}
	if o.from != "" {
		t.TakenFrom = o.from
	}
	if o.Kind == User && !o.Frozen && (o.Limits.Each <= 0 || o.Amount <= o.Limits.Each) {
		if done, err := begin(ctx, tx, o, t); !errors.Is(err, pgx.ErrNoRows) {
			return done, err
		} // the statements below say why
	}
	old, err := lock(ctx, tx, o.ID)
	switch {
	case err == nil && !same(old, t):
		return old, ErrOtherTransfer
	case err == nil:
		return old, nil
	case !errors.Is(err, pgx.ErrNoRows):
		return t, err
	}
	if !o.Frozen {
		err := freeze(ctx, tx, o, t)
		var why *errs.Error
		switch {
		case keepRejected && (errors.Is(err, ErrInsufficientFunds) || errors.Is(err, ErrLimit)) && errors.As(err, &why):
			t.State, t.Reason = Rejected, why.Code
		case err != nil:
			return t, err
		}
	}
	if t, err = insert(ctx, tx, t); err != nil || t.State == Rejected {
		return t, err
	}
	return t, send(ctx, tx, KindCredit, t)
}

// beginSQL is freeze, insert and send in one statement, or nothing at all: pgx.ErrNoRows.
// The body of the CREDIT gets the row's created_at.
const beginSQL = `WITH w AS (
		UPDATE cell.wallets SET available = available - $6, frozen = frozen + $6, seq = seq + 1,
			spent = CASE WHEN spent_on >= ` + today + ` THEN spent + $6 ELSE $6 END, spent_on = greatest(spent_on, ` + today + `)
		WHERE slot = $1 AND user_id = $3 AND currency = $7 AND available >= $6
			AND ($10::bigint = 0 OR CASE WHEN spent_on >= ` + today + ` THEN spent ELSE 0 END + $6 <= $10)
			AND NOT EXISTS (SELECT FROM cell.transfers WHERE slot = $1 AND id = $2)
			AND NOT EXISTS (SELECT FROM cell.postings WHERE slot = $1 AND ref = $11 AND step = 'freeze')
		RETURNING seq, available, frozen),
	p AS (
		INSERT INTO cell.postings (slot, user_id, currency, seq, debit, credit, amount, ref, step, available, frozen, memo)
		SELECT $1, $3, $7, w.seq, 'available', 'frozen', $6, $11, 'freeze', w.available, w.frozen, $8 FROM w),
	t AS (
		INSERT INTO cell.transfers (slot, id, kind, from_user, to_user, to_slot, amount, currency, state, memo, deadline)
		SELECT $1, $2, 'transfer', $3, $4, $5, $6, $7, 'FROZEN', $8, $9 FROM w RETURNING ` + columns + `),
	o AS (
		INSERT INTO cell.outbox (slot, id, to_slot, service, kind, key, body, reply_service)
		SELECT $1, $12, $5, $13, $14, $15, $16::jsonb || jsonb_build_object('at', t.created_at), $13 FROM t)
	SELECT * FROM t`

// begin starts the usual transfer, of one user to another.
func begin(ctx context.Context, tx *pg.Tx, o Order, t Transfer) (Transfer, error) {
	body, err := json.Marshal(t.body())
	if err != nil {
		return t, err
	}
	key := bus.IDKey(t.ID)
	rows, err := tx.Query(ctx, beginSQL, tx.Slot, t.ID, t.From, t.To, t.ToSlot, t.Amount, t.Currency, t.Memo, t.Deadline, o.Limits.Day, Ref(t.ID),
		bus.MessageID(KindCredit, key), Service, KindCredit, key, body)
	if err != nil {
		return t, err
	}
	out, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Transfer])
	if pg.IsUnique(err, "postings_slot_ref_step_key") || pg.IsUnique(err, "transfers_pkey") { // by another at the same time
		err = ErrPosted.Because(err)
	}
	return out, err
}

// freeze takes the money, and counts it for the day.
func freeze(ctx context.Context, tx *pg.Tx, o Order, t Transfer) error {
	if t.Kind == Refund {
		return takeBack(ctx, tx, t)
	}
	if o.Limits.Each > 0 && o.Amount > o.Limits.Each {
		return ErrLimit
	}
	p := Posting{User: o.From, Currency: o.Currency, Debit: Available, Credit: InFreeze, Amount: o.Amount, Ref: Ref(o.ID), Step: "freeze", Memo: o.Memo}
	if o.Kind == User {
		p.Count = Count{Amount: o.Amount, Limit: o.Limits.Day}
	}
	return Post(ctx, tx, p)
}

func insert(ctx context.Context, tx *pg.Tx, t Transfer) (Transfer, error) {
	rows, err := tx.Query(ctx, `INSERT INTO cell.transfers (slot, id, kind, from_user, to_user, to_slot, amount, currency, state, reason, memo, order_id, deadline, ended_at, refund_of, taken_from, owed, by_operator)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, CASE WHEN $14 THEN now() END, $15, $16, $17, $18) RETURNING `+columns,
		tx.Slot, t.ID, t.Kind, t.From, t.To, t.ToSlot, t.Amount, t.Currency, t.State, t.Reason, t.Memo, t.OrderID, t.Deadline, t.State.Ended(), t.RefundOf, t.TakenFrom, t.Owed, t.ByOperator)
	if err != nil {
		return t, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Transfer])
}

func same(a, b Transfer) bool {
	return a.Kind == b.Kind && a.From == b.From && a.To == b.To && a.ToSlot == b.ToSlot && a.Amount == b.Amount &&
		a.Currency == b.Currency && a.OrderID == b.OrderID && a.RefundOf == b.RefundOf
}

// Cancel asks for a transfer back: e is one of the wishes. It changes the
// state to CANCELLING and leaves the money frozen until the destination has
// answered. ErrEnded, ErrNoCancel, errs.ErrNotFound.
func Cancel(ctx context.Context, tx *pg.Tx, transfer id.ID, e Event) (Transfer, error) {
	t, err := lock(ctx, tx, transfer)
	if errors.Is(err, pgx.ErrNoRows) {
		return t, errs.ErrNotFound
	} else if err != nil {
		return t, err
	}
	next, effect, err := Next(t.Kind, t.State, e)
	if err != nil || effect != Ask {
		return t, err
	}
	if t.ByOperator && e != WishOperator {
		return t, ErrNoCancel.Msgf("a reversal is the operator's to ask back")
	}
	if t, err = save(ctx, tx, t, next, string(e)); err != nil {
		return t, err
	}
	return t, send(ctx, tx, KindCancel, t)
}

// lock gives the row, held until the transaction ends, or pgx.ErrNoRows.
func lock(ctx context.Context, tx *pg.Tx, transfer id.ID) (Transfer, error) {
	rows, err := tx.Query(ctx, `SELECT `+columns+` FROM cell.transfers WHERE slot = $1 AND id = $2 FOR UPDATE`, tx.Slot, transfer)
	if err != nil {
		return Transfer{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Transfer])
}

// save names the state that was seen (S-M07): a finished row is never overwritten.
func save(ctx context.Context, tx *pg.Tx, t Transfer, next State, reason string) (Transfer, error) {
	rows, err := tx.Query(ctx, `UPDATE cell.transfers SET state = $4, reason = $5, ended_at = CASE WHEN $6 THEN now() END
		WHERE slot = $1 AND id = $2 AND state = $3 RETURNING `+columns, tx.Slot, t.ID, t.State, next, reason, next.Ended())
	if err != nil {
		return t, err
	}
	out, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Transfer])
	if err != nil {
		return t, fmt.Errorf("transfer %d from %s to %s: %w", t.ID, t.State, next, err)
	}
	return out, nil
}

// send puts a question to the destination into the outbox.
func send(ctx context.Context, tx *pg.Tx, kind string, t Transfer) error {
	return bus.Send(ctx, tx, bus.Request{Service: Service, Kind: kind, Key: bus.IDKey(t.ID), To: t.ToSlot, ReplyService: Service,
		Body: t.body()})
}

// body is what the destination is told.
func (t Transfer) body() Body {
	return Body{Transfer: t.ID, Kind: t.Kind, From: t.From, To: t.To, Amount: t.Amount, Currency: t.Currency, Memo: t.Memo, OrderID: t.OrderID, RefundOf: t.RefundOf, At: t.CreatedAt}
}

// Get reads a transfer at its source; errs.ErrNotFound.
func Get(ctx context.Context, tx pgx.Tx, slot routing.Slot, transfer id.ID) (Transfer, error) {
	rows, err := tx.Query(ctx, `SELECT `+columns+` FROM cell.transfers WHERE slot = $1 AND id = $2`, slot, transfer)
	if err != nil {
		return Transfer{}, err
	}
	t, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Transfer])
	if errors.Is(err, pgx.ErrNoRows) {
		return t, errs.ErrNotFound
	}
	return t, err
}
