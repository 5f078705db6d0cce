// Package route gets the route table into a process and keeps it new.
//
//	            ┌ newest sound snapshot in ROUTE_DIR   once, before serving
//	            ├ the cell's Redis (L2)                once before serving, then each 5 s
//	            │     neither: Spread of CELLS, version 0
//	Holder ◄────┼ the agent's GET /route?after=V (L3)  at once, when Redis has nothing, each 30 s
//	 (L1)       └ NATS subject route.table             when a table is published, and
//	   │                                               again while somebody is behind
//	   └──► NATS subject route.ack: {process, version}   at each change and each 5 s
//
//	agent: Cache.Sync ──► Redis route:table, route:version, never back in version
//	       Acks ◄── route.ack, GET /route?process=...
//
// Each process has one Follower for one routing.Holder: Open fills the holder
// at once, Run keeps it new. Readers only ever load the holder. Whatever the way
// in, a table counts only with control's signature, and never when it's older
// than the one held. Beside the table the follower knows which links of the own
// cell are up (Links), for those who must not wait for a dead one.
//
// The metrics cellmart_route_reads_total and _read_seconds say which level
// answered a check and how quickly, cellmart_route_lookup_seconds what a lookup
// costs in the process, cellmart_route_refused_total what was not taken and why.
//
// What can go wrong, and what happens then:
//
//	snapshot cut short or flipped   the next older one of the three kept
//	snapshot older than Redis has   Redis counts, before the first request
//	Redis down, slow, flushed       the agent is asked instead; Open waits 0.2 s at most
//	Redis rolled back, or lies      refused and counted; the agent writes it anew within 5 s
//	no snapshot, all else down      Spread; the fence refuses what it has wrong
//	agent, NATS and Redis down      the held table stays for ever; Status has its age
//	push lost                       pushed again each second while the ack is missing,
//	                                and the check brings the table at most 5 s later
//	table with another signature    refused, counted, logged once until it gets better
//	process silent                  listed by its agent with its age for 10 min, pushed to for 15 s
//	link states not heard for 3 s   Links says unknown
package route
