package link

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"
)

// Dialer opens streams through the own zone's agent.
type Dialer struct{ Addr string } // the agent's CONNECT listener

// Dial opens a stream to a target of a zone, the own one included. Errors are
// ErrLinkDown, ErrTargetDown, ErrRefused or ErrNoTarget, with Cell = zone.
// Without a deadline in ctx the agent's own limit counts, 10 s.
func (d Dialer) Dial(ctx context.Context, zone, target string) (net.Conn, error) {
	var nd net.Dialer
	conn, err := nd.DialContext(ctx, "tcp", d.Addr)
	if err != nil {
		return nil, ErrLinkDown.Msgf("the own agent doesn't answer").In(zone).Because(err)
	}
	unwatch := context.AfterFunc(ctx, func() { conn.Close() })
	err = connect(conn, zone, target)
	if !unwatch() {
		conn.Close()
		return nil, ErrLinkDown.Msgf("zone %s cannot be reached", zone).In(zone).Because(context.Cause(ctx))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func connect(conn net.Conn, zone, target string) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %s/%s HTTP/1.1\r\nHost: %s\r\n\r\n", zone, target, zone); err != nil {
		return ErrLinkDown.Msgf("the own agent went away").In(zone).Because(err)
	}
	head, err := readHead(conn)
	if err != nil {
		return ErrLinkDown.Msgf("the own agent went away").In(zone).Because(err)
	}
	if !strings.HasPrefix(string(head), "HTTP/1.1 200 ") {
		return readProblem(head, conn, zone)
	}
	return nil
}

// DialContext is Dial in the form of http.Transport's field; the address that
// the transport gives is not used.
func (d Dialer) DialContext(zone, target string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return d.Dial(ctx, zone, target) }
}

// Custom is Dial in the form of nats.CustomDialer. limit bounds each dial: the
// interface has no context.
func (d Dialer) Custom(zone, target string, limit time.Duration) Custom {
	return Custom{dialer: d, zone: zone, target: target, limit: limit}
}

// Custom dials one target of one zone.
type Custom struct {
	dialer       Dialer
	zone, target string
	limit        time.Duration
}

// Dial ignores what it's given: the target is fixed.
func (c Custom) Dial(_, _ string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), c.limit)
	defer cancel()
	return c.dialer.Dial(ctx, c.zone, c.target)
}
