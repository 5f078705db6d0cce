package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

// What a dial through a link may give. All name the zone in Cell.
var (
	// ErrLinkDown: the zone can't be reached: known down, or it didn't answer.
	ErrLinkDown = errs.New(errs.Unavailable, "LINK_DOWN", "the link to that cell is down").After(time.Second)
	// ErrTargetDown: the zone was reached, what was asked for there is not running.
	ErrTargetDown = errs.New(errs.Unavailable, "TARGET_DOWN", "that cell answers, but not the part that this needs").After(time.Second)
	// ErrRefused: a certificate was not accepted, or not for this target.
	ErrRefused = errs.New(errs.Forbidden, "LINK_REFUSED", "the other zone does not let this one in")
	// ErrNoTarget: there is no such zone, or no such target in it.
	ErrNoTarget = errs.New(errs.NotFound, "NO_SUCH_TARGET", "there is no such zone or target")
)

const (
	protocol    = "cellmart-link/1"
	probeTarget = "_probe"
	maxLine     = 128
	openLimit   = 10 * time.Second // a stream's whole opening, at the accepting side
)

// Reason says why a stream was refused.
type Reason string

// The reasons, as they stand in Stats.Refused and in the border's status line.
const (
	LinkDown   Reason = "link_down"
	NotAllowed Reason = "not_allowed"
	NoTarget   Reason = "no_target"
	TargetDown Reason = "target_down"
	Handshake  Reason = "handshake"
	BadRequest Reason = "bad_request"
)

var reasons = [...]Reason{LinkDown, NotAllowed, NoTarget, TargetDown, Handshake, BadRequest}

// err is the error that stands for a peer's refusal.
func (r Reason) err(zone, target string) error {
	switch r {
	case NotAllowed:
		return ErrRefused.Msgf("zone %s does not let this zone open %s", zone, target).In(zone)
	case NoTarget:
		return ErrNoTarget.Msgf("zone %s has no target %q", zone, target).In(zone)
	case TargetDown:
		return ErrTargetDown.Msgf("%s in zone %s is not running", target, zone).In(zone)
	}
	return ErrLinkDown.Msgf("zone %s refused the stream: %s", zone, r).In(zone)
}

// stream is one connection through a border.
type stream struct {
	*tls.Conn
	count   *counters
	release func() // may be nil
}

// Read counts.
func (s *stream) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.count.bytesIn.Add(uint64(n))
	return n, err
}

// Write counts.
func (s *stream) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	s.count.bytesOut.Add(uint64(n))
	return n, err
}

// Close closes, and tells whoever counts streams.
func (s *stream) Close() error {
	if s.release != nil {
		s.release()
	}
	return s.Conn.Close()
}

// DialBorder opens a stream to a target of a zone at that zone's border, with
// the caller's own certificate: for the edge, which has no agent. Prefer a
// Peer, which knows a dead link before anyone waits for it.
func DialBorder(ctx context.Context, addr string, conf *tls.Config, zone, target string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	s, err := open(ctx, addr, clientTLS(conf, zone), newWire(), &counters{}, zone, target)
	if err != nil {
		return nil, err // not s: a nil *stream is not a nil net.Conn
	}
	return s, nil
}

// clientTLS is the dialing side's configuration: whoever answers must hold the
// zone's own certificate.
func clientTLS(conf *tls.Config, zone string) *tls.Config {
	c := conf.Clone()
	c.ServerName = AgentName(zone)
	if c.ClientSessionCache == nil {
		c.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	}
	return c
}

// open dials, shakes hands, names the target and waits for the border's word.
func open(ctx context.Context, addr string, conf *tls.Config, w *wire, count *counters, zone, target string) (*stream, error) {
	if err := w.roundTrip(ctx); err != nil {
		return nil, unreachable(ctx, zone, err)
	}
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, unreachable(ctx, zone, err)
	}
	conn := tls.Client(raw, conf)
	// The deadline of ctx must end reads and writes too, not only the dial.
	unwatch := context.AfterFunc(ctx, func() { raw.Close() })
	status, err := ask(ctx, conn, w, target)
	if !unwatch() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		reset(conn)
		return nil, unreachable(ctx, zone, err)
	}
	if status != "" {
		reset(conn)
		return nil, status.err(zone, target)
	}
	return &stream{Conn: conn, count: count}, nil
}

func ask(ctx context.Context, conn *tls.Conn, w *wire, target string) (Reason, error) {
	if err := conn.HandshakeContext(ctx); err != nil {
		return "", err
	}
	// A border that refuses our certificate says so after our side of the
	// handshake is done, and may have closed: the read, not the write, tells why.
	fmt.Fprintf(conn, "%s %s\n", protocol, target)
	line, err := readLine(conn)
	if err != nil {
		return "", err
	}
	if err := w.roundTrip(ctx); err != nil {
		return "", err
	}
	switch no, refused := strings.CutPrefix(line, "no "); {
	case line == "ok":
		return "", nil
	case refused:
		return Reason(no), nil
	}
	return "", fmt.Errorf("border answered %q", line)
}

// unreachable tells a refused certificate from a zone that can't be reached.
func unreachable(ctx context.Context, zone string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	var e *errs.Error
	if errors.As(err, &e) {
		return err
	}
	var alert tls.AlertError
	var verify *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &alert) || errors.As(err, &verify) || errors.As(err, &unknown) || isRemoteAlert(err) {
		return ErrRefused.In(zone).Because(err)
	}
	return ErrLinkDown.Msgf("zone %s cannot be reached", zone).In(zone).Because(err)
}

// isRemoteAlert sees a TLS alert from the other side: crypto/tls hides its
// type inside a *net.OpError with this Op.
func isRemoteAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// readLine reads up to a newline and not one byte further: what follows
// belongs to the stream.
func readLine(r io.Reader) (string, error) {
	b := make([]byte, 0, maxLine)
	for len(b) < maxLine {
		n, err := r.Read(b[len(b) : len(b)+1])
		if n == 1 {
			if c := b[:len(b)+1][len(b)]; c == '\n' {
				return string(b), nil
			}
			b = b[:len(b)+1]
			continue
		}
		if err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("line longer than %d bytes", maxLine)
}

// AgentName is the certificate name of a zone's agent.
func AgentName(zone string) string { return "agent." + zone }

// EdgeName is the certificate name of the edge.
const EdgeName = "edge"

// peerOf is the peer that a certificate name stands for.
func peerOf(name string) string { return strings.TrimPrefix(name, "agent.") }

// counters count for one peer.
type counters struct {
	open              atomic.Int64
	dialed, accepted  atomic.Uint64
	bytesIn, bytesOut atomic.Uint64
	refused           [len(reasons)]atomic.Uint64
}

func (c *counters) refuse(r Reason) {
	for i, known := range reasons {
		if r == known {
			c.refused[i].Add(1)
		}
	}
}

// Stats are one peer's counters since the start. Bytes are those that streams
// carried, without TLS and openings, but with pings; streams are without probes.
type Stats struct {
	Open             int64 // streams now
	Dialed, Accepted uint64
	BytesIn          uint64
	BytesOut         uint64
	Refused          map[Reason]uint64
}

func (c *counters) stats() Stats {
	s := Stats{
		Open: c.open.Load(), Dialed: c.dialed.Load(), Accepted: c.accepted.Load(),
		BytesIn: c.bytesIn.Load(), BytesOut: c.bytesOut.Load(),
		Refused: make(map[Reason]uint64, len(reasons)),
	}
	for i, r := range reasons {
		s.Refused[r] = c.refused[i].Load()
	}
	return s
}
