package bus

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

const (
	maxHops  = 4  // times a message is sent on for a moved slot
	maxTries = 20 // failures for an unknown reason before a message is parked
)

// Outcome is what became of a message.
type Outcome string

// The outcomes. All but Again are acknowledged.
const (
	Handled   Outcome = "handled"
	Duplicate Outcome = "duplicate" // handled before; the reply goes out again
	Parked    Outcome = "parked"
	Elsewhere Outcome = "elsewhere" // Owner has the slot
	Forwarded Outcome = "forwarded" // and was sent on to it
	Dropped   Outcome = "dropped"   // too many hops or tries; the source sends it again
	Forgotten Outcome = "forgotten" // a reply to what left early, and was lost with its cell
	Again     Outcome = "again"     // a passing reason, in Err
)

// Result is an Outcome with its reason.
type Result struct {
	Outcome Outcome
	Owner   string
	Err     error // Parked: why; Again: what is in the way
}

// Deliver runs one message through its transaction, without NATS.
func (c *Consumer) Deliver(ctx context.Context, m Message) Result {
	res := c.deliver(ctx, m)
	c.metrics.handled.WithLabelValues(c.kindLabel(m.Kind), string(res.Outcome)).Inc()
	switch res.Outcome {
	case Handled:
		c.Poke()
	case Duplicate:
		c.metrics.duplicates.Inc()
		c.Poke()
	case Parked:
		c.alarm(m, res.Err)
	}
	return res
}

// kindLabel keeps kinds that nobody registered out of the metrics' labels.
func (c *Consumer) kindLabel(kind string) string {
	if c.handlers[kind] != nil || c.replies[kind] != nil {
		return kind
	}
	return "other"
}

// deliver enters the slot as the table says; when the table or the database
// then turns out to be behind, the higher epoch of the two decides.
func (c *Consumer) deliver(ctx context.Context, m Message) Result {
	table := c.o.Table.Load()
	if table == nil {
		return Result{Outcome: Again, Err: errs.ErrUnavailable.Msgf("no route table yet")}
	}
	if a, ok := table.Slot(m.To); ok && a.Owner == c.o.Cell {
		res := c.run(ctx, pg.Entry{Slot: m.To, Epoch: a.Epoch}, m)
		if !errs.IsKind(res.Err, errs.Misrouted) {
			return res
		}
	}
	owner, epoch, err := c.locate(ctx, m.To)
	switch {
	case err != nil:
		return Result{Outcome: Again, Err: err}
	case owner != c.o.Cell:
		return Result{Outcome: Elsewhere, Owner: owner}
	}
	return c.run(ctx, pg.Entry{Slot: m.To, Epoch: epoch}, m)
}

// locate says who owns a slot by the newer of the route table and the cell's
// own row, which usually comes first.
func (c *Consumer) locate(ctx context.Context, slot routing.Slot) (string, routing.Epoch, error) {
	a, known := c.o.Table.Load().Slot(slot)
	ctx, cancel := context.WithTimeout(ctx, pg.TxTimeout)
	defer cancel()
	var owner string
	var epoch routing.Epoch
	err := c.o.Pool.QueryRow(ctx, "SELECT coalesce(given_to, owner), epoch + (given_to IS NOT NULL)::int FROM cell.slots WHERE slot = $1",
		slot).Scan(&owner, &epoch)
	switch {
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return "", 0, pg.Error(err)
	case err == nil && (!known || epoch > a.Epoch || epoch == a.Epoch && owner == a.Owner):
		return owner, epoch, nil
	case known && a.Owner != c.o.Cell:
		return a.Owner, a.Epoch, nil
	}
	return "", 0, errs.ErrUnavailable.Msgf("slot %d: the table says %q, the database %q at epoch %d", slot, a.Owner, owner, epoch)
}

