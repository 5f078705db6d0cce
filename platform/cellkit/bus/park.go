package bus

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// encode is a message on the wire.
func encode(m Message) ([]byte, error) {
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("message %s: %w", m.ID, err)
	}
	return raw, nil
}

// decode reads a message and refuses one that can't be handled by anybody.
func decode(data []byte, service string) (Message, error) {
	var m Message
	if err := json.Unmarshal(data, &m); err != nil {
		return m, err
	}
	switch {
	case m.ID == "" || !validWords(m.Kind):
		return m, errors.New("no id or no kind")
	case m.Service != service:
		return m, fmt.Errorf("for service %q", m.Service)
	case m.From < 0 || m.To < 0:
		return m, errors.New("a negative slot")
	case (m.ReplyTo == "") == (m.ReplyService == ""):
		return m, errors.New("neither a request nor a reply, or both")
	case len(m.Body) == 0:
		return m, errors.New("no body")
	}
	return m, nil
}

// park keeps a message that nobody could handle in its slot, or in the cell's
// own when the slot isn't here any more. mark leaves the inbox row, so that
// copies are acknowledged without another try.
func (c *Consumer) park(ctx context.Context, m Message, reason error, mark bool) Result {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pg.TxTimeout) // the handler may have used up its own
	defer cancel()
	fn := func(tx *pg.Tx) error {
		if mark && m.ReplyTo == "" && tx.Slot == m.To {
			print, err := fingerprint(m)
			if err != nil {
				print = []byte{} // no JSON: any copy is as bad
			}
			if _, err := tx.Exec(ctx, `INSERT INTO cell.inbox (slot, from_slot, id, fingerprint) VALUES ($1, $2, $3, $4)
				ON CONFLICT (slot, from_slot, id) DO NOTHING`, tx.Slot, m.From, m.ID, print); err != nil {
				return err
			}
		}
		return insertParked(ctx, tx, m, reason)
	}
	err := c.inOwned(ctx, m.To, fn)
	if errs.IsKind(err, errs.Misrouted) {
		err = c.inCellSlot(ctx, fn)
	}
	if err != nil {
		return Result{Outcome: Again, Err: fmt.Errorf("parking (%w): %w", reason, err)}
	}
	c.fails.forget(m)
	return Result{Outcome: Parked, Err: reason}
}

// inOwned runs fn in a slot of this cell, else the error is Misrouted.
func (c *Consumer) inOwned(ctx context.Context, slot routing.Slot, fn func(*pg.Tx) error) error {
	owner, epoch, err := c.locate(ctx, slot)
	if err != nil {
		return err
	}
	if owner != c.o.Cell {
		return errs.ErrMisrouted
	}
	return pg.InSlot(ctx, c.o.Pool, pg.Entry{Slot: slot, Epoch: epoch}, fn)
}

func (c *Consumer) inCellSlot(ctx context.Context, fn func(*pg.Tx) error) error {
	t := c.o.Table.Load()
	if t == nil {
		return errs.ErrUnavailable.Msgf("no route table yet")
	}
	slot, ok := t.CellSlot(c.o.Cell)
	if !ok {
		return errs.ErrUnavailable.Msgf("cell %s isn't in the route table", c.o.Cell)
	}
	return c.inOwned(ctx, slot, fn)
}

func insertParked(ctx context.Context, tx *pg.Tx, m Message, reason error) error {
	raw, err := encode(m)
	if err != nil {
		return err
	}
	return putParked(ctx, tx, m.From, m.ID, digest(m), reason, raw)
}

// putParked keeps the first of equal messages. What jsonb can't hold is kept as
// base64.
func putParked(ctx context.Context, tx *pg.Tx, from routing.Slot, id, sum string, reason error, raw []byte) error {
	if !json.Valid(raw) || !utf8.Valid(raw) || bytes.Contains(raw, []byte(`\u0000`)) {
		raw, _ = json.Marshal(struct{ Base64 []byte }{raw}) // can't fail
	}
	_, err := tx.Exec(ctx, `INSERT INTO cell.parked (slot, from_slot, id, digest, reason, message) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (slot, from_slot, id, digest) DO NOTHING`,
		tx.Slot, from, storable(id), sum, storable(reason.Error()), raw)
	return err
}

// storable is a text that Postgres takes.
func storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s[:min(len(s), 2000)], "?"), "\x00", "?")
}

// parkMalformed keeps what isn't a message, in the cell's own slot.
func (c *Consumer) parkMalformed(ctx context.Context, subject string, data []byte, why error) Result {
	ctx, cancel := context.WithTimeout(ctx, pg.TxTimeout)
	defer cancel()
	sum := sha256.Sum256(data)
	name := hex.EncodeToString(sum[:])
	reason := fmt.Errorf("not a message, on %s: %w", subject, why)
	err := c.inCellSlot(ctx, func(tx *pg.Tx) error {
		return putParked(ctx, tx, tx.Slot, "malformed:"+name[:16], name, reason, data)
	})
	if err != nil {
		return Result{Outcome: Again, Err: err}
	}
	c.alarm(Message{ID: "malformed:" + name[:16]}, reason)
	return Result{Outcome: Parked, Err: reason}
}

// alarm is for a person: something needs a look and won't mend by itself.
func (c *Consumer) alarm(m Message, reason error) {
	c.metrics.parked.Inc()
	c.o.Log.Error("message parked", "alarm", true, "id", m.ID, "kind", m.Kind, "from", m.From, "to", m.To,
		"from_cell", m.FromCell, "trace", m.Trace, "reason", reason)
}
