// Package pg is the cell's database: the fence that every write passes, the
// roles, the migrations, and the record behind Idempotency-Key.
//
// # Write (P1)
//
//	InSlot(route, fn)
//	   |  BEGIN; SELECT cell.enter(slot, epoch, user)     one trip
//	   |     shared advisory lock on the slot
//	   |     then, as its own statement: owner? epoch? active? lease > 3 s?
//	   |  fn(tx)     each write: policy and trigger compare slot with the one
//	   |             entered, and raise
//	   |  SELECT cell.leave(); COMMIT; SELECT cell.committed()     one trip
//	   v
//	AfterCommit hooks
//
// A unit table is made by cell.unit_table('schema.table') in a migration: it
// must have slot, epoch and rev, and keys that start with slot; epoch and rev are
// set by trigger. The application's role can't delete, and can't enter by writing
// the settings itself: enter seals them.
//
// # Roles
//
//	cellmart_migrate  owns the schemas, runs migrations
//	cellmart_app      the services: reads, writes unit rows of the slot entered
//	cellmart_agent    the agent: lease, route table, relay notes, reads all, decodes the WAL
//	cellmart_applier  standby copies: writes rows of slots that this cell stands by for, an
//	                  owner's never; its session fires no triggers but must_enter
//
// # What can go wrong
//
//	code    what                                  becomes
//	SL001   slot has another owner                421 with owner and epoch
//	SL002   other epoch                           421 with owner and epoch
//	SL003   draining, or given away               421 (draining: 503, it will pass)
//	SL004   less than the margin of lease left    503 LEASE_OVER, nothing was written
//	SL005   a write without enter, or under
//	        settings made by hand                 500: a bug
//	SL006   a second slot in one transaction      500: a bug
//	SL007   not READ COMMITTED                    500: a bug
//	SL008   the user was moved alone              421 with the private slot's owner
//	SL009   lease over around COMMIT              503 OUTCOME_UNKNOWN
//	SL010   the database is another cell's        no connection
//	-       connection or server lost in COMMIT   503 OUTCOME_UNKNOWN: ask again, same key
//	-       connection lost before, no database   503 UNAVAILABLE, nothing was written
//	40001, 40P01                                  tried again up to 3 times, then 503
package pg
