// Package clock is the wall clock of a cell's processes, which an operator can set
// wrong on purpose: `cellctl clock c2 --offset -1h`.
//
//	cellctl --PUT /admin/clock--> agent's Source (file: offset, fsync)
//	                                  |  GET /clock, answered when it changes
//	                                  v
//	                 each process's Clock: Now = the machine's time + offset
//
// A Clock is in the place of time.Now where wall time makes something that lasts:
// the check of a grant of IDs and what idgen is told of the caller's time, the
// fallback's sequence and the bank, tokens (made and verified), times that are
// stored by a program; in the global zone idgen's own rule. It is not for what is
// measured (time-outs, rates, ages), for what Postgres compares with its own now()
// (deadlines of orders and transfers), nor for certificates: those have the
// machine's clock.
//
//	what goes wrong          what happens
//	agent away at the start  the machine's time, until it answers
//	agent away later         the offset stays; asked again four times a second
//	agent restarts           it has the offset in its file
//	file unreadable          offset 0, in the log
package clock
