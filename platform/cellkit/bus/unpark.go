package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// ParkedKey names a message that was set aside.
type ParkedKey struct {
	Slot, From routing.Slot
	ID, Digest string
}

// Unpark gives a parked message to its handler once more, for an operator who has
// mended what was in the way. Handled or Duplicate: it's resolved. Parked: it still
// can't be handled, Err says why, and it stays. One that was for another slot, which
// wasn't here, is sent on to wherever that is: Forwarded.
func (c *Consumer) Unpark(ctx context.Context, p ParkedKey) Result {
	ctx, cancel := context.WithTimeout(ctx, pg.TxTimeout)
	defer cancel()
	var res Result
	err := c.inOwned(ctx, p.Slot, func(tx *pg.Tx) error {
		var raw []byte
		err := tx.QueryRow(ctx, `SELECT message FROM cell.parked WHERE slot = $1 AND from_slot = $2 AND id = $3 AND digest = $4 AND resolved_at IS NULL FOR UPDATE`,
			tx.Slot, p.From, p.ID, p.Digest).Scan(&raw)
		if errors.Is(err, pgx.ErrNoRows) { // resolved since
			res = Result{Outcome: Duplicate}
			return nil
		} else if err != nil {
			return err
		}
		m, err := decode(raw, c.o.Service)
		switch {
		case err != nil:
			return Park(err)
		case m.To != tx.Slot:
			res, err = c.sendOn(ctx, m)
		case m.ReplyTo != "":
			res, err = c.reply(ctx, tx, m)
		default:
			res, err = c.anew(ctx, tx, m)
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE cell.parked SET resolved_at = now() WHERE slot = $1 AND from_slot = $2 AND id = $3 AND digest = $4`,
			tx.Slot, p.From, p.ID, p.Digest)
		return err
	})
	var park parkError
	switch {
	case errors.As(err, &park):
		return Result{Outcome: Parked, Err: park.err}
	case err != nil:
		return Result{Outcome: Again, Err: err}
	}
	c.Poke()
	return res
}

// sendOn forwards a message with a new count of hops. It may go out twice, as any
// message; where it comes to, it counts once.
func (c *Consumer) sendOn(ctx context.Context, m Message) (Result, error) {
	owner, _, err := c.locate(ctx, m.To)
	if err != nil {
		return Result{}, err
	}
	m.Hop = 0
	res := c.forward(ctx, m, owner)
	if res.Err != nil {
		return Result{}, errs.ErrUnavailable.Because(res.Err)
	}
	return res, nil
}

// anew handles a request that may have been parked: then its inbox row has no
// reply, so that copies are acknowledged, and now gets one.
func (c *Consumer) anew(ctx context.Context, tx *pg.Tx, m Message) (Result, error) {
	print, err := fingerprint(m)
	if err != nil {
		return Result{}, Park(err)
	}
	_, err = tx.Exec(ctx, `INSERT INTO cell.inbox (slot, from_slot, id, fingerprint) VALUES ($1, $2, $3, $4)
		ON CONFLICT (slot, from_slot, id) DO NOTHING`, tx.Slot, m.From, m.ID, print)
	if err != nil {
		return Result{}, err
	}
	var had []byte
	var kind string
	err = tx.QueryRow(ctx, "SELECT fingerprint, reply_kind FROM cell.inbox WHERE slot = $1 AND from_slot = $2 AND id = $3 FOR UPDATE",
		tx.Slot, m.From, m.ID).Scan(&had, &kind)
	switch {
	case err != nil:
		return Result{}, err
	case !bytes.Equal(had, print):
		return Result{}, Park(errors.New("the same id came before with another kind or body"))
	case kind != "":
		return c.repeat(ctx, tx, m, print)
	}
	h := c.handlers[m.Kind]
	if h == nil {
		return Result{}, Park(fmt.Errorf("nobody here handles %s", m.Kind))
	}
	var answer Reply
	if err := safely(func() (err error) { answer, err = h(ctx, tx, m); return err }); err != nil {
		return Result{}, err
	}
	if answer.Kind == "" {
		return Result{}, fmt.Errorf("the handler of %s gave no reply", m.Kind)
	}
	body, err := json.Marshal(answer.Body)
	if err != nil {
		return Result{}, fmt.Errorf("body of %s: %w", answer.Kind, err)
	}
	b := &pgx.Batch{}
	b.Queue("UPDATE cell.inbox SET reply_kind = $4, reply_body = $5 WHERE slot = $1 AND from_slot = $2 AND id = $3",
		tx.Slot, m.From, m.ID, answer.Kind, body)
	queueReply(b, tx.Slot, m, answer.Kind, body, answer.Early)
	return Result{Outcome: Handled}, tx.SendBatch(ctx, b).Close()
}
