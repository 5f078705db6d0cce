package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

func ptr[T any](v T) *T { return &v }

// at is a moment; all readings of a full snapshot are 2 s old then.
var at = time.Unix(1_000_000, 0)

const longAgo = 40 * time.Minute

func reading[T any](v T) Reading[T] {
	return Reading[T]{Value: v, At: at.Add(-2 * time.Second), Asked: at.Add(-2 * time.Second)}
}

// in is the reading in that state, with the same value where it has one.
func in[T any](r Reading[T], state string) Reading[T] {
	switch state {
	case Old:
		return Reading[T]{Value: r.Value, At: at.Add(-longAgo), Asked: at, Err: "the source is <down>"}
	case Failed:
		return Reading[T]{Asked: at, Err: "the source is <down>"}
	case Unknown:
		return Reading[T]{}
	}
	return r
}

func status(cell, peer string) agentapi.Status {
	return agentapi.Status{
		Cell: cell, RouteVersion: 41, Links: map[string]agentapi.Link{peer: {Up: true, RTTMS: 1.5}, routing.Global: {Up: true, RTTMS: 2.5}},
		Requests: &agentapi.Requests{Local: 75, Forwarded: 25},
		Cover:    &agentapi.Cover{Slots: 8192, Uncovered: 12, Standbys: []agentapi.CoverBy{{Cell: peer, Slots: 8192, InSync: 8180, LagMS: ptr[int64](321), AgeMS: ptr[int64](500)}}},
		Database: &agentapi.Database{LeaseLeftMS: -1, Owned: 8192, Open: 17, Stuck: 1, Parked: 2},
		Route:    []agentapi.Process{{Process: cell + "/order", Version: 40, BehindMS: ptr[int64](7000)}},
	}
}

// full is a snapshot in which everything is known.
func full() *Snapshot {
	s := newCollector(map[string]*agentapi.Client{"c1": nil, "c2": nil, routing.Global: nil}, nil).snapshot()
	s.Zones = map[string]Reading[agentapi.Status]{
		"c1": reading(status("c1", "c2")), "c2": reading(status("c2", "c1")),
		routing.Global: reading(agentapi.Status{Cell: routing.Global, RouteVersion: 41, Links: map[string]agentapi.Link{"c1": {Up: true}, "c2": {Up: true}}}),
	}
	for _, cell := range s.Cells {
		s.Gateways[cell] = reading(Rates{PerSecond: ptr(20.), Errors: ptr(.0123), P99: ptr(.0456)})
		s.IDs[cell] = reading(id.CellFigures{Cell: cell, Bank: &id.BankFigures{Kinds: []id.BankKind{{Kind: "order", Stock: 98765, Target: ptr[int64](100000), YearsLeft: ptr(200.)}}}})
		s.Open[cell] = reading([]agentapi.StuckTransfer{{ID: 771, Cell: cell, State: "FROZEN", Amount: 500, Currency: "CNY", AgeMS: 45_000, Attempts: 6}})
		s.Parked[cell] = reading([]agentapi.ParkedTransfer{{Cell: cell, Transfer: "772", Kind: "transfer.credit", Reason: "nobody knows", AgeMS: 1000}})
		for i := range 10 {
			s.History[cell] = append(s.History[cell], Point{
				At: at.Add(time.Duration(i-9) * 5 * time.Second), PerSecond: ptr(float64(10 * i)), Errors: ptr(.001), P99: ptr(.02), Closed: ptr(.96),
			})
		}
	}
	s.Acks = reading(controlapi.Acks{Version: 41, Zones: []controlapi.ZoneState{{ZoneAcks: controlapi.ZoneAcks{Zone: "c2", Version: 40}, AgeMS: ptr[int64](900)}}})
	s.Versions = reading(controlapi.Versions{Versions: []controlapi.Version{{Version: 41, Reason: "a weight"}}})
	s.Marks = reading(controlapi.Marks{Marks: []controlapi.Marked{{Cell: "c1"}, {Cell: "c1"}, {Cell: "c2", Over: true}}})
	s.Search = reading([]searchLag{{Zone: "c1", Lag: ptr(.75), Age: ptr(1.), Live: true}})
	s.Invariants = reading([]agentapi.Result{{ID: "I4", What: "money is neither made nor lost", OK: ptr(true)}, {ID: "I5", What: "stock", OK: ptr(false), Violations: []string{"sku 9 is oversold"}}, {ID: "I7", What: "phones"}})
	return s
}

