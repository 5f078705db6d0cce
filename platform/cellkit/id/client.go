package id

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	bankBelow  = 2 * time.Minute // with less than this in stock and idgen away, the bank is asked
	bankFor    = 5 * time.Minute // what is taken out of it at a time
	watchEvery = time.Second     // how often callers that found nothing, and the fallback's use, are looked for
)

// Errors of Next. Only ErrExhausted can happen to a program that is right.
var (
	ErrExhausted = errs.New(errs.Unavailable, "IDS_EXHAUSTED", "no IDs are left in this process, try again").After(time.Second)
	ErrKind      = errs.New(errs.Internal, "IDS_KIND", "this kind of ID is not bound to the client")
	ErrSlot      = errs.New(errs.Internal, "IDS_SLOT", "an ID carries a hash slot, 0 to 16383")
)

// LeaseFunc leases a range [lo, hi) of a kind: at or above floor, at most size
// long. idgenapi.Client.Lease is one, idbank.Client.Withdraw another.
type LeaseFunc func(ctx context.Context, kind string, floor, size int64) (lo, hi int64, err error)

// Options of a Client.
type Options struct {
	Lease    LeaseFunc        // idgen's
	Bank     LeaseFunc        // the cell's own stock, asked when idgen gives nothing and little is left; nil = none
	Fallback FallbackFunc     // the last resort; nil = none
	Room     RoomFunc         // what idgen's last answer left of the budget; nil = not known
	Kinds    []string         // bound for good; others are ErrKind
	Log      *slog.Logger     // default: discarded
	Clock    func() time.Time // default: time.Now

	// Check holds a grant of a sequence against what was asked; default
	// CheckGrant. A test takes it away to see what it is good for.
	Check func(Grant) error
}

// Client hands out IDs. One per process is enough for any number of goroutines.
type Client struct {
	lease, bank LeaseFunc
	room        RoomFunc
	check       func(Grant) error // nil: CheckGrant, and no range twice
	log         *slog.Logger
	clock       func() time.Time
	sources     []*source
	fallback    *fallback
	running     atomic.Bool
}

