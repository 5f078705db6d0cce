package bus

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/routing"
)

// ConsumerOptions is what a service's consumer needs.
type ConsumerOptions struct {
	Service string // handles the messages of this name
	Cell    string
	Pool    *pgxpool.Pool
	NATSURL string      // of the own cell
	Dialer  link.Dialer // to the others' NATS
	Table   *routing.Holder
	Log     *slog.Logger
	Metrics *obs.Metrics // nil = nobody looks
	Workers int          // messages handled at the same time; 0 = half of Pool, so that requests get the other
	Batch   int          // messages in one transaction at most, where their kind allows several; 0 = DefaultBatch
}

// Consumer pulls the messages for one service of one cell from every cell, and
// runs each in one transaction, or several of one kind in one. Handlers are
// registered before Run.
type Consumer struct {
	o        ConsumerOptions
	handlers map[string]Handler
	replies  map[string]ReplyHandler

	many        map[string]ManyHandler
	manyReplies map[string]ManyReplyHandler
	queues      map[string]chan item // by kind, of those that are handled together

	own     atomic.Pointer[nats.Conn] // nil before Run and after it
	work    chan struct{}             // one token for each message in work
	retries chan struct{}             // and one of these if it isn't the first try
	fails   failures
	metrics consumerMetrics
	timing  timing
	step    func(name string) error // a failpoint of the tests, nil else
}

// timing has the consumer's waits, which tests shorten.
type timing struct {
	pull      time.Duration // one pull request stays open that long
	heartbeat time.Duration // the server shows that long at most that it still knows the pull
	ackWait   time.Duration // then the server gives the message again
	nakFirst  time.Duration // delay after the first failure, then four times as long
	nakLast   time.Duration
	silent    time.Duration // nothing came that long: look whether something should have
}

type consumerMetrics struct {
	received   *prometheus.CounterVec // source
	handled    *prometheus.CounterVec // kind, outcome
	batches    *prometheus.CounterVec // kind
	undone     *prometheus.CounterVec // kind
	forwarded  *prometheus.CounterVec // destination
	parked     prometheus.Counter
	duplicates prometheus.Counter
	rebuilt    *prometheus.CounterVec // source
}

// NewConsumer makes a consumer; nothing connects before Run.
func NewConsumer(o ConsumerOptions) *Consumer {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = obs.New(o.Cell, o.Service)
	}
	if o.Workers <= 0 {
		o.Workers = max(2, int(o.Pool.Config().MaxConns)/2)
	}
	if o.Batch <= 0 {
		o.Batch = DefaultBatch
	}
	o.Log = o.Log.With("part", "bus")
	c := &Consumer{
		many: map[string]ManyHandler{}, manyReplies: map[string]ManyReplyHandler{},
		o: o, handlers: map[string]Handler{}, replies: map[string]ReplyHandler{}, work: make(chan struct{}, o.Workers),
		retries: make(chan struct{}, max(1, o.Workers/2)),
		timing: timing{
			pull: 5 * time.Second, heartbeat: time.Second, ackWait: 10 * time.Second,
			nakFirst: 100 * time.Millisecond, nakLast: 15 * time.Second, silent: 10 * time.Second,
		},
	}
	m := o.Metrics
	c.metrics = consumerMetrics{
		received:   m.Counter("cellmart_bus_received_total", "Messages received, by the cell they were pulled from.", "source"),
		handled:    m.Counter("cellmart_bus_handled_total", "Messages by what became of them.", "kind", "outcome"),
		batches:    m.Counter("cellmart_bus_batches_total", "Transactions of messages whose kind may be handled together, however many they were.", "kind"),
		undone:     m.Counter("cellmart_bus_batches_undone_total", "Such transactions that came to nothing: each message was then handled alone.", "kind"),
		forwarded:  m.Counter("cellmart_bus_forwarded_total", "Messages sent on to a slot's new owner.", "destination"),
		parked:     m.Counter("cellmart_bus_parked_total", "Messages put aside because nobody could handle them: an alarm.").WithLabelValues(),
		duplicates: m.Counter("cellmart_bus_duplicates_total", "Messages that had been handled before.").WithLabelValues(),
		rebuilt:    m.Counter("cellmart_bus_rebuilt_total", "JetStream consumers made again because they were silent.", "source"),
	}
	return c
}

// Handle registers who takes requests of a kind.
func (c *Consumer) Handle(kind string, h Handler) { c.handlers[kind] = h }

// HandleReply registers who takes replies of a kind.
func (c *Consumer) HandleReply(kind string, h ReplyHandler) { c.replies[kind] = h }

