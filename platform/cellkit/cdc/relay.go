package cdc

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/obs"
)

// Options of a zone's relay.
type Options struct {
	Zone     string
	Pool     *pgxpool.Pool   // as the agent's role: state, heartbeats
	DSN      string          // the same database, for connections of its own: replication, copies
	NATSURL  string          // of the own zone
	Sinks    []Sink          // those that there always are
	Peers    func() []string // cells that may stand by for this one, at the moment; nil = only those that cell.slots names
	Log      *slog.Logger
	Metrics  *obs.Metrics
	MaxBytes int64         // of each stream, 0 = 256 MiB
	MaxWAL   int64         // that may be kept, 0 = the server's max_slot_wal_keep_size, else 2 GiB
	Beat     time.Duration // between heartbeats, 0 = 5 s

	silent time.Duration           // without a sign from the server, before the session ends; 0 = silentAfter heartbeats
	step   func(name string) error // a failpoint of the tests
}

// Relay publishes what the zone's database commits. One runs at a time: the
// slot serves one reader.
type Relay struct {
	o       Options
	store   store
	nc      *nats.Conn
	moving  atomic.Int64 // Unix nanoseconds of the last sign that the server reads on
	metrics relayMetrics
	alarm   int             // percent of the WAL that was last said
	kept    map[string]kept // how far each stream was at the last session's end
	keptOf  string          // the incarnation of that

	mu    sync.Mutex
	now   *session
	again map[string]bool // sinks that are to be sent again what isn't confirmed
	stop  context.CancelCauseFunc
}

type relayMetrics struct {
	messages, rows, copies, detached *prometheus.CounterVec
	attached, behind                 *prometheus.GaugeVec
	losses                           prometheus.Counter
	running, wal, walShare           prometheus.Gauge
}

const (
	statusEvery = time.Second // well below any sane wal_sender_timeout
	defaultWAL  = 2 << 30
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
	if o.silent == 0 {
		o.silent = silentAfter * o.Beat
	}
	o.Log = o.Log.With("part", "cdc")
	m := o.Metrics
	r := &Relay{o: o, store: store{o.Pool}, kept: map[string]kept{}, again: map[string]bool{}}
	r.metrics = relayMetrics{
		messages: m.Counter("cellmart_cdc_messages_total", "Messages given to the sink's stream.", "sink", "kind"),
		rows:     m.Counter("cellmart_cdc_rows_total", "Rows given to the sink's stream.", "sink", "kind"),
		copies:   m.Counter("cellmart_cdc_copies_total", "Copies made.", "sink"),
		detached: m.Counter("cellmart_cdc_detached_total", "Times that the sink was detached.", "sink"),
		attached: m.Gauge("cellmart_cdc_sink_attached", "1 while the sink counts for what is confirmed to Postgres.", "sink"),
		behind:   m.Gauge("cellmart_cdc_sink_behind_bytes", "WAL that was read and the sink hasn't stored, as of the last heartbeat.", "sink"),
		losses:   m.Counter("cellmart_cdc_slot_lost_total", "Times that the replication slot was found lost.").WithLabelValues(),
		running:  m.Gauge("cellmart_cdc_relay_running", "1 while the relay reads the WAL.").WithLabelValues(),
		wal:      m.Gauge("cellmart_cdc_wal_retained_bytes", "WAL that the slot keeps, as of the last heartbeat.").WithLabelValues(),
		walShare: m.Gauge("cellmart_cdc_wal_retained_share", "The same as a share of what may be kept: alarms at 0.5 and 0.8, where sinks are detached.").WithLabelValues(),
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
	if err := r.hear(ctx); err != nil {
		return err
	}
	pause, said := time.Duration(0), ""
	for ctx.Err() == nil {
		start := time.Now()
		err := r.once(ctx)
		r.metrics.running.Set(0)
		if ctx.Err() != nil {
			break
		}
		if time.Since(start) > time.Minute || errors.Is(err, errAgain) {
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

// once runs a session, and forgets what it was asked to send again when it began.
func (r *Relay) once(ctx context.Context) error {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.mu.Lock()
	r.stop = cancel
	clear(r.again)
	r.mu.Unlock()
	err := r.session(inner)
	if cause := context.Cause(inner); ctx.Err() == nil && errors.Is(cause, errAgain) {
		return cause
	}
	return err
}

// resend ends the session: the next one sends this sink all that isn't confirmed.
func (r *Relay) resend(sink string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.again[sink] = true
	r.stop(errAgain)
}

func (r *Relay) resending(sink string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.again[sink]
}

func (r *Relay) setSession(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = s
}

// maxWAL is how much WAL may be kept for the sinks.
func (r *Relay) maxWAL(ctx context.Context) (int64, error) {
	if r.o.MaxWAL > 0 {
		return r.o.MaxWAL, nil
	}
	var mb int64
	if err := r.o.Pool.QueryRow(ctx, "SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'").Scan(&mb); err != nil {
		return 0, err
	}
	if mb <= 0 {
		return defaultWAL, nil
	}
	return mb << 20, nil
}

// counted counts what is given to a stream.
func (r *Relay) counted(t *target, kind Kind, rows int) {
	if kind == KindTx { // there are many: without looking for the counters
		t.messages.Inc()
		t.counted.Add(float64(rows))
		return
	}
	r.metrics.messages.WithLabelValues(t.sink.Name, string(kind)).Inc()
	r.metrics.rows.WithLabelValues(t.sink.Name, string(kind)).Add(float64(rows))
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
