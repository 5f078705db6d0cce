package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/routing"
)

// DispatcherOptions is what a cell's dispatcher needs.
type DispatcherOptions struct {
	Cell     string
	Pool     *pgxpool.Pool // as the agent's role
	NATSURL  string        // of the own cell
	Table    *routing.Holder
	Log      *slog.Logger
	Metrics  *obs.Metrics // nil = nobody looks
	MaxBytes int64        // of each stream, 0 = 256 MiB

	// Commit holds what isn't early until it may leave (P4); nil = nothing is held.
	// It is this dispatcher's own.
	Commit Commit

	// Begins says of a request whether it begins what a person asked for, so that
	// each of those is counted once; nil = none does.
	Begins func(m Message) bool
}

// Dispatcher sends what is due in the outbox to the cell's own streams, one for
// each destination. Several may run for one cell.
type Dispatcher struct {
	o      DispatcherOptions
	relay  relay
	nc     *nats.Conn
	js     jetstream.JetStream
	poke   chan struct{}
	heal   chan struct{}
	held   map[key]note            // of loop alone, as is the next
	crowd  map[string]int          // of them, by standby
	step   func(name string) error // a failpoint of the tests, nil else
	sent   *prometheus.CounterVec  // destination
	failed *prometheus.CounterVec  // reason
	late   prometheus.Gauge
	oldest prometheus.Gauge
	open   prometheus.Gauge
	asked  *asked
}

const (
	dispatchBatch = 256
	ackLimit      = 3 * time.Second // a publish not acknowledged by then counts as not sent
	retryAfter    = time.Second     // after a publish that didn't get through
	busyPoll      = 25 * time.Millisecond
	roundsApart   = 5 * time.Millisecond // at least, so that under load a round has more than a note or two
	idlePoll      = time.Second
	checkEvery    = 10 * time.Second // the streams' existence

	codeNotStored jetstream.ErrorCode = 10077 // the server's JSStreamStoreFailed; the client has no name for it
)

// NewDispatcher makes a dispatcher; nothing connects before Run.
func NewDispatcher(o DispatcherOptions) *Dispatcher {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = obs.New(o.Cell, "agent")
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 256 << 20
	}
	o.Log = o.Log.With("part", "dispatcher")
	m := o.Metrics
	return &Dispatcher{
		o: o, asked: newAsked(m), relay: relay{o.Pool}, poke: make(chan struct{}, 1), heal: make(chan struct{}, 1), held: map[key]note{}, crowd: map[string]int{},
		sent:   m.Counter("cellmart_bus_sent_total", "Messages that a stream has acknowledged.", "destination"),
		failed: m.Counter("cellmart_bus_unsent_total", "Messages that didn't go out, and stay due.", "reason"),
		late:   m.Gauge("cellmart_bus_due_age_seconds", "How long the most overdue message has been due.").WithLabelValues(),
		oldest: m.Gauge("cellmart_bus_open_age_seconds", "Age of the oldest message without its final reply.").WithLabelValues(),
		open:   m.Gauge("cellmart_bus_open", "Messages without their final reply, and replies not sent yet.").WithLabelValues(),
	}
}

