package gateway

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/relay"
	"example.com/cellmart/platform/routing"
)

func TestAnyGatewayServesAnyUser(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	user := w.userOf("c2")
	body := `{"items":[]}`
	do(t, c1.public, "POST", "/api/v1/orders?x=a%2Fb", body, as("user", user),
		with("X-Request-Id", "r-1"), with(call.HeaderIdempotencyKey, "k1"), with("Traceparent", "00-1")).want(t, 200, "", "c2")
	do(t, c2.public, "GET", "/api/v1/me", "", as("user", user)).want(t, 200, "", "c2")
	if n := len(c1.services.calls()); n != 0 {
		t.Errorf("%d requests of another cell's user reached c1's services", n)
	}
	calls := c2.services.calls()
	if len(calls) != 2 {
		t.Fatalf("c2's services saw %d requests, want 2", len(calls))
	}
	got := calls[0]
	if got.Method != "POST" || got.Path != "/api/v1/orders?x=a%2Fb" || got.Body != body {
		t.Errorf("forwarded %s %s %s", got.Method, got.Path, got.Body)
	}
	for name, want := range map[string]string{
		call.HeaderUser: user.String(), call.HeaderSlot: user.Slot().String(), call.HeaderEpoch: "1", call.HeaderFrom: "c2",
		call.HeaderHop: "", "Authorization": "", call.HeaderRequestID: "r-1", call.HeaderIdempotencyKey: "k1", "Traceparent": "00-1",
	} {
		if v := got.Header.Get(name); v != want {
			t.Errorf("%s = %q, want %q", name, v, want)
		}
	}
}

func TestAnswersSayWhoServed(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	c2 := w.cells["c2"]
	c2.tables.Store(moved(t, w.table, w.userOf("c1"), "c2")) // version 1; c1 still has 0
	a := do(t, w.cells["c1"].public, "GET", "/api/v1/me", "", as("user", w.userOf("c2")), with("X-Request-Id", "r-9"))
	a.want(t, 200, "", "c2")
	if v := a.header.Get(call.HeaderRouteVersion); v != "1" {
		t.Errorf("route version %s, want the home's", v)
	}
	if v := a.header.Values(call.HeaderRequestID); len(v) != 1 || v[0] != "r-9" {
		t.Errorf("request id %q, want r-9 once", v)
	}
}

// S-R04: there is no default cell, and no answer of the old cell after a move.
func TestScenario_R04_UnknownAndMovedSlots(t *testing.T) {
	w := newWorld(t, "c1", "c2", "c3")
	c1, c2, c3 := w.cells["c1"], w.cells["c2"], w.cells["c3"]
	user := w.userOf("c2")

	t.Run("S-R04 after a move the new cell answers", func(t *testing.T) {
		next := moved(t, w.table, user, "c3")
		c2.tables.Store(next)
		c3.tables.Store(next)
		for _, c := range w.cells { // c1 still has the old table
			do(t, c.public, "GET", "/api/v1/me", "", as("user", user)).want(t, 200, "", "c3")
		}
		if n := len(c2.services.calls()); n != 0 {
			t.Errorf("the old cell's services were asked %d times", n)
		}
		if c1.refreshed.Load() == 0 {
			t.Error("c1 was told that its table is old and didn't ask for a newer one")
		}
	})
	t.Run("S-R04 a slot of no cell is 404", func(t *testing.T) {
		var nobody routing.Holder
		nobody.Store(routing.Spread(nil))
		before := len(c1.services.calls())
		g := *c1.gateway
		g.table = &nobody
		public := startPublic(t, &g)
		do(t, public, "GET", "/api/v1/me", "", as("user", user)).want(t, 404, "NOT_FOUND", "c1")
		do(t, public, "GET", "/api/v1/operations/"+user.String(), "").want(t, 404, "NOT_FOUND", "c1")
		do(t, c1.peers, "POST", "/api/v1/sessions", `{}`, hop(routing.CellSlot(9), 1, "c2")).want(t, 404, "NOT_FOUND", "c1")
		if n := len(c1.services.calls()); n != before {
			t.Errorf("%d requests about nobody's slot reached a service", n-before)
		}
	})
}

