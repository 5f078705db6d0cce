package routing_test

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/routing"
)

// withHomes adds moved users and pinned groups to a spec.
func withHomes(r *rand.Rand, spec routing.Spec, users int) routing.Spec {
	spec.Overrides, spec.Groups = map[int64]routing.Slot{}, map[string]routing.Slot{}
	for i := range users {
		s := routing.FirstUserSlot + routing.Slot(1<<21+i*3)
		spec.Private[s] = routing.Assignment{Owner: spec.Cells[r.IntN(len(spec.Cells))].Name, Epoch: 1}
		spec.Overrides[1+r.Int64N(1<<62)] = s // the same ID twice: one private slot stays without a user
	}
	for _, g := range []string{"city:berlin", "city:北京", "family & co"} {
		spec.Groups[g] = routing.Slot(r.IntN(routing.Slots))
	}
	return spec
}

func TestHome(t *testing.T) {
	r := seeded(t)
	for range 10 {
		spec := withHomes(r, randomSpec(r), 1+r.IntN(300))
		table := mustBuild(t, spec)
		taken := map[routing.Slot][]routing.Slot{}
		for user, want := range spec.Overrides {
			s, a, ok := table.Home(user)
			if !ok || s != want || a != spec.Private[want] {
				t.Fatalf("Home(%d) = %d, %v, %v, want %d, %v", user, s, a, ok, want, spec.Private[want])
			}
			taken[routing.SlotOf(user)] = append(taken[routing.SlotOf(user)], want)
			// A thing of the moved user, and a neighbour in the slot, stay under the slot.
			other := user ^ 1<<40
			if s, a, ok := table.Home(other); !ok || s != routing.SlotOf(user) || a != spec.Slots[s] {
				t.Fatalf("Home(%d), not moved = %d, %v, %v", other, s, a, ok)
			}
		}
		for s := range routing.Slot(routing.Slots) {
			slices.Sort(taken[s])
			if got := table.TakenFrom(s); !cmp.Equal(got, taken[s]) {
				t.Fatalf("TakenFrom(%d) = %v, want %v", s, got, taken[s])
			}
		}
		if table.Overrides() != len(spec.Overrides) {
			t.Fatalf("Overrides = %d, want %d", table.Overrides(), len(spec.Overrides))
		}
	}
	if s, _, ok := routing.Spread(nil).Home(5); ok || s != 5 {
		t.Errorf("Home in a table of nothing = %d, %v", s, ok)
	}
}

func TestGroupSlot(t *testing.T) {
	spec := routing.Spread([]string{"c1", "c2"}).Spec()
	spec.Groups = map[string]routing.Slot{"city:berlin": 77}
	table := mustBuild(t, spec)
	for group, want := range map[string]routing.Slot{
		"city:berlin":    77,
		" City:BERLIN ":  77,
		"city:  berlin":  routing.HashSlot("city: berlin"),
		"merchant:4711":  routing.HashSlot("merchant:4711"),
		"Merchant:4711 ": routing.HashSlot("merchant:4711"),
	} {
		if got := table.GroupSlot(group); got != want {
			t.Errorf("GroupSlot(%q) = %d, want %d", group, got, want)
		}
	}
}

// TestFormats: a table without homes is written as ever, so that older readers
// read it; one with homes is refused by them instead of being half read.
func TestFormats(t *testing.T) {
	r := seeded(t)
	for range 10 {
		spec := randomSpec(r)
		if b := mustBuild(t, spec).Encode(); !bytes.HasPrefix(b, []byte(`{"format":1,`)) || bytes.Contains(b, []byte("overrides")) {
			t.Fatalf("a table without homes: %.200s", b)
		}
		table := mustBuild(t, withHomes(r, spec, r.IntN(50)))
		b := table.Encode()
		if !bytes.HasPrefix(b, []byte(`{"format":2,`)) {
			t.Fatalf("a table with homes: %.200s", b)
		}
		got, err := routing.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := table.Spec(), got.Spec(); !maps.Equal(a.Overrides, b.Overrides) || !maps.Equal(a.Groups, b.Groups) {
			t.Fatalf("decoded %v %v, want %v %v", b.Overrides, b.Groups, a.Overrides, a.Groups)
		}
		if again := mustBuild(t, got.Spec()).Encode(); !bytes.Equal(again, b) {
			t.Fatal("Spec loses something")
		}
	}
}

