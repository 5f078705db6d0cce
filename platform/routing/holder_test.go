package routing_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"example.com/cellmart/platform/routing"
)

// version makes a table whose every slot says which version it is from.
func version(t testing.TB, v int64) *routing.Table {
	t.Helper()
	spec := routing.Spread([]string{"c1", "c2"}).Spec()
	spec.Version = v
	for i := range spec.Slots {
		spec.Slots[i].Epoch = routing.Epoch(v + 1)
	}
	return mustBuild(t, spec)
}

func TestHolder(t *testing.T) {
	var h routing.Holder
	if h.Load() != nil || h.Version() != -1 {
		t.Fatal("an empty holder holds something")
	}
	first := h.Changed()
	if !h.Store(version(t, 0)) || !h.Store(version(t, 3)) {
		t.Fatal("a newer table was refused")
	}
	<-first
	next := h.Changed()
	for _, old := range []*routing.Table{version(t, 3), version(t, 2), version(t, 0), nil} {
		if h.Store(old) {
			t.Errorf("an older or equal table was taken over version 3")
		}
	}
	if h.Version() != 3 || h.Load().Version() != 3 {
		t.Errorf("version %d is held, want 3", h.Version())
	}
	select {
	case <-next:
		t.Error("a refused table woke somebody")
	default:
	}
	h.Store(version(t, 4))
	<-next
}

// TestHolderSwapUnderReaders: readers never see a mix of two tables, nor time
// running backwards, and one who waits for a change misses none.
func TestHolderSwapUnderReaders(t *testing.T) {
	const last = 40
	tables := make([]*routing.Table, last+1)
	for i := range tables {
		tables[i] = version(t, int64(i))
	}
	var h routing.Holder
	h.Store(tables[0])
	var readers, writers sync.WaitGroup
	var stop atomic.Bool
	for range 8 {
		readers.Go(func() {
			seen := int64(0)
			for !stop.Load() {
				table := h.Load()
				if table.Version() < seen {
					t.Errorf("version %d after %d", table.Version(), seen)
					return
				}
				seen = table.Version()
				for s := routing.Slot(0); s < routing.Slots; s += 1021 {
					if a, ok := table.Slot(s); !ok || int64(a.Epoch) != seen+1 {
						t.Errorf("slot %d of version %d is at epoch %d", s, seen, a.Epoch)
						return
					}
				}
			}
		})
	}
	var waited sync.WaitGroup
	waited.Go(func() {
		for {
			c := h.Changed()
			if h.Version() == last {
				return
			}
			<-c
		}
	})
	for w := range 4 {
		writers.Go(func() {
			for i := 1 + w; i <= last; i += 2 { // two writers for each version
				h.Store(tables[min(i, last)])
			}
			h.Store(tables[last])
		})
	}
	writers.Wait()
	waited.Wait()
	stop.Store(true)
	readers.Wait()
}