func TestNoSecondHop(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	c2 := w.cells["c2"]
	user := w.userOf("c1")
	a := do(t, c2.peers, "GET", "/api/v1/me", "", as("user", user), hop(user.Slot(), 1, "c3"))
	a.want(t, 421, "MISROUTED", "c2")
	if a.problem.Owner != "c1" || a.problem.Epoch != 1 {
		t.Errorf("421 names %q epoch %d, want c1 epoch 1", a.problem.Owner, a.problem.Epoch)
	}
	own := w.userOf("c2")
	do(t, c2.peers, "GET", "/api/v1/me", "", as("user", own), hop(own.Slot(), 1, "c1")).want(t, 200, "", "c2")
	do(t, c2.peers, "GET", "/api/v1/me", "", hop(own.Slot(), 1, "c1")).want(t, 401, "UNAUTHENTICATED", "c2") // verified again
	do(t, c2.peers, "GET", "/api/v1/me", "", as("user", own)).want(t, 500, "CELL_ROUTING_VIOLATION", "c2")
	if n := len(w.cells["c1"].services.calls()); n != 0 {
		t.Errorf("%d requests were forwarded twice", n)
	}
}

// A sender with a newer table is believed enough to look for one.
func TestHomeWaitsForTheTableThatTheSenderHas(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	user := w.userOf("c1")
	next := moved(t, w.table, user, "c2")
	c1.tables.Store(next)
	c2.gateway.refresh = func() { c2.tables.Store(next) }
	do(t, c1.public, "GET", "/api/v1/me", "", as("user", user)).want(t, 200, "", "c2")
}

func TestRefusedWith421(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	user := w.userOf("c1")
	c2.tables.Store(moved(t, w.table, user, "c2"))
	var refusals atomic.Int64
	misroute := func(owner string, epoch int64) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			refusals.Add(1)
			refuse(w, call.Problem{Status: 421, Code: "MISROUTED", Owner: owner, Epoch: epoch})
			return true
		}
	}
	t.Run("by the own database: once more, to the named owner", func(t *testing.T) {
		c1.services.answers(misroute("c2", 2))
		do(t, c1.public, "POST", "/api/v1/orders", `{"n":1}`, as("user", user)).want(t, 200, "", "c2")
		if got := c2.services.calls(); len(got) != 1 || got[0].Body != `{"n":1}` || got[0].Header.Get(call.HeaderEpoch) != "2" {
			t.Errorf("the new home saw %v", got)
		}
	})
	t.Run("twice is 503, after two tries", func(t *testing.T) {
		refusals.Store(0)
		c2.services.answers(misroute("c1", 3))
		a := do(t, c1.public, "GET", "/api/v1/me", "", as("user", user))
		a.want(t, 503, "ROUTE_UNSETTLED", "c1")
		if a.header.Get("Retry-After") == "" || refusals.Load() != 2 {
			t.Errorf("Retry-After %q after %d refusals, want one after 2", a.header.Get("Retry-After"), refusals.Load())
		}
	})
	t.Run("without an owner: the table that comes meanwhile says where", func(t *testing.T) {
		next := moved(t, w.table, w.userOf("c1")+1<<14, "c2") // the same slot, another user
		c2.services.answers(nil)
		c1.services.answers(func(w http.ResponseWriter, _ *http.Request) bool {
			refuse(w, call.Problem{Status: 421, Code: "MISROUTED"})
			return true
		})
		g := *c1.gateway
		g.table, g.refresh = &routing.Holder{}, func() { g.table.Store(next) }
		g.table.Store(w.table)
		do(t, startPublic(t, &g), "GET", "/api/v1/me", "", as("user", user)).want(t, 200, "", "c2")
	})
	t.Run("an owner that no table has is not believed", func(t *testing.T) {
		refusals.Store(0)
		c1.services.answers(misroute("evil", 9))
		do(t, c1.public, "GET", "/api/v1/me", "", as("user", user)).want(t, 503, "ROUTE_UNSETTLED", "c1")
	})
	t.Run("an old epoch takes nobody back", func(t *testing.T) {
		p := place{cell: "c1", slot: user.Slot(), epoch: 4}
		if got := correct(p, call.Problem{Status: 421, Code: "MISROUTED", Owner: "c2", Epoch: 3}.Err(), place{cell: "c1", slot: user.Slot(), epoch: 1}, w.table); got != p {
			t.Errorf("corrected to %+v by an older epoch", got)
		}
	})
	t.Run("a user who was moved alone is not looked for by their old slot's epoch", func(t *testing.T) {
		p, base := place{cell: "c1", slot: user.Slot(), epoch: 4}, place{cell: "c2", slot: routing.FirstUserSlot, epoch: 1}
		if got := correct(p, call.Problem{Status: 421, Code: "MISROUTED", Owner: "c1", Epoch: 5}.Err(), base, w.table); got != base {
			t.Errorf("corrected to %+v", got)
		}
	})
	t.Run("a home with a newer epoch of its own slot tries again itself", func(t *testing.T) {
		refusals.Store(0)
		c2.services.answers(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get(call.HeaderEpoch) == "6" {
				return false
			}
			return misroute("c2", 6)(w, r)
		})
		do(t, c2.peers, "GET", "/api/v1/me", "", as("user", user), hop(user.Slot(), 2, "c1")).want(t, 200, "", "c2")
		if refusals.Load() != 1 {
			t.Errorf("%d refusals, want 1", refusals.Load())
		}
	})
}

