// Package idgen leases ranges of sequences, the middle 48 bits of every ID, so
// that none is given twice: not after a crash, a restore, a promotion, a clock
// that steps. It runs in the global zone on a Postgres server of its own. No
// request ever waits for it: each process holds about half an hour of stock
// (cellkit/id), and asks through its agent's link.
//
//	POST /leases  {kind, floor, size} -> {lo, hi}     GET /status
//
//	BEGIN                                              one transaction, two trips
//	  lock the kind's row; read the database's incarnation
//	  another incarnation, or no row?  -> store it, pause 65 s
//	  lo = max(row's hi, caller's floor, 100 x ms since 2026)   ---- time floor
//	  hi = min(lo + size,                100 x (ms + 60 s))     ---- budget
//	  row.hi = hi; journal [lo, hi)
//	COMMIT                                             only a clean one counts
//
// Floor and budget together are the proof: all that was ever leased lies below
// 100 x (now + 60 s), and once the clock has moved on by 60 s the floor is above
// it. So a database that lost any part of its history is safe after a pause, and
// idgen always sees that it may have: its incarnation (system identifier, WAL
// timeline, start of the postmaster) differs. The pause is stored with the new
// incarnation, so a restart of idgen doesn't shorten it.
//
// Tables (schema idgen): kinds, one row each; journal, every lease, with an
// exclusion constraint on ranges. A trigger refuses to lower hi.
//
//	what goes wrong                  what happens
//	crash, lost answer, time-out     a range nobody uses; never given again
//	database away                    503 UNAVAILABLE; stocks last about 30 min
//	database restarted, restored,    503 IDGEN_PAUSED for 65 s, then above all that was
//	promoted, rolled back            leased; the log names both incarnations
//	row missing                      the same, from the journal's end up
//	rows of a database never used    written by Setup: no pause. Don't set up a new
//	                                 database within 65 s of losing one
//	clock steps back up to 60 s      the budget is smaller, nothing else
//	clock further back, or behind    503 IDGEN_CLOCK, alarm=ids.clock, until the clock is
//	the caller's floor               within 60 s of hi again
//	clock up to a day ahead          leases go on from there; when it is put right, as above
//	more than a day ahead of the     503 IDGEN_CLOCK, alarm: one lease would use up the
//	caller's or database's           time until then
//	demand above 100,000/s per kind  leases cut short, then 503 IDGEN_BUDGET for moments
//	hi tampered with                 500 IDGEN_OVERLAP, alarm=ids.overlap: trigger and
//	                                 exclusion constraint hold
package idgen
