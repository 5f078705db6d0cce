package catalog

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/catalog/catalogapi"
)

func TestWriting(t *testing.T) {
	t.Parallel()
	w, _ := newWriter(t)
	e := writerEcho(t, w)
	const path = "/api/v1/products"
	body := func(fields string) string {
		return `{"title":"A lamp","description":"Warm light.\nTwo bulbs.","category":"home","skus":[{"price":2599}]` + fields + `}`
	}
	skus := func(list string) string { return `{"title":"A lamp","category":"home","skus":` + list + `}` }
	good := body("")
	for _, r := range []request{
		{"nobody", "POST", path, good, "k", 0, 401, "UNAUTHENTICATED"},
		{"no key", "POST", path, good, "", alice, 400, "IDEMPOTENCY_KEY_MISSING"},
		{"made", "POST", path, good, "k", alice, 201, `"price":2599,"currency":"CNY"}],"version":9`},
		{"again", "POST", path, good, "k", alice, 201, `"version":9`},
		{"again, written otherwise", "POST", path, strings.Replace(good, `"A lamp"`, ` " A lamp "`, 1), "k", alice, 201, `"version":9`},
		{"key of another body", "POST", path, strings.Replace(good, "2599", "2600", 1), "k", alice, 422, "IDEMPOTENCY_KEY_REUSED"},
		{"another seller's same key", "POST", path, good, "k", bob, 201, `"version":10`},
		{"no title", "POST", path, `{"title":"  ","category":"home","skus":[{"price":1}]}`, "x", alice, 400, `"field":"title"`},
		{"long title", "POST", path, `{"title":"` + strings.Repeat("灯", 201) + `","category":"home","skus":[{"price":1}]}`, "x", alice, 400, `"field":"title"`},
		{"control character", "POST", path, `{"title":"a\u001bb","category":"home","skus":[{"price":1}]}`, "x", alice, 400, `"field":"title"`},
		{"NUL", "POST", path, `{"title":"a\u0000b","category":"home","skus":[{"price":1}]}`, "x", alice, 400, "NUL"},
		{"no category", "POST", path, `{"title":"a","skus":[{"price":1}]}`, "x", alice, 400, `"field":"category"`},
		{"unknown category", "POST", path, `{"title":"a","category":"cars","skus":[{"price":1}]}`, "x", alice, 400, `"field":"category"`},
		{"no SKU", "POST", path, skus(`[]`), "x", alice, 400, `"field":"skus"`},
		{"too many SKUs", "POST", path, skus("[" + strings.Repeat(`{"price":1},`, 20) + `{"price":1}]`), "x", alice, 400, `"field":"skus"`},
		{"price 0", "POST", path, skus(`[{"price":1},{"price":0}]`), "x", alice, 400, `"field":"skus[1].price"`},
		{"negative price", "POST", path, skus(`[{"price":-5}]`), "x", alice, 400, `"field":"skus[0].price"`},
		{"price over the limit", "POST", path, skus(`[{"price":1000000000001}]`), "x", alice, 400, `"field":"skus[0].price"`},
		{"price overflows", "POST", path, skus(`[{"price":9223372036854775808}]`), "x", alice, 400, `"field":"skus[0].price"`},
		{"price with a point", "POST", path, skus(`[{"price":1.5}]`), "x", alice, 400, `"field":"skus[0].price"`},
		{"price as text", "POST", path, skus(`[{"price":"5"}]`), "x", alice, 400, `"field":"skus[0].price"`},
		{"unknown currency", "POST", path, skus(`[{"price":1,"currency":"XXX"}]`), "x", alice, 400, `"field":"skus[0].currency"`},
		{"unknown field", "POST", path, body(`,"seller_id":"1"`), "x", alice, 400, `"field":"seller_id"`},
		{"too long", "POST", path, body(`,"x":"` + strings.Repeat("x", 64<<10) + `"`), "x", alice, 413, "BODY_TOO_LARGE"},
		{"not JSON", "POST", path, `lamp`, "x", alice, 400, "INVALID_JSON"},
	} {
		rec := ask(t, e, r, web.HeaderSeller, "true")
		r.check(t, rec)
		if got := rec.Header().Get(web.HeaderReplayed) == "true"; got != strings.HasPrefix(r.name, "again") {
			t.Errorf("%s: replayed %v", r.name, got)
		}
	}
	r := request{"a shopper", "POST", path, good, "x", alice, 403, "NOT_A_SELLER"}
	r.check(t, ask(t, e, r))
	r.check(t, ask(t, e, r, web.HeaderSeller, "false"))

	w.ids.(*counting).empty.Store(true)
	r = request{"no IDs", "POST", path, good, "y", alice, 503, "IDS_EXHAUSTED"}
	r.check(t, ask(t, e, r, web.HeaderSeller, "true"))
	w.ids.(*counting).empty.Store(false)
	r = request{"IDs are back", "POST", path, good, "y", alice, 201, `"version":11`}
	rec := ask(t, e, r, web.HeaderSeller, "true")
	r.check(t, rec)
	var p catalogapi.Product
	if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	if p.ID.Slot() != sellerSlot || p.SKUs[0].ID.Slot() != sellerSlot || rec.Header().Get("Location") != path+"/"+p.ID.String() {
		t.Errorf("product %d, SKU %d, at %s: want the seller's slot", p.ID, p.SKUs[0].ID, rec.Header().Get("Location"))
	}
}

