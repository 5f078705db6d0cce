// Package order owns carts and orders, in their buyer's slot.
//
//	POST /orders: one transaction in the buyer's slot
//	order PENDING + lines (prices, titles, address as they are) + record of the
//	Idempotency-Key + RESERVE to each seller's home
//	   |
//	   |  all reserved: one transaction          refused, too little money, the
//	   |  freeze + CONFIRM to all                buyer, the deadline (15 min)
//	   v                                            |
//	RESERVED -------------------------------------> CANCELLED + RELEASE to all
//	   |        the buyer, an ended hold:           ^ lines and holds are kept
//	   |  all   unfreeze ---------------------------'
//	   |  confirmed: one transaction
//	   v
//	PAID + a CREDIT to each seller (package transfer); from here nothing cancels
//
// The state machine is order.go, without any I/O. The sellers' answers
// (inventoryapi) come as replies, in any order and late; an order is all or
// nothing over its sellers. A buyer may cancel while CONFIRMs are out: RELEASE
// gives a confirmed hold back too, and the order can't be paid any more.
//
// A request waits up to 300 ms for the decision, not at all when a seller's cell
// is known to be away, then answers 202. Everything after that goes on without it.
//
// Locks: the outbox row of the request that is answered, the order, the cart, the
// wallet; never the other way round. So nothing here closes a request: what is
// still open gets its answer, which a cancelled order ignores.
//
// # What can go wrong
//
//	what                                     then
//	a seller's cell is away                  PENDING, 202; its RESERVE is sent until answered
//	it stays away past the deadline          CANCELLED, TIMED_OUT; RELEASE waits for it
//	a hold ends before its CONFIRM           CANCELLED, HOLD_ENDED, money unfrozen
//	killed anywhere                          what was committed goes on: the outbox is in it
//	answer twice, late, or after the end     nothing changes
//	answer to what nobody asked              parked with an alarm
//	same Idempotency-Key                     same answer; in flight 409, other body 422
//	two tabs order one cart                  the second gets 409, or the cart has changed
//	declined                                 the cart is as it was
//	catalog down                             placing and adding to the cart: 503; the cart
//	                                         is shown without prices
//	idgen down                               IDs last for a while, then placing: 503
//	database down                            503; known keys answer the same afterwards
package order