// Run sends until ctx ends. The error is a wrong NATSURL: whatever else is
// missing is waited for.
func (d *Dispatcher) Run(ctx context.Context) error {
	nc, err := connectOwn(d.o.NATSURL, "dispatcher."+d.o.Cell, d.o.Log,
		nats.ConnectHandler(func(*nats.Conn) { signal(d.heal) }))
	if err != nil {
		return err
	}
	defer nc.Close()
	nc.SetReconnectHandler(func(*nats.Conn) { signal(d.heal) })
	d.nc = nc
	// The library tries a missing stream again by itself, with the same message id; making the stream and
	// a new attempt do better.
	d.js, err = jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(2*dispatchBatch), jetstream.WithPublishAsyncTimeout(ackLimit))
	if err != nil {
		return err
	}
	if _, err := nc.Subscribe(PokeSubject, func(*nats.Msg) { signal(d.poke) }); err != nil {
		return fmt.Errorf("subscribing to %s: %w", PokeSubject, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { d.keepStreams(ctx) })
	wg.Go(func() { d.observe(ctx) })
	d.loop(ctx)
	wg.Wait()
	return nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// loop looks for due notes: at once after a full round, after a poke when the last
// round isn't of this moment, every 25 ms while there is something to do, slower and
// slower when there isn't.
func (d *Dispatcher) loop(ctx context.Context) {
	pause := busyPoll
	var said string
	for ctx.Err() == nil {
		next := time.Now().Add(roundsApart)
		n, err := d.round(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			if err.Error() != said {
				said = err.Error()
				d.o.Log.Warn("dispatch", "error", err)
			}
			pause = idlePoll
		case n == dispatchBatch:
			continue
		case n > 0:
			said, pause = "", busyPoll
		default:
			pause = min(2*pause, idlePoll)
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-d.poke:
			pause = busyPoll
		case <-d.ready():
			pause = busyPoll
		case <-t.C:
		}
		t.Stop()
		wait(ctx, time.Until(next))
	}
}

// round claims one batch, and sends what of it isn't held, with what was held
// before and may leave now. It gives how many notes it had to do with.
func (d *Dispatcher) round(ctx context.Context) (int, error) {
	table := d.o.Table.Load()
	if table == nil || !d.nc.IsConnected() {
		return 0, nil // the notes stay due
	}
	cctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	notes, err := d.relay.claim(cctx, dispatchBatch, d.o.Commit != nil)
	if err != nil {
		return 0, fmt.Errorf("claiming notes: %w", err)
	}
	if len(notes) > 0 {
		if err := d.at("claimed"); err != nil {
			return len(notes), err
		}
	}
	for _, n := range notes {
		d.count(n, table)
	}
	leave := append(d.admit(notes), d.released(table)...)
	n := max(len(notes), min(len(leave), dispatchBatch-1)) // only a full claim says that there is more
	if len(leave) == 0 {
		return n, nil
	}
	replies, unsent := d.publish(table, leave)
	if err := d.at("published"); err != nil {
		return n, err
	}
	// What was published is settled even when ctx has ended.
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	err = errors.Join(d.relay.sent(sctx, replies), d.relay.unsent(sctx, unsent, retryAfter))
	if err != nil {
		return n, fmt.Errorf("settling notes: %w", err)
	}
	return n, nil
}

// publish sends each note on its own, all in flight at the same time, so that a
// bad one, a full stream or a duplicate stops no other (S-M05). It gives the
// replies that are through, and what didn't go out. A note that nobody can take (a
// slot that no cell has, a stream that a cell which is away has left full) keeps
// the claim's long wait.
func (d *Dispatcher) publish(table *routing.Table, notes []note) (replies, unsent []note) {
	type flight struct {
		note
		owner string
		ack   jetstream.PubAckFuture
	}
	var flights []flight
	var bad complaints
	for _, n := range notes {
		a, ok := table.Slot(n.To)
		if !ok {
			bad.add("no_owner", n, fmt.Errorf("no cell has slot %d", n.To))
			continue
		}
		if !validWords(n.Service) || !validWords(n.Kind) {
			bad.add("subject", n, fmt.Errorf("service %q or kind %q can't be in a subject", n.Service, n.Kind))
			continue
		}
		ack, err := d.send(n, a.Owner)
		if err != nil {
			bad.add("publish", n, err)
			unsent = append(unsent, n)
			continue
		}
		flights = append(flights, flight{n, a.Owner, ack})
	}
	for _, f := range flights {
		select {
		case ack := <-f.ack.Ok():
			if ack.Duplicate { // of what? This id is new: the stream is wrong (S-M04)
				bad.add("duplicate", f.note, errors.New("the stream took a new id for a duplicate"))
				unsent = append(unsent, f.note)
				continue
			}
			d.sent.WithLabelValues(f.owner).Inc()
			if f.ReplyTo != "" {
				replies = append(replies, f.note)
			}
		case err := <-f.ack.Err():
			if full(err) {
				bad.add("full", f.note, err)
				continue
			}
			bad.add("publish", f.note, err)
			if errors.Is(err, jetstream.ErrNoStreamResponse) {
				signal(d.heal)
			}
			unsent = append(unsent, f.note)
		}
	}
	d.complain(bad)
	return replies, unsent
}

// full says whether a stream refused a message for lack of room.
func full(err error) bool {
	var e *jetstream.APIError
	return errors.As(err, &e) && e.ErrorCode == codeNotStored
}

// complaints are the notes of a round that didn't go out: one line in the log for
// each reason, however many there are.
type complaints map[string][]complaint

type complaint struct {
	note
	err error
}

func (c *complaints) add(reason string, n note, err error) {
	if *c == nil {
		*c = complaints{}
	}
	(*c)[reason] = append((*c)[reason], complaint{n, err})
}

func (d *Dispatcher) complain(c complaints) {
	for reason, list := range c {
		d.failed.WithLabelValues(reason).Add(float64(len(list)))
		n := list[0]
		d.o.Log.Warn("messages stay due", "reason", reason, "count", len(list), "first", n.ID, "slot", n.From, "to", n.To,
			"attempt", n.Attempt, "error", n.err)
	}
}

// send publishes one attempt. Its message id is new: the window in which the
// stream looks for duplicates must not swallow a message that was lost (S-M04).
func (d *Dispatcher) send(n note, owner string) (jetstream.PubAckFuture, error) {
	n.FromCell = d.o.Cell
	data, err := encode(n.Message)
	if err != nil {
		return nil, err
	}
	id := fmt.Sprintf("%d/%s/%d.%d", n.From, n.ID, n.rev, n.Attempt)
	return d.js.PublishMsgAsync(&nats.Msg{Subject: Subject(owner, n.Service, n.Kind), Data: data},
		jetstream.WithMsgID(id), jetstream.WithRetryAttempts(0))
}

// keepStreams makes the streams: at the start, when the table's cells or the
// connection change, when a publish finds none, and when a look every 10 s does.
// A table with the same cells is no reason: NATS writes each stream's
// configuration to the disk anew, in the moment in which all take the table.
func (d *Dispatcher) keepStreams(ctx context.Context) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	var said string
	var made *routing.Table
	due := true
	for ctx.Err() == nil {
		changed := d.o.Table.Changed()
		again := (<-chan time.Time)(nil)
		if t := d.o.Table.Load(); due || !sameCells(made, t) {
			made = t
			if err := d.ensure(ctx, t); err != nil && ctx.Err() == nil {
				if err.Error() != said {
					said = err.Error()
					d.o.Log.Warn("streams", "error", err)
				}
				made, again = nil, time.After(500*time.Millisecond)
			}
		}
		due = true
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-again:
		case <-changed:
			due = false
		case <-d.heal:
		}
	}
}

