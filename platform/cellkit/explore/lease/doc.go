// Package lease is who may write a slot, as explicit states (package explore):
// voters that grant and promise, a database that went back, a slot that is given to
// another cell. What is built of it as yet is less: it says what has to hold.
//
//	cell --- round n: its table, its mark ---> N voters   K grants: a lease, and the mark is known
//	                                             |
//	control --- failover from table v ---------->|         F promises: the lease is over for good,
//	        <-- promises, with their marks ------+         and K + F > N of them know each mark
//	        --- table v + 1 ------------------------> cells: the standby owns, unless it is marked
//
//	owner a --- ... , given to b (its last row) ---> b owns when it applies that row;
//	                                                 the published table follows
//
// Time is any order of moves: "L has passed" at a voter ends every lease that it granted.
//
// # Rules, each of which is missed
//
//	P2.2  K + F > N
//	P2.3  the first round asks what voters have; F voters have to answer it; with the counter
//	      as it was found; a new incarnation after the return only
//	P2.4  a promise when the grant is L old, a voter that restarts waits L, a promise is on
//	      disk, until the cell asks with a newer table, failover publishes v+1 over v,
//	      giving up publishes too
//	P4.3  marked, then sent on; a marked slot isn't failed over; a mark stays until all is
//	      passed; a mark is on disk before the grant; only grants count; the highest counter's
//	      marks
//	P6    the table names the target first, nothing else touches the slot, a table counts above the
//	      local epoch, an equal epoch changes no owner, a failover asks for newer rows
//	      first, the giver takes back at epoch + 2, the table follows the hand-over
//
// # What the model says beyond them
//
//	with 3 voters all of them  P2.3 lets 2 of 3 answer the first round, so that one may be away: then a
//	                           database that went back can get a lease
//	both hold that table       nothing is found without, as long as a failover goes by control's own
//
// testdata/found.txt has the states and moves of every run.
package lease
