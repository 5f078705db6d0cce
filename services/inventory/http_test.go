package inventory

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/api/apitest"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/inventory/inventoryapi"
)

// ask sends a request as the gateway does, by the given user.
func ask(t testing.TB, e *echo.Echo, method, path, body string, user id.ID, key string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set(web.HeaderSlot, user.Slot().String())
	r.Header.Set(web.HeaderEpoch, "1")
	if user != 0 {
		r.Header.Set(web.HeaderUser, user.String())
	}
	if key != "" {
		r.Header.Set(web.HeaderIdempotencyKey, key)
	}
	return apitest.Serve(t, e, r)
}

func (f *fixture) echo() *echo.Echo {
	e := web.New(web.Options{Service: "inventory", Cell: "c1"})
	(&server{f.Service, []byte("a key for cursors")}).mount(e)
	return e
}

// fakeSellers is the cell's copy of the catalog.
type fakeSellers struct {
	m   map[id.ID]id.ID
	err error
}

func (s fakeSellers) seller(_ context.Context, sku id.ID) (id.ID, bool, error) {
	v, ok := s.m[sku]
	return v, ok, s.err
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	mine, neighbour := sku(1).String(), id.Make(2, sellerSlot, false)
	away := id.Make(1001, sellerSlot+1, false).String()
	f.sellers = fakeSellers{m: map[id.ID]id.ID{sku(1): seller, sku(2): seller, sku(8): neighbour}}
	f.newWait = time.Millisecond
	e := f.echo()
	for _, tc := range []struct {
		name, method, path, body, key string
		user                          id.ID
		status                        int
		want                          string // in the body
	}{
		{"nobody", "GET", "/api/v1/seller/stock", "", "", 0, 401, "UNAUTHENTICATED"},
		{"empty", "GET", "/api/v1/seller/stock", "", "", seller, 200, `"items":[]`},
		{"first units", "PUT", "/api/v1/seller/stock/" + mine, `{"add":5}`, "k1", seller, 200, `"stocked":5,"free":5,"held":0,"sold":0`},
		{"again", "PUT", "/api/v1/seller/stock/" + mine, `{"add":5}`, "k1", seller, 200, `"stocked":5,"free":5`},
		{"same key, other units", "PUT", "/api/v1/seller/stock/" + mine, `{"add":6}`, "k1", seller, 422, "IDEMPOTENCY_KEY_REUSED"},
		{"same key, other SKU", "PUT", "/api/v1/seller/stock/" + sku(2).String(), `{"add":5}`, "k1", seller, 422, "IDEMPOTENCY_KEY_REUSED"},
		{"more", "PUT", "/api/v1/seller/stock/" + mine, `{"add":2}`, "k2", seller, 200, `"stocked":7,"free":7`},
		{"no key", "PUT", "/api/v1/seller/stock/" + mine, `{"add":5}`, "", seller, 400, "IDEMPOTENCY_KEY_MISSING"},
		{"zero", "PUT", "/api/v1/seller/stock/" + mine, `{"add":0}`, "k3", seller, 400, `"field":"add"`},
		{"negative", "PUT", "/api/v1/seller/stock/" + mine, `{"add":-1}`, "k3", seller, 400, `"field":"add"`},
		{"too many", "PUT", "/api/v1/seller/stock/" + mine, `{"add":1000001}`, "k3", seller, 400, `"field":"add"`},
		{"overflow", "PUT", "/api/v1/seller/stock/" + mine, `{"add":9223372036854775808}`, "k3", seller, 400, `"field":"add"`},
		{"unknown field", "PUT", "/api/v1/seller/stock/" + mine, `{"set":1}`, "k3", seller, 400, `"field":"set"`},
		{"malformed SKU", "PUT", "/api/v1/seller/stock/x", `{"add":1}`, "k3", seller, 404, "NOT_FOUND"},
		{"SKU of another slot", "PUT", "/api/v1/seller/stock/" + away, `{"add":1}`, "k3", seller, 404, "UNKNOWN_SKU"},
		{"S-O13 another seller's SKU with stock", "PUT", "/api/v1/seller/stock/" + mine, `{"add":1}`, "k3", neighbour, 404, "UNKNOWN_SKU"},
		{"S-O13 another seller's new SKU", "PUT", "/api/v1/seller/stock/" + sku(8).String(), `{"add":1}`, "k3", seller, 404, "UNKNOWN_SKU"},
		{"SKU that the catalog doesn't have", "PUT", "/api/v1/seller/stock/" + sku(9).String(), `{"add":1}`, "k3", seller, 404, "UNKNOWN_SKU"},
		{"another seller's list", "GET", "/api/v1/seller/stock", "", "", neighbour, 200, `"items":[]`},
		{"bad limit", "GET", "/api/v1/seller/stock?limit=0", "", "", seller, 400, `"field":"limit"`},
		{"tampered cursor", "GET", "/api/v1/seller/stock?cursor=AAAA", "", "", seller, 400, "INVALID_CURSOR"},
	} {
		rec := ask(t, e, tc.method, tc.path, tc.body, tc.user, tc.key)
		if rec.Code != tc.status || !strings.Contains(rec.Body.String(), tc.want) {
			t.Errorf("%s: %d %s, want %d with %s", tc.name, rec.Code, rec.Body, tc.status, tc.want)
		}
		if replayed := rec.Header().Get(web.HeaderReplayed); (replayed == "true") != (tc.name == "again") {
			t.Errorf("%s: replayed %q", tc.name, replayed)
		}
	}
	if c := f.counters(1); c != [3]int64{7, 0, 0} {
		t.Errorf("counters %v, want 7 free", c)
	}
}

