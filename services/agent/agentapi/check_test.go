package agentapi

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/routing"
)

// A slot that two cells own is named under I2 too; what waits to be cleaned up is
// said, and no violation.
func TestOwnedTwiceAndLeftovers(t *testing.T) {
	last := routing.Slot(routing.Slots - 1)
	of := func(results []Result) Result { return results[1] }
	v := view{local: map[string]Facts{
		"c1": {Cell: "c1", Owned: []SlotRange{{From: 0, To: 100, Epoch: 1}}},
		"c2": {Cell: "c2", Owned: []SlotRange{{From: 101, To: last, Epoch: 1}}, Leftovers: &Leftovers{Slots: 3, Held: 1, Rows: 120, OldestMS: 61_200}},
	}}
	sound := of(judge(v, time.Now()))
	want := []string{"c2: 120 rows of 3 slots that it let go of wait to be cleaned up, since 1m1s; 1 of the slots are kept"}
	if d := cmp.Diff(want, sound.Notes); sound.ID != "I2" || sound.OK == nil || !*sound.OK || d != "" {
		t.Errorf("%+v (-want +got)\n%s", sound, d)
	}
	v.local["c1"] = Facts{Cell: "c1", Owned: []SlotRange{{From: 0, To: 102, Epoch: 1}}}
	twice := of(judge(v, time.Now()))
	if d := cmp.Diff([]string{"slot 101 is owned by c1 and by c2", "slot 102 is owned by c1 and by c2"}, twice.Violations); twice.OK == nil || *twice.OK || d != "" {
		t.Errorf("%+v (-want +got)\n%s", twice, d)
	}
}
