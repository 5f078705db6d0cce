package model

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of what is found anew")

// Every world is clean with all rules on, and every rule that is switched off is
// missed: the violation it is there for is found. Same states each time: the counts
// are in testdata/found.txt.
func TestModel(t *testing.T) {
	t.Parallel()
	runs := Runs()
	found := make([]Found, len(runs))
	t.Run("runs", func(t *testing.T) {
		for i, r := range runs {
			t.Run(r.World+"/"+r.Rule.String(), func(t *testing.T) {
				t.Parallel()
				f, err := r.Explore()
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%d states, %d moves, depth %d: %q", f.States, f.Moves, f.Depth, f.Broken)
				if f.Broken != r.Wants || len(f.Trace) != f.Depth && f.Broken != "" {
					t.Errorf("found %q after %d moves, want %q; on the way:", f.Broken, f.Depth, r.Wants)
				}
				for n, move := range f.Trace {
					t.Logf("%2d  %s", n+1, move)
				}
				found[i] = f
			})
		}
	})
	if !t.Failed() {
		moves(t, runs, found)
		compare(t, "testdata/found.txt", table(runs, found))
	}
}

func table(runs []Run, found []Found) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-6s %-40s %-34s %8s %8s %5s  %s\n", "place", "rule that is off", "world", "states", "moves", "depth", "found")
	for i, r := range runs {
		off, says := r.Rule.String(), found[i].Broken
		if r.Rule == None {
			off = "-"
		}
		if says == "" {
			says = "nothing"
		}
		fmt.Fprintf(&b, "%-6s %-40s %-34s %8d %8d %5d  %s\n", r.Rule.Place(), off, r.World, found[i].States, found[i].Moves, found[i].Depth, says)
	}
	return b.String()
}

func compare(t *testing.T, file, got string) {
	t.Helper()
	if *update {
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

// moves checks that the worlds do what they are about: nothing can be found by one
// that hardly moves.
func moves(t *testing.T, runs []Run, found []Found) {
	t.Helper()
	for world, moves := range map[string][]string{
		"pay": {
			"CREDITED is answered", "REFUSED is answered", "CANCELLED is answered", "CANCELLING", "all are lost", "the mark is lifted",
			"CANCELLED at the payee, a tombstone", "the owner's cell is lost, its standby promoted, the tail lost", "a new standby has its copy",
		},
		"pay, payee's standby exchanged": {"an exchange begins", "the owner has that table", "the owner's cell is lost, the new standby promoted, the tail lost"},
		"two refunds of one":             {"the payer has CREDITED", "the payer has CANCELLED"},
		"order": {
			"the order has RESERVED", "the order has REFUSED", "the order has CONFIRMED", "the order has ENDED", "the order has RELEASED",
			"its time is over", "the seller has the money", "CANCELLED, the money is free again",
		},
		"one phone, two users": {
			"is granted the phone, ACTIVE", "is told that the phone is taken", "is asked, which says that it was granted: ACTIVE",
			"is asked for, a tombstone is made", "the claim is RELEASED", "the claim is CONFIRMED",
		},
		"3 voters": {
			"sends it on", "promises, and hands its marks over", "publishes the standby as the owner", "gives the failover up",
			"begins a round with the mark", "publishes a table for somebody else",
		},
	} {
		i := slices.IndexFunc(runs, func(r Run) bool { return r.World == world && r.Rule == None })
		for _, m := range moves {
			if i < 0 || !found[i].Taken[m] {
				t.Errorf("%s: nobody ever makes the move %q", world, m)
			}
		}
	}
}

func TestEveryRuleIsSwitchedOff(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	off := map[Rule]bool{None: true}
	for _, r := range Runs() {
		off[r.Rule] = true
	}
	for r := None + 1; r < last; r++ {
		if !off[r] || r.Place() == "" || r.Off() == "" {
			t.Errorf("rule %d (%s) is never switched off, or nobody says where it's from", r, r)
		}
		if !strings.Contains(string(doc), r.String()) {
			t.Errorf("doc.go doesn't name %q", r)
		}
	}
}
