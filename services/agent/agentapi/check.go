package agentapi

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// names of the invariants that are checked so far (design 12).
var names = []struct{ id, what string }{
	{"I1", "each slot and epoch has one writer"},
	{"I2", "every row is in the cell that owns its slot or stands by for it, and owned once"},
	{"I3", "each slot's ledger sums to zero, balances are the sums of postings"},
	{"I4", "money is neither made nor lost between cells"},
	{"I5", "stock: free + held + sold = stocked, never oversold, nothing stranded"},
	{"I6", "a paid order is paid once and has its stock, a cancelled one gave all back"},
	{"I7", "one phone, one user, over all cells"},
	{"I9", "one Idempotency-Key, one effect"},
}

const shownViolations = 20 // of each invariant; the number found is said

// view is what was read of all cells: sources, then destinations, then the
// sources again. A source's end seen before, or a beginning seen after, makes a
// difference certain although the cells go on working.
type view struct {
	local, before, dest, after map[string]Facts
	missing                    []string // cells of which a part is missing, and why
}

// Check reads all cells and says of each invariant whether it holds. Cells that
// can't be read leave what needs them unknown.
func Check(ctx context.Context, agents map[string]*Client) []Result {
	start := time.Now()
	v := view{}
	missing := map[string]error{}
	for _, step := range []struct {
		part string
		to   *map[string]Facts
	}{{PartSource, &v.before}, {PartDest, &v.dest}, {PartSource, &v.after}, {PartLocal, &v.local}} {
		*step.to = read(ctx, agents, step.part, missing)
	}
	for cell, err := range missing {
		v.missing = append(v.missing, cell+": "+err.Error())
	}
	slices.Sort(v.missing)
	return judge(v, start)
}

func read(ctx context.Context, agents map[string]*Client, part string, missing map[string]error) map[string]Facts {
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := map[string]Facts{}
	for cell, a := range agents {
		wg.Go(func() {
			f, err := a.Facts(ctx, part)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				missing[cell] = err
				return
			}
			out[cell] = f
		})
	}
	wg.Wait()
	return out
}

func judge(v view, start time.Time) []Result {
	j := &judgement{found: map[string][]string{}, checked: map[string]int64{}, notes: map[string][]string{}}
	for _, f := range v.local {
		for id, n := range f.Checked {
			j.checked[id] += n
		}
		for _, x := range f.Found {
			j.add(x.ID, "%s: %s", f.Cell, x.Text)
		}
		if l := f.Leftovers; l != nil && l.Slots > 0 {
			j.note("I2", fmt.Sprintf("%s: %d rows of %d slots that it let go of wait to be cleaned up, since %v; %d of the slots are kept",
				f.Cell, l.Rows, l.Slots, (time.Duration(l.OldestMS)*time.Millisecond).Round(time.Second), l.Held))
		}
	}
	j.running(v)
	j.owners(v)
	j.money(v)
	j.stock(v)
	j.phones(v)
	var out []Result
	for _, n := range names {
		r := Result{ID: n.id, What: n.what, Checked: j.checked[n.id], Violations: []string{}, AgeMS: time.Since(start).Milliseconds()}
		found := j.found[n.id]
		ok := len(found) == 0
		if !ok || len(v.missing) == 0 {
			r.OK = &ok
		}
		if len(v.missing) > 0 {
			r.Missing = v.missing
		}
		r.Notes = slices.Sorted(slices.Values(j.notes[n.id]))
		slices.Sort(found)
		found = slices.Compact(found) // a cell's own look may have found it too
		if len(found) > shownViolations {
			found = append(found[:shownViolations:shownViolations], fmt.Sprintf("and %d more", len(found)-shownViolations))
		}
		r.Violations = append(r.Violations, found...)
		out = append(out, r)
	}
	return out
}

type judgement struct {
	found   map[string][]string
	checked map[string]int64
	notes   map[string][]string
}

func (j *judgement) note(id, text string) { j.notes[id] = append(j.notes[id], text) }

func (j *judgement) add(id, format string, args ...any) {
	j.found[id] = append(j.found[id], fmt.Sprintf(format, args...))
}

// owner says which cell owns a slot among those that were read.
func owner(facts map[string]Facts, slot routing.Slot) (string, bool) {
	for cell, f := range facts {
		for _, r := range f.Owned {
			if r.From <= slot && slot <= r.To {
				return cell, true
			}
		}
	}
	return "", false
}

func (j *judgement) owners(v view) {
	seen := map[routing.Slot]string{}
	for cell, f := range v.local {
		for _, r := range f.Owned {
			for s := r.From; s <= r.To; s++ {
				j.checked["I1"]++
				if other, ok := seen[s]; ok {
					j.add("I1", "slot %s is written by %s and by %s", s, min(cell, other), max(cell, other))
					j.add("I2", "slot %s is owned by %s and by %s", s, min(cell, other), max(cell, other))
				}
				seen[s] = cell
			}
		}
	}
	if len(v.missing) > 0 {
		return
	}
	lost := 0
	for s := range routing.Slot(routing.Slots) {
		if _, ok := seen[s]; !ok {
			lost++
		}
	}
	if lost > 0 {
		j.add("I1", "%d slots have no writer", lost)
	}
}

func index[T any](facts map[string]Facts, rows func(Facts) []T, key func(T) id.ID) map[id.ID]T {
	out := map[id.ID]T{}
	for _, f := range facts {
		for _, r := range rows(f) {
			out[key(r)] = r
		}
	}
	return out
}

