package model

// Orders: each pair is an order's hold at one seller, of one unit. The machines
// are those of services/order and services/inventory, in short.
const maxPairs = 2

// An order; 0 is no row. ended says that it was RESERVED when it was cancelled, so a
// CONFIRM was written.
const (
	pending = iota + 1
	reserved
	paid
	given // CANCELLED, no CONFIRM was ever written
	ended // CANCELLED, one was
)

// A hold as its order sees it; 0 is asked.
const (
	saysReserved = iota + 1
	saysConfirmed
	saysRefused
	saysEnded
	saysReleased
)

// A hold at its seller; 0 is no row.
const (
	held = iota + 1
	confirmed
	released
	expired
)

// The messages of a pair.
const (
	mReserve = iota
	mRelease
	mRestock // a RELEASE of what may be CONFIRMED, where that is a message of its own
	mConfirm
	mPay // the order's CREDIT
	mReserved
	mRefused
	mConfirmed
	mEnded
	mReleased
	perPair
)

func pairBit(p, message int) uint32 { return 1 << (p*perPair + message) }

// buyer is what a database has of the buyer's slot.
type buyer struct {
	order [maxPairs]uint8
	view  [maxPairs]uint8 // by pair
}

// stock is what a database has of a seller's slot.
type stock struct {
	hold [maxPairs]uint8 // by pair
	paid [maxPairs]bool  // the order's money is here
}

// shop is the state.
type shop struct {
	buyer    slot[buyer]
	sellers  [2]slot[stock]
	net      uint32
	conflict bool // an answer to what nobody asked
}

// shopWorld is a configuration: every seller has one unit.
type shopWorld struct {
	off       Rule
	pairs     []pair
	failovers [3]uint8 // of the buyer's slot, of the sellers'
	room      uint8    // how far a standby may be behind
	loses     bool     // streams may be lost
	brief     bool     // leave out what follows the ends: the sellers' money, RELEASED
	early     bool     // RELEASE isn't held as long as no CONFIRM was written
}

type pair struct{ order, seller int }

type shopMove func(who, what string, next shop, free bool)

func (w *shopWorld) orders() int  { return w.pairs[len(w.pairs)-1].order + 1 }
func (w *shopWorld) sellers() int { return w.pairs[len(w.pairs)-1].seller + 1 }

func (w *shopWorld) Start() (s shop) {
	s.buyer = newSlot(buyer{}, w.failovers[0], 0, w.room)
	for k := range w.sellers() {
		s.sellers[k] = newSlot(stock{}, w.failovers[1+k], 0, w.room)
	}
	return s
}

func orderName(o int) string { return [...]string{"order 0", "order 1"}[o] }
func holdName(p int) string  { return [...]string{"hold 0", "hold 1"}[p] }

func (w *shopWorld) Moves(s shop, to func(who, what string, next shop, free bool)) {
	s.buyer.copies(w.off, func(d buyer, late uint32) bool {
		return all(late, func(b uint32) bool { return w.buyerHas(d, b) })
	},
		func(now, _ buyer) buyer { return now },
		func(what string, next slot[buyer], free bool) {
			n := s
			n.buyer = next
			to("the buyer's slot", what, n, free)
		})
	for k := range w.sellers() {
		s.sellers[k].copies(w.off, func(d stock, late uint32) bool {
			return all(late, func(b uint32) bool { return w.stockHas(d, b) })
		},
			func(now, _ stock) stock { return now },
			func(what string, next slot[stock], free bool) {
				n := s
				n.sellers[k] = next
				to([...]string{"seller 0's slot", "seller 1's slot"}[k], what, n, free)
			})
	}
	for o := range w.orders() {
		w.wishes(s, o, to)
	}
	for p := range w.pairs {
		w.requests(s, p, to)
		w.replies(s, p, to)
		w.seller(s, p, to)
	}
	if w.loses {
		n := s
		n.net = 0
		to("streams", "all are lost", n, true)
	}
}

