package planner

import (
	"fmt"

	"example.com/cellmart/platform/routing"
)

// Rollout turns a change of shares into sets that follow each other, each with
// one cell's weight changed: cells that are new one after the other, then those
// whose weight differs, then those that go, each in so many steps. Weights are
// scaled by steps, so that a weight of 1 has parts; the last set is to, scaled.
func Rollout(from, to []routing.Share, steps int) ([][]routing.Share, error) {
	if steps < 1 || steps > 100 {
		return nil, fmt.Errorf("%w: a rollout of %d steps, want 1 to 100", routing.ErrTable, steps)
	}
	old, err := sorted(from)
	if err != nil {
		return nil, err
	}
	if _, _, err := prepare(nil, to); err != nil {
		return nil, err
	}
	next, _ := sorted(to)
	had, has := weights(old), weights(next)
	now := make([]routing.Share, 0, len(old)+len(next)) // scaled
	for _, s := range old {
		now = append(now, routing.Share{Cell: s.Cell, Weight: s.Weight * steps})
	}
	for _, s := range next {
		if _, known := had[s.Cell]; !known {
			now = append(now, routing.Share{Cell: s.Cell})
		}
	}
	if now, err = sorted(now); err != nil {
		return nil, err
	}
	for _, s := range append(old, next...) {
		if s.Weight*steps > routing.MaxWeight {
			return nil, fmt.Errorf("%w: weight %d of %s can't be cut into %d steps", routing.ErrTable, s.Weight, s.Cell, steps)
		}
	}
	var out [][]routing.Share
	walk := func(wanted func(old, new int) bool) {
		for i := range now {
			a, b := had[now[i].Cell], has[now[i].Cell]
			if a == b || !wanted(a, b) {
				continue
			}
			for k := 1; k <= steps; k++ {
				now[i].Weight = a*(steps-k) + b*k
				out = append(out, append([]routing.Share(nil), now...))
			}
		}
	}
	walk(func(a, _ int) bool { return a == 0 })
	walk(func(a, b int) bool { return a != 0 && b != 0 })
	walk(func(_, b int) bool { return b == 0 })
	return out, nil
}
