// Package bank moves money between people of all cells while everything that can be
// is broken, and knows at the end what each of them must have: from the answers that
// they got, to the unit.
//
//	a seed ──► steps: transfer 55 %, read 15, refund 10, cancel 10, deposit 5, withdraw 5
//	              │ any gateway, again under the same Idempotency-Key until it's known
//	              ▼
//	           book: what was asked, what was answered     cells ◄── faults, two at a time
//	              │                                          │   kill -9, stores, streams, Redis, promotions
//	              │ at rest: asked again, ends read          │   links one way and both, clocks
//	              ▼                                          ▼
//	           every account, totals, every line of every statement, clearing = 0, I1..I9
//
// Reads hold what people see to I3 meanwhile, and the cells are asked for theirs.
//
// # Promotion
//
// Leases don't exist yet, so a promotion fences the owner in its own database, as
// only a test can; it refuses what is uncovered. The standby is cut off before: what
// the owner answers then is lost with it, and nobody may have acted on it.
//
//	link owner-standby cut ─► transfers to a third cell ─► fence ─► in sync, not marked?
//	    ─► table v+1 ─► standby promoted ─► link whole: the old owner copies anew
//
// Who was answered in that time asks again at the end, under the same key: the new
// owner repeats the answer, or does it for the first time. An answer that is another
// one, and was given before what the standby had last seen, is a violation.
//
// # What can go wrong
//
//	what                            then
//	a fault can't be mended         the run ends with an error, everything is undone once more
//	a slot isn't covered            it isn't promoted; others are tried, and counted
//	control doesn't answer          the fence stays until it's known whether the table is there
//	nothing was lost, or tried      the run fails: it has proved nothing
//	something can't be done here    left out, and named (faults_not_here)
package bank
