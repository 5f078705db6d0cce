package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sort"
	"testing"
	"time"

	"example.com/cellmart/platform/routing"
)

const lookupCells = 4

// routeLookup compares the route table with the usual consistent hashing, both in
// process and warm.
func routeLookup(ctx context.Context, _ io.Writer) ([]row, error) { return lookups(ctx, 50, 1<<16) }

// lookups alternates ring and table for so many rounds of so many lookups, a round
// being short enough to run uninterrupted; the best round of each counts, since
// whatever else runs here only adds time.
func lookups(ctx context.Context, rounds, n int) ([]row, error) {
	table, err := lookupTable(lookupCells)
	if err != nil {
		return nil, err
	}
	var holder routing.Holder
	holder.Store(table)
	ring := newRing(cellNames(lookupCells), 500)
	const never = time.Duration(1<<63 - 1)
	bestRing, bestTable := never, never
	for range rounds {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		bestRing = min(bestRing, byRing(ring, n))
		bestTable = min(bestTable, byTable(&holder, n))
	}
	perOp := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(n) }
	ours := compare("route-lookup", "ns/op", perOp(bestTable), perOp(bestRing), "<= 1/20 of the ring",
		func(ratio float64) bool { return ratio <= 1.0/20 },
		fmt.Sprintf("table: load the pointer, find the owner of an ID; ring: %d cells of 500 virtual nodes, FNV-1a 64 of the ID's 8 bytes "+
			"with murmur3's finalizer, sort.Search; random IDs, best of %d rounds of %d, in turn", lookupCells, rounds, n))
	const runs = 1000
	allocs := compare("route-lookup/allocs", "allocs/op",
		testing.AllocsPerRun(runs, func() { byTable(&holder, 1) }), testing.AllocsPerRun(runs, func() { byRing(ring, 1) }), "0", nil, "")
	none := *allocs.Ours == 0
	allocs.OK = &none
	return []row{ours, allocs}, nil
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
			r = append(r, token{mix(fnv1a([]byte(fmt.Sprintf("unit%d#%d", i, v)))), cell})
		}
	}
	sort.Slice(r, func(i, j int) bool { return r[i].hash < r[j].hash })
	return r
}

func (r ring) owner(id int64) string {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(id))
	return r.find(mix(fnv1a(b[:])))
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

// mix is murmur3's finalizer: FNV alone leaves neighbours near each other.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
