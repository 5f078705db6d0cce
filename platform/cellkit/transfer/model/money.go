package model

import (
	"fmt"

	"example.com/cellmart/platform/cellkit/transfer"
)

// Transfers in the money world: at most so many, of one unit each.
const maxTransfers = 3

// A transfer's row is a number here: at the source the state, at the destination
// the verdict; 0 is no row.
const (
	frozen = iota + 1
	cancelling
	settled
	reversed
)

const (
	credited = iota + 1
	refused
	cancelled
)

func sourceStates() [5]transfer.State {
	return [...]transfer.State{"", transfer.Frozen, transfer.Cancelling, transfer.Settled, transfer.Reversed}
}

func verdicts() [4]transfer.Verdict {
	return [...]transfer.Verdict{transfer.NoVerdict, transfer.Credited, transfer.Refused, transfer.Cancelled}
}

// ledger is what a database has of a slot: a row of each transfer, and the wallet
// of the slot's one user. Versions are kept only where a rule that is off
// compares them.
type ledger struct {
	row                         [maxTransfers]uint8
	available, frozen, clearing int8
	version                     [maxTransfers + 1]uint8 // epoch and rev of each row, and of the wallet
}

// money is the state: the slots 0 and 1, and what is in the streams. A message
// that is there can come at any time, twice, in any order, or never.
type money struct {
	slots    [2]slot[ledger]
	net      uint32
	told     uint32 // requests that have been sent once, replies that are still to be sent
	forgot   uint32 // requests that the new owner takes for sent
	conflict bool   // an answer contradicts what is stored
}

// The messages of a transfer; answers are asked+credited and so on.
const (
	mCredit = iota
	mCancel
	mAnswer     // by verdict, from mAnswer+credited on
	perTransfer = 6
)

func bit(i, message int) uint32 { return 1 << (i*perTransfer + message) }

// moneyWorld is a configuration.
type moneyWorld struct {
	off       Rule
	transfers []path
	funds     [2]int8
	failovers [2]uint8
	swaps     [2]uint8
	asksFirst bool // in an exchange the incoming cell gates only what is sent while it is in sync
	refuses   bool // a payee may be one who can't be paid
	loses     bool // streams may be lost

	// The decisions of package transfer, asked once: by kind of transfer, state and event, ...
	next  [maxTransfers][5][5]decision
	judge [maxTransfers][4][3][2]decision
}

// path is where a transfer leads to; of is the one that a refund gives back.
type path struct {
	kind         transfer.Kind
	from, to, of int
}

type decision struct {
	row      uint8
	effect   transfer.Effect
	account  transfer.Account
	conflict bool
}

// wish is the event beside the three verdicts.
const wish = 4

func newMoney(w moneyWorld, off Rule) *moneyWorld {
	w.off = off
	states, says := sourceStates(), verdicts()
	code := func(s transfer.State) uint8 {
		for i, known := range states {
			if s == known {
				return uint8(i)
			}
		}
		panic(fmt.Sprintf("no such state: %q", s))
	}
	for i, p := range w.transfers {
		for s := frozen; s <= reversed; s++ {
			for e := credited; e <= wish; e++ {
				event := transfer.WishDeadline
				if e < wish {
					event = transfer.Event(says[e])
				}
				next, effect, err := transfer.Next(p.kind, states[s], event)
				w.next[i][s][e] = decision{row: code(next), effect: effect, conflict: err != nil}
			}
		}
		for have := range says {
			for q := transfer.AskCredit; q <= transfer.AskCancel; q++ {
				for ok := range 2 {
					w.judge[i][have][q][ok] = w.judged(p.kind, says[have], q, ok == 1)
				}
			}
		}
	}
	return &w
}

// judged is the destination's decision; some rules are switched off here.
func (w *moneyWorld) judged(kind transfer.Kind, have transfer.Verdict, q transfer.Question, ok bool) decision {
	if w.off == OrderCredited {
		kind = transfer.User
	}
	if w.off == FirstWins && q == transfer.AskCredit {
		have = transfer.NoVerdict
	}
	j, err := transfer.Judge(have, q, kind, transfer.Standing{OK: ok, Reason: "UNKNOWN_PAYEE"})
	d := decision{account: j.Account, conflict: err != nil}
	for i, v := range verdicts() {
		if j.Verdict == v {
			d.row = uint8(i)
		}
	}
	return d
}

func (w *moneyWorld) Start() (s money) {
	for k := range s.slots {
		s.slots[k] = newSlot(ledger{available: w.funds[k]}, w.failovers[k], w.swaps[k], depth)
		s.slots[k].asked = w.asksFirst
	}
	return s
}

func slotName(k int) string { return [...]string{"slot 0", "slot 1"}[k] }

func transferName(i int) string { return [...]string{"transfer 0", "transfer 1", "transfer 2"}[i] }

func (w *moneyWorld) Moves(s money, to func(who, what string, next money, free bool)) {
	for k := range s.slots {
		s.slots[k].copies(w.off, func(d ledger, late uint32) bool { return all(late, func(b uint32) bool { return w.holds(d, b) }) },
			func(now, old ledger) ledger { return w.merge(now, old, w.epoch(s, k)) },
			func(what string, next slot[ledger], free bool) {
				n := s
				n.slots[k] = next
				if next.left != s.slots[k].left && w.off == NoteIsLocal {
					n.forgot |= n.told
				}
				to(slotName(k), what, n, free)
			})
	}
	for i := range w.transfers {
		w.source(s, i, to)
		w.destination(s, i, to)
		w.formerOwner(s, i, to)
	}
	if w.loses {
		n := s
		n.net = 0
		to("streams", "all are lost", n, true)
	}
}

func (w *moneyWorld) epoch(s money, k int) uint8 { return w.failovers[k] - s.slots[k].left }

// post is a transaction: a row's new state, and a posting from one balance to another.
func (w *moneyWorld) post(s money, k, i int, row uint8, debit, credit func(*ledger) *int8) (money, bool) {
	d := s.slots[k].own
	d.row[i] = row
	if w.off == TakenAnew || w.off == CopiedAnew || w.off == TailStays {
		epoch := w.epoch(s, k) << 4
		d.version[i] = max(d.version[i]&15+1, 1) | epoch
		if debit != nil {
			d.version[maxTransfers] = d.version[maxTransfers]&15 + 1 | epoch
		}
	}
	if debit != nil {
		*debit(&d)--
		*credit(&d)++
	}
	ok := s.slots[k].commit(d)
	return s, ok
}

func available(d *ledger) *int8 { return &d.available }
func inFreeze(d *ledger) *int8  { return &d.frozen }
func clearing(d *ledger) *int8  { return &d.clearing }
