// Package catalog owns what is for sale: products, their SKUs and prices, and the
// categories. It is broadcast data: written in one place, in the global zone, and
// read from a full copy in every cell. So browsing needs no other cell, and goes
// on for ever without the global zone; only sellers' changes wait for it.
//
//	seller ─► gateway of any cell ═link═► WRITER: catalogw.products, .skus
//	                                        │  version = counter + 1, under its row lock
//	                                        ▼
//	each cell's COPY ◄═link═ GET /feed?after=V (long poll) ◄─ changes in version order
//	   │  rows and "I am at V" in one transaction
//	   ▼
//	catalog.products, .skus ─► Redis, keyed by V ─► shoppers, orders (/internal/skus)
//
// # Versions
//
// Every change takes the next version from one row, whose lock it holds until it
// commits. So the order of versions is the order of commits, and who has read up to
// V has missed nothing below V. (A sequence hands out 7 and 8, 8 commits first, a
// reader notes 8, and 7 is never seen.) The price is that writers queue for the
// length of one short commit; a catalog is written seldom and read all the time.
//
// A copy is at a version of a history, the writer's database. Another history, or a
// writer behind the copy, means that the writer's database was replaced: the copy
// then pulls everything again beside the old rows, which it serves meanwhile, and
// sweeps what it didn't see. After restoring the writer from a backup set
// catalogw.counter.history anew: versions may be given out a second time.
//
// # What can go wrong
//
//	what                            then
//	writer, its zone or link down   copies serve on, X-Catalog-Version says how new;
//	                                sellers get 503; the copy asks again, up to 2 s apart
//	copy new or wiped               503 CATALOG_NOT_READY until it was complete once
//	feed answer applied twice       nothing: it is applied only at the position it was asked from
//	killed between rows, position   can't be: one transaction
//	Redis gone, slow, flushed       answered from Postgres; after 3 failures Redis is asked once a second
//	many ask for what isn't cached  one question to Postgres for all of them
//	cell's Postgres down            cached answers for up to 30 s, else 503
//	IDs used up                     503 IDS_EXHAUSTED to the seller
//	answer to a COMMIT lost         503 OUTCOME_UNKNOWN; the same Idempotency-Key tells
package catalog
