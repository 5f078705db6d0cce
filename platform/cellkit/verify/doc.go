// Package verify compares standby copies with their owners' rows, while both go
// on working, and says exactly what differs.
//
//	     Run (cellctl, a drill, a move): asks both agents, for each owner and standby
//	      |                                     |
//	      | 2 lock: the slots' exclusive locks  | 1 hold: the applier stops before
//	      |   for one statement: snapshot,      |   its next commit of that owner's
//	      |   position L; unlock                |
//	      v                                     v 3 at L: it applies up to L, exactly;
//	owner's Server                       standby's Server   a snapshot; it goes on
//	      |                                     |
//	      +--- 4 digest of each table: count, sum, xor by slot ---+
//	                            |
//	        equal: done     not equal: rows by key, page by page, then their columns
//
// Nobody is inside a slot whose exclusive lock is held, so the owner's snapshot
// has exactly what committed up to L there. Both sides compute with the same
// functions (cell.digest and others, 0008_verify.sql), which set whatever a type's
// text depends on. A row's values never leave its cell: keys, epochs and hashes do.
//
// What is compared: slots that the owner has with a standby that says, in the very
// snapshot, that the copy is in sync at the owner's epoch. All else is named as
// not compared, and then the answer isn't "equal". Rows of slots that a cell
// neither owns nor stands by for are named too.
//
// # What can go wrong
//
//	what                            then
//	a writer stays in a slot        the lock isn't waited for longer than its bound: let go, tried
//	                                again, then with half of the slots; at last: not compared
//	agent stopped under the locks   they go by the statement that was sent with them
//	standby passed L already        held first, so it can't; should it: all of it again
//	standby lags                    waited for, a bounded time; then: not compared, with its state
//	no applier, link or cell down   not compared, with the reason
//	role or epoch changes           each snapshot has its own cell.slots: not compared
//	who asked is gone               snapshots are closed after a minute without a question
//	columns differ                  the table isn't compared, and that is said
//	many rows differ                so many are listed (Options.List); the rest is counted
//	repaired, but how               copied anew, and compared again: only that counts
package verify
