package routing_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/routing"
)

func randomShares(r *rand.Rand) []routing.Share {
	var shares []routing.Share
	for _, i := range r.Perm(20)[:1+r.IntN(16)] {
		shares = append(shares, routing.Share{Cell: fmt.Sprintf("c%d", i), Weight: r.IntN(6)})
	}
	shares[0].Weight++
	return shares
}

func count(owners []string) map[string]int {
	n := map[string]int{}
	for _, o := range owners {
		n[o]++
	}
	return n
}

// TestBalanced holds every plan of a random walk of cells and weights against
// the definition: each cell within one slot of its exact share, one owner per
// slot, and not a slot more moved than the numbers force.
func TestBalanced(t *testing.T) {
	r := seeded(t)
	var current []string
	for step := range 60 {
		shares := randomShares(r)
		plan, err := routing.Balanced(current, shares)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, s := range shares {
			sum += s.Weight
		}
		had, has := count(current), count(plan.Owners)
		given := 0 // what over-full cells must give away
		for name, n := range had {
			given += max(0, n-has[name])
		}
		for _, s := range shares {
			n := has[s.Cell]
			if exact := routing.Slots * s.Weight; n*sum <= exact-sum || n*sum >= exact+sum {
				t.Fatalf("step %d: %s has %d slots, exact share is %d/%d", step, s.Cell, n, exact, sum)
			}
			delete(has, s.Cell)
		}
		if len(has) != 0 {
			t.Fatalf("step %d: slots of strangers: %v", step, has)
		}
		moved := 0
		for i := range current {
			if current[i] != plan.Owners[i] {
				moved++
			}
		}
		if moved != given || plan.Report.Moved != moved {
			t.Fatalf("step %d: moved %d slots, report says %d, least is %d", step, moved, plan.Report.Moved, given)
		}
		r.Shuffle(len(shares), func(i, j int) { shares[i], shares[j] = shares[j], shares[i] })
		again, err := routing.Balanced(current, shares)
		if err != nil || !cmp.Equal(plan, again) {
			t.Fatalf("step %d: another order of cells gives another plan", step)
		}
		rest, err := routing.Balanced(plan.Owners, shares)
		if err != nil || rest.Report.Moved != 0 {
			t.Fatalf("step %d: planning a balanced table again moves %d", step, rest.Report.Moved)
		}
		current = plan.Owners
	}
}

// TestBalancedTies: the odd slots of equal remainders stay where they are.
func TestBalancedTies(t *testing.T) {
	current := make([]string, routing.Slots)
	for i := range current {
		current[i] = [...]string{"a", "b", "c"}[i%3] // a has 5462, b and c 5461
	}
	current[0] = "c"
	plan, err := routing.Balanced(current, []routing.Share{{Cell: "a", Weight: 1}, {Cell: "b", Weight: 1}, {Cell: "c", Weight: 1}})
	if err != nil || plan.Report.Moved != 0 {
		t.Errorf("moved %d, %v, want 0", plan.Report.Moved, err)
	}
}

func TestBalancedAddsCells(t *testing.T) {
	shares := []routing.Share{{Cell: "c1", Weight: 1}, {Cell: "c2", Weight: 1}, {Cell: "c3", Weight: 1}, {Cell: "c4", Weight: 1}}
	plan, err := routing.Balanced(nil, shares)
	if err != nil {
		t.Fatal(err)
	}
	if r := plan.Report; r.Moved != 0 || r.Skew != 0 || r.MaxShare != 0.25 || r.MinShare != 0.25 {
		t.Errorf("four cells from nothing: %+v", r)
	}
	for n := 5; n <= 8; n++ {
		shares = append(shares, routing.Share{Cell: fmt.Sprintf("c%d", n), Weight: 1})
		plan, err = routing.Balanced(plan.Owners, shares)
		if err != nil {
			t.Fatal(err)
		}
		if r := plan.Report; r.Moved != plan.Report.Slots[fmt.Sprintf("c%d", n)] || r.Skew >= 0.001 {
			t.Errorf("to %d cells: %+v, want only the new cell's slots moved and skew under 0.1 %%", n, r)
		}
	}
}

func TestBalancedRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		current []string
		shares  []routing.Share
	}{
		"no cells":         {nil, nil},
		"no weight":        {nil, []routing.Share{{Cell: "c1", Weight: 0}}},
		"negative weight":  {nil, []routing.Share{{Cell: "c1", Weight: -1}, {Cell: "c2", Weight: 2}}},
		"a huge weight":    {nil, []routing.Share{{Cell: "c1", Weight: routing.MaxWeight + 1}}},
		"an address":       {nil, []routing.Share{{Cell: "127.0.0.1:1", Weight: 1}}},
		"a cell twice":     {nil, []routing.Share{{Cell: "c1", Weight: 1}, {Cell: "c1", Weight: 1}}},
		"some other table": {make([]string, 12), []routing.Share{{Cell: "c1", Weight: 1}}},
	} {
		if _, err := routing.Balanced(c.current, c.shares); !errors.Is(err, routing.ErrTable) {
			t.Errorf("%s: %v, want ErrTable", name, err)
		}
	}
}

func TestSpread(t *testing.T) {
	a := routing.Spread([]string{"c1", "c2", "c10"})
	b := routing.Spread([]string{"c10", "c2", "c1", "c2", "not a name"})
	if !cmp.Equal(a.Encode(), b.Encode()) {
		t.Error("the order of configured cells changes the table")
	}
	if a.Version() != 0 {
		t.Errorf("version %d, want 0", a.Version())
	}
	if s, _ := a.CellSlot("c10"); s != routing.CellSlot(3) {
		t.Errorf("cell slot of c10 = %d, want that of ordinal 3", s)
	}
	empty := routing.Spread(nil)
	if _, ok := empty.Slot(0); ok {
		t.Error("a table of no cells finds something")
	}
	if _, ok := routing.PickSlot(empty, "c1", 1); ok {
		t.Error("a table of no cells picks something")
	}
}

func TestPickSlot(t *testing.T) {
	r := seeded(t)
	spec := routing.Spread([]string{"c1", "c2", "c3"}).Spec()
	for i := range spec.Slots { // scatter the owners
		spec.Slots[i].Owner = spec.Cells[r.IntN(2)].Name // c3 owns nothing
	}
	spec.Cells[1].Weight = 0
	table := mustBuild(t, spec)
	for _, cell := range []string{"c2", "c3", "c9", ""} {
		if s, ok := routing.PickSlot(table, cell, r.Uint64()); ok {
			t.Errorf("PickSlot(%q) = %d: closed, empty or unknown cells take nobody", cell, s)
		}
	}
	n := map[routing.Slot]int{}
	owned := len(table.SlotsOf("c1"))
	for h := range 100 * owned { // small numbers are bad hashes on purpose
		s, ok := routing.PickSlot(table, "c1", uint64(h))
		if a, _ := table.Slot(s); !ok || a.Owner != "c1" {
			t.Fatalf("PickSlot = %d of %q, %v", s, a.Owner, ok)
		}
		n[s]++
	}
	if len(n) != owned {
		t.Errorf("%d of %d slots were ever picked", len(n), owned)
	}
	for s, c := range n {
		if c < 40 || c > 180 {
			t.Errorf("slot %d was picked %d times, want about 100", s, c)
		}
	}
}