// draw is the overview of a snapshot, at the moment at.
func draw(t *testing.T, s *Snapshot, tag string) string {
	t.Helper()
	c := newCollector(nil, nil)
	c.last.Store(s)
	srv, err := newServer(c, nil, nil, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	srv.now = func() time.Time { return at }
	rec := httptest.NewRecorder()
	req := httptest.NewRequest(http.MethodGet, "/?lang="+tag, nil)
	srv.handleOverview(rec, req, "operator")
	if rec.Code != http.StatusOK || !strings.Contains(rec.Body.String(), "</html>") {
		t.Fatalf("%d\n%s", rec.Code, rec.Body)
	}
	return rec.Body.String()
}

// panel cuts one panel out of the page.
func panel(t *testing.T, page, name string) string {
	t.Helper()
	_, from, ok := strings.Cut(page, `aria-labelledby="h-`+name+`"`)
	text, _, ends := strings.Cut(from, "</section>")
	if !ok || !ends {
		t.Fatalf("no panel %s\n%s", name, page)
	}
	return text
}

// Each panel in each state: what is known is shown, what is old with its age, what
// failed with the reason, and nothing of it touches the other panels (S-R07).
func TestPanelsInEachState(t *testing.T) {
	t.Parallel()
	panels := []struct {
		name  string
		value string // is there when it's known
		set   func(*Snapshot, string)
	}{
		{"cells", "<td class=\"%s\">8192", func(s *Snapshot, state string) {
			s.Zones["c1"] = in(s.Zones["c1"], state)
			s.Zones["c2"] = in(s.Zones["c2"], state)
		}},
		{"standby", "<td class=\"%s\">8180", func(s *Snapshot, state string) {
			s.Zones["c1"] = in(s.Zones["c1"], state)
			s.Zones["c2"] = in(s.Zones["c2"], state)
		}},
		{"cells", "<td class=\"%s\">45.6 ms", func(s *Snapshot, state string) {
			s.Gateways["c1"] = in(s.Gateways["c1"], state)
			s.Gateways["c2"] = in(s.Gateways["c2"], state)
		}},
		{"ids", "<td class=\"%s\">98765", func(s *Snapshot, state string) {
			s.IDs["c1"] = in(s.IDs["c1"], state)
			s.IDs["c2"] = in(s.IDs["c2"], state)
		}},
		{"transfers", "FROZEN: 1", func(s *Snapshot, state string) {
			s.Open["c1"] = in(s.Open["c1"], state)
			s.Open["c2"] = in(s.Open["c2"], state)
		}},
		{"route", "<strong class=\"%s\">41<", func(s *Snapshot, state string) { s.Acks = in(s.Acks, state) }},
		{"marks", "<li>c1: 2</li>", func(s *Snapshot, state string) { s.Marks = in(s.Marks, state) }},
		{"search", "<td class=\"%s\">750 ms", func(s *Snapshot, state string) { s.Search = in(s.Search, state) }},
		{"invariants", "<strong>I4</strong> holds", func(s *Snapshot, state string) { s.Invariants = in(s.Invariants, state) }},
	}
	all := []string{"invariants", "cells", "links", "transfers", "route", "standby", "marks", "search", "ids", "charts"}
	whole := draw(t, full(), "en")
	for _, p := range panels {
		for _, state := range []string{Known, Old, Failed, Unknown} {
			s := full()
			p.set(s, state)
			page := draw(t, s, "en")
			got := panel(t, page, p.name)
			value := p.value
			if strings.Contains(value, "%s") {
				value = fmt.Sprintf(value, state)
			}
			if has := state == Known || state == Old; strings.Contains(got, value) != has {
				t.Errorf("%s, %s: shows %q is %v\n%s", p.name, state, value, !has, got)
			}
			if state == Old && !strings.Contains(got, "40 min ago") {
				t.Errorf("%s is old and doesn't say how old\n%s", p.name, got)
			}
			if (state == Old || state == Failed) != strings.Contains(got, "the source is &lt;down&gt;") {
				t.Errorf("%s, %s: the reason\n%s", p.name, state, got)
			}
			if (state == Failed || state == Unknown) && !strings.Contains(got, `class="`+state+`"`) && !strings.Contains(got, `class="badge `+state+`"`) {
				t.Errorf("%s, %s: isn't marked\n%s", p.name, state, got)
			}
			if strings.Contains(p.name, "cells") || p.name == "standby" {
				continue // an agent's status is the source of several panels
			}
			for _, other := range all {
				if other != p.name && panel(t, page, other) != panel(t, whole, other) {
					t.Errorf("%s is %s and changes %s", p.name, state, other)
				}
			}
		}
	}
}

// What a standby, or a zone, said long ago isn't what is so now (S-W08).
func TestScenario_W08_SilenceIsNotHealth(t *testing.T) {
	t.Parallel()
	s := full()
	st := status("c1", "c2")
	st.Cover.Standbys[0].AgeMS = ptr[int64](16_000)
	s.Zones["c1"] = reading(st)
	s.Acks = reading(controlapi.Acks{Version: 41, Complete: true, Zones: []controlapi.ZoneState{
		{ZoneAcks: controlapi.ZoneAcks{Zone: "c1", Version: 41}, Done: true, AgeMS: ptr[int64](900)},
		{ZoneAcks: controlapi.ZoneAcks{Zone: "c2", Version: 41}, Done: true, AgeMS: ptr[int64](16_000)},
	}})
	s.Search = reading([]searchLag{{Zone: "c1", Lag: ptr(0.), Age: ptr(16.), Live: true}})
	page := draw(t, s, "en")
	if got := panel(t, page, "search"); !strings.Contains(got, `<td class="old">0 ms</td><td class="old">16 s</td>`) {
		t.Errorf("search hears nothing of c1:\n%s", got)
	}
	if got := panel(t, page, "standby"); !strings.Contains(got, `<td class="old">321 ms</td><td class="old">16 s</td>`) {
		t.Errorf("a silent standby's lag:\n%s", got)
	}
	if got := panel(t, page, "route"); !strings.Contains(got, "c2 holds table 41, heard 16 s ago") || strings.Contains(got, "c1 holds") || strings.Contains(got, "every zone holds it") {
		t.Errorf("a silent zone's table:\n%s", got)
	}
}

// What was well long ago needn't be so now: nothing good is said from an old source.
func TestOldSourcesSayNothingGood(t *testing.T) {
	t.Parallel()
	for _, state := range []string{Known, Old} {
		s := full()
		s.Acks = in(reading(controlapi.Acks{Version: 41, Complete: true}), state)
		s.Marks = in(reading(controlapi.Marks{}), state)
		for _, cell := range s.Cells {
			s.Open[cell] = in(reading([]agentapi.StuckTransfer{}), state)
		}
		page := draw(t, s, "en")
		for name, good := range map[string]string{"route": "every zone holds it", "marks": "No slot is marked", "transfers": "<td>none</td>"} {
			if got := panel(t, page, name); strings.Contains(got, good) != (state == Known) {
				t.Errorf("%s, %s: says %q is %v\n%s", name, state, good, state != Known, got)
			}
		}
	}
}

// A list that was cut off says so.
func TestCountsOfAFullList(t *testing.T) {
	t.Parallel()
	s := full()
	s.Open["c1"] = reading(slices.Repeat([]agentapi.StuckTransfer{{State: "FROZEN"}}, agentapi.Listed))
	s.Parked["c1"] = reading(make([]agentapi.ParkedTransfer, agentapi.Listed))
	v := viewer{s: s, l: langs(t)["en"], now: at, each: 5 * time.Second}
	got, other := v.transfers().Cells[0], v.transfers().Cells[1]
	if fmt.Sprint(got.Counts) != "[FROZEN: 200+]" || got.Parked.Text != "200+" || v.tour("").Cells[0].Open.Text != "200+" {
		t.Errorf("full lists: %+v", got)
	}
	if fmt.Sprint(other.Counts) != "[FROZEN: 1]" || other.Parked.Text != "1" {
		t.Errorf("a short list: %+v", other)
	}
}

// The tour says who is hurt.
func TestTourShowsWhoIsHurt(t *testing.T) {
	t.Parallel()
	s := full()
	st := status("c2", "c1")
	st.Faults = map[string]agentapi.Fault{everyone: {CutIn: true, CutOut: true}}
	st.Links = map[string]agentapi.Link{"c1": {}, routing.Global: {}}
	s.Zones["c2"] = reading(st)
	s.Zones[routing.Global] = Reading[agentapi.Status]{}
	v := viewer{s: s, l: langs(t)["en"], now: at, each: 5 * time.Second}
	got := v.tour("http://shop")
	c1, c2 := got.Cells[0], got.Cells[1]
	if got.Shop != "http://shop" || c1.Up != (Fig{"1 / 2", Known}) || c1.Cut || c2.Up != (Fig{"0 / 2", Known}) || !c2.Cut || c2.Open.Text != "1" {
		t.Errorf("%+v", got)
	}
	s.Zones["c1"], s.Zones["c2"] = Reading[agentapi.Status]{}, in(s.Zones["c2"], Old)
	if got := v.tour(""); got.Cells[0].Up != v.unknown() || got.Cells[1].Up != v.unknown() {
		t.Errorf("nobody is heard of, and it shows links: %+v", got)
	}
}

// One dead cell leaves the other cells' rows as they were (S-R07).
func TestDeadCellBlanksItsOwnRow(t *testing.T) {
	t.Parallel()
	row := func(page, cell string) string {
		return regexp.MustCompile(`(?s)<tr><th scope="row">` + cell + `</th>.*?</tr>`).FindString(panel(t, page, "cells"))
	}
	whole := draw(t, full(), "en")
	s := full()
	s.Zones["c2"] = in(s.Zones["c2"], Failed)
	page := draw(t, s, "en")
	if a, b := row(whole, "c1"), row(page, "c1"); a == "" || a != b {
		t.Errorf("c1's row was\n%s\nand is\n%s", a, b)
	}
	if got := row(page, "c2"); strings.Contains(got, "8192") || strings.Contains(got, ">0<") {
		t.Errorf("c2's row shows what isn't known: %s", got)
	}
}

func TestLinksAsSeenFromBothEnds(t *testing.T) {
	t.Parallel()
	find := func(s *Snapshot) LinkRow {
		v := viewer{s: s, l: langs(t)["en"], now: at, each: 5 * time.Second}
		return v.links()[0] // c1 - c2
	}
	if got := find(full()); got.A != "c1" || got.B != "c2" || got.State != "up" || got.RTT.Text != "1.5 ms" || got.Desired != "" || got.Wanted != (Fig{"whole", Known}) {
		t.Errorf("whole: %+v", got)
	}
	s := full()
	down := status("c2", "c1")
	down.Links["c1"] = agentapi.Link{Reason: "no answer"}
	down.Faults = map[string]agentapi.Fault{everyone: {CutIn: true, CutOut: true}}
	s.Zones["c2"] = reading(down)
	if got := find(s); got.State != "down" || got.Reason != "no answer" || got.Desired != "cut at c2" {
		t.Errorf("one end says it's down: %+v", got)
	}
	s.Zones["c1"], s.Zones["c2"] = in(s.Zones["c1"], Old), in(s.Zones["c2"], Old)
	if got := find(s); got.State != Unknown || got.RTT.State != Unknown || got.Desired != "cut at c2" {
		t.Errorf("both ends are silent: %+v, want unknown, and what was set", got)
	}
	if got := find(s).Wanted; got != (Fig{"cut at c2", Old}) {
		t.Errorf("what was set, of ends that are silent: %+v", got)
	}
	s = full()
	s.Zones["c2"] = in(s.Zones["c2"], Old)
	if got := find(s); got.Wanted.State != Unknown || got.State != "up" {
		t.Errorf("one end is silent, it may be cut there: %+v", got)
	}
	s = full()
	late := status("c1", "c2")
	late.Faults = map[string]agentapi.Fault{"c2": {DelayMS: 50}}
	s.Zones["c1"] = reading(late)
	if got := find(s); got.Desired != "delay at c1: 50 ms" || got.State != "up" {
		t.Errorf("delayed: %+v", got)
	}
}

// A chart is broken where nothing is known, and never drawn at zero for it.
func TestChartsAreBrokenWhereNothingIsKnown(t *testing.T) {
	t.Parallel()
	s := full()
	s.History = map[string][]Point{"c1": {
		{At: at.Add(-20 * time.Minute), PerSecond: ptr(9.)}, // before the chart
		{At: at.Add(-15 * time.Minute), PerSecond: ptr(5.)}, {At: at.Add(-10 * time.Minute), PerSecond: ptr(10.)},
		{At: at.Add(-9 * time.Minute)},
		{At: at.Add(-5 * time.Minute), PerSecond: ptr(0.)},
		{At: at, PerSecond: nil},
	}}
	v := viewer{s: s, l: langs(t)["en"], now: at, each: 5 * time.Second}
	c := v.charts()[0]
	if c.Top != "10.0/s" || c.Empty || len(c.Lines) != 2 {
		t.Fatalf("%+v", c)
	}
	want := []string{"0.0,60.0 200.0,0.0", "400.0,120.0 400.0,120.0"}
	if got := c.Lines[0]; fmt.Sprint(got.Parts) != fmt.Sprint(want) || got.Last.State != Unknown {
		t.Errorf("c1: %q, newest %+v", got.Parts, got.Last)
	}
	if got := c.Lines[1]; len(got.Parts) != 0 || got.Last.State != Unknown {
		t.Errorf("c2: %+v", got)
	}
	if p99 := v.charts()[2]; !p99.Empty {
		t.Errorf("nothing is known of the p99: %+v", p99)
	}
}

func TestMapSaysWhatTheTableSays(t *testing.T) {
	t.Parallel()
	s := full()
	s.Zones["c2"] = in(s.Zones["c2"], Failed)
	cutOff := status("c1", "c2")
	cutOff.Links = map[string]agentapi.Link{"c2": {}, routing.Global: {}}
	cutOff.Faults = map[string]agentapi.Fault{everyone: {CutIn: true, CutOut: true}}
	s.Zones["c1"] = reading(cutOff)
	v := viewer{s: s, l: langs(t)["en"], now: at, each: 5 * time.Second}
	rows := v.links()
	m := v.mapOf(rows)
	if len(m.Edges) != len(rows) || len(m.Nodes) != 3 {
		t.Fatalf("%d edges of %d links, %d nodes", len(m.Edges), len(rows), len(m.Nodes))
	}
	for i, e := range m.Edges {
		if e.Class != rows[i].State || !strings.HasPrefix(e.Title, rows[i].A+" - "+rows[i].B) {
			t.Errorf("%+v is drawn as %+v", rows[i], e)
		}
	}
	for i, want := range []string{"known cut", "failed", "known"} {
		if n := m.Nodes[i]; n.Class != want || n.X < 0 || n.X > m.Wide || n.Y < 0 || n.Y > m.High {
			t.Errorf("%+v, want %s, inside", n, want)
		}
	}
}
