package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/services/agent/agentapi"
)

func TestOutOfPlace(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		d    *agentapi.Database
		want []string
	}{
		{"no database", nil, nil},
		{"clean", &agentapi.Database{Leftovers: &agentapi.Leftovers{Deleted: 9}, Misplaced: &agentapi.Misplaced{AgeMS: 900}}, nil},
		{"unknown isn't clean", &agentapi.Database{}, []string{"what is left to be cleaned up isn't known", "nobody has looked for rows in the wrong place yet"}},
		{"neither", &agentapi.Database{Leftovers: &agentapi.Leftovers{Slots: 3, Held: 1, Rows: 50, OldestMS: 61_000}, Misplaced: &agentapi.Misplaced{Rows: 2, AgeMS: 30_000}}, []string{
			"50 rows of 3 slots that it let go of wait to be cleaned up, the first for 1m1s", "1 of these slots were taken by another cell: their rows are kept",
			"2 rows in the wrong place (30s ago): cellctl invariants names them",
		}},
	} {
		if d := cmp.Diff(tc.want, outOfPlace(tc.d)); d != "" {
			t.Errorf("%s (-want +got)\n%s", tc.name, d)
		}
	}
}
