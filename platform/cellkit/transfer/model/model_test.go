package model

import (
	"os"
	"slices"
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
	if !t.Failed() {
		moves(t, runs, found)
	}
}

// moves checks that the worlds do what they are about: nothing can be found by one
// that hardly moves.
func moves(t *testing.T, runs []explore.Run, found []explore.Found) {
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
	} {
		i := slices.IndexFunc(runs, func(r explore.Run) bool { return r.World == world && r.Rule.Name == "" })
		for _, m := range moves {
			if i < 0 || !found[i].Taken[m] {
				t.Errorf("%s: nobody ever makes the move %q", world, m)
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
