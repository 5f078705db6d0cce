package routing_test

import (
	"crypto/ed25519"
	"fmt"
	"testing"

	"example.com/cellmart/platform/routing"
)

// many makes a table of n cells with scattered owners and standbys.
func many(b testing.TB, n int) *routing.Table {
	b.Helper()
	spec := routing.Spec{Version: 1, Slots: make([]routing.Assignment, routing.Slots)}
	for i := range min(n, routing.MaxOrdinal) {
		spec.Cells = append(spec.Cells, routing.Cell{Name: fmt.Sprintf("c%d", i+1), Ordinal: i + 1, Weight: 1})
	}
	n = len(spec.Cells)
	for i := range spec.Slots {
		spec.Slots[i] = routing.Assignment{Owner: spec.Cells[i*7919%n].Name, Standby: spec.Cells[(i*7919+1)%n].Name, Epoch: 1}
	}
	return mustBuild(b, spec)
}

func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{4, 64, 1023} {
		b.Run(fmt.Sprintf("cells=%d", n), func(b *testing.B) {
			var h routing.Holder
			h.Store(many(b, n))
			b.ReportAllocs()
			id, found := int64(1), 0
			for b.Loop() {
				id = id*6364136223846793005 + 1442695040888963407
				if a, ok := h.Load().Slot(routing.SlotOf(id >> 20)); ok && a.Owner != "" {
					found++
				}
			}
			if found != b.N {
				b.Fatal("not found")
			}
		})
	}
}

func BenchmarkOwner(b *testing.B) {
	table := many(b, 4)
	b.ReportAllocs()
	id := int64(1)
	for b.Loop() {
		id = id*6364136223846793005 + 1442695040888963407
		if _, ok := table.Owner(id >> 20); !ok {
			b.Fatal("not found")
		}
	}
}

// BenchmarkOpen is what every process does at the same time when a table is
// published: one of four cells in exact shares, and one in which every slot is a
// run of its own.
func BenchmarkOpen(b *testing.B) {
	spec := routing.Spread([]string{"c1", "c2", "c3", "c4"}).Spec()
	spec.Version = 1
	for name, table := range map[string]*routing.Table{"shares": mustBuild(b, spec), "scattered": many(b, 4)} {
		b.Run(name, func(b *testing.B) {
			priv := key(1)
			doc := routing.Sign(priv, table).Bytes()
			b.SetBytes(int64(len(doc)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := routing.Open(priv.Public().(ed25519.PublicKey), doc); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestTablesAreSmall: a table of four cells makes less than 128 KB of garbage when
// it is opened. All processes of a cell open it in the same moment.
func TestTablesAreSmall(t *testing.T) {
	doc := routing.Spread([]string{"c1", "c2", "c3", "c4"}).Encode()
	r := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := routing.Decode(doc); err != nil {
				b.Fatal(err)
			}
		}
	})
	if n := r.AllocedBytesPerOp(); n <= 0 || n > 128<<10 {
		t.Errorf("%d bytes, want at most 128 KB", n)
	}
}

// TestLookupAllocatesNothing keeps the hot path free of garbage.
func TestLookupAllocatesNothing(t *testing.T) {
	var h routing.Holder
	h.Store(many(t, 64))
	var a routing.Assignment
	if n := testing.AllocsPerRun(100, func() {
		a, _ = h.Load().Slot(77)
		a, _ = h.Load().Slot(routing.CellSlot(3))
		a.Owner, _ = h.Load().Owner(1 << 40)
		_, _ = routing.PickSlot(h.Load(), "c1", 5)
	}); n != 0 {
		t.Errorf("%v allocations, want 0 (%v)", n, a)
	}
}
