package route_test

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/routing"
)

const limit = time.Minute

func key(seed byte) ed25519.PrivateKey {
	b := make([]byte, ed25519.SeedSize)
	b[0] = seed
	return ed25519.NewKeyFromSeed(b)
}

func public(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

// signed makes a table of that version in which every slot is at that epoch.
func signed(t testing.TB, k ed25519.PrivateKey, version int64) []byte {
	t.Helper()
	spec := routing.Spread([]string{"c1", "c2"}).Spec()
	spec.Version = version
	for i := range spec.Slots {
		spec.Slots[i].Epoch = routing.Epoch(version)
	}
	table, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	return routing.Sign(k, table).Bytes()
}

// agent is the local API of an agent.
type agent struct {
	*httptest.Server
	table atomic.Pointer[[]byte]
	links atomic.Pointer[string]
	asked atomic.Int64
	after atomic.Pointer[string]

	process atomic.Pointer[string]
}

func newAgent(t testing.TB) *agent {
	t.Helper()
	a := &agent{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/route":
			a.asked.Add(1)
			after := r.URL.Query().Get("after")
			process := r.URL.Query().Get("process")
			a.process.Store(&process)
			a.after.Store(&after)
			if b := a.table.Load(); b != nil {
				w.Write(*b)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		case "/links":
			if s := a.links.Load(); s != nil {
				fmt.Fprint(w, *s)
				return
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *agent) serve(b []byte) { a.table.Store(&b) }

// run follows until the test ends, and checks that Run then returns.
func run(t testing.TB, o route.Options) (*route.Follower, *routing.Holder) {
	t.Helper()
	h := &routing.Holder{}
	o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	f := route.Open(o, h)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run = %v", err)
			}
		case <-time.After(limit):
			t.Error("Run does not end")
		}
	})
	return f, h
}

func waitVersion(t testing.TB, h *routing.Holder, want int64) {
	t.Helper()
	end := time.After(limit)
	for {
		changed := h.Changed()
		if h.Version() >= want {
			break
		}
		select {
		case <-changed:
		case <-end:
			t.Fatalf("version %d is held, want %d", h.Version(), want)
		}
	}
	if h.Version() != want {
		t.Fatalf("version %d is held, want %d", h.Version(), want)
	}
}

func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.After(limit)
	for !cond() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func write(t testing.TB, dir string, versions ...int64) {
	t.Helper()
	for _, v := range versions {
		if err := route.WriteSnapshot(dir, signed(t, key(1), v)); err != nil {
			t.Fatal(err)
		}
	}
}

func path(dir string, version int64) string {
	return filepath.Join(dir, fmt.Sprintf("route-%019d.snapshot", version))
}

func TestWriteSnapshotKeepsThree(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made")
	write(t, dir, 1, 2, 9, 10, 11, 11)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := []string{filepath.Base(path(dir, 9)), filepath.Base(path(dir, 10)), filepath.Base(path(dir, 11))}
	if strings.Join(names, " ") != strings.Join(want, " ") {
		t.Errorf("files %v, want %v", names, want)
	}
	if err := route.WriteSnapshot(dir, []byte("nonsense")); !errors.Is(err, routing.ErrTable) {
		t.Errorf("nonsense: %v, want ErrTable", err)
	}
	s := route.ReadSnapshot(dir, public(key(1)))
	if s.Table == nil || s.Table.Version() != 11 || string(s.Signed) != string(signed(t, key(1), 11)) || s.Skipped != nil {
		t.Errorf("ReadSnapshot = %+v", s)
	}
	if s := route.ReadSnapshot(dir, public(key(2))); s.Table != nil || len(s.Skipped) != 3 {
		t.Errorf("another key: %+v, want nothing and three reasons", s)
	}
	if s := route.ReadSnapshot(filepath.Join(dir, "no"), public(key(1))); s.Table != nil || len(s.Skipped) != 1 {
		t.Errorf("no folder: %+v", s)
	}
}

