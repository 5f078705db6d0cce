package link

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

// Target is something in this zone that others may reach.
type Target struct {
	Addr  string   // where it listens, inside the zone; several instances: a:1|b:1
	Allow []string // the certificate names that may open it: AgentName(zone), EdgeName
}

// Config of a zone's border.
type Config struct {
	Zone     string
	Border   net.Listener      // for other zones, mutual TLS
	Local    net.Listener      // for this zone's processes: CONNECT zone/target
	TLS      *tls.Config       // LoadTLS
	Peers    map[string]string // zone -> its border's address
	Targets  map[string]Target
	Log      *slog.Logger
	OnChange func() // called when a link's Up changes; must not block. May be nil
}

// Border is a zone's only way in and out.
type Border struct {
	conf   Config
	peers  map[string]*Peer
	faults *faults
	known  map[string]*counters // per peer that may be heard of, and "unknown"
	probes map[string]bool      // certificate names that may probe
	wg     sync.WaitGroup       // all that Run started
}

const unknownPeer = "unknown"

// New checks c. It takes the listeners: Run closes them.
func New(c Config) (*Border, error) {
	if c.Zone == "" || c.Border == nil || c.Local == nil || c.TLS == nil || c.Log == nil {
		return nil, fmt.Errorf("link: zone, listeners, TLS and log are needed")
	}
	b := &Border{
		conf: c, peers: map[string]*Peer{}, faults: newFaults(),
		known: map[string]*counters{unknownPeer: {}}, probes: map[string]bool{},
	}
	for zone, addr := range c.Peers {
		if zone == c.Zone {
			return nil, fmt.Errorf("link: zone %s can't be its own peer", zone)
		}
		b.known[zone] = &counters{}
		b.probes[AgentName(zone)] = true
		b.peers[zone] = newPeer(PeerConfig{
			Zone: zone, Addr: addr, TLS: c.TLS, OnChange: func() { b.changed(zone) },
		}, b.faults.wire(zone), b.known[zone])
	}
	for name, t := range c.Targets {
		if t.Addr == "" || strings.HasPrefix(name, "_") {
			return nil, fmt.Errorf("link: target %q needs an address and a name without a leading _", name)
		}
		for _, who := range t.Allow {
			b.probes[who] = true
			if b.known[peerOf(who)] == nil {
				b.known[peerOf(who)] = &counters{}
			}
		}
	}
	return b, nil
}

func (b *Border) changed(zone string) {
	s := b.peers[zone].Status()
	b.conf.Log.Info("link", "peer", zone, "up", s.Up, "reason", s.Reason)
	if b.conf.OnChange != nil {
		b.conf.OnChange()
	}
}

// Run serves and probes until ctx ends, and returns when all that it started
// has ended. Open streams are reset.
func (b *Border) Run(ctx context.Context) error {
	for _, p := range b.peers {
		b.wg.Go(func() { _ = p.Run(ctx) }) // it ends with ctx only
	}
	b.wg.Go(func() { b.accept(ctx, b.conf.Border, b.serveBorder) })
	b.wg.Go(func() { b.accept(ctx, b.conf.Local, b.serveLocal) })
	b.wg.Wait()
	return nil
}

// accept ends when ctx does. An error of one Accept (too many open files) is
// no reason to stop.
func (b *Border) accept(ctx context.Context, l net.Listener, serve func(context.Context, net.Conn)) {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			l.Close()
			return
		}
		if err != nil {
			b.conf.Log.Warn("link accept", "addr", l.Addr().String(), "err", err)
			sleepUntil(time.Now().Add(100*time.Millisecond), ctx.Done())
			continue
		}
		b.wg.Go(func() { serve(ctx, conn) })
	}
}

// serveBorder admits one stream of another zone.
func (b *Border) serveBorder(ctx context.Context, raw net.Conn) {
	defer raw.Close()
	opening, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	unwatch := context.AfterFunc(opening, func() { raw.Close() })
	defer unwatch()
	// Unplugged: not even a handshake. Who it is isn't known yet.
	if b.faults.wire(Everyone).in.pass(opening) != nil {
		return
	}
	conn := tls.Server(raw, b.conf.TLS)
	if err := conn.HandshakeContext(opening); err != nil {
		b.known[unknownPeer].refuse(Handshake)
		b.conf.Log.Debug("link handshake", "from", raw.RemoteAddr().String(), "err", err)
		return
	}
	name := certName(conn.ConnectionState())
	count := b.counters(name)
	w := newWire()
	if count != b.known[unknownPeer] {
		w = b.faults.wire(peerOf(name))
	}
	near, probe, no := b.admit(opening, conn, name, w)
	if w.out.pass(opening) != nil {
		if near != nil {
			near.Close()
		}
		return
	}
	if no != "" {
		count.refuse(no)
		fmt.Fprintf(conn, "no %s\n", no)
		conn.Close()
		return
	}
	if _, err := fmt.Fprint(conn, "ok\n"); err != nil || !unwatch() {
		if near != nil {
			near.Close()
		}
		return
	}
	far := &stream{Conn: conn, count: count}
	if probe {
		echo(ctx, far, w) // held by no link of ours: the other side's prober decides
		return
	}
	count.accepted.Add(1)
	splice(near, far, w, b.holder(ctx, b.peers[peerOf(name)], count, anyTerm))
}

