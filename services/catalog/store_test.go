package catalog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/catalog/catalogapi"
)

// start runs a follower; the function it gives ends it.
func start(t testing.TB, f *follower) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("follow: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// Many write at once while a reader notes how far it is: nothing that commits
// later may have a version that the reader has passed.
func TestNoChangeIsSkipped(t *testing.T) {
	t.Parallel()
	w, _ := newWriter(t)
	const writers, each = 8, 25
	done := make(chan struct{})
	var group sync.WaitGroup
	for n := range writers {
		group.Go(func() {
			seller := id.Make(int64(n+1), routing.Slot(n), false)
			var mine []id.ID
			for i := range each {
				if len(mine) > 0 && rand.IntN(3) == 0 {
					price := int64(1 + rand.IntN(1000))
					if _, err := w.change(t.Context(), seller, mine[rand.IntN(len(mine))], catalogapi.Change{Price: &price}); err != nil {
						t.Error(err)
					}
					continue
				}
				mine = append(mine, w.mustCreate(t, seller, fmt.Sprint(i), newProduct("x", 100)).ID)
			}
		})
	}
	go func() { group.Wait(); close(done) }()

	seen := map[id.ID]int64{}
	at, last := int64(0), false
	for {
		f, err := w.store.feed(t.Context(), "", at, 7)
		if err != nil {
			t.Fatal(err)
		}
		prev := at
		for _, p := range f.Products {
			if p.Version <= prev || p.Version > f.Upto || p.Version > f.Newest {
				t.Fatalf("version %d after %d, up to %d, newest %d", p.Version, prev, f.Upto, f.Newest)
			}
			prev = p.Version
			seen[p.ID] = p.Version
		}
		at = f.Upto
		if last && at == f.Newest {
			break
		}
		select {
		case <-done:
			last = true
		default:
		}
	}
	all, err := w.store.feed(t.Context(), "", 0, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all.Products {
		if seen[p.ID] != p.Version {
			t.Errorf("product %d: version %d was seen last, %d is the newest", p.ID, seen[p.ID], p.Version)
		}
	}
	if len(seen) != len(all.Products) {
		t.Errorf("%d products seen, there are %d", len(seen), len(all.Products))
	}
}

// A key used at once from many sides makes one product.
func TestOneKeyOneProduct(t *testing.T) {
	t.Parallel()
	w, _ := newWriter(t)
	var group sync.WaitGroup
	var mu sync.Mutex
	bodies := map[string]bool{}
	for range 16 {
		group.Go(func() {
			waitFor(t, func() error { // who is told "in flight", or that 16 at once are too many, asks again
				r, _, err := w.create(t.Context(), alice, "k", newProduct("A pen", 100))
				if err != nil && !errors.Is(err, pg.ErrKeyInFlight) && !errs.IsKind(err, errs.Unavailable) {
					t.Error(err)
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					bodies[string(r.Body)] = true
				}
				return err
			})
		})
	}
	group.Wait()
	f, err := w.store.feed(t.Context(), "", 0, 100)
	if err != nil || len(f.Products) != 1 || len(bodies) != 1 {
		t.Errorf("%d products, %d answers, %v; want one of each", len(f.Products), len(bodies), err)
	}
}

// contents is all that a copy has.
func contents(t testing.TB, f *follower) (out []catalogapi.Product) {
	t.Helper()
	out, err := products(t.Context(), f.store.pool, `SELECT `+productColumns+` FROM catalog.products ORDER BY version`, "catalog.skus")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestRebuild(t *testing.T) {
	t.Parallel()
	w, wdb := newWriter(t)
	f, db := newCopy(t, direct{w})
	const n = catalogapi.MaxFeed + 30 // two answers
	seedMany(t, w, n)
	if at := f.mustStep(t); at.complete || at.version == 0 {
		t.Errorf("after one answer of two: %+v", at)
	}
	first := f.mustStep(t)
	if !first.complete || first.rebuilding || first.version != n+8 {
		t.Errorf("after both answers: %+v", first)
	}
	want := contents(t, f)
	if len(want) != n {
		t.Fatalf("%d products, want %d", len(want), n)
	}

	wipe := `TRUNCATE catalog.products, catalog.skus, catalog.categories, catalog.copy; INSERT INTO catalog.copy DEFAULT VALUES`
	if _, err := db.Super.Exec(t.Context(), wipe); err != nil {
		t.Fatal(err)
	}
	f.mustStep(t)
	if at := f.mustStep(t); !at.complete || at.version != first.version || at.generation == first.generation {
		t.Errorf("a wiped copy: %+v, was %+v", at, first)
	}
	if diff := cmp.Diff(want, contents(t, f)); diff != "" {
		t.Errorf("a wiped copy: %s", diff)
	}

	// The writer's database is replaced by an older one: what it doesn't have goes,
	// and until it is known what that is, all is served.
	_, err := wdb.Super.Exec(t.Context(), `DELETE FROM catalogw.skus WHERE product_id IN (SELECT id FROM catalogw.products WHERE version > 508);
		DELETE FROM catalogw.products WHERE version > 508;
		UPDATE catalogw.products SET title = 'restored' WHERE version = 9;
		UPDATE catalogw.counter SET newest = 508, history = gen_random_uuid()`)
	if err != nil {
		t.Fatal(err)
	}
	before := *f.at.Load()
	after := f.mustStep(t)
	if after.generation != before.generation+1 || !after.complete {
		t.Errorf("after the first answer of another history: %+v, before %+v", after, before)
	}
	if list := contents(t, f); !after.rebuilding && len(list) != 500 || after.rebuilding && len(list) != n {
		t.Errorf("rebuilding %v with %d products", after.rebuilding, len(list))
	}
	if after.rebuilding {
		after = f.mustStep(t)
	}
	got := contents(t, f)
	if len(got) != 500 || got[0].Title != "restored" || after.version != 508 {
		t.Errorf("%d products, first %q, at %+v; want 500 of the other history", len(got), got[0].Title, after)
	}
}

func seedMany(t testing.TB, w *writer, n int) {
	t.Helper()
	work := make(chan int)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for i := range work {
				if _, _, err := w.create(t.Context(), alice, fmt.Sprint("many ", i), newProduct(fmt.Sprint("book ", i), 100, 200)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	group.Wait()
}

// An answer that comes late, twice, or was asked for by another process of the
// cell changes nothing.
func TestApplyOnlyWhereAsked(t *testing.T) {
	t.Parallel()
	w, _ := newWriter(t)
	f, _ := newCopy(t, direct{w})
	w.mustCreate(t, alice, "1", newProduct("one", 100))
	from, err := f.store.position(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	old, err := w.store.feed(t.Context(), "", 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	w.mustCreate(t, alice, "2", newProduct("two", 100))
	at := f.mustStep(t)
	if got, err := f.store.apply(t.Context(), from, old); err != nil || got != at {
		t.Errorf("apply of an old answer = %+v, %v; want it left at %+v", got, err, at)
	}
	if list := contents(t, f); len(list) != 2 {
		t.Errorf("%d products, want 2", len(list))
	}
}

// Feeds are away for a while: what is here is served on, and the copy comes back
// by itself.
func TestFeedAway(t *testing.T) {
	t.Parallel()
	w, _ := newWriter(t)
	var s swap
	s.set(direct{w})
	f, _ := newCopy(t, &s)
	f.mustStep(t)
	s.set(broken{})
	start(t, f)
	p := w.mustCreate(t, alice, "1", newProduct("one", 100))
	e := copyEcho(f, noCache())
	if rec := ask(t, e, request{method: "GET", path: "/api/v1/products"}); rec.Code != 200 || rec.Header().Get(catalogapi.HeaderVersion) != "8" {
		t.Errorf("with the feed away: %d, version %s", rec.Code, rec.Header().Get(catalogapi.HeaderVersion))
	}
	s.set(direct{w})
	f.caughtUp(t, w)
	if _, err := f.store.product(t.Context(), p.ID); err != nil {
		t.Error(err)
	}
}

// swap is a feed that changes.
type swap struct {
	mu sync.Mutex
	f  feeder
}

func (s *swap) set(f feeder) { s.mu.Lock(); s.f = f; s.mu.Unlock() }

func (s *swap) Feed(ctx context.Context, history string, after int64, wait time.Duration) (catalogapi.Feed, error) {
	s.mu.Lock()
	f := s.f
	s.mu.Unlock()
	return f.Feed(ctx, history, after, wait)
}

func TestLongTextsAreCutIntoAnswers(t *testing.T) {
	t.Parallel()
	list := slices.Repeat([]catalogapi.Product{{Description: strings.Repeat("灯", maxDescription), SKUs: make([]catalogapi.Variant, maxVariants)}}, catalogapi.MaxFeed)
	n := fits(list)
	if n < 1 || n == len(list) {
		t.Errorf("fits = %d of %d", n, len(list))
	}
	list[0].Description = strings.Repeat("x", maxFeedBytes)
	if n := fits(list); n != 1 {
		t.Errorf("fits = %d, want at least one", n)
	}
	if n := fits(nil); n != 0 {
		t.Errorf("fits(nil) = %d", n)
	}
}

// The application may not touch what only migrations write.
func TestGrants(t *testing.T) {
	t.Parallel()
	w, _ := newWriter(t)
	for _, sql := range []string{
		`INSERT INTO catalogw.categories (id, name, position, version) VALUES ('cars', 'Cars', 9, 99)`,
		`DELETE FROM catalogw.products`, `DELETE FROM catalogw.counter`, `TRUNCATE catalogw.idempotency`,
	} {
		if _, err := w.store.pool.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s: %v, want permission denied", sql, err)
		}
	}
}
