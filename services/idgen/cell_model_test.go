package idgen

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/idbank"
	"example.com/cellmart/services/idgen/idgenapi"
)

type cellState struct {
	book   idbank.Book
	ranges map[string][]idbank.Range
}

// cellDB is the cell's database without Postgres: the real decisions over a book
// that is committed, lost or put back by chance.
type cellDB struct {
	mu sync.Mutex
	m  *model
	cellState
	history []cellState // committed
	offset  atomic.Int64

	// tamper takes a guard away: it may change what is about to be stored.
	tamper func(was, is *idbank.Book)
}

func (d *cellDB) clock() time.Time { return time.Now().Add(time.Duration(d.offset.Load())) }

// Update commits, or not, or commits and says it didn't know.
func (d *cellDB) Update(_ context.Context, kind string, fn func(*idbank.Book) error) error {
	fate := d.m.chance(15)
	d.mu.Lock()
	defer d.mu.Unlock()
	if fate == 0 {
		return errCrash
	}
	k := d.book
	k.Clock, k.Ranges = d.clock(), slices.Clone(d.ranges[kind])
	was := k
	was.Ranges = slices.Clone(k.Ranges)
	if err := fn(&k); err != nil {
		return err
	}
	if d.tamper != nil {
		d.tamper(&was, &k)
	}
	if fate == 1 {
		return errCrash
	}
	ranges := maps.Clone(d.ranges)
	if k.Lost != "" && k.Ranges == nil {
		ranges = map[string][]idbank.Range{}
	}
	ranges[kind] = k.Ranges
	k.Lost = ""
	d.commit(k, ranges)
	if fate == 2 {
		return errCrash
	}
	return nil
}

func (d *cellDB) commit(k idbank.Book, ranges map[string][]idbank.Range) {
	d.history = append(d.history, d.cellState)
	if len(d.history) > 64 {
		d.history = d.history[32:]
	}
	d.cellState = cellState{k, ranges}
}

// Deposit is one more commit.
func (d *cellDB) Deposit(_ context.Context, kind string, r idbank.Range) error {
	fate := d.m.chance(15)
	d.mu.Lock()
	defer d.mu.Unlock()
	if fate > 0 {
		ranges := maps.Clone(d.ranges)
		ranges[kind] = append(slices.Clone(ranges[kind]), r)
		d.commit(d.book, ranges)
	}
	if fate < 2 {
		return errCrash
	}
	return nil
}

func (d *cellDB) Look(context.Context) (idbank.Look, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := idbank.Look{Stock: map[string]int64{}}
	for kind, ranges := range d.ranges {
		for _, r := range ranges {
			out.Stock[kind] += r.Hi - r.Lo
		}
	}
	return out, nil
}

// restore puts the database back by up to eight commits; promoted: on a timeline of its own.
func (d *cellDB) restore(promoted bool) {
	back := d.m.chance(8)
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.history); n > 0 {
		old := d.history[max(0, n-1-back)]
		old.book.Timeline = d.book.Timeline
		d.cellState = old
	}
	if promoted {
		d.book.Timeline += "I"
	}
}

func (d *cellDB) step(by time.Duration) { d.offset.Add(int64(by)) }

// memory is the agent's file, with an end of the agent before and after it is written.
type memory struct {
	mu      sync.Mutex
	m       *model
	mark    idbank.Mark
	have    bool
	history []idbank.Mark
	late    bool // a guard is off: what was attested is on disk only with the next
	pending *idbank.Mark
}

func (f *memory) Recall(context.Context) (idbank.Mark, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mark, f.have, nil
}

func (f *memory) Attest(_ context.Context, m idbank.Mark) error {
	fate := f.m.chance(20)
	f.mu.Lock()
	defer f.mu.Unlock()
	if fate == 0 {
		return errCrash
	}
	if f.late && f.have {
		next := f.pending
		f.pending = &m
		if next == nil {
			return nil
		}
		m = *next
	}
	f.history = append(f.history, f.mark)
	f.mark, f.have = m, true
	if fate == 1 {
		return errCrash
	}
	return nil
}

// lose is a disk that lost the file; back one that has an old one.
func (f *memory) lose() { f.mu.Lock(); f.have = false; f.mu.Unlock() }

func (f *memory) back() {
	n := f.m.chance(8)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.history) > 0 {
		f.mark = f.history[max(0, len(f.history)-1-n)]
	}
}

// cellModel is idgen, a cell with its agent, and processes that come and go.
type cellModel struct {
	*model
	db    *cellDB
	file  *memory
	judge func(idbank.Mark, bool, idbank.Mark) string
	check func(id.Grant) error

	bank  atomic.Pointer[idbank.Bank]
	away  atomic.Bool // idgen doesn't answer
	count struct{ segment, fallback, twice, none atomic.Int64 }
	marks sync.Map
}

func newCellModel(seed uint64) *cellModel {
	m := newModel(seed)
	m.most = 50_000
	db := &cellDB{m: m, cellState: cellState{idbank.Book{System: "7", Timeline: "I", Ordinal: 5}, map[string][]idbank.Range{}}}
	return &cellModel{model: m, db: db, file: &memory{m: m}}
}

