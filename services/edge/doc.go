// Package edge stands for DNS and a load balancer in front of the cells. It
// belongs to no zone, keeps nothing, and knows nothing about people: it passes
// each request to the public face of some cell's gateway, and every gateway
// serves anyone.
//
//	client ──► edge ── X-Region, cookie `cell`, else in turn ──► cell's border ──► gateway
//	                    └─ health: GET /livez there each 250 ms, own certificate `edge`
//
// A cell is out within a second of its last sign of life: the link's own probes
// find a dead border, the health calls a dead gateway. An answer that comes bit by
// bit (text/event-stream) is passed on so; any other is held until it is whole.
//
//	what goes wrong                     what happens
//	nothing could be sent               the next healthy gateway, whatever the request
//	answer broke, a read or a user's    the next healthy gateway
//	write that has a key, PUT, DELETE
//	answer broke, another write         503 OUTCOME_UNKNOWN with the cell's name
//	503: can't reach the home, or       one more gateway, which may have a better link,
//	own database away, a read           or the same products
//	the same as a page for people       that page, if nobody has a better answer
//	no answer in 10 s                   503; it is not sent again
//	no gateway healthy                  503 NO_CELL
//	body over 64 kB                     413
//	link broken while the answer flows  the client's connection is broken
package edge
