package idgen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/idgen/idgenapi"
)

// Crashes between every two steps, a killed connection among them, with the row
// looked at and with the row known: whatever was told before stays above all, and
// the next lease works.
func TestCrashBetweenSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.runs = true // in step with the database's clock: a known row is tried first
	last := mustLease(t, b.service(t), order(1000))
	for _, tc := range []struct {
		known bool
		step  string
	}{{false, "locked"}, {false, "decided"}, {false, "committed"}, {true, "decided"}, {true, "committed"}} {
		for _, kill := range []bool{false, true} {
			s := b.service(t)
			if tc.known {
				last = mustLease(t, s, order(1000))
			}
			looked := false
			s.store.step = func(name string) error {
				looked = looked || name == "locked"
				if name != tc.step {
					return nil
				}
				if kill {
					b.super(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'cellmart_app'")
					return nil
				}
				return errCrash
			}
			got, err := s.lease(t.Context(), order(1000))
			if (err == nil) != (kill && tc.step == "committed") || looked == tc.known {
				t.Errorf("%+v, kill %v: %+v, %v, the row was looked at: %v", tc, kill, got, err, looked)
			}
			if kill && err != nil && !errs.IsKind(err, errs.Unavailable) {
				t.Errorf("%+v, connection killed: %v, want Unavailable", tc, err)
			}
			if err == nil {
				last = got
			}
			next := mustLease(t, b.service(t), order(1000)) // s may hold a dead connection
			if next.Lo < last.Hi {
				t.Errorf("%+v, kill %v: leased %+v after %+v", tc, kill, next, last)
			}
			last = next
		}
	}
}

// What one instance knows of a row is only tried: another's lease, another life of
// the database, a pause, and a clock out of step all make it look.
func TestKnownRowIsOnlyTried(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.runs = true
	s, other := b.service(t), b.service(t)
	looks := 0
	s.store.step = func(name string) error {
		if name == "locked" {
			looks++
		}
		return nil
	}
	last := mustLease(t, s, order(10))
	again := func(name string, want int) {
		t.Helper()
		looks = 0
		l := mustLease(t, s, order(10))
		if looks != want || l.Lo < last.Hi {
			t.Errorf("%s: looked %d times, want %d; leased %+v after %+v", name, looks, want, l, last)
		}
		last = l
	}
	again("nobody came between", 0)
	last = mustLease(t, other, order(10))
	again("another instance came between", 1)
	again("nobody came between", 0)
	b.off = -2 * time.Second
	again("the clock is out of step", 1)
	b.off = 0
	again("in step", 0)
	b.super(t, "UPDATE idgen.kinds SET incarnation = 'another' WHERE kind = 'order'")
	looks = 0
	if _, err := s.lease(t.Context(), order(10)); !errors.Is(err, idgenapi.ErrPaused) || looks != 1 {
		t.Errorf("another incarnation: %v after %d looks, want a pause after one", err, looks)
	}
}

