package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sort"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/cellmart/e2e/bench/rings"
	"example.com/cellmart/platform/routing"
)

const (
	lookupCells = 4
	vnodes      = 500
	overrides   = 10_000 // users moved alone, in the resolver's table
)

// routeLookup compares the route table with the usual consistent hashing, both in
// process and warm.
func routeLookup(ctx context.Context, _ io.Writer) ([]row, error) { return lookups(ctx, 5, 10, 1<<16) }

// best runs each side so many times, in turn, and gives the ns of the quickest
// run of each: a run is short enough to go uninterrupted, and whatever else runs
// here only adds time. Each is warmed first, else it pays for what the one before
// it threw out of the processor's caches.
func best(ctx context.Context, times, n int, sides ...func(n int) time.Duration) ([]float64, error) {
	ns := make([]float64, len(sides))
	for i := range times {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for k, side := range sides {
			side(n / 4)
			if perOp := float64(side(n).Nanoseconds()) / float64(n); i == 0 || perOp < ns[k] {
				ns[k] = perOp
			}
		}
	}
	return ns, nil
}

// lookups makes all lines from the best of five times so many rounds of n lookups.
func lookups(ctx context.Context, times, rounds, n int) ([]row, error) {
	var holders []*routing.Holder
	sizes := []int{lookupCells, 64, routing.MaxOrdinal}
	for _, cells := range sizes {
		h, err := held(lookupTable(cells))
		if err != nil {
			return nil, err
		}
		holders = append(holders, h)
	}
	moved, err := held(movedTable())
	if err != nil {
		return nil, err
	}
	keys := keysOf(1 << 14)
	small, large := newRing(cellNames(lookupCells), vnodes), newRing(cellNames(routing.MaxOrdinal), vnodes)
	sides := []func(int) time.Duration{
		func(n int) time.Duration { return byTable(holders[0], n) },
		func(n int) time.Duration { return byTable(holders[1], n) },
		func(n int) time.Duration { return byTable(holders[2], n) },
		func(n int) time.Duration { return byRing(small, n) },
		func(n int) time.Duration { return byRing(large, n) },
		func(n int) time.Duration { return byHome(moved, n, overrides) }, // only users who were moved
		func(n int) time.Duration { return byHome(moved, n, 1<<40) },     // nearly nobody who was
	}
	libraries := rings.All(cellNames(lookupCells), vnodes)
	for _, l := range libraries {
		sides = append(sides, func(n int) time.Duration { return byKey(l.Owner, keys, n) })
	}
	ns, err := best(ctx, times*rounds, n, sides...)
	if err != nil {
		return nil, err
	}
	how := fmt.Sprintf("random IDs, best of %d runs in turn, each %d rounds of %d lookups", times, rounds, n)
	rows := []row{compare("route-lookup", "ns/op", ns[0], ns[3], "<= 1/20 of the ring",
		func(ratio float64) bool { return ratio <= 1.0/20 },
		fmt.Sprintf("table: load the pointer, find the owner of an ID, not waiting for the one before; ring: %d cells of %d virtual nodes, FNV-1a 64 of the ID's 8 bytes "+
			"with murmur3's finalizer, sort.Search; %s", lookupCells, vnodes, how))}
	rows = append(rows, noAllocs("route-lookup/allocs", func() { byTable(holders[0], 1) }, func() { byRing(small, 1) }))
	rows = append(rows, compare("route-lookup/flat", "ns/op", ns[2], ns[0], "<= 1.5 of 4 cells", func(ratio float64) bool { return ratio <= 1.5 },
		fmt.Sprintf("the table of %d cells, the most there can be, beside that of %d; of %d: %.2f ns; the ring of %d cells: %.0f ns",
			sizes[2], sizes[0], sizes[1], ns[1], sizes[2], ns[4])))
	resolver := compare("route-lookup/resolver", "ns/op", ns[5], ns[0], "<= 25 ns", nil,
		fmt.Sprintf("Table.Home with %d users moved alone, asked for those only, the slowest there is; for anybody, of whose slots nearly half have lost a user: %.2f ns", overrides, ns[6]))
	quick := *resolver.Ours <= 25
	resolver.OK = &quick
	rows = append(rows, resolver, noAllocs("route-lookup/resolver-allocs", func() { byHome(moved, 1, overrides) }, func() { byTable(holders[0], 1) }))
	for i, l := range libraries {
		rows = append(rows, compare("route-lookup/"+l.Name, "ns/op", ns[0], ns[7+i], shown, nil,
			fmt.Sprintf("%s, %d cells, %d virtual nodes where it has any; its keys are strings of 8 bytes, made before", l.Doc, lookupCells, vnodes)))
	}
	swap, err := swapped(ctx, times)
	return append(rows, swap), err
}

