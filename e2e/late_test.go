//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// late is how long programs run before what they need.
func late() time.Duration {
	if os.Getenv("CELLMART_LONG") != "" {
		return time.Minute
	}
	return 10 * time.Second
}

// S-W11, the other half: each dependency comes late, when all programs are started
// and have looked for it. Nobody ends; then everybody is ready, without another
// start, and an order passes.
func TestScenario_W11_DependenciesLate(t *testing.T) {
	m := openMarket(t, "c2")
	buyer := register(t, "c1")
	buyer.deposit(t, 100_000)
	parts := map[string][]string{} // by kind: the names in all zones
	for _, p := range sys.Processes {
		parts[path.Base(p.Name)] = append(parts[path.Base(p.Name)], p.Name)
	}
	kinds := slices.Sorted(maps.Keys(parts))
	global := []string{"control", "idgen", "catalog-writer", "search"}
	stores := []string{"idgen-postgres", "nats", "postgres", "redis"}
	t.Cleanup(func() { // whatever happened
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		for _, kind := range append(stores, kinds...) {
			for _, name := range parts[kind] {
				if !process(t, name).Alive() {
					restart(t, name)
				}
			}
		}
		if err := sys.Ready(ctx, slices.Concat(slices.Collect(maps.Values(parts))...)...); err != nil {
			t.Error(err)
		}
	})
	for _, tc := range []struct {
		name  string
		kinds []string
	}{
		{"Redis", []string{"redis"}},
		{"NATS", []string{"nats"}},
		{"agents", []string{"agent"}},
		{"the global zone's services", global},
		{"the cells' Postgres", []string{"postgres"}},
		{"all at once", slices.Concat(stores, []string{"agent"}, global)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var first, last []string
			for _, kind := range kinds {
				switch {
				case slices.Contains(tc.kinds, kind):
					last = append(last, parts[kind]...)
				case !slices.Contains(stores, kind): // other stores go on
					first = append(first, parts[kind]...)
				}
			}
			startLate(t, first, last)
			passes(t, buyer, m.skus[0])
		})
	}
	atRest(t)
}

// startLate ends all, starts the first, and a while later the last.
func startLate(t *testing.T, first, last []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), late()+5*time.Minute)
	defer cancel()
	if err := sys.StopAll(ctx, first...); err != nil {
		t.Fatal(err)
	}
	if err := sys.StopAll(ctx, last...); err != nil {
		t.Fatal(err)
	}
	if err := sys.Begin(ctx, first...); err != nil {
		t.Fatal(err)
	}
	begun := pids()
	alive := func(when string) {
		for _, name := range first {
			if p := process(t, name); p.PID != begun[name] || !p.Alive() {
				log, _ := os.ReadFile(filepath.Join(sys.root, ".demo", "logs", strings.ReplaceAll(name, "/", "-")+".log"))
				t.Fatalf("%s ended %s: %s", name, when, log[max(0, len(log)-1000):])
			}
		}
	}
	wait := time.NewTimer(late())
	defer wait.Stop()
	for tick := time.NewTicker(250 * time.Millisecond); ; {
		alive("while what it needs was away")
		select {
		case <-tick.C:
			continue
		case <-wait.C:
			tick.Stop()
		}
		break
	}
	if err := sys.Restart(ctx, last...); err != nil {
		t.Fatal(err)
	}
	if err := sys.Ready(ctx, first...); err != nil {
		t.Fatal(err)
	}
	alive("after what it needs came")
}

// passes places one order and waits until it's paid. After idgen's own Postgres was
// away, leases of IDs pause for 65 s.
func passes(t *testing.T, buyer *shopper, sku string) {
	t.Helper()
	buyer.login(t, "c1") // tokens last ten minutes
	key := fresh("late")
	var a answer
	eventually(t, 65*time.Second+patience, "a first order", func() (bool, string) {
		a = buyer.do(t, "POST", "/orders", key, items(sku, 1))
		return a.status == http.StatusCreated || a.status == http.StatusAccepted, fmt.Sprint(a)
	})
	buyer.order(t, a.str("number"), "PAID")
}
