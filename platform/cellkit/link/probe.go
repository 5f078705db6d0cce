package link

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

// The prober's times. Down within a second of the last answer is what the
// callers' breakers count on.
const (
	pingEvery  = 250 * time.Millisecond
	downAfter  = 750 * time.Millisecond
	probeLimit = 2 * time.Second        // a probe's opening, and its silence before it is opened anew
	lateness   = 100 * time.Millisecond // a timer this late means that this process gets no CPU
	grace      = pingEvery              // what a late prober gets to read the answers that wait for it
	graces     = 3                      // in a row, at most
)

const pongSize = 8

var errNoAnswer = errors.New("no answer")

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

// probe opens a probe stream and pings on it until it breaks. Few goroutines
// take part, so that a busy process still answers in time.
func (p *Peer) probe(ctx context.Context) error {
	opening, cancel := context.WithTimeout(ctx, probeLimit)
	s, err := open(opening, p.conf.Addr, p.tls, p.wire, p.count, p.conf.Zone, probeTarget)
	cancel()
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	abort := sync.OnceFunc(func() { close(stop); reset(s) })
	defer context.AfterFunc(ctx, abort)()
	pongs := &pongs{started: time.Now(), answer: p.answer, late: p.late}
	in := newPipe(pongs, s, stop, abort, p.wire.in)
	out := newPipe(s, nil, stop, abort, p.wire.out)
	ended := make(chan struct{})
	go func() { defer close(ended); in.run() }()
	err = pongs.ping(out, stop)
	abort()
	out.wait()
	<-ended
	return err
}

// pongs takes what a probe stream answers: the times that ping sent, since
// started.
type pongs struct {
	started time.Time
	answer  func(rtt time.Duration)
	late    func()       // called when a ping went out late
	rest    []byte       // of a pong that came in pieces
	last    atomic.Int64 // when the last one came, since started
}

// ping sends the time every 250 ms, whatever was answered so far: on a slow
// link several are under way.
func (a *pongs) ping(out *pipe, stop <-chan struct{}) error {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	var before time.Duration
	for {
		now := time.Since(a.started)
		if now-time.Duration(a.last.Load()) > probeLimit {
			return errNoAnswer
		}
		if now-before > pingEvery+lateness {
			a.late()
		}
		before = now
		if err := out.carry(binary.BigEndian.AppendUint64(nil, uint64(now))); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-stop:
			return errors.New("the probe's stream broke")
		}
	}
}

// Write takes a piece of the answers.
func (a *pongs) Write(b []byte) (int, error) {
	a.rest = append(a.rest, b...)
	for len(a.rest) >= pongSize {
		now := time.Since(a.started)
		rtt := now - time.Duration(binary.BigEndian.Uint64(a.rest))
		a.rest = a.rest[pongSize:]
		if rtt < 0 || rtt > now {
			return 0, errors.New("an answer to a ping that was never sent")
		}
		a.last.Store(int64(now))
		a.answer(rtt)
	}
	return len(b), nil
}

// echo answers probes until the stream breaks: what comes in goes out, through
// both directions' faults.
func echo(ctx context.Context, s *stream, w *wire) {
	stop := make(chan struct{})
	abort := sync.OnceFunc(func() { close(stop); reset(s) })
	defer context.AfterFunc(ctx, abort)()
	newPipe(s, s, stop, abort, w.in, w.out).run()
	_ = s.Close()
}

// answer notes a pong.
func (p *Peer) answer(rtt time.Duration) {
	p.mu.Lock()
	now := time.Now()
	p.answered, p.rtt, p.graced = now, rtt, 0
	changed := !p.up
	if changed {
		p.up, p.since, p.reason = true, now, ""
		p.term++
	}
	p.arm(downAfter)
	p.mu.Unlock()
	if changed {
		p.changed()
	}
}

// arm is called with mu held.
func (p *Peer) arm(d time.Duration) {
	p.due = time.Now().Add(d)
	if p.expiry == nil {
		p.expiry = time.AfterFunc(d, p.expire)
	} else {
		p.expiry.Reset(d)
	}
}

// expire is called when the time since the last answer is up.
func (p *Peer) expire() {
	p.mu.Lock()
	now := time.Now()
	switch {
	case !p.up:
	case now.Before(p.due): // answered while the timer fired
		p.arm(p.due.Sub(now))
	case p.graced < graces && (now.Sub(p.due) > lateness || now.Sub(p.lateAt) < downAfter):
		// Stopped or starved ourselves: the answer may be waiting unread, and
		// closing every stream for that would be our fault alone.
		p.graced++
		p.arm(grace)
	default:
		tell := p.down("no answer for " + downAfter.String())
		p.mu.Unlock()
		tell()
		return
	}
	p.mu.Unlock()
}

// late notes that this process gets too little CPU to judge a link in time.
func (p *Peer) late() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lateAt = time.Now()
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
		err = errNoAnswer
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
