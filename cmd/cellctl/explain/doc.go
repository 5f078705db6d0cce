// Package explain says where an ID, an order number or a phone lives, and why: it
// computes the slot as every router does, and looks it up in the newest table that
// can be found.
//
//	text ─► kind, ID ─► slot ─► table ─► owner, epoch, standby
//	                             ▲
//	      control, else agents, else the cells' Redis, else snapshot files
//
// All levels are asked, and all are shown. The one that answers is the one with the
// newest table, among equals the one nearest to control.
//
//	what can go wrong            then
//	control, agents, Redis dead  the next level answers, and says how old it is
//	a table without control's    not a table
//	signature
//	an age that nobody knows     null, not zero
//	nothing answers              an error that names each level
package explain
