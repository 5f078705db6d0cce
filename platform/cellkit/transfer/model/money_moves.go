package model

import "example.com/cellmart/platform/cellkit/transfer"

// source is the payer's side.
func (w *moneyWorld) source(s money, i int, to func(who, what string, next money, free bool)) {
	name, k := transferName(i), w.transfers[i].from
	d := &s.slots[k].own
	row := d.row[i]
	if row == 0 {
		if d.available > 0 && (w.transfers[i].kind != transfer.Refund || w.refundable(*d, i)) {
			if n, ok := w.post(s, k, i, frozen, available, inFreeze); ok {
				to(name, "FROZEN", n, true)
			}
		}
	} else {
		w.wish(s, i, to)
		w.ask(s, i, mCredit, row == frozen || row == cancelling, to)
		w.ask(s, i, mCancel, row == cancelling, to)
	}
	for v := credited; v <= cancelled; v++ {
		if s.net&bit(i, mAnswer+v) != 0 {
			if n, ok := w.answered(s, i, v); ok {
				to(name, [...]string{"", "the payer has CREDITED", "the payer has REFUSED", "the payer has CANCELLED"}[v], n, false)
			}
		}
	}
}

// refundable: the money has come, and no other refund has it.
func (w *moneyWorld) refundable(d ledger, i int) bool {
	of := w.transfers[i].of
	return d.row[of] == credited && (w.refunds(d, of) == 0 || w.off == RefundCapped)
}

// refunds counts those of a transfer that haven't come to nothing.
func (w *moneyWorld) refunds(d ledger, of int) (n int) {
	for i, p := range w.transfers {
		if p.kind == transfer.Refund && p.of == of && d.row[i] != 0 && d.row[i] != reversed {
			n++
		}
	}
	return n
}

// wish: the user or the deadline wants the money back.
func (w *moneyWorld) wish(s money, i int, to func(who, what string, next money, free bool)) {
	k := w.transfers[i].from
	row := s.slots[k].own.row[i]
	d := w.next[i][row][wish]
	switch {
	case d.conflict || d.effect != transfer.Ask:
	case w.off == TimeoutAsks:
		if n, ok := w.post(s, k, i, reversed, inFreeze, available); ok {
			to(transferName(i), "the deadline gives the money back", n, true)
		}
	default:
		if n, ok := w.post(s, k, i, d.row, nil, nil); ok {
			to(transferName(i), "CANCELLING", n, true)
		}
	}
}

// ask sends an open request, as often as it likes.
func (w *moneyWorld) ask(s money, i, message int, open bool, to func(who, what string, next money, free bool)) {
	b := bit(i, message)
	again := w.off == SweeperSends && s.told&b != 0 || s.forgot&b != 0
	if !open || s.net&b != 0 || again {
		return
	}
	k, n := w.transfers[i].from, s
	early := w.off == RequestsHeld || w.off == CancelHeld && message == mCancel
	n.slots[k].leave(w.off, b, early, func(d ledger) bool { return w.holds(d, b) })
	n.net |= b
	if w.off == SweeperSends || w.off == NoteIsLocal {
		n.told |= b
	}
	to(transferName(i), [...]string{"CREDIT is sent", "CANCEL is sent"}[message], n, false)
}

// answered: the destination's word has come.
func (w *moneyWorld) answered(s money, i, v int) (money, bool) {
	k := w.transfers[i].from
	row := s.slots[k].own.row[i]
	if row == 0 {
		s.conflict = true
		return s, true
	}
	d := w.next[i][row][v]
	switch {
	case d.conflict:
		s.conflict = true
		return s, true
	case d.effect == transfer.Settle:
		return w.post(s, k, i, d.row, inFreeze, clearing)
	case d.effect == transfer.Reverse:
		return w.post(s, k, i, d.row, inFreeze, available)
	}
	return s, false
}

// destination is the payee's side.
func (w *moneyWorld) destination(s money, i int, to func(who, what string, next money, free bool)) {
	asked := false
	for message, q := range [...]transfer.Question{transfer.AskCredit, transfer.AskCancel} {
		if s.net&bit(i, message) == 0 {
			continue
		}
		asked = true
		w.asked(s, i, q, true, to)
		if w.refuses && q == transfer.AskCredit {
			w.asked(s, i, q, false, to)
		}
	}
	k := w.transfers[i].to
	v := int(s.slots[k].own.row[i])
	empty := w.off == Tombstone && v == 0 && s.net&bit(i, mCancel) != 0
	if empty {
		v = cancelled
	}
	b := bit(i, mAnswer+v)
	if v == 0 || s.net&b != 0 || w.off == FinalReply && v == refused {
		return
	}
	if w.off == SaidAgain {
		asked = s.told&b != 0 // else the row is made again from what has come again
	}
	if !asked {
		return
	}
	n := s
	n.slots[k].leave(w.off, b, w.early(v) || empty, func(d ledger) bool { return w.holds(d, b) })
	n.net |= b
	n.told &^= b
	to(transferName(i), [...]string{"", "CREDITED is answered", "REFUSED is answered", "CANCELLED is answered"}[v], n, false)
}

// early says that an answer isn't held.
func (w *moneyWorld) early(v int) bool {
	return w.off == RepliesHeld && v == credited || w.off == RefusalsHeld && v == refused ||
		w.off == TombstonesHeld && v == cancelled
}

// asked: a question has come to the payee's slot.
func (w *moneyWorld) asked(s money, i int, q transfer.Question, ok bool, to func(who, what string, next money, free bool)) {
	k := w.transfers[i].to
	have, stands := s.slots[k].own.row[i], 0
	if ok {
		stands = 1
	}
	d := w.judge[i][have][q][stands]
	switch {
	case d.conflict:
		n := s
		n.conflict = true
		to(transferName(i), "a question that can't be", n, false)
		return
	case d.row == have && d.account == "", w.off == Tombstone && q == transfer.AskCancel:
		return // the row is there: it's said again
	}
	var n money
	var did bool
	if d.account == "" {
		n, did = w.post(s, k, i, d.row, nil, nil)
	} else { // suspense is counted as available: it is the payee's slot that has it
		n, did = w.post(s, k, i, d.row, clearing, available)
	}
	if !did {
		return
	}
	if w.off == SaidAgain {
		n.told |= bit(i, mAnswer+int(d.row))
	}
	to(transferName(i), [...]string{"", "CREDITED at the payee", "REFUSED at the payee", "CANCELLED at the payee, a tombstone"}[d.row], n, false)
}

// formerOwner speaks although it owns nothing any more.
func (w *moneyWorld) formerOwner(s money, i int, to func(who, what string, next money, free bool)) {
	if w.off != OwnsByTable {
		return
	}
	for k := range s.slots {
		row, b := int(s.slots[k].third.row[i]), uint32(0)
		switch {
		case !s.slots[k].former || row == 0:
		case k == w.transfers[i].to:
			b = bit(i, mAnswer+row)
		case row == frozen || row == cancelling:
			b = bit(i, mCredit)
		}
		if b&^s.net != 0 {
			n := s
			n.net |= b
			to(slotName(k), "the former owner sends what it has", n, true)
		}
	}
}
