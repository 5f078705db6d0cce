// Package planner has the published ways to give slots to cells behind one
// interface, all measured alike, so that they can be compared before one is
// chosen. Balanced is what cellmart runs; the others show why.
//
//	shares (cell, weight) ─┐
//	current owners ────────┴─► Planner.Plan ──► owner per hash slot
//	                                      └───► Report: moved, shares, skew, CV,
//	                                            max/mean, gaps of a ring, flags
//
//	Modulo         slot mod n                       moves nearly all
//	Ring           virtual nodes on a circle        1/(n+1), shares uneven
//	Bounded        ring, no cell over c x its mean  ring with a lid
//	Rendezvous     highest score of (cell, slot)    1/(n+1), shares uneven
//	Jump           jump hash                        1/(n+1), only the last cell may go
//	Buckets        MD5 mod 100, cut by weight       moves across all borders
//	HashRanges     half-open ranges of the hash     halves one cell, others untouched
//	IDRanges       ranges of the ID                 moves nothing, newest IDs on one cell
//	Sharded        shard x table of a hash          traps and their cures (Split)
//	Doubling       n to 2n, table index unchanged   moves half, only to twice as many
//	Balanced       exact shares, least movement     the default
//
// A slot is one key: ways that hash keys hash the slot's number as text. The
// same parts (Circle, Split, Bucket, Jump, Hash) also serve keys of any kind,
// which is how `cellctl sim` re-computes published experiments.
//
// Cells have stable names, never addresses: a name that could be one is refused.
// A plan depends on names, weights and current owners, never on the order in
// which they are given. Rollout turns a change of weights into steps of one
// cell each.
//
// What can go wrong, and what happens then:
//
//	name that is no cell's, twice, weight < 0, none > 0   error that wraps routing.ErrTable
//	weights, to a way that has none (Modulo, Jump, ...)   refused, never ignored
//	Doubling to anything but n or 2n                      refused
//	tokens of a bad hash sit together                     flag "clustered ring"
//	a cell without a slot                                 skew is +Inf, flagged
package planner
