package order

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/order/orderapi"
)

func TestHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.svc.wait = 20 * time.Second
	w.run()
	w.deposit(buyer, 100_000)
	w.stock.set(sku(4), 1)
	one, two := sku(0).String(), sku(1).String()
	item := func(sku string, q string) string { return `{"items":[{"sku":"` + sku + `","quantity":` + q + `}]}` }
	many := strings.TrimSuffix(strings.Repeat(`{"sku":"`+one+`","quantity":50},`, 2), ",")
	var lots []string
	for n := range 51 {
		lots = append(lots, fmt.Sprintf(`{"sku":"%d","quantity":1}`, id.Make(int64(n+1), 9001, false)))
	}
	for _, tc := range []struct {
		name, method, path, body, key string
		user                          id.ID
		status                        int
		want                          string
	}{
		{"nobody's cart", "GET", "/cart", "", "", 0, 401, "UNAUTHENTICATED"},
		{"empty cart", "GET", "/cart", "", "", buyer, 200, `{"items":[]}`},
		{"into the cart", "PUT", "/cart/items/" + one, `{"quantity":2}`, "", buyer, 200, `"total":{"amount":200,"currency":"CNY"}`},
		{"quantity replaced", "PUT", "/cart/items/" + one, `{"quantity":3}`, "", buyer, 200, `"total":{"amount":300,"currency":"CNY"}`},
		{"quantity 0", "PUT", "/cart/items/" + one, `{"quantity":0}`, "", buyer, 400, `"field":"quantity"`},
		{"quantity 100", "PUT", "/cart/items/" + one, `{"quantity":100}`, "", buyer, 400, `"field":"quantity"`},
		{"unknown SKU", "PUT", "/cart/items/99999999999", `{"quantity":1}`, "", buyer, 404, "UNKNOWN_SKU"},
		{"malformed SKU", "PUT", "/cart/items/abc", `{"quantity":1}`, "", buyer, 404, "NOT_FOUND"},
		{"out of the cart", "DELETE", "/cart/items/" + one, "", "", buyer, 204, ""},
		{"out again", "DELETE", "/cart/items/" + one, "", "", buyer, 204, ""},
		{"cart is empty again", "GET", "/cart", "", "", buyer, 200, `{"items":[]}`},

		{"no key", "POST", "/orders", item(one, "1"), "", buyer, 400, "IDEMPOTENCY_KEY_MISSING"},
		{"nobody", "POST", "/orders", item(one, "1"), "k", 0, 401, "UNAUTHENTICATED"},
		{"empty order", "POST", "/orders", `{"items":[]}`, "k", buyer, 422, "CART_EMPTY"},
		{"quantity 0 ordered", "POST", "/orders", item(one, "0"), "k", buyer, 400, `"field":"items[0].quantity"`},
		{"negative", "POST", "/orders", item(one, "-1"), "k", buyer, 400, `"field":"items[0].quantity"`},
		{"overflow", "POST", "/orders", item(one, "9223372036854775808"), "k", buyer, 400, `"field":"items[0].quantity"`},
		{"summed over 99", "POST", "/orders", `{"items":[` + many + `]}`, "k", buyer, 400, `"field":"items[1].quantity"`},
		{"no SKU", "POST", "/orders", `{"items":[{"quantity":1}]}`, "k", buyer, 400, `"field":"items[0].sku"`},
		{"51 SKUs", "POST", "/orders", `{"items":[` + strings.Join(lots, ",") + `]}`, "k", buyer, 400, `"field":"items"`},
		{"SKU as a number", "POST", "/orders", `{"items":[{"sku":12,"quantity":1}]}`, "k", buyer, 400, `"field":"items[0].sku"`},
		{"unknown field", "POST", "/orders", `{"price":1}`, "k", buyer, 400, `"field":"price"`},
		{"unknown SKU ordered", "POST", "/orders", item("99999999999", "1"), "k", buyer, 422, "UNKNOWN_SKU"},
		{"unknown address", "POST", "/orders", `{"address_id":"6",` + item(one, "1")[1:], "k", buyer, 422, "UNKNOWN_ADDRESS"},
		{"S-O11 other price", "POST", "/orders", `{"expected_total":{"amount":99,"currency":"CNY"},` + item(one, "1")[1:], "k", buyer, 409, "PRICE_CHANGED"},
		{"S-O11 other currency", "POST", "/orders", `{"expected_total":{"amount":100,"currency":"USD"},` + item(one, "1")[1:], "k", buyer, 409, "PRICE_CHANGED"},
		{"a refusal left the key free", "POST", "/orders", `{"expected_total":{"amount":100,"currency":"CNY"},"address_id":"5",` + item(one, "1")[1:], "k", buyer, 201, `"address":{"city":"Hangzhou"}`},
		{"replayed", "POST", "/orders", `{"expected_total":{"amount":100,"currency":"CNY"},"address_id":"5",` + item(one, "1")[1:], "k", buyer, 201, `"address":{"city":"Hangzhou"}`},
		{"key reused", "POST", "/orders", item(one, "1"), "k", buyer, 422, "IDEMPOTENCY_KEY_REUSED"},
		{"out of stock", "POST", "/orders", item(sku(4).String(), "2"), "k2", buyer, 422, "OUT_OF_STOCK"},
		{"refusal replayed", "POST", "/orders", item(sku(4).String(), "2"), "k2", buyer, 422, "OUT_OF_STOCK"},
		{"one of two is short", "POST", "/orders", `{"items":[{"sku":"` + two + `","quantity":1},{"sku":"` + sku(4).String() + `","quantity":2}]}`, "k3", buyer, 422, "OUT_OF_STOCK"},
		{"too dear", "POST", "/orders", item(two, "99"), "k4", id.Make(77, 400, false), 422, "INSUFFICIENT_FUNDS"},
		{"own product", "POST", "/orders", item(sku(2).String(), "1"), "k5", sellers[2], 422, "OWN_PRODUCT"},

		{"malformed number", "GET", "/orders/XXXX-XXXXX-XXXXX", "", "", buyer, 404, "NOT_FOUND"},
		{"a plain ID", "GET", "/orders/" + one, "", "", buyer, 404, "NOT_FOUND"},
		{"number of no order", "GET", "/orders/" + w.svc.number(id.Make(5, buyer.Slot(), false)), "", "", buyer, 404, "NOT_FOUND"},
		{"bad limit", "GET", "/orders?limit=1000", "", "", buyer, 400, `"field":"limit"`},
		{"tampered cursor", "GET", "/orders?cursor=AAAA", "", "", buyer, 400, "INVALID_CURSOR"},
	} {
		rec := w.ask(tc.method, tc.path, tc.body, tc.user, tc.key)
		if rec.Code != tc.status || !strings.Contains(rec.Body.String(), tc.want) {
			t.Errorf("%s: %d %s, want %d with %s", tc.name, rec.Code, rec.Body, tc.status, tc.want)
		}
		if got := rec.Header().Get("Idempotent-Replayed") == "true"; got != strings.HasSuffix(tc.name, "replayed") {
			t.Errorf("%s: replayed %v", tc.name, got)
		}
	}
	w.rest()
}

