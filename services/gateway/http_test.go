package gateway

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/api/apitest"
	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/routing"
)

func startPublic(t *testing.T, g *Gateway) string {
	s := httptest.NewServer(newHandler(g, slog.New(slog.DiscardHandler), nil, false, nil))
	t.Cleanup(s.Close)
	return s.URL
}

func startPeers(t *testing.T, g *Gateway) string {
	s := httptest.NewServer(newHandler(g, slog.New(slog.DiscardHandler), nil, true, nil))
	t.Cleanup(s.Close)
	return s.URL
}

func setFault(t *testing.T, b *link.Border, peer string, f link.Fault) {
	t.Helper()
	if err := b.SetFault(peer, f); err != nil {
		t.Fatal(err)
	}
}

// freePort is one that nobody listens on.
func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func TestBadInputCostsNoCall(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	c1 := w.cells["c1"]
	numbers, err := id.NewNumbers([]byte("the order service's key"))
	if err != nil {
		t.Fatal(err)
	}
	number := numbers.Encode(w.userOf("c1"))
	typo := "0" + number[1:]
	if typo == number {
		typo = "1" + number[1:]
	}
	own, far := as("user", w.userOf("c1")), as("user", w.userOf("c2"))
	long := `{"note":"` + strings.Repeat("x", 64<<10) + `"}`
	for _, tc := range []struct {
		name, method, path, body string
		as                       option
		status                   int
		code, field              string
	}{
		{"no such path", "GET", "/api/v1/nowhere", "", own, 404, "NOT_FOUND", ""},
		{"no such method", "PUT", "/api/v1/me", "", own, 405, "METHOD_NOT_ALLOWED", ""},
		{"services' own paths", "POST", "/internal/lookup", `{}`, own, 404, "NOT_FOUND", ""},
		{"services' own paths under the prefix", "POST", "/api/v1/internal/lookup", `{}`, own, 404, "NOT_FOUND", ""},
		{"up and down again", "GET", "/api/v1/products/../../../internal/skus", "", own, 404, "NOT_FOUND", ""},
		{"the same, escaped", "GET", "/api/v1/products/..%2f..%2finternal%2fskus", "", own, 404, "NOT_FOUND", ""},
		{"order number with a typo", "GET", "/api/v1/orders/" + typo, "", own, 404, "NOT_FOUND", ""},
		{"malformed number comes before the login", "GET", "/api/v1/orders/" + typo, "", nil, 404, "NOT_FOUND", ""},
		{"cancel with a typo", "POST", "/api/v1/orders/" + typo + "/cancel", "", own, 404, "NOT_FOUND", ""},
		{"an ID is no order number", "GET", "/api/v1/orders/12345", "", own, 404, "NOT_FOUND", ""},
		{"product of words", "GET", "/api/v1/products/shoes", "", nil, 404, "NOT_FOUND", ""},
		{"product 0", "GET", "/api/v1/products/0", "", nil, 404, "NOT_FOUND", ""},
		{"product over int64", "GET", "/api/v1/products/9223372036854775808", "", nil, 404, "NOT_FOUND", ""},
		{"seller of words", "GET", "/api/v1/products?seller=bob", "", nil, 400, "INVALID_FIELD", "seller"},
		{"SKU of words", "PUT", "/api/v1/cart/items/x", `{"quantity":1}`, own, 404, "NOT_FOUND", ""},
		{"transfer of words", "GET", "/api/v1/transfers/x", "", own, 404, "NOT_FOUND", ""},
		{"operation of words", "GET", "/api/v1/operations/x", "", nil, 404, "NOT_FOUND", ""},
		{"nobody logged in", "GET", "/api/v1/me", "", nil, 401, "UNAUTHENTICATED", ""},
		{"no such token", "GET", "/api/v1/me", "", with("Authorization", "Bearer x"), 401, "UNAUTHENTICATED", ""},
		{"another scheme", "GET", "/api/v1/me", "", with("Authorization", "Basic user-1"), 401, "UNAUTHENTICATED", ""},
		{"an order's reader is logged in", "GET", "/api/v1/orders/" + number, "", nil, 401, "UNAUTHENTICATED", ""},
		{"stock of who doesn't sell", "GET", "/api/v1/seller/stock", "", own, 403, "NOT_A_SELLER", ""},
		{"product of who doesn't sell", "POST", "/api/v1/products", `{}`, own, 403, "NOT_A_SELLER", ""},
		{"body over 64 kB", "POST", "/api/v1/orders", long, own, 413, "BODY_TOO_LARGE", ""},
		{"body over 64 kB for elsewhere", "POST", "/api/v1/orders", long, far, 413, "BODY_TOO_LARGE", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			opts := []option{}
			if tc.as != nil {
				opts = append(opts, tc.as)
			}
			a := do(t, c1.public, tc.method, tc.path, tc.body, opts...)
			a.want(t, tc.status, tc.code, "c1")
			if a.problem.Field != tc.field || a.problem.RequestID == "" {
				t.Errorf("problem %+v, want field %q", a.problem, tc.field)
			}
			if tc.status == 401 && a.header.Get("WWW-Authenticate") == "" {
				t.Error("401 without WWW-Authenticate")
			}
		})
	}
	for _, c := range w.cells {
		if n := c.services.calls(); len(n) != 0 {
			t.Errorf("%s's services were asked: %v", c.name, n)
		}
	}
}

