package model

// Claims: two users-to-be, both homed in one slot, register the same phone, whose
// home is another. The machines are those of services/user, in short.
const users = 2

// A registration; 0 is no row, gone its tombstone.
const (
	registering = iota + 1
	active
	taken
	gone
)

// A claim, by user; 0 is no claim by anyone.
const (
	claimed = iota + 1
	claimConfirmed
	claimReleased
)

// The messages of a user.
const (
	mBegin = iota
	mGranted
	mTaken
	mSure // CONFIRM
	mAsk
	mIsActive // what the user's slot says when it is asked
	mIsGone
	perUser
)

func userBit(u, message int) uint32 { return 1 << (u*perUser + message) }

// people is what a database has of the users' slot.
type people struct{ state [users]uint8 }

// phone is what a database has of the phone's home: the claim, and what it
// answered each BEGIN (the inbox).
type phone struct {
	state, user uint8
	answered    [users]uint8 // mGranted or mTaken
}

// claims is the state.
type claims struct {
	users    slot[people]
	home     slot[phone]
	net      uint32
	conflict bool // the users' slot acted on a grant that the home doesn't have
}

// claimWorld is a configuration. The BEGIN isn't held in it: so the home meets users
// whose registration was lost.
type claimWorld struct {
	off       Rule
	failovers [2]uint8 // of the users' slot, of the phone's home
	room      uint8    // how far a standby may be behind
	loses     bool     // streams may be lost
}

type claimMove func(who, what string, next claims, free bool)

func (w *claimWorld) Start() claims {
	return claims{users: newSlot(people{}, w.failovers[0], 0, w.room), home: newSlot(phone{}, w.failovers[1], 0, w.room)}
}

func userName(u int) string { return [...]string{"user 0", "user 1"}[u] }

func (w *claimWorld) Moves(s claims, to func(who, what string, next claims, free bool)) {
	s.users.copies(w.off, func(d people, late uint32) bool { return all(late, func(b uint32) bool { return w.peopleHave(d, b) }) },
		func(now, _ people) people { return now },
		func(what string, next slot[people], free bool) {
			n := s
			n.users = next
			to("the users' slot", what, n, free)
		})
	s.home.copies(w.off, func(d phone, late uint32) bool { return all(late, func(b uint32) bool { return w.homeHas(d, b) }) },
		func(now, _ phone) phone { return now },
		func(what string, next slot[phone], free bool) {
			n := s
			n.home = next
			to("the phone's home", what, n, free)
		})
	for u := range users {
		w.registers(s, u, to)
		w.hears(s, u, to)
		w.begins(s, u, to)
		w.learns(s, u, to)
	}
	if w.loses {
		n := s
		n.net = 0
		to("streams", "all are lost", n, true)
	}
}

// registers: what a user's row asks for.
func (w *claimWorld) registers(s claims, u int, to claimMove) {
	switch d := s.users.own; d.state[u] {
	case 0: // also again, by a client that has no answer
		d.state[u] = registering
		if s.users.commit(d) {
			to(userName(u), "registers", s, true)
		}
	case registering:
		w.say(s, u, mBegin, "BEGIN is sent", true, to)
	case active:
		w.say(s, u, mSure, "CONFIRM is sent", w.off == SureHeld, to)
	}
}

// say sends a message of the users' slot.
func (w *claimWorld) say(s claims, u, message int, what string, early bool, to claimMove) {
	if b := userBit(u, message); s.net&b == 0 {
		s.users.leave(w.off, b, early, func(d people) bool { return w.peopleHave(d, b) })
		s.net |= b
		to(userName(u), what, s, false)
	}
}

// hears: the home's messages have come to the user's row.
func (w *claimWorld) hears(s claims, u int, to claimMove) {
	for _, m := range [...]struct {
		message int
		from    uint8
		next    uint8
		what    string
	}{
		{mGranted, registering, active, "is granted the phone, ACTIVE"},
		{mTaken, registering, taken, "is told that the phone is taken"},
		{mAsk, registering, active, "is asked, which says that it was granted: ACTIVE"},
		{mAsk, 0, gone, "is asked for, a tombstone is made"},
	} {
		d := s.users.own
		if s.net&userBit(u, m.message) == 0 || d.state[u] != m.from || m.next == gone && w.off == AskedTombstone {
			continue
		}
		d.state[u] = m.next
		if n := s; n.users.commit(d) {
			to(userName(u), m.what, n, false)
		}
	}
	if s.net&userBit(u, mAsk) == 0 {
		return
	}
	switch state := s.users.own.state[u]; {
	case state == active:
		w.say(s, u, mIsActive, "ACTIVE is answered", w.off == StateHeld, to)
	case state == gone, state == taken, state == 0 && w.off == AskedTombstone:
		w.say(s, u, mIsGone, "GONE is answered", w.off == StateHeld || w.off == AskedTombstone, to)
	}
}