// S-O13: every route with an order's number, by another user of the same slot and
// of another one, is 404; so is a malformed number without a database.
func TestScenario_O13_OthersOrders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deposit(buyer, 1_000)
	number := w.want(202, "POST", "/orders", items(0, 1), buyer, "k").Number
	for name, user := range map[string]id.ID{"neighbour in the slot": id.Make(99, buyer.Slot(), false), "stranger": id.Make(99, 101, false)} {
		for _, r := range [][2]string{{"GET", ""}, {"POST", "/cancel"}} {
			if rec := w.ask(r[0], "/orders/"+number+r[1], nil, user, ""); rec.Code != 404 {
				t.Errorf("%s: %s %s: %d %s, want 404", name, r[0], r[1], rec.Code, rec.Body)
			}
		}
		if rec := w.ask("GET", "/orders", nil, user, ""); !strings.Contains(rec.Body.String(), `"items":[]`) {
			t.Errorf("%s sees %s", name, rec.Body)
		}
		// The same key of another user is another key.
		if rec := w.ask("POST", "/orders", items(0, 1), user, "k"); rec.Code != 202 || strings.Contains(rec.Body.String(), number) {
			t.Errorf("%s with the same key: %d %s", name, rec.Code, rec.Body)
		}
	}
	if s := one[string](w, "SELECT state FROM orders.orders WHERE user_id = $1", buyer); s != "PENDING" {
		t.Errorf("the order is %s", s)
	}
	w.db["c1"].App.Close()
	for _, bad := range []string{"x", number[:len(number)-1] + "0", strings.Replace(number, "-", "", 1) + "1", "0"} {
		if bad == number {
			continue
		}
		if rec := w.ask("GET", "/orders/"+bad, nil, buyer, ""); rec.Code != 404 {
			t.Errorf("GET %s without a database: %d %s, want 404", bad, rec.Code, rec.Body)
		}
	}
	if rec := w.ask("GET", "/orders/"+number, nil, buyer, ""); rec.Code < 500 {
		t.Errorf("a sound number without a database: %d", rec.Code)
	}
}

