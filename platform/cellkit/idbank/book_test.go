package idbank

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/id"
)

func noon() time.Time { return id.Epoch.Add(333*24*time.Hour + 12*time.Hour) }

func TestJudge(t *testing.T) {
	t.Parallel()
	file := Mark{System: "7", Timeline: "1", Counter: 10, Ceiling: 500}
	for _, tc := range []struct {
		name string
		have bool
		db   Mark
		ok   bool
	}{
		{"as remembered", true, Mark{"7", "1", 10, 500}, true},
		{"killed between commit and file", true, Mark{"7", "1", 11, 600}, true},
		{"went back", true, Mark{"7", "1", 9, 500}, false},
		{"promoted, with nothing lost that shows", true, Mark{"7", "2", 12, 500}, false},
		{"another database", true, Mark{"8", "1", 12, 500}, false},
		{"a new cell", false, Mark{"7", "1", 0, 0}, true},
		{"the file is gone", false, Mark{"7", "1", 1, 0}, false},
	} {
		if why := Judge(file, tc.have, tc.db); (why == "") != tc.ok {
			t.Errorf("%s: %q, want believed = %v", tc.name, why, tc.ok)
		}
	}
}

func book(ordinal int, clock time.Time) *Book {
	return &Book{System: "7", Timeline: "1", Ordinal: ordinal, Clock: clock}
}

// S-I02: the clock pulls a machine's counter forward and never back. A machine
// that is more than an hour ahead of time is left for another.
func TestScenario_I02_FallbackFollowsTheClock(t *testing.T) {
	t.Parallel()
	k := book(3, noon())
	ends := map[int]int64{}
	for _, step := range []struct {
		clock   time.Duration
		machine int
		pull    bool // begins at the clock, not at the last end
	}{
		{0, 24, true}, {time.Millisecond, 24, false}, {time.Minute, 24, true}, {-time.Millisecond, 24, false}, {-10 * time.Second, 24, false},
		{-time.Hour, 25, true}, {2 * time.Hour, 24, true}, {0, 25, true},
	} {
		now := noon().Add(step.clock)
		k.Clock = now
		g, err := k.Raise("c3/order/a", 5000, now)
		if err != nil || g.Machine != step.machine || g.Lo < ends[g.Machine] || (g.Lo == id.FallbackAt(now)) != step.pull || k.Machines[g.Machine-24].Ceiling != g.Hi {
			t.Errorf("%v: %+v after %v, %v", step.clock, g, ends, err)
		}
		ends[g.Machine] = g.Hi
	}
}

// One clock that jumps a day ahead takes nothing with it.
func TestRaiseBelievesTheSlowerClock(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{"agent", "database"} {
		k, now := book(1, noon()), noon()
		if wrong == "agent" {
			now = now.Add(24 * time.Hour)
		} else {
			k.Clock = k.Clock.Add(24 * time.Hour)
		}
		if g, err := k.Raise("a", 10, now); err != nil || g.Lo != id.FallbackAt(noon()) {
			t.Errorf("the %s's clock is a day ahead: %+v, %v", wrong, g, err)
		}
	}
}

func TestRaiseStopsAnHourAhead(t *testing.T) {
	t.Parallel()
	k := book(1, noon())
	var total int64
	for {
		g, err := k.Raise("a", id.MaxLease, noon())
		if err != nil {
			if !errors.Is(err, ErrAhead) {
				t.Error(err)
			}
			break
		}
		total += g.Hi - g.Lo
	}
	if want := int64(8 * 3600 * 512); total != want {
		t.Errorf("%d IDs at once, want %d: an hour of eight machines", total, want)
	}
	k.Clock = noon().Add(time.Second)
	if g, err := k.Raise("a", id.MaxLease, k.Clock); err != nil || g.Hi-g.Lo != 512 {
		t.Errorf("a second later: %+v, %v, want 512", g, err)
	}
}

