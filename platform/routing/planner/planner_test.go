package planner_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/routing"
	"example.com/cellmart/platform/routing/planner"
)

func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// cells gives c1 to cN, all of one weight.
func cells(n int) []routing.Share {
	var out []routing.Share
	for i := range n {
		out = append(out, routing.Share{Cell: fmt.Sprintf("c%d", i+1), Weight: 1})
	}
	return out
}

func mustPlan(t testing.TB, p planner.Planner, current []string, shares []routing.Share) planner.Plan {
	t.Helper()
	plan, err := p.Plan(current, shares)
	if err != nil {
		t.Fatalf("%T: %v", p, err)
	}
	return plan
}

// check holds a plan against what every plan must be: one owner with a weight
// per slot, and a report that counts what is there.
func check(t testing.TB, name string, current []string, shares []routing.Share, plan planner.Plan) {
	t.Helper()
	if len(plan.Owners) != routing.Slots {
		t.Fatalf("%s: %d owners", name, len(plan.Owners))
	}
	slots, moved := map[string]int{}, 0
	for i, o := range plan.Owners {
		if !slices.ContainsFunc(shares, func(s routing.Share) bool { return s.Cell == o && s.Weight > 0 }) {
			t.Fatalf("%s: slot %d is owned by %q", name, i, o)
		}
		slots[o]++
		if current != nil && current[i] != o {
			moved++
		}
	}
	if d := cmp.Diff(slots, plan.Report.Slots); d != "" {
		t.Errorf("%s: slots: %s", name, d)
	}
	if _, ids := find(t, name).(planner.IDRanges); !ids && plan.Report.Moved != moved {
		t.Errorf("%s: report says %d moved, counted %d", name, plan.Report.Moved, moved)
	}
}

func find(t testing.TB, name string) planner.Planner {
	t.Helper()
	for _, p := range planner.All() {
		if p.Name == name {
			return p.Planner
		}
	}
	t.Fatalf("no planner %s", name)
	return nil
}

// TestPlanners walks every planner through sets of cells: one owner per slot,
// the same plan whatever the order of cells, the same plan again.
func TestPlanners(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	for _, p := range planner.All() {
		t.Run(p.Name, func(t *testing.T) {
			var current []string
			for range 4 {
				n := 2 + r.IntN(12)
				if _, doubling := p.Planner.(planner.Doubling); doubling && current != nil {
					n = 2 * len(planner.RangesOf(slices.Compact(slices.Sorted(slices.Values(current)))))
				}
				shares := cells(n)
				plan := mustPlan(t, p.Planner, current, shares)
				check(t, p.Name, current, shares, plan)
				r.Shuffle(len(shares), func(i, j int) { shares[i], shares[j] = shares[j], shares[i] })
				if d := cmp.Diff(plan, mustPlan(t, p.Planner, current, shares)); d != "" {
					t.Fatalf("depends on the order of cells: %s", d)
				}
				current = plan.Owners
			}
		})
	}
}

// Weights either count or are refused, and a cell of weight 0 owns nothing.
func TestWeights(t *testing.T) {
	t.Parallel()
	shares := []routing.Share{{Cell: "c1", Weight: 3}, {Cell: "c2", Weight: 1}, {Cell: "c3", Weight: 0}}
	for _, p := range planner.All() {
		plan, err := p.Planner.Plan(nil, shares)
		if err != nil {
			if !errors.Is(err, routing.ErrTable) || !strings.Contains(err.Error(), "no weights") {
				t.Errorf("%s: %v", p.Name, err)
			}
			continue
		}
		check(t, p.Name, nil, shares, plan)
		// Three to one; rings are the least exact, bare FNV is off altogether.
		if big := plan.Report.MaxShare; p.Name != "ring-bare-fnv" && (big < 0.65 || big > 0.85) {
			t.Errorf("%s: the cell of weight 3 of 4 has %.3f of the slots", p.Name, big)
		}
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	type share = routing.Share
	for name, shares := range map[string][]share{
		"none":          {},
		"no weight":     {{Cell: "c1"}, {Cell: "c2"}},
		"negative":      {{Cell: "c1", Weight: 1}, {Cell: "c2", Weight: -1}},
		"too much":      {{Cell: "c1", Weight: routing.MaxWeight + 1}},
		"twice":         {{Cell: "c1", Weight: 1}, {Cell: "c1", Weight: 1}},
		"no name":       {{Cell: "", Weight: 1}},
		"an IP address": {{Cell: "10.0.0.1", Weight: 1}},
		"host and port": {{Cell: "c1:8080", Weight: 1}},
		"a host name":   {{Cell: "c1.example.com", Weight: 1}},
		"IPv6":          {{Cell: "fe80::1", Weight: 1}},
	} {
		for _, p := range planner.All() {
			if _, err := p.Planner.Plan(nil, shares); !errors.Is(err, routing.ErrTable) {
				t.Errorf("%s, %s: %v, want ErrTable", p.Name, name, err)
			}
			if _, err := p.Planner.Plan(make([]string, 3), cells(2)); !errors.Is(err, routing.ErrTable) {
				t.Errorf("%s with a current of 3 slots: %v", p.Name, err)
			}
		}
	}
	for _, p := range []planner.Planner{
		planner.Ring{Base: -1}, planner.Bounded{Factor: 0.5}, planner.Bounded{Factor: -1},
		planner.Sharded{Tables: -1}, planner.Doubling{Tables: -1}, planner.IDRanges{Used: -1}, planner.IDRanges{Used: routing.Slots + 1},
	} {
		if _, err := p.Plan(nil, cells(2)); !errors.Is(err, routing.ErrTable) {
			t.Errorf("%+v: %v, want ErrTable", p, err)
		}
	}
}

// S-I09: tables are deterministic. The same cells give the same table on every
// machine and in every version, also when they come last first.
func TestScenario_I09_GoldenTables(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"modulo":        "fc537ed5e9bff47d",
		"ring":          "0441bfee71ae3579",
		"ring-bare-fnv": "0b0b6fa9a462b1e3",
		"bounded":       "c7bbf770ffb8295d",
		"rendezvous":    "6554fcbbae3c3c8e",
		"jump":          "0bb963b2ea2a8a87",
		"buckets":       "790ecb921a2f54f7",
		"hash-ranges":   "9c0c71a9270de5df",
		"id-ranges":     "9c0c71a9270de5df",
		"two-step":      "c8d3a67457a5298e",
		"mixed-split":   "7e38472c3d487d40",
		"common-factor": "7e38472c3d487d40",
		"coprime":       "af9e535194394012",
		"prefix-gene":   "bd1d663d4d116a60",
		"doubling":      "c8d3a67457a5298e",
		"balanced":      "a7347a42bb671c67",
	} {
		backwards := cells(6)
		slices.Reverse(backwards)
		h := fnv.New64a()
		fmt.Fprint(h, mustPlan(t, find(t, name), nil, backwards).Owners)
		if got := fmt.Sprintf("%016x", h.Sum64()); got != want {
			t.Errorf("%s: the table of 6 cells is %s, was %s: stored tables and other versions would disagree", name, got, want)
		}
	}
}

