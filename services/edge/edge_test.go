package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/link"
)

// fakeGateway is what is behind a cell's border.
type fakeGateway struct {
	cell   string
	server *httptest.Server
	border *link.Border

	sick   atomic.Bool // fails its health calls
	calls  atomic.Int64
	mu     sync.Mutex
	answer func(w http.ResponseWriter, r *http.Request) bool
}

func (f *fakeGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/livez" {
		if f.sick.Load() {
			w.WriteHeader(503)
		}
		return
	}
	f.calls.Add(1)
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	answer := f.answer
	f.mu.Unlock()
	if answer != nil && answer(w, r) {
		return
	}
	w.Header().Set(call.HeaderCell, f.cell)
	fmt.Fprintf(w, "%s %s %s", r.Method, r.URL.RequestURI(), body)
}

func (f *fakeGateway) answers(fn func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = fn
}

type world struct {
	url   string
	cells []*fakeGateway
}

// newWorld starts cells and an edge, and waits until all are healthy.
// Tests with a world run one after the other: its links must be answered within
// 750 ms, which many worlds on few cores would not be.
func newWorld(t *testing.T, names ...string) *world {
	t.Helper()
	w, pki := &world{}, t.TempDir()
	if err := link.WritePKI(pki, names); err != nil {
		t.Fatal(err)
	}
	var borders []string
	for _, name := range names {
		f := &fakeGateway{cell: name}
		f.server = httptest.NewServer(f)
		t.Cleanup(f.server.Close)
		border, local := listenOn(t), listenOn(t)
		conf, err := link.LoadTLS(filepath.Join(pki, link.AgentName(name)))
		if err != nil {
			t.Fatal(err)
		}
		f.border, err = link.New(link.Config{
			Zone: name, Border: border, Local: local, TLS: conf, Log: slog.New(slog.DiscardHandler),
			Targets: map[string]link.Target{target: {Addr: strings.TrimPrefix(f.server.URL, "http://"), Allow: []string{link.EdgeName}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		run(t, func(ctx context.Context) { _ = f.border.Run(ctx) })
		borders = append(borders, name+"="+border.Addr().String())
		w.cells = append(w.cells, f)
	}
	conf, err := loadTLS(pki)
	if err != nil {
		t.Fatal(err)
	}
	zones, err := parseCells(borders, []string{names[0] + "=north"})
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(zones, conf, slog.New(slog.DiscardHandler), func(string, string) {}, func(string, bool) {})
	run(t, p.run)
	server := httptest.NewServer(newHandler(p, nil, nil))
	t.Cleanup(server.Close)
	w.url = server.URL
	for i := range zones {
		waitFor(t, names[i]+" is healthy", func() bool { return p.healthy(i) })
	}
	return w
}

func run(t *testing.T, f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { f(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func listenOn(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// waitFor gives even a busy machine its time: only a failure takes the minute.
func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	end := time.After(time.Minute)
	for !cond() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

type answer struct {
	status     int
	cell, body string
	problem    call.Problem
	took       time.Duration
}

func (w *world) do(t testing.TB, method, body string, headers ...string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, w.url+"/api/v1/x?y=a%2Fb", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return answer{}
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	start := time.Now()
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return answer{}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	a := answer{status: res.StatusCode, cell: res.Header.Get(call.HeaderCell), body: string(b), took: time.Since(start)}
	if a.status >= 400 {
		if err := json.Unmarshal(b, &a.problem); err != nil {
			t.Errorf("%d is no problem+json: %s", a.status, b)
		}
	}
	return a
}

func TestChoice(t *testing.T) {
	w := newWorld(t, "c1", "c2", "c3")
	turns := map[string]int{}
	for range 9 {
		a := w.do(t, "POST", "body")
		if a.status != 200 || a.body != "POST /api/v1/x?y=a%2Fb body" {
			t.Fatalf("answer %+v", a)
		}
		turns[a.cell]++
	}
	if diff := cmp.Diff(map[string]int{"c1": 3, "c2": 3, "c3": 3}, turns); diff != "" {
		t.Errorf("turns (-want +got):\n%s", diff)
	}
	for _, tc := range []struct{ name, header, value, want string }{
		{"region", "X-Region", "north", "c1"},
		{"cell's name as region", "X-Region", "c2", "c2"},
		{"cookie", "Cookie", "cell=c3", "c3"},
	} {
		for range 4 {
			if got := w.do(t, "GET", "", tc.header, tc.value).cell; got != tc.want {
				t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
			}
		}
	}
	if a := w.do(t, "GET", "", "X-Region", "moon", "Cookie", "cell=c9"); a.status != 200 {
		t.Errorf("an unknown wish: %+v", a)
	}
	if a := w.do(t, "GET", "", "X-Region", "c2", "Cookie", "cell=c3"); a.cell != "c2" {
		t.Errorf("region and cookie: %s, the region counts", a.cell)
	}
	if a := w.do(t, "POST", strings.Repeat("x", 64<<10+1)); a.status != 413 {
		t.Errorf("body over 64 kB: %+v", a)
	}
}

func TestUnpluggedCellIsOut(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	best := time.Hour // a busy machine adds its own: one that is in time is enough
	for try := 0; try < 5 && best > 1800*time.Millisecond; try++ {
		w.unplug(t, false)
		waitFor(t, "c1 serves", func() bool { return w.do(t, "GET", "", "X-Region", "c1").cell == "c1" })
		w.unplug(t, true)
		a := w.do(t, "GET", "", "X-Region", "c1") // over a connection that is silent now
		if a.cell != "c2" {
			t.Errorf("just unplugged: %+v, want c2", a)
		}
		best = min(best, a.took)
	}
	if best > 1800*time.Millisecond {
		t.Errorf("just unplugged: c2 answers after %v at best, want within about a second", best)
	}
	for range 10 {
		if a := w.do(t, "POST", "x", "X-Region", "c1"); a.cell != "c2" {
			t.Errorf("known to be out: %+v", a)
		}
	}
	w.unplug(t, false)
	waitFor(t, "c1 is in again", func() bool { return w.do(t, "GET", "", "X-Region", "c1").cell == "c1" })
}

func TestWriteToACellThatGoesAway(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	for try := range 5 {
		w.unplug(t, false)
		waitFor(t, "c1 serves", func() bool { return w.do(t, "GET", "", "X-Region", "c1").cell == "c1" })
		before := w.cells[1].calls.Load()
		w.unplug(t, true)
		a := w.do(t, "POST", "x", "X-Region", "c1", "Idempotency-Key", "k") // nobody's: the key is kept nowhere
		elsewhere := w.cells[1].calls.Load() - before
		if a.status == 503 && a.problem.Code == "OUTCOME_UNKNOWN" && a.problem.Cell == "c1" && elsewhere == 0 {
			return
		}
		if try == 4 || a.status == 503 { // else the machine was so slow that c1 was known to be out before the write
			t.Fatalf("a write that may have arrived: %+v, and c2 had %d calls", a, elsewhere)
		}
	}
}

// unplug takes c1 off, or puts it back.
func (w *world) unplug(t *testing.T, off bool) {
	t.Helper()
	if err := w.cells[0].border.SetFault(link.Everyone, link.Fault{CutOut: off, CutIn: off}); err != nil {
		t.Fatal(err)
	}
}

func TestDeadGateway(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	w.cells[0].server.CloseClientConnections()
	w.cells[0].server.Close()
	for range 20 { // the border lives: nothing could be sent, so writes go elsewhere too
		if a := w.do(t, "POST", "x", "X-Region", "c1"); a.cell != "c2" && a.problem.Code != "OUTCOME_UNKNOWN" {
			t.Errorf("answer %+v", a)
		}
	}
	if a := w.do(t, "POST", "x", "X-Region", "c1"); a.cell != "c2" {
		t.Errorf("answer %+v", a)
	}
}

func TestSickGatewayIsOut(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	w.cells[0].sick.Store(true)
	waitFor(t, "c1 is out", func() bool { return w.do(t, "GET", "", "X-Region", "c1").cell == "c2" })
	w.cells[1].sick.Store(true)
	waitFor(t, "all are out", func() bool { return w.do(t, "GET", "").status == 503 })
	a := w.do(t, "GET", "")
	if a.problem.Code != "NO_CELL" || a.problem.RetryAfter == 0 || a.cell != "" {
		t.Errorf("answer %+v, want NO_CELL", a)
	}
}

func TestBrokenAnswers(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	for _, name := range []string{"no answer", "half an answer"} {
		half := name == "half an answer"
		// Three failures in a row take c1 out; each round begins with none.
		w.cells[0].answers(nil)
		waitFor(t, "c1 is in", func() bool { return w.do(t, "GET", "", "X-Region", "c1").cell == "c1" })
		w.cells[0].answers(func(rw http.ResponseWriter, _ *http.Request) bool {
			if half {
				rw.Header().Set("Content-Length", "100")
				_, _ = rw.Write([]byte("half"))
			}
			panic(http.ErrAbortHandler)
		})
		if a := w.do(t, "GET", "", "X-Region", "c1"); a.status != 200 || a.cell != "c2" {
			t.Errorf("%s to a read: %+v, want c2's", name, a)
		}
		if a := w.do(t, "POST", "x", "X-Region", "c1", "Idempotency-Key", "k", "Authorization", "Bearer x"); a.status != 200 || a.cell != "c2" {
			t.Errorf("%s to a user's write with a key: %+v, want c2's", name, a)
		}
		before := w.cells[1].calls.Load()
		if !half {
			if a := w.do(t, "POST", "x", "X-Region", "c1"); a.problem.Code != "OUTCOME_UNKNOWN" || a.problem.Cell != "c1" {
				t.Errorf("%s to a write: %+v", name, a)
			}
		}
		if n := w.cells[1].calls.Load() - before; n != 0 {
			t.Errorf("%s: a write was sent to two cells", name)
		}
	}
	w.cells[0].answers(nil)
	waitFor(t, "c1 is in again", func() bool { return w.do(t, "GET", "", "X-Region", "c1").cell == "c1" })
	// A cell that is there but can't: another may have what was asked for.
	w.cells[0].answers(func(rw http.ResponseWriter, _ *http.Request) bool {
		rw.Header().Set("Content-Type", call.ProblemType)
		rw.Header().Set(call.HeaderCell, "c1")
		rw.WriteHeader(503)
		fmt.Fprint(rw, `{"status":503,"code":"UNAVAILABLE"}`)
		return true
	})
	if a := w.do(t, "GET", "", "X-Region", "c1"); a.status != 200 || a.cell != "c2" {
		t.Errorf("c1's own 503 to a read: %+v, want c2's answer", a)
	}
	if a := w.do(t, "POST", "x", "X-Region", "c1"); a.status != 503 || a.problem.Code != "UNAVAILABLE" {
		t.Errorf("c1's own 503 to a write: %+v", a)
	}
	// What another zone keeps, and this gateway can't reach just after its cell was plugged in: search.
	w.cells[0].answers(func(rw http.ResponseWriter, _ *http.Request) bool {
		rw.Header().Set("Content-Type", call.ProblemType)
		rw.WriteHeader(503)
		fmt.Fprint(rw, `{"status":503,"code":"SEARCH_UNAVAILABLE","cell":"global"}`)
		return true
	})
	if a := w.do(t, "GET", "", "X-Region", "c1"); a.status != 200 || a.cell != "c2" {
		t.Errorf("a read that c1 can't pass on to the global zone: %+v, want c2's answer", a)
	}
	// A gateway that can't reach the home has sent nothing: one more is asked.
	unreachable := func(rw http.ResponseWriter, _ *http.Request) bool {
		rw.Header().Set("Content-Type", call.ProblemType)
		rw.WriteHeader(503)
		fmt.Fprint(rw, `{"status":503,"code":"CELL_UNREACHABLE","cell":"c9"}`)
		return true
	}
	w.cells[0].answers(unreachable)
	if a := w.do(t, "POST", "x", "X-Region", "c1"); a.status != 200 || a.cell != "c2" {
		t.Errorf("when c1 can't reach the home: %+v, want c2's answer", a)
	}
	w.cells[1].answers(unreachable)
	before := w.cells[0].calls.Load() + w.cells[1].calls.Load()
	if a := w.do(t, "POST", "x", "X-Region", "c1"); a.status != 503 || a.problem.Cell != "c9" {
		t.Errorf("when nobody can reach the home: %+v, want that", a)
	}
	if n := w.cells[0].calls.Load() + w.cells[1].calls.Load() - before; n != 2 {
		t.Errorf("%d gateways were asked, want 2", n)
	}
}

func TestLongAnswerIsPassedOnWhole(t *testing.T) {
	w := newWorld(t, "c1")
	long := strings.Repeat("0123456789abcdef", 64<<10) // 1 MB, more than is held
	w.cells[0].answers(func(rw http.ResponseWriter, _ *http.Request) bool {
		_, _ = io.WriteString(rw, long)
		return true
	})
	if a := w.do(t, "GET", ""); a.body != long {
		t.Errorf("%d bytes of %d", len(a.body), len(long))
	}
}

// What comes bit by bit is passed on bit by bit, and the gateway sees the host that
// people asked for.
func TestStreamIsPassedOnAsItComes(t *testing.T) {
	w := newWorld(t, "c1")
	host, more := make(chan string, 1), make(chan struct{})
	w.cells[0].answers(func(rw http.ResponseWriter, r *http.Request) bool {
		host <- r.Host
		rw.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(rw, "data: one\n\n")
		_ = http.NewResponseController(rw).Flush()
		select {
		case <-more:
		case <-r.Context().Done():
		}
		fmt.Fprint(rw, "data: two\n\n")
		return true
	})
	res, err := http.Get(w.url + "/x")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got := <-host; "http://"+got != w.url {
		t.Errorf("the gateway was asked as %s, the edge is %s", got, w.url)
	}
	first := make([]byte, len("data: one\n\n"))
	if _, err := io.ReadFull(res.Body, first); err != nil || string(first) != "data: one\n\n" {
		t.Fatalf("first %q, %v", first, err)
	}
	close(more) // it wasn't held until here
	if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != "data: two\n\n" {
		t.Errorf("then %q, %v", rest, err)
	}
}

// A page that says what is away is for people: when nobody has a better answer they
// see it, not the edge's own.
func TestPageThatRefusesIsPassedOn(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	const page = "<p>Cell c9 can't be reached"
	w.cells[0].answers(func(rw http.ResponseWriter, _ *http.Request) bool {
		rw.Header().Set("Content-Type", "text/html; charset=utf-8")
		rw.WriteHeader(503)
		fmt.Fprint(rw, page)
		return true
	})
	get := func() (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), "GET", w.url+"/wallet", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Region", "c1")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Error(err)
		}
		return res.StatusCode, string(body)
	}
	if status, body := get(); status != 200 {
		t.Errorf("c2 has an answer: %d %s", status, body)
	}
	w.cells[1].answers(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
	if status, body := get(); status != 503 || body != page {
		t.Errorf("c2 has none: %d %s", status, body)
	}
	w.cells[1].sick.Store(true)
	waitFor(t, "c2 is out", func() bool { status, body := get(); return status == 503 && body == page })
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ cells, regions, want string }{
		{"c1=127.0.0.1:1, c2=127.0.0.1:2", "c2=south,c1=north", ""},
		{"", "", "EDGE_CELLS"},
		{"c1", "", "cell=host:port"},
		{"c1=127.0.0.1", "", "cell=host:port"},
		{"C1=127.0.0.1:1", "", "cell=host:port"},
		{"c1=127.0.0.1:1,c1=127.0.0.1:2", "", "twice"},
		{"c1=127.0.0.1:1", "c2=south", "region"},
		{"c1=127.0.0.1:1", "c1", "region"},
	} {
		vars := map[string]string{"EDGE_CELLS": tc.cells, "EDGE_REGIONS": tc.regions, "EDGE_PKI": "/pki"}
		r := env.NewReader("EDGE", func(name string) string { return vars[name] })
		c := read(r)
		err := r.Err()
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q %q: %v, want a word about %q", tc.cells, tc.regions, err, tc.want)
		}
		if tc.want == "" && (len(c.zones) != 2 || c.zones[1] != zone{"c2", "127.0.0.1:2", "south"}) {
			t.Errorf("zones %+v", c.zones)
		}
	}
}

// A form of the shop's may be sent through another gateway too when it has its key
// and its sender is logged in; no other form.
func TestFormWithItsKeyIsSentAgain(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	const form, cookie = "application/x-www-form-urlencoded", "__Host-session=x"
	for _, tc := range []struct {
		name, body string
		again      bool
		headers    []string
	}{
		{"with its key", "amount=1&key=k", true, []string{"Content-Type", form, "Cookie", cookie}},
		{"with its key, in a charset", "amount=1&key=k", true, []string{"Content-Type", form + "; charset=utf-8", "Cookie", "a=b; " + cookie}},
		{"without a key", "amount=1", false, []string{"Content-Type", form, "Cookie", cookie}},
		{"with an empty key", "amount=1&key=", false, []string{"Content-Type", form, "Cookie", cookie}},
		{"with two", "key=a&key=b", false, []string{"Content-Type", form, "Cookie", cookie}},
		{"nobody's", "amount=1&key=k", false, []string{"Content-Type", form}},
		{"no form", `{"key":"key=k"}`, false, []string{"Content-Type", "application/json", "Cookie", cookie}},
		{"broken", "key=k&x=%", false, []string{"Content-Type", form, "Cookie", cookie}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.cells[0].answers(nil)
			waitFor(t, "c1 is in", func() bool { return w.do(t, "GET", "", "X-Region", "c1").cell == "c1" })
			w.cells[0].answers(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
			before := w.cells[1].calls.Load()
			a := w.do(t, "POST", tc.body, append(tc.headers, "X-Region", "c1")...)
			elsewhere := w.cells[1].calls.Load() - before
			if tc.again && (a.status != 200 || a.cell != "c2") || !tc.again && (a.problem.Code != "OUTCOME_UNKNOWN" || elsewhere != 0) {
				t.Errorf("%+v, and c2 had %d calls", a, elsewhere)
			}
		})
	}
	w.cells[0].answers(nil)
}