// The gateway lets through exactly what the document promises.
func TestRulesAreTheDocument(t *testing.T) {
	t.Parallel()
	var got []string
	for _, r := range rules() {
		path := prefix + r.path
		for _, name := range []string{"id", "sku", "number"} {
			path = strings.ReplaceAll(path, ":"+name, "{"+name+"}")
		}
		got = append(got, r.method+" "+path)
		if (r.param != "") != strings.Contains(r.path, "/:") || r.param != "" && !strings.Contains(r.path, "/:"+r.param) {
			t.Errorf("%s %s checks %q", r.method, r.path, r.param)
		}
	}
	want := apitest.Operations(t)
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rules (-document +gateway):\n%s", diff)
	}
}

func TestSlotsOfRequests(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	c1 := w.cells["c1"]
	near, far := w.userOf("c1"), w.userOf("c2")
	numbers, err := id.NewNumbers([]byte("the order service's key"))
	if err != nil {
		t.Fatal(err)
	}
	order := id.Make(77, far.Slot(), false)
	cellSlot, _ := w.table.CellSlot("c1")
	for _, tc := range []struct {
		name, method, path, body string
		as                       option
		cell                     string
		slot                     routing.Slot
		user                     string
	}{
		{"a user's own", "GET", "/api/v1/wallet", "", as("user", near), "c1", near.Slot(), near.String()},
		{"a user's own elsewhere", "GET", "/api/v1/wallet", "", as("user", far), "c2", far.Slot(), far.String()},
		{"an order of another slot", "GET", "/api/v1/orders/" + strings.ToLower(numbers.Encode(order)), "", as("user", near), "c2", order.Slot(), near.String()},
		{"a transfer of another slot", "GET", "/api/v1/transfers/" + order.String(), "", as("user", near), "c2", order.Slot(), near.String()},
		{"cancel a transfer of one's own", "POST", "/api/v1/transfers/" + order.String() + "/cancel", "", as("user", near), "c1", near.Slot(), near.String()},
		{"an operation", "GET", "/api/v1/operations/" + order.String(), "", nil, "c2", order.Slot(), ""},
		{"registering", "POST", "/api/v1/users", `{}`, nil, "c1", cellSlot, ""},
		{"products of anyone", "GET", "/api/v1/products?seller=" + far.String(), "", nil, "c1", cellSlot, ""},
		{"products with a token that ran out", "GET", "/api/v1/products/" + order.String(), "", with("Authorization", "Bearer old"), "c1", cellSlot, ""},
		{"a seller's stock elsewhere", "PUT", "/api/v1/seller/stock/" + order.String(), `{"add":1}`, as("seller", far), "c2", far.Slot(), far.String()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			opts := []option{ // nobody outside says who they are
				with(call.HeaderUser, "666"), with(call.HeaderSlot, "7"), with(call.HeaderEpoch, "99"), with(call.HeaderHop, "1"), with(call.HeaderFrom, "c2"), with(call.HeaderSeller, "true"),
			}
			if tc.as != nil {
				opts = append(opts, tc.as)
			}
			do(t, c1.public, tc.method, tc.path, tc.body, opts...).want(t, 200, "", tc.cell)
			calls := w.cells[tc.cell].services.calls()
			h := calls[len(calls)-1].Header
			got := fmt.Sprint(h.Get(call.HeaderSlot), " ", h.Get(call.HeaderUser), " ", h.Get(call.HeaderEpoch), " ", h.Get(call.HeaderHop), h.Get(call.HeaderSeller), h.Get(call.HeaderFrom))
			if want := fmt.Sprint(tc.slot, " ", tc.user, " 1 ", tc.cell); got != want {
				t.Errorf("the service was told %q, want %q", got, want)
			}
		})
	}
}

