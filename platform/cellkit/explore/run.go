package explore

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

// Rule is one that a run switches off.
type Rule struct {
	Place string // in the protocols
	Name  string // the rule in few words; empty: all rules are on
	Off   string // what is done instead
}

// Run is one exploration: a world within its bounds, with all rules on or without one.
type Run struct {
	World string
	Bound string // what may happen in it
	Rule  Rule
	Wants string // the violation that has to be found, and the only one that counts; "" = none
	Look  func() (Found, error)
}

// Check explores side by side and compares what is found with what has to be; the
// counts, which are the same each time, with a file.
func Check(t *testing.T, runs []Run, file string, update *bool) []Found {
	t.Helper()
	found := make([]Found, len(runs))
	t.Run("runs", func(t *testing.T) {
		for i, r := range runs {
			t.Run(r.World+"/"+r.name(), func(t *testing.T) {
				t.Parallel()
				f, err := r.Look()
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%d states, %d moves, depth %d: %q", f.States, f.Moves, f.Depth, f.Broken)
				if f.Broken != r.Wants {
					t.Errorf("found %q, want %q", f.Broken, r.Wants)
				}
				for n, move := range f.Trace {
					t.Logf("%2d  %s", n+1, move)
				}
				found[i] = f
			})
		}
	})
	if got := Table(runs, found); !t.Failed() {
		compare(t, file, got, *update)
	}
	return found
}

// Update is the flag that has a test write its table anew.
func Update() *bool { return flag.Bool("update", false, "write the table of what is found anew") }

func (r Run) name() string {
	if r.Rule.Name == "" {
		return "all rules"
	}
	return r.Rule.Name
}

// Table is a line for each run.
func Table(runs []Run, found []Found) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-5s %-38s %-34s %7s %7s %5s  %s\n", "place", "switched off", "world", "states", "moves", "depth", "found")
	for i, r := range runs {
		off, says := r.Rule.Name, found[i].Broken
		if off == "" {
			off = "-"
		}
		if says == "" {
			says = "nothing"
		}
		fmt.Fprintf(&b, "%-5s %-38s %-34s %7d %7d %5d  %s\n", r.Rule.Place, off, r.World, found[i].States, found[i].Moves, found[i].Depth, says)
	}
	return b.String()
}

func compare(t *testing.T, file, got string, update bool) {
	t.Helper()
	if update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s isn't what is found now (go test -update writes it):\n%s", file, got)
	}
}
