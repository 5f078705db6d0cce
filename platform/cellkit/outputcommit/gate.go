package outputcommit

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/routing"
)

// Limit is how long an output waits for a standby.
const Limit = 2 * time.Second

// Options of a cell's gate.
type Options struct {
	Cell    string
	Pool    *pgxpool.Pool  // as the agent's role
	Strict  bool           // an output waits for ever
	Ask     map[string]Ask // the ways to the other cells' agents
	Mark    Marker         // who must know of a mark before anything is sent on; nil = nobody is there yet
	Log     *slog.Logger
	Metrics *obs.Metrics

	step func(name string) error // a failpoint of the tests
}

// Gate holds what a dispatcher has claimed. It is one dispatcher's; several of a
// cell agree through the database.
type Gate struct {
	o       Options
	wake    chan struct{} // there is something to mark
	readyC  chan struct{}
	metrics gateMetrics

	mu        sync.Mutex
	peers     map[string]*peer
	order     []*ticket // as they came; those that don't wait any more go in time
	waiting   int
	late      []*ticket // of slots that are to be marked
	ready     []bus.Held
	gone      []bus.Held
	uncovered map[routing.Slot]routing.Epoch
	shown     Status
	deaf      time.Time // when the voters last didn't answer; zero = they do
}

// ticket is one held message.
type ticket struct {
	bus.Held
	since    time.Time
	standby  *peer // that hasn't it yet, nil = it has
	incoming *peer
	late     bool // it waits no more: it's about to be marked, or sent
	waited   bool // in vain
	stuck    bool // strict: its standby isn't in sync
}

// how an output left.
const (
	covered   = "covered"   // the standbys have it
	timed     = "timed"     // it waited for Limit in vain
	uncovered = "uncovered" // it was known that waiting is in vain
	unmarked  = "unmarked"  // as the two before, and the voters didn't hear of it
	alone     = "alone"     // the slot has no standby, so nobody can be promoted
)

type gateMetrics struct {
	released *prometheus.CounterVec
	held     prometheus.Gauge
	marked   prometheus.Gauge
	seconds  prometheus.Observer
}

// New makes a gate; it waits for nobody before Run.
func New(o Options) *Gate {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = obs.New(o.Cell, "agent")
	}
	o.Log = o.Log.With("part", "outputcommit")
	m := o.Metrics
	g := &Gate{
		o: o, wake: make(chan struct{}, 1), readyC: make(chan struct{}, 1),
		peers: map[string]*peer{}, uncovered: map[routing.Slot]routing.Epoch{},
		metrics: gateMetrics{
			released: m.Counter("cellmart_output_released_total", "Outputs that were held and have left, by how: covered = the standbys have them; timed, uncovered = they haven't; unmarked = nor do the voters know; alone = there is no standby.", "how"),
			held:     m.Gauge("cellmart_output_held", "Outputs that wait for a standby.").WithLabelValues(),
			marked:   m.Gauge("cellmart_output_uncovered_slots", "Own slots that are marked: their outputs don't wait, and nobody may be promoted on their copies.").WithLabelValues(),
			seconds:  m.Histogram("cellmart_output_held_seconds", "How long outputs were held.").WithLabelValues(),
		},
	}
	for name, ask := range o.Ask {
		g.peers[name] = &peer{name: name, ask: ask, kick: make(chan struct{}, 1), heard: time.Now()} // who was never asked isn't silent
	}
	return g
}

// Run asks the standbys until ctx ends.
func (g *Gate) Run(ctx context.Context) error {
	g.mu.Lock()
	for _, p := range g.peers {
		p.heard = time.Now()
	}
	g.mu.Unlock()
	var all sync.WaitGroup
	for _, p := range g.peers {
		all.Go(func() { g.follow(ctx, p) })
	}
	all.Go(func() { g.expire(ctx) })
	all.Go(func() { g.mark(ctx) })
	all.Go(func() { g.keep(ctx) })
	all.Wait()
	return nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Hold takes what was claimed.
func (g *Gate) Hold(list []bus.Held) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range list {
		g.hold(&ticket{Held: h, since: now})
	}
	g.metrics.held.Set(float64(g.waiting))
}

