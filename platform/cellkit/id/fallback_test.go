package id

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sony/sonyflake/v2"

	"example.com/cellmart/platform/routing"
)

// The layout is the library's own, with its default generator's neighbours: what
// we compose it takes apart, what it composes we take apart, and 48 bits do.
func TestFallbackLayout(t *testing.T) {
	t.Parallel()
	lib, err := sonyflake.New(sonyflake.Settings{BitsSequence: 9, BitsMachineID: 8, TimeUnit: time.Second,
		StartTime: Epoch, MachineID: func() (int, error) { return 0, nil }})
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCodec()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		second         int64
		count, machine int
		want           int64
	}{
		{0, 0, 8, 8},
		{0, 1, 8, 264},
		{1, 0, 8, 131_080},
		{28_771_200, 300, 1<<3 | 5, 3_771_098_803_213}, // 2026-11-30T00:00:00Z
		{1<<31 - 1, 511, 255, MaxSeq},                  // 2094-01-19T03:14:07Z
	} {
		got, err := c.compose(tc.machine, tc.second<<9|int64(tc.count))
		theirs, err2 := lib.Compose(Epoch.Add(time.Duration(tc.second)*time.Second), tc.count, tc.machine)
		bits := tc.second<<17 | int64(tc.count)<<8 | int64(tc.machine)
		if err != nil || err2 != nil || got != tc.want || got != theirs || got != bits {
			t.Errorf("second %d, count %d, machine %d: %d, %v; the library %d, %v; by hand %d; want %d", tc.second, tc.count, tc.machine, got, err, theirs, err2, bits, tc.want)
		}
		i := Make(got, 16383, true)
		p, ok := i.Parts()
		want := FallbackParts{At: Epoch.Add(time.Duration(tc.second) * time.Second), Ordinal: tc.machine >> 3, Number: tc.machine & 7, Count: tc.count}
		if !ok || p != want || i < 0 || !i.Fallback() || i.Slot() != 16383 || i.Seq() != got {
			t.Errorf("%d: parts %+v, %v, want %+v", i, p, ok, want)
		}
	}
	if end := Epoch.Add((1<<31 - 1) * time.Second); end.Year() != 2094 || FallbackAt(end) != FallbackEnd-512 {
		t.Errorf("the counter ends %v at %d", end, FallbackAt(end))
	}
	if _, ok := Make(77, 5, false).Parts(); ok {
		t.Error("an ID out of a segment has a fallback's parts")
	}
}

// cellStock stands for the agent's bank and fallback.
type cellStock struct {
	mu       sync.Mutex
	bank     int64 // left in the bank
	lo       int64
	counter  int64
	machine  int
	away     error
	asks     int
	lastSize int64
}

func (s *cellStock) withdraw(_ context.Context, _ string, _, size int64) (int64, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asks++
	s.lastSize = size
	if s.bank == 0 {
		return 0, 0, errors.New("the bank is empty")
	}
	n := min(size, s.bank)
	s.bank -= n
	s.lo += n
	return s.lo - n, s.lo, nil
}

func (s *cellStock) numbers(_ context.Context, size int64) (FallbackGrant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away != nil {
		return FallbackGrant{}, s.away
	}
	lo := max(s.counter, FallbackAt(time.Now()))
	s.counter = lo + size
	return FallbackGrant{Machine: s.machine, Lo: lo, Hi: s.counter}, nil
}

// Segments, then the bank, then the fallback, at 5,000 IDs/s with idgen away: not
// one caller finds nothing, and every ID says where it came from.
func TestSourcesInOrder(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		l := &lessor{away: errors.New("connection refused")}
		s := &cellStock{bank: 700_000, lo: SeqAt(time.Now()) - 1_000_000, machine: 3<<3 | 2}
		c := start(t, Options{Lease: l.lease, Bank: s.withdraw, Fallback: s.numbers, Kinds: []string{"order"}})
		if err := c.Wait(t.Context(), "order"); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Millisecond)
		var got marks
		var segment, fallback int64
		for ms := range 200_000 {
			for range 5 {
				i, err := c.Next("order", 9)
				if err != nil {
					t.Fatalf("a caller found nothing after %d ms: %v, %+v", ms, err, c.Report("x"))
				}
				if i.Fallback() {
					fallback++
				} else {
					segment++
				}
				if !got.add(int64(i) >> 14) {
					t.Fatalf("ID %d twice", i)
				}
			}
			if ms == 180_000 {
				l.setAway(nil)
			}
			<-time.After(time.Millisecond)
		}
		st, r := c.Stats()[0], c.Report("c1/order/1")
		if st.Waits != 0 || st.Banked != 700_000 || st.Fallback != fallback || st.Given != segment || *st.Share != 1 || st.Quarantined != 0 {
			t.Errorf("%d and %d given: %+v", segment, fallback, st)
		}
		if fallback < 100_000 || fallback > 230_000 || r.Fallback.Machine != 26 {
			t.Errorf("%d out of the fallback, %+v: want about 900,000 - 700,000", fallback, r.Fallback)
		}
	})
}

