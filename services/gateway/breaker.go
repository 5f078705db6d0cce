package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"example.com/cellmart/platform/cellkit/relay"
	"example.com/cellmart/platform/routing"
)

// An instance is asked last from when it refused a connection, broke one, was
// slow, or left health calls unanswered, until a health call is answered.
const (
	instanceEvery   = time.Second
	instanceSilence = 3 * time.Second
)

// service is a service of the own cell: one or more instances. Some may be spare
// places where nothing runs.
type service struct {
	name      string
	transport http.RoundTripper
	instances []*instance
	turn      atomic.Uint64
}

type instance struct {
	base   string
	health *relay.Breaker // nil for a single one: there is no choice
}

func newService(name string, urls []string, log *slog.Logger) *service {
	dial := (&net.Dialer{}).DialContext
	s := &service{name: name, transport: relay.NewTransport(dial, 500*time.Millisecond)}
	for _, u := range urls {
		in := &instance{base: u}
		if len(urls) > 1 {
			in.health = relay.NewBreaker(relay.BreakerOptions{
				Probe: relay.Probe(dial, u), Every: instanceEvery, Silence: instanceSilence, Errors: 1,
				OnChange: func(open bool, why error) {
					if open {
						log.Info("instance is out", "target", name, "url", u, "error", why)
						return
					}
					log.Info("instance is in", "target", name, "url", u)
				},
			})
		}
		s.instances = append(s.instances, in)
	}
	return s
}

// run makes the instances' health calls until ctx ends.
func (s *service) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for _, in := range s.instances {
		if in.health != nil {
			running.Go(func() { in.health.Run(ctx) })
		}
	}
}

// order lists the instances in turn, those that are out last: when all are, it
// is better to try than to refuse.
func (s *service) order() []*instance {
	n := len(s.instances)
	first := int(s.turn.Add(1) % uint64(n))
	good, bad := make([]*instance, 0, n), []*instance(nil)
	for i := range n {
		in := s.instances[(first+i)%n]
		if in.out() {
			bad = append(bad, in)
		} else {
			good = append(good, in)
		}
	}
	return append(good, bad...)
}

func (in *instance) out() bool {
	if in.health == nil {
		return false
	}
	open, _ := in.health.Open()
	return open
}

func (in *instance) failed(err error) {
	if in.health != nil {
		in.health.Failed(err)
	}
}

// send asks the instances in order until one is reached. What may have been sent
// is sent once more, to the next one or the same, only if it's repeatable and
// the connection broke: an instance that is slow isn't helped by a second copy.
func (s *service) send(ctx context.Context, q relay.Request, limit time.Duration) (*http.Response, error) {
	order := s.order()
	again := q.Repeatable()
	var failure error
	for i := 0; i < len(order); i++ {
		res, err := s.try(ctx, order[i], q, limit)
		if err == nil {
			return res, nil
		}
		failure = err
		var lost *relay.Lost
		if !errors.As(err, &lost) || ctx.Err() != nil {
			return nil, err
		}
		order[i].failed(err)
		switch {
		case errors.Is(err, relay.ErrSlow):
			return nil, err
		case !lost.Sent:
		case again:
			again = false
			order = append(order, order[i])
		default:
			return nil, err
		}
	}
	return nil, failure
}

// try is one exchange. With other instances to ask, the answer is held back until
// it is whole (or too long for that), so that half of one can be thrown away.
func (s *service) try(ctx context.Context, in *instance, q relay.Request, limit time.Duration) (*http.Response, error) {
	res, err := relay.Send(ctx, s.transport, in.base, q, limit)
	if err == nil && len(s.instances) > 1 && q.Repeatable() {
		_, err = relay.Hold(res, held)
	}
	if err != nil {
		return nil, err
	}
	return res, nil
}

// held is how much of an answer is kept in memory for that.
const held = 64 << 10

// peer is another cell's gateway, or the catalog's writer, through the link.
type peer struct {
	zone      string
	base      string
	transport *http.Transport
	breaker   *relay.Breaker
	running   bool // guarded by peers.mu
}

// dialFunc dials a target of a zone, as link.Dialer.DialContext gives it.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// connectLimit bounds a dial through the link: before the agent knows that a
// cell is gone, a dial gets no answer.
const connectLimit = time.Second

// peers has a peer for each other cell in the table, each with its breaker.
type peers struct {
	own    string
	dial   func(zone, target string) dialFunc
	log    *slog.Logger
	notify func(zone string, up bool)

	mu     sync.Mutex
	byCell map[string]*peer
}

func newPeers(own string, dial func(zone, target string) dialFunc, log *slog.Logger, notify func(zone string, up bool)) *peers {
	return &peers{own: own, dial: dial, log: log, notify: notify, byCell: map[string]*peer{}}
}

func (p *peers) get(cell string) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, ok := p.byCell[cell]
	if !ok {
		dial := p.dial(cell, "gateway")
		found = newPeer(cell, "http://gateway."+cell, dial)
		found.breaker = relay.NewBreaker(relay.BreakerOptions{
			Probe: relay.Probe(dial, found.base),
			OnChange: func(open bool, why error) {
				p.notify(cell, !open)
				if open {
					found.transport.CloseIdleConnections()
					p.log.Warn("cell doesn't answer", "target", cell, "error", why)
					return
				}
				p.log.Info("cell answers again", "target", cell)
			},
		})
		p.byCell[cell] = found
		p.notify(cell, true)
	}
	return found
}

func newPeer(zone, base string, dial dialFunc) *peer {
	return &peer{zone: zone, base: base, transport: relay.NewTransport(dial, connectLimit)}
}

// run keeps health calls going to every cell that a table has named, until ctx
// ends. A cell that leaves the table is not forgotten: calls cost little, and
// its name may come back.
func (p *peers) run(ctx context.Context, tables *routing.Holder) {
	var probing sync.WaitGroup
	defer probing.Wait()
	for ctx.Err() == nil {
		changed := tables.Changed()
		if t := tables.Load(); t != nil {
			for _, c := range t.Cells() {
				if c.Name != p.own {
					p.start(ctx, &probing, p.get(c.Name))
				}
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (p *peers) start(ctx context.Context, probing *sync.WaitGroup, to *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !to.running {
		to.running = true
		probing.Go(func() { to.breaker.Run(ctx) })
	}
}

// newSearch makes the way to search. Its health calls come each second: four
// gateways' cost little then, and a shopper who finds search away loses nothing.
func newSearch(dial func(zone, target string) dialFunc, log *slog.Logger) *peer {
	p := newPeer(routing.Global, "http://search.global", dial(routing.Global, "search"))
	p.breaker = relay.NewBreaker(relay.BreakerOptions{
		Probe: relay.Probe(dial(routing.Global, "search"), p.base), Every: time.Second, Silence: 2500 * time.Millisecond,
		OnChange: func(open bool, why error) {
			if open {
				p.transport.CloseIdleConnections()
				log.Warn("search doesn't answer", "error", why)
				return
			}
			log.Info("search answers again")
		},
	})
	return p
}

// newWriter makes the way to the catalog's writer. It is asked rarely and has no
// health path, so it has no breaker: the link's state and the limits do.
func newWriter(dial func(zone, target string) dialFunc) *peer {
	return newPeer(routing.Global, "http://catalog.global", dial(routing.Global, "catalog"))
}
