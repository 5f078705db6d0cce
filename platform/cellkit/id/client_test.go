package id

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/cellmart/platform/routing"
)

// lessor stands for idgen: unique ranges from its time floor up.
type lessor struct {
	mu      sync.Mutex
	hi      int64
	flying  map[string]int
	maxFly  int
	asked   []int64 // sizes
	away    error
	cut     int64 // leases are cut to this, when set
	latency time.Duration
}

func (l *lessor) lease(ctx context.Context, kind string, floor, size int64) (int64, int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flying == nil {
		l.flying = map[string]int{}
	}
	l.flying[kind]++
	defer func() { l.flying[kind]-- }()
	l.maxFly = max(l.maxFly, l.flying[kind])
	l.asked = append(l.asked, size)
	if l.latency > 0 {
		l.mu.Unlock()
		select {
		case <-time.After(l.latency):
		case <-ctx.Done():
		}
		l.mu.Lock()
		if ctx.Err() != nil {
			return 0, 0, ctx.Err()
		}
	}
	if l.away != nil {
		return 0, 0, l.away
	}
	lo := max(l.hi, floor, SeqAt(time.Now()))
	l.hi = lo + size
	if l.cut > 0 && size > l.cut {
		l.hi = lo + l.cut
	}
	return lo, l.hi, nil
}

func (l *lessor) setAway(err error) { l.mu.Lock(); l.away = err; l.mu.Unlock() }

// bubble runs f inside synctest with today's date: its clock starts in 2000.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		<-time.After(time.Until(Epoch.Add(300 * 24 * time.Hour)))
		f(t)
	})
}

// start runs a client until the test ends.
func start(t *testing.T, o Options) *Client {
	t.Helper()
	c := NewClient(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return c
}

// marks remembers sequences, a bit each.
type marks struct{ pages sync.Map }

type page [1 << 14]atomic.Uint64

// add is false when the sequence was there already.
func (m *marks) add(seq int64) bool {
	p, ok := m.pages.Load(seq >> 20)
	if !ok {
		p, _ = m.pages.LoadOrStore(seq>>20, new(page))
	}
	bit := uint64(1) << (seq & 63)
	return p.(*page)[seq>>6&(1<<14-1)].Or(bit)&bit == 0
}

func TestNextBeforeAndAfterTheFirstLease(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		l := &lessor{latency: time.Second}
		c := start(t, Options{Lease: l.lease, Kinds: []string{"order", "user"}})
		if _, err := c.Next("order", 5); !errors.Is(err, ErrExhausted) {
			t.Errorf("Next before a lease: %v, want ErrExhausted", err)
		}
		short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := c.Wait(short, "order"); !errors.Is(err, ErrExhausted) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait for 10 ms: %v, want ErrExhausted because of the deadline", err)
		}
		if err := c.Wait(t.Context(), "order"); err != nil {
			t.Fatal(err)
		}
		i, err := c.Next("order", 77)
		if err != nil || i.Slot() != 77 || i.Fallback() || i.Seq() < SeqAt(time.Now())-100*1000 {
			t.Errorf("Next = %d (slot %d, seq %d), %v", i, i.Slot(), i.Seq(), err)
		}
		for _, bad := range []struct {
			kind string
			slot routing.Slot
			want error
		}{{"cat", 1, ErrKind}, {"order", -1, ErrSlot}, {"order", routing.Slots, ErrSlot}} {
			if _, err := c.Next(bad.kind, bad.slot); !errors.Is(err, bad.want) {
				t.Errorf("Next(%s, %d): %v, want %v", bad.kind, bad.slot, err, bad.want)
			}
		}
		if err := c.Wait(t.Context(), "cat"); !errors.Is(err, ErrKind) {
			t.Errorf("Wait(cat): %v, want ErrKind", err)
		}
		if err := c.Run(t.Context()); err == nil {
			t.Error("a second Run was let through: two refill paths")
		}
	})
}

