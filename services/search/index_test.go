package search

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/search/searchapi"
)

func TestProductsAreFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.product(1, "Blue teapot", 3000) // before search was ever there
	w.search()
	w.becomes("?q=teapot", "Blue teapot")
	w.product(2, "Red kettle for a teapot", 2000)
	w.product(3, "青花瓷茶壶", 9000)
	w.becomes("?q=teapot&sort=price", "Red kettle for a teapot", "Blue teapot")
	w.becomes("?q=茶壶", "青花瓷茶壶")
	w.becomes("?q=TEAPOT+blue", "Blue teapot")
	w.becomes("?q=finest+clay&min_price=2500&max_price=3000", "Blue teapot")
	w.becomes("?sort=-price&category=home", "青花瓷茶壶", "Blue teapot", "Red kettle for a teapot")
	w.becomes("?category=books")
	for query, want := range map[string][]searchapi.Facet{ // the chosen category doesn't hide the others
		"?q=teapot": {{Category: "home", Count: 2}}, "?q=teapot&category=books": {{Category: "home", Count: 2}}, "?q=nowhere": nil,
	} {
		var found searchapi.Products
		w.get("/api/v1/search"+query, nil, 200, &found)
		if !slices.Equal(found.Categories, want) {
			t.Errorf("%s: by category %v, want %v", query, found.Categories, want)
		}
	}
	w.becomes("?q=nowhere")
	w.becomes("?q=teapot&currency=USD")
	w.becomes("?q=1002", "Red kettle for a teapot") // by its SKU

	w.exec("UPDATE catalogw.products SET title = 'Green teapot' WHERE id = 1") // by hand, no version
	w.exec("UPDATE catalogw.skus SET price = 1 WHERE product_id = 1")
	w.becomes("?q=teapot&sort=price", "Green teapot", "Red kettle for a teapot")
	w.exec("UPDATE catalogw.products SET active = false, version = 10 WHERE id = 2")
	w.becomes("?q=teapot", "Green teapot")
	w.exec("DELETE FROM catalogw.skus WHERE product_id = 3")
	w.becomes("?sort=newest", "Green teapot")
	w.exec("DELETE FROM catalogw.skus; DELETE FROM catalogw.products")
	w.becomes("")
}

func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for n := range int64(7) {
		w.product(n+1, "pot", 100+n)
	}
	w.search()
	w.becomes("?q=pot", "pot", "pot", "pot", "pot", "pot", "pot", "pot")
	var prices []int64
	cursor := ""
	for range 5 {
		var out searchapi.Products
		w.get("/api/v1/search?q=pot&sort=price&limit=3&cursor="+url.QueryEscape(cursor), nil, 200, &out)
		for _, p := range out.Items {
			prices = append(prices, p.Price)
		}
		if out.TotalApprox != 7 {
			t.Errorf("total_approx = %d", out.TotalApprox)
		}
		if cursor = out.NextCursor; cursor == "" {
			break
		}
		w.get("/api/v1/search?q=kettle&sort=price&limit=3&cursor="+url.QueryEscape(cursor), nil, 400, nil) // another list's
	}
	if diff := cmp.Diff([]int64{100, 101, 102, 103, 104, 105, 106}, prices); diff != "" {
		t.Errorf("prices over all pages (-want +got):\n%s", diff)
	}
	for _, query := range []string{"?sort=best", "?limit=0", "?min_price=x", "?category=No", "?cursor=x", "?currency=xx", "?q=" + strings.Repeat("x", 201)} {
		res, err := http.Get(w.url + "/api/v1/search" + query)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 400 {
			t.Errorf("%s = %d, want 400", query, res.StatusCode)
		}
	}
}

func TestSellersFindTheirOwnOrdersOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.search()
	const order, buyer = 16384*5 + 7, 16384*3 + 7
	w.exec(`INSERT INTO orders.orders (slot, id, user_id, state, address) VALUES (7, $1, $2, 'PENDING', '{"city":"Nowhere"}')`, order, buyer)
	w.exec(`INSERT INTO orders.lines (slot, order_id, sku, product_id, seller_id, title, price, quantity) VALUES
		(7, $1, 11, 1, 100, 'Blue teapot', 300, 2), (7, $1, 12, 2, 200, 'Secret hat', 900, 1)`, order)
	number := w.numbers.Encode(id.ID(order))
	as := func(seller string) http.Header {
		return http.Header{http.CanonicalHeaderKey(call.HeaderUser): {seller}, http.CanonicalHeaderKey(call.HeaderSeller): {"true"}}
	}
	find := func(seller, query string) []searchapi.Order {
		var out searchapi.Orders
		w.get("/api/v1/seller/orders/search"+query, as(seller), 200, &out)
		return out.Items
	}
	eventually(t, "the order is found", func() bool { return len(find("100", "")) == 1 })
	got := find("100", "?q=teapot")
	want := []searchapi.Order{{
		Number: number, State: "PENDING", Total: 600, Currency: "CNY", Lines: []searchapi.Line{{SKU: 11, Title: "Blue teapot", Price: 300, Quantity: 2}},
	}}
	for i := range got {
		if time.Since(got[i].CreatedAt) > time.Hour {
			t.Errorf("created at %s", got[i].CreatedAt)
		}
		got[i].CreatedAt = time.Time{}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	for query, n := range map[string]int{"?q=hat": 0, "?q=" + number: 1, "?state=PENDING": 1, "?state=PAID": 0} {
		if got := find("100", query); len(got) != n {
			t.Errorf("%s finds %d, want %d", query, len(got), n)
		}
	}
	if got := find("300", ""); len(got) != 0 {
		t.Errorf("another seller finds %v", got)
	}
	w.exec("UPDATE orders.orders SET state = 'PAID', rev = 2")
	eventually(t, "the order is paid", func() bool { return len(find("200", "?q=hat&state=PAID")) == 1 })
	if got := w.titles("?q=teapot"); len(got) != 0 {
		t.Errorf("shoppers find orders: %v", got)
	}
	w.get("/api/v1/seller/orders/search", http.Header{http.CanonicalHeaderKey(call.HeaderUser): {"100"}}, 403, nil)
	w.get("/api/v1/seller/orders/search", nil, 401, nil)
	w.halt("search")
	err := filepath.Walk(w.dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), "Nowhere") {
			t.Errorf("%s has the buyer's address", filepath.Base(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	end := time.After(limit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-end:
			t.Fatalf("not within %s: %s", limit, what)
		case <-tick.C:
		}
	}
}

// The index outlives the process, and goes on where it was, without a copy.
func TestIndexPersists(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.search()
	w.product(1, "Blue teapot", 3000)
	w.becomes("?q=teapot", "Blue teapot")
	w.halt("search")
	w.product(2, "Red teapot", 2000)
	w.exec("UPDATE catalogw.products SET active = false, version = 7 WHERE id = 1")
	w.search()
	if got, err := w.index.position("global"); err != nil || got.State != cdc.Live || got.LSN == 0 {
		t.Errorf("the position on disk is %+v, %v", got, err)
	}
	w.becomes("?q=teapot", "Red teapot")
	if gaps := w.sources.status()["global"].Gaps; gaps != 0 {
		t.Errorf("%d gaps", gaps)
	}
	var attempts int
	if err := w.db.Super.QueryRow(t.Context(), "SELECT attempt FROM cdc.copies").Scan(&attempts); err != nil || attempts != 1 {
		t.Errorf("%d copies (%v), want the first alone", attempts, err)
	}
}

// Deleted, broken, or of another format, the index is built again from a copy.
func TestIndexIsBuiltAgain(t *testing.T) {
	t.Parallel()
	for name, breakIt := range map[string]func(t *testing.T, dir string){
		"deleted": func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) },
		"broken": func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "index", "index_meta.json"), []byte("{"), 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.search()
			w.product(1, "Blue teapot", 3000)
			w.becomes("?q=teapot", "Blue teapot")
			w.halt("search")
			breakIt(t, w.dir)
			w.search()
			w.becomes("?q=teapot", "Blue teapot")
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What a copy doesn't have any more is purged: a loss is no reason to show what is gone.
func TestLostSlotMakesTheIndexEqualAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.search()
	w.product(1, "Blue teapot", 3000)
	w.product(2, "Red teapot", 2000)
	w.becomes("?q=teapot&sort=price", "Red teapot", "Blue teapot")
	w.halt("relay")
	w.db.SlotsFree(t)
	w.exec("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
	w.exec("DELETE FROM catalogw.skus WHERE product_id = 1; DELETE FROM catalogw.products WHERE id = 1")
	w.exec("UPDATE catalogw.products SET title = 'Teapot, red' WHERE id = 2")
	w.product(3, "White teapot", 1000)
	tables := searchapi.GlobalTables()
	for name, columns := range searchapi.CellTables() {
		tables[name] = columns
	}
	w.relay(tables)
	w.becomes("?q=teapot&sort=price", "White teapot", "Teapot, red")
	found, err := w.index.find(t.Context(), term("zone", "global"), 100)
	if slices.Sort(found); err != nil || len(found) != 2 {
		t.Errorf("the index keeps %v (%v), want two products", found, err)
	}
}

// The answer says how old it is; what isn't known is null and unknown, not 0.
func TestLag(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.halt("relay")
	w.search()
	eventually(t, "the zone is followed", func() bool { return len(w.sources.status()) == 1 })
	var out searchapi.Products
	h := w.get("/api/v1/search", nil, 200, &out)
	if l := out.Lag["global"]; h.Get(searchapi.HeaderLag) != "unknown" || l.MS != nil || l.AgeMS != nil || l.State != "unknown" {
		t.Errorf("before anything is known: %s, %+v", h.Get(searchapi.HeaderLag), l)
	}
	now := time.Now()
	for name, tc := range map[string]struct {
		st     cdc.Status
		behind time.Duration
		known  bool
	}{
		"fresh":   {cdc.Status{State: cdc.Live, At: now, Seen: now.Add(-time.Second), Delay: 30 * time.Millisecond}, 30 * time.Millisecond, true},
		"silent":  {cdc.Status{State: cdc.Live, At: now, Seen: now.Add(-time.Minute), Delay: 30 * time.Millisecond}, 50 * time.Second, true},
		"copying": {cdc.Status{State: cdc.Copying, At: now, Seen: now}, 0, false},
		"never":   {cdc.Status{State: cdc.Live}, 0, false},
	} {
		if behind, _, known := lagOf(tc.st, now); behind != tc.behind || known != tc.known {
			t.Errorf("%s: %s, %v; want %s, %v", name, behind, known, tc.behind, tc.known)
		}
	}
}

// Two processes never write one index.
func TestIndexIsLocked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.search()
	if _, err := openIndex(w.dir, w.numbers.Encode, w.log); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("a second opening: %v", err)
	}
}
