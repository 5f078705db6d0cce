package model

import "example.com/cellmart/platform/cellkit/transfer"

// holds says whether a database has what a message speaks of.
func (w *moneyWorld) holds(d ledger, b uint32) bool {
	for i := range w.transfers {
		switch {
		case b == bit(i, mCredit):
			return d.row[i] != 0
		case b == bit(i, mCancel):
			return d.row[i] >= cancelling
		case b >= bit(i, mAnswer) && b < bit(i+1, mCredit):
			return d.row[i] != 0
		}
	}
	return false
}

// merge is what a new standby, or a new owner, makes of a former owner's rows under
// the rules that are off.
func (w *moneyWorld) merge(now, old ledger, epoch uint8) ledger {
	if w.off == CopiedAnew { // rows that came from the former owner aren't in the new one's stream
		for i := range w.transfers {
			if now.version[i]>>4 < epoch || now.version[i] == 0 {
				now.row[i], now.version[i] = 0, 0
			}
		}
		if now.version[maxTransfers]>>4 < epoch || now.version[maxTransfers] == 0 {
			now.available, now.frozen, now.clearing, now.version[maxTransfers] = 0, 0, 0, 0
		}
		return now
	}
	for i := range w.transfers {
		if old.version[i] > now.version[i] {
			now.row[i], now.version[i] = old.row[i], old.version[i]
		}
	}
	if old.version[maxTransfers] > now.version[maxTransfers] {
		now.available, now.frozen, now.clearing = old.available, old.frozen, old.clearing
		now.version[maxTransfers] = old.version[maxTransfers]
	}
	return now
}

// Broken is I3 and I4 over the slots' owners, at every moment.
func (w *moneyWorld) Broken(s money) string {
	if s.conflict {
		return "an answer contradicts what is stored"
	}
	var open [2]int8
	between := int8(0) // is at its payee already, and frozen at its payer still
	for i, p := range w.transfers {
		a, b := s.slots[p.from].own.row[i], s.slots[p.to].own.row[i]
		switch {
		case b == credited && a == 0:
			return "money made: CREDITED, and no slot paid it"
		case b == credited && a == reversed:
			return "money made: CREDITED and REVERSED"
		case a == settled && b != credited:
			return "money lost: SETTLED without CREDITED"
		case a == reversed && p.kind == transfer.Sales:
			return "the payment of an order came back"
		case w.refunds(s.slots[p.to].own, i) > 1:
			return "more is given back than came"
		}
		if a == frozen || a == cancelling {
			open[p.from]++
			if b == credited {
				between++
			}
		}
	}
	sum, all := -between, int8(0)
	for k := range s.slots {
		d := &s.slots[k].own
		switch {
		case d.available < 0:
			return "overdrawn"
		case d.frozen != open[k]:
			return "frozen isn't what open transfers hold"
		}
		sum += d.available + d.frozen
		all += w.funds[k]
	}
	switch {
	case sum > all:
		return "money made: the total has grown"
	case sum < all:
		return "money lost: the total has shrunk"
	}
	return ""
}

// Rests: every transfer has ended, nothing is on its way between slots.
func (w *moneyWorld) Rests(s money) bool {
	for i, p := range w.transfers {
		if a := s.slots[p.from].own.row[i]; a == frozen || a == cancelling {
			return false
		}
	}
	return s.slots[0].own.clearing+s.slots[1].own.clearing == 0
}

// buyerHas says whether a database has what a message of an order speaks of.
func (w *shopWorld) buyerHas(d buyer, b uint32) bool {
	for p := range w.pairs {
		state := d.order[w.pairs[p].order]
		switch b {
		case pairBit(p, mReserve):
			return state != 0
		case pairBit(p, mRelease), pairBit(p, mRestock):
			return state == given || state == ended
		case pairBit(p, mConfirm):
			return state == reserved || state == paid || state == ended
		case pairBit(p, mPay):
			return state == paid
		}
	}
	return false
}

// stockHas is the same for a hold's answers.
func (w *shopWorld) stockHas(d stock, b uint32) bool {
	for p := range w.pairs {
		switch b {
		case pairBit(p, mReserved), pairBit(p, mRefused):
			return true // speaks of nothing that has to be kept
		case pairBit(p, mConfirmed):
			return d.hold[p] == confirmed
		case pairBit(p, mEnded), pairBit(p, mReleased):
			return d.hold[p] >= released || w.off == EndKept
		}
	}
	return false
}

// Broken is I5 and I6 over the slots' owners, at every moment.
func (w *shopWorld) Broken(s shop) string {
	if s.conflict {
		return "an answer to what nobody asked"
	}
	var promised [2]int
	for p, pr := range w.pairs {
		hold := s.sellers[pr.seller].own.hold[p]
		if s.buyer.own.order[pr.order] == paid || hold == held || hold == confirmed {
			promised[pr.seller]++
		}
	}
	if max(promised[0], promised[1]) > 1 {
		return "a unit is sold twice"
	}
	for p, pr := range w.pairs {
		state, view, d := s.buyer.own.order[pr.order], s.buyer.own.view[p], s.sellers[pr.seller].own
		over := view == saysReleased || view == saysEnded || view == saysRefused
		switch {
		case state == paid && d.hold[p] != held && d.hold[p] != confirmed:
			return "PAID without its stock"
		case d.paid[p] && state != paid:
			return "money made: the seller has it, and the order isn't PAID"
		case d.hold[p] == confirmed && state < reserved:
			return "sold to an order that isn't RESERVED"
		case d.hold[p] == confirmed && (state == given || state == ended) && over:
			return "sold to an order that was cancelled and has given it back"
		}
	}
	return ""
}

// Rests: every order is at its end, with its stock and its money, or without both.
func (w *shopWorld) Rests(s shop) bool {
	for p, pr := range w.pairs {
		d := s.sellers[pr.seller].own
		switch s.buyer.own.order[pr.order] {
		case pending, reserved:
			return false
		case paid:
			if !d.paid[p] && !w.brief || d.hold[p] != confirmed {
				return false
			}
		default:
			if d.hold[p] == held || d.hold[p] == confirmed {
				return false
			}
		}
	}
	return true
}
