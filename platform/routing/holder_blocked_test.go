package routing

import (
	"sync"
	"testing"
	"time"
)

// TestNoReaderWaitsForAWriter: a writer that stops in the middle of a Store, with
// the holder's lock taken, delays none of 8 readers; and the next writer goes on
// where it stopped.
func TestNoReaderWaitsForAWriter(t *testing.T) {
	t.Parallel()
	var h Holder
	old := Spread([]string{"c1", "c2"})
	h.Store(old)
	spec := old.Spec()
	spec.Version = 1
	next, err := Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock() // the writer is paused here
	stored := make(chan bool)
	go func() { stored <- h.Store(next) }()
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			for id := range int64(Slots) {
				table := h.Load()
				if _, _, ok := table.Home(id); !ok || h.Version() != 0 {
					t.Errorf("slot %d under a paused writer: %v, version %d", id, ok, h.Version())
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { readers.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("readers wait for a writer")
	}
	h.mu.Unlock()
	if !<-stored || h.Load() != next {
		t.Error("the next writer's table isn't held")
	}
}
