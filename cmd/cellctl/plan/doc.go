// Package plan says how many cells a load asks for, and whether it asks for any.
// It is arithmetic on what the caller says and, with Input.Measured, on what a
// running demo counted; docs/when-not.md reads its figures.
//
//	qps / cell-qps ─────► capacity ─► + 1 ─┐
//	1 / blast ─────────────────────────────┴► serving n ─► + 1 gray ─► layout over regions
//	1/n - 1/(n+1) < 1 % ─┐                       │
//	8 h / rollout ───────┴► upper bound          ├► spare with one lost   1/(n-1)
//	                                             ├► user minutes          users / n x recovery
//	closed-loop share, or random placement ──────┼► cross-cell share ─► round trips
//	                                             └► data / (link x throttle): hours to add a cell
//
// Cross-cell share. A user's peer is in another cell with p = 1-1/n where slots
// are placed at random and evenly: 75, 87.5, 93.75 % for 4, 8, 16 cells. cellctl
// sim draws the same on a ring of 100 virtual nodes, whose shares s are uneven:
// 1 - sum s^2 = 74.77, 87.40, 93.68 %. It is a share of pairs. That one of k
// peers at least is elsewhere has 1-(1-p)^k: 98.4 % for k = 3 and 4 cells. With a
// measured share p is a request's chance to need another cell: 1 - closed-loop share
// of the demo's m cells, times (1-1/n)/(1-1/m): who was placed together stays so.
//
// Units are powers of 1024 as in Postgres' settings, MB = MiB: so 20 TiB at 100
// MB/s are the published 58.25 h, and 61.08 h for who counts a MB as 10^6 bytes.
//
//	what                                          then
//	0, negative, no number, one cell              Check or the flag says so: cellkit.Usage
//	more cells than a route table holds           the same
//	more regions than cells                       the same
//	capacity asks for more than the upper bound   a plan all the same, with a warning
//	a lost region isn't carried                   the same, with the cells that would carry it
package plan
