package console

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

// How a test's server behaves.
const (
	answers int32 = iota
	hangs
	fails
	lies // an answer that is no JSON
)

// peer is a real server that stands for an agent, control, or a metrics page.
type peer struct {
	*httptest.Server
	mode  atomic.Int32
	asked atomic.Int64
}

// newPeer answers each path with what it's given: a string as it is, all else as JSON.
func newPeer(t *testing.T, pages map[string]any) *peer {
	t.Helper()
	p := &peer{}
	end := make(chan struct{})
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.asked.Add(1)
		switch p.mode.Load() {
		case hangs:
			select {
			case <-r.Context().Done():
			case <-end:
			}
			return
		case fails:
			http.Error(w, "no", http.StatusInternalServerError)
			return
		case lies:
			_, _ = io.WriteString(w, "<html>")
			return
		}
		page, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		switch page := page.(type) {
		case string:
			_, _ = io.WriteString(w, page)
		case func() any:
			_ = json.NewEncoder(w).Encode(page())
		default:
			_ = json.NewEncoder(w).Encode(page)
		}
	}))
	t.Cleanup(func() { close(end); p.Close() })
	return p
}

func agentPages(cell string) map[string]any {
	var n atomic.Uint64
	return map[string]any{
		"/admin/status": func() any {
			k := n.Add(1)
			return agentapi.Status{Cell: cell, RouteVersion: 7, Requests: &agentapi.Requests{SinceMS: int64(k), Local: 9 * k, Forwarded: k}}
		},
		"/admin/ids":       id.CellFigures{Cell: cell},
		"/admin/transfers": map[string]any{"items": []agentapi.StuckTransfer{{ID: 77, Cell: cell, State: "FROZEN"}}},
		"/admin/transfers/77": agentapi.Transfer{
			Cell: cell, Source: &agentapi.Side{Slot: 5, State: "FROZEN", From: 1, To: 2, Amount: 100, Currency: "CNY"},
			Story: []agentapi.Line{{At: time.Unix(1, 0), What: "begun"}},
		},
		"/admin/transfers/parked": map[string]any{"items": []agentapi.ParkedTransfer{}},
	}
}

// wait polls a condition.
func wait(t *testing.T, what string, cond func() bool) {
	t.Helper()
	end := time.After(20 * time.Second)
	for !cond() {
		select {
		case <-end:
			t.Fatalf("it never came to be: %s", what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// world is a collector over real servers: c1, c2, global and control.
type world struct {
	*collector
	c1, c2, global, route, gateway *peer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		c1: newPeer(t, agentPages("c1")), c2: newPeer(t, agentPages("c2")), global: newPeer(t, agentPages("global")),
		route: newPeer(t, map[string]any{
			"/route/acks":     controlapi.Acks{Version: 7, Complete: true},
			"/route/versions": controlapi.Versions{Versions: []controlapi.Version{{Version: 7}}},
			"/marks":          controlapi.Marks{},
		}),
		gateway: newPeer(t, map[string]any{"/metrics": page(100, 1, 90, 100)}),
	}
	agents := map[string]*agentapi.Client{}
	for zone, p := range map[string]*peer{"c1": w.c1, "c2": w.c2, routing.Global: w.global} {
		agents[zone] = &agentapi.Client{BaseURL: p.URL, OperatorKey: "k"}
	}
	w.collector = newCollector(agents, &controlapi.Client{BaseURL: w.route.URL})
	w.each, w.deadline = 10*time.Millisecond, time.Second
	w.look()
	w.gateways = map[string]string{"c1": w.gateway.URL + "/metrics"}
	return w
}

func (w *world) start(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
}

func TestSourcesAreAskedApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.c2.mode.Store(hangs)
	w.route.mode.Store(fails)
	w.start(t)
	wait(t, "c1 and global are known, c2 and control failed", func() bool {
		s := w.snapshot()
		return s.Zones["c1"].Has() && s.Zones["global"].Has() && s.Zones["c2"].Err != "" && s.Acks.Err != ""
	})
	s := w.snapshot()
	if got := s.Zones["c2"].State(time.Now(), time.Hour); got != Failed {
		t.Errorf("c2 never answered: it's %s, want %s", got, Failed)
	}
	if got := s.Acks.State(time.Now(), time.Hour); got != Failed {
		t.Errorf("control only failed: it's %s, want %s", got, Failed)
	}
	if got := s.Search.State(time.Now(), time.Hour); got != Unknown {
		t.Errorf("search is asked by nobody: it's %s, want %s", got, Unknown)
	}
	wait(t, "the others go on", func() bool { return len(w.snapshot().History["c1"]) > 3 })
	last := w.snapshot().History["c1"]
	if p := last[len(last)-1]; p.Closed == nil || *p.Closed != .9 || p.PerSecond == nil || *p.PerSecond <= 0 {
		t.Errorf("the newest point of c1 is %+v, want a closed-loop share of 0.9 and traffic", p)
	}
	for _, p := range w.snapshot().History["c2"] {
		if p.PerSecond != nil || p.Closed != nil {
			t.Errorf("c2 never answered, but its traffic is %+v", p)
		}
	}
}

func TestLastValueIsKeptWithItsAge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	wait(t, "all is known", func() bool {
		s := w.snapshot()
		return s.Zones["c2"].Has() && s.Acks.Has() && s.Open["c2"].Has() && s.Gateways["c1"].Value.PerSecond != nil
	})
	for _, mode := range []int32{fails, lies, hangs} {
		w.c2.mode.Store(mode)
		wait(t, "c2's failure is seen", func() bool { return w.snapshot().Zones["c2"].Err != "" })
		r := w.snapshot().Zones["c2"]
		if r.Value.RouteVersion != 7 || r.State(time.Now(), time.Hour) != Old || r.Asked.Before(r.At) {
			t.Errorf("mode %d: %+v is %s, want the last value, old", mode, r, r.State(time.Now(), time.Hour))
		}
		w.c2.mode.Store(answers)
		wait(t, "c2 is back", func() bool { return w.snapshot().Zones["c2"].State(time.Now(), time.Hour) == Known })
	}
	if got := w.snapshot().Zones["c1"].State(time.Now(), time.Hour); got != Known {
		t.Errorf("c1 had nothing: it's %s", got)
	}
}

func TestSnapshotsNeverChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.snapshot()
	w.start(t)
	wait(t, "something is known", func() bool { return len(w.snapshot().History["c1"]) > 2 })
	if len(before.Zones) != 0 || len(before.History) != 0 || before.Acks.Has() {
		t.Errorf("the first snapshot was written into: %+v", before)
	}
}