// S-O11: the price changes between cart and order, and after the order.
func TestScenario_O11_PriceChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deposit(buyer, 10_000)
	w.want(200, "PUT", "/cart/items/"+sku(0).String(), orderapi.Quantity{Quantity: 2}, buyer, "")
	shown := orderapi.Place{Expected: &orderapi.Money{Amount: 200, Currency: "CNY"}}
	w.catalog.set(sku(0), 150)
	if rec := w.ask("POST", "/orders", shown, buyer, "k"); rec.Code != 409 || !strings.Contains(rec.Body.String(), "PRICE_CHANGED") {
		t.Fatalf("%d %s, want PRICE_CHANGED", rec.Code, rec.Body)
	}
	shown.Expected.Amount = 300
	placed := w.want(202, "POST", "/orders", shown, buyer, "k")
	w.catalog.set(sku(0), 900)
	w.drain()
	if o := w.want(200, "GET", "/orders/"+placed.Number, nil, buyer, ""); o.State != "PAID" || o.Total.Amount != 300 || o.Lines[0].Price.Amount != 150 {
		t.Errorf("order %+v, want 300 paid", o)
	}
	w.audit(10_000)
}

// The first answer is stored: 202 stays 202. An undecided key is decided by who
// asks next.
func TestFirstAnswerStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deposit(buyer, 10_000)
	first := w.ask("POST", "/orders", items(0, 1), buyer, "k")
	w.drain()
	second := w.ask("POST", "/orders", items(0, 1), buyer, "k")
	if first.Code != 202 || second.Code != 202 || first.Body.String() != second.Body.String() ||
		first.Header().Get("Location") != second.Header().Get("Location") || second.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("%d %s, then %d %s", first.Code, first.Body, second.Code, second.Body)
	}
	if rec := w.ask("GET", strings.TrimPrefix(first.Header().Get("Location"), "/api/v1"), nil, buyer, ""); rec.Code != 200 || !strings.Contains(rec.Body.String(), `"PAID"`) {
		t.Errorf("%d %s, want it PAID at its Location", rec.Code, rec.Body)
	}
}

// With the neighbours down only what needs them is refused.
func TestNeighboursDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.want(200, "PUT", "/cart/items/"+sku(0).String(), orderapi.Quantity{Quantity: 2}, buyer, "")
	placed := w.want(202, "POST", "/orders", items(1, 1), buyer, "k")
	w.catalog.err = errs.ErrUnavailable
	for _, tc := range []struct {
		method, path string
		body         any
		status       int
	}{
		{"GET", "/cart", nil, 200},
		{"DELETE", "/cart/items/" + sku(1).String(), nil, 204},
		{"PUT", "/cart/items/" + sku(1).String(), orderapi.Quantity{Quantity: 1}, 503},
		{"POST", "/orders", items(0, 1), 503},
		{"GET", "/orders", nil, 200},
		{"GET", "/orders/" + placed.Number, nil, 200},
		{"POST", "/orders/" + placed.Number + "/cancel", nil, 200},
	} {
		if rec := w.ask(tc.method, tc.path, tc.body, buyer, "other"); rec.Code != tc.status {
			t.Errorf("%s %s: %d %s, want %d", tc.method, tc.path, rec.Code, rec.Body, tc.status)
		}
	}
	if rec := w.ask("POST", "/orders", items(1, 1), buyer, "k"); rec.Code != 202 {
		t.Errorf("a replay needs no catalog: %d %s", rec.Code, rec.Body)
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 7
	for i := range n {
		w.want(202, "POST", "/orders", items(0, 1), buyer, fmt.Sprint(i))
	}
	// Two of the same moment: the ID decides.
	if _, err := w.db["c1"].Super.Exec(context.Background(), `ALTER TABLE orders.orders DISABLE TRIGGER USER;
		UPDATE orders.orders SET created_at = (SELECT min(created_at) FROM orders.orders); ALTER TABLE orders.orders ENABLE TRIGGER USER`); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	cursor := ""
	for page := 0; page == 0 || cursor != ""; page++ {
		rec := w.ask("GET", "/orders?limit=3&cursor="+cursor, nil, buyer, "")
		var list orderapi.List
		if err := json.Unmarshal(rec.Body.Bytes(), &list); err != nil || rec.Code != 200 || len(list.Items) > 3 || page > 3 {
			t.Fatalf("page %d: %d %s %v", page, rec.Code, rec.Body, err)
		}
		for _, o := range list.Items {
			seen[o.Number] = true
		}
		if cursor = list.NextCursor; cursor != "" {
			if rec := w.ask("GET", "/orders?cursor="+cursor, nil, id.Make(9, buyer.Slot(), false), ""); rec.Code != 400 {
				t.Errorf("another user's cursor: %d, want 400", rec.Code)
			}
		}
	}
	if len(seen) != n {
		t.Errorf("%d orders on all pages, want %d", len(seen), n)
	}
}
