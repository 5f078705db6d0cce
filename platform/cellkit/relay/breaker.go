package relay

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// The breaker's defaults. Open within a second of the last success is what
// design.md promises to who waits.
const (
	probeEvery = 250 * time.Millisecond
	silence    = 900 * time.Millisecond
	errorsMax  = 3
	lateness   = 100 * time.Millisecond // a timer this late means that this process got no CPU
	grace      = 250 * time.Millisecond // what it then gets to read the answers that wait for it
)

// BreakerOptions of a Breaker. Zero times are the defaults.
type BreakerOptions struct {
	Probe    func(ctx context.Context) error // a health call
	Every    time.Duration                   // between health calls, 250 ms
	Silence  time.Duration                   // opens after this long without a success, 900 ms
	Errors   int                             // opens after so many in a row, 3
	OnChange func(open bool, why error)      // must not block; may be nil
}

// Breaker says whether a place may be asked.
type Breaker struct {
	o BreakerOptions

	mu      sync.Mutex
	open    bool
	why     error
	errors  int // of exchanges, in a row
	sick    int // health calls answered with an error, in a row
	success time.Time
	expiry  *time.Timer
	graced  bool
	term    context.Context // ends when the breaker opens
	end     context.CancelCauseFunc
}

// NewBreaker makes a closed breaker; it only learns while Run runs.
func NewBreaker(o BreakerOptions) *Breaker {
	if o.Every <= 0 {
		o.Every = probeEvery
	}
	if o.Silence <= 0 {
		o.Silence = silence
	}
	if o.Errors <= 0 {
		o.Errors = errorsMax
	}
	b := &Breaker{o: o, success: time.Now()}
	b.term, b.end = context.WithCancelCause(context.Background())
	return b
}

// Run makes the health calls until ctx ends.
func (b *Breaker) Run(ctx context.Context) {
	b.mu.Lock()
	b.success = time.Now()
	b.expiry = time.AfterFunc(b.o.Silence, b.expire)
	b.mu.Unlock()
	tick := time.NewTicker(b.o.Every)
	defer tick.Stop()
	for ctx.Err() == nil {
		b.probe(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	b.mu.Lock()
	b.expiry.Stop()
	b.expiry = nil
	b.mu.Unlock()
}

// probe lets one call take as long as the silence may last: a call that is late
// but answered is a success. One without an answer is no error: whether that is
// silence, or only a busy place that answers its users, the timer decides.
func (b *Breaker) probe(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, b.o.Silence)
	defer cancel()
	err := b.o.Probe(limited)
	switch {
	case err == nil:
		b.succeed(true)
	case limited.Err() == nil:
		b.fail(&b.sick, fmt.Errorf("health call: %w", err))
	}
}

// Enter begins an exchange with the place. The context ends, with the cause
// ErrOpen, when the breaker opens; leave must be called. When the breaker is
// open already ok is false.
func (b *Breaker) Enter(ctx context.Context) (inner context.Context, leave func(), ok bool) {
	b.mu.Lock()
	open, term := b.open, b.term
	b.mu.Unlock()
	if open {
		return ctx, func() {}, false
	}
	inner, cancel := context.WithCancelCause(ctx)
	unwatch := context.AfterFunc(term, func() { cancel(ErrOpen) })
	return inner, func() { unwatch(); cancel(nil) }, true
}

// Worked notes that the place answered someone. It doesn't close an open
// breaker: only a health call does.
func (b *Breaker) Worked() { b.succeed(false) }

// Failed notes an exchange that broke, or couldn't begin.
func (b *Breaker) Failed(err error) { b.fail(&b.errors, err) }

func (b *Breaker) fail(inARow *int, err error) {
	b.mu.Lock()
	*inARow++
	tell := func() {}
	if *inARow >= b.o.Errors {
		tell = b.trip(err)
	}
	b.mu.Unlock()
	tell()
}

// Open says whether the place may not be asked, and why.
func (b *Breaker) Open() (open bool, why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open, b.why
}

// Doubtful says that the place's last health call failed or is late, or that
// the breaker is open: who asks anyway shouldn't wait long.
func (b *Breaker) Doubtful() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open || b.errors > 0 || b.sick > 0 || time.Since(b.success) > b.o.Silence/2
}

func (b *Breaker) succeed(health bool) {
	b.mu.Lock()
	tell := func() {}
	if !b.open || health {
		b.errors, b.success, b.graced = 0, time.Now(), false
		if health {
			b.sick = 0
		}
		if b.expiry != nil {
			b.expiry.Reset(b.o.Silence)
		}
	}
	if b.open && health {
		b.open, b.why = false, nil
		b.term, b.end = context.WithCancelCause(context.Background())
		tell = b.changed(false, nil)
	}
	b.mu.Unlock()
	tell()
}

// expire is called when the time since the last success is up.
func (b *Breaker) expire() {
	b.mu.Lock()
	quiet := time.Since(b.success)
	tell := func() {}
	switch {
	case b.open || b.expiry == nil:
	case quiet < b.o.Silence: // a success while the timer fired
		b.expiry.Reset(b.o.Silence - quiet)
	case !b.graced && quiet-b.o.Silence > lateness:
		// Stopped or starved ourselves: the answer may be waiting unread.
		b.graced = true
		b.expiry.Reset(grace)
	default:
		tell = b.trip(fmt.Errorf("no success for %s", quiet.Round(time.Millisecond)))
	}
	b.mu.Unlock()
	tell()
}

// trip is called with mu held; what it returns, without.
func (b *Breaker) trip(why error) (tell func()) {
	if b.open {
		return func() {}
	}
	b.open, b.why = true, why
	b.end(ErrOpen)
	return b.changed(true, why)
}

func (b *Breaker) changed(open bool, why error) func() {
	if b.o.OnChange == nil {
		return func() {}
	}
	return func() { b.o.OnChange(open, why) }
}
