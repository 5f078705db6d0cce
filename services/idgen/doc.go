// Package idgen leases ranges of sequences, the middle 48 bits of every ID, so
// that none is given twice: not after a crash, a restore, a promotion, a clock
// that steps. It runs in the global zone on a Postgres server of its own. No
// request ever waits for it: each process holds about half an hour of stock
// (cellkit/id), and asks through its agent's link.
//
//	POST /leases  {kind, floor, size} -> {lo, hi, left, holders}     GET /status
//
//	requests of a kind --> [ queue ] --all that wait--> one transaction, one flush
//
//	BEGIN
//	  lock the kind's row; read the database's incarnation and clock
//	  another incarnation, or no row?  -> store it, pause 65 s
//	  for each that waits:
//	    lo = max(row's hi, caller's floor, 100 x ms since 2026)   ---- time floor
//	    hi = min(lo + size,                100 x (ms + 60 s))     ---- budget
//	  row.hi = hi; journal each [lo, hi)
//	COMMIT                                             only a clean one counts
//
// When nobody else wrote since the own last transaction, that is one trip: it is
// decided beforehand, and stored only if the row, the incarnation and the clock are
// as expected. Several instances share a database: the row lock and that condition
// put them in order.
//
// Floor and budget together are the proof: all that was ever leased lies below
// 100 x (now + 60 s), and once the clock has moved on by 60 s the floor is above
// it. So a database that lost any part of its history is safe after a pause, and
// idgen always sees that it may have: its incarnation (system identifier, WAL
// timeline, start of the postmaster) differs. The pause is stored with the new
// incarnation, so a restart of idgen doesn't shorten it. The floor and a pause's
// beginning go by the later of idgen's and the database's clock, the budget and a
// pause's end by the earlier one: instances need not agree on the time.
//
// left and holders are what callers make their next step of: the budget after the
// lease, and how many leased of the kind within an hour, those of other instances
// by the journal. When those who wait want more than is left, each gets its share;
// when nothing is left the next ten milliseconds are waited for, up to 1.5 s.
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
//	clock further than 60 s from     503 IDGEN_CLOCK, alarm, until they agree: no range is
//	the database's, either way       under both limits
//	both clocks ahead, up to a day   leases go on from there; when they are put right, as above
//	more than a day ahead of the     503 IDGEN_CLOCK, alarm: one lease would use up the
//	caller's                         time until then
//	an instance dies                 the others go on; what it had not answered is nobody's
//	demand above 100,000/s per kind  leases cut short, waits of some ms; 503 IDGEN_BUDGET only
//	                                 after 1.5 s with nothing
//	hi tampered with                 500 IDGEN_OVERLAP, alarm=ids.overlap: trigger and
//	                                 exclusion constraint hold
package idgen