// admit reads which target the peer wants and dials it if it may.
func (b *Border) admit(ctx context.Context, conn *tls.Conn, name string, w *wire) (near net.Conn, probe bool, no Reason) {
	line, err := readLine(conn)
	if err != nil || w.in.pass(ctx) != nil {
		return nil, false, BadRequest
	}
	target, ok := strings.CutPrefix(line, protocol+" ")
	if !ok {
		return nil, false, BadRequest
	}
	if target == probeTarget {
		if !b.probes[name] {
			return nil, false, b.warn(name, target)
		}
		return nil, true, ""
	}
	t, ok := b.conf.Targets[target]
	if !ok {
		return nil, false, NoTarget
	}
	if !slices.Contains(t.Allow, name) {
		return nil, false, b.warn(name, target)
	}
	near, err = dialTarget(ctx, t.Addr)
	if err != nil {
		return nil, false, TargetDown
	}
	return near, false, ""
}

func (b *Border) warn(name, target string) Reason {
	b.conf.Log.Warn("link: certificate not allowed", "certificate", name, "target", target)
	return NotAllowed
}

// holder makes splice's track: the stream ends with ctx, and with its link.
func (b *Border) holder(ctx context.Context, p *Peer, count *counters, term int) func(func()) func() {
	return func(abort func()) func() {
		unwatch := context.AfterFunc(ctx, abort)
		if p == nil {
			if count != nil {
				count.open.Add(1)
			}
			return func() {
				unwatch()
				if count != nil {
					count.open.Add(-1)
				}
			}
		}
		release, ok := p.hold(term, abort)
		if !ok {
			abort()
			return func() { unwatch() }
		}
		return func() {
			unwatch()
			release()
		}
	}
}

// certName is the one name of a certificate; one with several has none, so
// that no allowlist has to be read twice.
func certName(s tls.ConnectionState) string {
	if len(s.PeerCertificates) == 0 || len(s.PeerCertificates[0].DNSNames) != 1 {
		return ""
	}
	return s.PeerCertificates[0].DNSNames[0]
}

func (b *Border) counters(name string) *counters {
	if c, ok := b.known[peerOf(name)]; ok && b.probes[name] {
		return c
	}
	return b.known[unknownPeer]
}

// Peers are the zones this border has links to, sorted.
func (b *Border) Peers() []string { return slices.Sorted(maps.Keys(b.peers)) }

// Status is what is known about each link.
func (b *Border) Status() map[string]Status {
	out := make(map[string]Status, len(b.peers))
	for zone, p := range b.peers {
		out[zone] = p.Status()
	}
	return out
}

// Stats are the counters per peer, the edge and "unknown" certificates too.
func (b *Border) Stats() map[string]Stats {
	out := make(map[string]Stats, len(b.known))
	for peer, c := range b.known {
		out[peer] = c.stats()
	}
	return out
}

// SetFault replaces the fault on the link to a peer: a zone, EdgeName, or
// Everyone. The zero Fault heals. What was held flows on, if its stream is
// still open.
func (b *Border) SetFault(peer string, f Fault) error {
	if _, ok := b.known[peer]; !ok && peer != Everyone || peer == unknownPeer || peer == b.conf.Zone {
		return errs.Field("peer", "zone %s has no link to %q", b.conf.Zone, peer)
	}
	if f.Delay < 0 || f.Delay > time.Minute {
		return errs.Field("delay", "must be between 0 and 1m")
	}
	b.faults.apply(peer, f)
	b.conf.Log.Info("link fault", "peer", peer, "delay", f.Delay, "cut_out", f.CutOut, "cut_in", f.CutIn)
	return nil
}

// Faults are those that are set now.
func (b *Border) Faults() map[string]Fault { return b.faults.list() }
