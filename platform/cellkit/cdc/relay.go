package cdc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/obs"
)

// Options of a zone's relay.
type Options struct {
	Zone     string
	Pool     *pgxpool.Pool // as the agent's role: state, heartbeats
	DSN      string        // the same database, for connections of its own: replication, copies
	NATSURL  string        // of the own zone
	Sink     string        // the one sink there is: search
	Tables   Tables        // what it takes
	Log      *slog.Logger
	Metrics  *obs.Metrics
	MaxBytes int64         // of the stream, 0 = 256 MiB
	Beat     time.Duration // between heartbeats of an idle database, 0 = 5 s

	step func(name string) error // a failpoint of the tests
}

// Relay publishes what the zone's database commits. One runs at a time: the
// slot serves one reader.
type Relay struct {
	o       Options
	store   store
	nc      *nats.Conn
	asked   chan struct{}
	passing atomic.Int64 // Unix nanoseconds of the last transaction that came through
	moving  atomic.Int64 // the same of the last sign that the server reads on
	metrics relayMetrics
}

type relayMetrics struct {
	messages, rows *prometheus.CounterVec
	losses, copies prometheus.Counter
	running, wal   prometheus.Gauge
}

const (
	statusEvery = 10 * time.Second // well below any sane wal_sender_timeout
	coarseStep  = time.Millisecond
	silentAfter = 12 // heartbeats
)

// NewRelay makes a relay; nothing connects before Run.
func NewRelay(o Options) *Relay {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = obs.New(o.Zone, "agent")
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultBound
	}
	if o.Beat == 0 {
		o.Beat = 5 * time.Second
	}
	o.Log = o.Log.With("part", "cdc")
	m := o.Metrics
	r := &Relay{o: o, store: store{o.Pool}, asked: make(chan struct{}, 1)}
	r.metrics = relayMetrics{
		messages: m.Counter("cellmart_cdc_messages_total", "Messages given to the sink's stream.", "sink", "kind"),
		rows:     m.Counter("cellmart_cdc_rows_total", "Rows given to the sink's stream.", "sink", "kind"),
		losses:   m.Counter("cellmart_cdc_slot_lost_total", "Times that the replication slot was found lost.").WithLabelValues(),
		copies:   m.Counter("cellmart_cdc_copies_total", "Copies made.", "sink").WithLabelValues(o.Sink),
		running:  m.Gauge("cellmart_cdc_relay_running", "1 while the relay reads the WAL.").WithLabelValues(),
		wal:      m.Gauge("cellmart_cdc_wal_retained_bytes", "WAL that the slot keeps, as of the last heartbeat.").WithLabelValues(),
	}
	return r
}

// Run relays until ctx ends. The error is a wrong setting: whatever else is
// missing is waited for.
func (r *Relay) Run(ctx context.Context) error {
	nc, err := bus.Connect(r.o.NATSURL, "cdc."+r.o.Zone, r.o.Log)
	if err != nil {
		return err
	}
	defer nc.Close()
	r.nc = nc
	if _, err := nc.Subscribe(askSubject(r.o.Sink), func(m *nats.Msg) { r.answer(ctx, m) }); err != nil {
		return fmt.Errorf("subscribe to %s: %w", askSubject(r.o.Sink), err)
	}
	pause, said := time.Duration(0), ""
	for ctx.Err() == nil {
		start := time.Now()
		err := r.session(ctx)
		r.metrics.running.Set(0)
		if ctx.Err() != nil {
			break
		}
		if time.Since(start) > time.Minute {
			pause, said = 0, ""
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			r.o.Log.Warn("relay begins again", "error", err)
		}
		pause = min(max(2*pause, 200*time.Millisecond), 5*time.Second)
		sleep(ctx, pause)
	}
	return nil
}

// session relays from what Postgres was told to the first trouble.
func (r *Relay) session(ctx context.Context) error {
	if !r.nc.IsConnected() {
		return nats.ErrDisconnected
	}
	conn, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	sys, err := pglogrepl.IdentifySystem(ctx, conn)
	if err != nil {
		return fmt.Errorf("identify the database: %w", err)
	}
	identity := Message{Zone: r.o.Zone}
	if identity.Incarnation, err = r.store.identity(ctx, sys); err != nil {
		return err
	}
	slot, err := r.openSlot(ctx, conn)
	if err != nil {
		return err
	}
	js, err := jetstream.New(r.nc, jetstream.WithPublishAsyncMaxPending(4*maxInFlight), jetstream.WithPublishAsyncTimeout(ackLimit))
	if err != nil {
		return err
	}
	defer js.CleanupPublisher()
	out, err := openOutlet(ctx, js, r.o.Sink, r.o.MaxBytes, identity, slot.confirmed)
	if err != nil {
		return err
	}
	if !slot.declared {
		if err := r.declare(ctx, out, slot.reason); err != nil {
			return err
		}
	}
	// From 0 the server starts at what it was told last: nothing between is skipped.
	err = pglogrepl.StartReplication(ctx, conn, slot.name, 0, pglogrepl.StartReplicationOptions{
		Mode: pglogrepl.LogicalReplication, PluginArgs: pluginArgs(conn),
	})
	if err != nil {
		return err
	}
	r.metrics.running.Set(1)
	r.passing.Store(time.Now().UnixNano())
	r.moving.Store(time.Now().UnixNano())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.read(ctx, conn, out) })
	group.Go(func() error { return r.copyLoop(ctx, out) })
	group.Go(func() error { return r.beats(ctx, slot.name) })
	return group.Wait()
}

