// Package outputcommit holds a cell's outputs until they survive it (R5, P4): what
// makes something final in another slot leaves when the sending slot's standby has
// applied it, so that a failover which loses the last moments loses nothing that
// others have acted on.
//
//	owner                                            standby (and incoming, in sync)
//	-----                                            -------
//	commit: effect, outbox row ───WAL──► relay ───── stream ───► applier, one commit:
//	   │                                   ▲                      rows and watermark
//	bus.Dispatcher claims the note,        │                             │
//	and writes a place behind it ──────────┘                             │
//	   │  early: leaves at once                                          │
//	   ▼                                                                 │
//	Gate.Hold(position) ──POST /standby/applied {position, slots}──► agent: waits for it,
//	   │        ▲                                                    then answers out of
//	   │        └──────── {watermark, slots in sync, epochs} ─────── one snapshot
//	   │
//	   ├─ in sync at the slot's epoch, same database, watermark past it ──► leaves: covered
//	   └─ waited for 2 s, or it's known that waiting is in vain
//	        cell.uncovered row (slot's shared lock, owner, epoch, lease)
//	        ► voters (control, until leases carry the marks)            ──► leaves: timed,
//	                                                                        uncovered, unmarked
//
// A position is an upper bound that costs no query: the claim itself writes a
// logical message to the WAL when it has taken something that is held. It lies behind
// all that the claim has seen, and the relay tells every standby of it, so one that
// has nothing else to apply passes it at once. One loop per standby asks for the
// least position that waits; an answer releases all that it covers.
//
// Waiting is known to be in vain when a question to the standby's agent has had no
// answer for 2 s, when the standby has yet to pass a place that another output waited
// 2 s for, when the slot isn't in sync there, or when the slot is marked already. So a
// standby that is gone costs each output 2 s at most, once.
//
// During an exchange of standbys the old one gates alone, until control has seen the
// incoming one in sync and says so to the owner: that sets a flag in the slot's row
// (cell.gate_incoming), and from its commit on both gate. The owner answers with a
// place behind that commit; control names the incoming cell in a table only when it
// has passed it: what left before is there, and what leaves after waits for it.
//
// Marks. The row is written before anything is sent, and names the highest position
// of it; two dispatchers of a cell, or one that starts again, agree through it. Each
// second those marks are found that every gating standby, in sync, has passed. Their
// slots' outputs wait again, so that the position stands still, and the row goes if it
// is still covered; then the voters' mark, by its token. What only one of the two has
// is put right by comparison each 30 s. Nobody is promoted for a slot that is marked
// (Promotable). Where outputs weren't held before (off, or an older version) every
// slot is marked at the start.
//
// Modes: timed is the above; strict waits for ever and never marks; off holds
// nothing (no Gate).
//
// # What can go wrong
//
//	what                               then
//	killed while it's held             the note is due again, and is held again
//	killed between row and message     the same; the row is read at the start, nothing waits
//	claimed again while it's held      the later claim is settled; it waits for what the slot is
//	                                   then
//	standby silent, stopped, detached  2 s, then marked; later ones don't wait
//	standby slow                       the same, until it has passed that place
//	slot not in sync, being copied     marked at once, nothing waits
//	the slot has no standby            leaves at once: nobody can be promoted
//	voters don't answer                0.5 s for new marks, then sent on, counted unmarked; nobody
//	                                   waits for them any more; told when they answer
//	slot fenced, given, lease over     no row, so nothing leaves: the ticket is dropped, the
//	                                   note stays due
//	somebody has the slot's lock       asked again each 20 ms; other slots go on
//	other standbys since the claim     it waits for those; in strict mode looked at each second
//	incoming cell away, not gating     isn't asked; gating: as any standby, until the exchange
//	                                   is given up
//	own database down                  nothing is claimed; what waits for a row waits
//	database restored                  another incarnation: nothing of the old one covers
//	a lift is lost, or a mark late     found by comparison, as are marks that the voters forgot
//	a mark of an incarnation before    stays until control's epoch is above it, as does one with
//	                                   a token that this database never gave: it went back
package outputcommit
