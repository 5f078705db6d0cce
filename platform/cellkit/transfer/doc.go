// Package transfer is money: a double-entry ledger inside one slot (Post), and
// the protocol that moves money between slots (Start, the handlers, Expire).
//
// # Ledger
//
// A posting moves an amount from the debit account to the credit account of one
// user and currency, so it sums to zero by its form; the wallet row holds the
// balances, and the database checks that they sum to zero and that nobody
// spends what isn't there. Accounts: available, frozen, clearing (on the way
// between slots), external (minus what came from outside), suspense (money for
// somebody who isn't there), recovery (minus what was paid for a user and is owed
// by them). Amounts are whole minor units of 0, 2 or 3 digits; the database knows
// the currencies too.
//
// The statement that freezes a transfer's money also counts it for its payer's day
// and refuses what is over the limit (Limits); what comes back is free again.
//
// # Transfer
//
//	source slot                                     destination slot
//	available -> frozen
//	FROZEN --- CREDIT ----------------------------> no row: clearing -> available
//	  |                                                CREDITED, or REFUSED
//	  |                                             row: say the row again
//	  |  <------------------------------- ANSWER ---
//	  |  CREDITED: frozen -> clearing, SETTLED
//	  |  REFUSED, CANCELLED: frozen -> available, REVERSED
//	  |
//	  | user or deadline
//	  v
//	CANCELLING --- CANCEL ------------------------> no row: CANCELLED, a tombstone
//	     ends as above: the destination's row decides
//
// Without the money, or over a limit: REJECTED, which sends nothing (Try keeps the
// row, Start leaves no trace).
//
// The first insert at the destination wins, for ever; the source only ever
// learns what it was.
// An order's payment to a seller is a transfer of kind order: it can't be
// cancelled and is never refused; what can't be credited goes to suspense.
//
// # Refund
//
// A refund (GiveBack) is a transfer of kind refund from the payee to the payer that
// points at the old one. The payee's row of that (cell.credits) counts what was
// given back, under its lock and in the transaction that freezes, and can't count
// more than came. What comes to nothing is taken off again. The payer's row counts
// what came back: a refund that it never sent the money for is parked. The money
// comes from where it is, the balance or suspense. An operator's reversal is a
// refund of all that is left, and what the payee hasn't got is owed: recovery. Only
// an operator can ask it back, neither the payee nor its deadline.
//
// # Operators
//
// A Job (retry, cancel, reverse) is a row in the cell that has the slot, and is done
// by the service that handles transfers (Worker), with its end in the transaction of
// its effect. Retrying also has what is parked handled again (bus.Unpark). None of
// them moves money by itself. ListStuck and ListParked show what waits for a person,
// SentHistory and ReceivedHistory what either side remembers.
//
// # What can go wrong
//
//	what                                   then
//	message lost, doubled, late, reordered the row at the destination is said again
//	CANCEL before CREDIT                   tombstone; the late CREDIT finds it
//	deadline passed                        CANCELLING: asks, never gives money back by itself
//	same id with other fields              parked with an alarm, nothing is posted
//	answer against the stored end          parked with an alarm, nothing is posted
//	payee unknown, closed, or at the       REFUSED (kind order: suspense)
//	balance limit
//	100 refunds at once                    what came is given back, and not a unit more
//	a refund refused, or asked back        REVERSED, and may be made anew
//	a reversal of what was spent           the payee owes it
//	a reason to be parked was mended       a retry handles it; if not, it stays parked
//	killed in the middle of a job          done once: its effect has its end
//	destination away                       FROZEN or CANCELLING; Stuck lists it with age,
//	                                       attempts and the last answer
package transfer
