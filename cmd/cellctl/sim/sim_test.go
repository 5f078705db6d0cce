package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/routing/planner"
)

func run(t *testing.T, change func(*Config), keys ...string) *Result {
	t.Helper()
	c := Defaults()
	c.Keys = keys
	if change != nil {
		change(&c)
	}
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-published +computed):\n%s", what, d)
	}
}

// The figures of this file were published by others, or re-run from their
// description; the package computes them.

func TestRingsAsPublished(t *testing.T) {
	t.Parallel()
	r := run(t, nil, "vnodes", "weak_hash", "cross")
	figures := func(m *Movement) (out [][4]float64) {
		for _, row := range m.Rows {
			out = append(out, [4]float64{float64(row.VNodes), row.Moved, row.Largest, row.Smallest})
		}
		return out
	}
	same(t, "vnodes", figures(r.VNodes), [][4]float64{{1, 29.72, 44.75, 3.47}, {10, 15.53, 38.00, 8.88}, {100, 20.31, 27.59, 22.06}, {500, 20.47, 25.25, 24.74}})
	same(t, "weak_hash", figures(r.WeakHash), [][4]float64{{1, 86.79, 89.61, 3.27}, {10, 86.79, 89.61, 3.27}, {100, 15.74, 60.01, 9.83}, {500, 40.19, 46.80, 12.21}})
	if got := round(r.VNodes.Rows[0].Ratio, 0); got != 13 {
		t.Errorf("one token: largest by smallest %v, want 13", got)
	}
	if r.VNodes.Modulo != 80 {
		t.Errorf("modulo moves %v, want 80", r.VNodes.Modulo)
	}
	same(t, "cross", r.Cross.Rows, []CrossRow{{4, 74.77}, {8, 87.40}, {16, 93.68}})
	// S-R08: the report tells the bad hash from the good one. One token per cell
	// has no gap to tell by.
	for i := 1; i < 4; i++ {
		if weak, good := r.WeakHash.Rows[i], r.VNodes.Rows[i]; !weak.Clustered || good.Clustered {
			t.Errorf("%d tokens: bare hash flagged %v, finalized %v", weak.VNodes, weak.Clustered, good.Clustered)
		}
	}
}

func TestPathAsPublished(t *testing.T) {
	t.Parallel()
	r := run(t, nil, "path").Path
	var modulo, ring []float64
	for _, s := range r.Steps {
		modulo, ring = append(modulo, s.Modulo), append(ring, s.Ring)
		if off := s.Balanced - s.Bound; off > 0.01 || off < -0.02 { // within one slot of 16384
			t.Errorf("%d -> %d: balanced moves %v, the bound is %v", s.From, s.To, s.Balanced, s.Bound)
		}
		if s.SlotSkew >= 0.1 {
			t.Errorf("%d -> %d: slot skew %v", s.From, s.To, s.SlotSkew)
		}
		if off := s.UsersMoved - s.Balanced; off > 4*s.SamplingError || off < -4*s.SamplingError || s.SamplingError == 0 {
			t.Errorf("%d -> %d: %v of users moved, %v of slots, error %v", s.From, s.To, s.UsersMoved, s.Balanced, s.SamplingError)
		}
	}
	same(t, "modulo", modulo, []float64{80, 83.33, 85.71, 87.50})
	same(t, "ring", ring, []float64{20.31, 16.30, 14.00, 13.99})
	same(t, "sums", []float64{r.ModuloSum, r.RingSum, r.TimesLess}, []float64{336.5, 64.6, 5.2})
	// By range, each slot has as many users as the next: no chance is left.
	for _, s := range run(t, func(c *Config) { c.Slots = "range" }, "path").Path.Steps {
		if off := s.UsersMoved - s.Bound; off < -0.1 || off > 0.1 || s.SamplingError != 0 {
			t.Errorf("by range %d -> %d: %v of users moved, bound %v", s.From, s.To, s.UsersMoved, s.Bound)
		}
	}
}

