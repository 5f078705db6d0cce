package lease

import (
	"cmp"
	"math/bits"
	"slices"
)

// Voters: one cell that owns a slot, its standby, which may be behind, and control,
// which wants to fail it over. Leases, promises and marks are P2 and P4.3.
const (
	maxVoters = 5
	maxRounds = 3
	maxTable  = 3
)

// voter is what one voter knows; nobody is at number i for long, see sorted.
type voter struct {
	granted  uint8 // rounds, as bits
	answered uint8 // rounds that it refused, as bits
	fresh    bool  // its last grant isn't L old
	counter  uint8 // the highest round that it has heard of
	mark     bool  // what that carried
	promised uint8 // the table's version that its promise names, 0 = none
	gave     bool  // its promise is in control's hands
}

// election is the state.
type election struct {
	voters   [maxVoters]voter
	rounds   uint8            // begun by the cell
	marks    uint8            // those that carry the mark, as bits
	versions [maxRounds]uint8 // of the table that each asks with
	over     uint8            // the lease of rounds up to this one is over
	behind   bool             // the standby lacks something
	sent     bool             // and the cell has sent it on
	table    uint8            // the newest that is published
	held     uint8            // the one that the cell has
	failing  uint8            // the table that the failover starts from, 0 = there is none
	counter  uint8            // the highest that control was handed with the promises
	mark     bool             // its mark
	promoted uint8            // the table that names the standby as the owner, 0 = none
}

// voterWorld is a configuration.
type voterWorld struct {
	off    Rule
	n      int // voters
	rounds uint8
	tables uint8
}

type voterMove func(who, what string, next election, free bool)

// keep and fence are K and F of P2.2.
func (w *voterWorld) keep() int { return w.n / 2 }

func (w *voterWorld) fence() int {
	if w.off == KeepMeetsFence {
		return w.n - w.keep()
	}
	return w.n - w.keep() + 1
}

func (w *voterWorld) Start() election { return election{table: 1, held: 1} }

// sorted: voters are alike, so their order makes no other state, and neither do grants
// that nobody counts any more.
func (w *voterWorld) sorted(s election) election {
	if w.off != HighestCounter && w.off != MarkStored {
		counts := uint8(0)
		for r := s.rounds; r > 0 && (r > s.over || s.marks>>r == 1<<(s.rounds-r+1)-1); r-- {
			counts |= 1 << r
		}
		for i := range s.voters[:w.n] {
			s.voters[i].granted &= counts
		}
	}
	slices.SortFunc(s.voters[:w.n], func(a, b voter) int { return cmp.Compare(a.key(), b.key()) })
	return s
}

func (v voter) key() (k uint64) {
	for _, f := range [...]uint8{v.granted, v.answered, one(v.fresh), v.counter, one(v.mark), v.promised, one(v.gave)} {
		k = k<<8 | uint64(f)
	}
	return k
}