func (c *cellModel) ask(ctx context.Context, kind string, floor, size int64) (int64, int64, error) {
	if c.away.Load() {
		return 0, 0, errCrash
	}
	return c.lease(ctx, kind, floor, size)
}

// agent runs one agent after the other.
func (c *cellModel) agent(ctx context.Context) {
	for ctx.Err() == nil {
		life, cancel := context.WithTimeout(ctx, time.Duration(c.chance(120)+1)*time.Second)
		b := idbank.Open(idbank.Options{
			Cell: "c5", Database: c.db, Witness: c.file, Lease: c.ask, Clock: c.db.clock, Judge: c.judge,
			Budgets: func(context.Context) (map[string]idbank.Budget, error) {
				return map[string]idbank.Budget{idgenapi.Order: {}}, nil
			},
		})
		c.bank.Store(b)
		_ = b.Run(life)
		cancel()
	}
}

// answered loses answers and repeats them.
func answered[T any](c *cellModel, last *T, give func() (T, error)) (T, error) {
	fate := c.chance(12)
	got, err := give()
	if err != nil {
		return got, err
	}
	before := *last
	*last = got
	switch fate {
	case 0:
		var none T
		return none, errCrash
	case 1:
		return before, nil
	}
	return got, nil
}

func (c *cellModel) process(ctx context.Context, name string, want int64) {
	var lastRange idbank.Withdrawal
	var lastGrant id.FallbackGrant
	client := id.NewClient(id.Options{
		Lease: c.ask, Kinds: []string{idgenapi.Order}, Clock: c.db.clock, Check: c.check,
		Bank: func(ctx context.Context, kind string, _, size int64) (int64, int64, error) {
			r, err := answered(c, &lastRange, func() (idbank.Withdrawal, error) {
				return c.bank.Load().Withdraw(ctx, idbank.WithdrawRequest{Kind: kind, Size: min(size, 20_000), Holder: name})
			})
			return r.Lo, r.Hi, err
		},
		Fallback: func(ctx context.Context, size int64) (id.FallbackGrant, error) {
			return answered(c, &lastGrant, func() (id.FallbackGrant, error) {
				return c.bank.Load().Fallback(ctx, idbank.FallbackRequest{Holder: name, Size: size})
			})
		},
	})
	life, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = client.Run(life) })
	left := c.chance(60_000)
	for left > 0 && !c.enough(want) && c.count.twice.Load() == 0 && ctx.Err() == nil {
		for range c.chance(400) {
			i, err := client.Next(idgenapi.Order, 9)
			if err != nil {
				c.count.none.Add(1)
				break
			}
			left--
			c.mark(i)
		}
		c.bank.Load().Heard(client.Report(name))
		<-time.After(time.Duration(c.chance(500)+1) * time.Millisecond)
	}
	cancel()
	running.Wait()
}

// enough says that want IDs are out, and some of either source; or that a source
// gave none in twenty times as many.
func (c *cellModel) enough(want int64) bool {
	segment, fallback := c.count.segment.Load(), c.count.fallback.Load()
	return segment+fallback >= 20*want || segment+fallback >= want && segment > 0 && fallback > 0
}

func (c *cellModel) mark(i id.ID) {
	key := i.Seq()
	if i.Fallback() { // dense: the machine above its counter
		key = 1<<60 | key&255<<40 | key>>8
		c.count.fallback.Add(1)
	} else {
		c.count.segment.Add(1)
	}
	type page [1 << 10]atomic.Uint64
	p, ok := c.marks.Load(key >> 16)
	if !ok {
		p, _ = c.marks.LoadOrStore(key>>16, new(page))
	}
	if bit := uint64(1) << (key & 63); p.(*page)[key>>6&(1<<10-1)].Or(bit)&bit != 0 {
		c.count.twice.Add(1)
	}
}

// run has twelve processes at a time, four more than there are machines, until
// want IDs are out of both sources; event happens every few seconds. It ends early at the first
// ID that was given twice.
func (c *cellModel) run(t *testing.T, want int64, event func()) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
	var wg, others sync.WaitGroup
	c.bank.Store(idbank.Open(idbank.Options{Cell: "c5", Database: c.db, Witness: c.file, Clock: c.db.clock, Judge: c.judge}))
	others.Go(func() { c.agent(ctx) })
	others.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-time.After(time.Duration(c.chance(4000)) * time.Millisecond):
				c.away.Store(c.chance(3) > 0)
				event()
			case <-ctx.Done():
			}
		}
	})
	for p := range 12 {
		wg.Go(func() {
			for n := 0; !c.enough(want) && c.count.twice.Load() == 0 && ctx.Err() == nil; n++ {
				c.process(ctx, fmt.Sprintf("c5/order/%d-%d", p, n), want)
			}
		})
	}
	began := time.Now()
	wg.Wait()
	cancel()
	others.Wait()
	t.Logf("%d IDs out of segments, %d out of the fallback, %d twice, %d callers found none, in %v; counter %d", c.count.segment.Load(),
		c.count.fallback.Load(), c.count.twice.Load(), c.count.none.Load(), time.Since(began).Round(time.Second), c.db.book.Counter)
	return c.count.twice.Load()
}

