package model

// depth is how many transactions a copy may be behind at most: with that many on
// their way the owner's next one has to wait.
const depth = 3

// slot is a slot with its copies, D is what a database holds of it. The owner
// commits; each copy applies the commits in order, later or never. Copies are named
// by what they are, not by their cell: after a failover the new owner's is own.
type slot[D comparable] struct {
	own      D        // the owner's database
	sb       D        // the standby's
	third    D        // the incoming cell's; else what a former owner still has
	way      [depth]D // commits that some copy hasn't applied: the database after each
	n        uint8    // of them
	lag      uint8    // the last ones, not applied by the standby
	inLag    uint8    // not applied by the incoming cell
	standby  uint8
	incoming uint8
	former   bool   // third is a former owner's, with the tail that was lost
	marked   bool   // the voters know: this slot is uncovered
	late     uint32 // messages that were sent on while it was marked
	left     uint8  // failovers that may still happen
	swaps    uint8  // exchanges that may still happen
	room     uint8  // how far the copies may be behind
	asked    bool   // the incoming cell gates only what is sent while it is in sync
	toPass   uint8  // commits before the place that was named, not applied by the incoming cell
}

// newSlot: without a failover to come the copies are of no interest, and left out.
func newSlot[D comparable](d D, failovers, swaps, room uint8) slot[D] {
	s := slot[D]{own: d, left: failovers, swaps: swaps, room: room}
	if failovers > 0 {
		s.sb, s.standby = d, inSync
	}
	return s
}

// What a standby is.
const (
	nobody  = iota
	copying // it holds nothing of use yet
	inSync
)

// How far an exchange is: the incoming cell copies, is in sync, is what the
// published table names while the owner doesn't have that table yet.
const (
	noExchange = iota
	incomingCopies
	incomingInSync
	incomingSeen  // the owner has heard that it is in sync
	incomingNamed // the owner has named a place, later, that it has to pass
	incomingPublished
)

// commit makes a transaction; false when the copies are too far behind.
func (s *slot[D]) commit(d D) bool {
	if s.n == s.room {
		return false
	}
	s.own = d
	if s.left == 0 {
		return true
	}
	s.way[s.n] = d
	s.n++
	if s.standby == inSync {
		s.lag++
	}
	if s.incoming >= incomingCopies {
		s.inLag++
	}
	s.trim()
	return true
}

// trim forgets what every copy has applied.
func (s *slot[D]) trim() {
	var none D
	keep := max(s.lag, s.inLag)
	drop := s.n - keep
	if drop == 0 {
		return
	}
	for i := range uint8(depth) {
		if i < keep {
			s.way[i] = s.way[i+drop]
		} else {
			s.way[i] = none
		}
	}
	s.n = keep
}

// covered says whether what has to be kept survives a failover, whichever copy
// the table names then. Nobody who isn't in sync covers anything.
func (s *slot[D]) covered(r Rule, has func(D) bool) bool {
	standby := s.standby == inSync && (has(s.sb) || r == AppliedCounts)
	incoming := s.incoming >= incomingInSync && has(s.third)
	switch {
	case s.incoming == noExchange, r == IncomingGates, s.asked && s.incoming < incomingInSync:
		return standby
	case r == OldGates && s.incoming >= incomingInSync:
		return incoming
	case r == IncomingGatesAtOnce && s.incoming < incomingSeen:
		return standby
	}
	return standby && incoming
}

// leave lets a message leave, and says how that went; what others must keep of it
// is has. A held one that isn't covered waits for 2 s, then the slot is marked, and
// only then it leaves: waiting alone, and marks for nothing, need no states.
func (s *slot[D]) leave(r Rule, bit uint32, early bool, has func(D) bool) {
	if s.left > 0 && !early && r != MarkFirst && !s.covered(r, has) {
		s.marked = true
		s.late |= bit
	}
}