// S-I07: one flight per kind, segments in order, the step follows the rate, and
// at 5,000 IDs/s, then 80,000, with a slow idgen nobody finds the stock empty.
func TestScenario_I07_OneFlightInOrderStepAdapts(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		l := &lessor{latency: 80 * time.Millisecond}
		c := start(t, Options{Lease: l.lease, Kinds: []string{"order"}})
		if err := c.Wait(t.Context(), "order"); err != nil {
			t.Fatal(err)
		}
		var last int64
		for ms := range 30_000 {
			perMilli := 5
			if ms > 1000 {
				perMilli = 80 // the rate goes up 16 times
			}
			for range perMilli {
				i, err := c.Next("order", 1)
				if err != nil {
					t.Fatalf("a caller found nothing: %v, %+v", err, c.Stats())
				}
				if i.Seq() <= last {
					t.Fatalf("sequence %d after %d", i.Seq(), last)
				}
				last = i.Seq()
			}
			<-time.After(time.Millisecond)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		st := c.Stats()[0]
		if l.maxFly != 1 || st.Waits != 0 || st.Ranges != int64(len(l.asked)) {
			t.Errorf("%d in flight, stats %+v", l.maxFly, st)
		}
		if want := []int64{FirstLease, MaxLease, MaxLease, MaxLease}; !slices.Equal(l.asked, want) {
			t.Errorf("asked for %v, want %v", l.asked, want)
		}
		if st.Rate < 75_000 || st.Rate > 85_000 || st.StockS == nil || *st.StockS < 5 {
			t.Errorf("stats %+v, want about 80,000 a second", st)
		}
	})
}

func TestStepFollowsASlowRate(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		l := &lessor{}
		c := start(t, Options{Lease: l.lease, Kinds: []string{"order"}})
		for range 6_000 { // 10 a second: 18,000 last half an hour
			<-time.After(100 * time.Millisecond)
			if _, err := c.Next("order", 1); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		if n := len(l.asked); n != 2 || l.asked[1] < 17_900 || l.asked[1] > 18_100 {
			t.Errorf("asked for %v, want 1,000 and about 18,000", l.asked)
		}
	})
}

// A range cut down to one ID must neither be lost nor make the client hoard.
func TestLeasesCutShort(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		l := &lessor{cut: 1}
		c := start(t, Options{Lease: l.lease, Kinds: []string{"order"}})
		synctest.Wait()
		for n := range 50 {
			if _, err := c.Next("order", 1); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if st := c.Stats()[0]; st.Stock != 1 || st.Ranges != int64(n+2) {
				t.Fatalf("after %d: %+v, want one in stock", n+1, st)
			}
		}
	})
}

// With idgen away the stock goes on, then callers are told at once; when it is
// back they are served again without a restart.
func TestIdgenAway(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		l := &lessor{}
		c := start(t, Options{Lease: l.lease, Kinds: []string{"order"}})
		synctest.Wait()
		l.setAway(errors.New("connection refused"))
		for range FirstLease {
			if _, err := c.Next("order", 1); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(time.Hour)
		before := time.Now()
		_, err := c.Next("order", 1)
		if !errors.Is(err, ErrExhausted) || !time.Now().Equal(before) {
			t.Errorf("Next = %v after %v, want ErrExhausted at once", err, time.Since(before))
		}
		st := c.Stats()[0]
		if st.Failures < 3600/5 || st.Failures > 3600/2 || st.Waits != 1 || st.Stock != 0 {
			t.Errorf("after an hour: %+v, want a try every 2.5 to 5 s", st)
		}
		l.setAway(nil)
		<-time.After(backoffMax)
		if _, err := c.Next("order", 1); err != nil {
			t.Errorf("idgen is back: %v", err)
		}
	})
}

// A lease that never answers is given up, its range forgotten.
func TestLeaseTimesOut(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		l := &lessor{latency: time.Hour}
		c := start(t, Options{Lease: l.lease, Kinds: []string{"order"}})
		<-time.After(leaseLimit + time.Millisecond)
		l.mu.Lock()
		l.latency = 0
		l.mu.Unlock()
		<-time.After(backoffMin)
		if st := c.Stats()[0]; st.Failures != 1 || st.Ranges != 1 {
			t.Errorf("%+v, want one failure, one lease", st)
		}
	})
}

