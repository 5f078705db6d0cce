package outputcommit

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/routing"
)

// What only one side has of the marks is put right, but for marks of another
// database, and for those that this one can't know of.
func TestCompare(t *testing.T) {
	t.Parallel()
	mark := func(slot routing.Slot, token int64, incarnation string) Mark {
		return Mark{Slot: slot, Epoch: 1, Token: token, Incarnation: incarnation}
	}
	rows := []row{
		{mark: mark(1, 5, "a"), owned: true, marked: true},  // both have it
		{mark: mark(2, 6, "a"), owned: true, marked: true},  // they lost it
		{mark: mark(3, 7, "a"), owned: true},                // they don't know of it yet: not here
		{mark: mark(4, 8, "a"), owned: false, marked: true}, // another's slot
	}
	theirs := []Mark{
		mark(1, 5, "a"), mark(1, 4, "a"), // an older one of the same slot is over
		mark(9, 3, "a"),  // its lift was lost
		mark(10, 9, "a"), // never given: this database went back
		mark(11, 1, "b"), // another database's
		mark(2, 6, "b"),
	}
	over, lost, unknown := compare(rows, theirs, "a", 8)
	if diff := cmp.Diff([]Mark{mark(1, 4, "a"), mark(9, 3, "a")}, over); diff != "" {
		t.Errorf("over (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]Mark{mark(2, 6, "a")}, lost); diff != "" {
		t.Errorf("lost (-want +got)\n%s", diff)
	}
	if unknown != 1 {
		t.Errorf("%d unknown, want 1", unknown)
	}
}