// wishes: the order is placed, and cancelled.
func (w *shopWorld) wishes(s shop, o int, to shopMove) {
	d := s.buyer.own
	switch state := d.order[o]; {
	case state == 0:
		d.order[o] = pending
		for p := range w.pairs {
			if w.pairs[p].order == o { // RESERVE isn't held, so it may be there at once
				s.net |= pairBit(p, mReserve)
			}
		}
		w.save(s, d, orderName(o), "PENDING, RESERVE is sent", true, to)
	case state == pending:
		d.order[o] = given
		w.save(s, d, orderName(o), "CANCELLED", false, to) // its deadline comes
	case state == reserved, state == paid && w.off == PaidStays:
		d.order[o] = ended
		w.save(s, d, orderName(o), "CANCELLED, the money is free again", true, to)
	}
}

func (w *shopWorld) save(s shop, d buyer, who, what string, free bool, to shopMove) {
	if s.buyer.commit(d) {
		to(who, what, s, free)
	}
}

// requests sends what the order's state asks for, as often as it likes.
func (w *shopWorld) requests(s shop, p int, to shopMove) {
	state, view := s.buyer.own.order[w.pairs[p].order], s.buyer.own.view[p]
	gives := w.off != AllReleased && (state == given || state == ended) && view != saysRefused && view != saysEnded && view != saysReleased
	for _, m := range [...]struct {
		message int
		due     bool
		early   bool // isn't held
		what    string
	}{
		{mReserve, state == pending && view == 0, true, "RESERVE is sent"},
		{mConfirm, (state == reserved || state == paid && w.off == PaidLast) && view != saysConfirmed, w.off == ConfirmHeld, "CONFIRM is sent"},
		{mRelease, gives && (state == given || !w.early), w.early, "RELEASE is sent"},
		{mRestock, gives && state == ended && w.early, w.off == RestockHeld, "RESTOCK is sent"},
		{mPay, state == paid && !w.brief, w.off == PaymentHeld, "CREDIT is sent"},
	} {
		b := pairBit(p, m.message)
		if !m.due || s.net&b != 0 {
			continue
		}
		n := s
		n.buyer.leave(w.off, b, m.early, func(d buyer) bool { return w.buyerHas(d, b) })
		n.net |= b
		to(holdName(p), m.what, n, false)
	}
}

// replies: what the seller says has come to the order.
func (w *shopWorld) replies(s shop, p int, to shopMove) {
	for m := mReserved; m <= mReleased; m++ {
		if s.net&pairBit(p, m) == 0 {
			continue
		}
		d, ok := w.heard(s.buyer.own, p, m)
		if !ok {
			n := s
			n.conflict = true
			to(holdName(p), "an answer to what nobody asked", n, false)
		} else if d != s.buyer.own {
			w.save(s, d, holdName(p), [...]string{"the order has RESERVED", "the order has REFUSED",
				"the order has CONFIRMED", "the order has ENDED", "the order has RELEASED"}[m-mReserved], false, to)
		}
	}
}

// heard is the order's machine.
func (w *shopWorld) heard(d buyer, p, m int) (buyer, bool) {
	o := w.pairs[p].order
	state := &d.order[o]
	switch {
	case m == mReleased:
		if *state == given || *state == ended {
			d.view[p] = saysReleased
		}
	case m == mReserved && *state == pending:
		if d.view[p] = saysReserved; w.all(d, o, saysReserved) {
			if *state = reserved; w.off == PaidLast {
				*state = paid
			}
		}
	case m == mRefused && *state == pending:
		*state, d.view[p] = given, saysRefused
	case m == mConfirmed && *state == reserved:
		if d.view[p] = saysConfirmed; w.all(d, o, saysConfirmed) || w.off == AllConfirmed {
			*state = paid
		}
	case m == mEnded && *state == reserved:
		*state, d.view[p] = ended, saysEnded
	case m == mConfirmed || m == mEnded:
		return d, *state > reserved // a CONFIRM was written
	}
	return d, true
}