func one(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// last is the round of its last grant.
func (v voter) last() uint8 {
	if v.granted == 0 {
		return 0 // counted by nobody any more
	}
	return uint8(bits.Len8(v.granted) - 1)
}

// granted counts the voters that a round has; answers counts who answered it at all.
func (w *voterWorld) granted(s election, round uint8, answers bool) (n int) {
	for _, v := range s.voters[:w.n] {
		if v.granted>>round&1 == 1 || answers && v.answered>>round&1 == 1 {
			n++
		}
	}
	return n
}

// writes: the cell has a lease, and a table that says the slot is its own.
func (w *voterWorld) writes(s election) bool {
	if s.promoted != 0 && s.held >= s.promoted {
		return false
	}
	for r := s.over + 1; r <= s.rounds; r++ {
		if w.granted(s, r, false) >= w.keep() {
			return true
		}
	}
	return false
}

// marked: the newest round that carries the mark has K grants, and no later one is
// without it.
func (w *voterWorld) marked(s election) bool {
	for r := s.rounds; r > 0 && s.marks>>r&1 == 1; r-- {
		if w.granted(s, r, w.off == OnlyGrantsCount) >= w.keep() {
			return true
		}
	}
	return false
}

func (w *voterWorld) Moves(s election, emit func(who, what string, next election, free bool)) {
	to := func(who, what string, next election, free bool) { emit(who, what, w.sorted(next), free) }
	w.cell(s, to)
	for i, v := range s.voters[:w.n] {
		if i == 0 || v != s.voters[i-1] {
			w.voter(s, i, to)
		}
	}
	w.control(s, to)
}

// cell: it commits, asks for its lease, and sends on what its standby doesn't have.
func (w *voterWorld) cell(s election, to voterMove) {
	n := s
	if w.writes(s) && !s.behind {
		n.behind = true
		to("the cell", "commits what has to be held", n, true)
	}
	if n = s; s.behind && s.promoted == 0 {
		n.behind, n.sent = false, false
		to("the standby", "applies it", n, false)
	}
	if n = s; s.behind && !s.sent && (w.marked(s) || w.off == MarkFirst) {
		n.sent = true
		to("the cell", "sends it on", n, false)
	}
	if n = s; s.held < s.table {
		n.held = s.table
		to("the cell", "has the newest table", n, false)
	}
	if s.rounds == w.rounds || s.promoted != 0 && s.held >= s.promoted {
		return
	}
	n = s
	n.rounds++
	n.versions[s.rounds] = s.held
	if !s.sent || w.off == LiftWhenPassed {
		to("the cell", "begins a round without the mark", n, true)
	}
	if s.behind {
		n.marks |= 1 << n.rounds
		to("the cell", "begins a round with the mark", n, true)
	}
}

// voter: rounds come to it, late, twice, in any order.
func (w *voterWorld) voter(s election, i int, to voterMove) {
	v := s.voters[i]
	with := func(v voter) election {
		n := s
		n.voters[i] = v
		return n
	}
	for r := uint8(1); r <= s.rounds; r++ {
		old := r <= v.counter && (w.off != HighestCounter || v.granted>>r&1 == 1)
		if old || v.answered>>r&1 == 1 {
			continue
		}
		n, mark := v, s.marks>>r&1 == 1
		if v.promised != 0 && s.versions[r-1] <= v.promised && !(w.off == PromiseOutlasts && s.table > v.promised) {
			if n.answered |= 1 << r; w.off == OnlyGrantsCount {
				to("a voter", name("refuses round", int(r)), with(n), false)
			}
			continue
		}
		n.granted |= 1 << r
		n.fresh, n.counter, n.mark, n.promised = true, r, mark, 0
		to("a voter", name("grants round", int(r)), with(n), false)
	}
	if v.fresh {
		n := v
		n.fresh = false
		next := with(n)
		next.over = max(next.over, v.last())
		to("a voter", "L has passed since its grant", next, false)
	}
	if s.failing != 0 && !v.gave && (!v.fresh || w.off == PromiseWhenOld) {
		n := v
		n.promised, n.gave = s.failing, true
		next := with(n)
		if v.counter >= s.counter {
			next.counter, next.mark = v.counter, v.mark
		}
		to("a voter", "promises, and hands its marks over", next, false)
	}
	n := v
	switch w.off {
	case RestartWaits:
		n.fresh = false
	case PromiseStored:
		n.promised = 0
	case MarkStored:
		n.counter, n.mark = 0, false
	}
	if n != v {
		to("a voter", "restarts", with(n), true)
	}
}

func name(what string, r int) string {
	return what + [...]string{"", " 1", " 2", " 3"}[r]
}

// control: it fails the cell over, or gives that up; it also publishes tables for
// others.
func (w *voterWorld) control(s election, to voterMove) {
	if s.promoted != 0 {
		return
	}
	if s.table < w.tables {
		n := s
		n.table++
		to("control", "publishes a table for somebody else", n, true)
		if n = s; s.failing == 0 {
			n.failing = s.table
			to("control", "begins a failover", n, true)
		}
	}
	if s.failing == 0 {
		return
	}
	promises := 0
	done := s
	done.failing, done.counter, done.mark = 0, 0, false
	for i := range done.voters[:w.n] {
		promises += int(one(s.voters[i].gave))
		done.voters[i].gave = false
	}
	if s.table == s.failing || w.off == SwapFromBase {
		n := done
		if n.table++; promises >= w.fence() && (!s.mark || w.off == MarkedStays) {
			n.promoted = n.table
			to("control", "publishes the standby as the owner", n, false)
		}
	}
	if w.off != GivingUpPublishes && s.table == s.failing {
		done.table++
	}
	to("control", "gives the failover up", done, false)
}

// Broken is I1, and that what left is in the slot's owner.
func (w *voterWorld) Broken(s election) string {
	switch {
	case s.promoted != 0 && w.writes(s):
		return "two writers"
	case s.promoted != 0 && s.sent:
		return "what others acted on is lost"
	}
	return ""
}

// Rests: somebody can write, or will as soon as it asks.
func (w *voterWorld) Rests(s election) bool {
	willing := 0
	for _, v := range s.voters[:w.n] {
		if v.promised < s.held {
			willing++
		}
	}
	return s.promoted != 0 || willing >= w.keep()
}