func TestTokensAsPublished(t *testing.T) {
	t.Parallel()
	r := run(t, nil, "one_token", "tokens")
	same(t, "one_token", r.OneToken.Published, []float64{64.7, 28.3, 7.0})
	same(t, "tokens", r.Tokens.Published, []TokenRow{
		{1, 1.98, 0.75, 1, 29.4}, {10, 1.26, 0.21, 0.32, 23.6}, {100, 1.09, 0.08, 0.10, 24.8}, {1000, 1.03, 0.02, 0.03, 24.8},
	})
	same(t, "no finalizer", r.Tokens.NoFinalizer.Published, []float64{4, 3, 93})
	// The standard start is another hash: other figures of the same kind.
	if cmp.Equal(r.Tokens.Published, r.Tokens.Standard) || cmp.Equal(r.OneToken.Published, r.OneToken.Standard) || cmp.Equal(r.Tokens.NoFinalizer.Published, r.Tokens.NoFinalizer.Standard) {
		t.Error("both starts give the same figures")
	}
}

func TestSplitsAsPublished(t *testing.T) {
	t.Parallel()
	r := run(t, func(c *Config) { c.Users = 1_000_000 }, "buckets", "doubling")
	same(t, "buckets", r.Buckets.Rows, []BucketRow{{0, 49, 499_972}, {50, 79, 300_124}, {80, 99, 199_904}})
	same(t, "golden", r.Buckets.Golden, []BucketKey{{"10086", 43}, {"U_001", 53}})
	for i, want := range [][2][2]int{{{6, 98}, {6, 99}}, {{9, 86}, {19, 86}}} {
		row := r.Doubling.Rows[i]
		same(t, row.Way, [2][2]int{row.From, row.To}, want)
	}
	if wrong, right := r.Doubling.Rows[0].TableChanged, r.Doubling.Rows[1].TableChanged; wrong < 95 || right != 0 {
		t.Errorf("tables changed: %v the wrong way, %v the right way", wrong, right)
	}
}

// The trap shows with few ids already; the other two shapes come under 5 % only
// with the default's 60 million.
func TestSkew(t *testing.T) {
	t.Parallel()
	users := 1_000_000
	if testing.Short() {
		users = 50_000
	}
	r := run(t, func(c *Config) { c.Users = users }, "skew").Skew
	same(t, "common factor", r.Common, []Common{{10, 100, 1000, 900}, {11, 100, 1100, 0}, {22, 100, 2200, 1100}})
	for _, s := range r.Shapes {
		trap := s.Shards == 16
		switch {
		case s.Skew == nil || *s.Skew < s.Chance/2:
			t.Errorf("%dx%d: skew %v below chance (%v)", s.Shards, s.Tables, s.Skew, s.Chance)
		case trap && *s.Skew < 55, !trap && *s.Skew > 1.6*s.Chance:
			t.Errorf("%dx%d: skew %v, by chance %v", s.Shards, s.Tables, *s.Skew, s.Chance)
		case !trap && !testing.Short() && *s.Skew >= 5:
			t.Errorf("%dx%d: skew %v, want under 5", s.Shards, s.Tables, *s.Skew)
		}
	}
	if r.Full || r.IDs != users*idsPerUser {
		t.Errorf("full %v, %d ids", r.Full, r.IDs)
	}
}

// One seed of the three of --full: 61.65 % was published for 200 million ids.
func TestSkewAsPublished(t *testing.T) {
	t.Parallel()
	ids, tolerance := fullIDs, 1.0
	if testing.Short() {
		ids, tolerance = fullIDs/20, 10 // chance alone adds 7 points
	}
	counts, err := countIDs(t.Context(), PublishedSeed, ids, []planner.Split{{Shards: 16, Tables: skewTables}})
	if err != nil {
		t.Fatal(err)
	}
	most, least := float64(slices.Max(counts[0])), float64(slices.Min(counts[0]))
	if got := (most - least) / least * 100; got < 61.65-tolerance || got > 61.65+tolerance {
		t.Errorf("%d ids: skew %.2f, published 61.65", ids, got)
	}
}

