package drill

import (
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/cellmart/cmd/cellctl/load"
	"example.com/cellmart/services/control/controlapi"
)

// zones is a demo in which everybody holds table 5.
func zones() controlapi.Acks {
	a := controlapi.Acks{Version: 5, Complete: true}
	for _, name := range []string{"c1", "c2", "global"} {
		age := int64(10)
		a.Zones = append(a.Zones, controlapi.ZoneState{AgeMS: &age, Done: true, ZoneAcks: controlapi.ZoneAcks{
			Zone: name, Version: 5, ListeningMS: 60_000, Processes: []controlapi.Ack{{Process: "agent@1", Version: 5}, {Process: "order@1", Version: 5}},
		}})
	}
	return a
}

func TestLacking(t *testing.T) {
	t.Parallel()
	before := zones()
	for name, x := range map[string]struct {
		change func(a *controlapi.Acks)
		want   string
	}{
		"all have it":           {func(*controlapi.Acks) {}, ""},
		"the cut-off cell":      {func(a *controlapi.Acks) { a.Zones[1].Done = false; a.Zones[1].Processes[1].Version = 4 }, ""},
		"one holds an old one":  {func(a *controlapi.Acks) { a.Zones[0].Done = false; a.Zones[0].Processes[1].Version = 4 }, "c1's order@1 holds table 4"},
		"one is gone":           {func(a *controlapi.Acks) { a.Zones[0].Processes = a.Zones[0].Processes[:1] }, "c1's order@1 isn't heard of any more"},
		"a zone is unknown":     {func(a *controlapi.Acks) { a.Zones[2].AgeMS, a.Zones[2].Done = nil, false }, "global hasn't reported"},
		"an agent just started": {func(a *controlapi.Acks) { a.Zones[2].Done, a.Zones[2].ListeningMS = false, 90 }, "global's agent holds table 5, and has listened for 90 ms"},
	} {
		now := zones()
		x.change(&now)
		if got := strings.Join(lacking(now, &before, "c2"), "; "); !strings.Contains(got, x.want) || (got == "") != (x.want == "") {
			t.Errorf("%s: %q, want %q", name, got, x.want)
		}
	}
}

func TestColdStart(t *testing.T) {
	t.Parallel()
	judge := func(change func(*load.Sample)) string {
		all, _ := ideal() // of c3's users all that need a home is refused from second 10 on
		for i := range all {
			x := &all[i]
			if x.At >= 15*time.Second {
				x.OK, x.Status = true, 200
			}
			change(x)
		}
		r := &run{Options: Options{Cell: "c3"}, homes: []string{"c1", "c2", "c3", "c4"}, broken: 2, load: &load.Load{}, report: &Report{Figures: map[string]any{}}}
		r.judgeColdStart(all, 5*time.Second, 10*time.Second, 15*time.Second)
		return strings.Join(r.report.Failed, "\n")
	}
	if failed := judge(func(*load.Sample) {}); failed != "" {
		t.Errorf("the ideal fails: %s", failed)
	}
	if failed := judge(func(x *load.Sample) {
		if x.Kind == load.Lists && x.Home == 0 && x.At > 6*time.Second {
			x.Kind, x.OK, x.Status = load.Search, false, 503
		}
	}); failed != "" {
		t.Errorf("nobody can search while the global zone is dead: %s", failed)
	}
	for name, x := range map[string]struct {
		change func(*load.Sample)
		want   string
	}{
		"another cell's user": {func(x *load.Sample) {
			if x.Home == 1 && x.At == 12*time.Second {
				x.OK = false
			}
		}, "1 of 1520 requests of others"},
		"the cell's own user, while it lives": {func(x *load.Sample) {
			if x.Home == 2 && x.Kind == load.Cart && x.At > 6*time.Second && x.At < 7*time.Second {
				x.OK = false
			}
		}, "requests of others"},
		"a late failure": {func(x *load.Sample) {
			if x.Home == 2 && x.Kind == load.Cart && x.At >= 21*time.Second {
				x.OK = false
			}
		}, "failed after its cold start"},
		"nothing served": {func(x *load.Sample) {
			if x.Home == 2 && x.At >= 15*time.Second {
				x.At = 0
			}
		}, "were served no browse"},
	} {
		if failed := judge(x.change); !strings.Contains(failed, x.want) {
			t.Errorf("%s: failed %q, want %q in it", name, failed, x.want)
		}
	}
}

// A zone's databases are there before those who need them, and its agent goes
// first.
func TestOrderOfParts(t *testing.T) {
	t.Parallel()
	parts := []string{"c1/user", "c1/agent", "c1/nats", "c1/redis", "c1/postgres"}
	slices.SortStableFunc(parts, func(a, b string) int { return startOrder(a) - startOrder(b) })
	if got := strings.Join(parts, " "); got != "c1/postgres c1/redis c1/nats c1/agent c1/user" {
		t.Errorf("started in the order %s", got)
	}
	slices.SortStableFunc(parts, func(a, b string) int { return stopOrder(a) - stopOrder(b) })
	if got := strings.Join(parts, " "); got != "c1/agent c1/user c1/nats c1/redis c1/postgres" {
		t.Errorf("stopped in the order %s", got)
	}
}
