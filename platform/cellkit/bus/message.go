package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// Message is one request or reply on the wire. The slots are numbers of their
// own, never derived from an ID.
type Message struct {
	ID           string          `json:"id"`      // kind:key, unique in the source slot
	Kind         string          `json:"kind"`    // transfer.credit
	Key          string          `json:"key"`     // business key: the transfer's id
	Service      string          `json:"service"` // who handles it: user, order, inventory
	From         routing.Slot    `json:"from"`
	To           routing.Slot    `json:"to"`
	FromCell     string          `json:"from_cell"` // who sent this attempt, for people
	Body         json.RawMessage `json:"body"`
	ReplyService string          `json:"reply_service,omitempty"` // a request: who handles the reply
	ReplyTo      string          `json:"reply_to,omitempty"`      // a reply: the request's ID
	Attempt      int             `json:"attempt"`
	Hop          int             `json:"hop,omitempty"` // times it was sent on for a moved slot
	Trace        string          `json:"trace,omitempty"`
	Early        bool            `json:"early,omitempty"` // it left before its slot's standby had it
	Echo         bool            `json:"echo,omitempty"`  // a reply to such a request: who asked may have forgotten it
}

// Decode reads the body; a body that doesn't fit is an error to park.
func (m Message) Decode(v any) error {
	if err := json.Unmarshal(m.Body, v); err != nil {
		return Park(fmt.Errorf("body of %s: %w", m.ID, err))
	}
	return nil
}

// Request is what a business transaction sends to another slot.
type Request struct {
	Service      string       // who handles it there
	Kind         string       // transfer.credit
	Key          string       // unique for the kind within the sender's slot
	To           routing.Slot // resolved to a cell when it is sent
	Body         any
	ReplyService string // who handles the reply here
	Trace        string

	// Early says that the request may leave before the slot's standby has it (P4.1):
	// only what expires by itself, so that nothing final is built on it.
	Early bool
}

// Reply is a handler's answer. Every kind has a final one.
type Reply struct {
	Kind  string // transfer.credited
	Body  any
	Early bool // as Request.Early; a reply that is made again from the inbox is held
}

// Handler takes a request, once for each message id, in a transaction that has
// entered m.To. An error undoes everything: *errs.Error of kind Unavailable or
// Misrouted and unknown errors are tried again, Park keeps the message aside.
type Handler func(ctx context.Context, tx *pg.Tx, m Message) (Reply, error)

// ReplyHandler takes a reply in a transaction that has entered the slot of the
// request, whose outbox row it holds locked and open. final closes the request:
// it is sent no more.
type ReplyHandler func(ctx context.Context, tx *pg.Tx, reply Message) (final bool, err error)

// parkError marks a message that must not be tried again.
type parkError struct{ err error }

func (p parkError) Error() string { return "parked: " + p.err.Error() }
func (p parkError) Unwrap() error { return p.err }

// Park is returned by a handler for a message that nobody can handle: it is kept
// in cell.parked with an alarm, and acknowledged without a reply.
func Park(err error) error { return parkError{err} }

// MessageID is the id of the request of that kind and key.
func MessageID(kind, key string) string { return kind + ":" + key }

// Send writes a request to the outbox in the caller's transaction. The same kind
// and key in one slot is the same request: the second Send does nothing.
func Send(ctx context.Context, tx *pg.Tx, r Request) error {
	body, err := json.Marshal(r.Body)
	if err != nil {
		return fmt.Errorf("body of %s: %w", r.Kind, err)
	}
	_, err = tx.Exec(ctx, `INSERT INTO cell.outbox (slot, id, to_slot, service, kind, key, body, reply_service, trace, early)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (slot, id) DO NOTHING`,
		tx.Slot, MessageID(r.Kind, r.Key), r.To, r.Service, r.Kind, r.Key, body, r.ReplyService, r.Trace, r.Early)
	return err
}

// Close ends a request of this slot whose answer no longer matters. One that is
// locked is left alone: somebody is handling its answer and ends it, and waiting
// for them while they wait for what the caller holds would be a deadlock.
func Close(ctx context.Context, tx *pg.Tx, kind, key string) error {
	_, err := tx.Exec(ctx, `UPDATE cell.outbox o SET closed_at = now() FROM (
			SELECT slot, id FROM cell.outbox WHERE slot = $1 AND id = $2 AND closed_at IS NULL FOR UPDATE SKIP LOCKED) open
		WHERE o.slot = open.slot AND o.id = open.id`, tx.Slot, MessageID(kind, key))
	return err
}

// IDKey is the usual key: an ID in decimal.
func IDKey(i id.ID) string { return i.String() }

// Asked counts the requests of one kind, each once however often it was sent:
// those for slots of the own cell, those that left it, and among the latter those
// that begin what a person asked for.
type Asked struct{ Local, Messaged, Begun uint64 }

// asked counts requests by kind, since the start.
type asked struct {
	total *prometheus.CounterVec // kind, way
	mu    sync.Mutex
	kinds map[string]Asked
}

func newAsked(m *obs.Metrics) *asked {
	return &asked{
		total: m.Counter("cellmart_bus_asked_total", "Requests by message, each counted once: local stayed in the cell, messaged left it.", "kind", "way"),
		kinds: map[string]Asked{},
	}
}

// Asked gives what was counted since the start, by kind.
func (d *Dispatcher) Asked() map[string]Asked {
	d.asked.mu.Lock()
	defer d.asked.mu.Unlock()
	return maps.Clone(d.asked.kinds)
}

// count counts a request when it is claimed for its first attempt. What only goes
// out at a later one, because the stream was away, was counted then too.
func (d *Dispatcher) count(n note, t *routing.Table) {
	a, ok := t.Slot(n.To)
	if !ok || n.Attempt != 1 || n.ReplyTo != "" {
		return
	}
	d.asked.mu.Lock()
	defer d.asked.mu.Unlock()
	k := d.asked.kinds[n.Kind]
	way := "local"
	if a.Owner == d.o.Cell {
		k.Local++
	} else {
		way = "messaged"
		k.Messaged++
		if d.o.Begins != nil && d.o.Begins(n.Message) {
			k.Begun++
		}
	}
	d.asked.kinds[n.Kind] = k
	d.asked.total.WithLabelValues(n.Kind, way).Inc()
}
