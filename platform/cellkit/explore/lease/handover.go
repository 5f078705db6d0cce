package lease

// Hand-over: a slot of cell a is given to cell b while tables are published, lost
// behind, and overtaken, and cells die (P6). Cell c was the standby before.
const (
	a = iota
	b
	c
	nobody
)

const mostTables = 6

// A cell's row of the slot.
const (
	nothing = iota
	owns
	standsBy
	incoming
	given // to b, as the last row of the stream
)

// The job.
const (
	planned = iota
	targetInSync
	fenced // the owner may give
	over
)

// table is what control publishes of the slot.
type table struct {
	owner, standby, epoch uint8
	failover              bool // it may promote who hasn't all
}

func (t table) names(owner, standby, epoch uint8) bool {
	return t.owner == owner && t.standby == standby && t.epoch == epoch
}

// member is a cell.
type member struct {
	down  bool
	waits uint8 // its lease was taken: until it has a table of this version
	has   uint8 // the newest table that it has
	role  uint8
	epoch uint8 // of its row
}

// handover is the state.
type handover struct {
	tables  [mostTables]table
	n       uint8 // published
	cells   [3]member
	job     uint8
	onWay   uint8 // the given row is in the stream, with this epoch
	deaths  uint8 // that may still happen
	failing uint8 // the cell that is failed over, +1
	short   bool  // b has the slot by a table, and not all of it yet
}

// handoverWorld is a configuration.
type handoverWorld struct {
	off    Rule
	deaths uint8
}

type handoverMove func(who, what string, next handover, free bool)

// Start: a owns, c stands by.
func (w *handoverWorld) Start() (s handover) {
	s.tables[0] = table{owner: a, standby: c, epoch: 1}
	s.n, s.deaths = 1, w.deaths
	for i := range s.cells {
		s.cells[i].has = 1
	}
	s.cells[a].role, s.cells[a].epoch = owns, 1
	s.cells[c].role, s.cells[c].epoch = standsBy, 1
	return s
}

func cellName(i int) string { return [...]string{"cell a", "cell b", "cell c"}[i] }

func (s handover) newest() table { return s.tables[s.n-1] }

// publish adds a table; there is no room for more than mostTables.
func (s handover) publish(t table) (handover, bool) {
	if s.n == mostTables {
		return s, false
	}
	s.tables[s.n] = t
	s.n++
	return s, true
}

// writes: a cell's row says owner, and nobody has taken its lease.
func (s handover) writes(i int) bool {
	m := s.cells[i]
	return m.role == owns && !m.down && m.waits == 0
}

// Moves are the job's, the tables' and the failover's.
func (w *handoverWorld) Moves(s handover, to func(who, what string, next handover, free bool)) {
	w.give(s, to)
	for i := range s.cells {
		w.member(s, i, to)
	}
	w.control(s, to)
	w.failover(s, to)
}

// give: the job, up to the row that gives the slot.
func (w *handoverWorld) give(s handover, to handoverMove) {
	n := s
	switch {
	case s.job == planned && s.writes(a) && !s.cells[b].down:
		n.cells[b].role, n.cells[b].epoch, n.job = incoming, 1, targetInSync
		to("cell b", "is incoming, and in sync", n, true)
	case s.job == targetInSync && w.ready(s):
		n.job = fenced
		to("the job", "is FENCED", n, true)
	case s.job == fenced && s.writes(a) && s.cells[a].epoch == 1:
		n.job = over
		to("cell a", "opens again by itself", n, false)
		n = s
		n.onWay = 2
		if n.cells[a].role = given; w.off != EqualKeepsOwner {
			n.cells[a].epoch = n.onWay
		}
		to("cell a", "gives the slot", n, true)
	}
	if target := s.cells[b]; s.onWay > target.epoch && !target.down && (target.role == standsBy || target.role == incoming) {
		n = s
		n.cells[b].role, n.cells[b].epoch, n.onWay = owns, s.onWay, 0
		to("cell b", "applies the row that gives it the slot", n, false)
	}
}

// ready: source and target hold a table that names the target as the standby.
func (w *handoverWorld) ready(s handover) bool {
	named := func(v uint8) bool { return s.tables[v-1].names(a, b, 1) }
	switch w.off {
	case TargetIsStandby:
		return true
	case TargetHoldsTable:
		return named(s.n)
	}
	return named(s.n) && named(s.cells[a].has) && named(s.cells[b].has)
}

