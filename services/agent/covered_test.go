package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

// covers is a cover of c1 over a table in which c1 owns slots 0 to 9: c2 stands by
// for 0 to 5, c3 for 6 to 8, nobody for 9, and c2 for the cell slot.
func covers(t *testing.T) (*cover, map[string]*agentapi.Standbys, *time.Time) {
	t.Helper()
	spec := routing.Spread([]string{"c1", "c2", "c3"}).Spec()
	for s := range spec.Slots {
		spec.Slots[s] = routing.Assignment{Owner: "c2", Epoch: 1}
		if s < 9 {
			spec.Slots[s] = routing.Assignment{Owner: "c1", Standby: "c2", Epoch: 3}
		}
		if s >= 6 && s < 9 {
			spec.Slots[s].Standby = "c3"
		}
	}
	spec.Slots[9] = routing.Assignment{Owner: "c1", Epoch: 1}
	spec.Private = map[routing.Slot]routing.Assignment{routing.CellSlot(1): {Owner: "c1", Standby: "c2", Epoch: 1}}
	table, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_000_000, 0)
	said := map[string]*agentapi.Standbys{}
	ask := func(cell string) func(context.Context) (agentapi.Standbys, error) {
		return func(context.Context) (agentapi.Standbys, error) {
			if said[cell] == nil {
				return agentapi.Standbys{}, errors.New("no answer")
			}
			return *said[cell], nil
		}
	}
	return &cover{
		cell: "c1", table: func() *routing.Table { return table }, now: func() time.Time { return now }, answers: map[string]answer{},
		here: func(context.Context) (agentapi.Here, error) {
			return agentapi.Here{Incarnation: "a.1", LSN: "1/100"}, nil
		},
		ask: map[string]func(context.Context) (agentapi.Standbys, error){"c2": ask("c2"), "c3": ask("c3")},
	}, said, &now
}

func num(n int64) *int64 { return &n }