func TestChanging(t *testing.T) {
	t.Parallel()
	w, _ := newWriter(t)
	e := writerEcho(t, w)
	p := w.mustCreate(t, alice, "k", newProduct("A pen", 100, 200))
	other := w.mustCreate(t, alice, "k2", newProduct("Ink", 100))
	path := "/api/v1/products/" + p.ID.String()
	sku := func(v id.ID, price int) string { return fmt.Sprintf(`{"skus":[{"id":"%d","price":%d}]}`, v, price) }
	for _, r := range []request{
		{"nobody", "PATCH", path, `{"active":false}`, "", 0, 401, "UNAUTHENTICATED"},
		{"another seller's", "PATCH", path, `{"active":false}`, "", bob, 404, "NOT_FOUND"},
		{"unknown", "PATCH", "/api/v1/products/77", `{"active":false}`, "", alice, 404, "NOT_FOUND"},
		{"malformed", "PATCH", "/api/v1/products/x", `{"active":false}`, "", alice, 404, "NOT_FOUND"},
		{"nothing", "PATCH", path, `{}`, "", alice, 400, "EMPTY_CHANGE"},
		{"empty title", "PATCH", path, `{"title":""}`, "", alice, 400, `"field":"title"`},
		{"category stays", "PATCH", path, `{"category":"toys"}`, "", alice, 400, `"field":"category"`},
		{"price 0", "PATCH", path, `{"price":0}`, "", alice, 400, `"field":"price"`},
		{"SKU's price too high", "PATCH", path, sku(p.SKUs[0].ID, 1_000_000_000_001), "", alice, 400, `"field":"skus[0].price"`},
		{"SKU of another product", "PATCH", path, sku(other.SKUs[0].ID, 5), "", alice, 400, `"field":"skus[0].id"`},
		{"title", "PATCH", path, `{"title":"A blue pen"}`, "", alice, 200, `"title":"A blue pen"`},
		{"one price", "PATCH", path, sku(p.SKUs[1].ID, 250), "", alice, 200, `"price":250`},
		{"the same again", "PATCH", path, sku(p.SKUs[1].ID, 250), "", alice, 200, `"version":12`},
		{"all prices, one otherwise", "PATCH", path, `{"price":300,` + sku(p.SKUs[1].ID, 310)[1:], "", alice, 200, `"price":310`},
		{"off", "PATCH", path, `{"active":false}`, "", alice, 200, `"active":false`},
	} {
		r.check(t, ask(t, e, r, web.HeaderSeller, "true"))
	}
	r := request{"a shopper", "PATCH", path, `{"active":true}`, "", alice, 403, "NOT_A_SELLER"}
	r.check(t, ask(t, e, r))

	f, err := w.store.feed(t.Context(), "", 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	got := f.Products[len(f.Products)-1]
	want := p
	want.Title, want.Active, want.Version, want.UpdatedAt = "A blue pen", false, 14, got.UpdatedAt
	want.SKUs = []catalogapi.Variant{{ID: p.SKUs[0].ID, Title: "size 0", Price: 300, Currency: "CNY"}, {ID: p.SKUs[1].ID, Title: "size 1", Price: 310, Currency: "CNY"}}
	if diff := cmp.Diff(want, got); diff != "" || f.Newest != 14 {
		t.Errorf("in the feed, newest %d: %s", f.Newest, diff)
	}
}

func TestReading(t *testing.T) {
	t.Parallel()
	w, _ := newWriter(t)
	f, _ := newCopy(t, direct{w})
	e := copyEcho(f, noCache())
	pen := w.mustCreate(t, alice, "k", newProduct("A pen", 100, 200))
	hidden := w.mustCreate(t, alice, "k2", newProduct("Old ink", 100))
	off := false
	if _, err := w.change(t.Context(), alice, hidden.ID, catalogapi.Change{Active: &off}); err != nil {
		t.Fatal(err)
	}
	early := request{"before the first pull", "GET", "/api/v1/products", "", "", 0, 503, "CATALOG_NOT_READY"}
	early.check(t, ask(t, e, early))
	f.mustStep(t)
	const list = "/api/v1/products"
	for _, r := range []request{
		{"all", "GET", list, "", "", 0, 200, `{"items":[{"id":"` + pen.ID.String()},
		{"of a category", "GET", list + "?category=books", "", "", 0, 200, "A pen"},
		{"of an empty category", "GET", list + "?category=toys", "", "", 0, 200, `{"items":[]}`},
		{"of no category", "GET", list + "?category=B%27", "", "", 0, 400, `"field":"category"`},
		{"of a seller", "GET", list + "?seller=" + alice.String(), "", "", 0, 200, "A pen"},
		{"of another seller", "GET", list + "?seller=" + bob.String(), "", "", 0, 200, `{"items":[]}`},
		{"of a malformed seller", "GET", list + "?seller=x", "", "", 0, 400, `"field":"seller"`},
		{"limit 0", "GET", list + "?limit=0", "", "", 0, 400, `"field":"limit"`},
		{"tampered cursor", "GET", list + "?cursor=AAAA", "", "", 0, 400, "INVALID_CURSOR"},
		{"one", "GET", list + "/" + pen.ID.String(), "", "", 0, 200, `"title":"A pen"`},
		{"one that is off", "GET", list + "/" + hidden.ID.String(), "", "", 0, 200, `"active":false`},
		{"an unknown one", "GET", list + "/77", "", "", 0, 404, "NOT_FOUND"},
		{"a malformed one", "GET", list + "/0x", "", "", 0, 404, "NOT_FOUND"},
		{"categories", "GET", "/api/v1/categories", "", "", 0, 200, `{"id":"books","name":"Books and stationery","position":7}`},
		{"not by this way", "POST", list, "{}", "k", alice, 405, "METHOD_NOT_ALLOWED"},
		{"SKUs without a route", "GET", "/internal/skus?ids=1", "", "", 0, 500, "CELL_ROUTING_VIOLATION"},
		{"malformed SKUs", "GET", "/internal/skus?ids=1,", "", "", alice, 400, `"field":"ids"`},
		{"too many SKUs", "GET", "/internal/skus?ids=1" + strings.Repeat(",1", 200), "", "", alice, 400, `"field":"ids"`},
	} {
		rec := ask(t, e, r)
		r.check(t, rec)
		if r.status == 200 && rec.Header().Get(catalogapi.HeaderVersion) != "11" {
			t.Errorf("%s: version %q, want 11", r.name, rec.Header().Get(catalogapi.HeaderVersion))
		}
	}
}

func TestSKUs(t *testing.T) {
	t.Parallel()
	w, _ := newWriter(t)
	f, _ := newCopy(t, direct{w})
	pen := w.mustCreate(t, alice, "k", newProduct("A pen", 100, 200))
	single := newProduct("Ink", 70)
	single.SKUs[0].Title = ""
	ink := w.mustCreate(t, bob, "k", single)
	f.mustStep(t)
	server := httptest.NewServer(copyEcho(f, noCache()))
	defer server.Close()
	client := catalogapi.NewClient("c1", server.URL)
	defer client.Close()
	ctx := call.WithRoute(t.Context(), call.Route{Cell: "c1", Slot: 5, Epoch: 1})
	got, err := client.SKUs(ctx, []id.ID{pen.SKUs[1].ID, ink.SKUs[0].ID, 12345})
	if err != nil {
		t.Fatal(err)
	}
	byID := map[id.ID]catalogapi.SKU{}
	for _, v := range got {
		byID[v.SKU] = v
	}
	want := map[id.ID]catalogapi.SKU{
		pen.SKUs[1].ID: {SKU: pen.SKUs[1].ID, Product: pen.ID, Seller: alice, SellerSlot: sellerSlot, Title: "A pen, size 1", Price: 200, Currency: "CNY", Active: true},
		ink.SKUs[0].ID: {SKU: ink.SKUs[0].ID, Product: ink.ID, Seller: bob, SellerSlot: sellerSlot, Title: "Ink", Price: 70, Currency: "CNY", Active: true},
	}
	if diff := cmp.Diff(want, byID); diff != "" {
		t.Error(diff)
	}
	if none, err := client.SKUs(ctx, nil); err != nil || none != nil {
		t.Errorf("SKUs of nothing = %v, %v", none, err)
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	w, _ := newWriter(t)
	f, db := newCopy(t, direct{w})
	e := copyEcho(f, noCache())
	const n = 11
	for i := range n {
		w.mustCreate(t, alice, fmt.Sprint(i), newProduct(fmt.Sprint("book ", i), 100))
	}
	f.mustStep(t)
	// The same moment for many: only the ID keeps them apart.
	if _, err := db.Super.Exec(t.Context(), `UPDATE catalog.products SET created_at = '2026-01-02' WHERE version % 2 = 0`); err != nil {
		t.Fatal(err)
	}
	seen := map[id.ID]bool{}
	next := ""
	for page := 0; page == 0 || next != ""; page++ {
		got := decode[catalogapi.ProductList](t, ask(t, e, request{method: "GET", path: "/api/v1/products?category=books&limit=3&cursor=" + next}))
		if len(got.Items) > 3 || page > 4 {
			t.Fatalf("page %d has %d", page, len(got.Items))
		}
		for _, p := range got.Items {
			if seen[p.ID] {
				t.Errorf("product %d is on two pages", p.ID)
			}
			seen[p.ID] = true
		}
		if next = got.NextCursor; next != "" {
			r := request{"the cursor with another filter", "GET", "/api/v1/products?limit=3&cursor=" + next, "", "", 0, 400, "INVALID_CURSOR"}
			r.check(t, ask(t, e, r))
		}
	}
	if len(seen) != n {
		t.Errorf("%d products on all pages, want %d", len(seen), n)
	}
}

// The whole way over HTTP: a copy that waits hears of a change at once.
func TestFollowOverHTTP(t *testing.T) {
	t.Parallel()
	w, _ := newWriter(t)
	server := httptest.NewServer(writerEcho(t, w))
	t.Cleanup(server.Close)
	feed := catalogapi.NewFeedClient("c1", routing.Global, server.URL, http.DefaultTransport)
	f, _ := newCopy(t, feed)
	heard := make(chan struct{}, 100)
	f.heard = func() { heard <- struct{}{} }
	stop := start(t, f)
	<-heard
	var p catalogapi.Product
	best := time.Hour // a busy machine adds its own: one that is in time is enough
	for i := 0; i < 5 && best > look; i++ {
		begun := time.Now()
		p = w.mustCreate(t, alice, fmt.Sprint("k", i), newProduct("A pen", 100))
		for at := int64(0); at < p.Version; at = f.at.Load().version {
			<-heard
		}
		best = min(best, time.Since(begun))
	}
	if best > look {
		t.Errorf("a change took %v to arrive at best: the poll was not woken", best)
	}
	if got, err := f.store.product(t.Context(), p.ID); err != nil || !cmp.Equal(got, p) {
		t.Errorf("in the copy: %v %s", err, cmp.Diff(p, got))
	}
	stop()
	for _, q := range []string{"after=-1", "after=x", "limit=0", "limit=501", "wait=x", "wait=-1s"} {
		r := request{q, "GET", "/feed?" + q, "", "", 0, 400, `"field"`}
		r.check(t, ask(t, writerEcho(t, w), r))
	}
}
