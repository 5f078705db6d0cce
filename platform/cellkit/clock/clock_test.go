package clock

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

var quiet = slog.New(slog.DiscardHandler)

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(limit) {
			t.Fatalf("%s: not within a minute", what)
		}
		<-time.After(time.Millisecond)
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	s := NewSource(t.TempDir(), quiet)
	if err := s.Set(-time.Hour); err != nil {
		t.Fatal(err)
	}
	var away atomic.Bool
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() || r.URL.Path != "/clock" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		s.ServeHTTP(w, r)
	}))
	t.Cleanup(agent.Close)
	t.Cleanup(agent.CloseClientConnections)
	c := Follow(t.Context(), agent.URL, quiet)
	if c.Offset() != -time.Hour {
		t.Errorf("at the start the offset is %v, want what the agent has", c.Offset())
	}
	if d := time.Until(c.Now()) + time.Hour; d.Abs() > time.Minute {
		t.Errorf("Now is %v off", d)
	}
	best := time.Hour // a busy machine adds its own: one that is in time is enough
	set := func(d time.Duration) {
		t.Helper()
		began := time.Now()
		if err := s.Set(d); err != nil {
			t.Fatal(err)
		}
		eventually(t, d.String(), func() bool { return c.Offset() == d })
		best = min(best, time.Since(began))
	}
	set(time.Hour)
	set(0)
	set(-time.Millisecond)
	if best > time.Second {
		t.Errorf("an offset was taken up after %v at best, want within a second", best)
	}
	away.Store(true)
	if err := s.Set(2 * time.Minute); err != nil {
		t.Fatal(err)
	}
	away.Store(false)
	eventually(t, "the agent is back", func() bool { return c.Offset() == 2*time.Minute })
}

func TestWithoutAnAgent(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "http://127.0.0.1:1"} {
		if c := Follow(t.Context(), url, quiet); c.Offset() != 0 || time.Until(c.Now()).Abs() > time.Minute {
			t.Errorf("agent %q: %v off", url, c.Offset())
		}
	}
}

func TestSourceKeeps(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := NewSource(dir, quiet)
	for _, d := range []time.Duration{-time.Hour, 90 * time.Minute, 0} {
		if err := s.Set(d); err != nil {
			t.Fatal(err)
		}
		if got := NewSource(dir, quiet).Offset(); got != d {
			t.Errorf("after a restart %v, want %v", got, d)
		}
	}
	if err := s.Set(Most + time.Second); !errs.IsKind(err, errs.Invalid) || s.Offset() != 0 {
		t.Errorf("too far: %v, offset %v", err, s.Offset())
	}
	for _, bad := range []string{"", "not JSON", `{"offset_ms":999999999999}`} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := NewSource(dir, quiet).Offset(); got != 0 {
			t.Errorf("file %q: offset %v, want 0", bad, got)
		}
	}
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/clock?have_ms=x", nil))
	if rec.Code != http.StatusBadRequest {
		t.Errorf("have_ms=x: %d", rec.Code)
	}
}
