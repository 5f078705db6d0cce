// Package cleanup takes the rows out of a cell's database that are the cell's no
// more: those of slots that it stood by for, and doesn't any longer (P6).
//
//	role of a slot changes ──trigger──► cell.cleanup (slot, state, since)
//	                                      │ open: it was stood by for
//	                                      │ held: it was owned, and taken: nobody touches it
//	          every 5 s: anything open? ──┤
//	                                      ▼
//	as cellmart_applier: cell.clean_up(1000) ── per slot: shared lock, role, delete
//	          a pause, longer than the batch took          │
//	                                                       └─► off the list when no row is left
//
// Only slots on the list are cleaned up. Rows in the wrong place that no change of
// a role explains are a violation of I2, and stay to be seen.
//
// # What can go wrong
//
//	what                              then
//	killed in the middle of a batch   nothing of it happened; the list has the slot
//	killed between batches            the next start goes on
//	the slot becomes a standby again  that takes the exclusive lock: it waits for the batch,
//	                                  takes the slot off the list, and its copy is taken anew
//	it becomes an owner's             the same; the policies would refuse a delete too
//	two agents                        one has the origin, the other tries again
//	no AGENT_APPLIER_DSN              nothing is cleaned up; after a minute I2 says so
//	deletes in the WAL                they have an origin: the relay doesn't tell them on
package cleanup
