package idgen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/idgen/idgenapi"
)

// model is idgen without a database: decide over a row that is committed, lost
// or rolled back by chance, and a clock that is stepped.
type model struct {
	mu      sync.Mutex
	r       *rand.Rand
	row     row
	history []row // committed rows
	life    int   // of the database
	most    int64 // a lease's size: small for many leases, large to run ahead of time
	blind   bool  // the guard is off: changes of the database aren't seen
	offset  time.Duration
	apart   time.Duration // the second idgen's clock is ahead of the first's by this
	last    idgenapi.Lease
	refused map[string]int
}

var errCrash = errors.New("crashed")

func newModel(seed uint64) *model {
	m := &model{most: 100_000, r: rand.New(rand.NewPCG(seed, 1)), refused: map[string]int{}}
	m.row = row{found: true, incarnation: m.incarnation()}
	return m
}

func (m *model) incarnation() string {
	if m.blind {
		return "as ever"
	}
	return fmt.Sprint(m.life)
}

func (m *model) clock() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Now().Add(m.offset)
}

func (m *model) chance(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.r.IntN(n)
}

// lease is what stands between a client and idgen's database. fate says after
// which step it all goes wrong.
func (m *model) lease(_ context.Context, _ string, floor, size int64) (int64, int64, error) {
	<-time.After(time.Duration(m.chance(50)) * time.Millisecond)
	m.mu.Lock()
	defer m.mu.Unlock()
	fate := m.r.IntN(12)
	if fate == 0 { // before the lock, or with it and before the commit: no difference
		return 0, 0, errCrash
	}
	now := time.Now().Add(m.offset)
	next, lease, err := decide(m.row, m.incarnation(), idgenapi.LeaseRequest{Floor: floor, Size: min(size, m.most)}, clocks{own: now.Add(m.apart * time.Duration(m.r.IntN(2))), database: now})
	if fate == 1 { // decided, not committed
		return 0, 0, errCrash
	}
	if next != m.row {
		m.row = next
		m.history = append(m.history, next)
	}
	if err != nil {
		m.refused[errs.From(err).Code]++
		return 0, 0, err
	}
	before := m.last
	m.last = lease
	switch fate {
	case 2: // committed, the answer lost
		return 0, 0, errCrash
	case 3: // a doubled answer instead of the new one
		if before.Hi <= floor { // this client's own, or older: what it can tell by itself
			return before.Lo, before.Hi, nil
		}
	}
	return lease.Lo, lease.Hi, nil
}

func (m *model) step(d time.Duration) { m.mu.Lock(); m.offset += d; m.mu.Unlock() }

// restore puts the database back by up to three commits, as a copy from
// before, a promoted standby or a disk that forgot would.
func (m *model) restore() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.life++
	if n := len(m.history); n > 0 {
		m.row = m.history[max(0, n-1-m.r.IntN(4))]
	}
}

// run has processes come and go, each with a client and four goroutines that
// take IDs, until want are out; event happens every few seconds meanwhile. It
// gives how many were given twice.
func (m *model) run(t *testing.T, want int64, event func()) (twice int64) {
	t.Helper()
	var (
		marks       sync.Map
		taken, twin atomic.Int64
		wg          sync.WaitGroup
		stop        = make(chan struct{})
	)
	mark := func(seq int64) {
		type page [1 << 12]atomic.Uint64
		p, ok := marks.Load(seq >> 18)
		if !ok {
			p, _ = marks.LoadOrStore(seq>>18, new(page))
		}
		if bit := uint64(1) << (seq & 63); p.(*page)[seq>>6&(1<<12-1)].Or(bit)&bit != 0 {
			twin.Add(1)
		}
	}
	process := func() {
		c := id.NewClient(id.Options{Lease: m.lease, Kinds: []string{idgenapi.Order}, Clock: m.clock})
		ctx, cancel := context.WithCancel(t.Context())
		var running, takers sync.WaitGroup
		running.Go(func() { _ = c.Run(ctx) })
		life, idle := int64(m.chance(500_000)), 2000
		if m.chance(2) == 0 {
			idle = 100 // greedy: leases run ahead of time until the budget stops them
		}
		var own atomic.Int64
		for range 4 {
			takers.Go(func() {
				for own.Load() < life && taken.Load() < want {
					for range m.chance(4000) {
						i, err := c.Next(idgenapi.Order, 9)
						if err != nil {
							break
						}
						own.Add(1)
						taken.Add(1)
						mark(i.Seq())
					}
					<-time.After(time.Duration(m.chance(idle)) * time.Millisecond)
				}
			})
		}
		takers.Wait()
		cancel()
		running.Wait()
	}
	for range 3 {
		wg.Go(func() {
			for taken.Load() < want {
				process()
			}
		})
	}
	var events sync.WaitGroup
	events.Go(func() {
		for {
			select {
			case <-time.After(time.Duration(m.chance(20_000)) * time.Millisecond):
				event()
			case <-stop:
				return
			}
		}
	})
	began := time.Now()
	wg.Wait()
	close(stop)
	events.Wait()
	t.Logf("%d IDs, %d twice, %v, %d rows, %d lives, refused %v", taken.Load(), twin.Load(), time.Since(began).Round(time.Second), len(m.history), m.life, m.refused)
	return twin.Load()
}

func inModel(t *testing.T, f func(t *testing.T, m *model)) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		<-time.After(time.Until(noon)) // the bubble's clock starts in 2000
		f(t, newModel(seed))
	})
}

// S-I02: the clock steps back by 1 ms, 10 s, 1 h and forward by 1 h while
// leases go on: nothing is given twice, and when it is behind that is said.
func TestScenario_I02_ClockSteps(t *testing.T) {
	t.Parallel()
	inModel(t, func(t *testing.T, m *model) {
		steps := []time.Duration{-time.Millisecond, -10 * time.Second, -time.Hour, time.Hour}
		if twice := m.run(t, total(t), func() { m.step(steps[m.chance(len(steps))]) }); twice != 0 {
			t.Errorf("%d IDs were given twice", twice)
		}
		for code := range m.refused {
			if code != idgenapi.ErrClock.Code && code != idgenapi.ErrBudget.Code {
				t.Errorf("refused as %s", code)
			}
		}
	})
}

// The database loses its last commits again and again, by restore, promotion or
// disk, with crashes between every two steps of a lease.
func TestDatabaseGoesBack(t *testing.T) {
	t.Parallel()
	inModel(t, func(t *testing.T, m *model) {
		m.most, m.apart = id.MaxLease, 20*time.Second // more than the pause has to spare
		event := func() {
			if m.chance(4) == 0 {
				m.restore()
			}
			m.step(time.Duration(m.chance(5)-2) * time.Millisecond)
		}
		if twice := m.run(t, total(t), event); twice != 0 {
			t.Errorf("%d IDs were given twice", twice)
		}
	})
}

// The model must be able to fail: without the guard it finds duplicates, by
// chance in nearly every round.
func TestModelFindsWhatAPausePrevents(t *testing.T) {
	t.Parallel()
	for range 10 {
		found := false
		inModel(t, func(t *testing.T, m *model) {
			m.blind, m.most = true, id.MaxLease
			m.row.incarnation = m.incarnation()
			found = m.run(t, 3_000_000, m.restore) > 0
		})
		if found {
			return
		}
	}
	t.Error("no duplicate without the incarnation's pause: the model proves nothing")
}

func total(t *testing.T) int64 {
	if testing.Short() {
		return 1_000_000
	}
	return 10_000_000
}