func TestDecodeRefusesHomes(t *testing.T) {
	t.Parallel()
	spec := routing.Spread([]string{"c1", "c2"}).Spec()
	spec.Private[17408], spec.Private[17409] = spec.Slots[0], spec.Slots[0]
	spec.Overrides = map[int64]routing.Slot{5: 17408, 6: 17409}
	spec.Groups = map[string]routing.Slot{"a": 1, "b": 2}
	good := string(mustBuild(t, spec).Encode())
	for name, change := range map[string][2]string{
		"format 1":           {`"format":2`, `"format":1`},
		"a format to come":   {`"format":2`, `"format":3`},
		"users out of order": {`[[5,17408],[6,17409]]`, `[[6,17409],[5,17408]]`},
		"a user twice":       {`[[5,17408],[6,17409]]`, `[[5,17408],[5,17408],[6,17409]]`},
		"a slot overflow":    {`[5,17408]`, `[5,4294984704]`},
		"no such slot":       {`[5,17408]`, `[5,17410]`},
		"nothing in it":      {`"overrides":[[5,17408],[6,17409]],"groups":[{"name":"a","slot":1},{"name":"b","slot":2}]`, `"overrides":[],"groups":[]`},
		"groups swapped":     {`{"name":"a","slot":1},{"name":"b","slot":2}`, `{"name":"b","slot":2},{"name":"a","slot":1}`},
		"not canonical":      {`"name":"a"`, `"name":"A"`},
	} {
		t.Run(name, func(t *testing.T) {
			bad := strings.Replace(good, change[0], change[1], 1)
			if bad == good {
				t.Fatalf("%q isn't in %.600s", change[0], good)
			}
			if _, err := routing.Decode([]byte(bad)); !errors.Is(err, routing.ErrTable) {
				t.Errorf("Decode = %v, want ErrTable", err)
			}
		})
	}
}

func TestBuildRefusesHomes(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*routing.Spec){
		"user 0":                  func(s *routing.Spec) { s.Overrides[0] = 17409 },
		"a negative user":         func(s *routing.Spec) { s.Overrides[-5] = 17409 },
		"a hash slot":             func(s *routing.Spec) { s.Overrides[7] = 3 },
		"a cell slot":             func(s *routing.Spec) { s.Overrides[7] = routing.CellSlot(1) },
		"a slot that isn't there": func(s *routing.Spec) { s.Overrides[7] = 17499 },
		"two users in one":        func(s *routing.Spec) { s.Overrides[7] = 17408 },
		"a group without name":    func(s *routing.Spec) { s.Groups = map[string]routing.Slot{"": 1} },
		"a long group":            func(s *routing.Spec) { s.Groups = map[string]routing.Slot{strings.Repeat("x", 65): 1} },
		"an upper-case group":     func(s *routing.Spec) { s.Groups = map[string]routing.Slot{"Berlin": 1} },
		"a group with a blank":    func(s *routing.Spec) { s.Groups = map[string]routing.Slot{" berlin": 1} },
		"a group in no text":      func(s *routing.Spec) { s.Groups = map[string]routing.Slot{"\xff": 1} },
		"a group of controls":     func(s *routing.Spec) { s.Groups = map[string]routing.Slot{"a\x00": 1} },
		"a group at a private":    func(s *routing.Spec) { s.Groups = map[string]routing.Slot{"a": 17408} },
		"a group at nothing":      func(s *routing.Spec) { s.Groups = map[string]routing.Slot{"a": -1} },
	} {
		t.Run(name, func(t *testing.T) {
			spec := routing.Spread([]string{"c1", "c2"}).Spec()
			spec.Private[17408], spec.Private[17409] = spec.Slots[0], spec.Slots[0]
			spec.Overrides = map[int64]routing.Slot{5: 17408}
			mustBuild(t, spec)
			spoil(&spec)
			if _, err := routing.Build(spec); !errors.Is(err, routing.ErrTable) {
				t.Errorf("Build = %v, want ErrTable", err)
			}
		})
	}
}

