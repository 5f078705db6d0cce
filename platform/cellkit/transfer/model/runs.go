package model

import (
	"example.com/cellmart/platform/cellkit/explore"
	"example.com/cellmart/platform/cellkit/transfer"
)

// What is found when a rule is off.
const (
	noPayer   = "money made: CREDITED, and no slot paid it"
	both      = "money made: CREDITED and REVERSED"
	grown     = "money made: the total has grown"
	paidTwice = "money made: the seller has it, and the order isn't PAID"
	noCredit  = "money lost: SETTLED without CREDITED"
	tooMuch   = "more is given back than came"
	cameBack  = "the payment of an order came back"
	parked    = "an answer contradicts what is stored"
	soldTwice = "a unit is sold twice"
	noStock   = "PAID without its stock"
	givenBack = "sold to an order that was cancelled and has given it back"
	nobodys   = "sold to an order that isn't RESERVED"
	onePhone  = "two users have one phone"
	noUser    = "the phone is CONFIRMED for somebody who isn't there"
)

// limit is on the states of one run: far above what is there, far below what hurts.
const limit = 1_000_000

// world is a configuration, and how to look at it.
type world struct {
	name  string
	bound string // what may happen
	look  func(off Rule, wants string) (explore.Found, error)
}

func (w world) run(off Rule, wants string) explore.Run {
	return explore.Run{World: w.name, Bound: w.bound, Rule: explore.Rule(rules()[off]), Wants: wants,
		Look: func() (explore.Found, error) { return w.look(off, wants) }}
}

func worlds() []world {
	there, back := path{kind: transfer.User, from: 0, to: 1}, path{kind: transfer.User, from: 1, to: 0}
	refund := path{kind: transfer.Refund, from: 1, to: 0, of: 0}
	one, two, parts := []pair{{0, 0}}, []pair{{0, 0}, {1, 0}}, []pair{{0, 0}, {0, 1}}
	return []world{
		money1("pay", "2 failovers of each slot, streams lost", moneyWorld{transfers: []path{there}, funds: [2]int8{1, 0}, failovers: [2]uint8{2, 2}, refuses: true, loses: true}),
		money1("pay, payer's slot", "2 failovers", moneyWorld{transfers: []path{there}, funds: [2]int8{1, 0}, failovers: [2]uint8{2, 0}, refuses: true}),
		money1("pay, payee's slot", "2 failovers", moneyWorld{transfers: []path{there}, funds: [2]int8{1, 0}, failovers: [2]uint8{0, 2}, refuses: true}),
		money1("pay, payer's standby exchanged", "2 failovers, 1 of the other slot", moneyWorld{transfers: []path{there}, funds: [2]int8{1, 0}, failovers: [2]uint8{2, 1}, swaps: [2]uint8{1, 0}, refuses: true}),
		money1("pay, payee's standby exchanged", "2 failovers, 1 of the other slot", moneyWorld{transfers: []path{there}, funds: [2]int8{1, 0}, failovers: [2]uint8{1, 2}, swaps: [2]uint8{0, 1}, refuses: true}),
		money1("pay, payer's exchanged, asked", "2 failovers, 1 of the other slot", moneyWorld{transfers: []path{there}, funds: [2]int8{1, 0}, failovers: [2]uint8{2, 1}, swaps: [2]uint8{1, 0}, refuses: true, asksFirst: true}),
		money1("pay, payee's exchanged, asked", "2 failovers, 1 of the other slot", moneyWorld{transfers: []path{there}, funds: [2]int8{1, 0}, failovers: [2]uint8{1, 2}, swaps: [2]uint8{0, 1}, refuses: true, asksFirst: true}),
		money1("pay an order", "2 failovers of each slot, streams lost", moneyWorld{transfers: []path{{kind: transfer.Sales, from: 0, to: 1}}, funds: [2]int8{1, 0}, failovers: [2]uint8{2, 2}, refuses: true, loses: true}),
		money1("pay, and pay on what came", "1 failover of each slot", moneyWorld{transfers: []path{there, back}, funds: [2]int8{1, 0}, failovers: [2]uint8{1, 1}}),
		money1("pay one unit twice", "1 failover of each slot", moneyWorld{transfers: []path{there, there}, funds: [2]int8{1, 0}, failovers: [2]uint8{1, 1}}),
		money1("two refunds of one", "1 failover of the slot that refunds", moneyWorld{transfers: []path{there, refund, refund}, funds: [2]int8{1, 1}, failovers: [2]uint8{0, 1}}),
		shop1("order", "2 failovers of the buyer's slot, 1 of the seller's, streams lost", shopWorld{pairs: one, room: 2, failovers: [3]uint8{2, 1}, loses: true}),
		shop1("order, RELEASE early", "1 failover of each slot, streams lost", shopWorld{pairs: one, room: 3, failovers: [3]uint8{1, 1}, loses: true, early: true}),
		shop1("two orders, one unit", "1 failover of the buyers' slot", shopWorld{pairs: two, room: 1, failovers: [3]uint8{1, 0}, brief: true}),
		shop1("two orders, one unit, seller", "1 failover of the seller's slot", shopWorld{pairs: two, room: 1, failovers: [3]uint8{0, 1}, brief: true}),
		shop1("order at two sellers", "1 failover of the buyer's and one seller's slot", shopWorld{pairs: parts, room: 1, failovers: [3]uint8{1, 1, 0}, brief: true}),
		claim1("one phone, two users", "1 failover of each slot, streams lost", claimWorld{failovers: [2]uint8{1, 1}, room: 1, loses: true}),
		claim1("one phone, two users, home", "2 failovers of the phone's home", claimWorld{failovers: [2]uint8{0, 2}, room: 3}),
		claim1("one phone, two users, users' slot", "2 failovers of the users' slot", claimWorld{failovers: [2]uint8{2, 0}, room: 3}),
	}
}

