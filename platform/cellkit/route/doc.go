// Package route gets the route table into a process and keeps it new.
//
//	            ┌ newest sound snapshot in ROUTE_DIR   once, before serving
//	            │     none: Spread of CELLS, version 0
//	Holder ◄────┼ the agent's GET /route?after=V       at once, then each 5 s
//	 (L1)       └ NATS subject route.table             when a table is published
//
// Each process has one Follower for one routing.Holder: Open fills the holder
// at once, Run keeps it new. Readers only ever load the holder. Whatever the way
// in, a table counts only with control's signature, and never when it's older
// than the one held. Beside the table the follower knows which links of the own
// cell are up (Links), for those who must not wait for a dead one.
//
// What can go wrong, and what happens then:
//
//	snapshot cut short or flipped   the next older one of the three kept
//	no snapshot, agent down         Spread; the fence refuses what it has wrong
//	agent down, NATS down           the held table stays for ever; Status has its age
//	push lost                       the poll brings the table at most 5 s later
//	table with another signature    refused, logged once until it gets better
//	link states not heard for 3 s   Links says unknown
package route
