package routing

import (
	"sync"
	"sync/atomic"
)

// Holder gives a process's readers the newest table without a lock and without
// an allocation. The zero Holder is empty. It must not be copied.
type Holder struct {
	table atomic.Pointer[Table]

	mu      sync.Mutex // orders writers, guards changed
	changed chan struct{}
}

// Load gives the table, nil only before the first Store.
func (h *Holder) Load() *Table { return h.table.Load() }

// Version is the held table's version, -1 when there is none.
func (h *Holder) Version() int64 {
	t := h.table.Load()
	if t == nil {
		return -1
	}
	return t.version
}

// Store takes a table that is newer than the held one and wakes who waits;
// false means that it was refused as old, equal or nil.
func (h *Holder) Store(t *Table) bool {
	if t == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.version <= h.Version() {
		return false
	}
	h.table.Store(t)
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
	return true
}

// Changed is closed by the next Store that succeeds. To miss nothing, take the
// channel before loading the table.
func (h *Holder) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return h.changed
}