func money1(name, bound string, w moneyWorld) world {
	return world{name: name, bound: bound, look: func(off Rule, wants string) (explore.Found, error) {
		return explore.States(newMoney(w, off), wants, limit)
	}}
}

func shop1(name, bound string, w shopWorld) world {
	return world{name: name, bound: bound, look: func(off Rule, wants string) (explore.Found, error) {
		w := w // runs of one world go side by side
		w.off = off
		return explore.States(&w, wants, limit)
	}}
}

func claim1(name, bound string, w claimWorld) world {
	return world{name: name, bound: bound, look: func(off Rule, wants string) (explore.Found, error) {
		w := w // runs of one world go side by side
		w.off = off
		return explore.States(&w, wants, limit)
	}}
}

// Runs are the worlds with all rules on, and then every rule switched off in one of
// them.
func Runs() []explore.Run {
	var out []explore.Run
	worlds := worlds()
	for _, w := range worlds {
		out = append(out, w.run(None, ""))
	}
	for _, r := range []struct {
		rule         Rule
		world, wants string
	}{
		{RequestsHeld, "pay", noPayer},
		{RequestsHeld, "pay one unit twice", noPayer},
		{RepliesHeld, "pay", noCredit},
		{RefusalsHeld, "pay", both},
		{TombstonesHeld, "pay", both},
		{AppliedCounts, "pay", noPayer},
		{MarkFirst, "pay", noPayer},
		{MarkedStays, "pay", noPayer},
		{LiftWhenPassed, "pay", noPayer},
		{InSyncOnly, "pay, payee's slot", noCredit},
		{IncomingGates, "pay, payer's standby exchanged", noPayer},
		{IncomingGates, "pay, payee's standby exchanged", noCredit},
		{IncomingGatesAtOnce, "pay, payer's standby exchanged", noPayer},
		{IncomingGatesAtOnce, "pay, payee's standby exchanged", noCredit},
		{OldGates, "pay, payer's standby exchanged", noPayer},
		{OldGates, "pay, payee's standby exchanged", noCredit},
		{PlaceNamed, "pay, payer's exchanged, asked", noPayer},
		{PlaceNamed, "pay, payee's exchanged, asked", noCredit},
		{TakenAnew, "pay, payee's slot", grown},
		{CopiedAnew, "pay, payee's slot", noCredit},
		{TailStays, "pay, payee's slot", grown},
		{OwnsByTable, "pay, payer's slot", noPayer},
		{OwnsByTable, "pay, payee's slot", noCredit},
		{SweeperSends, "pay an order", explore.Stuck},
		{NoteIsLocal, "pay an order", explore.Stuck},
		{SaidAgain, "pay an order", explore.Stuck},
		{FinalReply, "pay, payee's slot", explore.Stuck},
		{FirstWins, "pay", grown},
		{Tombstone, "pay", both},
		{TimeoutAsks, "pay", both},
		{OrderCredited, "pay an order", cameBack},
		{RefundCapped, "two refunds of one", tooMuch},
		{CancelHeld, "pay", parked},
		{ConfirmHeld, "order", nobodys},
		{ConfirmedHeld, "order", noStock},
		{ConfirmedHeld, "two orders, one unit, seller", soldTwice},
		{EndedHeld, "order", givenBack},
		{RestockHeld, "order, RELEASE early", noStock},
		{RestockApart, "order, RELEASE early", noStock},
		{ReleasedHeld, "order", givenBack},
		{PaymentHeld, "order", paidTwice},
		{PaidLast, "two orders, one unit", soldTwice},
		{AllConfirmed, "order at two sellers", noStock},
		{PaidStays, "order", paidTwice},
		{AllReleased, "order", explore.Stuck},
		{EndKept, "order", givenBack},
		{EndRefuses, "two orders, one unit", soldTwice},
		{UnknownChecked, "two orders, one unit, seller", soldTwice},
		{HoldsEnd, "order, RELEASE early", explore.Stuck},
		{GrantHeld, "one phone, two users, home", onePhone},
		{SureHeld, "one phone, two users, users' slot", noUser},
		{StateHeld, "one phone, two users, users' slot", noUser},
		{AskedTombstone, "one phone, two users", onePhone},
		{ClaimStays, "one phone, two users, home", onePhone},
		{TakenHeld, "one phone, two users, home", ""},
	} {
		for _, w := range worlds {
			if w.name == r.world {
				out = append(out, w.run(r.rule, r.wants))
			}
		}
	}
	return out
}
