// Package search finds products, for everybody, and orders, for their sellers. It
// runs once, in the global zone, and nobody needs it: without it the shop goes on.
//
//	c1 ── CDC_search ──┐
//	c2 ── CDC_search ──┤  links   ┌───────────┐     ┌───────────────┐
//	c3 ── CDC_search ──┼────────> │ followers ├────>│ Bleve, on disk│<── GET /api/v1/search
//	c4 ── CDC_search ──┤          └───────────┘     └───────────────┘    GET /api/v1/seller/orders/search
//	global, catalog  ──┘           one per zone       rows, hits and
//	                                                  positions in one batch
//
// A product is a row of the catalog with its SKUs; an order is the buyer's row
// with its lines, found by each seller as far as it is theirs. The rows are kept
// as they were last seen, so that a part that changes makes the whole anew. Of an
// order there is neither buyer nor address: they never leave the cell.
//
// Which change wins: the larger (epoch, rev), or version for the catalog; the
// same one by its place in the WAL. So old changes may come again, and from two
// zones in any order. A deleted row leaves a mark.
//
// After a copy of a zone, what it doesn't have is purged. The index can be
// deleted at any time: with no position, each follower asks its zone for a copy.
//
// # What can go wrong
//
//	what                          then
//	search killed                 503 SEARCH_UNAVAILABLE; catches up from its positions
//	index deleted, broken         built again from copies; answers are few until then, lag says unknown
//	a cell unplugged              its lag grows, its rows stay; catches up when plugged in
//	a stream or slot lost         the zone is copied again beside the stream
//	disk full                     nothing is acknowledged, the streams and then the WAL wait
//	two processes, one index      the second waits for the first's end
//	two processes, two indexes    they take each other's changes, see gaps, and copy for ever: run one
package search