// The quick way to count ids is the planner's own function.
func TestCountIDsIsGeneOf(t *testing.T) {
	t.Parallel()
	const ids, seed = 20_000, 7
	splits := []planner.Split{{Shards: 16, Tables: skewTables}, {Shards: 20, Tables: skewTables}}
	got, err := countIDs(t.Context(), seed, ids, splits)
	if err != nil {
		t.Fatal(err)
	}
	want := [][]int32{make([]int32, 1600), make([]int32, 2000)}
	draw := rand.NewPCG(seed, 0)
	for range ids {
		id := hex(draw.Uint64(), 16)
		if len(id) != 16 || strings.ToLower(id) != id {
			t.Fatalf("id %q", id)
		}
		for k, s := range splits {
			shard, table := s.GeneOf(id)
			want[k][shard*s.Tables+table]++
		}
	}
	same(t, "counts", got, want)
}

func TestBlastAsPublished(t *testing.T) {
	t.Parallel()
	r := run(t, nil, "blast").Blast
	var got [][5]float64
	for _, row := range r.Rows {
		got = append(got, [5]float64{float64(row.Cells), row.UsersHit, row.Spare, row.SurvivorLoad, row.Cross})
		// Groups together: what crosses is the fifth of calls that leave the group.
		if want := row.CrossRandom * (100 - ownGroup) / 100; row.CrossGrouped < want-1 || row.CrossGrouped > want+1 {
			t.Errorf("%d cells: %v crosses with affinity, want about %v", row.Cells, row.CrossGrouped, want)
		}
	}
	// 50.0 was published for two cells: the ring gives that over all pairs, and
	// 49.93 over those that the published way draws for the other rows.
	same(t, "blast", got, [][5]float64{{2, 50, 100, 200, 49.93}, {4, 25, 33.3, 133, 74.77}, {8, 12.5, 14.3, 114, 87.40}, {16, 6.25, 6.7, 107, 93.68}})
	if got := round(r.Rows[0].CrossAll, 1); got != 50 {
		t.Errorf("two cells: %v of all pairs cross, want 50.0", got)
	}
	for i, want := range []float64{50, 75, 87.5, 93.75} { // 1 - 1/n: 16,384 slots divide into equal parts
		if got := r.Rows[i].CrossSlots; got != want {
			t.Errorf("%d cells: %v of all pairs of slots cross, want %v", r.Rows[i].Cells, got, want)
		}
	}
}

func TestFanout(t *testing.T) {
	t.Parallel()
	r := run(t, func(c *Config) { c.Users = 200_000 }, "fanout").Fanout
	for _, row := range r.Rows {
		n := float64(row.Cells)
		exact := n
		for range pageUsers {
			exact /= n
		}
		if row.Expected/100 < exact*0.95 || row.Expected/100 > exact*1.05 || row.OneCell > 0.01 {
			t.Errorf("%d cells: one cell %v, expected %v, n^-19 is %v", row.Cells, row.OneCell, row.Expected, 100*exact)
		}
		last := -1.0
		for _, g := range row.Grouped {
			if g.OneCell <= last {
				t.Errorf("%d cells: more affinity, not more pages in one cell: %+v", row.Cells, row.Grouped)
			}
			last = g.OneCell
		}
		if last != 100 {
			t.Errorf("%d cells: %v of pages of one group are in one cell", row.Cells, last)
		}
	}
	same(t, "tail", r.Tail[len(r.Tail)-2:], []TailRow{{20, 18.2}, {100, 63.4}})
}

func TestPlannersAreMeasured(t *testing.T) {
	t.Parallel()
	r := run(t, func(c *Config) { c.Cells = 120 }, "planners").Planners
	if len(r) != len(planner.All()) {
		t.Fatalf("%d planners of %d", len(r), len(planner.All()))
	}
	for _, w := range r {
		if (w.Refused != "") != (w.Name == "buckets") {
			t.Errorf("%s: refused %q", w.Name, w.Refused)
		}
	}
}

// asJSON gives the parts of a result by key.
func asJSON(t *testing.T, r *Result) map[string]string {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for k, v := range raw {
		out[k] = string(v)
	}
	return out
}