// Service is the name whose messages this consumer takes.
func (c *Consumer) Service() string { return c.o.Service }

// Poke tells the cell's dispatcher that the outbox has something new. Business
// transactions call it with tx.AfterCommit(c.Poke). Best effort: without it the
// dispatcher finds the message within a second.
func (c *Consumer) Poke() {
	if nc := c.own.Load(); nc != nil && nc.IsConnected() {
		_ = nc.Publish(PokeSubject, nil) // nobody depends on it
	}
}

// Run pulls from every cell of the table, and follows the table, until ctx
// ends; messages in work are finished first. The error is a wrong NATSURL:
// whatever else is missing is waited for.
func (c *Consumer) Run(ctx context.Context) error {
	nc, err := connectOwn(c.o.NATSURL, c.o.Service+"."+c.o.Cell, c.o.Log)
	if err != nil {
		return err
	}
	defer nc.Close()
	c.own.Store(nc)
	defer c.own.Store(nil)
	c.makeQueues()
	var wg, batching sync.WaitGroup
	c.runBatchers(&batching)
	defer func() { // what is queued is handled before its source ends
		for _, q := range c.queues {
			close(q)
		}
		batching.Wait()
	}()
	running := map[string]context.CancelFunc{}
	for ctx.Err() == nil {
		changed := c.o.Table.Changed()
		if t := c.o.Table.Load(); t != nil {
			c.follow(ctx, t, nc, running, &wg)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	for _, cancel := range running {
		cancel()
	}
	wg.Wait()
	return nil
}

// follow starts a source for each new cell and ends those of removed cells.
func (c *Consumer) follow(ctx context.Context, t *routing.Table, own *nats.Conn, running map[string]context.CancelFunc, wg *sync.WaitGroup) {
	for name, cancel := range running {
		if _, ok := t.Cell(name); !ok {
			cancel()
			delete(running, name)
		}
	}
	for _, cell := range t.Cells() {
		if running[cell.Name] != nil {
			continue
		}
		sctx, cancel := context.WithCancel(ctx)
		running[cell.Name] = cancel
		wg.Go(func() {
			defer cancel()
			c.pullFrom(sctx, cell.Name, own)
		})
	}
}

// pullFrom runs one source until ctx ends.
func (c *Consumer) pullFrom(ctx context.Context, cell string, nc *nats.Conn) {
	log := c.o.Log.With("source", cell)
	if cell != c.o.Cell {
		far, err := connectCell(c.o.Dialer, cell, c.o.Service+"."+c.o.Cell, c.o.Log)
		if err != nil {
			log.Error("can't pull from a cell", "error", err) // can't happen: only a malformed URL fails
			return
		}
		defer far.Close()
		nc = far
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(2*time.Second))
	if err != nil {
		log.Error("can't pull from a cell", "error", err) // can't happen: no option is wrong
		return
	}
	s := &source{c: c, cell: cell, nc: nc, js: js, log: log}
	s.run(ctx)
	if nc.IsConnected() {
		_ = nc.FlushTimeout(time.Second) // the last acks; without them the messages only come twice
	}
}

// forward publishes a message for a slot that isn't here any more to its owner,
// through this cell's own stream. Hops end an argument between two cells that
// both think the other has it; the source sends the message again.
func (c *Consumer) forward(ctx context.Context, m Message, owner string) Result {
	if m.Hop >= maxHops {
		c.dropped(m)
		c.o.Log.Warn("message dropped after too many hops", "id", m.ID, "slot", m.To, "owner", owner)
		return Result{Outcome: Dropped, Owner: owner}
	}
	nc := c.own.Load()
	if nc == nil || !nc.IsConnected() {
		return Result{Outcome: Again, Owner: owner, Err: nats.ErrDisconnected}
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return Result{Outcome: Again, Owner: owner, Err: err}
	}
	m.Hop++
	data, err := encode(m)
	if err != nil {
		return Result{Outcome: Again, Owner: owner, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	// No message id: the stream must not take a second hop for a duplicate of the first.
	if _, err := js.Publish(ctx, Subject(owner, m.Service, m.Kind), data); err != nil {
		return Result{Outcome: Again, Owner: owner, Err: fmt.Errorf("sending on to %s: %w", owner, err)}
	}
	c.metrics.forwarded.WithLabelValues(owner).Inc()
	return Result{Outcome: Forwarded, Owner: owner}
}

// dropped counts a copy that was let go: its source sends another.
func (c *Consumer) dropped(m Message) {
	c.metrics.handled.WithLabelValues(c.kindLabel(m.Kind), string(Dropped)).Inc()
}
