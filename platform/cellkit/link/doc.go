// Package link is the one border between zones (a cell, or the global zone).
// All TCP between zones goes through the zones' agents, so a zone has one way
// in and out, and cutting that cuts everything. It owns streams, the allowlist
// of who may open which, the prober that knows a dead link, faults made on
// purpose, and the demo's certificates.
//
//	zone c1                                        zone c3
//	service ── CONNECT c3/nats ──► agent ══ TLS 1.3, both ══► agent ──► nats
//	           (loopback, plain)   Border    certificates     Border
//	                                 ▲  ping every 250 ms  │
//	                                 └──── same 8 bytes ◄──┘
//	edge (no zone, no agent) ═════ TLS 1.3, certificate "edge" ═══════► gateway
//
// A stream is one TLS connection. After the handshake the dialer sends
//
//	cellmart-link/1 TARGET\n        and gets      ok\n   or   no REASON\n
//
// and from there on the bytes are the target's. Sessions are resumed, so the
// next dial needs no certificates. Each direction ends by itself (half-close);
// a stream that breaks is reset at both ends, so that what was cut off never
// looks like an end. A certificate has one name, agent.ZONE or edge, and each
// target has the list of names that may open it: being of the same CA is not
// enough.
//
// A link is up while its last answer is younger than 750 ms; unknown is not
// up. Each side probes for itself, the edge too (Peer). When a link goes down
// all its streams are reset, whichever side opened them, and dials are refused
// at once.
//
// Faults act where an agent's end of a link is: a delay or cut set at one end
// is felt at both. They are our own because toxiproxy's library works between
// two listeners and knows no TLS peer; see docs/adr/0010-links.md.
//
//	what happens                      what callers see
//	link cut, the prober not knowing  silence: bytes are held (64 kB a stream, then TCP
//	                                  stops the writer); a dial waits for its own deadline
//	link cut for 750 ms               streams reset, dials: LINK_DOWN at once, naming the zone
//	cut healed before that            held bytes flow on
//	link healed                       up with the first answer, within 500 ms
//	link delayed                      order kept, 1 MB a stream under way. More than half a
//	                                  second more at once: down for a moment. A round trip
//	                                  over 1 s: down, the probe's opening takes too long
//	peer's agent killed or stopped    as cut; its own streams break at once when killed
//	own agent killed                  LINK_DOWN, "the own agent doesn't answer"
//	own agent gets no CPU             a late prober gets up to 750 ms more before it judges
//	target not running there          TARGET_DOWN: the zone is fine
//	certificate not on the list       LINK_REFUSED, counted, logged with its name
//	certificate of another CA, none   LINK_REFUSED, counted under "unknown"
//	slow reader                       its writer waits; other streams don't
//	Run's ctx ends                    listeners closed, streams reset; Run returns after that
package link
