// Package sim computes published tables about ways to divide users over cells,
// from the planners that cellmart itself has. Nothing it prints is stored: its
// tests hold the figures that others published, this package doesn't know them.
//
//	Config ──► population (user<N>, hashed once) ──► one function per key ──► Result
//	                    platform/routing/planner ───────────┘
//
// Users, cells and seed change what is computed. The default seed, 42, is the
// one of the published draws; with it users are user0, user1 and so on. Any
// other seed takes other users, keys, salts and ids as well, so that a figure
// can be seen to hold beyond the texts it was published with.
//
// What can go wrong, and what happens then:
//
//	unknown key, 0, negative, one cell, too many   Config.Check says it in one line
//	few users                                      figures drift from the published ones
//	a shard x table pair without ids               its skew is null, never 0
//	interrupted                                    Run ends with the context's error
package sim
