package bus

import (
	"context"
	"sync"
	"time"
)

// Waiters lets a request wait a bounded moment for a reply that another
// goroutine of this process handles. It is only a shortcut: who waits looks at
// the database again, since another instance may have handled the reply. The zero
// value is ready.
type Waiters struct {
	mu sync.Mutex
	m  map[string]chan struct{} // closed at the next wake of the key
	n  map[string]int
}

// Wake ends the current waits for key. Call it through pg.Tx.AfterCommit.
func (w *Waiters) Wake(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c, ok := w.m[key]; ok {
		close(c)
		w.m[key] = make(chan struct{})
	}
}

// Until calls done until it says true or fails, at most limit long: at once,
// after each wake of key, and every 50 ms. It gives what done said last.
func (w *Waiters) Until(ctx context.Context, key string, limit time.Duration, done func(context.Context) (bool, error)) (bool, error) {
	w.enter(key)
	defer w.exit(key)
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		woken := w.channel(key)
		ok, err := done(ctx)
		if ok || err != nil {
			return ok, err
		}
		select {
		case <-woken:
		case <-tick.C:
		case <-deadline.C:
			return done(ctx)
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

func (w *Waiters) enter(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.m == nil {
		w.m, w.n = map[string]chan struct{}{}, map[string]int{}
	}
	if w.n[key]++; w.n[key] == 1 {
		w.m[key] = make(chan struct{})
	}
}

func (w *Waiters) exit(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n[key]--; w.n[key] == 0 {
		delete(w.m, key)
		delete(w.n, key)
	}
}

func (w *Waiters) channel(key string) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.m[key]
}
