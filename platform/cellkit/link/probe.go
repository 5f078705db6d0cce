package link

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

// The prober's times. Down within a second of the last answer is what the
// callers' breakers count on.
const (
	pingEvery  = 250 * time.Millisecond
	downAfter  = 750 * time.Millisecond
	probeLimit = 2 * time.Second        // a probe's opening, and its silence before it is opened anew
	lateness   = 100 * time.Millisecond // a timer this late means that this process got no CPU
	grace      = pingEvery              // what a late prober gets to read the answers that wait for it
)

// Run probes until ctx ends, and returns when all that it started has ended;
// the link is down then.
//
// One stream stays open; every ping is answered by the other agent with the
// same eight bytes. It takes the same way as everyone's bytes, faults
// included.
func (p *Peer) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := p.probe(ctx)
		p.note(err)
		sleepUntil(time.Now().Add(pingEvery), ctx.Done())
	}
	p.setDown("this side has stopped")
	return nil
}

// probe opens a probe stream and pings on it until it breaks.
func (p *Peer) probe(ctx context.Context) error {
	started := time.Now()
	opening, cancel := context.WithTimeout(ctx, probeLimit)
	s, err := open(opening, p.conf.Addr, p.tls, p.wire, p.count, p.conf.Zone, probeTarget)
	cancel()
	if err != nil {
		return err
	}
	near, far := net.Pipe()
	spliced := make(chan struct{})
	go func() {
		defer close(spliced)
		splice(far, s, p.wire, func(func()) func() { return func() {} })
	}()
	read := make(chan error, 1)
	go func() { read <- p.readPongs(near, started) }()
	err = p.ping(ctx, near, started, read)
	near.Close()
	// The pipes may wait for a peer that is gone: this probe is over.
	reset(s)
	<-spliced
	return err
}

// ping sends the time since started, whatever was answered so far: on a slow
// link several are under way.
func (p *Peer) ping(ctx context.Context, conn net.Conn, started time.Time, read <-chan error) error {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	var b [8]byte
	for {
		now := time.Now()
		binary.BigEndian.PutUint64(b[:], uint64(now.Sub(started)))
		conn.SetWriteDeadline(now.Add(probeLimit))
		if _, err := conn.Write(b[:]); err != nil {
			<-read
			return err
		}
		select {
		case <-tick.C:
		case err := <-read:
			return err
		case <-ctx.Done():
			conn.Close()
			<-read
			return ctx.Err()
		}
	}
}

func (p *Peer) readPongs(conn net.Conn, started time.Time) error {
	// A reader that fails must end the writer's Write too.
	defer conn.Close()
	var b [8]byte
	for {
		conn.SetReadDeadline(time.Now().Add(probeLimit))
		if _, err := io.ReadFull(conn, b[:]); err != nil {
			return err
		}
		rtt := time.Since(started) - time.Duration(binary.BigEndian.Uint64(b[:]))
		if rtt < 0 || rtt > time.Hour {
			return errors.New("an answer to a ping that was never sent")
		}
		p.answer(rtt)
	}
}

// echo is the answering side.
func echo(conn net.Conn) {
	defer conn.Close()
	var b [8]byte
	for {
		if _, err := io.ReadFull(conn, b[:]); err != nil {
			return
		}
		if _, err := conn.Write(b[:]); err != nil {
			return
		}
	}
}

// answer notes a pong.
func (p *Peer) answer(rtt time.Duration) {
	p.mu.Lock()
	now := time.Now()
	p.answered, p.rtt, p.graced = now, rtt, false
	changed := !p.up
	if changed {
		p.up, p.since, p.reason = true, now, ""
		p.term++
	}
	if p.expiry == nil {
		p.expiry = time.AfterFunc(downAfter, p.expire)
	} else {
		p.expiry.Reset(downAfter)
	}
	p.mu.Unlock()
	if changed {
		p.changed()
	}
}

// expire is called when the time since the last answer is up.
func (p *Peer) expire() {
	p.mu.Lock()
	quiet := time.Since(p.answered)
	switch {
	case !p.up:
	case quiet < downAfter: // answered while the timer fired
		p.expiry.Reset(downAfter - quiet)
	case !p.graced && quiet-downAfter > lateness:
		// Stopped or starved ourselves: the answer may be waiting unread, and
		// closing every stream for that would be our fault alone.
		p.graced = true
		p.expiry.Reset(grace)
	default:
		tell := p.down("no answer for " + downAfter.String())
		p.mu.Unlock()
		tell()
		return
	}
	p.mu.Unlock()
}

// note keeps why a link that isn't up couldn't be probed.
func (p *Peer) note(err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.up {
		p.reason = why(err)
	}
}

// why is the root of an error in a few words.
func why(err error) string {
	var e *errs.Error
	if errors.As(err, &e) {
		if cause := errors.Unwrap(e); cause != nil {
			err = cause
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer"
	}
	return err.Error()
}

// reasonOf is how a failed dial is counted.
func reasonOf(err error) Reason {
	switch {
	case errors.Is(err, ErrRefused):
		return NotAllowed
	case errors.Is(err, ErrNoTarget):
		return NoTarget
	case errors.Is(err, ErrTargetDown):
		return TargetDown
	}
	return LinkDown
}

// setDown ends everything that goes through the link, whichever side opened it.
func (p *Peer) setDown(reason string) {
	p.mu.Lock()
	tell := p.down(reason)
	p.mu.Unlock()
	tell()
}

// down is called with mu held; what it returns, without.
func (p *Peer) down(reason string) (tell func()) {
	changed := p.up
	p.reason = reason
	if changed {
		p.up, p.since = false, time.Now()
		p.term++
	}
	if p.expiry != nil {
		p.expiry.Stop()
	}
	ends := slices.Collect(maps.Keys(p.held))
	return func() {
		for _, h := range ends {
			h.end()
		}
		if changed {
			p.changed()
		}
	}
}

func (p *Peer) changed() {
	if p.conf.OnChange != nil {
		p.conf.OnChange()
	}
}
