package transfer

import (
	"context"
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

// Service handles every transfer's messages, whoever started it.
const Service = "user"

// The kinds of messages.
const (
	KindCredit = "transfer.credit"
	KindCancel = "transfer.cancel"
	KindAnswer = "transfer.answer"
)

// Body is what CREDIT and CANCEL carry: the whole transfer, so that the
// destination can tell another one with the same ID.
type Body struct {
	Transfer id.ID  `json:"transfer"`
	Kind     Kind   `json:"kind"`
	From     id.ID  `json:"from"`
	To       id.ID  `json:"to"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Memo     string `json:"memo,omitempty"`
	OrderID  id.ID  `json:"order,omitempty"`
	RefundOf id.ID  `json:"refund_of,omitempty"` // kind Refund

	At time.Time `json:"at,omitzero"` // of the transfer's beginning: the hour that both sides count it in
}

// valid says whether this can be a transfer at all.
func (b Body) valid() bool {
	return b.Transfer > 0 && b.From > 0 && b.To > 0 && b.Amount > 0 && ValidCurrency(b.Currency) && b.Kind.known() && (b.Kind == Refund) == (b.RefundOf > 0)
}

// begun is At, or nil when the message doesn't have it.
func (b Body) begun() *time.Time {
	if b.At.IsZero() {
		return nil
	}
	return &b.At
}

// Answer is the destination's row.
type Answer struct {
	Transfer id.ID   `json:"transfer"`
	Verdict  Verdict `json:"verdict"`
	Reason   string  `json:"reason,omitempty"`
}

// Payee says whether a user of the entered slot takes money, and if not, why
// (UNKNOWN_PAYEE).
type Payee func(ctx context.Context, tx *pg.Tx, user id.ID) (ok bool, reason string, err error)

// Register gives a consumer's Handle and HandleReply all of this package's
// handlers.
func Register(handle func(kind string, h bus.Handler), reply func(kind string, h bus.ReplyHandler), payee Payee) {
	handle(KindCredit, HandleCredit(payee))
	handle(KindCancel, HandleCancel)
	reply(KindAnswer, HandleAnswer)
}

// HandleCredit is the destination's side of CREDIT.
func HandleCredit(payee Payee) bus.Handler {
	return func(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
		return judge(ctx, tx, m, AskCredit, payee)
	}
}

// HandleCancel is the destination's side of CANCEL.
func HandleCancel(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
	return judge(ctx, tx, m, AskCancel, nil)
}

func judge(ctx context.Context, tx *pg.Tx, m bus.Message, q Question, payee Payee) (bus.Reply, error) {
	var b Body
	if err := m.Decode(&b); err != nil {
		return bus.Reply{}, err
	}
	if !b.valid() {
		return bus.Reply{}, bus.Park(fmt.Errorf("%s: not a transfer: %s", m.ID, m.Body))
	}
	row, err := credit(ctx, tx, b.Transfer)
	if errors.Is(err, pgx.ErrNoRows) {
		row, err = decide(ctx, tx, m, b, q, payee)
	}
	if err != nil {
		return bus.Reply{}, err
	}
	if row.Kind != b.Kind || row.To != b.To || row.From != b.From || row.FromSlot != m.From || row.Amount != b.Amount || row.Currency != b.Currency || row.RefundOf != b.RefundOf {
		return bus.Reply{}, bus.Park(fmt.Errorf("%s: transfer %d is here already with other fields", m.ID, b.Transfer))
	}
	return bus.Reply{Kind: KindAnswer, Body: Answer{Transfer: b.Transfer, Verdict: row.Verdict, Reason: row.Reason}}, nil
}

// decide makes the row; when another transaction was first, it gives that one's.
func decide(ctx context.Context, tx *pg.Tx, m bus.Message, b Body, q Question, payee Payee) (Credit, error) {
	var stands Standing
	if q == AskCredit {
		var err error
		if stands.OK, stands.Reason, err = payee(ctx, tx, b.To); err != nil {
			return Credit{}, err
		}
		if stands.OK {
			if stands, err = room(ctx, tx, b); err != nil {
				return Credit{}, err
			}
		}
	}
	j, err := Judge(NoVerdict, q, b.Kind, stands)
	if err != nil {
		return Credit{}, bus.Park(err)
	}
	tag, err := tx.Exec(ctx, `INSERT INTO cell.credits (slot, transfer_id, kind, user_id, from_user, from_slot, amount, currency, state, reason, memo, begun_at, refund_of)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) ON CONFLICT (slot, transfer_id) DO NOTHING`,
		tx.Slot, b.Transfer, b.Kind, b.To, b.From, m.From, b.Amount, b.Currency, j.Verdict, j.Reason, b.Memo, b.begun(), b.RefundOf)
	if err != nil {
		return Credit{}, err
	}
	if tag.RowsAffected() == 1 && j.Account != "" {
		if b.Kind == Refund {
			if err := cameBack(ctx, tx, b); err != nil {
				return Credit{}, err
			}
		}
		err := Post(ctx, tx, Posting{User: b.To, Currency: b.Currency, Debit: Clearing, Credit: j.Account, Amount: b.Amount,
			Ref: Ref(b.Transfer), Step: "credit", Memo: b.Memo})
		if err != nil {
			// Two credits at once may pass room together; then the second is judged anew.
			return Credit{}, fmt.Errorf("credit of transfer %d: %w", b.Transfer, retry(err))
		}
	}
	return credit(ctx, tx, b.Transfer)
}

// retry hides the kind of a ledger's refusal: to the consumer it passes, it's no
// verdict on the message.
func retry(err error) error {
	var refusal *errs.Error
	if errors.As(err, &refusal) {
		return fmt.Errorf("to be tried again: %s", refusal.Error())
	}
	return err
}

// room says whether the payee's wallet can hold the credit.
func room(ctx context.Context, tx *pg.Tx, b Body) (Standing, error) {
	var full bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM cell.wallets WHERE slot = $1 AND user_id = $2 AND currency = $3 AND available > $4)`,
		tx.Slot, b.To, b.Currency, MaxBalance-b.Amount).Scan(&full)
	if full {
		return Standing{Reason: ErrBalanceLimit.Code}, err
	}
	return Standing{OK: true}, err
}

