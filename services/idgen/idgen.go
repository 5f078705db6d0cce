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

// clocks is what the clocks show when a lease is decided.
type clocks struct {
	own, database time.Time
	caller        time.Time // zero = not said
}

// decide is the whole rule of a lease: what the row becomes, and the lease or
// the reason against it. A row that comes back changed must be stored even when
// there is a reason against a lease: that's how a pause begins. incarnation is
// the database's, now.
func decide(r row, incarnation string, ask idgenapi.LeaseRequest, c clocks) (row, idgenapi.Lease, error) {
	now := c.own.Sub(id.Epoch).Milliseconds()
	if err := plausible(c, now); err != nil {
		return r, idgenapi.Lease{}, err
	}
	if !r.found || r.incarnation != incarnation {
		r.found, r.incarnation = true, incarnation
		r.pausedUntil = now + Pause.Milliseconds()
	}
	if now < r.pausedUntil {
		return r, idgenapi.Lease{}, idgenapi.ErrPaused.After(time.Duration(r.pausedUntil-now) * time.Millisecond)
	}
	lo := max(r.hi, ask.Floor, id.SeqAt(c.own))
	top := id.SeqAt(c.own.Add(id.Budget))
	if lo > top {
		return r, idgenapi.Lease{}, idgenapi.ErrClock.Because(fmt.Errorf("the clock is behind: hi %d, the caller's floor %d, the most for now is %d", r.hi, ask.Floor, top))
	}
	hi := min(lo+ask.Size, top, id.MaxSeq)
	if hi <= lo {
		return r, idgenapi.Lease{}, idgenapi.ErrBudget
	}
	r.hi = hi
	return r, idgenapi.Lease{Lo: lo, Hi: hi}, nil
}

func plausible(c clocks, now int64) error {
	var why error
	switch {
	case now <= 0:
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
