// Package reconcile compares both sides of all transfers, cell by cell, while
// money moves, and says exactly which transfers don't match.
//
//	Run (cellctl, a drill)            Reconciler.Run (each cell's agent, its own pairs)
//	        |    compare c1 -> c2, some hours         |
//	        v                                         v
//	    the payers' cell c1                      the payees' cell c2
//	    one snapshot:                            then one snapshot:
//	      SETTLED, REVERSED by hour,               CREDITED, REFUSED + CANCELLED by hour,
//	      currency: count, sum, xor   -- open -->  without those that are open in c1
//	      what is open                             count, sum, xor
//	        |                                         |
//	        +------ equal? almost always: done -------+
//	                          |
//	      not equal: the hour in 256 parts by ID, the rows of the parts that
//	      differ, and each of these transfers by itself: payer, payee, payer again
//
// A transfer counts in the hour of its beginning, which its CREDIT carries. What is
// open at the payer's when its snapshot is taken is in flight: it is left out on
// both sides. So the digests are equal while transfers come and go, and a cell that
// is compared with another sends it a few lines, not its rows.
//
// Digests only point. A difference is what the rows themselves say, read in an
// order that makes it certain: an end that the payer had before the payee was
// looked at, and a beginning that it doesn't have after. An open transfer that no
// message asks for any more is a difference too: it would stay open for ever.
//
// # What can go wrong
//
//	what                             then
//	the payees' cell can't be asked  not compared, with the reason; what is known grows old
//	a slot changes its cell          a row that isn't its owner's is no difference; compared next time
//	a promotion is on its way        no difference while the cells know the slots at different epochs;
//	                                 named as not compared, and what is known stays
//	begun a moment ago               not compared yet: its transaction may not have ended
//	begun before hours were carried  its hour may differ; by ID it doesn't
//	a clock set back                 what was begun "later" waits until the clock is there again
//	a window takes too long          half of it, down to an hour, and more again when that is easy
//	very many are open               not compared, and that is said; what is known stays, and grows old
//	very many differ                 so many are looked at (looked); the rest is counted
//	an agent starts anew             unknown, until it has looked
package reconcile
