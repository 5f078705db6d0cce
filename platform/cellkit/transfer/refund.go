package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
)

// The refusals of a refund.
var (
	ErrNotRefundable = errs.New(errs.Conflict, "NOT_REFUNDABLE", "nothing was received by this transfer that could be given back")
	ErrRefundLimit   = errs.New(errs.Unprocessable, "REFUND_LIMIT", "this is more than what is left of the transfer").At("amount")
)

// Back is what GiveBack is asked to do.
type Back struct {
	ID     id.ID // of the refund, in the slot of whoever gives back
	Of     id.ID // the transfer whose money it is
	By     id.ID // its payee; 0: an operator, who may also give what the payee hasn't got
	Amount int64 // 0: all that is left
	Memo   string
}

// back is what an Order of kind Refund has more than others.
type back struct {
	of   id.ID
	from Account // where the money is
	owed int64   // the part of it that isn't there

	byOperator bool
}

// GiveBack starts a refund in the caller's transaction, which has entered the slot
// where the money came in. The row there counts what was given back and is locked
// until the end, so refunds at once can't give more than came. Without the money
// it leaves no trace, unless an operator asks: then the payee owes what is missing
// (recovery). The same refund once more does nothing. errs.ErrNotFound, ErrNotRefundable, ErrRefundLimit,
// ErrInsufficientFunds.
func GiveBack(ctx context.Context, tx *pg.Tx, b Back) (Transfer, error) {
	old, err := lock(ctx, tx, b.ID)
	switch {
	case err == nil && (old.RefundOf != b.Of || b.Amount != 0 && b.Amount != old.Amount):
		return old, ErrOtherTransfer
	case err == nil || !errors.Is(err, pgx.ErrNoRows): // the same once more: it's counted already
		return old, err
	}
	c, err := lockCredit(ctx, tx, b.Of)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && b.By != 0 && c.To != b.By {
		return Transfer{}, errs.ErrNotFound
	} else if err != nil {
		return Transfer{}, err
	}
	rest := c.Amount - c.Refunded
	if b.Amount == 0 {
		b.Amount = rest
	}
	switch {
	case c.Verdict != Credited || c.Kind == Refund:
		return Transfer{}, ErrNotRefundable
	case rest == 0 || b.Amount > rest:
		return Transfer{}, ErrRefundLimit
	}
	o := Order{ID: b.ID, Kind: Refund, From: c.To, To: c.From, ToSlot: c.FromSlot, Amount: b.Amount, Currency: c.Currency, Memo: b.Memo,
		back: back{of: b.Of, from: Available, byOperator: b.By == 0}}
	if c.Reason != "" { // CREDITED with a reason: it came to suspense
		o.from = Suspense
	}
	if b.By == 0 {
		have, err := lockBalance(ctx, tx, o)
		if err != nil {
			return Transfer{}, err
		}
		o.owed = max(0, o.Amount-have)
	}
	if err := count(ctx, tx, b.Of, b.Amount); err != nil {
		return Transfer{}, err
	}
	return start(ctx, tx, o, false)
}

func lockCredit(ctx context.Context, tx *pg.Tx, transfer id.ID) (Credit, error) {
	rows, err := tx.Query(ctx, `SELECT `+creditColumns+` FROM cell.credits WHERE slot = $1 AND transfer_id = $2 FOR UPDATE`, tx.Slot, transfer)
	if err != nil {
		return Credit{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Credit])
}

// lockBalance is what the payee has where the money is to come from; the wallet is
// locked, so it still has it when it is taken.
func lockBalance(ctx context.Context, tx *pg.Tx, o Order) (have int64, err error) {
	err = tx.QueryRow(ctx, `SELECT CASE $4 WHEN 'suspense' THEN suspense ELSE available END FROM cell.wallets
		WHERE slot = $1 AND user_id = $2 AND currency = $3 FOR UPDATE`, tx.Slot, o.From, o.Currency, string(o.from)).Scan(&have)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return have, err
}

// count changes what was given back of a transfer by this much.
func count(ctx context.Context, tx *pg.Tx, transfer id.ID, by int64) error {
	tag, err := tx.Exec(ctx, `UPDATE cell.credits SET refunded = refunded + $3
		WHERE slot = $1 AND transfer_id = $2 AND refunded + $3 BETWEEN 0 AND amount`, tx.Slot, transfer, by)
	if err == nil && tag.RowsAffected() != 1 {
		return fmt.Errorf("transfer %d can't have %d more given back", transfer, by)
	}
	return err
}

// takeBack freezes the money of a refund.
func takeBack(ctx context.Context, tx *pg.Tx, t Transfer) error {
	return parts(ctx, tx, t, Posting{Debit: t.TakenFrom, Credit: InFreeze, Step: "freeze"}, Posting{Debit: Recovery, Credit: InFreeze, Step: "owe"})
}

// putBack ends a refund that came to nothing: the money goes where it was, and may
// be given back anew.
func putBack(ctx context.Context, tx *pg.Tx, t Transfer) error {
	if err := count(ctx, tx, t.RefundOf, -t.Amount); err != nil {
		return err
	}
	return parts(ctx, tx, t, Posting{Debit: InFreeze, Credit: t.TakenFrom, Step: "reverse"}, Posting{Debit: InFreeze, Credit: Recovery, Step: "disown"})
}

// parts posts what was there of a refund, and what is owed.
func parts(ctx context.Context, tx *pg.Tx, t Transfer, had, owed Posting) error {
	for i, p := range []Posting{had, owed} {
		p.User, p.Currency, p.Ref, p.Memo = t.From, t.Currency, Ref(t.ID), t.Memo
		if p.Amount = t.Amount - t.Owed; i == 1 {
			p.Amount = t.Owed
		}
		if p.Amount == 0 {
			continue
		}
		if err := Post(ctx, tx, p); err != nil {
			return err
		}
	}
	return nil
}

// cameBack is the payer's side: the transfer knows what came back of it. A refund
// of what was never sent, or of more, is nobody's to credit.
func cameBack(ctx context.Context, tx *pg.Tx, b Body) error {
	tag, err := tx.Exec(ctx, `UPDATE cell.transfers SET refunded = refunded + $3
		WHERE slot = $1 AND id = $2 AND from_user = $4 AND to_user = $5 AND currency = $6 AND kind <> 'refund'
			AND state NOT IN ('REJECTED', 'REVERSED') AND refunded + $3 <= amount`, tx.Slot, b.RefundOf, b.Amount, b.To, b.From, b.Currency)
	if err == nil && tag.RowsAffected() != 1 {
		return bus.Park(fmt.Errorf("transfer %d gives back %d %s of transfer %d, which didn't send that", b.Transfer, b.Amount, b.Currency, b.RefundOf))
	}
	return err
}
