//go:build e2e

package e2e

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// searchable is how long a change may take to be found on a machine that does other
// things as well; mostly it takes well under a second.
const searchable = time.Minute

// found waits until a search at a gateway finds n products.
func found(t testing.TB, via, query string, n int) answer {
	t.Helper()
	var a answer
	eventually(t, searchable, via+" finds "+query, func() (bool, string) {
		var err error
		a, err = send(t.Context(), "GET", gateway(t, via)+"/api/v1/search?q="+url.QueryEscape(query), "", "", nil)
		items, _ := a.at("items").([]any)
		return err == nil && a.status == http.StatusOK && len(items) == n, a.String()
	})
	return a
}

// orders waits until a seller's search finds n of their orders.
func (u *shopper) orders(t testing.TB, query string, n int) answer {
	t.Helper()
	var a answer
	eventually(t, searchable, "the seller finds "+query, func() (bool, string) {
		a = u.do(t, "GET", "/seller/orders/search?q="+url.QueryEscape(query), "", nil)
		items, _ := a.at("items").([]any)
		return a.status == http.StatusOK && len(items) == n, a.String()
	})
	return a
}

// byHand changes a row of unit data as a person with psql would: slot entered.
func byHand(t *testing.T, cell, number, sql string, args ...any) {
	t.Helper()
	db := admin(t, cell)
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SELECT cell.enter(slot, epoch) FROM cell.slots WHERE slot = $1::bigint & 16383", args[0]); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), sql, args...)
		return err
	})
	if err != nil {
		t.Fatalf("order %s by hand: %v", number, err)
	}
}

// What is written anywhere is found everywhere: through the API, and by hand.
func TestSearch(t *testing.T) {
	seller, buyer := register(t, "c3"), register(t, "c1")
	sku := seller.sell(t, 1200, 50)
	product := seller.want(t, http.StatusOK, "GET", "/products?seller="+seller.id, "", nil)
	word := product.str("items.0.title")
	for _, via := range []string{"c1", "c2", "c3", "c4", "edge"} {
		a := found(t, via, word, 1)
		if a.str("items.0.seller_id") != seller.id || a.num("items.0.price") != 1200 || a.header.Get("X-Search-Lag-Ms") == "" {
			t.Errorf("%s finds %s", via, a)
		}
	}

	// an order, by the seller's words and the order's number; nobody else's
	buyer.deposit(t, 10000)
	placed := buyer.do(t, "POST", "/orders", fresh("order"), items(sku, 2))
	number := placed.str("number")
	buyer.order(t, number, "PAID")
	a := seller.orders(t, word, 1)
	if a.str("items.0.number") != number || a.num("items.0.total") != 2400 {
		t.Errorf("the seller finds %s", a)
	}
	seller.orders(t, number, 1)
	other := register(t, "c2")
	other.sell(t, 5, 5)
	other.orders(t, number, 0)

	// by hand: in the buyer's cell, and in the catalog
	byWord := strings.ToLower(fresh("kaolin"))
	var order int64
	if err := admin(t, "c1").QueryRow(t.Context(), "SELECT order_id FROM orders.lines WHERE sku = $1::bigint", sku).Scan(&order); err != nil {
		t.Fatal(err)
	}
	byHand(t, "c1", number, "UPDATE orders.lines SET title = $2 WHERE order_id = $1::bigint", order, byWord)
	seller.orders(t, byWord, 1)
	if _, err := admin(t, "global").Exec(t.Context(), "UPDATE catalogw.products SET title = $2 WHERE id = $1::bigint", product.str("items.0.id"), byWord); err != nil {
		t.Fatal(err)
	}
	found(t, "c4", byWord, 1)
	found(t, "c4", word, 0)
	atRest(t)
}

// Nobody needs search: the shop goes on without it, and it catches up.
func TestSearchIsAway(t *testing.T) {
	seller, buyer := register(t, "c2"), register(t, "c1")
	sku := seller.sell(t, 100, 50)
	buyer.deposit(t, 10000)
	if err := process(t, "global/search").Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, via := range []string{"c1", "c4"} {
		var took []time.Duration
		for range 5 {
			a, err := send(t.Context(), "GET", gateway(t, via)+"/api/v1/search?q=pot", "", "", nil)
			if err != nil || a.status != http.StatusServiceUnavailable || a.code() != "SEARCH_UNAVAILABLE" {
				t.Errorf("search at %s = %s (%v)", via, a, err)
			}
			took = append(took, a.took)
		}
		if least := slices.Min(took); least > 3*time.Second {
			t.Errorf("each answer of %s that search is away took over 3 s: %v", via, took)
		}
	}
	number := buyer.do(t, "POST", "/orders", fresh("order"), items(sku, 1)).str("number")
	buyer.order(t, number, "PAID")
	product := seller.want(t, http.StatusOK, "GET", "/products?seller="+seller.id, "", nil)
	word := fresh("Celadon")
	seller.want(t, http.StatusOK, "PATCH", "/products/"+product.str("items.0.id"), "", map[string]any{"title": word})
	restart(t, "global/search")
	found(t, "c3", word, 1)
	a := seller.orders(t, number, 1)
	for _, zone := range []string{"c1", "c2", "c3", "c4", "global"} {
		eventually(t, searchable, zone+" is followed", func() (bool, string) {
			a = seller.do(t, "GET", "/seller/orders/search", "", nil)
			return a.str("lag."+zone+".state") == "live" && a.at("lag."+zone+".ms") != nil, a.String() // it has heard of the zone since its start
		})
	}

	// a cell that is unplugged is searched as it was, and comes back
	mustCellctl(t, "unplug", "c2")
	defer mustCellctl(t, "plug", "c2")
	found(t, "c3", word, 1)
	eventually(t, searchable, "the lag of c2 grows", func() (bool, string) {
		a, err := send(t.Context(), "GET", gateway(t, "c3")+"/api/v1/search", "", "", nil)
		return err == nil && a.num("lag.c2.ms") > 1000, a.String()
	})
	mustCellctl(t, "plug", "c2")
	eventually(t, searchable, "c2 is followed again", func() (bool, string) {
		a, err := send(t.Context(), "GET", gateway(t, "c3")+"/api/v1/search", "", "", nil)
		return err == nil && a.num("lag.c2.ms") < 1000 && a.num("lag.c2.age_ms") < 10000, a.String()
	})
	atRest(t)
}
