package idgen

import (
	"fmt"
	"slices"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/idgen/idgenapi"
)

// The rules of time. Budget and PerMilli are in package id, since callers hold
// grants against them too.
const (
	// Pause is for a database that changed: by its end the clock has passed all
	// that any lost history can have leased, and 5 s more.
	Pause = id.Budget + 5*time.Second
	// maxAhead is how far idgen's clock may be ahead of the caller's or the
	// database's. One lease further would use up the kind until time catches up.
	maxAhead = 24 * time.Hour
	maxSize  = id.MaxLease
)

// row is a kind's row, as stored.
type row struct {
	found       bool
	hi          int64
	incarnation string
	pausedUntil int64 // ms since id.Epoch
}

// clocks is what the clocks show when leases are decided.
type clocks struct {
	own, database time.Time
	caller        time.Time // zero = not said
}

// early and late are the two ends of what the time may be. Several idgens, or one
// whose clock was stepped, need not agree with each other: what they lease lies
// below the budget of the earlier of the own clock and the database's, and begins
// at or above the later one, so that the clock they share, their database's, is
// proof enough, and so is their own when the database moved to another machine.
func (c clocks) early() time.Time {
	if c.own.Before(c.database) {
		return c.own
	}
	return c.database
}

func (c clocks) late() time.Time {
	if c.own.After(c.database) {
		return c.own
	}
	return c.database
}

func (c clocks) floor() int64 { return id.SeqAt(c.late()) }
func (c clocks) top() int64   { return min(id.SeqAt(c.early().Add(id.Budget)), id.MaxSeq) }

// left is what may still be leased above the row.
func (c clocks) left(r row) int64 { return max(c.top()-max(r.hi, c.floor()), 0) }

func sinceEpoch(t time.Time) int64 { return t.Sub(id.Epoch).Milliseconds() }

// decide is the whole rule of a lease: what the row becomes, and the lease or
// the reason against it. A row that comes back changed must be stored even when
// there is a reason against a lease: that's how a pause begins. incarnation is
// the database's, now.
func decide(r row, incarnation string, ask idgenapi.LeaseRequest, c clocks) (row, idgenapi.Lease, error) {
	if err := plausible(c); err != nil {
		return r, idgenapi.Lease{}, err
	}
	if !r.found || r.incarnation != incarnation {
		r.found, r.incarnation = true, incarnation
		r.pausedUntil = sinceEpoch(c.late()) + Pause.Milliseconds()
	}
	if now := sinceEpoch(c.early()); now < r.pausedUntil {
		return r, idgenapi.Lease{}, idgenapi.ErrPaused.After(time.Duration(r.pausedUntil-now) * time.Millisecond)
	}
	lo, top := max(r.hi, ask.Floor, c.floor()), c.top()
	if lo > top {
		return r, idgenapi.Lease{}, idgenapi.ErrClock.Because(fmt.Errorf("the clock is behind: hi %d, the caller's floor %d, the floor of now is %d and the most %d", r.hi, ask.Floor, c.floor(), top))
	}
	hi := min(lo+ask.Size, top)
	if hi <= lo {
		return r, idgenapi.Lease{}, idgenapi.ErrBudget
	}
	r.hi = hi
	return r, idgenapi.Lease{Lo: lo, Hi: hi}, nil
}

// answer is what came of one of the requests that are decided together.
type answer struct {
	lease idgenapi.Lease
	err   error
}

// decideAll decides for all that wait, one after the other. When there is less
// left than they want, each is cut to its share of it.
func decideAll(r row, incarnation string, asks []idgenapi.LeaseRequest, own, database time.Time) (row, []answer) {
	var want int64
	for _, ask := range asks {
		want += ask.Size
	}
	out := make([]answer, len(asks))
	for i, ask := range asks {
		c := clocks{own: own, database: database}
		if ask.NowMS != 0 {
			c.caller = time.UnixMilli(ask.NowMS)
		}
		size := ask.Size
		if left := c.left(r); want > left {
			ask.Size = min(size, max(left/int64(len(asks)-i), 1))
		}
		want -= size
		r, out[i].lease, out[i].err = decide(r, incarnation, ask, c)
	}
	return r, out
}

func plausible(c clocks) error {
	var why error
	switch {
	case sinceEpoch(c.own) <= 0:
		why = fmt.Errorf("the clock shows %v, before the project's epoch", c.own)
	case c.own.After(c.database.Add(maxAhead)):
		why = fmt.Errorf("the clock shows %v, the database's %v", c.own, c.database)
	case !c.caller.IsZero() && c.own.After(c.caller.Add(maxAhead)):
		why = fmt.Errorf("the clock shows %v, the caller's %v", c.own, c.caller)
	default:
		return nil
	}
	return idgenapi.ErrClock.Because(why)
}

// validate refuses what no lease can be decided for.
func validate(ask idgenapi.LeaseRequest) error {
	switch {
	case number(ask.Kind) == 0:
		return idgenapi.ErrKind
	case ask.Floor < 0 || ask.Floor > id.MaxSeq:
		return errs.Field("floor", "is not a sequence")
	case ask.Size < 1 || ask.Size > maxSize:
		return errs.Field("size", "is not 1 to %d", maxSize)
	case ask.NowMS < 0 || ask.NowMS > 1<<53:
		return errs.Field("now_ms", "is not a time")
	case len(ask.Holder) > 100:
		return errs.Field("holder", "is longer than 100 bytes")
	}
	return nil
}

// number is the kind's number in the journal, 0 = no such kind.
func number(kind string) int { return slices.Index(idgenapi.Kinds(), kind) + 1 }
