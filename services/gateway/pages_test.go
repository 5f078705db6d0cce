package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/routing"
)

// look gets a page as a browser of the user would; 0 is nobody.
func look(t *testing.T, base, path string, user id.ID) (status int, header http.Header, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if user != 0 {
		r.AddCookie(&http.Cookie{Name: "__Host-session", Value: "user-" + user.String()})
	}
	res, err := http.DefaultTransport.RoundTrip(r) // follows nothing
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(b)
}

// paths are what the services were asked for.
func (f *fake) paths() []string {
	var out []string
	for _, s := range f.calls() {
		out = append(out, s.Method+" "+s.Path)
	}
	slices.Sort(out)
	return out
}

// Each gateway has the shop beside the API, and a page goes the API's way: to the
// own cell's services, or to the visitor's home.
func TestPagesGoTheAPIsWay(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	for _, c := range w.cells {
		c.services.answers(func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"items":[]}`)
			return true
		})
	}
	status, header, body := look(t, c1.public, "/", 0)
	if status != 200 || header.Get(call.HeaderCell) != "c1" || header.Get(call.HeaderRequestID) == "" ||
		!strings.HasPrefix(header.Get("Content-Security-Policy"), "default-src 'none'") || !strings.Contains(body, "Page from cell c1") {
		t.Errorf("home: %d %v\n%s", status, header, body)
	}
	if got := c1.services.paths(); !slices.Equal(got, []string{"GET /api/v1/categories", "GET /api/v1/products?limit=24"}) {
		t.Errorf("c1's services were asked for %v", got)
	}
	user := w.userOf("c2")
	for _, redirecting := range []bool{false, true} { // a page can't be sent on to the home: it's forwarded
		if redirecting {
			w.redirecting()
		}
		before := len(c2.services.calls())
		status, header, body = look(t, c1.public, "/orders", user)
		if status != 200 || header.Get("Cache-Control") != "no-store" || !strings.Contains(body, "Page from cell c1 · data from cell c2") {
			t.Errorf("orders of c2's user at c1, redirecting %v: %d %v\n%s", redirecting, status, header, body)
		}
		calls := c2.services.calls()[before:]
		if len(calls) != 1 || calls[0].Path != "/api/v1/orders" || calls[0].Header.Get(call.HeaderUser) != user.String() ||
			calls[0].Header.Get("Cookie") != "" || calls[0].Header.Get(call.HeaderRequestID) != header.Get(call.HeaderRequestID) {
			t.Errorf("c2's services saw %+v", calls)
		}
	}
	if got := c1.counted.snapshot().Kinds["GET /orders"]; got.Forwarded != 2 {
		t.Errorf("counted %+v", got)
	}
	// The peers' listener has no pages; neither hides what the API says.
	do(t, c1.peers, "GET", "/", "").want(t, 404, "NOT_FOUND", "c1")
	do(t, c1.public, "GET", "/api/v1/nowhere", "").want(t, 404, "NOT_FOUND", "c1")
	do(t, c1.public, "PUT", "/api/v1/me", "").want(t, 405, "METHOD_NOT_ALLOWED", "c1")
	if status, header, _ = look(t, c1.public, "/nowhere", 0); status != 404 || !strings.HasPrefix(header.Get("Content-Type"), "text/html") {
		t.Errorf("no such page: %d %s", status, header.Get("Content-Type"))
	}
	if status, _, body = look(t, c1.public, "/livez", 0); status != 200 || body != "ok\n" {
		t.Errorf("health: %d %q", status, body)
	}

	setFault(t, c2.border, link.Everyone, link.Fault{CutOut: true, CutIn: true})
	waitFor(t, "c1 knows that c2 is away", func() bool { up, _ := c1.gateway.linkUp("c2"); return !up })
	status, header, body = look(t, c1.public, "/orders", user)
	if status != 503 || header.Get("Retry-After") == "" || !strings.Contains(body, "Cell c2 can&#39;t be reached") {
		t.Errorf("with the home away: %d %v\n%s", status, header, body)
	}
	if status, _, _ = look(t, c1.public, "/", user); status != 200 {
		t.Errorf("the shop with the home away: %d", status)
	}
}

// Pages are counted by what they are, not by their addresses.
func TestPagesAreCountedByName(t *testing.T) {
	t.Parallel()
	home, err := newPage("c1", "")
	if err != nil {
		t.Fatal(err)
	}
	m := obs.New("c1", "gateway")
	h := newHandler(&Gateway{cell: "c1", table: &routing.Holder{}, limits: defaultLimits()}, nil, m, false, home)
	get := func(h http.Handler, path string) *httptest.ResponseRecorder {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest("GET", path, nil))
		return rec
	}
	for path, want := range map[string]int{"/pictures/food/31.svg": 200, "/pictures/toys/32.svg": 200, "/login": 200, "/no/such/page": 404} {
		if rec := get(h, path); rec.Code != want {
			t.Errorf("%s: %d", path, rec.Code)
		}
	}
	text := get(m.Handler(), "/metrics").Body.String()
	for _, want := range []string{"/pictures/:category/:name", "/login"} {
		if !strings.Contains(text, want) {
			t.Errorf("no figure for %s", want)
		}
	}
	if strings.Contains(text, "31.svg") || strings.Contains(text, "/no/such") {
		t.Error("an address is a label")
	}
}