func TestLogin(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	home := w.userOf("c2")
	c1.services.answers(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/internal/lookup" {
			return false
		}
		if last := c1.services.calls(); last[len(last)-1].Body == `{"phone":"+86-138"}` {
			fmt.Fprintf(rw, `{"user_id":%q}`, home)
			return true
		}
		refuse(rw, call.Problem{Status: 404, Code: "NOT_FOUND"})
		return true
	})
	paths := func(f *fake) (out []string) {
		for _, s := range f.calls() {
			out = append(out, s.Path)
		}
		return out
	}
	do(t, c1.public, "POST", "/api/v1/sessions", `{"phone":"+86-138","password":"p"}`).want(t, 200, "", "c2")
	if got := c2.services.calls(); len(got) != 1 || got[0].Header.Get(call.HeaderSlot) != home.Slot().String() {
		t.Errorf("the home's services saw %v, want the login only, with the user's slot", got)
	}
	for _, body := range []string{`{"phone":"+86-139","password":"p"}`, `{"phone":7}`, `{`, ``} {
		do(t, c1.public, "POST", "/api/v1/sessions", body).want(t, 200, "", "c1") // the own user service has the words
	}
	want := []string{"/internal/lookup", "/internal/lookup", "/api/v1/sessions", "/api/v1/sessions", "/api/v1/sessions", "/api/v1/sessions"}
	if diff := cmp.Diff(want, paths(c1.services)); diff != "" {
		t.Errorf("c1's services (-want +got):\n%s", diff)
	}
	c1.services.answers(func(rw http.ResponseWriter, _ *http.Request) bool {
		refuse(rw, call.Problem{Status: 503, Code: "UNAVAILABLE"})
		return true
	})
	do(t, c1.public, "POST", "/api/v1/sessions", `{"phone":"+86-138"}`).want(t, 503, "UNAVAILABLE", "c1")
}

func TestProductsAreWrittenInTheGlobalZone(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	c1, seller := w.cells["c1"], w.userOf("c2")
	post := func() answer {
		return do(t, c1.public, "POST", "/api/v1/products", `{"title":"x"}`, as("seller", seller), with(call.HeaderIdempotencyKey, "k"))
	}
	post().want(t, 200, "", routing.Global)
	h := w.writer.calls()[0].Header
	for name, want := range map[string]string{
		call.HeaderUser: seller.String(), call.HeaderSeller: "true", call.HeaderSlot: seller.Slot().String(), call.HeaderFrom: "", call.HeaderIdempotencyKey: "k", "Authorization": "Bearer seller-" + seller.String(),
	} {
		if v := h.Get(name); v != want {
			t.Errorf("%s = %q, want %q", name, v, want)
		}
	}
	setFault(t, c1.border, routing.Global, link.Fault{CutOut: true, CutIn: true})
	if a := post(); a.status != 503 || a.problem.Cell != routing.Global {
		t.Errorf("just cut: %d %+v", a.status, a.problem)
	}
	waitFor(t, "the link is known to be down", func() bool { return !c1.border.Status()[routing.Global].Up })
	post().want(t, 503, "CATALOG_WRITER_DOWN", "c1")
	do(t, c1.public, "GET", "/api/v1/products", "").want(t, 200, "", "c1")
}

