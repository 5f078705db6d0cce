// Package relay is what a gateway and the edge share: one HTTP request passed
// on, and a breaker per place that it may be passed on to.
//
//	client ── Read ──► Request (body in memory) ── Send ──► place
//	client ◄─ Answer ─ the answer, streamed ◄──────┘  ▲
//	                                                  │ Enter: the exchange ends
//	                  Breaker ── probe each 250 ms ───┘ when the breaker opens
//
// A Request can be sent again, since its body is in memory; whether it may be is
// the caller's decision, with what Lost and Request.Repeatable say. Send itself
// never repeats. (net/http's Transport does, once, when a kept connection turned
// out to be closed: only if nothing was sent on it, or the request is one that
// Repeatable allows.)
//
// The breaker knows from health calls, never from trying a user's request:
//
//	closed ── no success of any kind for 900 ms,
//	          3 broken exchanges in a row, or
//	          3 health calls in a row answered with an error ──► open
//	open   ── a health call succeeds ──────────────────────────► closed
//
// So whoever waits for a place that has just died waits less than a second, and
// nobody waits after that.
//
//	what goes wrong                  what the caller sees
//	can't connect                    Lost, Sent false: any request may go elsewhere
//	connection breaks, no answer     Lost, Sent true: it may have been done
//	answer's head late               Lost with ErrSlow
//	breaker opens meanwhile          Lost with ErrOpen
//	answer's body breaks             Answer fails after the head is out
//	this process got no CPU          the silence is granted once more, 250 ms
package relay