// Nothing is a constant: another seed changes every key that draws or has
// users, other cells and users change theirs, and the same again is the same.
func TestFiguresAreComputed(t *testing.T) {
	t.Parallel()
	const users = 50_000
	base := asJSON(t, run(t, func(c *Config) { c.Users = users }))
	if again := asJSON(t, run(t, func(c *Config) { c.Users = users })); !cmp.Equal(base, again) {
		t.Errorf("the same run again differs: %s", cmp.Diff(base, again))
	}
	for _, key := range Keys() {
		if base[key] == "" {
			t.Errorf("no %s", key)
		}
	}
	for name, tc := range map[string]struct {
		change    func(*Config)
		unchanged []string // keys that this doesn't concern
	}{
		"seed":  {func(c *Config) { c.Users, c.Seed = users, 43 }, []string{"planners"}},
		"users": {func(c *Config) { c.Users = users + 1000 }, []string{"planners"}},
		"cells": {func(c *Config) { c.Users, c.Cells = users, 6 }, []string{"one_token", "tokens", "buckets", "skew", "doubling"}},
	} {
		got := asJSON(t, run(t, tc.change))
		for _, key := range Keys() {
			if same := got[key] == base[key]; same != slices.Contains(tc.unchanged, key) {
				t.Errorf("another %s: %s the same: %v\n%s", name, key, same, got[key])
			}
		}
	}
}

// The page that explains the choice shows what is computed.
func TestPageShowsTheFigures(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/cells-and-slots.md")
	if err != nil {
		t.Fatal(err)
	}
	r := run(t, nil, "vnodes", "weak_hash", "path", "blast")
	var rows []string
	for _, m := range r.VNodes.Rows {
		rows = append(rows, fmt.Sprintf("%d | %.2f | %.2f / %.2f |", m.VNodes, m.Moved, m.Largest, m.Smallest))
	}
	weak, grown := r.WeakHash.Rows[1], r.Path.Steps[0]
	rows = append(rows,
		fmt.Sprintf("| ring, %d, bare FNV-1a | %.2f | %.2f / %.2f |", weak.VNodes, weak.Moved, weak.Largest, weak.Smallest),
		fmt.Sprintf("| **slots, balanced** | **%.2f** |", grown.Balanced), fmt.Sprintf("(%.2f ± %.2f", grown.UsersMoved, grown.SamplingError))
	for _, b := range r.Blast.Rows {
		rows = append(rows, fmt.Sprintf("| %d | %v | %v | %v | %.2f | %.2f | %.2f | %.2f |",
			b.Cells, b.UsersHit, b.Spare, b.SurvivorLoad, b.Cross, b.CrossAll, b.CrossSlots, b.CrossGrouped))
	}
	for _, row := range rows {
		if !strings.Contains(string(page), row) {
			t.Errorf("docs/cells-and-slots.md has no %q", row)
		}
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	var all, one strings.Builder
	run(t, func(c *Config) { c.Users = MinUsers }).Text(&all)
	for _, key := range Keys() {
		if !strings.Contains(all.String(), "\n["+key+"]") {
			t.Errorf("no [%s] in\n%s", key, all.String())
		}
	}
	run(t, nil, "buckets").Text(&one)
	if n := strings.Count(one.String(), "\n["); n != 1 {
		t.Errorf("one key gives %d blocks:\n%s", n, one.String())
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"no users":       func(c *Config) { c.Users = 0 },
		"negative users": func(c *Config) { c.Users = -5 },
		"few users":      func(c *Config) { c.Users = 1 },
		"too many users": func(c *Config) { c.Users = MaxUsers + 1 },
		"no cells":       func(c *Config) { c.Cells = 0 },
		"one cell":       func(c *Config) { c.Cells = 1 },
		"negative cells": func(c *Config) { c.Cells = -4 },
		"too many cells": func(c *Config) { c.Cells = MaxCells + 1 },
		"seed 0":         func(c *Config) { c.Seed = 0 },
		"negative seed":  func(c *Config) { c.Seed = -1 },
		"unknown key":    func(c *Config) { c.Keys = []string{"vnodes", "vnode"} },
		"unknown slots":  func(c *Config) { c.Slots = "modulo" },
	} {
		c := Defaults()
		change(&c)
		_, err := Run(t.Context(), c)
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line", name, err)
		}
	}
	for _, c := range []Config{
		{Users: MinUsers, Cells: MaxCells, Seed: MaxSeed, Slots: "hash"},
		{Users: MinUsers, Cells: MinCells, Seed: 1, Slots: "range"},
	} {
		if _, err := Run(t.Context(), c); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, Defaults()); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}
