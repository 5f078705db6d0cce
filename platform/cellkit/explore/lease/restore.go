package lease

import (
	"cmp"
	"slices"
)

// Restore: a cell whose database goes back to an older state, and its voters, who
// must find out before it owns anything (P2.3).
const maxCounter = 3

// restore is the state.
type restore struct {
	voters  [maxVoters]memory
	answers uint8 // to the first round since the start
	counter uint8 // in the database
	asking  bool  // the database has started, and the cell asks what voters have
	held    uint8 // the newest round that was a lease
	back    bool  // the database went back behind it
	found   bool  // and the cell knows: `returned`
	starts  uint8
}

// memory is what a voter has stored of the cell.
type memory struct {
	counter uint8 // the highest that it has granted
	now     bool  // which is the round that is open
	asked   bool  // it has answered the first round
}

// restoreWorld is a configuration.
type restoreWorld struct {
	off Rule
	n   int
}

func (w *restoreWorld) keep() int { return w.n / 2 }

func (w *restoreWorld) asks() int {
	switch {
	case w.off == FirstRoundAsksMany:
		return w.keep()
	case w.off == SmallAsksAll:
		return w.n - 1
	}
	return w.n - w.keep() + 1
}

// Start is a cell that is new, as its voters are.
func (w *restoreWorld) Start() restore { return restore{} }

// Moves: the cell renews; its database restarts, and goes back once.
func (w *restoreWorld) Moves(s restore, emit func(who, what string, next restore, free bool)) {
	to := func(who, what string, next restore, free bool) {
		if w.leased(next) {
			next.held = max(next.held, next.counter)
		}
		emit(who, what, next.same(w.n), free)
	}
	if s.found {
		if n := s; w.off == ReturnedForGood {
			n.voters, n.counter, n.found, n.asking = [maxVoters]memory{}, 0, false, false
			to("control", "gives a new incarnation at once", n, true)
		}
		return
	}
	if n := s; !s.asking && s.counter < maxCounter {
		n.counter++
		for i := range n.voters {
			n.voters[i].now = false
		}
		to("the cell", "begins a round", n, true)
	}
	for i, v := range s.voters[:w.n] {
		n := s
		switch {
		case s.asking && !v.asked:
			n.voters[i].asked = true
			if v.counter > s.counter {
				n.found = true
			} else if n.answers++; int(n.answers) == w.asks() {
				n = w.open(n)
			}
			to("a voter", "answers the first round", n, false)
		case !s.asking && s.counter > v.counter:
			n.voters[i].counter, n.voters[i].now = s.counter, true
			to("a voter", "grants", n, false)
		}
	}
	if s.starts == 3 {
		return
	}
	to("the database", "restarts", w.begin(s), true)
	for c := range s.counter {
		n := s
		n.counter = c
		if n = w.begin(n); !s.back {
			n.back = c < s.held
			to("the database", "restarts as it was before", n, true)
		}
	}
}

// begin is a start of the database.
func (w *restoreWorld) begin(s restore) restore {
	s = w.open(s)
	s.starts++
	s.asking = w.off != FirstRoundAsks
	if w.off == CounterUnchanged && s.counter < maxCounter {
		s.counter++
	}
	return s
}

// open forgets what was answered.
func (w *restoreWorld) open(s restore) restore {
	s.asking, s.answers = false, 0
	for i := range s.voters {
		s.voters[i].now, s.voters[i].asked = false, false
	}
	return s
}

// leased: K voters have granted the round that is open.
func (w *restoreWorld) leased(s restore) bool {
	granted := 0
	for _, v := range s.voters {
		granted += int(one(v.now))
	}
	return granted >= w.keep()
}

// Broken: the cell may write although what it wrote in a later lease is gone.
func (w *restoreWorld) Broken(s restore) string {
	if s.back && w.leased(s) {
		return wentBack
	}
	return ""
}

// Rests: nothing has to follow.
func (w *restoreWorld) Rests(s restore) bool { return s.found || !s.asking }

// same: voters are alike, so their order makes no other state.
func (s restore) same(n int) restore {
	slices.SortFunc(s.voters[:n], func(a, b memory) int { return cmp.Compare(a.key(), b.key()) })
	return s
}

func (m memory) key() int { return int(m.counter)<<2 | int(one(m.now))<<1 | int(one(m.asked)) }