func TestDrainingSlotIsWaitedFor(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	c1.gateway.limits.hold, c1.gateway.limits.pause = 2*time.Second, 10*time.Millisecond
	user := w.userOf("c2")
	var n atomic.Int64
	draining := func(times int64) {
		n.Store(0)
		c2.services.answers(func(w http.ResponseWriter, _ *http.Request) bool {
			if n.Add(1) > times {
				return false
			}
			refuse(w, call.Problem{Status: 503, Code: "SLOT_DRAINING"})
			return true
		})
	}
	draining(2)
	do(t, c1.public, "POST", "/api/v1/orders", `{}`, as("user", user)).want(t, 200, "", "c2")
	if n.Load() != 3 {
		t.Errorf("%d tries, want 3: only the first gateway waits", n.Load())
	}
	draining(1 << 30)
	do(t, c1.public, "GET", "/api/v1/me", "", as("user", user)).want(t, 503, "SLOT_DRAINING", "c1") // not for ever
	c2.services.answers(func(w http.ResponseWriter, _ *http.Request) bool {
		refuse(w, call.Problem{Status: 503, Code: "LEASE_OVER"})
		return true
	})
	do(t, c1.public, "GET", "/api/v1/me", "", as("user", user)).want(t, 503, "LEASE_OVER", "c2") // other 503 pass
}

// The plug is pulled: who asks at once waits a second at most, who asks later
// doesn't wait; the others' requests all succeed.
func TestUnreachableHome(t *testing.T) {
	w := newWorld(t, "c1", "c2", "c3")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	victim, own, third := w.userOf("c2"), w.userOf("c1"), w.userOf("c3")
	me := func(opts ...option) answer { return do(t, c1.public, "GET", "/api/v1/me", "", opts...) }
	me(as("user", victim)).want(t, 200, "", "c2") // a kept connection is there

	cut := func() time.Duration {
		setFault(t, c2.border, link.Everyone, link.Fault{CutOut: true, CutIn: true})
		var during sync.WaitGroup
		var mu sync.Mutex
		var longest time.Duration
		for range 4 {
			during.Go(func() {
				a := me(as("user", victim))
				a.want(t, 503, "CELL_UNREACHABLE", "c1")
				if a.problem.Cell != "c2" || a.header.Get("Retry-After") == "" {
					t.Errorf("problem %+v without the cell or Retry-After", a.problem)
				}
				mu.Lock()
				defer mu.Unlock()
				longest = max(longest, a.took)
			})
			during.Go(func() {
				a := do(t, c1.public, "POST", "/api/v1/seller", `{}`, as("user", victim))
				if a.status != 503 || a.problem.Cell != "c2" || a.problem.Code != "OUTCOME_UNKNOWN" && a.problem.Code != "CELL_UNREACHABLE" {
					t.Errorf("a write to the cut cell: %d %+v", a.status, a.problem)
				}
			})
			during.Go(func() {
				for range 20 {
					me(as("user", own)).want(t, 200, "", "c1")
					me(as("user", third)).want(t, 200, "", "c3")
				}
			})
		}
		during.Wait()
		return longest
	}
	heal := func() {
		setFault(t, c2.border, link.Everyone, link.Fault{})
		waitFor(t, "c2 is served again", func() bool { return me(as("user", victim)).status == 200 })
	}
	longest := cut()
	for try := 1; longest > 1500*time.Millisecond; try++ { // 1 s is promised; the rest is this machine's noise
		if try == 5 {
			t.Errorf("before the breaker knew: %v", longest)
			break
		}
		heal()
		longest = cut()
	}
	waitFor(t, "the breaker opens", func() bool {
		open, _ := c1.gateway.peers.get("c2").breaker.Open()
		return open
	})
	best := time.Hour
	for range 10 {
		a := me(as("user", victim))
		a.want(t, 503, "CELL_UNREACHABLE", "c1")
		best = min(best, a.took)
	}
	if best > 50*time.Millisecond {
		t.Errorf("after the breaker knew: %v at best, want 50 ms at most", best)
	}
	// Inside the cut cell its own people go on.
	do(t, c2.public, "GET", "/api/v1/me", "", as("user", victim)).want(t, 200, "", "c2")

	heal()
}