// Several idgens on one database, many callers of each, clocks some seconds
// apart: no range twice, none overlaps, and the journal has each.
func TestManyInstancesAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var (
		mu  sync.Mutex
		all []idgenapi.Lease
		wg  sync.WaitGroup
	)
	for n := range 3 {
		s := b.service(t)
		s.clock = func() time.Time { return time.Now().Add(time.Duration(n-1) * 700 * time.Millisecond) }
		s.store.databaseClock = func(shows time.Time) time.Time { return shows }
		for c := range 8 {
			wg.Go(func() {
				for range 25 {
					l, err := s.lease(t.Context(), idgenapi.LeaseRequest{Kind: idgenapi.Order, Size: 100, Holder: fmt.Sprint(n, "/", c)})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					all = append(all, l)
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	slices.SortFunc(all, func(a, b idgenapi.Lease) int { return int(a.Lo - b.Lo) })
	var journal int
	if err := b.Super.QueryRow(t.Context(), "SELECT count(*) FROM idgen.journal").Scan(&journal); err != nil || journal != len(all) || len(all) != 600 {
		t.Errorf("%d leases, the journal has %d, %v", len(all), journal, err)
	}
	for i := 1; i < len(all); i++ {
		if all[i].Lo < all[i-1].Hi {
			t.Fatalf("%+v after %+v: an overlap", all[i], all[i-1])
		}
	}
	// Each instance learns of the others' holders by the journal.
	s := b.service(t)
	l, err := s.lease(t.Context(), order(100))
	if err != nil || l.Holders != 25 || l.Left <= 0 || l.Left > id.PerMilli*id.Budget.Milliseconds() {
		t.Errorf("a fresh instance says %+v, %v, want 24 holders and its own", l, err)
	}
}

// Who waits is served in one transaction, and who goes away holds nobody up.
func TestWaitersShareATransaction(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.service(t)
	begun, hold := make(chan struct{}), make(chan struct{})
	var commits int
	s.store.step = func(name string) error {
		switch {
		case name == "committed":
			commits++
		case name == "locked" && commits == 0:
			close(begun)
			<-hold
		}
		return nil
	}
	var wg sync.WaitGroup
	wg.Go(func() { mustLease(t, s, order(10)) })
	<-begun
	gone, leave := context.WithCancel(t.Context())
	wg.Go(func() {
		if _, err := s.lease(gone, order(10)); !errors.Is(err, context.Canceled) {
			t.Errorf("who went away got %v", err)
		}
	})
	var mu sync.Mutex
	ends := map[int64]bool{}
	for range 50 {
		wg.Go(func() {
			l := mustLease(t, s, order(10))
			mu.Lock()
			defer mu.Unlock()
			ends[l.Hi] = true
		})
	}
	q := s.queues[number(idgenapi.Order)-1]
	waitFor(t, func() bool { q.mu.Lock(); defer q.mu.Unlock(); return len(q.waiting) == 51 })
	leave()
	close(hold)
	wg.Wait()
	if commits != 2 || len(ends) != 50 {
		t.Errorf("%d transactions and %d leases for one and then fifty", commits, len(ends))
	}
	var journal int64
	if err := b.Super.QueryRow(t.Context(), "SELECT count(*) FROM idgen.journal").Scan(&journal); err != nil || journal != 51 {
		t.Errorf("the journal has %d leases, %v, want 51", journal, err)
	}
}

// Over the budget everyone still gets something: nobody is refused.
func TestOverBudgetIsCutShort(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.service(t)
	s.clock = time.Now
	s.store.databaseClock = func(shows time.Time) time.Time { return shows }
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 10 {
				l, err := s.lease(t.Context(), order(1_000_000))
				if err != nil || l.Hi <= l.Lo {
					t.Errorf("over the budget: %+v, %v", l, err)
				}
			}
		})
	}
	wg.Wait()
	st, err := s.status(t.Context())
	if k := st.Kinds[number(idgenapi.Order)-1]; err != nil || k.BudgetUsed < 0.9 || k.BudgetUsed > 1 || b.leases(t, idgenapi.Order) != 160 {
		t.Errorf("status %+v, %v", k, err)
	}
}

func waitFor(t *testing.T, holds func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(limit) {
			t.Fatal("waited a minute in vain")
		}
		<-time.After(time.Millisecond)
	}
}

func BenchmarkLease(b *testing.B) {
	bb := setup(b)
	s := bb.service(b)
	s.clock, s.store.databaseClock = time.Now, func(shows time.Time) time.Time { return shows }
	plain, err := pg.OpenGlobal(b.Context(), bb.DSN, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(plain.Close)
	bb.super(b, "CREATE TABLE IF NOT EXISTS public.plain (hi bigint); INSERT INTO public.plain VALUES (0); GRANT ALL ON public.plain TO PUBLIC")
	ours := func() { mustLease(b, s, order(1)) }
	update := func() {
		var hi int64
		if err := plain.QueryRow(b.Context(), "UPDATE public.plain SET hi = hi + 1 RETURNING hi").Scan(&hi); err != nil {
			b.Fatal(err)
		}
	}
	for _, callers := range []int{1, 16} {
		for name, one := range map[string]func(){"ours": ours, "update returning": update} {
			b.Run(fmt.Sprintf("%s/%d", name, callers), func(b *testing.B) {
				b.ReportAllocs()
				var wg sync.WaitGroup
				for c := range callers {
					wg.Go(func() {
						for n := c; n < b.N; n += callers {
							one()
						}
					})
				}
				wg.Wait()
			})
		}
	}
}
