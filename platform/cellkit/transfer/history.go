package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// Moment is one thing that happened to a transfer, as its parties see it.
type Moment struct {
	At       time.Time
	Side     string // payer, payee
	State    string // a State, a Verdict, or REFUND
	Reason   string
	Attempts int   // of the question, while it's open
	Refund   id.ID // REFUND: the transfer that gives back
	Amount   int64 // REFUND
}

const payer, receiver, refund = "payer", "payee", "REFUND"

// SentHistory tells what the payer's slot remembers of a transfer: its states, what
// the other side said, and what came back.
func SentHistory(ctx context.Context, tx pgx.Tx, slot routing.Slot, t Transfer) ([]Moment, error) {
	first := Moment{At: t.CreatedAt, Side: payer, State: string(Frozen)}
	if t.State == Rejected {
		first.State, first.Reason = string(Rejected), t.Reason
	}
	rows, err := tx.Query(ctx, `SELECT o.kind, o.created_at, o.closed_at, o.reply, coalesce(r.attempts, 0)
		FROM cell.outbox o LEFT JOIN cell.relay r ON r.slot = o.slot AND r.id = o.id WHERE o.slot = $1 AND o.id = ANY ($2)`, slot, Questions(t.ID))
	if err != nil {
		return nil, err
	}
	var kind string
	var asked time.Time
	var closed *time.Time
	var raw []byte
	var attempts int
	var more []Moment
	_, err = pgx.ForEachRow(rows, []any{&kind, &asked, &closed, &raw, &attempts}, func() error {
		if kind == KindCancel {
			e := Moment{At: asked, Side: payer, State: string(Cancelling), Attempts: attempts}
			if t.State == Cancelling {
				e.Reason = t.Reason
			}
			more = append(more, e)
		} else {
			first.Attempts = attempts
		}
		if a, ok := said(raw); ok && closed != nil {
			more = append(more, Moment{At: *closed, Side: receiver, State: string(a.Verdict), Reason: a.Reason})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if t.EndedAt != nil && t.State != Rejected {
		more = append(more, Moment{At: *t.EndedAt, Side: payer, State: string(t.State), Reason: t.Reason})
	}
	back, err := refunds(ctx, tx, `SELECT created_at, $3::text, $4::text, ''::text, 0, transfer_id, amount FROM cell.credits
		WHERE slot = $1 AND refund_of = $2 AND state = 'CREDITED'`, slot, t.ID)
	return inOrder(slices.Concat([]Moment{first}, more, back)), err
}

// said reads a stored reply.
func said(raw []byte) (a Answer, ok bool) {
	var m bus.Message
	return a, len(raw) > 0 && json.Unmarshal(raw, &m) == nil && json.Unmarshal(m.Body, &a) == nil
}

// Received reads what a slot did with a transfer that was sent to it;
// errs.ErrNotFound.
func Received(ctx context.Context, tx pgx.Tx, slot routing.Slot, transfer id.ID) (Credit, error) {
	rows, err := tx.Query(ctx, `SELECT `+creditColumns+` FROM cell.credits WHERE slot = $1 AND transfer_id = $2`, slot, transfer)
	if err != nil {
		return Credit{}, err
	}
	c, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Credit])
	if errors.Is(err, pgx.ErrNoRows) {
		err = errs.ErrNotFound
	}
	return c, err
}

// ReceivedHistory tells what the payee's slot remembers: needed is nothing of the
// payer's cell.
func ReceivedHistory(ctx context.Context, tx pgx.Tx, slot routing.Slot, c Credit) ([]Moment, error) {
	back, err := refunds(ctx, tx, `SELECT created_at, $3::text, $4::text, CASE WHEN state = 'SETTLED' THEN '' ELSE state END, 0, id, amount FROM cell.transfers
		WHERE slot = $1 AND refund_of = $2`, slot, c.Transfer)
	return inOrder(append([]Moment{{At: c.CreatedAt, Side: receiver, State: string(c.Verdict), Reason: c.Reason}}, back...)), err
}

func refunds(ctx context.Context, tx pgx.Tx, sql string, slot routing.Slot, of id.ID) ([]Moment, error) {
	rows, err := tx.Query(ctx, sql, slot, of, receiver, refund)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Moment])
}

// inOrder sorts by time; what a transaction did at once stays as it was listed.
func inOrder(list []Moment) []Moment {
	slices.SortStableFunc(list, func(a, b Moment) int { return a.At.Compare(b.At) })
	return list
}

// Questions are the IDs of the messages that ask for a transfer.
func Questions(transfer id.ID) []string {
	return []string{bus.MessageID(KindCredit, bus.IDKey(transfer)), bus.MessageID(KindCancel, bus.IDKey(transfer))}
}

// Answers are the IDs of the replies to them, from being the slot that asked.
func Answers(from routing.Slot, transfer id.ID) []string {
	out := Questions(transfer)
	for i := range out {
		out[i] = bus.ReplyID(from, out[i])
	}
	return out
}
