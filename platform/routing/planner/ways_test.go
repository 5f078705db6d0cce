package planner_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/routing"
	"example.com/cellmart/platform/routing/planner"
)

// Vectors from outside this repository: FNV-1a's and Java's own test values,
// jump hash's published ones, MD5 buckets of a published experiment.
func TestHashVectors(t *testing.T) {
	t.Parallel()
	if got := planner.FNV().Sum("foobar"); got != 0x85944171f73967e8 {
		t.Errorf("FNV-1a 64 of foobar = %x", got)
	}
	for text, want := range map[string]int32{"": 0, "hello": 99162322, "polygenelubricants": math.MinInt32} {
		if got := planner.Hash31(text); got != want {
			t.Errorf("Hash31(%q) = %d, want %d", text, got, want)
		}
	}
	for _, v := range []struct {
		key     uint64
		n, want int
	}{{1, 1, 0}, {42, 57, 43}, {0xDEAD10CC, 1, 0}, {0xDEAD10CC, 666, 361}, {256, 1024, 520}} {
		if got := planner.Jump(v.key, v.n); got != v.want {
			t.Errorf("Jump(%d, %d) = %d, want %d", v.key, v.n, got, v.want)
		}
	}
	for key, want := range map[string]int{"10086": 43, "U_001": 53} {
		if got := planner.Bucket(key); got != want {
			t.Errorf("Bucket(%q) = %d, want %d", key, got, want)
		}
	}
	if a, b := planner.FNVMurmur().Sum("13800138000")%routing.Slots, routing.HashSlot("13800138000"); a != uint64(b) {
		t.Errorf("FNVMurmur and routing.HashSlot part ways: %d, %d", a, b)
	}
}

// A new cell takes its part and nothing moves between the others; the rest go
// as their kind must: modulo nearly all, doubling half, ID ranges nothing.
func TestMovement(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		from, to int
		lo, hi   float64
		onlyNew  bool
	}{
		"modulo":        {4, 5, 0.799, 0.801, false},
		"ring":          {4, 5, 0.17, 0.23, true},
		"bounded":       {4, 5, 0.17, 0.30, false},
		"rendezvous":    {4, 5, 0.19, 0.21, true},
		"jump":          {4, 5, 0.19, 0.21, true},
		"hash-ranges":   {4, 5, 0.125, 0.125, true},
		"id-ranges":     {4, 5, 0, 0, false},
		"two-step":      {4, 5, 0.7, 0.9, false},
		"doubling":      {4, 8, 0.48, 0.52, true},
		"balanced":      {4, 5, 0.1999, 0.2001, true},
		"common-factor": {4, 5, 0.78, 0.82, false},
	} {
		before := mustPlan(t, find(t, name), nil, cells(want.from))
		after := mustPlan(t, find(t, name), before.Owners, cells(want.to))
		if s := after.Report.MovedShare; s < want.lo || s > want.hi {
			t.Errorf("%s: %.4f moved, want %.4f to %.4f", name, s, want.lo, want.hi)
		}
		for i, o := range after.Owners {
			if was := before.Owners[i]; want.onlyNew && o != was && slices.Contains(before.Owners, o) {
				t.Fatalf("%s: slot %d went from %s to %s, which was there before", name, i, was, o)
			}
		}
	}
}

func TestRingTokensByCapacity(t *testing.T) {
	t.Parallel()
	r := planner.Ring{Base: 400}
	for _, tc := range []struct{ weight, most, want int }{{32, 32, 400}, {8, 32, 100}, {1, 1000, 10}} {
		if got := r.Tokens(tc.weight, tc.most); got != tc.want {
			t.Errorf("Tokens(%d of %d) = %d, want %d", tc.weight, tc.most, got, tc.want)
		}
	}
	if got := (planner.Ring{Base: 1}).Tokens(1, 1); got != 1 {
		t.Errorf("a ring of one token per cell has %d", got)
	}
}

// A sweep gives what single lookups give, at, between and beyond the tokens.
func TestCircle(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	c, err := planner.Ring{Base: 50}.Circle(cells(7))
	if err != nil {
		t.Fatal(err)
	}
	hashes := []uint64{0, math.MaxUint64}
	for i := range 50 {
		at := planner.FNVMurmur().Sum(fmt.Sprintf("c3#%d", i))
		if got := c.Owner(at); got != 2 {
			t.Errorf("the token c3#%d belongs to cell %d", i, got)
		}
		hashes = append(hashes, at-1, at, at+1)
	}
	for range 5000 {
		hashes = append(hashes, r.Uint64())
	}
	slices.Sort(hashes)
	owners := make([]int32, len(hashes))
	c.Sweep(hashes, owners)
	for i, h := range hashes {
		if got := c.Owner(h); got != int(owners[i]) {
			t.Fatalf("hash %x: owner %d, by sweep %d", h, got, owners[i])
		}
	}
	if c.Owner(0) != c.Owner(math.MaxUint64) {
		t.Error("what lies after the last token isn't the first one's")
	}
}

