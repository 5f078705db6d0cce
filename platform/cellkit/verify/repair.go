package verify

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"
)

// repair has slots that differ copied anew, and compares them again. A difference
// counts as repaired when its slot is equal then.
func (r *run) repair(ctx context.Context) {
	bad := map[[2]string]map[int32]bool{}
	for at := range r.report.places() {
		if at.owner == "" { // a stray: no copy would touch it
			continue
		}
		k := [2]string{at.owner, at.standby}
		if bad[k] == nil {
			bad[k] = map[int32]bool{}
		}
		bad[k][at.slot] = true
	}
	for _, k := range slices.SortedFunc(maps.Keys(bad), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		p := pair{owner: r.cells[k[0]], standby: r.cells[k[1]], slots: slices.Sorted(maps.Keys(bad[k]))}
		equal, err := r.again(ctx, p)
		if err != nil {
			r.report.left(k[0], k[1], "", fmt.Sprintf("not repaired: %v", err), p.slots)
		}
		for i := range r.report.Differences {
			d := &r.report.Differences[i]
			if d.Kind != Stray && d.Owner == k[0] && d.Standby == k[1] && equal[d.Slot] {
				d.Repaired = true
			}
		}
		r.report.unlisted = slices.DeleteFunc(r.report.unlisted, func(at place) bool {
			return at.owner == k[0] && at.standby == k[1] && equal[at.slot]
		})
	}
}

// places are those where something differs.
func (r Report) places() iter.Seq[place] {
	return func(yield func(place) bool) {
		for _, d := range r.Differences {
			if !yield(place{d.Owner, d.Standby, d.Slot}) {
				return
			}
		}
		for _, at := range r.unlisted {
			if !yield(at) {
				return
			}
		}
	}
}

// again has a pair's slots copied, and gives those that were compared then and are
// equal.
func (r *run) again(ctx context.Context, p pair) (map[int32]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Copied)
	defer cancel()
	err := p.standby.ask(ctx, opRecopy, question{Source: p.owner.name, Slots: p.slots, Reason: "a comparison with the owner found differences"}, nil)
	if err != nil {
		return nil, err
	}
	for {
		waits, err := r.copying(ctx, p)
		if err == nil && waits == 0 {
			break
		}
		pause(ctx, 300*time.Millisecond)
		if ctx.Err() != nil {
			if err == nil {
				err = fmt.Errorf("%d slots aren't in sync after %v", waits, r.Copied)
			}
			return nil, err
		}
	}
	n := &run{Ask: r.Ask, cells: r.cells, known: r.known, report: Report{AtLSN: map[string]lsn{}}}
	n.group(ctx, p, p.slots)
	r.report.Pairs = append(r.report.Pairs, n.report.Pairs...)
	equal := map[int32]bool{}
	for _, s := range p.slots {
		equal[s] = len(n.report.Pairs) > 0
	}
	for at := range n.report.places() {
		equal[at.slot] = false
	}
	for _, not := range n.report.NotCompared {
		for _, s := range not.Slots {
			for slot := s[0]; slot <= s[1]; slot++ {
				equal[slot] = false
			}
		}
	}
	return equal, nil
}

// copying counts the slots that aren't in sync yet.
func (r *run) copying(ctx context.Context, p pair) (int, error) {
	var now cellSlots
	if err := p.standby.ask(ctx, opSlots, question{}, &now); err != nil {
		return 0, err
	}
	good := 0
	for _, s := range now.Slots {
		if s.Owner == p.owner.name && s.Copy == "in_sync" && slices.Contains(p.slots, s.Slot) {
			good++
		}
	}
	return len(p.slots) - good, nil
}
