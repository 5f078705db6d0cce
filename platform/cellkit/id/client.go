package id

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/routing"
)

// How the client leases.
const (
	FirstLease = 1_000            // before a rate is known, and the least ever asked for
	MaxLease   = 1_000_000        // a lost process wastes no more than this per segment
	stockFor   = 30 * time.Minute // a lease lasts this long at the measured rate
	leaseLimit = 5 * time.Second  // then the answer, and its range, is forgotten
	backoffMin = 100 * time.Millisecond
	backoffMax = 5 * time.Second
)

// What idgen keeps to, and a grant is held against: sequences follow the time
// since Epoch at PerMilli, and never run ahead of it by more than Budget.
const (
	PerMilli = 100
	Budget   = 60 * time.Second
	// maxSkew is how far a grant may be from this process's clock. It is wide:
	// it finds clocks that are plainly wrong and stops them from using up the
	// sequence, while uniqueness needs no clock here at all.
	maxSkew = 24 * time.Hour
)

// Epoch is when sequences start to count.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// SeqAt is the sequence that belongs to a time: PerMilli for each millisecond
// since Epoch. Negative before it.
func SeqAt(t time.Time) int64 { return t.Sub(Epoch).Milliseconds() * PerMilli }

// Errors of Next. Only ErrExhausted can happen to a program that is right.
var (
	ErrExhausted = errs.New(errs.Unavailable, "IDS_EXHAUSTED", "no IDs are left in this process, try again").After(time.Second)
	ErrKind      = errs.New(errs.Internal, "IDS_KIND", "this kind of ID is not bound to the client")
	ErrSlot      = errs.New(errs.Internal, "IDS_SLOT", "an ID carries a hash slot, 0 to 16383")
)

// LeaseFunc leases a range [lo, hi) of a kind: at or above floor, at most size
// long. idgenapi.Client.Lease is one.
type LeaseFunc func(ctx context.Context, kind string, floor, size int64) (lo, hi int64, err error)

// Options of a Client.
type Options struct {
	Lease LeaseFunc
	Kinds []string         // bound for good; others are ErrKind
	Log   *slog.Logger     // default: discarded
	Clock func() time.Time // default: time.Now
}

// Client hands out IDs. One per process is enough for any number of goroutines.
type Client struct {
	lease   LeaseFunc
	log     *slog.Logger
	clock   func() time.Time
	sources []*source
	running atomic.Bool
}

// NewClient makes a client without stock; Run gets it some.
func NewClient(o Options) *Client {
	c := &Client{lease: o.Lease, log: o.Log, clock: o.Clock}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.clock == nil {
		c.clock = time.Now
	}
	for _, kind := range o.Kinds {
		c.sources = append(c.sources, newSource(kind))
	}
	return c
}

// Next gives an ID of a kind for the owner's slot, or ErrExhausted at once.
func (c *Client) Next(kind string, slot routing.Slot) (ID, error) {
	s := c.source(kind)
	if s == nil {
		return 0, ErrKind
	}
	if slot < 0 || slot >= routing.Slots {
		return 0, ErrSlot
	}
	seq, ok := s.take()
	if !ok {
		return 0, ErrExhausted
	}
	return Make(seq, slot, false), nil
}

// source looks a kind up. A handful of short strings: a loop beats a map.
func (c *Client) source(kind string) *source {
	for _, s := range c.sources {
		if s.kind == kind {
			return s
		}
	}
	return nil
}

// Wait blocks until a first lease of the kind has arrived. For start-up only: a
// request never waits for IDs.
func (c *Client) Wait(ctx context.Context, kind string) error {
	s := c.source(kind)
	if s == nil {
		return ErrKind
	}
	select {
	case <-s.ready:
		return nil
	case <-ctx.Done():
		return ErrExhausted.Because(fmt.Errorf("first lease of %q: %w", kind, context.Cause(ctx)))
	}
}