func TestBoundedKeepsItsBound(t *testing.T) {
	t.Parallel()
	for _, factor := range []float64{1, 1.02, 1.25} {
		plan := mustPlan(t, planner.Bounded{Ring: planner.Ring{Hash: planner.FNV()}, Factor: factor}, nil, cells(7))
		limit := int(math.Ceil(factor * routing.Slots / 7))
		for cell, n := range plan.Report.Slots {
			if n > limit {
				t.Errorf("factor %g: %s has %d slots, at most %d", factor, cell, n, limit)
			}
		}
	}
}

func TestBucketsAreCutByWeight(t *testing.T) {
	t.Parallel()
	cut := planner.CutBuckets([]routing.Share{{Cell: "a", Weight: 5}, {Cell: "b", Weight: 3}, {Cell: "c", Weight: 2}})
	for b, owner := range cut {
		if want := map[bool]int{b < 50: 0, b >= 50 && b < 80: 1, b >= 80: 2}[true]; owner != want {
			t.Errorf("bucket %02d belongs to %d, want %d", b, owner, want)
		}
	}
}

func TestHashRanges(t *testing.T) {
	t.Parallel()
	p := planner.HashRanges{}
	four := mustPlan(t, p, nil, cells(4)).Owners
	want := []planner.Range{{From: 0, To: 4096, Cell: "c1"}, {From: 4096, To: 8192, Cell: "c2"}, {From: 8192, To: 12288, Cell: "c3"}, {From: 12288, To: 16384, Cell: "c4"}}
	if d := cmp.Diff(want, planner.RangesOf(four)); d != "" {
		t.Error(d)
	}
	five := mustPlan(t, p, four, cells(5)).Owners
	want[0].To = 2048
	want = slices.Insert(want, 1, planner.Range{From: 2048, To: 4096, Cell: "c5"})
	if d := cmp.Diff(want, planner.RangesOf(five)); d != "" {
		t.Errorf("splitting one range touches more than it: %s", d)
	}
	back := mustPlan(t, p, five, cells(4)).Owners
	if d := cmp.Diff(planner.RangesOf(four), planner.RangesOf(back)); d != "" {
		t.Errorf("a cell's range doesn't go to the neighbour: %s", d)
	}
	weighted := mustPlan(t, p, four, append(cells(4), routing.Share{Cell: "c5", Weight: 3}))
	if n := weighted.Report.Slots["c5"]; n != 3072 {
		t.Errorf("weight 3 beside 1 takes %d of a range of 4096", n)
	}
}

func TestIDRangesMoveNoRow(t *testing.T) {
	t.Parallel()
	slotOf := planner.ByRange(100) // 1,638,400 IDs in all
	used := int(slotOf(999_999)) + 1
	four := mustPlan(t, planner.IDRanges{}, nil, cells(4)).Owners
	five := mustPlan(t, planner.IDRanges{Used: used}, four, cells(5)).Owners
	for id := int64(0); id < 1_000_000; id += 97 {
		if a, b := four[slotOf(id)], five[slotOf(id)]; a != b {
			t.Fatalf("user %d moves from %s to %s", id, a, b)
		}
	}
	if got := five[slotOf(1_600_000)]; got != "c5" {
		t.Errorf("the newest IDs go to %s", got)
	}
	if lo, hi := slotOf(-5), slotOf(math.MaxInt64); lo != 0 || hi != routing.Slots-1 {
		t.Errorf("numbers outside go to %d and %d", lo, hi)
	}
}

func TestSplits(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		shards, tables int
		way            planner.Way
		hash           uint64
		shard, table   int
	}{
		{10, 100, planner.Mixed, 1986, 6, 98},
		{20, 100, planner.Mixed, 1986, 6, 99},
		{10, 100, planner.TwoStep, 1986, 9, 86},
		{20, 100, planner.TwoStep, 1986, 19, 86},
	} {
		if s, n := (planner.Split{Shards: tc.shards, Tables: tc.tables}).At(tc.way, tc.hash); s != tc.shard || n != tc.table {
			t.Errorf("%dx%d: (%d,%d), want (%d,%d)", tc.shards, tc.tables, s, n, tc.shard, tc.table)
		}
	}
	for _, tc := range []struct{ shards, cured int }{{10, 11}, {11, 11}, {22, 23}} {
		if got := (planner.Split{Shards: tc.shards, Tables: 100}).Cured().Shards; got != tc.cured {
			t.Errorf("the cure of %dx100 is %dx100", tc.shards, got)
		}
	}
	trap := mustPlan(t, planner.Sharded{Way: planner.SameHash}, nil, cells(10)).Report.EmptyTables
	cure := mustPlan(t, planner.Sharded{Way: planner.Coprime}, nil, cells(10)).Report.EmptyTables
	if trap != 900 || cure != 0 {
		t.Errorf("common factor leaves %d tables empty, the cure %d, want 900 and 0", trap, cure)
	}
	// What carries its user's first four characters is in the user's shard.
	s := planner.Split{Shards: 16, Tables: 100}
	user, _ := s.GeneOf("3fa9c0ffee000001")
	if order, _ := s.GeneOf("3fa9deadbeef4711"); order != user {
		t.Errorf("an order with its user's prefix is in shard %d, the user in %d", order, user)
	}
	s.GeneOf("abc") // shorter than the gene
}