func TestSearchIsInTheGlobalZone(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	c1, seller := w.cells["c1"], w.userOf("c2")
	do(t, c1.public, "GET", "/api/v1/search?q=pot&sort=price", "").want(t, 200, "", routing.Global)
	do(t, c1.public, "GET", "/api/v1/seller/orders/search?q=pot", "", as("seller", seller)).want(t, 200, "", routing.Global)
	do(t, c1.public, "GET", "/api/v1/seller/orders/search", "", as("user", seller)).want(t, 403, "NOT_A_SELLER", "c1")
	do(t, c1.public, "GET", "/api/v1/seller/orders/search", "").want(t, 401, "UNAUTHENTICATED", "c1")
	var asked []seen
	for _, r := range w.search.calls() {
		if r.Path != "/livez" {
			asked = append(asked, r)
		}
	}
	if len(asked) != 2 || asked[0].Path != "/api/v1/search?q=pot&sort=price" || asked[0].Header.Get(call.HeaderSeller) != "" {
		t.Fatalf("search saw %v", asked)
	}
	for name, want := range map[string]string{call.HeaderUser: seller.String(), call.HeaderSeller: "true", "Authorization": ""} {
		if v := asked[1].Header.Get(name); v != want {
			t.Errorf("%s = %q, want %q", name, v, want)
		}
	}
	w.search.answers(func(rw http.ResponseWriter, r *http.Request) bool {
		<-r.Context().Done() // there, but it doesn't answer
		return true
	})
	do(t, c1.public, "GET", "/api/v1/search", "").want(t, 503, "SEARCH_UNAVAILABLE", "c1")
	waitFor(t, "the breaker is open", func() bool { open, _ := c1.gateway.search.breaker.Open(); return open })
	best := time.Hour // a busy machine adds its own: one that is in time is enough
	for range 5 {
		a := do(t, c1.public, "GET", "/api/v1/search", "")
		a.want(t, 503, "SEARCH_UNAVAILABLE", "c1")
		best = min(best, a.took)
	}
	if best > 500*time.Millisecond {
		t.Errorf("with the breaker open the refusal took %s at best", best)
	}
	do(t, c1.public, "GET", "/api/v1/products", "").want(t, 200, "", "c1")
	w.search.answers(nil)
	waitFor(t, "search answers again", func() bool { return do(t, c1.public, "GET", "/api/v1/search", "").status == 200 })
}

func TestHomePage(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "logins.json")
	p, err := newPage("c1", file)
	if err != nil {
		t.Fatal(err)
	}
	tables := &routing.Holder{}
	g := &Gateway{cell: "c1", table: tables, limits: defaultLimits()}
	h := newHandler(g, nil, nil, false, p)
	get := func(path string) *httptest.ResponseRecorder {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest("GET", path, nil))
		if csp := rec.Header().Get("Content-Security-Policy"); rec.Code != 200 || !strings.Contains(csp, "default-src 'none'") {
			t.Errorf("GET %s = %d with policy %q", path, rec.Code, csp)
		}
		return rec
	}
	if body := get("/demo").Body.String(); !strings.Contains(body, "None yet") {
		t.Errorf("page without a file: %s", body)
	}
	for content, want := range map[string]string{
		`[{"name":"<b>Ann","phone":"+1"}]`:             "&lt;b&gt;Ann",
		`{"logins":[{"name":"Bob","password":"p<1"}]}`: "p&lt;1",
		`{broken`: "None yet",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if body := get("/demo").Body.String(); !strings.Contains(body, want) {
			t.Errorf("page with %s has no %s", content, want)
		}
	}
	if body := get("/api/openapi.yaml").Body.String(); !strings.HasPrefix(body, "openapi: 3.1") {
		t.Errorf("document %.40q", body)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	good := map[string]string{
		"CELL": "c1", "LINK_ADDR": "127.0.0.1:1", "GATEWAY_USER_URL": "http://a:1, http://b:2/", "ORDER_URL": "http://a:1",
		"INVENTORY_URL": "http://a:1", "CATALOG_URL": "http://a:1",
	}
	for _, tc := range []struct{ name, value, want string }{
		{"", "", ""},
		{"CELL", "", "CELL"},
		{"CELL", "127.0.0.1", "CELL"},
		{"LINK_ADDR", "", "LINK_ADDR"},
		{"ORDER_URL", "", "ORDER_URL"},
		{"ORDER_URL", "a:1", "ORDER_URL"},
		{"ORDER_URL", "http://a:1/x", "ORDER_URL"},
		{"FORWARD_TIMEOUT", "2", "FORWARD_TIMEOUT"},
		{"PEER_ADDR", "127.0.0.1:8081", "PEER_ADDR"},
	} {
		r := env.NewReader("GATEWAY", func(name string) string {
			if name == tc.name {
				return tc.value
			}
			return good[name]
		})
		c := read(r)
		err := r.Err()
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s=%q: %v, want a word about %q", tc.name, tc.value, err, tc.want)
		}
		if tc.name == "" && !cmp.Equal(c.services[svcUser], []string{"http://a:1", "http://b:2"}) {
			t.Errorf("instances %q", c.services[svcUser])
		}
	}
}