// run is one message in one transaction. Misrouted comes back as Again with
// that error, for deliver to look further.
func (c *Consumer) run(ctx context.Context, e pg.Entry, m Message) Result {
	ctx, cancel := context.WithTimeout(ctx, pg.TxTimeout)
	defer cancel()
	var res Result
	err := pg.InSlot(ctx, c.o.Pool, e, func(tx *pg.Tx) error {
		var err error
		if m.ReplyTo != "" {
			res, err = c.reply(ctx, tx, m)
		} else {
			res, err = c.request(ctx, tx, m)
		}
		if err == nil {
			err = c.at("commit")
		}
		return err
	})
	if err == nil {
		c.fails.forget(m)
		return res
	}
	var park parkError
	switch {
	case errors.As(err, &park):
		return c.park(ctx, m, park.err, true)
	case errs.IsKind(err, errs.Unavailable), errs.IsKind(err, errs.Misrouted):
		return Result{Outcome: Again, Err: err}
	}
	if n := c.fails.count(m); n >= maxTries {
		return c.park(ctx, m, fmt.Errorf("failed %d times, last: %w", n, err), false)
	}
	return Result{Outcome: Again, Err: err}
}

// request takes the inbox row first: of two copies at the same time the second
// waits here for the first one's commit, and then finds its row.
func (c *Consumer) request(ctx context.Context, tx *pg.Tx, m Message) (Result, error) {
	print, err := fingerprint(m)
	if err != nil {
		return Result{}, Park(err)
	}
	var parked bool
	err = tx.QueryRow(ctx, `INSERT INTO cell.inbox (slot, from_slot, id, fingerprint) VALUES ($1, $2, $3, $4)
		ON CONFLICT (slot, from_slot, id) DO NOTHING
		RETURNING EXISTS (SELECT FROM cell.parked WHERE slot = $1 AND from_slot = $2 AND id = $3 AND resolved_at IS NULL)`,
		tx.Slot, m.From, m.ID, print).Scan(&parked)
	again := errors.Is(err, pgx.ErrNoRows)
	if err != nil && !again {
		return Result{}, err
	}
	if err := c.at("inbox"); err != nil {
		return Result{}, err
	}
	if again {
		return c.repeat(ctx, tx, m, print)
	}
	h := c.handlers[m.Kind]
	if h == nil {
		return Result{}, fmt.Errorf("nobody here handles %s", m.Kind) // a newer version may
	}
	var answer Reply
	if err := safely(func() (err error) { answer, err = h(ctx, tx, m); return err }); err != nil {
		return Result{}, err
	}
	if err := c.at("handled"); err != nil {
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
	if parked { // before, when whatever it needed wasn't there; one that is parked at this moment waits for a person
		b.Queue("UPDATE cell.parked SET resolved_at = now() WHERE slot = $1 AND from_slot = $2 AND id = $3 AND digest = $4 AND resolved_at IS NULL",
			tx.Slot, m.From, m.ID, digest(m))
	}
	queueReply(b, tx.Slot, m, answer.Kind, body, answer.Early)
	return Result{Outcome: Handled}, tx.SendBatch(ctx, b).Close()
}

// repeat answers a request that was handled before with the reply it got then.
func (c *Consumer) repeat(ctx context.Context, tx *pg.Tx, m Message, print []byte) (Result, error) {
	var had, body []byte
	var kind string
	err := tx.QueryRow(ctx, "SELECT fingerprint, reply_kind, reply_body FROM cell.inbox WHERE slot = $1 AND from_slot = $2 AND id = $3",
		tx.Slot, m.From, m.ID).Scan(&had, &kind, &body)
	if err != nil {
		return Result{}, err
	}
	if !bytes.Equal(had, print) {
		reason := errors.New("the same id came before with another kind or body")
		return Result{Outcome: Parked, Err: reason}, insertParked(ctx, tx, m, reason)
	}
	if kind == "" { // parked: it has no reply
		return Result{Outcome: Duplicate}, nil
	}
	b := &pgx.Batch{}
	queueReply(b, tx.Slot, m, kind, body, false)
	return Result{Outcome: Duplicate}, tx.SendBatch(ctx, b).Close()
}

// queueReply writes the reply, or touches the one that is there: either makes
// its relay note.
func queueReply(b *pgx.Batch, slot routing.Slot, m Message, kind string, body []byte, early bool) {
	b.Queue(`INSERT INTO cell.outbox (slot, id, to_slot, service, kind, key, body, reply_to, trace, early, echo)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (slot, id) DO UPDATE SET trace = excluded.trace`,
		slot, ReplyID(m.From, m.ID), m.From, m.ReplyService, kind, m.Key, body, m.ID, m.Trace, early, m.Early)
}

// ReplyID is the id of the reply to a request. It has the slot the request came
// from, since ids are unique only within a slot.
func ReplyID(from routing.Slot, id string) string { return "re:" + strconv.Itoa(int(from)) + ":" + id }

// reply locks the request that it answers; a closed one has had its answer.
func (c *Consumer) reply(ctx context.Context, tx *pg.Tx, m Message) (Result, error) {
	var closed bool
	err := tx.QueryRow(ctx, "SELECT closed_at IS NOT NULL FROM cell.outbox WHERE slot = $1 AND id = $2 AND reply_to = '' FOR UPDATE",
		tx.Slot, m.ReplyTo).Scan(&closed)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && m.Echo: // nothing final came of it, or the reply would have waited
		return Result{Outcome: Forgotten}, nil
	case errors.Is(err, pgx.ErrNoRows):
		return Result{}, Park(fmt.Errorf("a reply to %s, which was never sent from slot %d", m.ReplyTo, tx.Slot))
	case err != nil:
		return Result{}, err
	case closed:
		return Result{Outcome: Duplicate}, nil
	}
	if err := c.at("locked"); err != nil {
		return Result{}, err
	}
	h := c.replies[m.Kind]
	if h == nil {
		return Result{}, fmt.Errorf("nobody here handles the reply %s", m.Kind)
	}
	var final bool
	if err := safely(func() (err error) { final, err = h(ctx, tx, m); return err }); err != nil {
		return Result{}, err
	}
	if err := c.at("handled"); err != nil {
		return Result{}, err
	}
	if !final {
		return Result{Outcome: Handled}, nil
	}
	raw, err := encode(m)
	if err != nil {
		return Result{}, err
	}
	// The handler may have closed it itself.
	_, err = tx.Exec(ctx, "UPDATE cell.outbox SET closed_at = now(), reply = $3 WHERE slot = $1 AND id = $2 AND closed_at IS NULL",
		tx.Slot, m.ReplyTo, raw)
	return Result{Outcome: Handled}, err
}

