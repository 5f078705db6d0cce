package plan

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	examples = regexp.MustCompile("(?m)^\\| `(--[^`]+)` \\| ([^|]+) \\| (\\d+) \\|")
	sizes    = regexp.MustCompile(`(?m)^\| (\d+) \| (\d.*) \|$`)
)

// docs/when-not.md says what this package computes.
func TestWhenNotDoc(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../../docs/when-not.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	rows := examples.FindAllStringSubmatch(page, -1)
	for _, m := range rows {
		_, r := given(t, m[1])
		if got := fmt.Sprintf("%s, %d cells", r.Verdict.Verdict, r.Verdict.Cells); got != fmt.Sprintf("%s, %s cells", m[2], m[3]) {
			t.Errorf("plan %s says %s, the page %s, %s cells", m[1], got, m[2], m[3])
		}
	}
	tables := sizes.FindAllStringSubmatch(page, -1)
	for _, m := range tables {
		_, r := given(t, "--cells "+m[1])
		want := fmt.Sprintf("%.2f %% | %.1f %% | %.0f %% | %.2f %% | %.2f %% | %.1f %%",
			r.Blast.Share, r.Load.Spare, 100*r.Load.OneLost/r.Load.Usual, r.Cross.Pair, r.Cross.Any, r.Add.MovedShare)
		if m[2] != want {
			t.Errorf("%s cells: the page says %s, plan %s", m[1], m[2], want)
		}
	}
	if len(rows) != 6 || len(tables) != 4 {
		t.Errorf("%d examples and %d sizes were found, want 6 and 4", len(rows), len(tables))
	}
	_, r := given(t, "")
	_, crowd := given(t, "--qps 300000")
	for _, want := range []string{
		fmt.Sprintf("%.2f h (%.2f h for who", r.Add.Hours, r.Add.DecimalHours),
		fmt.Sprintf("waits %.2f ms in the mean of 4 cells", r.RoundTrip.OnePeerMS), fmt.Sprintf("peers in turn %.2f ms", r.RoundTrip.SerialMS),
		fmt.Sprintf("leaves %.0f %% of load", *r.Cells.RegionLoss), fmt.Sprintf("the rest; %d would", *r.Cells.RegionSafe), fmt.Sprintf("working day at %d.", r.Cells.UpperOperations),
	} {
		if !strings.Contains(strings.Join(strings.Fields(page), " "), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if r.Cells.UpperBlast != 10 || r.Blast.OneUserMinutes != 150_000_000 || r.Blast.UserMinutes != 37_500_000 {
		t.Errorf("the page has other figures than %+v", r)
	}
	if !strings.Contains(strings.Join(crowd.Warnings, "\n"), "larger cells") {
		t.Errorf("16 cells, and the plan warns %q", crowd.Warnings)
	}
}