// TestScenario_R03_ColdStart: a process starts with everything else down, from
// whatever the disk still has, and goes forward, never back, when others return.
func TestScenario_R03_ColdStart(t *testing.T) {
	t.Parallel()
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	options := func(dir string) route.Options {
		return route.Options{AgentURL: down.URL, NATSURL: "nats://127.0.0.1:1", Dir: dir, Key: public(key(1)), Cells: []string{"c1", "c2"}, Interval: time.Second}
	}
	spoil := map[string]func(b []byte) []byte{
		"truncated":        func(b []byte) []byte { return b[:len(b)/2] },
		"empty":            func([]byte) []byte { return nil },
		"flipped in sum":   func(b []byte) []byte { b[3] ^= 1; return b },
		"flipped in sig":   func(b []byte) []byte { b[110] ^= 1; return b },
		"flipped in table": func(b []byte) []byte { b[len(b)-40] ^= 4; return b },
		"longer":           func(b []byte) []byte { return append(b, 0) },
	}
	for name, f := range spoil {
		t.Run("newest snapshot "+name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, 3, 4)
			b, err := os.ReadFile(path(dir, 4))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path(dir, 4), f(b), 0o600); err != nil {
				t.Fatal(err)
			}
			_, h := run(t, options(dir))
			if a, err := route.Resolve(h.Load(), 7); h.Version() != 3 || err != nil || a.Owner != "c1" || a.Epoch != 3 {
				t.Errorf("slot 7 of version %d: %v, %v; want version 3", h.Version(), a, err)
			}
		})
	}
	t.Run("an old snapshot under a new name", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		write(t, dir, 3, 4)
		if err := os.Rename(path(dir, 3), path(dir, 9)); err != nil {
			t.Fatal(err)
		}
		if _, h := run(t, options(dir)); h.Version() != 4 {
			t.Errorf("version %d, want 4", h.Version())
		}
	})
	t.Run("nothing at all", func(t *testing.T) {
		t.Parallel()
		f, h := run(t, options(filepath.Join(t.TempDir(), "none")))
		a, err := route.Resolve(h.Load(), routing.Slots-1)
		if err != nil || a.Owner != "c2" || a.Epoch != 1 || h.Version() != 0 {
			t.Errorf("version %d says %v, %v; want slots spread over the configured cells", h.Version(), a, err)
		}
		if s := f.Status(); s.Source != "spread" || s.Checked {
			t.Errorf("Status = %+v", s)
		}
	})
	t.Run("snapshot older than the agent has", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		write(t, dir, 3)
		a := newAgent(t)
		a.serve(signed(t, key(1), 5))
		o := options(dir)
		o.AgentURL = a.URL
		f, h := run(t, o)
		waitVersion(t, h, 5)
		waitFor(t, "status says agent", func() bool { s := f.Status(); return s.Source == "agent" && s.Checked && s.Version == 5 })
	})
	t.Run("snapshot newer than the agent has", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		write(t, dir, 3)
		a := newAgent(t)
		a.serve(signed(t, key(1), 2))
		o := options(dir)
		o.AgentURL = a.URL
		f, h := run(t, o)
		waitFor(t, "agent asked", func() bool { return f.Status().Checked })
		if h.Version() != 3 {
			t.Errorf("version %d, want 3: older is refused", h.Version())
		}
	})
	t.Run("the agent comes later", func(t *testing.T) {
		t.Parallel()
		a := newAgent(t)
		o := options(t.TempDir())
		o.AgentURL = a.URL
		_, h := run(t, o)
		waitFor(t, "agent asked", func() bool { return a.asked.Load() > 1 })
		a.serve(signed(t, key(1), 1))
		waitVersion(t, h, 1)
	})
}

func TestPollRefusesForgedTables(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	a.serve(signed(t, key(2), 8))
	f, h := run(t, route.Options{AgentURL: a.URL, Key: public(key(1)), Cells: []string{"c1"}, Interval: 10 * time.Millisecond})
	waitFor(t, "agent asked", func() bool { return a.asked.Load() > 2 })
	if h.Version() != 0 || f.Status().Checked {
		t.Errorf("version %d, %+v: a forged table counts", h.Version(), f.Status())
	}
	a.serve(signed(t, key(1), 2))
	waitVersion(t, h, 2)
	waitFor(t, "agent is asked for what is newer only", func() bool { return *a.after.Load() == "2" })
}

func TestRefreshAsksAtOnce(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	a.serve(signed(t, key(1), 1))
	f, h := run(t, route.Options{AgentURL: a.URL, Key: public(key(1)), Interval: time.Hour})
	waitVersion(t, h, 1)
	a.serve(signed(t, key(1), 2))
	f.Refresh()
	waitVersion(t, h, 2)
}

func startNATS(t testing.TB, port int) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	if !s.ReadyForConnections(limit) {
		t.Fatal("nats-server is not ready")
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}

