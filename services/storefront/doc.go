// Package storefront is the shop in the browser: pages that each gateway serves on
// its public listener, beside /api/v1. It has no store and knows no other service;
// all it shows and does goes through the gateway's own API, so a page can do no
// more than its visitor's token may.
//
//	browser ──► gateway ADDR ─┬─ /api/v1/… ──────────────► rules ─► home cell
//	                          └─ a page ─► Shop.Handler ─► the same rules, in process
//	                                         │               (client.go: JSON in and out)
//	                                         └─ template + words ─► HTML
//
// A page costs no connection: the API is called as an http.Handler. It says in its
// footer which cell made it, and which cell, slot and route version answered for
// its visitor (X-Cell, X-Route-Version, the slot in the token).
//
// Every path works without JavaScript. What changes something is a form: POST with
// a hidden idempotency key, then 303 to the thing's own URL, so that going back,
// reloading and a double click do nothing twice. No GET changes anything but the
// language. A page that waits (a pending order, transfer, registration) is kept new
// by live.js, which changes only the part that waits and rests while the tab is
// hidden. One stream per tab says when it has changed (live.go): it ends with the
// request's time, and the browser opens the next one. Where there is none the page is
// asked for every 2 s; without JavaScript the whole page refreshes.
//
//	cookie          what                           life
//	__Host-session  the API's token                the token's 10 minutes
//	__Host-refresh  what the next token is for     30 days after it was last used
//	__Host-cart     a guest's cart, 20 SKUs        30 days, until the login merges it
//	__Host-lang     en, zh-Hans                    a year
//
// All are HttpOnly, Secure, SameSite=Lax; browsers take Secure cookies from
// loopback addresses too. At login each SKU of the guest's cart is set to the
// larger of the two quantities: done twice, it changes nothing more. What the home
// refuses for good (no longer for sale, a full cart) is dropped.
//
// Language: ?lang=, which is kept in the cookie, else the cookie, else
// Accept-Language. Forms from other origins are refused (http.CrossOriginProtection).
// The policy allows nothing but files of this origin, and nothing inline. Pages with
// a session are never stored.
//
//	what goes wrong                        the page
//	session over                           goes on by the refresh token
//	nobody logged in, that one over too    303 to the login, and back after it
//	not there, or somebody else's          404, the same words for both
//	home cell unreachable                  503 that names the cell; the shop goes on
//	seller's cell away, or slow            the product is there, its stock isn't known
//	search away                            says so; a category is shown newest first
//	one part of a page fails               says so in its place, the rest is there
//	answered from a standby (X-Stale)      a banner: may be old, can't be changed
//	out of stock, too little money         the same form with the reason, new key
//	price or cart changed at checkout      the new review to look at, new key
//	answer lost, 503 (outcome unknown)     says so, and a button that sends the same
//	                                       again under the same key
//	the same key under way (double click)  waits up to 2 s for its answer, then as above
//	seller's or payee's cell away          the order, the transfer waits, and says so
//	anything else                          500 with the request id and nothing more
package storefront
