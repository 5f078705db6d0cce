package model

import "example.com/cellmart/platform/cellkit/transfer"

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
	noGrant   = "somebody acted on a grant that the home doesn't have"
	twoOwners = "two writers"
	tailLost  = "what others acted on is lost"
)

// Run is one exploration: a world with its bounds, and the rule that is off.
type Run struct {
	World string
	Bound string // what may happen
	Rule  Rule
	Wants string // the violation that has to be found, "" = none
	look  func(off Rule, wants string) (Found, error)
}

// limit is on the states of one run: far above what is there, far below what hurts.
const limit = 1_000_000

// Explore looks at every state.
func (r Run) Explore() (Found, error) { return r.look(r.Rule, r.Wants) }

// Worlds are the runs with all rules on: nothing may be found.
func Worlds() []Run {
	there, back := path{kind: transfer.User, from: 0, to: 1}, path{kind: transfer.User, from: 1, to: 0}
	refund := path{kind: transfer.Refund, from: 1, to: 0, of: 0}
	one, two, parts := []pair{{0, 0}}, []pair{{0, 0}, {1, 0}}, []pair{{0, 0}, {0, 1}}
	return []Run{
		money1("pay", "2 failovers of each slot, streams lost", moneyWorld{transfers: []path{there}, funds: [2]int8{1, 0}, failovers: [2]uint8{2, 2}, refuses: true, loses: true}),
		money1("pay, payer's slot", "2 failovers", moneyWorld{transfers: []path{there}, funds: [2]int8{1, 0}, failovers: [2]uint8{2, 0}, refuses: true}),
		money1("pay, payee's slot", "2 failovers", moneyWorld{transfers: []path{there}, funds: [2]int8{1, 0}, failovers: [2]uint8{0, 2}, refuses: true}),
		money1("pay, payer's standby exchanged", "2 failovers, 1 of the other slot", moneyWorld{transfers: []path{there}, funds: [2]int8{1, 0}, failovers: [2]uint8{2, 1}, swaps: [2]uint8{1, 0}, refuses: true}),
		money1("pay, payee's standby exchanged", "2 failovers, 1 of the other slot", moneyWorld{transfers: []path{there}, funds: [2]int8{1, 0}, failovers: [2]uint8{1, 2}, swaps: [2]uint8{0, 1}, refuses: true}),
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
		voters1("2 voters", "3 rounds, 2 tables", voterWorld{n: 2, rounds: 3, tables: 2}),
		voters1("3 voters", "2 rounds, 3 tables", voterWorld{n: 3, rounds: 2, tables: 3}),
		voters1("4 voters", "2 rounds, 2 tables", voterWorld{n: 4, rounds: 2, tables: 2}),
	}
}

func money1(name, bound string, w moneyWorld) Run {
	return Run{World: name, Bound: bound, look: func(off Rule, wants string) (Found, error) { return explore(newMoney(w, off), wants, limit) }}
}

func shop1(name, bound string, w shopWorld) Run {
	return Run{World: name, Bound: bound, look: func(off Rule, wants string) (Found, error) {
		w := w // runs of one world go side by side
		w.off = off
		return explore(&w, wants, limit)
	}}
}

func claim1(name, bound string, w claimWorld) Run {
	return Run{World: name, Bound: bound, look: func(off Rule, wants string) (Found, error) {
		w := w // runs of one world go side by side
		w.off = off
		return explore(&w, wants, limit)
	}}
}

func voters1(name, bound string, w voterWorld) Run {
	return Run{World: name, Bound: bound, look: func(off Rule, wants string) (Found, error) {
		w := w // runs of one world go side by side
		w.off = off
		return explore(&w, wants, limit)
	}}
}

// Runs are the worlds, and then every rule switched off in one that is clean with it.
func Runs() []Run {
	worlds := Worlds()
	out := worlds
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
		{TakenAnew, "pay, payee's slot", grown},
		{CopiedAnew, "pay, payee's slot", noCredit},
		{TailStays, "pay, payee's slot", grown},
		{OwnsByTable, "pay, payer's slot", noPayer},
		{OwnsByTable, "pay, payee's slot", noCredit},
		{SweeperSends, "pay an order", stuck},
		{NoteIsLocal, "pay an order", stuck},
		{SaidAgain, "pay an order", stuck},
		{FinalReply, "pay, payee's slot", stuck},
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
		{AllReleased, "order", stuck},
		{EndKept, "order", givenBack},
		{EndRefuses, "two orders, one unit", soldTwice},
		{UnknownChecked, "two orders, one unit, seller", soldTwice},
		{HoldsEnd, "order, RELEASE early", stuck},
		{GrantHeld, "one phone, two users, home", onePhone},
		{SureHeld, "one phone, two users, users' slot", noUser},
		{StateHeld, "one phone, two users, users' slot", noUser},
		{AskedTombstone, "one phone, two users", onePhone},
		{ClaimStays, "one phone, two users, home", onePhone},
		{TakenHeld, "one phone, two users, home", ""},
		{MarkFirst, "4 voters", tailLost},
		{MarkedStays, "4 voters", tailLost},
		{LiftWhenPassed, "2 voters", tailLost},
		{KeepMeetsFence, "4 voters", twoOwners},
		{KeepMeetsFence, "4 voters", tailLost},
		{PromiseWhenOld, "4 voters", twoOwners},
		{RestartWaits, "4 voters", twoOwners},
		{PromiseStored, "4 voters", twoOwners},
		{PromiseOutlasts, "4 voters", twoOwners},
		{SwapFromBase, "3 voters", twoOwners},
		{GivingUpPublishes, "4 voters", stuck},
		{MarkStored, "2 voters", tailLost},
		{OnlyGrantsCount, "4 voters", tailLost},
		{HighestCounter, "2 voters", tailLost},
	} {
		for _, w := range worlds {
			if w.World == r.world {
				out = append(out, Run{World: w.World, Bound: w.Bound, Rule: r.rule, Wants: r.wants, look: w.look})
			}
		}
	}
	return out
}
