package routing_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/routing"
)

// seeded gives a random source and prints its seed, so that a failure can be
// run again.
func seeded(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// randomSpec makes any valid spec.
func randomSpec(r *rand.Rand) routing.Spec {
	n := 1 + r.IntN(12)
	spec := routing.Spec{Version: 1 + r.Int64N(1000), Slots: make([]routing.Assignment, routing.Slots), Private: map[routing.Slot]routing.Assignment{}}
	ordinals := r.Perm(routing.MaxOrdinal)
	for i := range n {
		c := routing.Cell{Name: fmt.Sprintf("c%d", i+1), Ordinal: ordinals[i] + 1, Region: []string{"", "east", "west"}[r.IntN(3)], Weight: r.IntN(5)}
		for k := range r.IntN(3) {
			key := make([]byte, 32)
			key[0], key[1] = byte(i), byte(k)
			c.Keys = append(c.Keys, routing.PublicKey{ID: fmt.Sprintf("k%d", k), Key: key})
		}
		spec.Cells = append(spec.Cells, c)
		if r.IntN(2) == 0 {
			spec.Voters = append(spec.Voters, c.Name)
		}
	}
	any := func() routing.Assignment {
		a := routing.Assignment{Owner: spec.Cells[r.IntN(n)].Name, Epoch: routing.Epoch(1 + r.IntN(3))}
		if s := spec.Cells[r.IntN(n)].Name; s != a.Owner {
			a.Standby = s
		}
		return a
	}
	a := any()
	for i := range spec.Slots {
		if r.IntN(20) == 0 {
			a = any()
		}
		spec.Slots[i] = a
	}
	for range r.IntN(20) {
		spec.Private[routing.FirstUserSlot+routing.Slot(r.IntN(1<<20))] = any()
	}
	spec.Private[routing.CellSlot(spec.Cells[0].Ordinal)] = any()
	return spec
}

func mustBuild(t testing.TB, spec routing.Spec) *routing.Table {
	t.Helper()
	table, err := routing.Build(spec)
	if err != nil {
		t.Fatalf("Build: %v", err)
	}
	return table
}

// TestHashSlot has vectors that were computed by another program.
func TestHashSlot(t *testing.T) {
	for value, want := range map[string]routing.Slot{
		"":                 10534,
		"a":                3675,
		"+8613800138000":   974,
		"+4915112345678":   10495,
		"13800138000":      14232,
		"user@example.com": 2366,
	} {
		if got := routing.HashSlot(value); got != want {
			t.Errorf("HashSlot(%q) = %d, want %d", value, got, want)
		}
	}
}

func TestHashSlotIsEven(t *testing.T) {
	const n = 400_000
	var count [16]int
	for i := range n {
		count[routing.HashSlot(fmt.Sprintf("+86138%08d", i))/(routing.Slots/16)]++
	}
	for i, c := range count {
		if c < n/16*97/100 || c > n/16*103/100 {
			t.Errorf("sixteenth %d has %d of %d phones", i, c, n)
		}
	}
}

func TestTableSaysWhatTheSpecSays(t *testing.T) {
	r := seeded(t)
	for range 20 {
		spec := randomSpec(r)
		table := mustBuild(t, spec)
		owned := 0
		for i, want := range spec.Slots {
			got, ok := table.Slot(routing.Slot(i))
			if !ok || got != want {
				t.Fatalf("Slot(%d) = %v, %v, want %v", i, got, ok, want)
			}
			id := r.Int64()&^routing.SlotMask | int64(i)
			if owner, ok := table.Owner(id); !ok || owner != want.Owner {
				t.Fatalf("Owner(%d) = %q, %v, want %q", id, owner, ok, want.Owner)
			}
		}
		for s, want := range spec.Private {
			if got, ok := table.Slot(s); !ok || got != want {
				t.Fatalf("Slot(%d) = %v, %v, want %v", s, got, ok, want)
			}
		}
		for _, c := range spec.Cells {
			for _, s := range table.SlotsOf(c.Name) {
				if spec.Slots[s].Owner != c.Name {
					t.Fatalf("SlotsOf(%s) has %d of %s", c.Name, s, spec.Slots[s].Owner)
				}
				owned++
			}
			s, ok := table.CellSlot(c.Name)
			if !ok || s != routing.CellSlot(c.Ordinal) {
				t.Fatalf("CellSlot(%s) = %d, %v", c.Name, s, ok)
			}
			if _, ok := table.Slot(s); !ok {
				t.Fatalf("cell slot %d of %s is not in the table", s, c.Name)
			}
			for _, k := range c.Keys {
				if got, ok := table.Key(c.Name, k.ID); !ok || !cmp.Equal(got, k.Key) {
					t.Fatalf("Key(%s, %s) = %v, %v", c.Name, k.ID, got, ok)
				}
			}
		}
		if owned != routing.Slots {
			t.Fatalf("%d slots have exactly one owner, want %d", owned, routing.Slots)
		}
	}
}

// TestScenario_R04_NoDefaultCell: what the table doesn't know is not found.
func TestScenario_R04_NoDefaultCell(t *testing.T) {
	table := mustBuild(t, randomSpec(seeded(t)))
	for _, s := range []routing.Slot{-1, -16384, routing.FirstUserSlot + 1<<21, 1<<31 - 1, routing.Slots} {
		if a, ok := table.Slot(s); ok {
			t.Errorf("Slot(%d) = %v, want not found", s, a)
		}
	}
	if _, ok := table.Cell("c99"); ok {
		t.Error("Cell(c99) is there")
	}
	if s, ok := table.CellSlot("c99"); ok {
		t.Errorf("CellSlot(c99) = %d", s)
	}
	if _, ok := table.Key("c99", "k0"); ok {
		t.Error("Key(c99) is there")
	}
	if got := table.SlotsOf("c99"); len(got) != 0 {
		t.Errorf("SlotsOf(c99) has %d", len(got))
	}
}

func TestBuildRefuses(t *testing.T) {
	t.Parallel()
	cases := map[string]func(*routing.Spec){
		"no cells":                  func(s *routing.Spec) { s.Cells = nil },
		"negative version":          func(s *routing.Spec) { s.Version = -1 },
		"an address as name":        func(s *routing.Spec) { s.Cells[0].Name = "10.0.0.1:80" },
		"the global zone as cell":   func(s *routing.Spec) { s.Cells[0].Name = "global" },
		"ordinal 0":                 func(s *routing.Spec) { s.Cells[0].Ordinal = 0 },
		"ordinal over the limit":    func(s *routing.Spec) { s.Cells[0].Ordinal = routing.MaxOrdinal + 1 },
		"an ordinal twice":          func(s *routing.Spec) { s.Cells[1].Ordinal = s.Cells[0].Ordinal },
		"a name twice":              func(s *routing.Spec) { s.Cells[1].Name = s.Cells[0].Name },
		"negative weight":           func(s *routing.Spec) { s.Cells[0].Weight = -1 },
		"a short key":               func(s *routing.Spec) { s.Cells[0].Keys = []routing.PublicKey{{ID: "k", Key: []byte{1}}} },
		"a key without a name":      func(s *routing.Spec) { s.Cells[0].Keys = []routing.PublicKey{{Key: make([]byte, 32)}} },
		"too few slots":             func(s *routing.Spec) { s.Slots = s.Slots[1:] },
		"a slot of nobody":          func(s *routing.Spec) { s.Slots[7].Owner = "" },
		"a slot of a stranger":      func(s *routing.Spec) { s.Slots[7].Owner = "c9" },
		"a strange standby":         func(s *routing.Spec) { s.Slots[7].Standby = "c9" },
		"owner as standby":          func(s *routing.Spec) { s.Slots[7].Standby = s.Slots[7].Owner },
		"epoch 0":                   func(s *routing.Spec) { s.Slots[7].Epoch = 0 },
		"a hash slot as private":    func(s *routing.Spec) { s.Private[7] = s.Slots[7] },
		"a cell slot of no cell":    func(s *routing.Spec) { s.Private[routing.CellSlot(77)] = s.Slots[7] },
		"a private slot of nobody":  func(s *routing.Spec) { s.Private[routing.FirstUserSlot] = routing.Assignment{Epoch: 1} },
		"a voter that is no zone":   func(s *routing.Spec) { s.Voters = []string{"c9"} },
		"a voter twice":             func(s *routing.Spec) { s.Voters = []string{"c1", "c1"} },
		"a region that is a phrase": func(s *routing.Spec) { s.Cells[0].Region = "far away" },
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := routing.Spread([]string{"c1", "c2"}).Spec()
			mustBuild(t, spec)
			spoil(&spec)
			if _, err := routing.Build(spec); !errors.Is(err, routing.ErrTable) {
				t.Errorf("Build = %v, want ErrTable", err)
			}
		})
	}
}

