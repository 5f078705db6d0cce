package agentapi

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What the cells' own looks found counts, once, and is shown with its age; what
// couldn't be looked at again, or not yet, is only said.
func TestOwnLooksAtMoney(t *testing.T) {
	ms := func(n int64) *int64 { return &n }
	of := func(f Facts) Result {
		for _, r := range judge(view{local: map[string]Facts{"c1": f}}, time.Now()) {
			if r.ID == "I4" {
				return r
			}
		}
		return Result{}
	}
	f := Facts{Cell: "c1", Books: []LedgerLook{{ID: "I4", Checked: 12, AgeMS: 4000}}, Reconciled: []Reconciled{
		{To: "c1", RecentAgeMS: ms(2000), WholeAgeMS: ms(90_000), Transfers: 5, Open: 1, Differences: []string{}},
		{To: "c2", RecentAgeMS: ms(3000), Transfers: 2, Differences: []string{}},
		{To: "c3", Error: "the link is down"},
	}}
	want := []string{
		"c1: 7 transfers to 2 cells compared, recent hours at most 3s ago, all at most 1m30s ago; 1 in flight",
		"c1: own look 4s ago: 0 violations in 12 rows",
		"c1: transfers to c2: only the recent hours are compared so far",
		"c1: transfers to c3 not compared yet the link is down",
	}
	if got := of(f); !*got.OK || !cmp.Equal(want, got.Notes) {
		t.Errorf("%+v (-want +got)\n%s", got, cmp.Diff(want, got.Notes))
	}
	f.Reconciled[1].Different, f.Reconciled[1].Differences = 3, []string{"transfer 7 is wrong", "transfer 7 is wrong"}
	if got := of(f); *got.OK || !cmp.Equal([]string{"transfer 7 is wrong", "transfers from c1 to c2: 1 more differences"}, got.Violations) {
		t.Errorf("%+v", got)
	}
	f.Reconciled[1].Stale = true
	if got := of(f); !*got.OK || len(got.Violations) != 0 || len(got.Notes) != 6 {
		t.Errorf("%+v", got)
	}
}
