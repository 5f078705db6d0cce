// Package control owns the route table: which versions there are, and the key
// that signs them. It runs in the global zone and is never on a request's path:
// agents fetch from it, cells start and run for ever without it.
//
//	operator, set-up ──POST /route/init, /route/publish──┐
//	                                                     ▼
//	    lock ► newest ► change ► CheckNext ► sign ► INSERT v+1 ► COMMIT
//	                                                     │
//	agents ◄──GET /route?after=V&wait=25s── newest ◄─────┘ (and a look each second)
//
// Publishing is compare-and-swap on the version: the caller names the version
// that its change starts from, and v+1 is stored only if v is still the newest.
// A table is either stored whole or not at all, so there is no state in between
// to resume: a control killed at any step leaves v or v+1, and the next publish
// goes on from what is stored. Storing comes first; handing out follows, and
// whoever missed it asks again.
//
// Each agent reports who in its zone holds which table (POST /route/acks); GET
// /route/acks shows it, and waits for a version if asked to. That is kept in
// memory only: after a start nothing is known, and said so, until agents report
// again within 5 s.
//
// # Standbys
//
// The first table spreads the slots' standbys evenly over all other cells. Later
// they change by exchange, without a gap: a stored job in parts (owner, target),
// each of which one second's look carries a step on:
//
//	PLANNED ──owner: target is incoming──► COPYING ──target: all in sync, and past
//	   │ cancel                               │        the owner's word──► SWITCHED
//	   └────────► CANCELLING ◄────────────────┘        (in the transaction of the table)
//	   owner lets go │                                      │ owner has the table
//	                 ▼                                      ▼
//	             CANCELLED                                 DONE
//
// Each step may be done twice; a control killed at any line goes on from the rows.
// The owner is asked once more when the target is in sync: what it has sent by then,
// the target must have applied (P4.2).
// Slots that get another owner meanwhile are left out. Control reaches the cells'
// agents over the global zone's link, with the operator's key.
//
// # Marks
//
// POST /marks: an owner says that it has sent something on that a slot's standby may
// not have, and later that this is over. Nobody is to be promoted on such a copy
// (cellkit/outputcommit). Kept here until the cells' leases carry them.
//
// Owns the tables control.route_versions (append only), control.exchanges,
// control.exchange_parts and control.marks.
//
// What can go wrong, and what happens then:
//
//	killed before COMMIT           nothing happened, v is still the newest
//	killed after COMMIT            v+1 is served after the restart; the caller asks
//	answer to COMMIT lost          503 OUTCOME_UNKNOWN; asking again gives 409 with v+1
//	two publish at once            one 409 ROUTE_VERSION_CONFLICT with the current version
//	table that loses or reuses     422 ROUTE_TABLE_REFUSED, says what
//	owner or target doesn't answer the exchange says so with its age, and asks again;
//	                               what isn't switched can be cancelled
//	Postgres down                  the newest table in memory is still served; writes 503
//	Postgres down at start         503 until it's there
//	stored table signed otherwise  not served, logged; the key in PKI_DIR is the wrong one
package control