// HandleAnswer is the source's side: what the destination's row says ends the
// transfer.
func HandleAnswer(ctx context.Context, tx *pg.Tx, reply bus.Message) (bool, error) {
	var a Answer
	if err := reply.Decode(&a); err != nil {
		return false, err
	}
	t, err := lock(ctx, tx, a.Transfer)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, bus.Park(fmt.Errorf("%s: no transfer %d was sent from slot %d", reply.ID, a.Transfer, tx.Slot))
	} else if err != nil {
		return false, err
	}
	next, effect, err := Next(t.Kind, t.State, Event(a.Verdict))
	if err != nil {
		return false, bus.Park(fmt.Errorf("%s: %w", reply.ID, err))
	}
	if effect == Nothing {
		return true, nil
	}
	if err := end(ctx, tx, t, effect); err != nil {
		return false, fmt.Errorf("end of transfer %d: %w", t.ID, retry(err))
	}
	reason := a.Reason
	if reason == "" && next == Reversed {
		reason = t.Reason // why it was asked back
	}
	if _, err := save(ctx, tx, t, next, reason); err != nil {
		return false, err
	}
	// The answer to one question is the answer to the other: nothing is left to ask.
	for _, kind := range []string{KindCredit, KindCancel} {
		if reply.ReplyTo == bus.MessageID(kind, bus.IDKey(t.ID)) {
			continue // the consumer closes it
		}
		if kind == KindCancel && t.State == Frozen {
			continue // it was never sent
		}
		if err := bus.Close(ctx, tx, kind, bus.IDKey(t.ID)); err != nil {
			return false, err
		}
	}
	return true, nil
}

// end posts what a transfer's end does with the frozen money.
func end(ctx context.Context, tx *pg.Tx, t Transfer, effect Effect) error {
	p := Posting{User: t.From, Currency: t.Currency, Debit: InFreeze, Credit: Clearing, Amount: t.Amount, Ref: Ref(t.ID), Step: "settle", Memo: t.Memo}
	if effect == Reverse && t.Kind == Refund {
		return putBack(ctx, tx, t)
	}
	if effect == Reverse {
		p.Credit, p.Step = Available, "reverse"
		if t.Kind == User {
			p.Count = Count{Amount: -t.Amount, Since: t.CreatedAt}
		}
	}
	return Post(ctx, tx, p)
}

// Credit is the destination's row.
type Credit struct {
	Transfer  id.ID
	Kind      Kind
	To, From  id.ID
	FromSlot  routing.Slot
	Amount    int64
	Currency  string
	Verdict   Verdict
	Reason    string
	Memo      string
	CreatedAt time.Time
	RefundOf  id.ID // kind Refund
	Refunded  int64 // what was given back of it, or is on its way
}

const creditColumns = `transfer_id, kind, user_id, from_user, from_slot, amount, currency, state, reason, memo, created_at, refund_of, refunded`

// credit gives the row of the entered slot, or pgx.ErrNoRows.
func credit(ctx context.Context, tx *pg.Tx, transfer id.ID) (Credit, error) {
	rows, err := tx.Query(ctx, `SELECT `+creditColumns+` FROM cell.credits WHERE slot = $1 AND transfer_id = $2`, tx.Slot, transfer)
	if err != nil {
		return Credit{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Credit])
}
