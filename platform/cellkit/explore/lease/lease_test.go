package lease

import (
	"os"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/explore"
)

var update = explore.Update()

// Every world is clean with all rules on, and every rule that is switched off is
// missed: the violation that it is there for is found.
func TestModel(t *testing.T) {
	t.Parallel()
	runs := Runs()
	found := explore.Check(t, runs, "testdata/found.txt", update)
	if t.Failed() {
		return
	}
	for world, moves := range map[string][]string{ // nothing can be found by one that hardly moves
		"3 voters": {
			"sends it on", "applies it", "promises, and hands its marks over", "publishes the standby as the owner", "gives the failover up",
			"begins a round with the mark", "publishes a table for somebody else",
		},
		"a restore, 4 voters": {"restarts as it was before", "answers the first round", "grants"},
		"a hand-over": {
			"gives the slot", "applies the row that gives it the slot", "opens again by itself", "publishes b as the owner",
			"publishes the failover", "is back", "names c as the standby for another job",
		},
	} {
		for i, r := range runs {
			for _, m := range moves {
				if r.World == world && r.Rule.Name == "" && !found[i].Taken[m] {
					t.Errorf("%s: nobody ever makes the move %q", world, m)
				}
			}
		}
	}
}

func TestEveryRuleIsSwitchedOff(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	doc := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "//", " ")), " ")
	off := map[explore.Rule]bool{}
	for _, r := range Runs() {
		off[r.Rule] = true
	}
	for n, r := range rules() {
		switch {
		case Rule(n) == None:
		case !off[explore.Rule(r)] || r.Place == "" || r.Off == "":
			t.Errorf("rule %d (%s) is never switched off, or nobody says where it's from", n, r.Name)
		case !strings.Contains(doc, r.Name):
			t.Errorf("doc.go doesn't name %q", r.Name)
		}
	}
}