func TestGrantsAreChecked(t *testing.T) {
	t.Parallel()
	now := Epoch.Add(300 * 24 * time.Hour)
	at := SeqAt(now)
	day := SeqAt(Epoch.Add(24 * time.Hour))
	for _, tc := range []struct {
		name                string
		lo, hi, floor, size int64
		ok                  bool
	}{
		{"as asked", at, at + 1000, at, 1000, true},
		{"cut short", at + 5, at + 6, at, 1000, true},
		{"below the last", at - 1, at + 10, at, 1000, false},
		{"the last one again", at - 1000, at, at, 1000, false},
		{"too long", at, at + 1001, at, 1000, false},
		{"empty", at, at, at, 1000, false},
		{"turned round", at + 10, at, 0, 1000, false},
		{"negative", -5, 5, -10, 1000, false},
		{"overflowing", 5, -1 << 63, 0, 1000, false},
		{"above 48 bits", MaxSeq, MaxSeq + 1, at, 1000, false},
		{"an hour ahead", at + day/24, at + day/24 + 1, at, 1000, true},
		{"a day ahead", at + day + 6_000_000, at + day + 6_000_001, at, 1000, false},
		{"an hour behind", at - day/24, at - day/24 + 1, 0, 1000, true},
		{"a day behind", at - day - 1, at - day, 0, 1000, false},
	} {
		if err := CheckGrant(Grant{Lo: tc.lo, Hi: tc.hi, Floor: tc.floor, Size: tc.size, Now: now}); (err == nil) != tc.ok {
			t.Errorf("%s: %v, want ok = %v", tc.name, err, tc.ok)
		}
	}
}

// unlucky is the way to idgen on a bad day: answers are lost, repeated, or
// wrong in every way that a client can see by itself.
func unlucky(r *rand.Rand, lease LeaseFunc) LeaseFunc {
	var lastLo, lastHi int64
	return func(ctx context.Context, kind string, floor, size int64) (int64, int64, error) {
		fault := r.IntN(10)
		if fault == 0 {
			return 0, 0, errors.New("refused")
		}
		lo, hi, err := lease(ctx, kind, floor, size)
		if err != nil {
			return 0, 0, err
		}
		oldLo, oldHi := lastLo, lastHi
		lastLo, lastHi = lo, hi
		switch fault {
		case 1:
			return 0, 0, errors.New("answer lost")
		case 2, 3:
			return oldLo, oldHi, nil // a doubled or late answer
		case 4:
			return floor - 1, floor - 1 + size, nil
		case 5:
			return lo, lo + size + 1, nil
		}
		return lo, hi, nil
	}
}

// S-I06 and the client's share of "no ID twice": several clients of one idgen,
// many goroutines each, on a bad day.
func TestScenario_I06_NoIDTwice(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		r := seeded(t)
		l := &lessor{latency: time.Millisecond, cut: 10_000}
		const want = 3_000_000
		var (
			got     marks
			n, twin atomic.Int64
			wg      sync.WaitGroup
			clients []*Client
		)
		for range 3 {
			lease := unlucky(rand.New(rand.NewPCG(r.Uint64(), 2)), l.lease)
			c := start(t, Options{Lease: lease, Kinds: []string{"order"}})
			clients = append(clients, c)
			for range 4 {
				wg.Go(func() {
					for n.Load() < want {
						i, err := c.Next("order", 3)
						if err != nil {
							<-time.After(time.Millisecond)
							continue
						}
						n.Add(1)
						if !got.add(i.Seq()) {
							twin.Add(1)
						}
					}
				})
			}
		}
		wg.Wait()
		if twin.Load() != 0 {
			t.Errorf("%d of %d IDs were given twice", twin.Load(), n.Load())
		}
		for _, c := range clients {
			t.Logf("%+v", c.Stats()[0])
		}
	})
}