func TestNoSourceAtAll(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		away := errors.New("connection refused")
		l, s := &lessor{away: away}, &cellStock{machine: 8, away: away}
		c := start(t, Options{Lease: l.lease, Bank: s.withdraw, Fallback: s.numbers, Kinds: []string{"order"}})
		for range 1_000 {
			if _, err := c.Next("order", 9); !errors.Is(err, ErrExhausted) {
				t.Fatalf("Next = %v, want ErrExhausted", err)
			}
			<-time.After(time.Millisecond)
		}
		if st := c.Stats()[0]; st.Waits != 1000 || *st.Share != 0 || st.StockS != nil || st.BudgetUsed != nil {
			t.Errorf("%+v, want 1,000 waits, and nothing else known", st)
		}
		s.mu.Lock()
		asks := s.asks
		s.mu.Unlock()
		if asks > 20 {
			t.Errorf("the bank was asked %d times in a second", asks)
		}
	})
}

func TestFallbackGrantsAreChecked(t *testing.T) {
	t.Parallel()
	now := Epoch.Add(300 * 24 * time.Hour)
	at := FallbackAt(now)
	const hour = 3600 << 9
	for _, tc := range []struct {
		name    string
		machine int
		lo, hi  int64
		ok      bool
	}{
		{"as asked", 8, at, at + 1000, true},
		{"above the last", 9, at + 500, at + 600, true},
		{"below the last", 9, at + 499, at + 600, false},
		{"another cell's machine", 16, at, at + 1000, false},
		{"no cell's machine", 7, at, at + 1000, false},
		{"not a machine", 256, at, at + 1000, false},
		{"empty", 8, at, at, false},
		{"too long", 8, at, at + 1001, false},
		{"beyond the counter", 8, FallbackEnd - 1, FallbackEnd, false},
		{"an hour ahead", 8, at + hour, at + hour + 1, true},
		{"26 hours ahead", 8, at + 26*hour, at + 26*hour + 1, false},
		{"a day behind", 8, at - 24*hour - 512, at - 24*hour, false},
	} {
		f := newFallback(func(context.Context, int64) (FallbackGrant, error) { return FallbackGrant{}, nil })
		f.ordinal, f.ends[9] = 1, at+500
		if err := f.check(FallbackGrant{Machine: tc.machine, Lo: tc.lo, Hi: tc.hi}, 1000, now); (err == nil) != tc.ok {
			t.Errorf("%s: %v, want ok = %v", tc.name, err, tc.ok)
		}
	}
}

// A grant that isn't believed is shown, and never used.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		first := true
		var gave span
		lease := func(_ context.Context, _ string, floor, size int64) (int64, int64, error) {
			if first {
				first = false
				gave = span{SeqAt(time.Now()), SeqAt(time.Now()) + 10}
			}
			return gave.lo, gave.hi, nil // the same for ever
		}
		c := start(t, Options{Lease: lease, Kinds: []string{"order"}})
		<-time.After(time.Second)
		for n := range 20 {
			_, err := c.Next("order", 1)
			if (err == nil) != (n < 10) {
				t.Errorf("call %d: %v, want 10 IDs", n, err)
			}
			<-time.After(time.Second)
		}
		st := c.Stats()[0]
		if st.Quarantined == 0 || st.Quarantine[0].Source != "idgen" || st.Quarantine[0].Lo != gave.lo || len(st.Quarantine) > 5 {
			t.Errorf("%+v, want the grants that came again", st)
		}
	})
}

// What overlaps any of the last 256 ranges is found, what lies between is not.
func TestSpans(t *testing.T) {
	t.Parallel()
	var s spans
	for n := range int64(1000) {
		s.add(n*10, n*10+5)
	}
	if len(s) != maxSpans {
		t.Errorf("%d spans are kept", len(s))
	}
	for n := int64(1000 - maxSpans); n < 999; n++ {
		for lo := n*10 - 2; lo < n*10+9; lo++ {
			overlap := lo < n*10+5 && lo+2 > n*10 || lo+2 > n*10+10
			if err := s.overlap(lo, lo+2); (err != nil) != overlap {
				t.Fatalf("[%d, %d) beside [%d, %d): %v", lo, lo+2, n*10, n*10+5, err)
			}
		}
	}
}

func TestFallbackNextDoesNotAllocate(t *testing.T) {
	c := fallbackOnly(t)
	if n := testing.AllocsPerRun(1000, func() {
		if i, err := c.Next("order", 7); err != nil || !i.Fallback() {
			t.Fatal(i, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a fallback ID", n)
	}
}

// fallbackOnly is a client that has nothing but fallback numbers.
func fallbackOnly(t testing.TB) *Client {
	t.Helper()
	c := NewClient(Options{
		Kinds:    []string{"user", "product", "sku", "order"},
		Fallback: func(context.Context, int64) (FallbackGrant, error) { return FallbackGrant{}, context.Canceled },
	})
	c.fallback.append(8<<fallbackBits|1, 8<<fallbackBits|FallbackEnd-1)
	return c
}

func BenchmarkNextFallback(b *testing.B) {
	c := fallbackOnly(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		slot := routing.Slot(rand.IntN(routing.Slots))
		for pb.Next() {
			if _, err := c.Next("order", slot); err != nil {
				b.Error(err)
			}
		}
	})
}
