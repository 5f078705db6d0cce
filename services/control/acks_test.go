package control

import (
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/services/control/controlapi"
)

func ms(n int64) *int64 { return &n }

// TestAcksGrowOlder: what was reported ages, and a zone that didn't report is
// not known, which is neither up to date nor zero.
func TestAcksGrowOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, table := newAcks(), first(t)
		a.take(controlapi.ZoneAcks{Zone: "c2", Version: 1, ListeningMS: 9000, Processes: []controlapi.Ack{
			{Process: "user@1", Version: 0, BehindMS: ms(40), AgeMS: 10}, {Process: "agent@1", Version: 1},
		}})
		time.Sleep(2 * time.Second)
		got, _ := a.state(table, 1)
		want := controlapi.Acks{Version: 1, Zones: []controlapi.ZoneState{
			{ZoneAcks: controlapi.ZoneAcks{Zone: "c1"}},
			{ZoneAcks: controlapi.ZoneAcks{Zone: "c2", Version: 1, ListeningMS: 11000, Processes: []controlapi.Ack{
				{Process: "agent@1", Version: 1, AgeMS: 2000}, {Process: "user@1", BehindMS: ms(2040), AgeMS: 2010},
			}}, AgeMS: ms(2000)},
			{ZoneAcks: controlapi.ZoneAcks{Zone: "c3"}}, {ZoneAcks: controlapi.ZoneAcks{Zone: "c4"}}, {ZoneAcks: controlapi.ZoneAcks{Zone: "global"}},
		}}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
		b, err := json.Marshal(got.Zones[0])
		if err != nil || string(b) != `{"zone":"c1","version":0,"listening_ms":0,"processes":null,"age_ms":null,"done":false}` {
			t.Errorf("an unknown zone is shown as %s, %v", b, err)
		}
	})
}

// TestAcksWait: the wait ends when the last process of the last zone has the
// version, no sooner.
func TestAcksWait(t *testing.T) {
	t.Parallel()
	s, c := serve(t, "operator")
	ctx := t.Context()
	if _, err := c.Acks(ctx, 0, 0); !errors.Is(err, controlapi.ErrNone) {
		t.Errorf("acks of no table: %v", err)
	}
	if err := c.Report(ctx, controlapi.ZoneAcks{Zone: "c1"}); !errors.Is(err, controlapi.ErrNone) {
		t.Errorf("a report without a table: %v", err)
	}
	if _, err := s.initialize(ctx, fourCells()); err != nil {
		t.Fatal(err)
	}
	if err := c.Report(ctx, controlapi.ZoneAcks{Zone: "c9"}); !errors.Is(err, controlapi.ErrZone) {
		t.Errorf("a report of an unknown zone: %v", err)
	}
	if err := c.Report(ctx, controlapi.ZoneAcks{Zone: "c1", Processes: make([]controlapi.Ack, maxProcesses+1)}); err == nil {
		t.Error("a report without end is taken")
	}
	report := func(zone string, listening, held int64, processes ...controlapi.Ack) controlapi.Acks {
		t.Helper()
		if err := c.Report(ctx, controlapi.ZoneAcks{Zone: zone, Version: held, ListeningMS: listening, Processes: processes}); err != nil {
			t.Fatal(err)
		}
		got, err := c.Acks(ctx, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, zone := range []string{"c1", "c2", "c3", "global"} {
		if got := report(zone, 7000, 1, controlapi.Ack{Process: "order@1", Version: 1}); got.Complete || got.Version != 1 {
			t.Fatalf("complete although c4 is unknown: %+v", got)
		}
	}
	for name, got := range map[string]controlapi.Acks{
		"its agent has just started":       report("c4", 100, 1),
		"its agent holds an older table":   report("c4", 7000, 0),
		"one process holds an older table": report("c4", 7000, 1, controlapi.Ack{Process: "order@1", Version: 1}, controlapi.Ack{Process: "user@1"}),
	} {
		if got.Complete || got.Zones[3].Done || !got.Zones[2].Done {
			t.Errorf("c4, %s: %+v", name, got)
		}
	}
	done := make(chan controlapi.Acks, 1)
	go func() {
		got, err := c.Acks(ctx, 1, controlapi.MaxWait)
		if err != nil {
			t.Error(err)
		}
		done <- got
	}()
	if got := report("c4", 7000, 1, controlapi.Ack{Process: "user@1", Version: 1}); !got.Complete {
		t.Errorf("everybody has it: %+v", got)
	}
	if got := <-done; !got.Complete || len(got.Zones) != 5 {
		t.Errorf("the wait gives %+v", got)
	}
	if got, err := c.Acks(ctx, 2, 20*time.Millisecond); err != nil || got.Complete || got.Version != 2 {
		t.Errorf("acks of a version to come: %+v, %v", got, err)
	}
}