// declare tells the sink of a loss, before anything else.
func (r *Relay) declare(ctx context.Context, out *outlet, reason string) error {
	if err := r.send(ctx, out, Message{Kind: KindResync, Reason: reason, At: time.Now()}, 0, nil); err != nil {
		return err
	}
	if err := out.drain(ctx); err != nil {
		return err
	}
	return r.store.told(ctx)
}

func pluginArgs(conn *pgconn.PgConn) []string {
	args := []string{"proto_version '1'", "publication_names '" + Publication + "'", "messages 'true'"}
	// Before 16 the server can't leave out what came by replication: the decoder does.
	if major, err := strconv.Atoi(digits(conn.ParameterStatus("server_version"))); err == nil && major >= 16 {
		args = append(args, "origin 'none'")
	}
	return args
}

func digits(s string) string {
	for i, c := range s {
		if c < '0' || c > '9' {
			return s[:i]
		}
	}
	return s
}

// read takes the WAL's messages until ctx ends or something breaks.
func (r *Relay) read(ctx context.Context, conn *pgconn.PgConn, out *outlet) error {
	d := newDecoder(r.o.Tables)
	w := &wire{conn: conn, out: out, moved: func() { r.moving.Store(time.Now().UnixNano()) }}
	stop := context.AfterFunc(ctx, func() { _ = conn.Conn().SetReadDeadline(time.Now()) })
	defer stop()
	defer w.refused(context.WithoutCancel(ctx))
	emit := func(m Message, end LSN) error {
		r.passing.Store(time.Now().UnixNano())
		if err := r.at("publish"); err != nil {
			return err
		}
		return r.send(ctx, out, m, end, func() error { return w.status(ctx) })
	}
	for {
		if err := w.settle(ctx); err != nil {
			return err
		}
		data, reply, err := w.receive(ctx)
		if err != nil {
			return err
		}
		if reply {
			if err := w.status(ctx); err != nil {
				return err
			}
		}
		if data == nil {
			continue
		}
		if err := d.decode(data, emit); err != nil {
			return err
		}
		if err := r.at("published"); err != nil {
			return err
		}
	}
}

// send publishes, and counts.
func (r *Relay) send(ctx context.Context, out *outlet, m Message, advance LSN, tick func() error) error {
	if err := out.publish(ctx, m, advance, tick); err != nil {
		return err
	}
	r.metrics.messages.WithLabelValues(r.o.Sink, string(m.Kind)).Inc()
	r.metrics.rows.WithLabelValues(r.o.Sink, string(m.Kind)).Add(float64(len(m.Rows)))
	return nil
}

// beats writes a heartbeat whenever nothing came through for a while, and ends
// the session when those don't come through either.
func (r *Relay) beats(ctx context.Context, slot string) error {
	for {
		sleep(ctx, r.o.Beat)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		quiet := time.Since(time.Unix(0, r.passing.Load()))
		if quiet < r.o.Beat*9/10 {
			continue
		}
		// A large transaction keeps heartbeats waiting, but not the server's own progress.
		if still := time.Since(time.Unix(0, r.moving.Load())); still > silentAfter*r.o.Beat {
			return errors.New("the slot is silent: nothing came through for " + still.Round(time.Second).String())
		}
		look, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := r.store.beat(look)
		if bytes, err := r.store.retained(look, slot); err == nil {
			r.metrics.wal.Set(bytes)
		}
		cancel()
		if err != nil {
			r.o.Log.Info("heartbeat", "error", err)
		}
	}
}

// answer stores a sink's wish for a copy.
func (r *Relay) answer(ctx context.Context, m *nats.Msg) {
	var a ask
	if err := json.Unmarshal(m.Data, &a); err != nil || a.ID == "" {
		return // nobody of ours
	}
	look, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := r.store.wish(look, r.o.Sink, a); err != nil {
		r.o.Log.Warn("a sink asks for a copy", "sink", r.o.Sink, "error", err)
		return // it asks again
	}
	select {
	case r.asked <- struct{}{}:
	default:
	}
	_ = m.Respond([]byte(`{"ok":true}`)) // lost: it asks again, with the same id
}

func (r *Relay) at(step string) error {
	if r.o.step == nil {
		return nil
	}
	return r.o.step(step)
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
