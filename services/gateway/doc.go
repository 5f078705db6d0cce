// Package gateway is a cell's way in: any gateway serves any user. It has no
// store. It finds the slot that a request is about, sends the request to the
// cell that owns the slot, and passes the answer on.
//
//	people, edge ──► ADDR ──────┐
//	                            ├─► slot ─► owner ─┬─ own cell ──► user, order, inventory, catalog
//	other gateways ─► PEER_ADDR ┘                  └─ other ─ one hop ─► link ─► its PEER_ADDR
//	                                     POST /products ──► link ──► catalog writer (global)
//	                                     GET /search    ──► link ──► search (global)
//
// The slot is where the logged-in user is at home (a private one, if the table
// says that they were moved alone), or the user with the phone in a login (every
// cell has a copy of all phones), or that of the ID or order number in the path, or
// the cell's own for what every cell has (products). http.go's table says which. A
// thing whose ID's slot had users taken from it is looked for at their homes too
// (find.go); a transfer whose home is away, at the home of the user who asks, who may
// be its payee. A refresh token names its user. New users go to the first cell that takes them and can be reached: of
// their group, the wished region, the own. The token is verified here, offline, and
// once more by the home's gateway, which knows who has logged out everywhere
// (denied.go).
//
// Beside /api/v1 the public listener has the shop's pages (services/storefront,
// http_page.go). A page asks the same rules in process, so what holds for the API
// holds for it; it is never redirected, since its visitor's cookies are of this host.
//
// By configuration the client is sent to the home's gateway (307, redirect.go)
// instead of its request; who was sent on once is forwarded. Each request is counted
// by what it took, where people brought it (count.go).
//
// The X-Cellmart headers tell the services who asks about which slot at which
// epoch. From outside they are thrown away; PEER_ADDR believes hop, slot and
// epoch, since the border lets only other cells' agents in. What came over it is
// answered here or refused with 421, never forwarded again.
//
// What is sent again: a request refused with 421, once, to the owner that the
// refusal or the newest table names; one refused with SLOT_DRAINING, for 2 s;
// one whose answer was lost, once, if it only reads or has an Idempotency-Key;
// one that couldn't be sent, to the service's next instance.
//
//	what goes wrong                     answer
//	malformed ID, number, unknown slot  404 before anything is asked; no default cell
//	body over 64 kB                     413
//	route table old                     421 corrects it; twice is 503 ROUTE_UNSETTLED
//	slot being handed over              held 2 s, then 503 SLOT_DRAINING
//	a home of many not asked            503, not 404: it may have the thing
//	a private slot only the sender has  503 ROUTE_UNSETTLED after a wait for the table
//	no cell takes new users             503 CELL_CLOSED
//	home unreachable                    503 CELL_UNREACHABLE with its name: within 1 s
//	                                    before the breaker knows, at once after
//	a write's answer lost               503 OUTCOME_UNKNOWN: ask again with the same key
//	own service down or slow            503 UNAVAILABLE
//	catalog writer unreachable          503 CATALOG_WRITER_DOWN; reading goes on
//	search unreachable or slow          503 SEARCH_UNAVAILABLE; the shop goes on
//	control, NATS, agent down           the held route table stays
package gateway
