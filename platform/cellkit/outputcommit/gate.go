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
	some    chan struct{} // something waits, and nothing did
	readyC  chan struct{}
	metrics gateMetrics
	telling sync.WaitGroup

	mu        sync.Mutex
	peers     map[string]*peer
	tickets   map[name]*ticket // that wait
	order     []*ticket        // as they came; those that don't wait any more go in time
	late      []*ticket        // of slots that are to be marked
	ready     []bus.Held
	gone      []bus.Held
	uncovered map[routing.Slot]routing.Epoch
	closing   map[routing.Slot]bool // of those: to be lifted, so outputs wait again
	shown     Status
	deaf      time.Time // when the voters last didn't answer; zero = they do
}

// name is a message's.
type name struct {
	slot routing.Slot
	id   string
}

// ticket is one held message.
type ticket struct {
	bus.Held
	since time.Time
	needs []need // cells that haven't it yet
	state
}

type need struct {
	*peer
	stuck bool // strict: the slot isn't in sync there
}

// state of a ticket.
type state int

const (
	waits state = iota
	vain        // it has waited in vain, and is about to be marked
	apart       // it wasn't worth waiting, and is about to be marked
	done
)

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
		o: o, wake: make(chan struct{}, 1), some: make(chan struct{}, 1), readyC: make(chan struct{}, 1),
		peers: map[string]*peer{}, tickets: map[name]*ticket{}, uncovered: map[routing.Slot]routing.Epoch{}, closing: map[routing.Slot]bool{},
		metrics: gateMetrics{
			released: m.Counter("cellmart_output_released_total", "Outputs that were held and have left, by how: covered = the standbys have them; timed, uncovered = they haven't; unmarked = nor do the voters know; alone = there is no standby.", "how"),
			held:     m.Gauge("cellmart_output_held", "Outputs that wait for a standby.").WithLabelValues(),
			marked:   m.Gauge("cellmart_output_uncovered_slots", "Own slots that are marked: their outputs don't wait, and nobody may be promoted on their copies.").WithLabelValues(),
			seconds:  m.Histogram("cellmart_output_held_seconds", "How long outputs were held.").WithLabelValues(),
		},
	}
	for cell, ask := range o.Ask {
		g.peers[cell] = &peer{name: cell, ask: ask, kick: make(chan struct{}, 1)}
	}
	return g
}

// Run asks the standbys until ctx ends.
func (g *Gate) Run(ctx context.Context) error {
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

// Hold takes what was claimed. A message that waits already waits for what it is
// given with now: its slot has other standbys since, or another epoch.
func (g *Gate) Hold(list []bus.Held) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range list {
		if t := g.tickets[name{h.Slot, h.ID}]; t != nil {
			g.finish(t)
		}
		g.hold(&ticket{Held: h, since: now})
	}
}

// hold has a ticket wait where it must. With mu held.
func (g *Gate) hold(t *ticket) {
	for _, cell := range []string{t.Standby, t.Incoming} {
		if cell != "" {
			t.needs = append(t.needs, need{peer: g.peer(cell)})
		}
	}
	if len(t.needs) == 0 {
		g.release(t, alone)
		return
	}
	if len(g.tickets) == 0 {
		signal(g.some)
	}
	g.tickets[name{t.Slot, t.ID}] = t
	g.order = append(g.order, t)
	g.metrics.held.Set(float64(len(g.tickets)))
	if !g.o.Strict && (g.marked(t) || slices.ContainsFunc(t.needs, func(n need) bool { return n.hopeless() })) {
		g.delay(t, apart)
		return
	}
	for _, n := range t.needs {
		n.join(t)
	}
}

// marked says that a ticket's slot is, and is to stay so. With mu held.
func (g *Gate) marked(t *ticket) bool {
	epoch, ok := g.uncovered[t.Slot]
	return ok && epoch == t.Epoch && !g.closing[t.Slot]
}

// peer gives a cell's; one without a way to it never answers. With mu held.
func (g *Gate) peer(cell string) *peer {
	p := g.peers[cell]
	if p == nil {
		p = &peer{name: cell, kick: make(chan struct{}, 1)}
		g.peers[cell] = p
	}
	return p
}

// delay gives a ticket to who marks. With mu held.
func (g *Gate) delay(t *ticket, why state) {
	if t.state == waits {
		t.state = why
		delete(g.closing, t.Slot)
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

// drop gives up a ticket whose message isn't this cell's to send. With mu held.
func (g *Gate) drop(t *ticket) {
	g.finish(t)
	g.gone = append(g.gone, t.Held)
	signal(g.readyC)
}

// finish ends a ticket's waiting. With mu held.
func (g *Gate) finish(t *ticket) {
	t.state, t.needs = done, nil
	if n := (name{t.Slot, t.ID}); g.tickets[n] == t {
		delete(g.tickets, n)
	}
	g.metrics.held.Set(float64(len(g.tickets)))
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
// is silent. It sleeps while nothing waits.
func (g *Gate) expire(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.some:
		}
		for some := true; some && ctx.Err() == nil; {
			pause(ctx, expireEach)
			g.mu.Lock()
			g.expired(time.Now())
			some = len(g.tickets) > 0
			g.mu.Unlock()
		}
	}
}

func (g *Gate) expired(now time.Time) {
	n := 0
	for n < len(g.order) && g.order[n].state != waits {
		n++
	}
	if g.order = g.order[n:]; len(g.order) > 2*len(g.tickets)+100 { // the first one may wait for long, in strict mode for ever
		g.order = slices.DeleteFunc(slices.Clone(g.order), func(t *ticket) bool { return t.state != waits })
	}
	if g.o.Strict {
		return
	}
	for _, t := range g.order {
		if t.state != waits {
			continue
		}
		old := now.Sub(t.since) >= Limit
		for _, n := range t.needs {
			if old { // slow: what comes after this waits in vain too
				n.late(t)
			}
			if old || n.silent(now) {
				g.delay(t, vain)
			}
		}
	}
}