// Run keeps every kind in stock until ctx ends. While idgen is away it tries
// again with backoff, for ever. A client runs once.
func (c *Client) Run(ctx context.Context) error {
	if !c.running.CompareAndSwap(false, true) {
		return errors.New("id: the client runs already")
	}
	var wg sync.WaitGroup
	for _, s := range c.sources {
		wg.Go(func() { c.keep(ctx, s) })
	}
	wg.Wait()
	return nil
}

// keep is the only path by which a kind's segments arrive, so they arrive one
// at a time and in order.
func (c *Client) keep(ctx context.Context, s *source) {
	backoff := backoffMin
	for ctx.Err() == nil {
		if !s.due() {
			select {
			case <-s.wake:
			case <-ctx.Done():
			}
			continue
		}
		err := c.refill(ctx, s)
		if err == nil {
			backoff = backoffMin
			continue
		}
		if ctx.Err() != nil {
			return
		}
		s.failures.Add(1)
		c.log.Warn("no lease of IDs", "kind", s.kind, "stock", s.stock(), "retry_in", backoff, "error", err)
		// Jitter, so that a fleet doesn't come back in step.
		timer := time.NewTimer(backoff/2 + rand.N(backoff/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		backoff = min(backoff*2, backoffMax)
	}
}

func (c *Client) refill(ctx context.Context, s *source) error {
	size := s.step(time.Now())
	floor := s.tail.hi
	ctx, cancel := context.WithTimeout(ctx, leaseLimit)
	defer cancel()
	lo, hi, err := c.lease(ctx, s.kind, floor, size)
	if err != nil {
		return err
	}
	if err := check(lo, hi, floor, size, c.clock()); err != nil {
		s.dropped.Add(1)
		c.log.Error("a grant of IDs was dropped", "alarm", "ids.grant", "kind", s.kind, "lo", lo, "hi", hi, "floor", floor, "size", size, "error", err)
		return err
	}
	s.append(lo, hi)
	return nil
}

// check holds a grant against what was asked for and against the own clock, so
// that one idgen gone wrong isn't believed.
func check(lo, hi, floor, size int64, now time.Time) error {
	skew := maxSkew.Milliseconds() * PerMilli
	switch {
	case lo < floor:
		return fmt.Errorf("starts at %d, below %d: given before", lo, floor)
	case lo < 1 || hi <= lo || hi > MaxSeq:
		return fmt.Errorf("[%d, %d) is not a range of sequences", lo, hi)
	case hi-lo > size:
		return fmt.Errorf("%d long, %d were asked for", hi-lo, size)
	case lo < SeqAt(now)-skew:
		return fmt.Errorf("starts at %d, more than %v behind the own clock", lo, maxSkew)
	case hi > SeqAt(now.Add(Budget))+skew:
		return fmt.Errorf("ends at %d, more than %v ahead of the own clock", hi, maxSkew)
	}
	return nil
}

// Stat is how one kind stands.
type Stat struct {
	Kind     string
	Stock    int64         // IDs at hand
	Rate     float64       // IDs per second, as last measured; 0 = not yet known
	Lasts    time.Duration // Stock at Rate; 0 = not known
	Leases   int64         // taken into stock
	Failures int64         // leases that failed, grants dropped included
	Dropped  int64         // grants that were not believed
	Waits    int64         // calls that found nothing
}

// Stats reports each kind, in the order they were bound.
func (c *Client) Stats() []Stat {
	out := make([]Stat, 0, len(c.sources))
	for _, s := range c.sources {
		st := Stat{
			Kind: s.kind, Stock: s.stock(), Rate: math.Float64frombits(s.rate.Load()),
			Leases: s.leases.Load(), Failures: s.failures.Load(), Dropped: s.dropped.Load(), Waits: s.waits.Load(),
		}
		if st.Rate > 0 {
			st.Lasts = time.Duration(min(float64(st.Stock)/st.Rate, (365*24*time.Hour).Seconds()) * float64(time.Second))
		}
		out = append(out, st)
	}
	return out
}
