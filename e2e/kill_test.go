//go:build e2e

package e2e

import (
	"context"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/cellmart/deploy/local"
)

// process finds one of the demo's processes.
func process(t testing.TB, name string) *local.Process {
	t.Helper()
	p, err := sys.Process(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func restart(t testing.TB, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := sys.Restart(ctx, name); err != nil {
		t.Fatal(err)
	}
}

// kill -9 of each process under load: those who don't need it don't notice, and
// after its restart everything is as it must be.
func TestKillEachProcess(t *testing.T) {
	m := openMarket(t, "c1", "c2", "c4")
	l := startLoad(t, m, "c1", "c2", "c4")
	for _, name := range []string{"order", "user", "inventory", "agent", "nats", "redis", "catalog", "gateway", "postgres"} {
		t.Run("c1 "+name, func(t *testing.T) {
			p := process(t, "c1/"+name)
			if err := p.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			l.goesOn(t, "c2", 20)
			restart(t, "c1/"+name)
			l.goesOn(t, "c1", 15)
			l.unharmed(t, "c2", "c4")
		})
	}
	for _, name := range []string{"control", "idgen", "catalog-writer", "agent", "nats", "postgres", "idgen-postgres"} {
		t.Run("global "+name, func(t *testing.T) {
			if err := process(t, "global/"+name).Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			l.goesOn(t, "c4", 20)
			restart(t, "global/"+name)
			l.unharmed(t, "c2", "c4")
		})
	}
	l.end()
	l.settled(t)
	atRest(t)
	covered(t)
}

// settled waits until each order that the load placed has come to its end.
func (l *load) settled(t testing.TB) {
	t.Helper()
	for _, o := range l.orders {
		o.by.login(t, o.by.via)
		break // tokens last ten minutes: the others' are as young
	}
	for _, o := range l.orders {
		o.by.order(t, o.number, "PAID", "CANCELLED")
	}
}

// S-W11, the running half: each dependency is away for a while. Only what needs it
// is refused, nothing crashes, nothing is lost or doubled.
func TestScenario_W11_DependenciesAway(t *testing.T) {
	all := []string{"c1", "c2", "c3", "c4"}
	m := openMarket(t, all...)
	l := startLoad(t, m, all...)
	for _, home := range all {
		l.goesOn(t, home, 20)
	}
	seller := register(t, "c4")
	seller.want(t, http.StatusCreated, "POST", "/seller", fresh("s"), map[string]any{"shop_name": fresh("Shop")})
	seller.login(t, "c4")
	before := pids()
	away := []string{"c1/postgres", "c2/redis", "c3/nats", "global/control", "global/idgen", "global/catalog-writer"}
	for _, name := range away {
		p := process(t, name)
		sig := syscall.SIGTERM
		if name == "c1/postgres" {
			sig = syscall.SIGINT
		}
		if err := p.Signal(sig); err != nil {
			t.Fatal(err)
		}
		delete(before, name)
	}
	t.Cleanup(func() { // whatever happened
		for _, name := range away {
			if !process(t, name).Alive() {
				restart(t, name)
			}
		}
	})
	gone, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := process(t, "global/catalog-writer").Wait(gone); err != nil { // it answers what it has begun
		t.Fatal(err)
	}
	end := time.After(outage())
	for waiting := true; waiting; {
		select {
		case <-end:
			waiting = false
		default:
			a := seller.do(t, "POST", "/products", fresh("p"), map[string]any{"title": "x", "description": "", "category": "home", "skus": []map[string]any{{"title": "", "price": 1, "currency": "CNY"}}})
			if a.status != 503 {
				t.Errorf("a product while the writer is away = %s, want 503", a)
			}
			l.goesOn(t, "c4", 30)
		}
	}
	for _, name := range away {
		restart(t, name)
	}
	l.goesOn(t, "c1", 20)
	// c1's users needed their database; nobody else needed anything that was away
	l.unharmed(t, "c2", "c3", "c4")
	for _, f := range l.failures("c1") {
		if !strings.Contains(f, "= 503") {
			t.Errorf("c1 without its database: %s", f)
			break
		}
	}
	l.end()
	l.settled(t)
	for name, pid := range before {
		if now := process(t, name); now.PID != pid || !now.Alive() {
			t.Errorf("%s did not live through the outage", name)
		}
	}
	atRest(t)
	covered(t)
}

func pids() map[string]int {
	out := map[string]int{}
	for _, p := range sys.Processes {
		out[p.Name] = p.PID
	}
	return out
}

func (l *load) failures(home string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.failed[home]...)
}

// Services start cold and serve with the whole global zone down.
func TestColdStartWithoutGlobalZone(t *testing.T) {
	m := openMarket(t, "c2")
	buyer := register(t, "c1")
	buyer.deposit(t, 10000)
	global := []string{"control", "idgen", "catalog-writer", "agent", "nats", "postgres", "idgen-postgres"}
	for _, name := range global {
		sig := syscall.SIGTERM
		if name == "postgres" || name == "idgen-postgres" {
			sig = syscall.SIGINT
		}
		if err := process(t, "global/"+name).Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, name := range []string{"postgres", "idgen-postgres", "nats", "agent", "control", "idgen", "catalog-writer"} {
			restart(t, "global/"+name)
		}
	})
	for _, name := range []string{"agent", "gateway", "catalog", "redis"} {
		restart(t, "c1/"+name)
	}
	for _, path := range []string{"/wallet", "/orders", "/products?limit=1", "/me"} {
		buyer.want(t, http.StatusOK, "GET", path, "", nil)
	}
	buyer.login(t, "c3")
	a := buyer.do(t, "POST", "/orders", fresh("cold"), items(m.skus[0], 1))
	if a.status != http.StatusCreated && a.status != http.StatusAccepted {
		t.Fatalf("place = %s", a)
	}
	buyer.order(t, a.str("number"), "PAID")
	// user, order and inventory too: they live off the cell's own stock of IDs
	for _, name := range []string{"user", "order", "inventory"} {
		restart(t, "c1/"+name)
	}
	buyer.want(t, http.StatusOK, "GET", "/orders/"+a.str("number"), "", nil)
	b := buyer.do(t, "POST", "/orders", fresh("cold"), items(m.skus[0], 1))
	if b.status != http.StatusCreated && b.status != http.StatusAccepted {
		t.Fatalf("an order without idgen = %s", b)
	}
	buyer.order(t, b.str("number"), "PAID")
}
