package main

import (
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/id"
)

// Unknown is neither zero nor fine, and a process that ended takes nothing from
// those that run.
func TestIDsSayWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	share := func(v float64) *float64 { return &v }
	zone := func(age int64, s *float64) []zoneIDs {
		return []zoneIDs{{Cell: "c1", Figures: &id.CellFigures{Cell: "c1", Bank: &id.BankFigures{Ordinal: 1}, Processes: []id.ProcessFigures{
			{AgeMS: age, Report: id.Report{Process: "c1/order/1", Kinds: []id.Stat{{Kind: "order", Stock: 5, Share: s}}}},
		}}}}
	}
	both := func(a, b []zoneIDs) []zoneIDs {
		a[0].Figures.Processes = append(a[0].Figures.Processes, b[0].Figures.Processes...)
		return a
	}
	for _, tc := range []struct {
		name string
		all  []zoneIDs
		ok   bool
		text string
	}{
		{"well", zone(10, share(1)), true, "100.00%"},
		{"nobody called yet", zone(10, nil), true, "?"},
		{"callers waited", zone(10, share(0.99)), false, "99.00%"},
		{"callers waited, in a process that ended", both(zone(60_000, share(0.5)), zone(10, share(1))), true, "1m0s"},
		{"all are silent", zone(60_000, share(1)), false, "1m0s"},
		{"the agent is away", []zoneIDs{{Cell: "c1", Error: "refused"}}, false, "agent: refused"},
		{"no process was heard", []zoneIDs{{Cell: "c1", Figures: &id.CellFigures{}}}, false, "BANK"},
		{"the database is away", []zoneIDs{{Cell: "c1", Figures: &id.CellFigures{BankError: "no database", Processes: zone(1, nil)[0].Figures.Processes}}}, false, "no database"},
	} {
		var out strings.Builder
		printIDs(&out, tc.all)
		if got := idsHold(tc.all); got != tc.ok || !strings.Contains(out.String(), tc.text) {
			t.Errorf("%s: holds %v, want %v, and %q in\n%s", tc.name, got, tc.ok, tc.text, out.String())
		}
	}
}