func (w *shopWorld) all(d buyer, o int, view uint8) bool {
	for p := range w.pairs {
		if w.pairs[p].order == o && d.view[p] != view {
			return false
		}
	}
	return true
}

// seller: requests have come to the hold, its clock runs, it answers.
func (w *shopWorld) seller(s shop, p int, to shopMove) {
	k := w.pairs[p].seller
	d := s.sellers[k].own
	has := func(m int) bool { return s.net&pairBit(p, m) != 0 }
	for m, what := range [...]string{"RESERVE has come, RESERVED is answered", "RELEASE has come", "RESTOCK has come", "CONFIRM has come"} {
		if !has(m) {
			continue
		}
		if next := w.held(d, p, m); next != d.hold[p] {
			w.stored(s, p, next, what, to)
		}
	}
	if d.hold[p] == held && w.off != HoldsEnd {
		w.stored(s, p, w.end(expired), "its time is over", to)
	}
	if has(mPay) && !d.paid[p] {
		d.paid[p] = true
		if n := s; n.sellers[k].commit(d) {
			to(holdName(p), "the seller has the money", n, false)
		}
	}
	over := d.hold[p] >= released || d.hold[p] == 0 && w.off == EndKept
	for _, m := range [...]struct {
		message int
		due     bool
		early   bool // isn't held
		what    string
	}{
		{mReserved, has(mReserve) && (d.hold[p] == held || d.hold[p] == confirmed), true, "RESERVED is answered again"},
		{mRefused, has(mReserve) && (d.hold[p] >= released || d.hold[p] == 0 && w.free(d) < 1), true, "REFUSED is answered"},
		{mConfirmed, has(mConfirm) && d.hold[p] == confirmed, w.off == ConfirmedHeld, "CONFIRMED is answered"},
		{mEnded, has(mConfirm) && over, w.off == EndedHeld, "ENDED is answered"},
		{mReleased, (has(mRelease) || has(mRestock)) && over && !w.brief, w.off == ReleasedHeld, "RELEASED is answered"},
	} {
		b := pairBit(p, m.message)
		if !m.due || s.net&b != 0 {
			continue
		}
		n := s
		n.sellers[k].leave(w.off, b, m.early, func(d stock) bool { return w.stockHas(d, b) })
		n.net |= b
		to(holdName(p), m.what, n, false)
	}
}

func (w *shopWorld) stored(s shop, p int, next uint8, what string, to shopMove) {
	k := w.pairs[p].seller
	d := s.sellers[k].own
	d.hold[p] = next
	if next == held { // RESERVED isn't held, so it may be there at once
		s.net |= pairBit(p, mReserved)
	}
	if s.sellers[k].commit(d) {
		to(holdName(p), what, s, false)
	}
}

// held is the hold's machine.
func (w *shopWorld) held(d stock, p, m int) uint8 {
	now := d.hold[p]
	switch {
	case now == 0 && m == mReserve && w.free(d) > 0:
		return held
	case now == 0 && m == mConfirm && (w.free(d) > 0 || w.off == UnknownChecked):
		return confirmed
	case now == 0: // not enough, or a tombstone for what may come late
		if m != mReserve {
			return w.end(released)
		}
	case now == held && m == mConfirm, now == expired && m == mConfirm && w.off == EndRefuses:
		return confirmed
	case now == held && m != mReserve, now == confirmed && m == mRestock,
		now == confirmed && m == mRelease && (!w.early || w.off == RestockApart):
		return w.end(released)
	}
	return now
}

// end is kept, so that what comes late finds it.
func (w *shopWorld) end(state uint8) uint8 {
	if w.off == EndKept {
		return 0
	}
	return state
}

// free is what a seller's one unit leaves.
func (w *shopWorld) free(d stock) int {
	free := 1
	for _, h := range d.hold {
		if h == held || h == confirmed {
			free--
		}
	}
	return free
}
