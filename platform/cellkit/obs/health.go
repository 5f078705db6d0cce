package obs

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"example.com/cellmart/platform/cellkit"
)

// Internal is the handler of the internal listener. ready says why the process
// can't serve yet, nil when it can; without it the process is always ready.
func Internal(m *Metrics, ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if ready != nil {
			if err := ready(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", m.Handler())
	return mux
}

// ServeInternal serves Internal on addr until the context ends. With an empty
// addr it only waits for that.
func ServeInternal(ctx context.Context, addr string, m *Metrics, ready func() error) error {
	if addr == "" {
		<-ctx.Done()
		return nil
	}
	return cellkit.Serve(ctx, addr, Internal(m, ready), time.Second)
}