// copies gives the moves of the copies, of the mark and of failovers. passed says
// whether a database has everything that was sent while marked; merge is what
// becomes of a former owner's rows under the rules that are off.
func (s slot[D]) copies(r Rule, passed func(D, uint32) bool, merge func(now, old D) D, to func(what string, next slot[D], free bool)) {
	if s.lag > 0 {
		n := s
		n.sb = n.way[n.n-n.lag]
		n.lag--
		n.trim()
		to("the standby applies a transaction", n, false)
	}
	if s.inLag > 0 {
		n := s
		n.third = n.way[n.n-n.inLag]
		n.inLag--
		n.toPass -= min(n.toPass, 1)
		n.trim()
		to("the incoming cell applies a transaction", n, false)
	}
	everything := func(d D) bool { return passed(d, s.late) }
	if s.marked && (s.covered(r, everything) || r == LiftWhenPassed && s.standby == inSync) {
		n := s
		n.marked, n.late = false, 0
		to("the mark is lifted", n, false)
	}
	s.failover(r, to)
	s.join(r, merge, to)
	s.exchange(r, to)
}

// all says whether has is true of every message in a set.
func all(set uint32, has func(uint32) bool) bool {
	for ; set != 0; set &= set - 1 {
		if !has(set & -set) {
			return false
		}
	}
	return true
}

// failover: the owner's cell is dead or cut off. Whoever the table names is promoted
// with what it has; what it hasn't is lost.
func (s slot[D]) failover(r Rule, to func(string, slot[D], bool)) {
	var none D
	ready := s.standby == inSync || s.standby == copying && r == InSyncOnly || s.incoming == incomingPublished
	if s.left == 0 || !ready || s.marked && r != MarkedStays {
		return
	}
	n := slot[D]{own: s.sb, third: s.own, former: true, left: s.left - 1, swaps: s.swaps, room: s.room, asked: s.asked}
	what := "the owner's cell is lost, its standby promoted"
	if s.incoming == incomingPublished {
		n.own = s.third
		what = "the owner's cell is lost, the new standby promoted"
	}
	if n.own != s.own {
		what += ", the tail lost"
	}
	if n.left == 0 && r != OwnsByTable && r != TailStays {
		n.third, n.former = none, false
	}
	to(what, n, true)
}

// join: a slot without a standby gets one. It takes the slot anew, also when it
// is the former owner.
func (s slot[D]) join(r Rule, merge func(now, old D) D, to func(string, slot[D], bool)) {
	var none D
	if s.standby != inSync && s.left > 0 {
		n := s
		n.sb, n.standby, n.former, n.third = s.own, inSync, false, none
		what := "a new standby has its copy"
		switch {
		case r == TakenAnew && s.former:
			n.sb = merge(s.own, s.third)
			what = "the former owner is the standby, larger rows win"
		case r == CopiedAnew:
			n.sb = merge(s.own, none)
			what = "a new standby follows the stream, without a copy"
		}
		to(what, n, false)
	}
	if s.standby == nobody && s.left > 0 && r == InSyncOnly {
		n := s
		n.standby = copying
		to("a new standby begins its copy", n, true)
	}
	if r == TailStays && s.former && s.standby == nobody {
		n := s
		n.own = merge(s.own, s.third)
		to("the former owner's rows are merged in", n, true)
	}
}

// exchange: another cell becomes the standby, without a gap.
func (s slot[D]) exchange(r Rule, to func(string, slot[D], bool)) {
	var none D
	n := s
	switch s.incoming {
	case noExchange:
		if s.swaps > 0 && s.standby == inSync {
			n.swaps--
			n.incoming, n.third, n.former = incomingCopies, s.own, false
			to("an exchange begins", n, true)
		}
	case incomingCopies: // it may be behind the owner, as any that is in sync
		n.incoming = incomingInSync
		to("the incoming cell is in sync", n, false)
	case incomingInSync, incomingSeen:
		if s.asked && r != PlaceNamed {
			n.incoming, n.toPass = incomingNamed, s.inLag
			to("the owner names a place", n, false)
			return
		}
		n.incoming = incomingPublished
		to("the table names the incoming cell as the standby", n, false)
		if s.incoming == incomingInSync && r == IncomingGatesAtOnce {
			n.incoming = incomingSeen
			to("the owner hears that the incoming cell is in sync", n, false)
		}
	case incomingNamed:
		if s.toPass == 0 {
			n.incoming = incomingPublished
			to("the table names the incoming cell as the standby", n, false)
		}
	case incomingPublished:
		n.sb, n.lag, n.standby = s.third, s.inLag, inSync
		n.incoming, n.third, n.inLag = noExchange, none, 0
		n.trim()
		to("the owner has that table", n, false)
	}
}
