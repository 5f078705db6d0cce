package main

import (
	"bytes"
	"strings"
	"testing"

	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

func TestStandbyOnBadInput(t *testing.T) {
	t.Parallel()
	root := t.TempDir() // no demo here
	for _, args := range []string{
		"standby", "standby away", "standby status x", "standby status", "standby spread", "standby spread --slots 1-2", "standby spread --to c1",
		"standby set", "standby set --slots 1-2", "standby set --to c2", "standby set --slots 2-1 --to c2", "standby set --slots -1 --to c2",
		"standby set --slots x --to c2", "standby set --slots 1- --to c2", "standby set --slots 1-2 --to c2", "standby cancel", "standby cancel x", "standby cancel 1",
		"standby cancel 1 2", "standby spread --wait soon",
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append(strings.Fields(args), "--root", root), &out, &errs)
		if code != 2 || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("cellctl %s = %d, %q; want 2 and one line", args, code, errs.String())
		}
	}
	for text, want := range map[string][2]routing.Slot{"7": {7, 7}, "0-16383": {0, 16383}, "16385-16385": {16385, 16385}} {
		if from, to, err := standbySlots(text); err != nil || from != want[0] || to != want[1] {
			t.Errorf("%q = %d, %d, %v", text, from, to, err)
		}
	}
}

// Unknown is a question mark, never 0.
func TestStandbyIsShownWithWhatIsUnknown(t *testing.T) {
	t.Parallel()
	n := func(v int64) *int64 { return &v }
	well := &agentapi.Cover{Slots: 10, Standbys: []agentapi.CoverBy{
		{Cell: "c2", Slots: 5, InSync: 5, LagMS: n(3), LagBytes: n(100), AgeMS: n(400)}, {Cell: "c3", Slots: 5, InSync: 5, LagMS: n(20), LagBytes: n(0), AgeMS: n(900)},
	}}
	ill := &agentapi.Cover{Slots: 10, Uncovered: 6, None: 1, Unknown: 5, Standbys: []agentapi.CoverBy{
		{Cell: "c2", Slots: 4, InSync: 4, LagMS: n(3), LagBytes: n(100), AgeMS: n(400)}, {Cell: "c3", Slots: 5, Error: "link is down"},
	}}
	old := &agentapi.Cover{Standbys: []agentapi.CoverBy{{Cell: "c2", LagMS: n(3), AgeMS: n(61_000)}}}
	for _, x := range []struct {
		v                *agentapi.Cover
		uncovered, worst string
	}{{nil, "?", "?"}, {well, "0", "20ms"}, {ill, "6 (5 unknown)", "? (c3)"}, {&agentapi.Cover{Slots: 4, Uncovered: 4, None: 4}, "4", "?"}, {old, "0", "3ms (1m1s ago)"}} {
		if a, b := uncovered(x.v), worstLag(x.v); a != x.uncovered || b != x.worst {
			t.Errorf("%+v is shown as %q, %q", x.v, a, b)
		}
	}
	var out bytes.Buffer
	printOverview(&out, []string{"c1", "c2", "c3"}, standbyOverview{
		Cells: map[string]*agentapi.Cover{"c1": well, "c2": ill, "c3": nil}, Errors: map[string]string{"c3": "no answer", "control": "down"},
		Exchanges: []controlapi.Exchange{
			{ID: 3, AgeMS: 5000, Reason: "r", Parts: []controlapi.ExchangePart{{Owner: "c1", Target: "c3", Slots: 7, State: "COPYING", StateMS: 1000, Detail: "c3 has 2 of 7", LookedMS: n(300)}}},
			{ID: 2, Parts: []controlapi.ExchangePart{{State: "DONE"}}},
		},
	})
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"c1 c3 5 5 20ms 0 900ms ago", "c2 c3 5 0 ? ? never link is down", "c2 none 1", "c3 ? ? ? ? ? no answer", "c2: 6 (5 unknown) of 10 slots uncovered",
		"exchange 3, begun 5s ago: r", "c1 c3 7 COPYING 1s c3 has 2 of 7 (300ms ago)", "exchanges are unknown: down",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(got, "exchange 2") {
		t.Error("an exchange that has ended is shown")
	}
}