// Unknown is not covered, and is shown as unknown; an answer counts for some
// seconds, for the epoch that it names, and for the database that it is of.
func TestCover(t *testing.T) {
	t.Parallel()
	v, said, now := covers(t)
	check := func(when string, want agentapi.Cover) {
		t.Helper()
		v.once(t.Context())
		if diff := cmp.Diff(&want, v.figures()); diff != "" {
			t.Errorf("%s (-want +got)\n%s", when, diff)
		}
	}
	check("before any answer", agentapi.Cover{Slots: 11, Uncovered: 11, None: 1, Unknown: 10, Standbys: []agentapi.CoverBy{
		{Cell: "c2", Slots: 7, Error: "no answer"}, {Cell: "c3", Slots: 3, Error: "no answer"},
	}})
	said["c2"] = &agentapi.Standbys{Sources: []agentapi.StandbySource{
		{Source: "c3", Incarnation: "a.1", LSN: "1/0", InSyncSlots: [][3]int64{{0, 20000, 3}}},
		{Source: "c1", Incarnation: "a.1", LSN: "1/C0", LagMS: num(7), InSyncSlots: [][3]int64{{0, 2, 3}, {3, 3, 2}, {5, 5, 3}, {16385, 16385, 1}}},
	}}
	said["c3"] = &agentapi.Standbys{}
	c2 := agentapi.CoverBy{Cell: "c2", Slots: 7, InSync: 5, LagMS: num(7), LagBytes: num(64), AgeMS: num(0)}
	check("slot 3 at an older epoch, 4 not at all; c3 has never heard of c1", agentapi.Cover{Slots: 11, Uncovered: 6, None: 1, Standbys: []agentapi.CoverBy{
		c2, {Cell: "c3", Slots: 3, AgeMS: num(0)},
	}})
	said["c3"] = &agentapi.Standbys{Sources: []agentapi.StandbySource{{Source: "c1", Incarnation: "b.1", LSN: "1/0", LagMS: num(0), InSyncSlots: [][3]int64{{6, 8, 3}}}}}
	check("c3 is in sync with another database", agentapi.Cover{Slots: 11, Uncovered: 6, None: 1, Standbys: []agentapi.CoverBy{
		c2, {Cell: "c3", Slots: 3, AgeMS: num(0)},
	}})
	said["c3"].Sources[0].Incarnation = "a.1"
	said["c3"].Sources[0].LagMS = nil
	c3 := agentapi.CoverBy{Cell: "c3", Slots: 3, InSync: 3, LagBytes: num(256), AgeMS: num(0)}
	check("c3 applies nothing", agentapi.Cover{Slots: 11, Uncovered: 6, None: 1, Unknown: 3, Standbys: []agentapi.CoverBy{c2, c3}})
	said["c3"].Sources[0].LagMS, c3.LagMS = num(60_001), num(60_001)
	check("c3 is a minute behind", agentapi.Cover{Slots: 11, Uncovered: 6, None: 1, Standbys: []agentapi.CoverBy{c2, c3}})
	said["c3"].Sources[0].LagMS, c3.LagMS = num(0), num(0)
	delete(said, "c2")
	*now = now.Add(coverFresh)
	c2.AgeMS, c2.Error = num(5000), "no answer"
	check("c2 is silent for 5 s", agentapi.Cover{Slots: 11, Uncovered: 3, None: 1, Standbys: []agentapi.CoverBy{c2, c3}})
	*now = now.Add(time.Millisecond)
	c2.AgeMS = num(5001)
	check("and for longer", agentapi.Cover{Slots: 11, Uncovered: 8, None: 1, Unknown: 7, Standbys: []agentapi.CoverBy{c2, c3}})
	v.here = func(context.Context) (agentapi.Here, error) { return agentapi.Here{}, errors.New("database") }
	*now = now.Add(coverFresh + time.Millisecond)
	v.once(t.Context())
	if got := v.figures(); got.Unknown != 10 || got.Standbys[1].Error != "database" {
		t.Errorf("without the own database: %+v", got)
	}
	v.table = func() *routing.Table { return nil }
	if got := v.figures(); got != nil {
		t.Errorf("without a table: %+v", got)
	}
	if b, err := json.Marshal(agentapi.CoverBy{Cell: "c2"}); err != nil || string(b) != `{"cell":"c2","slots":0,"in_sync":0,"lag_ms":null,"lag_bytes":null,"age_ms":null}` {
		t.Errorf("unknown is shown as %s, %v", b, err)
	}
}

func TestCoverMetrics(t *testing.T) {
	t.Parallel()
	v, said, _ := covers(t)
	m := obs.New("c1", "agent")
	exportCover(m, v)
	scrape := func() string {
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		return w.Body.String()
	}
	v.once(t.Context())
	for _, want := range []string{
		`cellmart_standby_uncovered_slots{cell="c1",service="agent"} 11`, `cellmart_standby_unknown_slots{cell="c1",service="agent"} 10`, `cellmart_standby_worst_lag_seconds{cell="c1",service="agent"} NaN`,
	} {
		if got := scrape(); !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	for _, cell := range []string{"c2", "c3"} {
		said[cell] = &agentapi.Standbys{Sources: []agentapi.StandbySource{{Source: "c1", Incarnation: "a.1", LSN: "1/C0", LagMS: num(1500), InSyncSlots: [][3]int64{{0, 9, 3}, {16385, 16385, 1}}}}}
	}
	v.once(t.Context())
	m = obs.New("c1", "agent") // the first one has counted for this moment
	exportCover(m, v)
	for _, want := range []string{
		`cellmart_standby_uncovered_slots{cell="c1",service="agent"} 1`, `cellmart_standby_worst_lag_seconds{cell="c1",service="agent"} 1.5`,
		`cellmart_standby_worst_lag_bytes{cell="c1",service="agent"} 64`, `cellmart_standby_heard_age_seconds{cell="c1",service="agent"} 0`,
	} {
		if got := scrape(); !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
}