// NewClient makes a client without stock; Run gets it some.
func NewClient(o Options) *Client {
	c := &Client{lease: o.Lease, bank: o.Bank, room: o.Room, check: o.Check, log: o.Log, clock: o.Clock, fallback: newFallback(o.Fallback)}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.clock == nil {
		c.clock = time.Now
	}
	if c.room == nil {
		c.room = func(string) Room { return Room{} }
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
	if seq, ok := s.take(); ok {
		return Make(seq, slot, false), nil
	}
	return c.last(s, slot)
}

// last is for a caller that found the kind's chain used up.
func (c *Client) last(s *source, slot routing.Slot) (ID, error) {
	if seq, ok := c.fallback.next(); ok {
		s.fallbacks.Add(1)
		return Make(seq, slot, true), nil
	}
	s.waits.Add(1)
	return 0, ErrExhausted
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

// Wait blocks until there is a first range of the kind, or of the fallback. For
// start-up only: a request never waits for IDs.
func (c *Client) Wait(ctx context.Context, kind string) error {
	s := c.source(kind)
	if s == nil {
		return ErrKind
	}
	select {
	case <-s.ready:
		return nil
	case <-c.fallback.ready:
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
	if c.fallback.err != nil {
		c.log.Error("IDs have no fallback", "alarm", "ids.fallback", "error", c.fallback.err)
	}
	var wg sync.WaitGroup
	for _, s := range c.sources {
		wg.Go(func() { c.keep(ctx, s, c.refill) })
	}
	if !c.fallback.none() {
		wg.Go(func() {
			c.keep(ctx, c.fallback.source, func(ctx context.Context, _ *source) error { return c.fallback.refill(ctx, c) })
		})
	}
	wg.Go(func() { c.watch(ctx) })
	wg.Wait()
	return nil
}

// keep is the only path by which a kind's segments arrive, so they arrive one
// at a time and in order.
func (c *Client) keep(ctx context.Context, s *source, refill func(context.Context, *source) error) {
	backoff := backoffMin
	for ctx.Err() == nil {
		if !s.due() {
			select {
			case <-s.wake:
			case <-ctx.Done():
			}
			continue
		}
		err := refill(ctx, s)
		if err == nil {
			backoff = backoffMin
			continue
		}
		if ctx.Err() != nil {
			return
		}
		s.failures.Add(1)
		c.log.Warn("no lease of IDs", "kind", s.kind, "stock", s.stock(), "retry_in", backoff, "error", err)
		c.bridge(ctx, s)
		// Jitter, so that a fleet doesn't come back in step.
		timer := time.NewTimer(backoff/2 + rand.N(backoff/2))
		wake := s.wake
		for waiting := true; waiting; {
			select {
			case <-wake: // used up meanwhile: once in each wait the bank is asked for it
				wake = nil
				c.bridge(ctx, s)
			case <-timer.C:
				waiting = false
			case <-ctx.Done():
				timer.Stop()
				return
			}
		}
		backoff = min(backoff*2, backoffMax)
	}
}

// refill asks idgen.
func (c *Client) refill(ctx context.Context, s *source) error {
	s.measure(time.Now())
	size := nextStep(s.perSecond(), c.room(s.kind))
	floor := max(s.top.Load(), s.bankHi)
	lo, hi, err := c.grant(ctx, s, "idgen", c.lease, Grant{Floor: floor, Size: size})
	if err != nil {
		return err
	}
	s.top.Store(hi)
	s.append(lo, hi)
	return nil
}

// bridge takes from the cell's bank what will be needed until idgen is back.
func (c *Client) bridge(ctx context.Context, s *source) {
	if c.bank == nil || s == c.fallback.source || !s.low() {
		return
	}
	s.measure(time.Now())
	size := int64(min(max(s.perSecond()*bankFor.Seconds(), FirstLease), MaxLease))
	lo, hi, err := c.grant(ctx, s, "bank", c.bank, Grant{Floor: s.bankHi, Size: size, Age: BankAge})
	if err != nil {
		c.log.Warn("no IDs out of the bank", "kind", s.kind, "stock", s.stock(), "error", err)
		return
	}
	s.bankHi = hi
	s.banked.Add(hi - lo)
	s.append(lo, hi)
	c.log.Warn("IDs out of the cell's bank", "kind", s.kind, "lo", lo, "hi", hi)
}

// grant asks one source, and puts aside what can't be right.
func (c *Client) grant(ctx context.Context, s *source, from string, ask LeaseFunc, g Grant) (lo, hi int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, leaseLimit)
	defer cancel()
	lo, hi, err = ask(ctx, s.kind, g.Floor, g.Size)
	if err != nil {
		return 0, 0, err
	}
	g.Lo, g.Hi, g.Now = lo, hi, c.clock()
	if c.check != nil {
		err = c.check(g)
	} else if err = CheckGrant(g); err == nil {
		err = s.had.overlap(lo, hi)
	}
	if err != nil {
		c.putAside(s, from, lo, hi, err)
		return 0, 0, err
	}
	s.had.add(lo, hi)
	return lo, hi, nil
}

func (c *Client) putAside(s *source, from string, lo, hi int64, why error) {
	s.quarantine.put(Quarantined{Source: from, Lo: lo, Hi: hi, Why: why.Error(), At: c.clock()})
	c.log.Error("a grant of IDs was put aside", "alarm", "ids.grant", "source", from, "kind", s.kind, "lo", lo, "hi", hi, "error", why)
}

// watch raises the alarms that Next has no time for: callers that got nothing,
// and IDs out of the fallback.
func (c *Client) watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	waits, fallbacks := make([]int64, len(c.sources)), make([]int64, len(c.sources))
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for i, s := range c.sources {
			if n := s.waits.Load(); n > waits[i] {
				c.log.Error("callers found no ID", "alarm", "ids.empty", "kind", s.kind, "callers", n-waits[i])
				waits[i] = n
			}
			if n := s.fallbacks.Load(); n > fallbacks[i] {
				c.log.Error("IDs out of the fallback", "alarm", "ids.fallback", "kind", s.kind, "ids", n-fallbacks[i])
				fallbacks[i] = n
			}
		}
	}
}
