package link

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"sync"
	"time"
)

// Status is what this side knows about a link. The zero Status is a link that
// was never probed: unknown, and so not up.
type Status struct {
	Up     bool
	Since  time.Time     // when Up last changed; zero = never probed successfully
	RTT    time.Duration // of the last answer
	Age    time.Duration // of the last answer; negative = there was none
	Reason string        // why it isn't up
}

type statusJSON struct {
	Up      bool    `json:"up"`
	SinceMS int64   `json:"since_ms"` // how long it has been so; -1 = never probed successfully
	RTTMS   float64 `json:"rtt_ms"`
	AgeMS   int64   `json:"age_ms"` // how old RTT is; -1 = never answered
	Reason  string  `json:"reason,omitempty"`
}

// MarshalJSON writes times as ages: zones don't compare clocks.
func (s Status) MarshalJSON() ([]byte, error) {
	j := statusJSON{Up: s.Up, SinceMS: -1, RTTMS: float64(s.RTT.Microseconds()) / 1000, AgeMS: -1, Reason: s.Reason}
	if !s.Since.IsZero() {
		j.SinceMS = time.Since(s.Since).Milliseconds()
	}
	if s.Age >= 0 {
		j.AgeMS = s.Age.Milliseconds()
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads ages back, against the reader's clock.
func (s *Status) UnmarshalJSON(b []byte) error {
	var j statusJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*s = Status{Up: j.Up, RTT: time.Duration(j.RTTMS * float64(time.Millisecond)), Age: -1, Reason: j.Reason}
	if j.SinceMS >= 0 {
		s.Since = time.Now().Add(-time.Duration(j.SinceMS) * time.Millisecond)
	}
	if j.AgeMS >= 0 {
		s.Age = time.Duration(j.AgeMS) * time.Millisecond
	}
	return nil
}

// PeerConfig says who is at the other end.
type PeerConfig struct {
	Zone     string
	Addr     string      // of the zone's border
	TLS      *tls.Config // the own certificate and the CA: LoadTLS
	OnChange func()      // called when Up changes, from the prober; must not block. May be nil
}

// Peer is the link to one zone: it knows whether the zone answers, dials
// streams to it, and closes them when it stops answering. An agent's Border
// has one per peer; the edge makes its own.
type Peer struct {
	conf  PeerConfig
	tls   *tls.Config
	wire  *wire
	count *counters
	turns chan struct{} // see openings

	mu       sync.Mutex
	up       bool
	term     int // +1 at each change of up
	since    time.Time
	answered time.Time
	rtt      time.Duration
	reason   string
	lateAt   time.Time // when the prober last was late itself
	graced   int       // how often it got more time for that, since the last answer
	expiry   *time.Timer
	due      time.Time          // when expiry should fire
	held     map[*held]struct{} // what ends when the link goes down
}

type held struct{ end func() }

const (
	anyTerm = -1
	// openings bounds the handshakes under way: a burst of dials must not keep
	// the prober from the CPU until the link looks dead. Per link, so that a
	// silent one costs no other.
	openings = 16
)

// NewPeer makes a link that is not up until Run has had an answer.
func NewPeer(c PeerConfig) *Peer { return newPeer(c, newWire(), &counters{}) }

func newPeer(c PeerConfig, w *wire, count *counters) *Peer {
	return &Peer{
		conf: c, tls: clientTLS(c.TLS, c.Zone), wire: w, count: count,
		turns: make(chan struct{}, openings), reason: "not probed yet", held: map[*held]struct{}{},
	}
}

// Zone is the zone at the other end.
func (p *Peer) Zone() string { return p.conf.Zone }

// Status is what is known now.
func (p *Peer) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{Up: p.up, Since: p.since, RTT: p.rtt, Age: -1, Reason: p.reason}
	if !p.answered.IsZero() {
		s.Age = time.Since(p.answered)
	}
	return s
}

// Stats are the link's counters.
func (p *Peer) Stats() Stats { return p.count.stats() }

// Dial opens a stream to a target. On a link known to be down, or unknown, it
// fails at once with ErrLinkDown; on one that goes down meanwhile, then. The
// stream is closed when the link goes down.
func (p *Peer) Dial(ctx context.Context, target string) (net.Conn, error) {
	s, term, err := p.dial(ctx, target)
	if err != nil {
		return nil, err
	}
	release, ok := p.hold(term, func() { reset(s.Conn) })
	if !ok {
		reset(s.Conn)
		p.count.refuse(LinkDown)
		return nil, p.downErr()
	}
	s.release = release
	return s, nil
}

// DialContext is Dial in the form of http.Transport's field; the address that
// the transport gives is not used.
func (p *Peer) DialContext(target string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return p.Dial(ctx, target) }
}

// dial gives a stream that nobody holds yet, and the term it was opened in.
func (p *Peer) dial(ctx context.Context, target string) (*stream, int, error) {
	p.mu.Lock()
	up, term := p.up, p.term
	p.mu.Unlock()
	if !up {
		p.count.refuse(LinkDown)
		return nil, 0, p.downErr()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, stop := context.WithTimeout(ctx, openLimit)
	defer stop()
	release, ok := p.watch(term, func() { cancel(p.downErr()) })
	if !ok {
		p.count.refuse(LinkDown)
		return nil, 0, p.downErr()
	}
	defer release()
	s, err := p.open(ctx, target)
	if err != nil {
		p.count.refuse(reasonOf(err))
		return nil, 0, err
	}
	p.count.dialed.Add(1)
	return s, term, nil
}

func (p *Peer) open(ctx context.Context, target string) (*stream, error) {
	select {
	case p.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, unreachable(ctx, p.conf.Zone, ctx.Err())
	}
	defer func() { <-p.turns }()
	return open(ctx, p.conf.Addr, p.tls, p.wire, p.count, p.conf.Zone, target)
}

func (p *Peer) downErr() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return ErrLinkDown.Msgf("the link to %s is down: %s", p.conf.Zone, p.reason).In(p.conf.Zone)
}

// hold counts a stream and lets end be called when the link goes down, unless
// it already did since term.
func (p *Peer) hold(term int, end func()) (release func(), ok bool) {
	done := sync.OnceFunc(func() { p.count.open.Add(-1) })
	p.count.open.Add(1)
	unwatch, ok := p.watch(term, func() { end(); done() })
	if !ok {
		done()
		return nil, false
	}
	return func() { unwatch(); done() }, true
}

// watch is hold for what isn't a stream yet.
func (p *Peer) watch(term int, end func()) (release func(), ok bool) {
	h := &held{end: end}
	p.mu.Lock()
	defer p.mu.Unlock()
	if term != anyTerm && term != p.term {
		return nil, false
	}
	p.held[h] = struct{}{}
	return func() {
		p.mu.Lock()
		delete(p.held, h)
		p.mu.Unlock()
	}, true
}