// Five bits: cells 1 to 31 have a fallback, and no other; the others say so.
func TestOrdinals(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		ordinal int
		ok      bool
	}{{-1, false}, {0, false}, {1, true}, {31, true}, {32, false}, {256, false}} {
		_, err := book(tc.ordinal, noon()).Raise("a", 10, noon())
		if (err == nil) != tc.ok || !tc.ok && !errors.Is(err, ErrOrdinal) {
			t.Errorf("ordinal %d: %v, want ok = %v", tc.ordinal, err, tc.ok)
		}
	}
}

// S-I05: a machine's number comes from the cell's ordinal and from its database,
// so two networks with the same addresses have nothing in common. All cells with
// all their machines have different ones.
func TestScenario_I05_MachinesOfTwoNetworks(t *testing.T) {
	t.Parallel()
	seen := map[int]string{}
	for ordinal := 1; ordinal <= id.MaxOrdinal; ordinal++ {
		k := book(ordinal, noon())
		for p := range id.FallbackNumbers {
			g, err := k.Raise(fmt.Sprintf("10.0.0.5:%d", p), 10, noon())
			if err != nil {
				t.Fatal(err)
			}
			if other, taken := seen[g.Machine]; taken || g.Machine < 8 || g.Machine > 255 {
				t.Fatalf("machine %d of cell %d is %s's too", g.Machine, ordinal, other)
			}
			seen[g.Machine] = fmt.Sprint("cell ", ordinal)
		}
	}
	if len(seen) != 31*8 {
		t.Errorf("%d machines", len(seen))
	}
}

// S-I08: a machine goes to a ninth process while the first still uses what it got;
// both go on, neither gets what the other has.
func TestScenario_I08_MachineChangesHolder(t *testing.T) {
	t.Parallel()
	k := book(2, noon())
	taken := map[int][]Range{}
	for round := range 5 {
		for p := range 12 {
			g, err := k.Raise(fmt.Sprint("process ", p), 1000, noon().Add(time.Duration(round)*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range taken[g.Machine] {
				if g.Lo < r.Hi && r.Lo < g.Hi {
					t.Fatalf("machine %d: [%d, %d) overlaps [%d, %d)", g.Machine, g.Lo, g.Hi, r.Lo, r.Hi)
				}
			}
			taken[g.Machine] = append(taken[g.Machine], Range{g.Lo, g.Hi})
		}
	}
	if len(taken) != 8 {
		t.Errorf("%d machines were used", len(taken))
	}
}

func TestHolderKeepsItsMachine(t *testing.T) {
	t.Parallel()
	k := book(2, noon())
	for range 3 {
		for p := range 8 {
			g, err := k.Raise(fmt.Sprint("process ", p), 100, noon())
			if err != nil || g.Machine&7 != p {
				t.Errorf("process %d: %+v, %v", p, g, err)
			}
		}
	}
}

func TestGiveUp(t *testing.T) {
	t.Parallel()
	k := book(1, noon())
	k.Ranges = []Range{{5, 10}}
	k.Machines[2] = Machine{Ceiling: 1 << 39, Holder: "a"}
	k.Counter = 4
	file := Mark{Counter: 9, Ceiling: id.FallbackAt(noon().Add(3 * time.Hour))}
	k.GiveUp("test", file, noon().Add(-time.Hour))
	if len(k.Ranges) != 0 || k.Counter != 10 || k.Machines[2].Ceiling != 1<<39 || k.Machines[7].Ceiling != file.Ceiling || k.Machines[2].Holder != "" {
		t.Errorf("%+v", k)
	}
	k = book(1, noon())
	k.GiveUp("test", Mark{}, noon().Add(-time.Hour))
	if want := id.FallbackAt(noon().Add(time.Hour)); k.Machines[0].Ceiling != want {
		t.Errorf("ceiling %d, want an hour above the later clock: %d", k.Machines[0].Ceiling, want)
	}
}
