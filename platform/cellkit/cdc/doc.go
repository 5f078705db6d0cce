// Package cdc is the change stream of a zone: a relay in the zone's agent decodes
// the database's WAL and publishes committed transactions, and a follower in
// whoever wants them (a sink) takes them in order and knows when one is missing.
//
//	Postgres ── WAL ──> slot ──> Relay ──> stream CDC_<sink> ──> Follower ──> Apply
//	   ^                           |       in the zone's NATS        |        rows and position
//	   └── confirmed: only what ───┘                                 |        in one commit
//	       the stream acknowledged          cdc.copy.<sink> <────────┘
//	                                        "I miss something: copy again"
//
// A message is a transaction, in chunks when it is large. It names the position
// before it on this stream, so a follower sees each gap: the position is the
// commit's end in the WAL, within one incarnation of the database. What a
// follower has already seen comes again after a crash, and is dropped.
//
// A copy runs beside the stream, through it: a temporary slot gives the position
// that its snapshot is of, each row carries that position, and the later one
// wins. It is asked for by the follower, and only then made: at its first start,
// after a gap, after a declared resync.
//
// The slot's existence is stored (cdc.slot) before the slot is made. One that
// was made and is gone means that changes were lost: that is stored, said in the
// log and on the stream (kind resync), and only then a new one is made. Nothing
// starts "from now".
//
// The server's keepalives move nothing: their position may be ahead of what was
// published. An idle database gets a heartbeat every few seconds, a transaction
// of one logical message: it proves the whole way, and lets the WAL go.
//
// # What can go wrong
//
//	what                         then
//	relay killed anywhere        goes on at what Postgres was told; duplicates are dropped
//	NATS down, stream full       nothing is confirmed, Postgres keeps the WAL; the server's
//	                             max_slot_wal_keep_size bounds that, then the slot is lost
//	stream deleted, rolled back  made again; the follower sees the gap, and asks for a copy
//	slot dropped or invalid      declared: cdc.slot, resync on the stream, copy
//	database restored, promoted  another incarnation: the follower asks for a copy
//	TRUNCATE of a followed table resync, copy
//	relay killed while copying   the copy is a row (cdc.copies); it begins again
//	follower killed              what it had not stored is still in the stream
//	slot active, but silent      no heartbeat comes through: connects again
package cdc
