// Package cdc is the change streams of a zone: a relay in the zone's agent decodes
// the database's WAL once and publishes committed transactions to a stream for each
// sink (search, each cell that stands by); a follower in the sink takes them in
// order and knows when one is missing.
//
//	Postgres -- WAL --> slot --> Relay --+--> CDC_search --------> Follower --> Apply
//	   ^                         |  |    +--> CDC_standby_c2 --->  Follower --> Apply
//	   |                         |  |    +--> CDC_standby_c3 ...      |    rows and position
//	   |      slot map, as ------+  |         in the zone's NATS      |    in one commit
//	   |      decoded (cdc.maps)    |                                 |
//	   +-- confirmed: the last -----+ <--- cdc.stored.<sink> ---------+  "I have this"
//	       heartbeat that every       <--- cdc.resend.<sink> ---------+  "something is missing"
//	       attached sink has stored   <--- cdc.copy.<sink> -----------+  "copy, all or some slots"
//
// A message is a transaction, in chunks when it is large. It names the position
// before it on its stream, so a follower sees each gap: the position is the
// commit's end in the WAL, within one incarnation of the database. Several of them
// travel in one bundle (Encode). A session begins again at what is confirmed, on
// every stream; what a sink has already is dropped there, and what a stream is
// known to have isn't sent.
//
// Which sink gets a row follows cell.slots as decoded at that place of the WAL: a
// row goes to the slot's standby and to its incoming cell. That map is stored with
// its position before anything behind it is confirmed, as far back as a crash of
// the server may lead (its restart_lsn). A row of cell.slots goes to whom it
// concerns or did.
//
// A copy runs beside the stream, through it: a temporary slot gives the position
// that its snapshot is of, each row carries that position, and the later one wins.
// It begins in the stream before its snapshot is taken, is only made when it is
// asked for, and waits for the sink to make room.
//
// The slot's existence is stored (cdc.slot) before the slot is made. One that was
// made and is gone means that changes were lost: that is stored, said in the log
// and on every stream (kind resync), and only then a new one is made. Nothing
// starts "from now". A sink counts from its first question for a copy; one that
// keeps too much is detached, alone (cdc.sinks), and copies when it is back.
//
// The server's keepalives move nothing: their position may be ahead of what was
// published. Every stream gets a heartbeat every few seconds, a transaction of one
// logical message: it proves the whole way, and lets the WAL go.
//
// # What can go wrong
//
//	what                         then
//	relay killed anywhere        goes on at what Postgres was told; duplicates are dropped
//	NATS down                    nothing is confirmed, Postgres keeps the WAL
//	one stream full              it alone pauses; goes on from the WAL when there is room; detached
//	                             when its sink stores nothing for 10 s
//	a transaction like a stream  waits in it for the sink's room, and all with it; no longer than
//	                             10 s for one that takes nothing
//	a sink keeps 80 % of MaxWAL  detached alone: its stream is emptied and says why, then it copies
//	stream deleted, rolled back  sent again from the WAL, no copy
//	slot dropped or invalid      declared: cdc.slot, resync on each stream, copies
//	no map for the position      the same: who gets what can't be told
//	database restored, promoted  another incarnation: the followers ask for copies
//	TRUNCATE of a followed table refused at the source; decoded anyway: resync, copy
//	a table gets a column        a marker (kind schema) before the first such row
//	relay killed while copying   the copy is a row (cdc.copies); it begins again
//	follower killed              what it had not stored is still in the stream, or the WAL
//	slot active, but silent      nothing from the server for 12 heartbeats: connects again
package cdc
