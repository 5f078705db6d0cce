// Package user owns who people are and what they have: accounts, phones,
// sessions, addresses, shops' owners, wallets and transfers. It runs in every
// cell, and a user's rows live in one slot.
//
// # Registering
//
//	POST /users ---> user's slot: registration PENDING + claim.begin    (one tx)
//	                    | waits up to 300 ms for the phone's home, not at all
//	                    | when the link to it is known to be down
//	                    +--> 201 session | 409 PHONE_TAKEN | 202 + operation URL
//
//	user's slot                 phone's home (hash of it)     each cell's own slot
//	 PENDING --- claim.begin --->  no claim: PENDING
//	         <-- granted, taken -
//	 ACTIVE + user + wallet
//	         --- claim.confirm ->  CONFIRMED ---- claim.copy --->  keyed hash -> user
//	         <-- claim.ask -----   PENDING for 5 s
//	 row or tombstone -- state ->  CONFIRMED or RELEASED
//
// The operation is the Idempotency-Key: a retry at the same gateway finds the
// registration, one at another cell's gateway is told by the phone's home who won.
// A claim never ends by time. The phone itself stays in its user's slot; all
// messages and copies carry a keyed hash, and the ends of the user's name (A***n)
// for whoever is about to pay them. Another name is sent to every cell, numbered, so
// that the newest stays in whatever order they come.
//
// # Logging in
//
// needs no other cell: any cell's copy gives the user's ID (POST
// /internal/lookup), the user's home checks the password, and the token it signs
// (userapi.Sign) is verified by any cell against the keys in the route table. It goes
// on by a refresh token, good once (service_sessions.go): an old one that comes again
// ends its login. Logging out everywhere ends all, and the gateways of the cells that
// have the user's row refuse what was signed before (GET /internal/denied).
//
// # Money
//
// Deposits and withdrawals are postings; transfers are cellkit/transfer's protocol,
// all of whose messages this service handles, also for orders. A preview says who
// would be paid, out of this cell's copies, and signs what was looked at. A payee
// gives back (POST /transfers/:id/refunds) at their own home, which has the row that
// counts it. A transfer's history is told by the payer's home, or the payee's.
// Operators' jobs on transfers are done here too: they are rows that the agent keeps.
//
// # Closing
//
// DELETE /me closes an account without money and without a transfer under way (an
// order that was reserved has its money frozen; one that wasn't finds none). It takes
// the slot's exclusive lock for a moment, so that credits needn't lock their payee.
// What comes later is refused, an order's payment goes to suspense, and the phone
// stays taken.
//
// Schema users: registrations, users, sessions, addresses, claims (at the phone's home),
// claim_copies (in the cell's own slot). Wallets, postings, transfers and credits
// are the schema cell's.
//
// # What can go wrong
//
//	what                                  then
//	phone's home unreachable              202, the operation ends when it is back
//	user's cell dies after the grant      the claim stays PENDING; asked when it is back
//	same operation at two gateways        one user; both name it
//	two operations for one phone          the first at the phone's home wins, 409
//	claim of a registration never made    tombstone, the phone is free again
//	copy not here yet                     lookup finds the cell's own users; else 401 for
//	                                      the moment that the copy is on its way
//	payee's cell away                     preview and transfer go on; the money is frozen
//	payer's cell away                     the payee is told what their own home knows, and
//	                                      can give back
//	money comes while an account closes   it came first, and closing is refused; or later,
//	                                      and it is
//	name not in the copy yet              a preview without a name
//	no row for a login's refresh token    a session without one
//	the answer with a refresh token lost  the old one gets the same again for 30 s
//	too many passwords to hash            429 with Retry-After
//	idgen away for longer than the stock  503 IDS_EXHAUSTED for what needs a new ID
//	database away                         503, nothing is lost
package user
