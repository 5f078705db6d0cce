//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"
)

// load is bounded background traffic of shoppers, counted by their home.
type load struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex
	done   map[string]int      // answers below 500, by home
	failed map[string][]string // the others, and broken connections
	orders []placed
}

type placed struct {
	by     *shopper
	number string
}

// market is what the load buys and whom it pays.
type market struct {
	skus    []string
	friends []*shopper
}

// openMarket makes a seller and a payee in each of the cells.
func openMarket(t testing.TB, cells ...string) market {
	t.Helper()
	var m market
	for _, c := range cells {
		m.skus = append(m.skus, register(t, c).sell(t, 10, 100_000))
		m.friends = append(m.friends, register(t, c))
	}
	return m
}

// startLoad runs one shopper per home and gateway, each sending its next request
// when the last is answered, with a short pause, for at most as long as their tokens
// last.
func startLoad(t testing.TB, m market, homes ...string) *load {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 9*time.Minute)
	l := &load{stop: stop, done: map[string]int{}, failed: map[string][]string{}}
	for _, home := range homes {
		for range 2 {
			u := register(t, home)
			u.deposit(t, 10_000_000)
			l.wg.Go(func() { l.shop(ctx, t, u, m) })
		}
	}
	t.Cleanup(func() { l.end() })
	return l
}

func (l *load) shop(ctx context.Context, t testing.TB, u *shopper, m market) {
	base := gateway(t, u.via) + "/api/v1"
	for n := 0; ctx.Err() == nil; n++ {
		sku, friend := m.skus[rand.IntN(len(m.skus))], m.friends[rand.IntN(len(m.friends))]
		var a answer
		var err error
		var what string // each kind's first answers are held against the API document, all of them would take a core
		switch k := n % 10; {
		case k < 3:
			what = "GET /products"
			a, err = exchange(ctx, n < 20, "GET", base+"/products?limit=5", u.token, "", nil)
		case k < 5:
			what = "PUT /cart"
			a, err = exchange(ctx, n < 20, "PUT", base+"/cart/items/"+sku, u.token, "", map[string]any{"quantity": 1})
		case k < 7:
			what = "POST /orders"
			a, err = exchange(ctx, n < 20, "POST", base+"/orders", u.token, fresh("load"), items(sku, 1))
			if err == nil && (a.status == http.StatusCreated || a.status == http.StatusAccepted) {
				l.mu.Lock()
				l.orders = append(l.orders, placed{u, a.str("number")})
				l.mu.Unlock()
			}
		case k == 7:
			what = "POST /transfers"
			a, err = exchange(ctx, n < 20, "POST", base+"/transfers", u.token, fresh("load"), map[string]any{"to_user": friend.id, "amount": 1, "currency": "CNY"})
		case k == 8:
			what = "POST /wallet/deposits"
			a, err = exchange(ctx, n < 20, "POST", base+"/wallet/deposits", u.token, fresh("load"), map[string]any{"amount": 10, "currency": "CNY"})
		default:
			what = "GET /orders"
			a, err = exchange(ctx, n < 20, "GET", base+"/orders", u.token, "", nil)
		}
		if ctx.Err() != nil {
			return
		}
		l.count(u, what, a, err)
		pause(ctx, 20*time.Millisecond)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (l *load) count(u *shopper, what string, a answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		l.failed[u.home] = append(l.failed[u.home], fmt.Sprintf("%s: %v", what, err))
	case a.status >= 500 || a.status == 421 || a.status == 404:
		l.failed[u.home] = append(l.failed[u.home], fmt.Sprintf("%s = %s", what, a))
	default:
		l.done[u.home]++
	}
}

// served is how many requests were answered so far, for one home.
func (l *load) served(home string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done[home]
}

// goesOn waits until a home's shoppers have got n more answers.
func (l *load) goesOn(t testing.TB, home string, n int) {
	t.Helper()
	from := l.served(home)
	eventually(t, 2*time.Minute, fmt.Sprintf("%d more answers for %s", n, home), func() (bool, string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		last := "no failure"
		if f := l.failed[home]; len(f) > 0 {
			last = f[len(f)-1]
		}
		return l.done[home] >= from+n, last
	})
}

// unharmed says that these homes' shoppers had not one failure.
func (l *load) unharmed(t testing.TB, homes ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, home := range homes {
		if f := l.failed[home]; len(f) > 0 {
			t.Errorf("%d of %d requests of %s failed, the first: %s", len(f), l.done[home]+len(f), home, f[0])
		}
		if l.done[home] == 0 {
			t.Errorf("%s had no request", home)
		}
	}
}

func (l *load) end() {
	l.stop()
	l.wg.Wait()
}