// member: a cell gets a table, dies, comes back.
func (w *handoverWorld) member(s handover, i int, to handoverMove) {
	m := s.cells[i]
	for v := m.has + 1; v <= s.n && !m.down; v++ {
		n := s
		n.cells[i] = w.apply(m, i, v, s.tables[v-1])
		if i == b && n.cells[b].role == owns && m.role != owns && s.onWay != 0 && !s.tables[v-1].failover {
			n.short = true
		}
		to(cellName(i), [...]string{"", "", "has table 2", "has table 3", "has table 4", "has table 5", "has table 6"}[v], n, v < s.n)
	}
	if n := s; !m.down && s.deaths > 0 && i != c {
		n.deaths--
		n.cells[i].down = true
		to(cellName(i), "dies", n, true)
	}
	if n := s; m.down {
		n.cells[i].down = false
		to(cellName(i), "is back", n, true)
	}
}

// apply is what a table changes in a cell's row.
func (w *handoverWorld) apply(m member, i int, version uint8, t table) member {
	m.has = version
	if m.waits <= version {
		m.waits = 0
	}
	role := uint8(nothing)
	switch uint8(i) {
	case t.owner:
		role = owns
	case t.standby:
		role = standsBy
	}
	switch {
	case t.epoch > m.epoch, w.off == EpochsGoUp:
		m.role, m.epoch = role, t.epoch
	case t.epoch == m.epoch && (role != owns && m.role != owns || w.off == EqualKeepsOwner):
		if role != nothing || m.role != incoming {
			m.role = role
		}
	}
	return m
}

// control publishes the steps of the job, and tables for other jobs.
func (w *handoverWorld) control(s handover, to handoverMove) {
	t := s.newest()
	if s.failing != 0 {
		return
	}
	if s.job == targetInSync && t.names(a, c, 1) {
		if n, ok := s.publish(table{owner: a, standby: b, epoch: 1}); ok {
			to("control", "names b as the standby", n, false)
		}
	}
	applied := s.cells[b].role == owns && !s.cells[b].down
	if w.off == SwitchFollows {
		applied = applied || s.cells[a].role == given && !s.cells[a].down
	}
	if s.job == fenced && applied && t.owner == a && t.epoch == 1 {
		if n, ok := s.publish(table{owner: b, standby: a, epoch: 2}); ok {
			to("control", "publishes b as the owner", n, false)
		}
	}
	if free := s.job != fenced || w.off == OneJob; free && t.names(a, b, 1) {
		if n, ok := s.publish(table{owner: a, standby: c, epoch: 1}); ok {
			if s.job == targetInSync {
				n.job = over // looks again, and has to begin anew
			}
			to("control", "names c as the standby for another job", n, true)
		}
	}
}

// failover of a or b: its lease is taken first, then control looks who has newer
// rows. One that isn't for this slot may come at any time, once.
func (w *handoverWorld) failover(s handover, to handoverMove) {
	if s.failing != 0 {
		n, ok := s.publish(w.next(s, int(s.failing-1)))
		if n.failing = 0; ok {
			to("control", "publishes the failover", n, false)
		}
		return
	}
	for i, m := range s.cells[:c] {
		t := s.newest()
		needed := int(t.owner) == i && t.standby != nobody || i == b && s.cells[a].role == given && !s.cells[a].down && t.epoch == 1
		if m.down && s.n < mostTables && (needed || s.n < 3) {
			n := s
			n.failing = uint8(i) + 1
			n.cells[i].waits = s.n + 1
			to("control", "fails "+cellName(i)+" over", n, !needed)
		}
	}
}

// next is the table that a failover publishes.
func (w *handoverWorld) next(s handover, dead int) table {
	t := s.newest()
	if w.off != AskFirst {
		for i, m := range s.cells {
			switch {
			case i == dead || m.down || m.epoch <= t.epoch:
			case m.role == given && dead == b && w.off == GiverSkipsEpoch:
				return table{uint8(i), c, m.epoch, true}
			case m.role == given && dead == b:
				return table{uint8(i), c, m.epoch + 1, true}
			case m.role == owns:
				return table{uint8(i), nobody, m.epoch, true}
			}
		}
	}
	if int(t.owner) == dead && t.standby != nobody {
		return table{t.standby, nobody, t.epoch + 1, true}
	}
	return t
}

// Broken is I1.
func (w *handoverWorld) Broken(s handover) string {
	n := 0
	for i := range s.cells {
		n += int(one(s.writes(i)))
	}
	switch {
	case n > 1:
		return twoOwners
	case s.short:
		return overtaken
	}
	return ""
}

// Rests: the slot is served, or its owner is dead and has no standby.
func (w *handoverWorld) Rests(s handover) bool {
	t := s.newest()
	return t.standby == nobody && s.cells[t.owner].down || s.writes(a) || s.writes(b) || s.writes(c)
}