// Everybody may see whether there is something left, but only of little how much.
func TestShelf(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.stock(1, 2)
	f.stock(2, 6)
	f.stock(3, 5)
	f.want("stock.reserve", reserve(1, 2), inventoryapi.KindReserved)
	e := f.echo()
	product := id.Make(77, sellerSlot, false)
	for _, tc := range []struct {
		skus   string
		status int
		want   string
	}{
		{sku(1).String() + "," + sku(2).String() + "," + sku(3).String() + "," + sku(4).String(), 200,
			`"items":[{"sku":"` + sku(1).String() + `","level":"out"},{"sku":"` + sku(2).String() + `","level":"plenty"},{"sku":"` + sku(3).String() + `","level":"few","left":5}]`},
		{sku(4).String(), 404, "NOT_FOUND"},
		{"x", 400, `"field":"skus"`},
		{strings.Repeat(sku(1).String()+",", 100) + sku(1).String(), 400, `"field":"skus"`},
	} {
		r := httptest.NewRequest("GET", "/api/v1/products/"+product.String()+"/stock?skus="+tc.skus, nil)
		r.Header.Set(web.HeaderSlot, sellerSlot.String())
		r.Header.Set(web.HeaderEpoch, "1")
		rec := httptest.NewRecorder()
		e.ServeHTTP(rec, r)
		if rec.Code != tc.status || !strings.Contains(rec.Body.String(), tc.want) {
			t.Errorf("%.60s: %d %s, want %d with %s", tc.skus, rec.Code, rec.Body, tc.status, tc.want)
		}
	}
}

func TestCatalogIsOnlyNeededForNewSKUs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.stock(1, 1)
	f.sellers = fakeSellers{err: errs.ErrUnavailable}
	e := f.echo()
	if rec := ask(t, e, "PUT", "/api/v1/seller/stock/"+sku(1).String(), `{"add":1}`, seller, "a"); rec.Code != http.StatusOK {
		t.Errorf("known SKU: %d %s, want 200", rec.Code, rec.Body)
	}
	if rec := ask(t, e, "PUT", "/api/v1/seller/stock/"+sku(2).String(), `{"add":1}`, seller, "b"); rec.Code != http.StatusServiceUnavailable {
		t.Errorf("new SKU: %d %s, want 503", rec.Code, rec.Body)
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const n = 7
	for i := range int64(n) {
		f.stock(i, i+1)
	}
	e := f.echo()
	seen := map[id.ID]bool{}
	cursor := ""
	for page := 0; page == 0 || cursor != ""; page++ {
		rec := ask(t, e, "GET", "/api/v1/seller/stock?limit=3&cursor="+cursor, "", seller, "")
		var list inventoryapi.StockList
		if err := json.Unmarshal(rec.Body.Bytes(), &list); err != nil || rec.Code != 200 || len(list.Items) > 3 || page > 3 {
			t.Fatalf("page %d: %d %s %v", page, rec.Code, rec.Body, err)
		}
		for _, v := range list.Items {
			if seen[v.SKU] {
				t.Errorf("SKU %d is on two pages", v.SKU)
			}
			seen[v.SKU] = true
		}
		if cursor = list.NextCursor; cursor != "" {
			other := ask(t, e, "GET", "/api/v1/seller/stock?cursor="+cursor, "", id.Make(2, sellerSlot, false), "")
			if other.Code != 400 {
				t.Errorf("another seller's cursor: %d, want 400", other.Code)
			}
		}
	}
	if len(seen) != n {
		t.Errorf("%d SKUs on all pages, want %d", len(seen), n)
	}
}