// A home whose gateway is gone while its agent runs is unreachable as well.
func TestHomeGatewayGone(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	c1, user := w.cells["c1"], as("user", w.userOf("c2"))
	do(t, c1.public, "GET", "/api/v1/me", "", user).want(t, 200, "", "c2")
	w.cells["c2"].stopPeers()
	breaker := c1.gateway.peers.get("c2").breaker
	waitFor(t, "the breaker opens", func() bool { open, _ := breaker.Open(); return open })
	do(t, c1.public, "GET", "/api/v1/me", "", user).want(t, 503, "CELL_UNREACHABLE", "c1")
	do(t, c1.public, "POST", "/api/v1/seller", "{}", user).want(t, 503, "CELL_UNREACHABLE", "c1") // nothing was sent
}

func TestLostAnswers(t *testing.T) {
	for _, home := range []string{"c1", "c2"} {
		t.Run("home "+home, func(t *testing.T) {
			w := newWorld(t, "c1", "c2")
			user, services := w.userOf(home), w.cells[home].services
			// With a home elsewhere, the home's gateway is what may repeat.
			lose := func(times int64) *atomic.Int64 {
				var n atomic.Int64
				services.answers(func(http.ResponseWriter, *http.Request) bool {
					if n.Add(1) <= times {
						panic(http.ErrAbortHandler)
					}
					return false
				})
				return &n
			}
			public := w.cells["c1"].public
			lose(1)
			do(t, public, "GET", "/api/v1/cart", "", as("user", user)).want(t, 200, "", home)
			lose(1)
			do(t, public, "POST", "/api/v1/orders", `{}`, as("user", user), with(call.HeaderIdempotencyKey, "k")).want(t, 200, "", home)
			n := lose(1)
			do(t, public, "POST", "/api/v1/orders", `{}`, as("user", user)).want(t, 503, "OUTCOME_UNKNOWN", home)
			if n.Load() != 1 {
				t.Errorf("a request without a key was sent %d times", n.Load())
			}
			n = lose(1 << 30)
			do(t, public, "GET", "/api/v1/cart", "", as("user", user)).want(t, 503, "UNAVAILABLE", home)
			if n.Load() > 4 {
				t.Errorf("a read was sent %d times", n.Load())
			}
		})
	}
}

// A connection between gateways that breaks: what may have arrived is not sent
// again, unless it's safe to.
func TestBrokenHop(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	var n, broken atomic.Int64
	home := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		if n.Add(1) <= broken.Load() {
			panic(http.ErrAbortHandler)
		}
		rw.Header().Set(call.HeaderCell, "c2")
	}))
	t.Cleanup(home.Close)
	w.cells["c1"].gateway.peers.get("c2").transport = relay.NewTransport(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, home.Listener.Addr().String())
	}, time.Minute)
	for _, tc := range []struct {
		name, method string
		opts         []option
		status       int
		calls        int64
	}{
		{"write", "POST", nil, 503, 1},
		{"write with a key", "POST", []option{with(call.HeaderIdempotencyKey, "k")}, 200, 2},
		{"read", "GET", nil, 200, 2},
	} {
		n.Store(0)
		broken.Store(1)
		a := do(t, w.cells["c1"].public, tc.method, "/api/v1/orders", "", append(tc.opts, as("user", w.userOf("c2")))...)
		if a.status != tc.status || n.Load() != tc.calls || a.status == 503 && a.problem.Code != "OUTCOME_UNKNOWN" {
			t.Errorf("%s: %d %q after %d calls, want %d after %d", tc.name, a.status, a.problem.Code, n.Load(), tc.status, tc.calls)
		}
	}
}

func TestSlowService(t *testing.T) {
	w := newWorld(t, "c1")
	c1 := w.cells["c1"]
	c1.gateway.limits.local = 50 * time.Millisecond
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	gone := make(chan struct{}, 8)
	var began atomic.Int64
	c1.services.answers(func(_ http.ResponseWriter, r *http.Request) bool {
		began.Add(1)
		select {
		case <-r.Context().Done():
			gone <- struct{}{}
		case <-stop:
		}
		return true
	})
	for _, ask := range []struct{ method, path, body, code string }{
		{"GET", "/api/v1/cart", "", "UNAVAILABLE"},
		{"POST", "/api/v1/orders", "{}", "OUTCOME_UNKNOWN"},
	} {
		for try := 0; ; try++ { // a busy machine may not get it to the service in 50 ms
			before := began.Load()
			a := do(t, c1.public, ask.method, ask.path, ask.body, as("user", w.userOf("c1")))
			if began.Load() == before && try < 20 {
				a.want(t, 503, a.problem.Code, "c1")
				continue
			}
			a.want(t, 503, ask.code, "c1")
			break
		}
		select {
		case <-gone:
		case <-time.After(time.Minute):
			t.Fatal("a service still works for a request that was given up")
		}
	}
}

