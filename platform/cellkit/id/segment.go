package id

import (
	"math"
	"sync/atomic"
	"time"
)

// segment is a leased range [.., hi). next is claimed by one atomic add each,
// past hi too; whoever claims a number at or past hi got nothing. There is no
// load before the add, so there is no moment between them in which two callers
// at the border could agree on one number.
type segment struct {
	next atomic.Int64
	hi   int64
	half int64 // when next gets here, another lease is due; above lo, so an untouched segment is never due
	lo   int64
	link atomic.Pointer[segment] // the next segment, once it has arrived
	_    [24]byte                // a cache line of its own
}

func newSegment(lo, hi int64) *segment {
	s := &segment{lo: lo, hi: hi, half: lo + (hi-lo+1)/2}
	s.next.Store(lo)
	return s
}

func (s *segment) used() int64 { return min(s.next.Load(), s.hi) - s.lo }

// source is one kind's chain of segments. Callers move cur forward along the
// links; only the refilling goroutine appends and touches the fields below it.
type source struct {
	kind string
	cur  atomic.Pointer[segment]
	wake chan struct{} // capacity 1: half used, or nothing left
	_    [64]byte      // what callers only read stays off the counters' line

	ready chan struct{} // closed with the first range

	rate              atomic.Uint64 // float64 bits
	leased            atomic.Int64  // IDs taken into stock
	top               atomic.Int64  // the end of the highest lease of idgen's
	ranges, failures  atomic.Int64
	banked, fallbacks atomic.Int64 // IDs that came out of the bank, calls that the fallback served
	waits             atomic.Int64
	quarantine        quarantine

	tail     *segment // the last of the chain
	before   int64    // sizes of all segments before tail
	measured time.Time
	usedThen int64
	had      spans
	bankHi   int64 // the end of the last range out of the bank
}

func newSource(kind string) *source {
	s := &source{kind: kind, wake: make(chan struct{}, 1), ready: make(chan struct{})}
	// The chain starts with an empty segment that is used up, so a first lease
	// is due from the beginning.
	s.tail = newSegment(0, 0)
	s.cur.Store(s.tail)
	return s
}

// take claims a sequence; false: none is left.
func (s *source) take() (int64, bool) {
	for {
		seg := s.cur.Load()
		seq := seg.next.Add(1) - 1
		if seq < seg.hi {
			if seq+1 == seg.half { // one caller only, so the wake-up costs nothing on average
				s.signal()
			}
			return seq, true
		}
		next := seg.link.Load()
		if next == nil {
			s.signal()
			return 0, false
		}
		// Whoever is first moves on for all; a segment never comes back, so the
		// compare can't be fooled.
		s.cur.CompareAndSwap(seg, next)
	}
}

func (s *source) signal() {
	select {
	case s.wake <- struct{}{}:
	default: // one is pending already
	}
}

// due says whether the last segment is at least half used.
func (s *source) due() bool { return s.tail.next.Load() >= s.tail.half }

// measure takes the rate since the last time it was asked. One quiet hour halves
// the rate at most, so the morning doesn't start with a step that is too small.
func (s *source) measure(now time.Time) {
	used := s.before + s.tail.used()
	if s.measured.IsZero() {
		s.measured, s.usedThen = now, used
		return
	}
	if elapsed := now.Sub(s.measured); used > s.usedThen {
		rate := float64(used-s.usedThen) / max(elapsed, time.Millisecond).Seconds()
		s.rate.Store(math.Float64bits(max(rate, s.perSecond()/2)))
		s.measured, s.usedThen = now, used
	}
}

// perSecond is the rate as last measured, 0 = not yet.
func (s *source) perSecond() float64 { return math.Float64frombits(s.rate.Load()) }

// low says that the stock won't last long: time to take from the bank when
// idgen gave nothing.
func (s *source) low() bool {
	stock := s.stock()
	return stock < FirstLease/2 || float64(stock) < s.perSecond()*bankBelow.Seconds()
}

// append puts a range at the end of the chain.
func (s *source) append(lo, hi int64) {
	seg := newSegment(lo, hi)
	s.before += s.tail.hi - s.tail.lo
	s.leased.Add(hi - lo)
	s.tail.link.Store(seg)
	s.tail = seg
	if s.ranges.Add(1) == 1 {
		close(s.ready)
	}
}

// stock counts what is left, approximately while callers are at it.
func (s *source) stock() int64 {
	var n int64
	for seg := s.cur.Load(); seg != nil; seg = seg.link.Load() {
		n += seg.hi - seg.lo - seg.used()
	}
	return n
}