func sameCells(a, b *routing.Table) bool {
	return a != nil && b != nil &&
		slices.EqualFunc(a.Cells(), b.Cells(), func(x, y routing.Cell) bool { return x.Name == y.Name })
}

func (d *Dispatcher) ensure(ctx context.Context, table *routing.Table) error {
	if table == nil || !d.nc.IsConnected() {
		return nil // a change of either comes back here
	}
	var all error
	for _, cell := range table.Cells() {
		sctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := d.js.CreateOrUpdateStream(sctx, d.stream(cell.Name))
		cancel()
		if err != nil {
			all = errors.Join(all, fmt.Errorf("stream %s: %w", Stream(cell.Name), err))
		}
	}
	return all
}

// stream has the form of every XOUT stream: acknowledged messages go, and a full
// one refuses new messages, which stay due in the outbox, rather than lose old ones.
func (d *Dispatcher) stream(cell string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: Stream(cell), Subjects: []string{"x." + cell + ".>"},
		Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage,
		MaxBytes: d.o.MaxBytes, MaxMsgs: -1, MaxMsgsPerSubject: -1, Replicas: 1,
		Duplicates: 2 * time.Second, // of no use to us, and the shortest memory does the least harm
	}
}

// observe keeps the gauges.
func (d *Dispatcher) observe(ctx context.Context) {
	for ctx.Err() == nil {
		sctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		open, oldest, late, err := d.relay.state(sctx)
		cancel()
		if err == nil { // else they keep their age: unknown isn't zero
			d.open.Set(float64(open))
			d.oldest.Set(oldest.Seconds())
			d.late.Set(late.Seconds())
		}
		wait(ctx, 2*time.Second)
	}
}

func (d *Dispatcher) at(step string) error {
	if d.step == nil {
		return nil
	}
	return d.step(step)
}