func TestStates(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for _, tc := range []struct {
		r    Reading[int]
		want string
	}{
		{Reading[int]{}, Unknown},
		{Reading[int]{Asked: now, Err: "no"}, Failed},
		{Reading[int]{At: now, Asked: now}, Known},
		{Reading[int]{At: now.Add(-15 * time.Second), Asked: now}, Known},
		{Reading[int]{At: now.Add(-16 * time.Second), Asked: now}, Old},
		{Reading[int]{At: now, Asked: now, Err: "no"}, Old},
	} {
		if got := tc.r.State(now, 5*time.Second); got != tc.want {
			t.Errorf("%+v is %s, want %s", tc.r, got, tc.want)
		}
	}
}

// While nobody looks it asks seldom, and at once when somebody does.
func TestNobodyLooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var later atomic.Int64
	start := time.Now()
	w.now = func() time.Time { return start.Add(time.Duration(later.Load())) }
	w.look()
	if each, _ := w.pause(time.Second, false); each != time.Second {
		t.Errorf("somebody looks: %s", each)
	}
	later.Store(int64(w.idleAfter + time.Second))
	if each, _ := w.pause(time.Second, false); each != idleTimes*time.Second {
		t.Errorf("nobody looks: %s", each)
	}
	if each, _ := w.pause(time.Second, true); each != time.Second {
		t.Errorf("a source that failed is asked seldom: %s", each)
	}
	w.each, w.deadline = time.Hour, time.Minute // each question is asked once, however slow the machine is
	w.start(t)
	wait(t, "all were asked once", func() bool {
		return w.c1.asked.Load() == 4 && w.c2.asked.Load() == 4 && w.route.asked.Load() == 3 && w.snapshot().Parked["c1"].Has()
	})
	wait(t, "a look wakes it", func() bool {
		later.Add(int64(w.idleAfter + time.Second)) // a source may not have been waiting yet
		w.look()
		return w.c1.asked.Load() >= 8 && w.c2.asked.Load() >= 8 && w.route.asked.Load() >= 6
	})
}

func TestHistoryEndsAfterAQuarterOfAnHour(t *testing.T) {
	t.Parallel()
	var all []Point
	start := time.Unix(1000, 0)
	for i := range 400 {
		now := start.Add(time.Duration(i) * 5 * time.Second)
		all = point(all, Reading[agentapi.Status]{}, Reading[agentapi.Status]{Err: "no"}, Reading[Rates]{}, now, 5*time.Second)
	}
	if n := len(all); n != 181 || all[n-1].At.Sub(all[0].At) != historyFor {
		t.Errorf("%d points over %s", n, all[n-1].At.Sub(all[0].At))
	}
}

