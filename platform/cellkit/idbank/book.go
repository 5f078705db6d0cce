package idbank

import (
	"fmt"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
)

// What the agent refuses.
var (
	ErrEmpty   = errs.New(errs.Unavailable, "IDS_BANK_EMPTY", "the cell's bank has no IDs of this kind").After(time.Second)
	ErrOrdinal = errs.New(errs.Unavailable, "IDS_NO_FALLBACK", "this cell has no fallback for IDs")
	ErrAhead   = errs.New(errs.Unavailable, "IDS_FALLBACK_AHEAD", "the fallback's numbers are an hour ahead of time").After(time.Second)
	ErrLost    = errs.New(errs.Unavailable, "IDS_BANK_LOST", "the cell's database went back in time, its stock of IDs was given up").After(time.Second)
)

// Mark says which database this is and how far it had come.
type Mark struct {
	System   string `json:"system"`   // identifier of the cluster
	Timeline string `json:"timeline"` // of its WAL
	Counter  int64  `json:"counter"`  // how often anything was handed out
	Ceiling  int64  `json:"ceiling"`  // the highest of all machines
}

// Range is [Lo, Hi) of a kind's sequence.
type Range struct{ Lo, Hi int64 }

// Machine is one of the cell's eight; its number is its place.
type Machine struct {
	First   int64 // all of its counter that was granted lies at or above; 0 = never used
	Ceiling int64 // and below
	Holder  string
	Granted int64 // the book's counter then
}

// Book is what the cell's database has about IDs, as one transaction sees it.
// What is changed in it is stored with the commit, or not at all.
type Book struct {
	System, Timeline string
	Ordinal          int
	Clock            time.Time // the database's

	Counter  int64
	Ranges   []Range // of the kind asked for, ascending; not necessarily all
	Machines [id.FallbackNumbers]Machine
	Lost     string // why all was given up in this transaction; the bank is then emptied
}

// Mark is what is to be remembered of the book outside its database.
func (k *Book) Mark() Mark {
	m := Mark{System: k.System, Timeline: k.Timeline, Counter: k.Counter}
	for _, machine := range k.Machines {
		m.Ceiling = max(m.Ceiling, machine.Ceiling)
	}
	return m
}

// Judge compares what is remembered with what the database shows. It gives the
// reason why the database can't be believed, "" when it can: nothing was handed
// out that it doesn't know. A database that is ahead was committed to by an agent
// that ended before it remembered, and so before it answered.
func Judge(remembered Mark, have bool, shows Mark) string {
	switch {
	case !have && shows.Counter == 0:
		return "" // a new cell
	case !have:
		return fmt.Sprintf("nothing is remembered of a database that handed out %d times", shows.Counter)
	case remembered.System != shows.System:
		return fmt.Sprintf("it is another database: system %s, not %s", shows.System, remembered.System)
	case remembered.Timeline != shows.Timeline:
		return fmt.Sprintf("it was promoted or restored: timeline %s, not %s", shows.Timeline, remembered.Timeline)
	case shows.Counter < remembered.Counter:
		return fmt.Sprintf("it went back in time: it handed out %d times, %d are remembered", shows.Counter, remembered.Counter)
	}
	return ""
}

// GiveUp is for a database that can't be believed. What is in the bank may have
// been withdrawn already, and so may what lies above the ceilings, up to
// FallbackAhead from now: everything begins above all that.
func (k *Book) GiveUp(why string, remembered Mark, now time.Time) {
	k.Lost, k.Ranges = why, nil
	floor := max(remembered.Ceiling, ahead(latest(now, k.Clock)))
	for n := range k.Machines {
		m := &k.Machines[n]
		m.First, m.Ceiling, m.Holder = 1, max(m.Ceiling, floor, 1), ""
	}
	k.Counter = max(k.Counter, remembered.Counter) + 1
}

// Withdraw takes up to size IDs from the oldest range in the bank.
func (k *Book) Withdraw(size int64) (Range, error) {
	if len(k.Ranges) == 0 {
		return Range{}, ErrEmpty
	}
	first := &k.Ranges[0]
	out := Range{Lo: first.Lo, Hi: min(first.Lo+size, first.Hi)}
	if out.Hi == first.Hi {
		k.Ranges = k.Ranges[1:]
	} else {
		first.Lo = out.Hi
	}
	k.Counter++
	return out, nil
}

// Raise grants up to size numbers of a machine's counter and raises its ceiling.
// The clock only pulls the counter forward, and never further than an hour ahead.
// One clock gone wrong isn't believed: the slower of agent's and database's counts.
func (k *Book) Raise(holder string, size int64, now time.Time) (id.FallbackGrant, error) {
	if k.Ordinal < 1 || k.Ordinal > id.MaxOrdinal {
		return id.FallbackGrant{}, ErrOrdinal.Because(fmt.Errorf("its ordinal is %d, and a fallback ID has five bits for it: 1 to %d", k.Ordinal, id.MaxOrdinal))
	}
	if k.Clock.Before(now) {
		now = k.Clock
	}
	top := ahead(now)
	n := k.choose(holder, top)
	m := &k.Machines[n]
	lo := max(m.Ceiling, id.FallbackAt(now), 1)
	hi := min(lo+size, top, id.FallbackEnd-1)
	if hi <= lo {
		return id.FallbackGrant{}, ErrAhead.Because(fmt.Errorf("machine %d was granted up to %d, the most for now is %d", n, m.Ceiling, top))
	}
	k.Counter++
	if m.First == 0 {
		m.First = lo
	}
	m.Ceiling, m.Holder, m.Granted = hi, holder, k.Counter
	return id.FallbackGrant{Machine: k.Ordinal*id.FallbackNumbers + n, Lo: lo, Hi: hi}, nil
}

// choose gives the holder its own machine; else one that nobody holds; else the
// one that was used longest ago, whose holder has most likely ended. If it hasn't,
// nothing is given twice either: what it has lies below the ceiling, and it gets
// another machine when it asks again. A machine without room is the last choice.
func (k *Book) choose(holder string, top int64) int {
	best := 0
	rank := func(n int) [2]int64 {
		m := k.Machines[n]
		switch {
		case m.Ceiling >= top:
			return [2]int64{3, m.Ceiling}
		case m.Holder == holder:
			return [2]int64{0, 0}
		case m.Holder == "":
			return [2]int64{1, m.Ceiling}
		}
		return [2]int64{2, m.Granted}
	}
	for n := 1; n < len(k.Machines); n++ {
		a, b := rank(n), rank(best)
		if a[0] < b[0] || a[0] == b[0] && a[1] < b[1] {
			best = n
		}
	}
	return best
}

func ahead(now time.Time) int64 { return id.FallbackAt(now.Add(id.FallbackAhead)) }

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
