// Package model is the money protocol without databases: every state that a few
// cells, slots and messages can be in, looked at one by one. No binary has it.
//
//	world: start, moves, broken, rests      explore: breadth first, every state once
//	  |                                       |
//	  | all rules on -----------------------> nothing is broken, from everywhere an end can be reached
//	  | one rule off -----------------------> the violation it is there for, and the shortest way to it
//
//	      slot                                        streams
//	owner's database --- commits, in order ---> standby's, incoming cell's
//	   | outputs: held until it has them,         | each applies a commit, later or never
//	   |          or marked after 2 s             v
//	   +----------> messages: they come late, twice, in any order, never
//	failover: whoever the table names is promoted with what it has; the tail is lost
//
// A message that was sent is in the state as long as its streams are, so each order,
// double and loss is among the moves. A free move (a fault, a wish) may never
// happen; "stuck for ever" is a state from which the others lead to no end.
//
// The source's and the destination's decisions of a transfer are the real
// ones (transfer.Next, transfer.Judge); orders, holds and claims follow
// services/order, services/inventory and services/user in short.
//
// # Worlds
//
//	transfers  1 to 3 of one unit between two slots, cancelled, refused, refunded; an order's payment
//	exchanges  the same while the payer's or the payee's standby is exchanged
//	orders     one or two for one unit, one at two sellers; holds that end by themselves
//	claims     two users for one phone
//	voters     2 to 4, leases, promises, marks, a failover that is given up, tables of others
//
// testdata/found.txt has the states and moves of every run, and the depth of what
// was found. The same states are found each time.
//
// # Rules, each of which is missed
//
//	P4.1  requests held, refusals held, tombstones held, CANCEL held, CONFIRM held,
//	      CONFIRMED held, ENDED held, RELEASED held, restock held, the order's CREDIT held,
//	      the claim's CONFIRM held, the user's slot's word held
//	P5    replies held, the grant held
//	P4.2  only who is in sync is promoted, both gate in an exchange, both gate from the start,
//	      the old one gates until the table
//	P4.3  marked, then sent on; a marked slot isn't failed over; a mark stays until all is passed;
//	      a mark is on disk before the grant; only grants count; the highest counter's marks
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
//	P2    K + F > N, a promise when the grant is L old, a voter that restarts waits L,
//	      a promise is on disk, until the cell asks with a newer table,
//	      failover publishes v+1 over v, giving up publishes too
//
// # What the model says beyond them
//
//	an early RELEASE doesn't restock  P4.1 lets the RELEASE of a hold leave early when no CONFIRM was
//	                                  written. A failover may lose that CANCELLED, the new owner goes on
//	                                  to PAID, and then the RELEASE comes: so it is held, or it must
//	                                  not end a hold that is CONFIRMED. Both are clean.
//	both gate from the start          an incoming cell that gates only once its owner has heard that it is
//	                                  in sync may be published before
//	TAKEN held                        P4.1 holds it, nothing is broken without
//
// # Bounds
//
//	one unit per transfer and seller, 1 or 2 failovers of a slot, at most 3 commits behind,
//	3 rounds, 3 tables. A mark is one step but in the world of voters, a copy too: how a
//	copy converges is cdc's and standby's own test. Time is any order of moves.
package model
