// Package bus carries messages between slots: at least once over the wire,
// exactly once in effect. Cells only pull (R4), NATS is disposable (R6).
//
//	source cell                                     destination cell
//	-----------                                     ----------------
//	business tx: rows + outbox row (+ relay note)
//	agent: Dispatcher reads due notes
//	   not early: held until Commit says that
//	   the slot's standby has it (P4)
//	   destination cell from the table, now
//	   publish x.<cell>.<service>.<kind>
//	   to stream XOUT_<cell> of its own NATS
//	                            <--- link --- service: Consumer pulls
//	                                           one tx: enter(slot), inbox row,
//	                                           effect, reply's outbox row
//	                                           ack
//	service: Consumer of XOUT_<source> there  ---> reply comes the same way
//	   one tx: enter(slot), effect, outbox row closed
//
// A message's id is its kind and business key, so one request can't be written
// twice in a slot. A request stays open, and is sent again (2 s, doubling, up to
// 30 s; a new NATS message id each time), until its final reply is in. A reply is
// never open: when the request comes again, it is made again from the inbox.
//
// # Several in one transaction
//
// Messages of a kind that has a ManyHandler are handled together when several wait:
// as many as have come while others were handled, up to Batch, each in its own slot
// (pg.InSlots), with set-based statements. Nothing depends on it: only the usual case
// is done so, and whatever isn't it, or comes in the way, leaves no trace and is
// handled alone.
//
// # What can go wrong
//
//	what                                  then
//	killed between commit and publish     the note is still due: published later
//	claimed again while it is held        one message; the later claim is settled
//	the slot goes while it is held        it isn't sent; its new owner does
//	the slot's standby changes meanwhile  it waits for the new one
//	thousands wait for one standby        no more of its slots' are held: they stay due
//	a reply to a request that left early  acknowledged: the request was lost with its
//	and isn't here                        cell, and nothing final came of it
//	one of several fails                   all are undone, and handled each alone
//	one of several isn't the usual case,   it is handled alone, the others together
//	was handled already, its slot has
//	moved or is locked
//	several wait for one locked row        200 ms, then all are undone
//	queued for too long, or at the end     left to the server's next copy
//	stream, consumer or store gone        made again; open requests are sent again
//	stream full (DiscardNew)              the note stays due, with backoff
//	message twice, or late                the inbox answers with the first reply
//	same id, other kind or body           parked with an alarm, no reply
//	slot moved                            the receiver sends it on to the owner, up to
//	                                      4 hops, then acks; lost there: sent again
//	own database down, or lease over      nothing is pulled until it takes writes
//	handler fails for a passing reason    negative ack with delay, 0.1 s to 15 s; after
//	                                      some tries left to the source's next copy
//	handler gives up (Park)               parked with an alarm, acked; copies too
//	handler fails 20 times                parked with an alarm, acked; a later copy
//	                                      that succeeds resolves it
//	not a message                         parked in the cell's own slot
//	consumer silent with messages pending watchdog makes it again
//	database's clock jumps                a due time too far off counts as due
//	link down                             nothing is lost, it waits in the stream
package bus
