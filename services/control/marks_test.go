package control

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/control/controlapi"
)

func mark(slot routing.Slot, epoch routing.Epoch, incarnation string, token int64) controlapi.Mark {
	return controlapi.Mark{Slot: slot, Epoch: epoch, Incarnation: incarnation, Token: token, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
}

// Marks come twice, late and out of order; a lift takes no mark that came after the
// one it names.
func TestMarks(t *testing.T) {
	t.Parallel()
	s, c := serve(t, "operator")
	if _, err := s.initialize(t.Context(), fourCells()); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	type change = controlapi.MarkChange
	type list = []controlapi.Mark
	for _, step := range []struct {
		what   string
		change change
		want   list // of c1
	}{
		{"first", change{Cell: "c1", Set: list{mark(5, 1, "a", 1), mark(3, 1, "a", 2)}}, list{mark(3, 1, "a", 2), mark(5, 1, "a", 1)}},
		{"once more", change{Cell: "c1", Set: list{mark(5, 1, "a", 1), mark(3, 1, "a", 2)}}, list{mark(3, 1, "a", 2), mark(5, 1, "a", 1)}},
		{"another cell", change{Cell: "c2", Set: list{mark(5, 1, "z", 9)}}, list{mark(3, 1, "a", 2), mark(5, 1, "a", 1)}},
		{"another cell's lift", change{Cell: "c2", Lift: list{mark(3, 1, "a", 9)}}, list{mark(3, 1, "a", 2), mark(5, 1, "a", 1)}},
		{"a lift, and a new mark", change{Cell: "c1", Lift: list{mark(5, 1, "a", 1)}, Set: list{mark(5, 1, "a", 3)}}, list{mark(3, 1, "a", 2), mark(5, 1, "a", 3)}},
		{"the old mark comes late", change{Cell: "c1", Set: list{mark(5, 1, "a", 1)}}, list{mark(3, 1, "a", 2), mark(5, 1, "a", 3)}},
		{"its lift comes late", change{Cell: "c1", Lift: list{mark(5, 1, "a", 1)}}, list{mark(3, 1, "a", 2), mark(5, 1, "a", 3)}},
		{"another database of the cell", change{Cell: "c1", Set: list{mark(5, 2, "b", 1)}}, list{mark(3, 1, "a", 2), mark(5, 2, "b", 1)}},
		{"a lift of the database before", change{Cell: "c1", Lift: list{mark(5, 1, "a", 9)}}, list{mark(3, 1, "a", 2), mark(5, 2, "b", 1)}},
		{"all", change{Cell: "c1", Lift: list{mark(5, 2, "b", 1), mark(3, 1, "a", 2)}}, nil},
	} {
		if err := c.SetMarks(ctx, step.change); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		got, err := c.Marks(ctx, "c1")
		if err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		var have list
		for _, m := range got.Marks {
			if m.Cell != "c1" || m.Over != (m.Epoch < 1) {
				t.Errorf("%s: %+v", step.what, m)
			}
			m.Since = m.Since.UTC()
			have = append(have, m.Mark)
		}
		if diff := cmp.Diff(step.want, have); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
	}
	if all, err := c.Marks(ctx, ""); err != nil || len(all.Marks) != 1 || all.Marks[0].Cell != "c2" {
		t.Errorf("all marks: %+v, %v, want that of c2", all, err)
	}
	if err := c.SetMarks(ctx, change{Cell: "nobody", Set: list{mark(1, 1, "a", 1)}}); err == nil {
		t.Error("a mark of a cell that isn't there is taken")
	}
}

// A mark of an epoch that is over says nothing any more.
func TestMarkOfAnOldEpochIsOver(t *testing.T) {
	t.Parallel()
	s, c := serve(t, "operator")
	if _, err := s.initialize(t.Context(), fourCells()); err != nil {
		t.Fatal(err)
	}
	was, _ := s.holder.Load().Slot(0)
	to := "c2"
	if was.Owner == to {
		to = "c3"
	}
	if err := c.SetMarks(t.Context(), controlapi.MarkChange{Cell: was.Owner, Set: []controlapi.Mark{mark(0, was.Epoch, "a", 1), mark(1, was.Epoch, "a", 2)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.publish(t.Context(), controlapi.PublishRequest{ExpectVersion: 1, Reason: "test", Changes: &controlapi.Changes{Assign: []controlapi.Assign{{From: 0, To: 0, Owner: to}}}}); err != nil {
		t.Fatal(err)
	}
	got, err := c.Marks(t.Context(), was.Owner)
	if err != nil || len(got.Marks) != 2 || !got.Marks[0].Over || got.Marks[1].Over {
		t.Errorf("%+v, %v: want the first one over", got, err)
	}
}
