package planner

import (
	"fmt"
	"slices"

	"example.com/cellmart/platform/routing"
)

// Range is a half-open range of slots, From to before To, of one cell.
type Range struct {
	From, To int
	Cell     string
}

// RangesOf joins slots that follow each other and have one owner.
func RangesOf(owners []string) []Range {
	var out []Range
	for i, o := range owners {
		if n := len(out); n > 0 && out[n-1].Cell == o {
			out[n-1].To++
			continue
		}
		out = append(out, Range{i, i + 1, o})
	}
	return out
}

// HashRanges gives each cell a range of the hash, by weight. A new cell takes the upper
// part of the range that is heaviest for its weight: only that part moves. What
// a cell leaves behind goes to the neighbour below (the lowest range: above).
type HashRanges struct{}

// Plan implements Planner.
func (HashRanges) Plan(current []string, shares []routing.Share) (Plan, error) {
	current, shares, err := prepare(current, shares)
	if err != nil {
		return Plan{}, err
	}
	weight := weights(shares)
	owners := inherit(current, weight)
	if owners[0] == "" {
		cut(owners, shares)
	}
	for _, s := range shares {
		if slices.Contains(owners, s.Cell) {
			continue
		}
		if err := splitHeaviest(owners, s, weight); err != nil {
			return Plan{}, err
		}
	}
	return Plan{Owners: owners, Report: measure(current, owners, shares)}, nil
}

func weights(shares []routing.Share) map[string]int {
	out := make(map[string]int, len(shares))
	for _, s := range shares {
		out[s.Cell] = s.Weight
	}
	return out
}

// inherit keeps the owners that still have a weight and gives the rest to the
// neighbour below, else above; all stay "" if nobody is left.
func inherit(current []string, weight map[string]int) []string {
	owners := make([]string, len(current))
	last := ""
	for i, o := range current {
		if weight[o] > 0 {
			last = o
		}
		owners[i] = last
	}
	if first := slices.IndexFunc(owners, func(o string) bool { return o != "" }); first > 0 {
		for i := range first {
			owners[i] = owners[first]
		}
	}
	return owners
}

// splitHeaviest gives the upper part of one range to a new cell, so that both
// have by weight. A tie is the lowest range's.
func splitHeaviest(owners []string, s routing.Share, weight map[string]int) error {
	best, most := Range{}, 0.0
	for _, r := range RangesOf(owners) {
		if load := float64(r.To-r.From) / float64(weight[r.Cell]); load > most && r.To-r.From > 1 {
			best, most = r, load
		}
	}
	size := best.To - best.From
	if size < 2 {
		return fmt.Errorf("%w: no range is left that %s could have a part of", routing.ErrTable, s.Cell)
	}
	part := size * s.Weight / (s.Weight + weight[best.Cell])
	for i := best.To - min(max(part, 1), size-1); i < best.To; i++ {
		owners[i] = s.Cell
	}
	return nil
}

// IDRanges is for slots that stand for ranges of the ID (ByRange): Used of them
// have rows, the ones above wait for new IDs. A new cell takes its part of what
// waits, so nothing moves; in return all new users come to the cells that own
// the next IDs.
type IDRanges struct{ Used int }

// Plan implements Planner. Slots without rows don't count as moved.
func (p IDRanges) Plan(current []string, shares []routing.Share) (Plan, error) {
	current, shares, err := prepare(current, shares)
	if err != nil {
		return Plan{}, err
	}
	if p.Used < 0 || p.Used > routing.Slots {
		return Plan{}, fmt.Errorf("%w: %d of %d slots in use", routing.ErrTable, p.Used, routing.Slots)
	}
	rows := slices.Clone(current)
	for i := p.Used; i < len(rows); i++ {
		rows[i] = ""
	}
	owners := inherit(rows, weights(shares))
	// The cells without rows cut what waits; if there is none, all do, by weight.
	var waiting []routing.Share
	for _, s := range shares {
		if !slices.Contains(owners[:p.Used], s.Cell) {
			waiting = append(waiting, s)
		}
	}
	from := p.Used
	if owners[0] == "" {
		from = 0
	}
	if len(waiting) == 0 {
		waiting = shares
	}
	cut(owners[from:], waiting)
	return Plan{Owners: owners, Report: measure(rows, owners, shares)}, nil
}

// cut gives each cell one range by weight, in order.
func cut(owners []string, shares []routing.Share) {
	sum, before := 0, 0
	for _, s := range shares {
		sum += s.Weight
	}
	for _, s := range shares {
		lo := len(owners) * before / sum
		before += s.Weight
		for i := lo; i < len(owners)*before/sum; i++ {
			owners[i] = s.Cell
		}
	}
}
