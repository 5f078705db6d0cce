package control

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/control/controlapi"
)

// cellsOf asks for a first table of n cells with these weights, the last one again
// and again.
func cellsOf(n int, weights ...int) controlapi.InitRequest {
	var req controlapi.InitRequest
	for i := range n {
		req.Cells = append(req.Cells, controlapi.Cell{Name: fmt.Sprintf("c%d", i+1), Region: "r1", Weight: weights[min(i, len(weights)-1)]})
	}
	return req
}

// uneven says what isn't spread evenly in a table: shares of a pair differ by more
// than one, or, where all own equally many, a cell stands by for more than two over
// another in sum.
func uneven(t *routing.Table) []string {
	var out []string
	names := make([]string, 0, len(t.Cells()))
	for _, c := range t.Cells() {
		names = append(names, c.Name)
	}
	for kind, all := range map[string][]routing.Slot{"hash": hashSlots(), "private": t.PrivateSlots()} {
		share, sum, owned := map[pair]int{}, map[string]int{}, map[string]int{}
		for _, s := range all {
			a, _ := t.Slot(s)
			if a.Standby == "" && len(names) > 1 {
				out = append(out, fmt.Sprintf("slot %d has no standby", s))
			}
			share[pair{a.Owner, a.Standby}]++
			sum[a.Standby]++
			owned[a.Owner]++
		}
		for _, owner := range names {
			for _, o := range names {
				n := share[pair{owner, o}]
				if low := owned[owner] / max(1, len(names)-1); o != owner && (n < low || n > low+1) {
					out = append(out, fmt.Sprintf("%s stands by for %d of %d %s slots of %s", o, n, owned[owner], kind, owner))
				}
				if diff := sum[o] - sum[names[0]]; alike(owned) && (diff > 2 || diff < -2) {
					out = append(out, fmt.Sprintf("%s stands by for %d %s slots, %s for %d", o, sum[o], kind, names[0], sum[names[0]]))
				}
			}
		}
	}
	return out
}

// alike says whether the counts differ by one at most.
func alike(counts map[string]int) bool {
	all := slices.Sorted(maps.Values(counts))
	return all[len(all)-1]-all[0] <= 1
}

func hashSlots() []routing.Slot {
	all := make([]routing.Slot, routing.Slots)
	for i := range all {
		all[i] = routing.Slot(i)
	}
	return all
}

func TestFirstTableSpreadsStandbys(t *testing.T) {
	t.Parallel()
	for n := 2; n <= 12; n++ {
		table, err := firstTable(cellsOf(n, 100))
		if err != nil {
			t.Fatal(err)
		}
		if bad := uneven(table); bad != nil {
			t.Errorf("%d cells: %v", n, bad)
		}
		again, _ := firstTable(cellsOf(n, 100))
		if diff := cmp.Diff(string(table.Encode()), string(again.Encode())); diff != "" {
			t.Errorf("%d cells: not the same again", n)
		}
		if size := len(table.Encode()); size > 4000*n {
			t.Errorf("%d cells: the table takes %d bytes: the standbys are scattered", n, size)
		}
	}
	alone, err := firstTable(cellsOf(1, 100))
	if err != nil {
		t.Fatal(err)
	}
	if a, ok := alone.Slot(7); !ok || a != (routing.Assignment{Owner: "c1", Epoch: 1}) {
		t.Errorf("one cell: slot 7 is %v", a)
	}
}

// After weights, moves and users with slots of their own, a spread makes it even
// again, moves no more than that takes, and then finds nothing to do.
func TestSpreadAgain(t *testing.T) {
	t.Parallel()
	table, err := firstTable(cellsOf(5, 100, 300, 50))
	if err != nil {
		t.Fatal(err)
	}
	if bad := uneven(table); bad != nil {
		t.Errorf("weighted cells: %v", bad)
	}
	spec := table.Spec()
	rng := rand.New(rand.NewPCG(1, 2))
	lost := 0
	for s := range spec.Slots {
		if a := &spec.Slots[s]; a.Owner == "c2" && rng.IntN(10) == 0 { // moved: the old owner is the standby
			a.Owner, a.Standby, a.Epoch = "c3", "c2", 2
		} else if rng.IntN(20) == 0 {
			a.Standby = ""
			lost++
		}
	}
	for i := range routing.Slot(30) {
		spec.Private[routing.FirstUserSlot+i] = routing.Assignment{Owner: "c4", Epoch: 1}
	}
	before, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	spec = before.Spec()
	spread(&spec)
	after, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	if bad := uneven(after); bad != nil {
		t.Error(bad)
	}
	changed := 0
	for _, s := range hashSlots() {
		was, _ := before.Slot(s)
		is, _ := after.Slot(s)
		if was.Owner != is.Owner || was.Epoch != is.Epoch {
			t.Fatalf("slot %d: %v became %v", s, was, is)
		}
		if was.Standby != "" && was.Standby != is.Standby {
			changed++
		}
	}
	surplus := 0 // what a pair has too much of must go, and no more
	have := map[pair]int{}
	for _, s := range hashSlots() {
		if a, _ := before.Slot(s); a.Standby != "" {
			have[pair{a.Owner, a.Standby}]++
		}
	}
	for p, n := range have {
		surplus += max(0, n-(len(before.SlotsOf(p.owner))/4))
	}
	if changed > surplus || lost == 0 {
		t.Errorf("%d slots changed their standby, %d are enough", changed, surplus)
	}
	twice := after.Spec()
	spread(&twice)
	if diff := cmp.Diff(after.Spec(), twice); diff != "" {
		t.Errorf("spread twice: %s", diff)
	}
}