// running takes in what the cells' own looks found.
func (j *judgement) running(v view) {
	for _, f := range v.local {
		for id, lines := range notesOn(f) {
			for _, text := range lines {
				j.note(id, text)
			}
		}
		for _, r := range f.Reconciled {
			for _, text := range r.Differences {
				if r.Stale { // what is so now is read beside it
					j.note("I4", fmt.Sprintf("%s: %s: so it was at the last look, and couldn't be looked at again", f.Cell, text))
					continue
				}
				j.add("I4", "%s", text)
			}
			if n := r.Different - len(r.Differences); n > 0 && !r.Stale {
				j.add("I4", "transfers from %s to %s: %d more differences", f.Cell, r.To, n)
			}
		}
	}
}

func (j *judgement) money(v view) {
	transfer := func(t TransferFact) id.ID { return t.ID }
	before := index(v.before, func(f Facts) []TransferFact { return f.Transfers }, transfer)
	after := index(v.after, func(f Facts) []TransferFact { return f.Transfers }, transfer)
	credits := index(v.dest, func(f Facts) []CreditFact { return f.Credits }, func(c CreditFact) id.ID { return c.ID })
	j.checked["I4"] += int64(len(before) + len(credits))
	for _, t := range before {
		c, ok := credits[t.ID]
		_, readable := owner(v.dest, t.ToSlot)
		switch {
		case t.State == "SETTLED" && !ok && readable:
			j.add("I4", "transfer %s is SETTLED, its destination has no credit", t.ID)
		case t.State == "SETTLED" && ok && c.State != "CREDITED":
			j.add("I4", "transfer %s is SETTLED, its destination says %s", t.ID, c.State)
		case (t.State == "REVERSED" || t.State == "REJECTED") && ok && c.State == "CREDITED":
			j.add("I4", "transfer %s is both CREDITED and %s", t.ID, t.State)
		}
	}
	for _, c := range credits {
		t, ok := after[c.ID]
		_, readable := owner(v.after, c.FromSlot)
		switch {
		case !ok && readable && c.State != "CANCELLED":
			j.add("I4", "credit of transfer %s (%s) has no source", c.ID, c.State)
		case ok && c.State == "CREDITED" && (t.Amount != c.Amount || t.Currency != c.Currency || t.To != c.To):
			j.add("I4", "transfer %s: source says %d %s to %s, destination %d %s to %s", c.ID, t.Amount, t.Currency, t.To, c.Amount, c.Currency, c.To)
		}
	}
}

// over says whether a hold needs nothing more from the seller.
func over(state string) bool { return state == "RELEASED" || state == "REFUSED" || state == "ENDED" }

func (j *judgement) stock(v view) {
	orders := index(v.after, func(f Facts) []OrderFact { return f.Orders }, func(o OrderFact) id.ID { return o.ID })
	holds := index(v.dest, func(f Facts) []HoldFact { return f.Holds }, func(h HoldFact) id.ID { return h.ID })
	for _, h := range holds {
		j.checked["I5"]++
		_, ok := orders[h.Order]
		_, readable := owner(v.after, h.BuyerSlot)
		if !ok && readable && (h.State == "HELD" || h.State == "CONFIRMED") {
			j.add("I5", "hold %s (%s, %d units) is of order %s, which doesn't exist", h.ID, h.State, h.Units, h.Order)
		}
	}
	for _, f := range v.before {
		for _, o := range f.Orders {
			j.checked["I6"]++
			for _, oh := range o.Holds {
				h, ok := holds[oh.ID]
				_, readable := owner(v.dest, oh.Slot)
				active := ok && (h.State == "HELD" || h.State == "CONFIRMED")
				switch {
				case paid(o.State) && !ok && readable:
					j.add("I6", "order %s is %s, its hold %s doesn't exist", o.ID, o.State, oh.ID)
				case paid(o.State) && ok && (h.State != "CONFIRMED" || h.Units != oh.Units):
					j.add("I6", "order %s is %s with %d units, its hold %s is %s with %d", o.ID, o.State, oh.Units, oh.ID, h.State, h.Units)
				case o.State == "CANCELLED" && over(oh.State) && active:
					j.add("I6", "order %s is CANCELLED and its hold %s over, but the seller still has it as %s", o.ID, oh.ID, h.State)
				}
			}
		}
	}
}

func paid(state string) bool { return state == "PAID" || state == "SHIPPED" || state == "COMPLETED" }

func (j *judgement) phones(v view) {
	claims := map[string]ClaimFact{}
	for _, f := range v.after {
		for _, c := range f.Claims {
			if c.State == "RELEASED" {
				continue
			}
			if other, ok := claims[c.Phone]; ok && other.User != c.User {
				j.add("I7", "phone %.12s is claimed by user %s and by user %s", c.Phone, other.User, c.User)
			}
			claims[c.Phone] = c
		}
	}
	users, phones := map[id.ID]bool{}, map[string]id.ID{}
	for _, f := range v.dest {
		for _, u := range f.Users {
			j.checked["I7"]++
			users[u.ID] = true
			if other, ok := phones[u.Phone]; ok && other != u.ID {
				j.add("I7", "phone %.12s belongs to user %s and to user %s", u.Phone, min(other, u.ID), max(other, u.ID))
			}
			phones[u.Phone] = u.ID
			c, ok := claims[u.Phone]
			_, readable := owner(v.after, u.Claim)
			if !ok && readable {
				j.add("I7", "user %s has no claim on their phone", u.ID)
			}
			if ok && c.User != u.ID {
				j.add("I7", "user %s has the phone that user %s claimed", u.ID, c.User)
			}
		}
	}
	for _, f := range v.before {
		for _, c := range f.Claims {
			if _, readable := owner(v.dest, c.UserSlot); c.State == "CONFIRMED" && !users[c.User] && readable {
				j.add("I7", "the claim of phone %.12s is confirmed for user %s, who doesn't exist", c.Phone, c.User)
			}
		}
	}
}