// hold has a ticket wait where it must. With mu held.
func (g *Gate) hold(t *ticket) {
	standby, incoming := t.Standby, t.Incoming
	if standby == "" { // who is being brought there is the only one there may be
		standby, incoming = incoming, ""
	}
	if standby == "" {
		g.release(t, alone)
		return
	}
	t.late, t.stuck = false, false
	t.standby = g.peer(standby)
	if incoming != "" {
		t.incoming = g.peer(incoming)
	}
	g.waiting++
	g.order = append(g.order, t)
	if epoch, ok := g.uncovered[t.Slot]; !g.o.Strict && (ok && epoch == t.Epoch || t.standby.hopeless() || t.incoming != nil && t.incoming.hopeless()) {
		g.delay(t)
		return
	}
	t.standby.join(t)
	if t.incoming != nil {
		t.incoming.join(t)
	}
}

// peer gives a cell's; one without a way to it never answers. With mu held.
func (g *Gate) peer(name string) *peer {
	p := g.peers[name]
	if p == nil {
		p = &peer{name: name, kick: make(chan struct{}, 1)}
		g.peers[name] = p
	}
	return p
}

// delay gives a ticket to who marks. With mu held.
func (g *Gate) delay(t *ticket) {
	if !t.late {
		t.late = true
		g.late = append(g.late, t)
		signal(g.wake)
	}
}

// release lets a ticket's message leave. With mu held, and once.
func (g *Gate) release(t *ticket, how string) {
	g.metrics.released.WithLabelValues(how).Inc()
	g.metrics.seconds.Observe(time.Since(t.since).Seconds())
	g.shown.count(how)
	g.ready = append(g.ready, t.Held)
	signal(g.readyC)
}

// finish ends a ticket's waiting. With mu held.
func (g *Gate) finish(t *ticket) {
	t.standby, t.incoming, t.late = nil, nil, true
	g.waiting--
	g.metrics.held.Set(float64(g.waiting))
}

// Ready says that Take has something.
func (g *Gate) Ready() <-chan struct{} { return g.readyC }

// Take gives what may leave, and what isn't this cell's to send any more.
func (g *Gate) Take(limit int) (leave, gone []bus.Held) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(limit, len(g.ready))
	leave, gone = g.ready[:n:n], g.gone
	g.ready, g.gone = g.ready[n:], nil
	if len(g.ready) > 0 {
		signal(g.readyC)
	} else {
		g.ready = nil
	}
	return leave, gone
}

// expireEach is how often it's looked for what has waited long enough.
const expireEach = 50 * time.Millisecond

// expire ends the waiting of what has waited for Limit, or waits for somebody who
// is silent.
func (g *Gate) expire(ctx context.Context) {
	tick := time.NewTicker(expireEach)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		g.mu.Lock()
		g.expired(time.Now())
		g.mu.Unlock()
	}
}

func (g *Gate) expired(now time.Time) {
	n := 0
	for n < len(g.order) && g.order[n].late {
		n++
	}
	if g.order = g.order[n:]; len(g.order) > 2*g.waiting+100 { // the first one may wait for long, in strict mode for ever
		g.order = slices.DeleteFunc(slices.Clone(g.order), func(t *ticket) bool { return t.late })
	}
	if g.o.Strict {
		return
	}
	for _, t := range g.order {
		if t.late || t.standby == nil && t.incoming == nil {
			continue
		}
		old := now.Sub(t.since) >= Limit
		for _, p := range []*peer{t.standby, t.incoming} {
			if p == nil {
				continue
			}
			t.waited = t.waited || old || p.silent(now)
			if old { // slow: what comes after this waits in vain too
				p.late(t)
			}
			if old || p.silent(now) {
				g.delay(t)
			}
		}
	}
}
