package catalog

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/web"
)

func freeAddr(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// Both components start and stay up with nothing that they need: no database, no
// Redis, no agent. They answer 503 and end when asked to.
func TestColdStartWithEverythingDown(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name         string
		run          func(context.Context, cellkit.Process) error
		method, path string
		status       int
	}{
		{"CATALOG", Run, "GET", "/api/v1/products", 503},
		{"CATALOG", Run, "GET", "/api/v1/products/x", 404},
		{"CATALOG_WRITER", RunWriter, "POST", "/api/v1/products", 503},
		{"CATALOG_WRITER", RunWriter, "GET", "/feed", 503},
	} {
		t.Run(tc.name+tc.path, func(t *testing.T) {
			t.Parallel()
			addr, internal, dead := freeAddr(t), freeAddr(t), freeAddr(t)
			vars := map[string]string{
				"CELL": "c1", tc.name + "_ADDR": addr, tc.name + "_INTERNAL_ADDR": internal, "LINK_ADDR": dead,
				"PG_DSN": "postgres://cellmart_app@" + dead + "/none", "REDIS_ADDR": dead, "CURSOR_KEY": "a key for cursors",
			}
			p := cellkit.Process{Getenv: func(k string) string { return vars[k] }, Log: slog.New(slog.DiscardHandler), Stdout: io.Discard}
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- tc.run(ctx, p) }()
			waitFor(t, func() error {
				select {
				case err := <-ended:
					t.Fatalf("ended: %v", err)
				default:
				}
				return status(ctx, "GET", "http://"+internal+"/livez", 200)
			})
			waitFor(t, func() error { return status(ctx, tc.method, "http://"+addr+tc.path, tc.status) })
			if err := status(ctx, "GET", "http://"+internal+"/readyz", 503); err != nil {
				t.Error(err)
			}
			stop()
			if err := <-ended; err != nil {
				t.Errorf("ended: %v", err)
			}
		})
	}
}

func status(ctx context.Context, method, url string, want int) error {
	body := ""
	if method == "POST" {
		body = `{"title":"A lamp","category":"home","skus":[{"price":1}]}`
	}
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(web.HeaderUser, alice.String())
	r.Header.Set(web.HeaderSeller, "true")
	r.Header.Set(web.HeaderIdempotencyKey, "k")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != want {
		b, _ := io.ReadAll(res.Body)
		return fmt.Errorf("%s %s: %d %s, want %d", method, url, res.StatusCode, b, want)
	}
	return nil
}

// What is missing is said in one go.
func TestSettings(t *testing.T) {
	t.Parallel()
	p := cellkit.Process{Getenv: func(string) string { return "" }, Log: slog.New(slog.DiscardHandler)}
	for name, want := range map[string][]string{
		"copy":   {"CATALOG_CELL", "CATALOG_PG_DSN", "CATALOG_LINK_ADDR", "CATALOG_CURSOR_KEY"},
		"writer": {"CATALOG_WRITER_PG_DSN", "CATALOG_WRITER_LINK_ADDR"},
	} {
		run := Run
		if name == "writer" {
			run = RunWriter
		}
		err := run(t.Context(), p)
		for _, v := range want {
			if err == nil || !strings.Contains(err.Error(), v) {
				t.Errorf("%s: %v, want %s named", name, err, v)
			}
		}
	}
	if len(Vars()) != 8 || len(WriterVars()) != 7 {
		t.Errorf("%d and %d variables", len(Vars()), len(WriterVars()))
	}
}