// Doubling keeps the table's index, moves half of each shard to its own new
// one, works whatever the new cells are called, and refuses other steps.
func TestDoubling(t *testing.T) {
	t.Parallel()
	four := mustPlan(t, planner.Doubling{}, nil, cells(4))
	var renamed []routing.Share
	for _, n := range []string{"a1", "b1", "d1", "zz9"} {
		renamed = append(renamed, routing.Share{Cell: n, Weight: 1})
	}
	eight := mustPlan(t, planner.Doubling{}, four.Owners, append(cells(4), renamed...))
	to := map[string]map[string]bool{}
	for i, o := range eight.Owners {
		if was := four.Owners[i]; o != was {
			if to[was] == nil {
				to[was] = map[string]bool{}
			}
			to[was][o] = true
		}
	}
	for was, news := range to {
		if len(news) != 1 {
			t.Errorf("%s gives to %v, want one", was, news)
		}
	}
	if len(to) != 4 {
		t.Errorf("%d shards split, want 4", len(to))
	}
	for h := range uint64(5000) {
		_, a := planner.Split{Shards: 4, Tables: 100}.At(planner.TwoStep, h)
		_, b := planner.Split{Shards: 8, Tables: 100}.At(planner.TwoStep, h)
		if a != b {
			t.Fatalf("hash %d: table %d becomes %d", h, a, b)
		}
	}
	for _, n := range []int{5, 6, 12} {
		if _, err := (planner.Doubling{}).Plan(four.Owners, cells(n)); !errors.Is(err, routing.ErrTable) {
			t.Errorf("4 cells to %d: %v, want a refusal", n, err)
		}
	}
	if _, err := (planner.Doubling{}).Plan(mustPlan(t, planner.Balanced{}, nil, cells(4)).Owners, cells(8)); !errors.Is(err, routing.ErrTable) {
		t.Errorf("doubling what isn't a split: %v, want a refusal", err)
	}
}

// Each set of a rollout differs from the one before in one cell, cells come one
// after the other, and all together move no more than one jump would.
func TestRollout(t *testing.T) {
	t.Parallel()
	from := []routing.Share{{Cell: "c1", Weight: 4}, {Cell: "c2", Weight: 4}, {Cell: "c3", Weight: 1}}
	to := []routing.Share{{Cell: "c1", Weight: 4}, {Cell: "c2", Weight: 8}, {Cell: "c4", Weight: 4}, {Cell: "c5", Weight: 4}}
	sets, err := planner.Rollout(from, to, 4)
	if err != nil {
		t.Fatal(err)
	}
	if len(sets) != 4*4 {
		t.Fatalf("%d sets, want 4 for each of c4, c5, c2, c3", len(sets))
	}
	weight := func(shares []routing.Share) map[string]int {
		out := map[string]int{}
		for _, s := range shares {
			out[s.Cell] = s.Weight
		}
		return out
	}
	last, order := map[string]int{"c1": 16, "c2": 16, "c3": 4}, []string{}
	for i, set := range sets {
		now, changed := weight(set), ""
		for cell, w := range now {
			if w != last[cell] {
				changed += cell
			}
		}
		order = append(order, changed)
		if len(changed) != 2 {
			t.Fatalf("set %d changes %q", i, changed)
		}
		last = now
	}
	if d := cmp.Diff([]string{"c4", "c5", "c2", "c3"}, slices.Compact(order)); d != "" {
		t.Errorf("order of the cells: %s", d)
	}
	if d := cmp.Diff(map[string]int{"c1": 16, "c2": 32, "c3": 0, "c4": 16, "c5": 16}, last); d != "" {
		t.Errorf("ends at: %s", d)
	}
	current := mustPlan(t, planner.Balanced{}, nil, cells(4)).Owners
	sets, err = planner.Rollout(cells(4), cells(5), 5)
	if err != nil {
		t.Fatal(err)
	}
	moved := 0
	for _, set := range sets {
		plan := mustPlan(t, planner.Balanced{}, current, set)
		if plan.Report.MovedShare > 0.05 {
			t.Errorf("one step of five moves %.3f", plan.Report.MovedShare)
		}
		current, moved = plan.Owners, moved+plan.Report.Moved
	}
	if want := routing.Slots / 5; moved < want || moved > want+len(sets) {
		t.Errorf("five steps move %d slots, one jump %d", moved, want)
	}
	for _, steps := range []int{0, -1, 101} {
		if _, err := planner.Rollout(from, to, steps); !errors.Is(err, routing.ErrTable) {
			t.Errorf("%d steps: %v", steps, err)
		}
	}
	if _, err := planner.Rollout(from, []routing.Share{{Cell: "10.0.0.1", Weight: 1}}, 2); !errors.Is(err, routing.ErrTable) {
		t.Errorf("an address: %v", err)
	}
}