func inCellModel(t *testing.T, f func(t *testing.T, c *cellModel)) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		<-time.After(time.Until(noon))
		f(t, newCellModel(seed))
	})
}

// storms are everything that may go wrong, by what the guards have to stand.
func (c *cellModel) storm(kind string) func() {
	steps := []time.Duration{-time.Millisecond, -10 * time.Second, 10 * time.Second, -time.Hour, time.Hour}
	return func() {
		switch kind {
		case "databases go back":
			if c.chance(3) == 0 {
				c.restore()
			}
			if c.chance(4) == 0 {
				c.db.restore(c.chance(2) == 0)
			}
		case "the cell's database goes back":
			if c.chance(4) == 0 {
				c.db.restore(c.chance(2) == 0)
			}
		case "clocks jump and the cell's database goes back":
			c.db.step(steps[c.chance(len(steps))])
			if c.chance(3) == 0 {
				c.db.restore(c.chance(2) == 0)
			}
		case "the file is lost with the database":
			if c.chance(4) == 0 {
				c.db.restore(false)
				c.file.lose()
			}
		case "file and database go back, by a promotion":
			c.file.back()
			c.db.restore(true)
		}
	}
}

// S-I03, S-I08: leases, client, bank and fallback together, with ends between
// every two steps, restores, promotions, lost files, jumping clocks, lost and
// repeated answers, and more processes than machines: ranges that processes hold
// outlive all of it, a rest is nobody's, and no ID is given twice.
func TestScenario_I03_WholeModel(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{
		"nothing but crashes", "databases go back", "clocks jump and the cell's database goes back",
		"the file is lost with the database", "file and database go back, by a promotion",
	} {
		t.Run(kind, func(t *testing.T) {
			inCellModel(t, func(t *testing.T, c *cellModel) {
				if twice := c.run(t, total(t)/4, c.storm(kind)); twice != 0 {
					t.Errorf("%d IDs were given twice", twice)
				}
				if c.count.fallback.Load() == 0 || c.count.segment.Load() == 0 {
					t.Error("a source was never used: the model proves nothing about it")
				}
			})
		})
	}
}

// The model must be able to fail: with each guard taken away in turn it finds an
// ID twice.
func TestWholeModelFindsWhatEachGuardPrevents(t *testing.T) {
	t.Parallel()
	believe := func(idbank.Mark, bool, idbank.Mark) string { return "" }
	for _, tc := range []struct {
		guard, storm string
		off          func(c *cellModel)
	}{
		{"idgen's pause", "databases go back", func(c *cellModel) { c.blind, c.most, c.row.incarnation = true, id.MaxLease, "as ever" }},
		{"the check of grants", "nothing but crashes", func(c *cellModel) { c.check = func(id.Grant) error { return nil } }},
		{"the counter outside the database", "the cell's database goes back", func(c *cellModel) { c.judge = believe }},
		{"the file before the answer", "the cell's database goes back", func(c *cellModel) { c.file.late = true }},
		{"a timeline beside the counter", "file and database go back, by a promotion", func(c *cellModel) {
			c.judge = func(file idbank.Mark, have bool, db idbank.Mark) string {
				file.Timeline = db.Timeline
				return idbank.Judge(file, have, db)
			}
		}},
		{"a lost file is the worst", "the file is lost with the database", func(c *cellModel) {
			c.judge = func(file idbank.Mark, have bool, db idbank.Mark) string {
				return map[bool]string{true: idbank.Judge(file, true, db)}[have]
			}
		}},
		{"a ceiling stored before use", "nothing but crashes", func(c *cellModel) {
			c.db.tamper = func(was, is *idbank.Book) { is.Machines = was.Machines }
		}},
		{"a withdrawal stored before use", "nothing but crashes", func(c *cellModel) {
			c.db.tamper = func(was, is *idbank.Book) { is.Ranges = was.Ranges }
		}},
		{"the bank emptied when the database went back", "the cell's database goes back", func(c *cellModel) {
			c.db.tamper = func(was, is *idbank.Book) {
				if is.Lost != "" {
					is.Ranges = append([]idbank.Range{}, was.Ranges...)
				}
			}
		}},
		{"ceilings lifted when the database went back", "the cell's database goes back", func(c *cellModel) {
			c.db.tamper = func(was, is *idbank.Book) {
				if is.Lost != "" {
					is.Machines = was.Machines
				}
			}
		}},
	} {
		t.Run(tc.guard, func(t *testing.T) {
			for range 40 {
				found := false
				inCellModel(t, func(t *testing.T, c *cellModel) {
					tc.off(c)
					found = c.run(t, 1_000_000, c.storm(tc.storm)) > 0
				})
				if found {
					return
				}
			}
			t.Errorf("no ID twice without %s: the model proves nothing of it", tc.guard)
		})
	}
}