// S-I10: a number and its text are one key, everywhere.
func TestScenario_I10_NumberAndTextAreOneKey(t *testing.T) {
	t.Parallel()
	for _, id := range []int64{0, 1, 10086, -1, 1 << 62} {
		text := fmt.Sprint(id)
		hash := planner.FNVMurmur().Sum(text)
		if a, b := planner.ByHash("")(id), routing.HashSlot(text); a != b || int(b) != int(hash%routing.Slots) {
			t.Errorf("%d as number is in slot %d, as text in %d, by the ring's hash in %d", id, a, b, hash%routing.Slots)
		}
		if a, b := planner.ByHash("user")(id), routing.HashSlot("user"+text); a != b {
			t.Errorf("user%d: slot %d and %d", id, a, b)
		}
	}
}

// S-R08: bare FNV-1a puts a cell's tokens side by side, so that one cell has
// nearly all; the report says so, and only then.
func TestScenario_R08_AClusteredRingIsFlagged(t *testing.T) {
	t.Parallel()
	shares := cells(5)
	for _, base := range []int{10, 100, 500} {
		weak := mustPlan(t, planner.Ring{Hash: planner.FNV(), Base: base}, nil, shares).Report
		good := mustPlan(t, planner.Ring{Base: base}, nil, shares).Report
		if !slices.Contains(weak.Flags, planner.FlagClustered) {
			t.Errorf("bare FNV-1a, %d tokens: gaps %v, flags %v: not flagged", base, weak.Gaps, weak.Flags)
		}
		if slices.Contains(good.Flags, planner.FlagClustered) {
			t.Errorf("with finalizer, %d tokens: gaps %v, flags %v", base, good.Gaps, good.Flags)
		}
		t.Logf("%d tokens: bare gaps %v max/mean %.2f %v; finalized gaps %v max/mean %.2f %v", base, weak.Gaps, weak.MaxMean, weak.Flags, good.Gaps, good.MaxMean, good.Flags)
	}
}

// FuzzPlan: whatever cells are asked for, a planner answers with a plan that
// holds, or refuses with ErrTable.
func FuzzPlan(f *testing.F) {
	f.Add("c1 c2 c3", uint8(1), uint8(0))
	f.Add("c1 c1", uint8(3), uint8(1))
	f.Add("10.0.0.1:80", uint8(9), uint8(2))
	f.Add("a b c d e f g", uint8(200), uint8(250))
	f.Fuzz(func(t *testing.T, names string, weight, spread uint8) {
		var shares []routing.Share
		for i, n := range strings.Fields(names) {
			if len(shares) < 40 {
				shares = append(shares, routing.Share{Cell: n, Weight: int(weight) + i*int(spread)})
			}
		}
		for _, p := range planner.All() {
			plan, err := p.Planner.Plan(nil, shares)
			if err != nil {
				if !errors.Is(err, routing.ErrTable) {
					t.Errorf("%s: %v", p.Name, err)
				}
				continue
			}
			check(t, p.Name, nil, shares, plan)
		}
	})
}
