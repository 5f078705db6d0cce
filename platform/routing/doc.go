// Package routing says which cell a thing lives in. It is pure: standard
// library only, no I/O, no clock, so every process and every test can hold it.
//
//	ID ──low 14 bits──► slot ──row──► owner, standby, epoch      (Table.Slot)
//	user ID ──moved alone?──► private slot ──row──► the same       (Table.Home)
//	phone ─HashSlot──► slot
//	new user ────────► one of a cell's slots                      (PickSlot)
//	affinity group ──► the slot that its new users get            (Table.GroupSlot)
//
//	Build / Balanced ──► Table ──Encode──► bytes ──Sign──► signed bytes
//	                       ▲                                    │
//	        Holder ◄─Store─┴───────────Open────────────────────┘
//
// A Table is one immutable document, replaced whole. There is no default cell:
// a slot that the table doesn't know is not found, and the caller says 404. A
// wrong or old table is harmless, since the database of a cell refuses what the
// cell does not own; tables only decide how many requests go the long way.
//
// What can go wrong, and what happens then:
//
//	bytes cut short, flipped, not canonical   Decode and Open give ErrTable, the caller keeps what it has
//	signed by another key                     Open gives ErrSignature
//	older or equal version                    Holder.Store refuses, Load keeps giving the newer one
//	cell closed to new users (weight 0)       PickSlot finds nothing
//	successor that loses or reuses something  Table.CheckNext names it
//	successor that turns a moved user back    the same: the old home forwards for ever
//	table with moved users, older reader      format 2, refused there; without any it stays format 1
//	a moved user's order number               its slot's home and those of TakenFrom are asked
package routing
