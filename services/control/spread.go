package control

import (
	"cmp"
	"slices"

	"example.com/cellmart/platform/routing"
)

// pair is a cell that owns slots and one that stands by for them.
type pair struct{ owner, standby string }

// spread gives each slot of the spec a standby, so that a cell's slots fall to all
// others in equal parts when it dies: each pair of cells has an equal share of the
// owner's slots, give or take one, of hash slots and of private ones by
// themselves, and what is left over goes where the sum is least. What has a standby
// keeps it as far as that allows, the rest goes in ranges, which encode shortest.
// It depends on the spec only. With one cell there is nobody to stand by.
func spread(spec *routing.Spec) {
	cells := slices.Clone(spec.Cells)
	slices.SortFunc(cells, func(a, b routing.Cell) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	names := make([]string, len(cells))
	for i, c := range cells {
		names[i] = c.Name
	}

	hash := make([]routing.Slot, len(spec.Slots))
	for s := range hash {
		hash[s] = routing.Slot(s)
	}
	spreadOver(names, hash, func(s routing.Slot) routing.Assignment { return spec.Slots[s] },
		func(s routing.Slot, a routing.Assignment) { spec.Slots[s] = a })

	// A cell's own slot may be left out of a spec; here it can't, or it had no standby.
	private := make([]routing.Slot, 0, len(spec.Private)+len(cells))
	for _, c := range cells {
		s := routing.CellSlot(c.Ordinal)
		if _, ok := spec.Private[s]; !ok {
			if spec.Private == nil {
				spec.Private = map[routing.Slot]routing.Assignment{}
			}
			spec.Private[s] = routing.Assignment{Owner: c.Name, Epoch: 1}
		}
	}
	for s := range spec.Private {
		private = append(private, s)
	}
	slices.Sort(private)
	spreadOver(names, private, func(s routing.Slot) routing.Assignment { return spec.Private[s] },
		func(s routing.Slot, a routing.Assignment) { spec.Private[s] = a })
}

// spreadOver does it for some slots, ascending.
func spreadOver(names []string, all []routing.Slot, get func(routing.Slot) routing.Assignment, set func(routing.Slot, routing.Assignment)) {
	owned := map[string][]routing.Slot{}
	have := map[pair]int{}
	for _, s := range all {
		a := get(s)
		owned[a.Owner] = append(owned[a.Owner], s)
		have[pair{a.Owner, a.Standby}]++
	}
	want := quotas(names, owned, have)
	for i, owner := range names {
		room := make([]int, 0, len(names)-1)
		others := othersOf(names, i)
		for _, o := range others {
			room = append(room, want[pair{owner, o}])
		}
		var left []routing.Slot
		for _, s := range owned[owner] {
			if at := slices.Index(others, get(s).Standby); at >= 0 && room[at] > 0 {
				room[at]--
			} else {
				left = append(left, s)
			}
		}
		at := 0
		for _, s := range left {
			a := get(s)
			for at < len(others) && room[at] == 0 {
				at++
			}
			a.Standby = ""
			if at < len(others) {
				a.Standby = others[at]
				room[at]--
			}
			set(s, a)
		}
	}
}

// othersOf lists all names but the i-th, from the one after it on, so that not
// always the same cell is first.
func othersOf(names []string, i int) []string {
	return append(slices.Clone(names[i+1:]), names[:i]...)
}

// quotas says how many slots of each owner each other cell stands by for: the
// equal part, and the slots that are left over go to who has the fewest in sum;
// among those to who has more of this owner's already.
func quotas(names []string, owned map[string][]routing.Slot, have map[pair]int) map[pair]int {
	want, total := map[pair]int{}, map[string]int{}
	if len(names) < 2 {
		return want
	}
	for i, owner := range names {
		for _, o := range othersOf(names, i) {
			want[pair{owner, o}] = len(owned[owner]) / (len(names) - 1)
			total[o] += want[pair{owner, o}]
		}
	}
	for i, owner := range names {
		others := othersOf(names, i)
		slices.SortStableFunc(others, func(a, b string) int {
			return cmp.Or(cmp.Compare(total[a], total[b]), cmp.Compare(have[pair{owner, b}], have[pair{owner, a}]))
		})
		for _, o := range others[:len(owned[owner])%(len(names)-1)] {
			want[pair{owner, o}]++
			total[o]++
		}
	}
	return want
}
