// Package call is how a service asks another one of its own cell over HTTP, and
// the words both sides use: the route a request is about, the internal headers,
// the error body.
//
//	gateway --route headers--> service A --call.Client--> service B
//	                           same cell, same route, less time, same request id
//
// A call without a route, for a route of another cell, or to another cell is a
// bug that would couple cells; it's refused here and never sent (design rule
// R4, code CELL_ROUTING_VIOLATION). The control plane's own calls (ID leases,
// route tables, agents) are Background: those may cross, through the agents'
// links, and are refused where a request would wait for them (rule R7).
//
//	what goes wrong               what the caller gets
//	no connection, link down      Unavailable (a GET was tried twice)
//	answer lost after sending     OUTCOME_UNKNOWN, for a GET Unavailable
//	time over                     the same; the limit is below the caller's own
//	problem+json answer           the same *errs.Error that the other side gave
//	any other answer              Unavailable for 5xx, Internal for the rest
package call
