// Package drill breaks a part of a running demo under load and says with figures
// who noticed.
//
//	unplug    a cell's links are cut, windows in turn:  plugged | cut 2 s, unplugged | plugged | ...
//	db-down   a cell's Postgres is stopped, later started again
//	instance  one of two instances of a service is killed, again and again
//	soak      nothing is broken: ten minutes of load at the stated memory
//
//	route-push               tables are published while a cell is unplugged and another one's
//	                         broker is dead: all who can hold them in 30 s, the rest once it's back
//	control-down-cold-start  the global zone is dead, and a cell starts from its disks alone
//
//	idgen-restore            idgen's database is replaced by a copy from a minute ago, then by a
//	                         standby that missed the last seconds: no ID twice, nobody runs out
//	idgen-down               idgen is stopped for a minute: nobody notices
//	clock-back               the clock of a cell's processes goes back by an hour, and forward
//
//	cdc-slot-lost  a cell's replication slot is dropped: declared, copied anew, equal again
//	nats-lost      a cell's store of messages is deleted, then goes back 30 s: nothing lost,
//	               nothing twice, nothing copied
//	standby-away   a cell is cut off until its standby is detached, alone; plugged in, equal
//
// These three end in comparing every standby with its owner, row by row, and in
// finding every order that was placed. They look into the cells' databases, so
// they need local processes.
//
//	bank  money of people in all cells moves while processes, stores, streams, links, Redis,
//	      clocks and owners of slots fail: at rest everybody has what their answers come to (package bank)
//
// A drill passes when everything in its list of judgements holds; each figure that
// decides is in the report. What it broke is mended at the end, also after an
// error or an interrupt. Every drill has a sabotage, a real fault of the kind that
// it exists to find: with it, it must fail.
//
//	unplug    agent: c1's gateway goes out through c3's agent
//	          redis: c1's catalog is cached in c3's Redis
//	db-down   c1's Postgres is on the same machine as c2's, and stops with it
//	instance  there is no second instance
//	soak      c1's Redis is killed, and started again: nobody misses it
//
//	route-push               c1's gateway is frozen, and never takes a table
//	control-down-cold-start  c2's gateway goes out through the global zone's agent
//
//	idgen-restore            idgen is told that its database is the same as ever
//	idgen-down               c1's order service starts anew meanwhile, with no way to its agent
//	clock-back               c2's user service doesn't hear of the clock
//
//	cdc-slot-lost  a standby lacks some rows, as if changes had been skipped
//	nats-lost      the slot is dropped with the store: only copies can help
//	standby-away   nothing bounds what waits for the standby: it isn't detached
//
//	bank  early: no cell holds its outputs for its standbys
//	      twice: a credit is posted twice
//
// A shared Redis hurts nobody: it is asked for 50 ms at most, and rarely when it's
// gone. So unplug also looks at the border itself: who is connected where, or on
// which networks, with the cell plugged and unplugged. (Services and databases of
// another cell can't be shared by a wrong address: they refuse calls and
// connections of a cell that isn't theirs.)
package drill