// safely makes an error of a handler's panic: one bad message must not end the
// process and come again to its next start.
func safely(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

func (c *Consumer) at(step string) error {
	if c.step == nil {
		return nil
	}
	return c.step(step)
}

// fingerprint tells messages of the same id apart. The body is brought to one
// form first: a JSON value may be written in many ways.
func fingerprint(m Message) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(m.Body))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("body of %s: %w", m.ID, err)
	}
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(append([]byte(m.Kind+"\x00"), body...))
	return sum[:], nil
}

// digest is the message without what differs between its attempts.
func digest(m Message) string {
	m.Attempt, m.Hop, m.FromCell, m.Trace = 0, 0, "", ""
	raw, err := encode(m)
	if err != nil {
		raw = []byte(m.ID)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// failures counts, in this process, how often a message failed for an unknown
// reason. The zero value is ready.
type failures struct {
	mu sync.Mutex
	n  map[string]int
}

const maxCounted = 10_000 // messages; more than that failing at once isn't the messages' fault

func (f *failures) count(m Message) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == nil || len(f.n) > maxCounted {
		f.n = map[string]int{}
	}
	key := digest(m)
	f.n[key]++
	return f.n[key]
}

func (f *failures) forget(m Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.n) > 0 {
		delete(f.n, digest(m))
	}
}
