package obs

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest("GET", path, nil))
	body, err := io.ReadAll(rec.Body)
	if err != nil {
		t.Fatal(err)
	}
	return rec.Code, string(body)
}

func TestEverySeriesNamesItsCell(t *testing.T) {
	t.Parallel()
	m := New("c2", "order")
	m.Counter("cellmart_order_placed_total", "Orders placed.", "kind").WithLabelValues("local").Add(2)
	m.Counter("cellmart_order_placed_total", "Orders placed.", "kind").WithLabelValues("local").Inc()
	m.Gauge("cellmart_order_open", "Orders open.").WithLabelValues().Set(4)
	m.GaugeFunc("cellmart_order_age_seconds", "Age.", func() float64 { return 1.5 })
	m.HTTP("", "BREW", 404, time.Millisecond)
	_, text := get(t, m.Handler(), "/metrics")
	if !strings.Contains(text, `cellmart_order_placed_total{cell="c2",kind="local",service="order"} 3`) {
		t.Error("a metric asked for twice isn't one")
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") && !strings.Contains(line, `cell="c2"`) {
			t.Errorf("series without its cell: %s", line)
		}
	}
}

func TestSameNameOtherLabelsPanics(t *testing.T) {
	t.Parallel()
	m := New("c1", "x")
	m.Counter("a_total", "A.", "kind")
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	m.Counter("a_total", "A.", "sort")
}

func TestInternal(t *testing.T) {
	t.Parallel()
	var notReady error = errors.New("no route table yet")
	h := Internal(New("c1", "x"), func() error { return notReady })
	if code, body := get(t, h, "/readyz"); code != 503 || !strings.Contains(body, "no route table yet") {
		t.Errorf("/readyz = %d %q, want 503 and the reason", code, body)
	}
	if code, _ := get(t, h, "/livez"); code != 200 {
		t.Errorf("/livez = %d, want 200 also when not ready", code)
	}
	notReady = nil
	if code, _ := get(t, h, "/readyz"); code != 200 {
		t.Errorf("/readyz = %d, want 200", code)
	}
	if code, _ := get(t, Internal(New("c1", "x"), nil), "/readyz"); code != 200 {
		t.Errorf("/readyz = %d without a check, want 200", code)
	}
}

func TestServeInternalWithoutAddrWaits(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"", "127.0.0.1:0"} {
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- ServeInternal(ctx, addr, New("c1", "x"), nil) }()
		select {
		case err := <-done:
			t.Fatalf("ServeInternal(%q) = %v before its end", addr, err)
		default:
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("ServeInternal(%q) = %v, want nil", addr, err)
		}
	}
}
