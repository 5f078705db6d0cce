// Package id has the layout of every ID, its form for people (order numbers),
// and the client that hands IDs out of leased segments without a lock.
//
//	 62     61                        14 13            0
//	+------+----------------------------+---------------+
//	| mode | sequence, 48               | slot, 14      |    sign bit 0
//	+------+----------------------------+---------------+
//	 0 leased segment, 1 fallback         owner's slot
//
// An ID knows its home: the low 14 bits are the slot of its owner. Never sort,
// page or poll by ID; its order is not commit order.
//
// # Client
//
// Sequences are leased from idgen in segments [lo, hi), one chain per kind:
//
//	callers --Next--> [ current ] --used up--> [ next ]
//	                      | half of the last segment is used
//	                      v
//	                   refill: one goroutine, one lease in flight per kind
//
// Next is one atomic add. It never takes a lock, allocates, or waits for the
// network. While idgen gives nothing the chain is fed by the cell's bank; used up,
// the fallback serves: numbers of one of the cell's machines, held in a chain of
// their own. A caller that finds all of it used up is told IDS_EXHAUSTED.
//
//	what goes wrong               what happens
//	idgen slow                    callers use the second half meanwhile
//	idgen away                    retried with backoff until it is back; the stock lasts
//	                              about half an hour, then bank, then fallback (alarm
//	                              ids.fallback), then IDS_EXHAUSTED, Retry-After 1 s
//	lease times out, unknown      that range is forgotten, another is asked for
//	answer twice, old, too long,  put aside for good, alarm in the log (alarm=ids.grant),
//	far from the own clock        shown, asked again
//	own clock steps               IDs do not depend on it: no effect under a day; further
//	                              off, grants are dropped until the clocks agree
//	process ends, crashes         the rest of its segments is never used, by anyone
//	two clients in a process      each leases for itself: no duplicates, more waste
//
// Numbers writes IDs as order numbers: see its comment.
package id
