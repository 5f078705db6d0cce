package console

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

// Snapshot is all that is known at one moment. It's never changed, only replaced.
type Snapshot struct {
	Cells      []string // in order, without the global zone
	Zones      map[string]Reading[agentapi.Status]
	Gateways   map[string]Reading[Rates]
	IDs        map[string]Reading[id.CellFigures]
	Open       map[string]Reading[[]agentapi.StuckTransfer] // transfers that have not ended
	Parked     map[string]Reading[[]agentapi.ParkedTransfer]
	Acks       Reading[controlapi.Acks]
	Versions   Reading[controlapi.Versions]
	Marks      Reading[controlapi.Marks]
	Search     Reading[[]searchLag]
	Invariants Reading[[]agentapi.Result]
	History    map[string][]Point // by cell, oldest first
}

// Point is a cell at one moment of the charts; nil is not known.
type Point struct {
	At        time.Time
	PerSecond *float64
	Errors    *float64
	P99       *float64
	Closed    *float64 // share of requests that needed no other zone
}

// historyFor is how far back the charts go.
const historyFor = 15 * time.Minute

// collector asks every source by itself, each with a deadline, so that none waits
// for another.
type collector struct {
	agents     map[string]*agentapi.Client // of the cells and of the global zone
	control    *controlapi.Client
	gateways   map[string]string // by cell: the gateway's metrics page; one that isn't there is unknown
	search     string            // the search service's metrics page; "" = unknown
	http       *http.Client
	each       time.Duration // between two questions
	checkEach  time.Duration // between two checks of all invariants; 0 = never
	deadline   time.Duration // of a question
	checkLimit time.Duration // of a check: it reads all rows
	idleAfter  time.Duration // without a look: then it asks seldom
	now        func() time.Time

	mu     sync.Mutex
	news   chan struct{} // closed at the next change
	wake   chan struct{} // closed when somebody looks after a long time
	looked time.Time
	last   atomic.Pointer[Snapshot]
}

const (
	// idleTimes is how much longer the pauses are while nobody looks: asking costs the
	// cells something.
	idleTimes = 6
	// idleAfter is a look's time: a page's stream looks each 15 s, somebody without
	// JavaScript reads for a while.
	idleAfter = 2 * time.Minute
)

func newCollector(agents map[string]*agentapi.Client, control *controlapi.Client) *collector {
	c := &collector{
		agents: agents, control: control, http: &http.Client{}, each: 5 * time.Second, deadline: 3 * time.Second,
		checkLimit: time.Minute, now: time.Now, news: make(chan struct{}), wake: make(chan struct{}), idleAfter: idleAfter,
	}
	s := &Snapshot{
		Zones: map[string]Reading[agentapi.Status]{}, Gateways: map[string]Reading[Rates]{}, IDs: map[string]Reading[id.CellFigures]{},
		Open: map[string]Reading[[]agentapi.StuckTransfer]{}, Parked: map[string]Reading[[]agentapi.ParkedTransfer]{}, History: map[string][]Point{},
	}
	for _, zone := range slices.Sorted(maps.Keys(agents)) {
		if zone != routing.Global {
			s.Cells = append(s.Cells, zone)
		}
	}
	c.last.Store(s)
	return c
}

// snapshot is what is known now.
func (c *collector) snapshot() *Snapshot { return c.last.Load() }

// change replaces the snapshot by a changed copy; f replaces maps, and never writes
// into one.
func (c *collector) change(f func(*Snapshot)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := *c.last.Load()
	f(&s)
	c.last.Store(&s)
	close(c.news)
	c.news = make(chan struct{})
}

// look says that somebody looks. After a long time everything is asked at once.
func (c *collector) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle() {
		close(c.wake)
		c.wake = make(chan struct{})
	}
	c.looked = c.now()
}

func (c *collector) idle() bool { return c.now().Sub(c.looked) > c.idleAfter }

// pause is how long to wait before the next question, and what ends it early. A source
// that failed is asked soon again also while nobody looks: it's back before they do.
func (c *collector) pause(each time.Duration, failed bool) (time.Duration, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle() && !failed {
		each *= idleTimes
	}
	return each, c.wake
}

// changed is closed at the next change.
func (c *collector) changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.news
}

// with is a copy of m with one entry changed.
func with[V any](m map[string]V, key string, v V) map[string]V {
	m = maps.Clone(m)
	m[key] = v
	return m
}

// source is one thing that is asked for again and again.
type source struct {
	each, limit time.Duration
	ask         func(context.Context) error
}

// from makes a source that keeps what it was told last.
func from[T any](c *collector, each time.Duration, ask func(context.Context) (T, error), put func(*Snapshot, Reading[T])) source {
	var r Reading[T]
	return source{each, c.deadline, func(ctx context.Context) error {
		v, err := ask(ctx)
		r = r.next(v, err, c.now())
		c.change(func(s *Snapshot) { put(s, r) })
		return err
	}}
}