func TestTrafficOfARestartedAgentIsUnknown(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	status := func(sec int, since int64, local uint64) Reading[agentapi.Status] {
		return Reading[agentapi.Status]{At: at.Add(time.Duration(sec) * time.Second), Value: agentapi.Status{Requests: &agentapi.Requests{SinceMS: since, Local: local}}}
	}
	if per, closed := since(status(0, 9000, 100), status(5, 14000, 150)); per == nil || *per != 10 || closed == nil || *closed != 1 {
		t.Errorf("50 requests in 5 s: %v, %v", per, closed)
	}
	if per, closed := since(status(0, 9000, 100), status(5, 14000, 100)); per == nil || *per != 0 || closed != nil {
		t.Errorf("no requests: %v, %v, want 0 and no share", per, closed)
	}
	if per, _ := since(status(0, 9000, 100), status(5, 1000, 150)); per != nil {
		t.Errorf("the agent began anew: %v, want unknown", *per)
	}
	if per, _ := since(status(0, 9000, 100), Reading[agentapi.Status]{At: at.Add(time.Second)}); per != nil {
		t.Errorf("no gateway was heard: %v, want unknown", *per)
	}
}

// page is a gateway's metrics: so many requests, of which errors, and of 100 counted
// ones those that took at most 10 and 25 ms.
func page(requests, errors, ten, twentyFive int) string {
	line := func(name, labels string, v int) string {
		b, _ := json.Marshal(v)
		return name + "{" + labels + "} " + string(b) + "\n"
	}
	return "# HELP cellmart_http_requests_total x\n" +
		line(requestsName, `cell="c1",class="2xx",method="GET",route="/a",service="gateway"`, requests-errors) +
		line(requestsName, `cell="c1",class="5xx",method="GET",route="/a",service="gateway"`, errors) +
		line(bucketsName, `cell="c1",method="GET",route="/a",service="gateway",le="0.01"`, ten) +
		line(bucketsName, `cell="c1",method="GET",route="/a",service="gateway",le="0.025"`, twentyFive) +
		line(bucketsName, `cell="c1",method="GET",route="/a",service="gateway",le="+Inf"`, twentyFive) +
		"cellmart_http_request_seconds_count{} 5\n"
}

func TestRates(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	read := func(text string, sec int) sample {
		all, err := parseMetrics(strings.NewReader(text), []string{requestsName, bucketsName})
		if err != nil {
			t.Fatal(err)
		}
		return sampleOf(all, at.Add(time.Duration(sec)*time.Second))
	}
	var r rater
	if got := r.next(read(page(1000, 0, 0, 0), 0)); got != (Rates{}) {
		t.Errorf("one sample gives %+v, want nothing", got)
	}
	got := r.next(read(page(1100, 5, 98, 100), 10))
	if got.PerSecond == nil || *got.PerSecond != 10 || got.Errors == nil || *got.Errors != .05 {
		t.Errorf("rates %+v, want 10 a second and 5 %%", got)
	}
	if got.P99 == nil || *got.P99 < .0174 || *got.P99 > .0176 { // half of the bucket from 10 to 25 ms
		t.Errorf("p99 %v, want 17.5 ms", got.P99)
	}
	if got := r.next(read(page(1100, 5, 98, 100), 75)); *got.PerSecond != 0 || got.Errors != nil || got.P99 != nil {
		t.Errorf("nothing came in the last minute: %+v", got)
	}
	if got := r.next(read(page(3, 0, 3, 3), 80)); got != (Rates{}) {
		t.Errorf("the gateway began anew: %+v, want nothing", got)
	}
	if _, err := parseMetrics(strings.NewReader(requestsName+" x\n"), []string{requestsName}); err == nil {
		t.Error("a line without a number was taken")
	}
}

func TestSearchLag(t *testing.T) {
	t.Parallel()
	all, err := parseMetrics(strings.NewReader(
		lagName+`{cell="global",service="search",source="c2"} NaN`+"\n"+liveName+`{source="c2"} 0`+"\n"+
			lagName+`{source="c1"} 0.25`+"\n"+ageName+`{source="c1"} 1`+"\n"+liveName+`{source="c1"} 1`+"\n"), []string{lagName, ageName, liveName})
	if err != nil {
		t.Fatal(err)
	}
	got := searchLags(all)
	if len(got) != 2 || got[0].Zone != "c1" || *got[0].Lag != .25 || !got[0].Live || got[1].Lag != nil || got[1].Live {
		t.Errorf("%+v", got)
	}
}