// noAllocs makes a line whose goal is that ours makes no garbage.
func noAllocs(name string, ours, baseline func()) row {
	const runs = 1000
	r := compare(name, "allocs/op", testing.AllocsPerRun(runs, ours), testing.AllocsPerRun(runs, baseline), "0", nil, "")
	none := *r.Ours == 0
	r.OK = &none
	return r
}

func held(t *routing.Table, err error) (*routing.Holder, error) {
	var h routing.Holder
	if err != nil {
		return nil, err
	}
	h.Store(t)
	return &h, nil
}

// next walks over pseudo-random IDs; both sides pay for it.
func next(id int64) int64 { return id*6364136223846793005 + 1442695040888963407 }

func byTable(h *routing.Holder, n int) time.Duration {
	start := time.Now()
	id, found := int64(1), 0
	for range n {
		id = next(id)
		if cell, ok := h.Load().Owner(id >> 20); ok {
			found += len(cell)
		}
	}
	return used(start, found)
}

// byHome asks for the users that movedTable moved, of so many users from 0 on.
func byHome(h *routing.Holder, n int, users uint64) time.Duration {
	start := time.Now()
	id, found := int64(1), 0
	for range n {
		id = next(id)
		if _, a, ok := h.Load().Home(movedUser(uint64(id) >> 20 % users)); ok {
			found += len(a.Owner)
		}
	}
	return used(start, found)
}

func byKey(owner func(string) string, keys []string, n int) time.Duration {
	start := time.Now()
	id, found := int64(1), 0
	for range n {
		id = next(id)
		found += len(owner(keys[int(uint64(id)>>20%uint64(len(keys)))]))
	}
	return used(start, found)
}

func byRing(r ring, n int) time.Duration {
	start := time.Now()
	id, found := int64(1), 0
	for range n {
		id = next(id)
		found += len(r.owner(id >> 20))
	}
	return used(start, found)
}

// used keeps the compiler from dropping the lookups.
func used(start time.Time, found int) time.Duration {
	d := time.Since(start)
	if found == 0 {
		panic("bench: no lookup found a cell")
	}
	return d
}

func cellNames(n int) (names []string) {
	for k := range n {
		names = append(names, fmt.Sprintf("c%d", k+1))
	}
	return names
}

func keysOf(n int) (keys []string) {
	id := int64(1)
	for range n {
		id = next(id)
		keys = append(keys, string(binary.LittleEndian.AppendUint64(nil, uint64(id>>20))))
	}
	return keys
}

// movedUser gives the n-th user's ID: one user after the other in every slot.
func movedUser(n uint64) int64 { return int64((n + 1) * 11400714819323198485 >> 1) }

// movedTable is lookupTable with some users moved alone, each to a slot of their
// own, all over the hash slots.
func movedTable() (*routing.Table, error) {
	base, err := lookupTable(lookupCells)
	if err != nil {
		return nil, err
	}
	spec := base.Spec()
	spec.Overrides = make(map[int64]routing.Slot, overrides)
	for n := range overrides {
		slot := routing.FirstUserSlot + routing.Slot(n)
		user := movedUser(uint64(n))
		from, _ := base.Slot(routing.SlotOf(user))
		spec.Private[slot] = routing.Assignment{Owner: from.Standby, Standby: from.Owner, Epoch: 1}
		spec.Overrides[user] = slot
	}
	return routing.Build(spec)
}

// lookupTable scatters owners and standbys, as after many moves.
func lookupTable(cells int) (*routing.Table, error) {
	spec := routing.Spec{Version: 1, Slots: make([]routing.Assignment, routing.Slots)}
	for i, name := range cellNames(cells) {
		spec.Cells = append(spec.Cells, routing.Cell{Name: name, Ordinal: i + 1, Weight: 1})
	}
	for i := range spec.Slots {
		spec.Slots[i] = routing.Assignment{Owner: spec.Cells[i*7919%cells].Name, Standby: spec.Cells[(i*7919+1)%cells].Name, Epoch: 1}
	}
	return routing.Build(spec)
}

