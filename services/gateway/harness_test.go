package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/cellmart/api/apitest"
	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/user/userapi"
)

// fake stands for all services of a cell. It notes what it's asked and answers
// with what it saw, unless answer does.
type fake struct {
	cell string
	url  string

	mu     sync.Mutex
	seen   []seen
	answer func(w http.ResponseWriter, r *http.Request) bool // true = answered
}

type seen struct {
	Method, Path string
	Body         string
	Header       http.Header
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	f.seen = append(f.seen, seen{r.Method, r.URL.RequestURI(), string(body), r.Header.Clone()})
	answer := f.answer
	f.mu.Unlock()
	w.Header().Set(call.HeaderCell, f.cell)
	if answer != nil && answer(w, r) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"cell":%q}`, f.cell)
}

func (f *fake) answers(fn func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = fn
}

func (f *fake) calls() []seen {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]seen(nil), f.seen...)
}

// refuse answers with a problem.
func refuse(w http.ResponseWriter, p call.Problem) {
	w.Header().Set("Content-Type", call.ProblemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// cell is a cell of a test: a gateway with its two listeners behind a border of
// its own, and fake services.
type cell struct {
	name      string
	gateway   *Gateway
	tables    *routing.Holder
	services  *fake
	border    *link.Border
	public    string
	peers     string
	refreshed atomic.Int64
	counted   *tally
	stopPeers func() // its gateway is gone for other cells, the agent is not
}

type world struct {
	cells  map[string]*cell
	writer *fake
	search *fake
	table  *routing.Table
}

// newWorld starts cells (and the global zone with the catalog's writer), all
// linked, and waits for the links.
// Tests with a world run one after the other: its links must be answered within
// 750 ms, which many worlds on few cores would not be.
func newWorld(t *testing.T, names ...string) *world {
	t.Helper()
	w := &world{cells: map[string]*cell{}, table: routing.Spread(names)}
	pki, zones := t.TempDir(), append([]string{routing.Global}, names...)
	if err := link.WritePKI(pki, zones); err != nil {
		t.Fatal(err)
	}
	borders, addrs := map[string]net.Listener{}, map[string]string{}
	for _, z := range zones {
		borders[z] = listenOn(t)
		addrs[z] = borders[z].Addr().String()
	}
	var agents []string
	for _, z := range zones {
		agents = append(agents, link.AgentName(z))
	}
	w.writer, w.search = newFake(t, routing.Global), newFake(t, routing.Global)
	startBorder(t, pki, routing.Global, borders[routing.Global], listenOn(t), addrs,
		map[string]link.Target{
			"catalog": {Addr: strings.TrimPrefix(w.writer.url, "http://"), Allow: agents},
			"search":  {Addr: strings.TrimPrefix(w.search.url, "http://"), Allow: agents},
		})
	for _, name := range names {
		w.cells[name] = newCell(t, w, pki, name, borders[name], addrs, agents)
	}
	for _, c := range w.cells {
		waitFor(t, c.name+" has all links up", func() bool {
			for _, s := range c.border.Status() {
				if !s.Up {
					return false
				}
			}
			return true
		})
	}
	return w
}

func newFake(t *testing.T, cell string) *fake {
	f := &fake{cell: cell}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	f.url = s.URL
	return f
}

func newCell(t *testing.T, w *world, pki, name string, border net.Listener, addrs map[string]string, agents []string) *cell {
	c := &cell{name: name, tables: &routing.Holder{}, services: newFake(t, name)}
	c.tables.Store(w.table)
	local := listenOn(t)
	m := obs.New(name, "gateway")
	c.counted = newTally(name, m.Counter("cellmart_gateway_requests_total", "as in Run", "kind", "way"), time.Now())
	dialer := link.Dialer{Addr: local.Addr().String()}
	dial := func(zone, target string) dialFunc { return dialer.DialContext(zone, target) }
	log := slog.New(slog.DiscardHandler)
	c.gateway = &Gateway{
		cell: name, table: c.tables, refresh: func() { c.refreshed.Add(1) }, now: time.Now, wall: time.Now, numbers: numberReader(),
		verify: verifyFake, local: map[string]*service{}, peers: newPeers(name, dial, log, func(string, bool) {}),
		writer: newWriter(dial), search: newSearch(dial, log), count: c.counted.add, limits: defaultLimits(),
		linkUp: func(zone string) (up, known bool) { return c.border.Status()[zone].Up, true },
	}
	for _, s := range []string{svcUser, svcOrder, svcInventory, svcCatalog} {
		c.gateway.local[s] = newService(s, []string{c.services.url}, log)
	}
	home, err := newPage(name, "")
	if err != nil {
		t.Fatal(err)
	}
	serve := func(peers bool, p *page) *httptest.Server {
		s := httptest.NewServer(newHandler(c.gateway, log, m, peers, p))
		t.Cleanup(s.Close)
		return s
	}
	inner := serve(true, nil)
	c.public, c.peers = serve(false, home).URL, inner.URL
	c.stopPeers = func() { inner.CloseClientConnections(); inner.Close() }
	c.border = startBorder(t, pki, name, border, local, addrs, map[string]link.Target{
		"gateway": {Addr: strings.TrimPrefix(c.peers, "http://"), Allow: agents},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.gateway.peers.run(ctx, c.tables) })
	running.Go(func() { c.gateway.search.breaker.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return c
}

func startBorder(t *testing.T, pki, zone string, border, local net.Listener, addrs map[string]string, targets map[string]link.Target) *link.Border {
	conf, err := link.LoadTLS(filepath.Join(pki, link.AgentName(zone)))
	if err != nil {
		t.Fatal(err)
	}
	others := map[string]string{}
	for z, addr := range addrs {
		if z != zone {
			others[z] = addr
		}
	}
	b, err := link.New(link.Config{Zone: zone, Border: border, Local: local, TLS: conf, Peers: others, Targets: targets, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = b.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return b
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

// verifyFake reads tokens of the form user-ID or seller-ID.
func verifyFake(_ *routing.Table, token string, _ time.Time) (userapi.Claims, error) {
	kind, text, _ := strings.Cut(token, "-")
	user, err := id.Parse(text)
	if err != nil || kind != "user" && kind != "seller" {
		return userapi.Claims{}, errors.New("not a token")
	}
	return userapi.Claims{User: user, Seller: kind == "seller"}, nil
}

// publish gives all cells the table that change makes of the present one.
func (w *world) publish(t *testing.T, change func(*routing.Spec)) {
	t.Helper()
	spec := w.table.Spec()
	spec.Version++
	change(&spec)
	next, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	w.table = next
	for _, c := range w.cells {
		c.tables.Store(next)
	}
}

// userOf makes a user who lives in the cell.
func (w *world) userOf(cell string) id.ID { return id.Make(1000, w.table.SlotsOf(cell)[5], false) }

// moved is the table after a move of the user's slot.
func moved(t *testing.T, table *routing.Table, user id.ID, to string) *routing.Table {
	t.Helper()
	spec := table.Spec()
	spec.Version++
	spec.Slots[user.Slot()].Owner = to
	spec.Slots[user.Slot()].Standby = ""
	spec.Slots[user.Slot()].Epoch++
	next, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// answer is an answer with its body read.
type answer struct {
	status  int
	header  http.Header
	body    string
	problem call.Problem
	took    time.Duration
}

// want checks status, code and who served.
func (a answer) want(t *testing.T, status int, code, cell string) {
	t.Helper()
	if a.status != status || a.problem.Code != code || a.header.Get(call.HeaderCell) != cell {
		t.Errorf("answer %d %q from %q, want %d %q from %q (%s)", a.status, a.problem.Code, a.header.Get(call.HeaderCell), status, code, cell, a.body)
	}
}

type option func(*http.Request)

func as(kind string, user id.ID) option {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+kind+"-"+user.String()) }
}

func with(name, value string) option { return func(r *http.Request) { r.Header.Set(name, value) } }

// do sends a request to base and reads the answer; it may be used by any goroutine.
func do(t testing.TB, base, method, path, body string, opts ...option) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, base+path, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return answer{}
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, o := range opts {
		o(r)
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
	a := answer{status: res.StatusCode, header: res.Header, body: string(b), took: time.Since(start)}
	if res.StatusCode >= 400 {
		if err := json.Unmarshal(b, &a.problem); err != nil || res.Header.Get("Content-Type") != call.ProblemType {
			t.Errorf("%s %s: %d is no problem+json: %s", method, path, res.StatusCode, b)
		}
		// The services are fakes; what the gateway itself says is held to the document.
		res.Body = io.NopCloser(bytes.NewReader(b))
		apitest.Check(t, r, res)
	}
	return a
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

// hop makes the headers of a gateway that forwards.
func hop(slot routing.Slot, epoch int64, from string) option {
	return func(r *http.Request) {
		r.Header.Set(call.HeaderHop, "1")
		r.Header.Set(call.HeaderSlot, slot.String())
		r.Header.Set(call.HeaderEpoch, strconv.FormatInt(epoch, 10))
		r.Header.Set(call.HeaderFrom, from)
	}
}
