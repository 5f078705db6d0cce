// Package standby keeps this cell's copies of what other cells own: one applier
// per source takes the source's changes (package cdc) into the same tables, so
// that a slot can be promoted as it stands.
//
//	CDC_standby_<cell>              one transaction, up to 8,000 of the source's
//	in the source's NATS   ┌──────────────────────────────────────────────────┐
//	   │                   │ cell.enter_applier: shared lock on each slot,    │
//	   └──> cdc.Follower ──│   ascending; then role, owner and epoch          │
//	            ^          │ rows, a table at a time: the larger (epoch, rev) │
//	            │          │ what became of copies: cell.standby_slots        │
//	   "copy these slots"  │ the position: cell.watermarks                    │
//	            │          └──────────────────────────────────────────────────┘
//	   look: slots that cell.slots says are to be here, and aren't: each second
//	   while there are any, else each five seconds and after a batch that made some
//
// The applier's session fires no triggers (the rows are stamped, the outbox is
// noted where it's owned) and has a replication origin, so that the cell's own
// relay doesn't tell on what was applied. It commits with synchronous_commit on:
// what Status reads from the database is safe, and others may rely on it.
//
// # One slot's copy
//
//	         copy begins            copy ended, and the stream is past
//	(none) ──────────────> copying ───────────────────────────────────> in_sync
//	   ^                      │  ^                                         │
//	   │ role lost            v  │ copy begins                             │
//	   └───────────────── stopped <────────────────────────────────────────┘
//	                          gap, row that can't be applied, epoch ahead
//
// It holds for one owner and epoch (cell.standing_by compares). From its begin on
// a copy is taken beside the stream. At a new epoch all rows of before go first:
// the old owner's tail that nobody else has would win otherwise. A copy covers a
// slot only if it brings the owner's own row of cell.slots, so an empty slot isn't
// mistaken for one that the owner doesn't send here. An update that leaves out a
// large value is applied over the version it was made from; when the copy brings
// that only later, it waits for the copy's end.
//
// A transaction that comes in chunks is kept (cell.standby_chunks) until its last
// one is there: memory is bounded, and nobody sees half of it.
//
// # What can go wrong
//
//	what                              then
//	applier killed                    the watermark is in the rows' commit: goes on there
//	commit's answer lost              the batch comes again, and what is there is left out
//	gap in the stream                 asked for again; else all slots leave in_sync, and a copy
//	row of an older epoch             dropped and counted
//	row of a newer epoch              that slot stops until the table is there, then a copy
//	row that can't be applied         that slot stops; its next copy replaces what is here
//	column or table not known here    the source stops and says so, until the migration
//	promotion, new table              takes the exclusive lock: the batch before it or after it
//	row of a slot owned here          dropped; the policies refuse it too
//	another cell's database           no connection (SL010)
package standby
