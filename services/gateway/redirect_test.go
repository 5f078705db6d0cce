package gateway

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/api/apitest"
	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/services/agent/agentapi"
)

// Each request is counted once, where people brought it, by what it took in the end.
func TestRequestsAreCountedByWhatTheyTook(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	own, other := w.userOf("c1"), w.userOf("c2")
	do(t, c1.public, "GET", "/api/v1/me", "", as("user", own)).want(t, 200, "", "c1")
	do(t, c1.public, "GET", "/api/v1/me", "", as("user", own)).want(t, 200, "", "c1")
	do(t, c1.public, "GET", "/api/v1/me", "", as("user", other)).want(t, 200, "", "c2")
	do(t, c1.public, "GET", "/api/v1/search?q=x", "").want(t, 200, "", "global")
	do(t, c1.public, "GET", "/api/v1/me", "").want(t, 401, "UNAUTHENTICATED", "c1") // needed nobody
	// It comes back to the own cell, but only from the other.
	back := other + 1<<14
	c2.tables.Store(moved(t, w.table, back, "c1"))
	do(t, c1.public, "GET", "/api/v1/cart", "", as("user", back)).want(t, 200, "", "c1")
	// The old home refuses: it took a second cell, although the first tried was the own.
	c2.tables.Store(moved(t, c2.tables.Load(), own, "c2"))
	c1.services.answers(func(w http.ResponseWriter, _ *http.Request) bool {
		refuse(w, call.Problem{Status: 421, Code: "MISROUTED", Owner: "c2", Epoch: 2})
		return true
	})
	do(t, c1.public, "GET", "/api/v1/me", "", as("user", own)).want(t, 200, "", "c2")
	want := map[string]agentapi.Ways{"GET /me": {Local: 2, Forwarded: 2}, "GET /search": {Global: 1}, "GET /cart": {Forwarded: 1}}
	if d := cmp.Diff(want, c1.counted.snapshot().Kinds); d != "" {
		t.Errorf("c1 counted (-want +got)\n%s", d)
	}
	if n := c2.counted.snapshot().Kinds; len(n) != 0 {
		t.Errorf("c2 counted %v, what came over a hop is counted where it began", n)
	}
}

// redirecting makes all gateways send people to each other.
func (w *world) redirecting() {
	public := redirects{}
	for name, c := range w.cells {
		public[name] = c.public
	}
	for _, c := range w.cells {
		c.gateway.redirects = public
	}
}

func TestRedirect(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	user := w.userOf("c2")
	w.redirecting()
	t.Run("says where, with path and query as they were", func(t *testing.T) {
		r, err := http.NewRequestWithContext(t.Context(), "POST", c1.public+"/api/v1/orders?x=a%2Fb", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		as("user", user)(r)
		res, err := http.DefaultTransport.RoundTrip(r) // follows nothing
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		apitest.Check(t, r, res)
		if want := c2.public + "/api/v1/orders?x=a%2Fb&cellmart-hop=1"; res.StatusCode != 307 || res.Header.Get("Location") != want {
			t.Errorf("%d to %q, want 307 to %q", res.StatusCode, res.Header.Get("Location"), want)
		}
		if len(c1.services.calls())+len(c2.services.calls()) != 0 {
			t.Error("a service was asked")
		}
	})
	t.Run("a client that follows keeps method and body, and is served by the home itself", func(t *testing.T) {
		c1.border.Status() // the links are up, and aren't used:
		do(t, c1.public, "POST", "/api/v1/orders?x=a%2Fb", `{"n":1}`, as("user", user), with(call.HeaderIdempotencyKey, "k")).want(t, 200, "", "c2")
		calls := c2.services.calls()
		if len(calls) != 1 {
			t.Fatalf("%d calls, want 1", len(calls))
		}
		if got := calls[0]; got.Method != "POST" || got.Body != `{"n":1}` || got.Path != "/api/v1/orders?x=a%2Fb" || got.Header.Get(call.HeaderUser) != user.String() {
			t.Errorf("the home saw %s %s %s", got.Method, got.Path, got.Body)
		}
		if d := cmp.Diff(map[string]agentapi.Ways{"POST /orders": {Forwarded: 1}}, c2.counted.snapshot().Kinds); d != "" {
			t.Errorf("c2 counted (-want +got)\n%s", d)
		}
		if n := c1.counted.snapshot().Kinds; len(n) != 0 {
			t.Errorf("c1 counted %v too", n)
		}
	})
	t.Run("what every cell has, the global zone's, and new users are answered here", func(t *testing.T) {
		do(t, c1.public, "GET", "/api/v1/products", "").want(t, 200, "", "c1")
		do(t, c1.public, "GET", "/api/v1/search?q=x", "").want(t, 200, "", "global")
		do(t, c1.public, "POST", "/api/v1/users", `{}`, with("X-Region", "c2")).want(t, 200, "", "c2")
		if n := c1.counted.snapshot().Kinds["POST /users"]; n != (agentapi.Ways{Forwarded: 1}) {
			t.Errorf("the registration in another cell counts as %+v", n)
		}
	})
	t.Run("a home that has no public address is forwarded to", func(t *testing.T) {
		c1.gateway.redirects = redirects{"c1": c1.public}
		do(t, c1.public, "GET", "/api/v1/cart", "", as("user", user)).want(t, 200, "", "c2")
		if n := c1.counted.snapshot().Kinds["GET /cart"]; n != (agentapi.Ways{Forwarded: 1}) {
			t.Errorf("counted as %+v", n)
		}
	})
	t.Run("gateways that disagree send nobody in circles", func(t *testing.T) {
		// c1 believes that the user lives in c2, c2 that it is c1: the second forwards,
		// and is refused over the hop.
		c2.tables.Store(moved(t, w.table, user, "c1"))
		w.redirecting()
		do(t, c1.public, "GET", "/api/v1/me", "", as("user", user)).want(t, 503, "ROUTE_UNSETTLED", "c2")
	})
}

func TestModeIsChecked(t *testing.T) {
	for _, tc := range []struct {
		mode, urls string
		want       redirects
		bad        bool
	}{
		{"", "", nil, false},
		{"forward", "c1=http://a:1", nil, false},
		{"redirect", "c1=http://a:1,c2=https://b/", redirects{"c1": "http://a:1", "c2": "https://b"}, false},
		{"redirect", "", nil, true},
		{"redirect", "c1=a:1", nil, true},
		{"redirect", "http://a:1", nil, true},
		{"forward", "c1=ftp://a", nil, true},
		{"both", "", nil, true},
	} {
		r := env.NewReader("GATEWAY", func(name string) string {
			return map[string]string{"GATEWAY_MODE": tc.mode, "GATEWAY_PUBLIC_URLS": tc.urls}[name]
		})
		var c config
		c.readRedirects(r)
		if d := cmp.Diff(tc.want, c.redirects); d != "" || (r.Err() != nil) != tc.bad {
			t.Errorf("mode %q, urls %q: %v, %v", tc.mode, tc.urls, c.redirects, r.Err())
		}
	}
}