// A client that leaves takes its request along, also over the hop.
func TestClientGone(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	l := &w.cells["c1"].gateway.limits // nothing else may end it
	l.request, l.forward, l.doubtful = time.Hour, time.Hour, time.Hour
	l = &w.cells["c2"].gateway.limits
	l.request, l.local = time.Hour, time.Hour
	began, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	w.cells["c2"].services.answers(func(_ http.ResponseWriter, r *http.Request) bool {
		began <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
		return true
	})
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "POST", w.cells["c1"].public+"/api/v1/seller", nil)
	if err != nil {
		t.Fatal(err)
	}
	as("user", w.userOf("c2"))(r)
	go func() {
		if res, err := http.DefaultClient.Do(r); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}()
	<-began
	leave()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the home still works for a client that is gone")
	}
}

func TestInstances(t *testing.T) {
	w := newWorld(t, "c1")
	c1, log := w.cells["c1"], slog.New(slog.DiscardHandler)
	dead := "http://127.0.0.1:" + strconv.Itoa(freePort(t))
	c1.gateway.local[svcOrder] = newService(svcOrder, []string{dead, c1.services.url, dead}, log)
	for range 9 { // nothing was sent to the dead ones, so writes go on too
		do(t, c1.public, "POST", "/api/v1/orders", "{}", as("user", w.userOf("c1"))).want(t, 200, "", "c1")
	}
	if n := len(c1.services.calls()); n != 9 {
		t.Errorf("%d calls, want 9", n)
	}
	c1.gateway.local[svcOrder] = newService(svcOrder, []string{dead}, log)
	do(t, c1.public, "POST", "/api/v1/orders", "{}", as("user", w.userOf("c1"))).want(t, 503, "UNAVAILABLE", "c1")
}

// One of two instances breaks every exchange, as if it were killed in the middle:
// what may be done twice fails for nobody. A health call takes it in again.
func TestInstanceKilled(t *testing.T) {
	w := newWorld(t, "c1")
	c1, user := w.cells["c1"], as("user", w.userOf("c1"))
	var healthy atomic.Bool
	var asked atomic.Int64
	sick := newFake(t, "c1")
	sick.answers(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/livez" {
			if !healthy.Load() {
				panic(http.ErrAbortHandler)
			}
			return false
		}
		asked.Add(1)
		if healthy.Load() {
			return false
		}
		if r.Method == "GET" { // half an answer
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "{")
			_ = http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	})
	fresh := func() *service {
		return newService(svcOrder, []string{sick.url, c1.services.url}, slog.New(slog.DiscardHandler))
	}
	for _, r := range []struct {
		method, path, body string
		opts               []option
	}{
		{"POST", "/api/v1/orders", "{}", []option{user, with(call.HeaderIdempotencyKey, "k")}},
		{"GET", "/api/v1/orders", "", []option{user}},
		{"PUT", "/api/v1/cart/items/" + w.userOf("c1").String(), "{}", []option{user}},
	} {
		for range 2 { // each instance is the first once
			c1.gateway.local[svcOrder] = fresh()
			before := asked.Load()
			for range 4 {
				do(t, c1.public, r.method, r.path, r.body, r.opts...).want(t, 200, "", "c1")
			}
			if n := asked.Load() - before; n != 1 {
				t.Errorf("%s: the sick instance was asked %d times, want once", r.method, n)
			}
		}
	}
	s := fresh()
	c1.gateway.local[svcOrder] = s
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.run(ctx) })
	defer running.Wait()
	defer stop()
	waitFor(t, "the sick one is out by health calls alone", func() bool { return s.instances[0].out() })
	healthy.Store(true)
	waitFor(t, "it is in again", func() bool { return !s.instances[0].out() })
	before := asked.Load()
	for range 4 {
		do(t, c1.public, "POST", "/api/v1/orders", "{}", user).want(t, 200, "", "c1")
	}
	if n := asked.Load() - before; n != 2 {
		t.Errorf("the healed instance got %d of 4 requests, want 2", n)
	}
}
