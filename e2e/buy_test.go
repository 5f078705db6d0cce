//go:build e2e

package e2e

import (
	"net/http"
	"strings"
	"sync"
	"testing"
)

// The README's walk: register, deposit, buy from a seller in another cell, see
// the order by its number at another cell's gateway, pay a friend elsewhere.
func TestBuyAndTransfer(t *testing.T) {
	for _, c := range []struct{ name, buyer, seller, at string }{
		{"inside a cell", "c1", "c1", "c1"},
		{"across cells", "c1", "c2", "c3"},
		{"through a foreign gateway", "c4", "c3", "c2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			seller := register(t, c.seller)
			sku := seller.sell(t, 1500, 10)
			buyer := register(t, c.buyer)
			buyer.deposit(t, 10000)
			placed := buyer.do(t, "POST", "/orders", fresh("order"), items(sku, 2))
			if placed.status != http.StatusCreated && placed.status != http.StatusAccepted {
				t.Fatalf("place = %s", placed)
			}
			number := placed.str("number")
			buyer.order(t, number, "PAID")
			if left := buyer.available(t); left != 7000 {
				t.Errorf("the buyer has %d left, want 7000", left)
			}
			buyer.via = c.at
			seen := buyer.want(t, http.StatusOK, "GET", "/orders/"+strings.ToLower(number), "", nil)
			if cell := seen.header.Get("X-Cell"); cell != c.buyer {
				t.Errorf("X-Cell %q, want the home %q", cell, c.buyer)
			}
			eventually(t, patience, "the seller is paid", func() (bool, string) {
				a := seller.do(t, "GET", "/wallet", "", nil)
				return a.num("balances.0.available") == 3000, a.String()
			})
			friend := register(t, c.seller)
			sent := buyer.want(t, http.StatusAccepted, "POST", "/transfers", fresh("tr"), map[string]any{"to_user": friend.id, "amount": 250, "currency": "CNY", "memo": "tea"})
			buyer.transfer(t, sent.str("id"), "SETTLED")
			if got := friend.available(t); got != 250 {
				t.Errorf("the friend has %d, want 250", got)
			}
			if a := friend.do(t, "GET", "/orders/"+number, "", nil); a.status != http.StatusNotFound {
				t.Errorf("another user's order = %s, want 404", a)
			}
		})
	}
	atRest(t)
	covered(t)
}

// S-O07: double click, two tabs, a retry after a timeout: one order.
func TestScenario_O07_DoubleSubmit(t *testing.T) {
	seller := register(t, "c2")
	sku := seller.sell(t, 100, 50)
	buyer := register(t, "c1")
	buyer.deposit(t, 10000)
	key := fresh("double")
	var wg sync.WaitGroup
	answers := make([]answer, 8)
	for i := range answers {
		wg.Go(func() {
			answers[i], _ = send(t.Context(), "POST", gateway(t, []string{"c1", "c3"}[i%2])+"/api/v1/orders", buyer.token, key, items(sku, 1))
		})
	}
	wg.Wait()
	numbers := map[string]bool{}
	for _, a := range answers {
		switch a.status {
		case http.StatusCreated, http.StatusAccepted:
			numbers[a.str("number")] = true
		case http.StatusConflict: // in flight
		default:
			t.Errorf("one of the double submits = %s", a)
		}
	}
	if len(numbers) != 1 {
		t.Errorf("orders %v, want one", numbers)
	}
	again := buyer.do(t, "POST", "/orders", key, items(sku, 1))
	if !numbers[again.str("number")] || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the same key again = %s, replayed %q", again, again.header.Get("Idempotent-Replayed"))
	}
	if a := buyer.do(t, "POST", "/orders", key, items(sku, 2)); a.status != 422 || a.code() != "IDEMPOTENCY_KEY_REUSED" {
		t.Errorf("the same key with another body = %s", a)
	}
	if a := buyer.do(t, "POST", "/orders", "", items(sku, 2)); a.status != 400 {
		t.Errorf("no key = %s", a)
	}
	list := buyer.want(t, http.StatusOK, "GET", "/orders", "", nil)
	if got, _ := list.at("items").([]any); len(got) != 1 {
		t.Errorf("the list has %d orders, want 1: %s", len(got), list)
	}
	atRest(t)
}

// S-O01: more buyers than units, from all cells: never oversold, nobody pays for nothing.
func TestScenario_O01_MoreBuyersThanUnits(t *testing.T) {
	const units, perCell = 6, 5
	seller := register(t, "c3")
	sku := seller.sell(t, 100, units)
	var buyers []*shopper
	for _, c := range sys.Cells {
		for range perCell {
			b := register(t, c.Name)
			b.deposit(t, 1000)
			buyers = append(buyers, b)
		}
	}
	numbers := make([]string, len(buyers))
	var wg sync.WaitGroup
	for i, b := range buyers {
		wg.Go(func() {
			a := b.do(t, "POST", "/orders", fresh("rush"), items(sku, 1))
			switch {
			case a.status == http.StatusCreated, a.status == http.StatusAccepted:
				numbers[i] = a.str("number")
			case a.status == 422 && a.code() == "OUT_OF_STOCK":
			default:
				t.Errorf("place = %s", a)
			}
		})
	}
	wg.Wait()
	paid := 0
	for i, b := range buyers {
		if numbers[i] != "" && b.order(t, numbers[i], "PAID", "CANCELLED").str("state") == "PAID" {
			paid++
		}
	}
	if paid != units {
		t.Errorf("%d of %d buyers got one of %d units", paid, len(buyers), units)
	}
	atRest(t)
}

// S-O13: every route with an ID, with another user's ID: 404, as if it weren't there.
func TestScenario_O13_OthersThings(t *testing.T) {
	owner, other := register(t, "c1"), register(t, "c2")
	owner.deposit(t, 1000)
	sent := owner.want(t, http.StatusAccepted, "POST", "/transfers", fresh("tr"), map[string]any{"to_user": register(t, "c4").id, "amount": 5, "currency": "CNY"})
	seller := register(t, "c1")
	sku := seller.sell(t, 10, 5)
	placed := owner.do(t, "POST", "/orders", fresh("o"), items(sku, 1))
	for _, r := range []struct{ method, path string }{
		{"GET", "/orders/" + placed.str("number")},
		{"POST", "/orders/" + placed.str("number") + "/cancel"},
		{"GET", "/transfers/" + sent.str("id")},
		{"POST", "/transfers/" + sent.str("id") + "/cancel"},
		{"PUT", "/seller/stock/" + sku},
		{"GET", "/orders/0000-00000-00000"},
		{"GET", "/orders/12"},
		{"GET", "/transfers/12"},
		{"GET", "/transfers/abc"},
		{"GET", "/products/12"},
		{"GET", "/products/99999999999999999999"},
	} {
		var body any
		if r.method == "PUT" {
			body = map[string]any{"add": 1}
		}
		if a := other.do(t, r.method, r.path, fresh("k"), body); a.status != 404 && !(a.status == 403 && r.method == "PUT") {
			t.Errorf("%s %s of another user = %s, want 404", r.method, r.path, a)
		}
	}
	owner.order(t, placed.str("number"), "PAID")
	atRest(t)
}