// begins: BEGIN has come to the phone's home, and is answered.
func (w *claimWorld) begins(s claims, u int, to claimMove) {
	d := s.home.own
	if s.net&userBit(u, mBegin) == 0 {
		return
	}
	if d.answered[u] == 0 {
		mine := d.state != 0 && d.user == uint8(u)
		d.answered[u] = mTaken
		if d.state == 0 || d.state == claimReleased && !mine {
			d.state, d.user, d.answered[u] = claimed, uint8(u), mGranted
		} else if mine && d.state != claimReleased {
			d.answered[u] = mGranted
		}
		if s.home.commit(d) {
			to(userName(u), [...]string{"", "the phone is granted", "the phone is taken"}[d.answered[u]], s, false)
		}
		return
	}
	w.tell(s, u, int(d.answered[u]), [...]string{"", "GRANTED is answered", "TAKEN is answered"}[d.answered[u]], w.off == GrantHeld && d.answered[u] == mGranted || w.off == TakenHeld && d.answered[u] == mTaken, to)
}

// tell sends a message of the phone's home.
func (w *claimWorld) tell(s claims, u, message int, what string, early bool, to claimMove) {
	if b := userBit(u, message); s.net&b == 0 {
		s.home.leave(w.off, b, early, func(d phone) bool { return w.homeHas(d, b) })
		s.net |= b
		to(userName(u), what, s, false)
	}
}

// learns: the phone's home asks, and has the users' slot's word.
func (w *claimWorld) learns(s claims, u int, to claimMove) {
	d := s.home.own
	mine := d.user == uint8(u)
	if d.state == claimed && mine {
		w.tell(s, u, mAsk, "ASK is sent", false, to)
		if w.off == ClaimStays {
			w.becomes(s, u, claimReleased, "the claim's time is over", true, to)
		}
	}
	if s.net&(userBit(u, mSure)|userBit(u, mIsActive)) != 0 {
		switch {
		case !mine, d.state == 0, d.state == claimReleased:
			n := s
			n.conflict = true
			to(userName(u), "CONFIRM of a claim that isn't theirs", n, false)
		case d.state == claimed:
			w.becomes(s, u, claimConfirmed, "the claim is CONFIRMED", false, to)
		}
	}
	if s.net&userBit(u, mIsGone) != 0 && mine && d.state == claimed {
		w.becomes(s, u, claimReleased, "the claim is RELEASED", false, to)
	}
}

func (w *claimWorld) becomes(s claims, u int, state uint8, what string, free bool, to claimMove) {
	d := s.home.own
	d.state = state
	if s.home.commit(d) {
		to(userName(u), what, s, free)
	}
}

// peopleHave says whether a database has what a message of the users' slot speaks of.
func (w *claimWorld) peopleHave(d people, b uint32) bool {
	for u := range users {
		switch b {
		case userBit(u, mBegin):
			return d.state[u] != 0
		case userBit(u, mSure), userBit(u, mIsActive):
			return d.state[u] == active
		case userBit(u, mIsGone):
			return d.state[u] == gone || d.state[u] == taken
		}
	}
	return false
}

// homeHas is the same for the phone's home.
func (w *claimWorld) homeHas(d phone, b uint32) bool {
	for u := range users {
		switch b {
		case userBit(u, mGranted), userBit(u, mTaken):
			return d.answered[u] != 0
		case userBit(u, mAsk):
			return d.state != 0 && d.user == uint8(u)
		}
	}
	return false
}

// Broken is I7 over the slots' owners, at every moment.
func (w *claimWorld) Broken(s claims) string {
	d := s.home.own
	switch state := s.users.own.state; {
	case state[0] == active && state[1] == active:
		return "two users have one phone"
	case d.state == claimConfirmed && state[d.user] != active:
		return "the phone is CONFIRMED for somebody who isn't there"
	case s.conflict:
		return "somebody acted on a grant that the home doesn't have"
	}
	return ""
}

// Rests: nobody waits, nothing is claimed for somebody who will never be.
func (w *claimWorld) Rests(s claims) bool {
	for _, state := range s.users.own.state {
		if state == registering {
			return false
		}
	}
	return s.home.own.state != claimed
}
