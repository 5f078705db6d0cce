// Package model is the money protocol as explicit states (package explore): slots with
// their copies, messages, failovers that lose a tail.
//
//	slot                                          streams
//	owner's database --- commits, in order -----> standby's, incoming cell's
//	   | outputs: held until these have them,       each applies a commit, later or never
//	   |          or marked after 2 s
//	   +-------------> messages: they come late, twice, in any order, or never
//
//	failover: whoever the table names is promoted with what it has, the tail is lost;
//	what was noted in the lost cell is gone, what is open is sent again
//
// A message that was sent is in the state as long as its streams are, so each order,
// double and loss is among the moves. What isn't held is sent in the commit's own
// move, as it may be there at once. A slot that can't be failed over any more has no
// copies in the model, and a mark is made when something is sent on: neither takes a
// state away in which something could break.
//
// The source's and the destination's decisions of a transfer are the real ones
// (transfer.Next, transfer.Judge); orders, holds and claims follow services/order,
// services/inventory and services/user in short. How voters keep a mark is in
// platform/cellkit/explore/lease; how a copy converges is cdc's and standby's own test.
//
// # Worlds
//
//	transfers  1 to 3 of one unit between two slots, cancelled, refused, refunded; an order's payment
//	exchanges  the same while the payer's or the payee's standby is exchanged
//	orders     one or two for one unit, one at two sellers; holds that end by themselves
//	claims     two users for one phone
//
// With up to 2 failovers of a slot and up to 3 commits lost by each. What is held
// against every state: I3, I4 (for each transfer by name, and the total), I5, I6, I7 over
// the slots' owners, and that an end can be reached without a further fault (I12).
// testdata/found.txt has the states and moves of every run.
//
// # Rules, each of which is missed
//
//	P4.1  requests held, refusals held, tombstones held, CANCEL held, CONFIRM held,
//	      CONFIRMED held, ENDED held, RELEASED held, restock held, the order's CREDIT held,
//	      the claim's CONFIRM held, the user's slot's word held
//	P5    replies held, the grant held
//	P4.2  only who is in sync is promoted, both gate in an exchange, the old one gates until the
//	      table; a place to pass, named after
//	P4.3  marked, then sent on; a marked slot isn't failed over; a mark stays until all is passed
//	P4.4  'relayed' is the cell's own note, a reply is made again
//	P4.5  open requests are sent again, every end is answered
//	P5    the first row wins, for ever; a CANCEL leaves a tombstone; a timeout only asks;
//	      an order's CREDIT isn't refused; refunds are capped at the credit
//	P5    CONFIRM, then CREDIT; PAID when all are CONFIRMED; nothing cancels after PAID;
//	      one refusal releases all; a hold's end is kept; an ended hold refuses;
//	      an unknown hold reserves again; holds nobody asks for end
//	P5    asked for, a tombstone; a claim never ends by time
//	P3    what is applied counts, the former owner takes all anew, a new standby takes all anew
//	P7    the tail isn't merged, the table says who owns
//
// # What the model says beyond them
//
//	an early RELEASE doesn't restock  P4.1 lets the RELEASE of a hold leave early when no CONFIRM was
//	                                  written. A failover may lose that CANCELLED, the new owner goes
//	                                  on to PAID, then the RELEASE comes and takes the stock. So it is
//	                                  held, or it must not end what is CONFIRMED; both are clean
//	both gate from the start          an incoming cell that gates only once its owner has heard that it
//	                                  is in sync may be published before. As built (worlds "asked") it
//	                                  gates what is sent while it is in sync, asked each time, and is
//	                                  published when it has passed a place that the owner named later:
//	                                  clean too
//	TAKEN held                        P4.1 holds it; nothing is broken without
package model