func TestTableDoesNotChangeWithItsSpec(t *testing.T) {
	spec := randomSpec(seeded(t))
	table := mustBuild(t, spec)
	before := string(table.Encode())
	spec.Slots[0] = routing.Assignment{}
	spec.Cells[0].Name = "other"
	for _, c := range spec.Cells {
		for _, k := range c.Keys {
			k.Key[5] ^= 1
		}
	}
	table.Cells()[0].Name = "other"
	if string(table.Encode()) != before {
		t.Error("the table changed after Build")
	}
}

func TestCheckNext(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*routing.Spec)
		want   string // part of the error, empty = allowed
	}{
		"nothing but the version": {func(*routing.Spec) {}, ""},
		"an owner, epoch + 1":     {func(s *routing.Spec) { s.Slots[0] = routing.Assignment{Owner: "c2", Epoch: 2} }, ""},
		"a standby":               {func(s *routing.Spec) { s.Slots[0].Standby = "c2" }, ""},
		"a cell more": {func(s *routing.Spec) {
			s.Cells = append(s.Cells, routing.Cell{Name: "c3", Ordinal: 3})
		}, ""},
		"a private slot more": {func(s *routing.Spec) { s.Private[routing.FirstUserSlot] = s.Slots[0] }, ""},
		"a weight":            {func(s *routing.Spec) { s.Cells[0].Weight = 0 }, ""},
		"the same version":    {func(s *routing.Spec) { s.Version-- }, "version 4 after 4"},
		"a version left out":  {func(s *routing.Spec) { s.Version++ }, "version 6 after 4"},
		"an owner, old epoch": {func(s *routing.Spec) { s.Slots[0].Owner = "c2" }, "slot 0 goes from c1 epoch 1 to \"c2\" epoch 1"},
		"an epoch, old owner": {func(s *routing.Spec) { s.Slots[0].Epoch = 2 }, "slot 0"},
		"a cell renumbered": {func(s *routing.Spec) {
			s.Cells[1].Ordinal = 9
			s.Private = nil
		}, "cell c2 (ordinal 2) is lost or renumbered"},
		"a private slot lost": {func(s *routing.Spec) { delete(s.Private, routing.FirstUserSlot+5) }, "slot 17413"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := routing.Spread([]string{"c1", "c2"}).Spec()
			spec.Version = 4
			spec.Private[routing.FirstUserSlot+5] = spec.Slots[0]
			table := mustBuild(t, spec)
			next := table.Spec()
			next.Version++
			c.change(&next)
			err := table.CheckNext(mustBuild(t, next))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("CheckNext = %v, want %q", err, c.want)
			}
		})
	}
}