func TestPush(t *testing.T) {
	t.Parallel()
	s := startNATS(t, -1)
	port := s.Addr().String()[strings.LastIndex(s.Addr().String(), ":")+1:]
	a := newAgent(t)
	f, h := run(t, route.Options{AgentURL: a.URL, NATSURL: "nats://127.0.0.1:" + port, Key: public(key(1)), Cells: []string{"c1"}, Interval: time.Hour})
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	publish := func(subject string, b []byte) {
		t.Helper()
		if err := errors.Join(nc.Publish(subject, b), nc.Flush()); err != nil {
			t.Fatal(err)
		}
	}
	// A push before the subscription is lost; the real one repeats until heard.
	waitFor(t, "pushed table", func() bool {
		publish(route.SubjectTable, signed(t, key(1), 4))
		return h.Version() == 4
	})
	changed := h.Changed()
	for _, bad := range [][]byte{signed(t, key(2), 9), signed(t, key(1), 4), signed(t, key(1), 3), []byte("x"), nil} {
		publish(route.SubjectTable, bad)
	}
	publish(route.SubjectTable, signed(t, key(1), 5))
	<-changed
	if h.Version() != 5 {
		t.Fatalf("version %d, want 5", h.Version())
	}

	publish(route.SubjectLinks, []byte(`{"c2":{"up":true,"since_ms":120,"rtt_ms":0.4},"c3":{"up":false,"since_ms":9,"rtt_ms":0}}`))
	waitFor(t, "pushed links", func() bool { up, known := f.Links().Up("c2"); return up && known })
	if up, known := f.Links().Up("c3"); up || !known {
		t.Errorf("c3: up %v, known %v, want down", up, known)
	}
	if _, known := f.Links().Up("c9"); known {
		t.Error("c9 is known")
	}

	// After NATS was away, pushes may be lost: the agent is asked at once.
	s.Shutdown()
	s.WaitForShutdown()
	a.serve(signed(t, key(1), 6))
	var n int
	fmt.Sscan(port, &n)
	startNATS(t, n)
	waitVersion(t, h, 6)
}

func TestLinksByPoll(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	states := `{"c2":{"up":true}}`
	a.links.Store(&states)
	f, _ := run(t, route.Options{AgentURL: a.URL})
	waitFor(t, "links from the agent", func() bool { up, known := f.Links().Up("c2"); return up && known })
	if m, age := f.Links().All(); len(m) != 1 || age < 0 {
		t.Errorf("All = %v, %v", m, age)
	}
	a.links.Store(nil) // the agent dies: what it said soon counts no more
	waitFor(t, "links unknown", func() bool { _, known := f.Links().Up("c2"); return !known })
}

func TestResolve(t *testing.T) {
	t.Parallel()
	table := routing.Spread([]string{"c1"})
	if a, err := route.Resolve(table, 3); err != nil || a.Owner != "c1" {
		t.Errorf("Resolve = %v, %v", a, err)
	}
	if _, err := route.Resolve(table, routing.FirstUserSlot); !errors.Is(err, errs.ErrNotFound) {
		t.Errorf("unknown slot: %v, want not found", err)
	}
	if _, err := route.Resolve(nil, 3); !errors.Is(err, errs.ErrUnavailable) {
		t.Errorf("no table: %v, want unavailable", err)
	}
}

func TestReadOptions(t *testing.T) {
	t.Parallel()
	vars := map[string]string{
		"AGENT_URL": "http://127.0.0.1:1", "ORDER_CELLS": "c1, c2",
		"ROUTE_KEY": base64.StdEncoding.EncodeToString(public(key(1))) + "\n",
	}
	r := env.NewReader("ORDER", func(n string) string { return vars[n] })
	o := route.ReadOptions(r)
	if r.Err() != nil || !o.Key.Equal(public(key(1))) || len(o.Cells) != 2 {
		t.Errorf("ReadOptions = %+v, %v", o, r.Err())
	}
	vars["ROUTE_KEY"], vars["CELLS"], vars["ORDER_CELLS"] = "abc", "c1:9", ""
	r = env.NewReader("ORDER", func(n string) string { return vars[n] })
	route.ReadOptions(r)
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "ROUTE_KEY") || !strings.Contains(err.Error(), "CELLS") {
		t.Errorf("two mistakes: %v", err)
	}
}

func FuzzReadSnapshot(f *testing.F) {
	good := signed(f, key(1), 4)
	dir := f.TempDir()
	write(f, dir, 4)
	whole, err := os.ReadFile(path(dir, 4))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:70])
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(path(dir, 4), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if s := route.ReadSnapshot(dir, public(key(1))); s.Table != nil && string(s.Signed) != string(good) {
			t.Fatal("a snapshot that nobody wrote is taken")
		}
	})
}
