package cellkit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// Serve listens on addr (host:port) and serves h until ctx ends; see
// ServeListener. An address that can't be listened on is a Usage error.
func Serve(ctx context.Context, addr string, h http.Handler, drain time.Duration) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return Usage{fmt.Errorf("can't listen: %w", err)}
	}
	return ServeListener(ctx, ln, h, drain)
}

// ServeListener serves h until ctx ends: then it accepts nothing more, lets the
// requests that run finish for at most drain (default 5 s), cuts the rest, and
// returns only when no handler runs any more, so that the caller may close what
// the handlers use. (http.Server's own Serve returns when Shutdown is called,
// not when it's done.) It closes ln.
func ServeListener(ctx context.Context, ln net.Listener, h http.Handler, drain time.Duration) error {
	if drain <= 0 {
		drain = 5 * time.Second
	}
	// Requests outlive ctx by the drain; base ends those that take longer.
	base, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	var running handlers
	server := &http.Server{
		Handler:           running.count(h),
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(ln) }()

	var failure error
	select {
	case failure = <-failed:
	case <-ctx.Done():
		stop, done := context.WithTimeout(base, drain)
		defer done()
		// An error here is the end of the drain's time; what it cost is counted below.
		_ = server.Shutdown(stop)
		if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
			failure = err
		}
	}
	late := running.number()
	cut()
	_ = server.Close()
	if !running.wait(drain) {
		return fmt.Errorf("%d requests did not end after they were cut", running.number())
	}
	if failure != nil {
		return fmt.Errorf("serve on %s: %w", ln.Addr(), failure)
	}
	if late > 0 {
		return fmt.Errorf("%d requests were cut after %s", late, drain)
	}
	return nil
}

// handlers counts the handlers that run.
type handlers struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n is 0 again; nil while nobody waits
}

func (r *handlers) count(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.add(1)
		defer r.add(-1)
		h.ServeHTTP(w, req)
	})
}

func (r *handlers) add(d int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n += d
	if r.n == 0 && r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

func (r *handlers) number() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

// wait says whether no handler runs any more, within the limit.
func (r *handlers) wait(limit time.Duration) bool {
	r.mu.Lock()
	if r.n == 0 {
		r.mu.Unlock()
		return true
	}
	idle := make(chan struct{})
	r.idle = idle
	r.mu.Unlock()
	select {
	case <-idle:
		return true
	case <-time.After(limit):
		return false
	}
}