// run asks until ctx ends.
func (c *collector) run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, src := range c.sources() {
		wg.Go(func() {
			for ctx.Err() == nil {
				asking, cancel := context.WithTimeout(ctx, src.limit)
				err := src.ask(asking)
				cancel()
				pause, woken := c.pause(src.each, err != nil)
				select {
				case <-ctx.Done():
				case <-woken:
				case <-time.After(pause):
				}
			}
		})
	}
	wg.Wait()
	return nil
}

func (c *collector) sources() []source {
	out := []source{
		from(c, c.each, func(ctx context.Context) (controlapi.Acks, error) { return c.control.Acks(ctx, 0, 0) },
			func(s *Snapshot, r Reading[controlapi.Acks]) { s.Acks = r }),
		from(c, c.each, c.control.Versions, func(s *Snapshot, r Reading[controlapi.Versions]) { s.Versions = r }),
		from(c, c.each, func(ctx context.Context) (controlapi.Marks, error) { return c.control.Marks(ctx, "") },
			func(s *Snapshot, r Reading[controlapi.Marks]) { s.Marks = r }),
	}
	if c.search != "" {
		out = append(out, from(c, c.each, func(ctx context.Context) ([]searchLag, error) {
			all, err := scrape(ctx, c.http, c.search, lagName, ageName, liveName)
			return searchLags(all), err
		}, func(s *Snapshot, r Reading[[]searchLag]) { s.Search = r }))
	}
	for zone, a := range c.agents {
		out = append(out,
			from(c, c.each, a.Status, func(s *Snapshot, r Reading[agentapi.Status]) {
				if zone != routing.Global {
					s.History = with(s.History, zone, point(s.History[zone], s.Zones[zone], r, s.Gateways[zone], c.now(), c.each))
				}
				s.Zones = with(s.Zones, zone, r)
			}),
			from(c, 3*c.each, a.IDs, func(s *Snapshot, r Reading[id.CellFigures]) { s.IDs = with(s.IDs, zone, r) }))
		if zone == routing.Global {
			continue
		}
		out = append(out,
			from(c, c.each, a.Stuck, func(s *Snapshot, r Reading[[]agentapi.StuckTransfer]) { s.Open = with(s.Open, zone, r) }),
			from(c, c.each, a.Parked, func(s *Snapshot, r Reading[[]agentapi.ParkedTransfer]) { s.Parked = with(s.Parked, zone, r) }))
		if url := c.gateways[zone]; url != "" {
			var rates rater
			out = append(out, from(c, c.each, func(ctx context.Context) (Rates, error) {
				all, err := scrape(ctx, c.http, url, requestsName, bucketsName)
				if err != nil {
					return Rates{}, err
				}
				return rates.next(sampleOf(all, c.now())), nil
			}, func(s *Snapshot, r Reading[Rates]) { s.Gateways = with(s.Gateways, zone, r) }))
		}
	}
	if c.checkEach > 0 {
		check := from(c, c.checkEach, c.check, func(s *Snapshot, r Reading[[]agentapi.Result]) { s.Invariants = r })
		check.limit = c.checkLimit
		out = append(out, check)
	}
	return out
}

// check reads all cells once. Cells that don't answer leave invariants unknown, and
// that is an answer.
func (c *collector) check(ctx context.Context) ([]agentapi.Result, error) {
	cells := maps.Clone(c.agents)
	delete(cells, routing.Global)
	results := agentapi.Check(ctx, cells)
	return results, nil
}

// point adds to a cell's history what the newest status says.
func point(had []Point, was, is Reading[agentapi.Status], gateway Reading[Rates], now time.Time, each time.Duration) []Point {
	p := Point{At: now}
	if is.Err == "" && was.Err == "" && was.Has() {
		p.PerSecond, p.Closed = since(was, is)
	}
	if gateway.State(now, each) == Known {
		p.Errors, p.P99 = gateway.Value.Errors, gateway.Value.P99
	}
	for len(had) > 0 && now.Sub(had[0].At) > historyFor {
		had = had[1:]
	}
	return append(slices.Clone(had), p)
}

// since is the traffic between two answers of an agent, and the share of it that
// needed no other zone; nil when it was started anew between them.
func since(was, is Reading[agentapi.Status]) (perSecond, closed *float64) {
	a, b := was.Value.Requests, is.Value.Requests
	took := is.At.Sub(was.At).Seconds()
	if a == nil || b == nil || took <= 0 || b.SinceMS < a.SinceMS || b.Local < a.Local || b.Forwarded < a.Forwarded || b.Messaged < a.Messaged {
		return nil, nil
	}
	local := float64(b.Local - a.Local)
	all := local + float64(b.Forwarded-a.Forwarded) + float64(b.Messaged-a.Messaged)
	per := all / took
	if all > 0 {
		share := local / all
		closed = &share
	}
	return &per, closed
}