// TestCheckNextKeepsOverrides: the old home's forwarding row stays for ever, so
// a moved user is never looked for anywhere but in the private slot.
func TestCheckNextKeepsOverrides(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*routing.Spec)
		want   string
	}{
		"nothing":       {func(*routing.Spec) {}, ""},
		"one more user": {func(s *routing.Spec) { s.Overrides[9] = 17409 }, ""},
		"the user moves again": {func(s *routing.Spec) {
			s.Private[17408] = routing.Assignment{Owner: "c2", Standby: "c1", Epoch: 2}
		}, ""},
		"a pin changes":             {func(s *routing.Spec) { s.Groups = map[string]routing.Slot{"a": 2} }, ""},
		"a pin goes":                {func(s *routing.Spec) { s.Groups = nil }, ""},
		"the override is lost":      {func(s *routing.Spec) { delete(s.Overrides, 5) }, "user 5"},
		"all overrides are lost":    {func(s *routing.Spec) { s.Overrides = nil }, "user 5"},
		"another private slot":      {func(s *routing.Spec) { s.Overrides[5] = 17409 }, "user 5"},
		"override and slot go":      {func(s *routing.Spec) { s.Overrides = nil; delete(s.Private, 17408) }, "slot 17408"},
		"the slot to somebody else": {func(s *routing.Spec) { s.Overrides = map[int64]routing.Slot{6: 17408} }, "user 5"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := routing.Spread([]string{"c1", "c2"}).Spec()
			spec.Private[17408], spec.Private[17409] = spec.Slots[0], spec.Slots[0]
			spec.Overrides, spec.Groups = map[int64]routing.Slot{5: 17408}, map[string]routing.Slot{"a": 1}
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

func TestHomeAllocatesNothing(t *testing.T) {
	r := seeded(t)
	table := mustBuild(t, withHomes(r, randomSpec(r), 100))
	moved := slices.Collect(maps.Keys(table.Spec().Overrides))
	if n := testing.AllocsPerRun(100, func() {
		for _, id := range moved {
			table.Home(id)
			table.Home(id + 1)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// BenchmarkHome: among 10,000 moved users, one who wasn't moved, one who wasn't
// but whose slot lost somebody, and one who was.
func BenchmarkHome(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	spec := many(b, 4).Spec()
	spec.Overrides = map[int64]routing.Slot{}
	for i := range 10_000 {
		s := routing.FirstUserSlot + routing.Slot(i)
		spec.Private[s] = spec.Slots[0]
		spec.Overrides[r.Int64N(1<<40)<<14|r.Int64N(routing.Slots/2)+1] = s
	}
	table := mustBuild(b, spec)
	moved := slices.Sorted(maps.Keys(spec.Overrides))
	r.Shuffle(len(moved), func(i, j int) { moved[i], moved[j] = moved[j], moved[i] })
	for name, id := range map[string]func(i int) int64{
		"untouched": func(i int) int64 { return moved[i%len(moved)] + routing.Slots/2 },
		"beside":    func(i int) int64 { return moved[i%len(moved)] ^ 1<<60 },
		"moved":     func(i int) int64 { return moved[i%len(moved)] },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, _, ok := table.Home(id(i)); !ok {
					b.Fatal("not found")
				}
			}
		})
	}
}

// FuzzGroup: a canonical name stays as it is, and names one slot.
func FuzzGroup(f *testing.F) {
	for _, s := range []string{"", "city:Berlin", " a  b\t", "İstanbul", "\xff", "ſ", "ẞ"} {
		f.Add(s)
	}
	table := routing.Spread([]string{"c1"})
	f.Fuzz(func(t *testing.T, s string) {
		c := routing.CanonicalGroup(s)
		if again := routing.CanonicalGroup(c); again != c {
			t.Fatalf("%q gives %q, and that %q", s, c, again)
		}
		if a, b := table.GroupSlot(s), table.GroupSlot(c); a != b || a.Private() || a < 0 {
			t.Fatalf("GroupSlot %d and %d", a, b)
		}
	})
}