// ring is consistent hashing with virtual nodes, the way it is usually written.
type ring []token

type token struct {
	hash uint64
	cell string
}

func newRing(cells []string, vnodes int) ring {
	var r ring
	for i, cell := range cells {
		for v := range vnodes {
			r = append(r, token{routing.Murmur(fnv1a([]byte(fmt.Sprintf("unit%d#%d", i, v)))), cell})
		}
	}
	sort.Slice(r, func(i, j int) bool { return r[i].hash < r[j].hash })
	return r
}

func (r ring) owner(id int64) string {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(id))
	return r.find(routing.Murmur(fnv1a(b[:])))
}

func (r ring) find(hash uint64) string {
	i := sort.Search(len(r), func(i int) bool { return r[i].hash >= hash })
	if i == len(r) {
		i = 0
	}
	return r[i].cell
}

func fnv1a(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h ^= uint64(c)
		h *= 1099511628211
	}
	return h
}

// swaps is how many tables are stored under the readers of one run, a millisecond
// apart; readers is how many there are.
const (
	swaps   = 100
	readers = 8
)

// swapped measures lookups of 8 readers while tables are stored: by the holder,
// and by a pointer behind a read lock. It counts looks that saw two tables at once.
func swapped(ctx context.Context, times int) (row, error) {
	base, err := lookupTable(lookupCells)
	if err != nil {
		return row{}, err
	}
	tables := make([]*routing.Table, swaps)
	for v := range tables {
		spec := base.Spec()
		spec.Version = int64(v)
		for i := range spec.Slots {
			spec.Slots[i].Epoch = routing.Epoch(v + 1) // so that a row says which table it is of
		}
		if tables[v], err = routing.Build(spec); err != nil {
			return row{}, err
		}
	}
	ours, locked, mixed := 0.0, 0.0, int64(0)
	for i := range times {
		if err := ctx.Err(); err != nil {
			return row{}, err
		}
		var h routing.Holder
		perOp, seen := underSwaps(tables, func(t *routing.Table) { h.Store(t) }, h.Load)
		mixed += seen
		var mu sync.RWMutex
		var held *routing.Table
		behind, seen := underSwaps(tables,
			func(t *routing.Table) { mu.Lock(); defer mu.Unlock(); held = t },
			func() *routing.Table { mu.RLock(); defer mu.RUnlock(); return held })
		mixed += seen
		if i == 0 || perOp < ours {
			ours = perOp
		}
		if i == 0 || behind < locked {
			locked = behind
		}
	}
	r := compare("route-lookup/swap", "ns/op", ours, locked, "0 mixed", nil,
		fmt.Sprintf("%d readers while %d tables are stored 1 ms apart, all processors together, best of %d in turn; baseline: a pointer behind sync.RWMutex; "+
			"%d lookups saw a mix of tables or an older one than before", readers, swaps, times, mixed))
	sound := mixed == 0
	r.OK = &sound
	return r, nil
}

// underSwaps gives the ns of a lookup, all readers together, and how many lookups
// saw what no single table has, or time running backwards.
func underSwaps(tables []*routing.Table, store func(*routing.Table), load func() *routing.Table) (perOp float64, mixed int64) {
	store(tables[0])
	var looked, wrong atomic.Int64
	var stop atomic.Bool
	var all sync.WaitGroup
	start := time.Now()
	for k := range readers {
		all.Go(func() {
			id, last, n, bad := int64(k), int64(0), int64(0), int64(0)
			for !stop.Load() {
				for range 64 { // the flag is looked at rarely, it isn't what is measured
					id = next(id)
					t := load()
					a, _ := t.Slot(routing.SlotOf(id >> 20))
					if int64(a.Epoch) != t.Version()+1 || t.Version() < last {
						bad++
					}
					last = t.Version()
					n++
				}
			}
			looked.Add(n)
			wrong.Add(bad)
		})
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for _, t := range tables[1:] {
		<-tick.C
		store(t)
	}
	stop.Store(true)
	all.Wait()
	return float64(time.Since(start).Nanoseconds()) / float64(looked.Load()), wrong.Load()
}
