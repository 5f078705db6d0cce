// Package inventory owns stock: for each SKU, at its seller's slot, how many
// units were stocked and how many of them are free, held and sold.
//
//	stocked = free + held + sold, none below zero: checked by the database
//
//	            RESERVE                 CONFIRM
//	(no row) -----------------> HELD -------------> CONFIRMED
//	   |       free -> held      |   held -> sold        |
//	   |                         |                       | RELEASE, while the
//	   | RELEASE                 | RELEASE               | order isn't paid:
//	   | (tombstone)             | held -> free          | sold -> free
//	   v                         v                       v
//	RELEASED <----------------------------------------- RELEASED
//	                             | the owner's clock
//	                             v held -> free
//	                          EXPIRED
//
// A hold is the units of one order at one seller, all lines or none. It lives in
// the seller's slot and its order in the buyer's, so they speak by messages
// (inventoryapi), which come twice, late and in any order. Every end is kept. A
// CONFIRM of a hold without a row sells from what is free, or refuses.
//
// Locks: the hold (an advisory lock on its ID, since it may have no row yet),
// then the SKUs' rows by SKU. Nothing else is waited for meanwhile, so buyers of
// one SKU queue for the length of one short transaction.
//
// # What can go wrong
//
//	what                                       then
//	message twice                              the inbox answers, or the state machine does
//	RELEASE before RESERVE                     tombstone; the RESERVE is refused
//	RELEASE before CONFIRM                     RELEASED; the CONFIRM gets stock.ended
//	hold past its time, CONFIRM comes first    CONFIRMED: only the stored state counts
//	hold past its time, sweeper comes first    EXPIRED; the CONFIRM gets stock.ended
//	same hold, other order or lines            parked with an alarm
//	buyer's cell gone                          the hold expires by itself
//	database down                              nothing is acknowledged; messages wait
//	catalog down                               a SKU can't get its first stock: 503
package inventory
