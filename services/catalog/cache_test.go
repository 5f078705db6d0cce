package catalog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/cellmart/services/catalog/catalogapi"
)

// redisServer runs a real redis-server on a free port; kill ends it at once.
func redisServer(t testing.TB) (addr string, kill func()) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr = ln.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	ln.Close()
	cmd := exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatalf("redis-server: %v (install Redis)", err)
	}
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	t.Cleanup(kill)
	waitFor(t, func() error {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return fmt.Errorf("redis-server: %w", err)
		}
		return c.Close()
	})
	return addr, kill
}

// counts is what came of the questions to a cache.
type counts struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counts) count(result string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[result]++
}

func (c *counts) of(result string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[result]
}

func TestRedisComesAndGoes(t *testing.T) {
	t.Parallel()
	addr, kill := redisServer(t)
	var n counts
	w, _ := newWriter(t)
	f, db := newCopy(t, direct{w})
	c := newCache(addr, n.count)
	defer c.close()
	e := copyEcho(f, c)
	p := w.mustCreate(t, alice, "k", newProduct("A pen", 100))
	f.mustStep(t)
	path := "/api/v1/products/" + p.ID.String()
	read := func(want string) {
		t.Helper()
		got := decode[catalogapi.Product](t, ask(t, e, request{method: "GET", path: path}))
		if got.Title != want {
			t.Errorf("title %q, want %q", got.Title, want)
		}
	}
	read("A pen")
	read("A pen")
	if n.of("miss") != 1 || n.of("hit") != 1 {
		t.Errorf("one miss and one hit were due: %v", n.n)
	}

	// It is the cache that answers: what changes behind the copy's back isn't seen.
	if _, err := db.Super.Exec(t.Context(), `UPDATE catalog.products SET title = 'forged'`); err != nil {
		t.Fatal(err)
	}
	read("A pen")
	// A change through the feed is seen at once.
	title := "A blue pen"
	if _, err := w.change(t.Context(), alice, p.ID, catalogapi.Change{Title: &title}); err != nil {
		t.Fatal(err)
	}
	f.mustStep(t)
	read(title)

	flush := redis.NewClient(&redis.Options{Addr: addr})
	defer flush.Close()
	if ttl := flush.TTL(t.Context(), keys(t, flush)[0]).Val(); ttl <= 0 || ttl > cacheTTL {
		t.Errorf("an entry lives for %v", ttl)
	}
	misses := n.of("miss")
	if err := flush.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	read(title)
	if n.of("miss") != misses+1 {
		t.Errorf("after a flush: %v", n.n)
	}

	kill()
	for range 10 {
		read(title)
	}
	if n.of("failed") < breakerTrips || n.of("skipped") == 0 {
		t.Errorf("with Redis killed: %v, want %d failures and then none asked", n.n, breakerTrips)
	}
}

func keys(t testing.TB, c *redis.Client) []string {
	t.Helper()
	list, err := c.Keys(t.Context(), "catalog:*").Result()
	if err != nil || len(list) == 0 {
		t.Fatalf("keys: %v, %v", list, err)
	}
	return list
}

// A Redis that takes connections and says nothing costs each of the first few
// questions its limit, and then nothing.
func TestSlowRedis(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go bufio.NewReader(c).WriteTo(bytes.NewBuffer(nil)) //nolint:errcheck // it only swallows
		}
	}()
	const asked = 50
	var last string
	for range 5 { // a busy machine adds its own: one good try is enough
		if last = slowRedis(t, ln.Addr().String(), asked); last == "" || t.Failed() {
			return
		}
	}
	t.Error(last)
}

// slowRedis gives what took too long.
func slowRedis(t *testing.T, addr string, asked int) string {
	var n counts
	c := newCache(addr, n.count)
	defer c.close()
	begun := time.Now()
	for i := range asked {
		b, err := c.get(t.Context(), fmt.Sprint(i), func(context.Context) ([]byte, error) { return []byte("x"), nil })
		if err != nil || string(b) != "x" {
			t.Fatalf("get = %q, %v", b, err)
		}
	}
	if took := time.Since(begun); took > 2*time.Second {
		return fmt.Sprintf("%d questions took %v with a silent Redis", asked, took)
	}
	if n.of("skipped") < asked-2*breakerTrips {
		return fmt.Sprintf("a silent Redis was asked on: %v", n.n)
	}
	return ""
}

func TestNoStampede(t *testing.T) {
	t.Parallel()
	c := noCache()
	var loads atomic.Int64
	release := make(chan struct{})
	load := func(ctx context.Context) ([]byte, error) {
		loads.Add(1)
		select {
		case <-release:
			return []byte("x"), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	// The one who came first goes away: those who wait must not fail with it.
	first, leave := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := c.get(first, "k", load)
		failed <- err
	}()
	waitFor(t, func() error {
		if loads.Load() != 1 {
			return errors.New("no load yet")
		}
		return nil
	})
	const n = 50
	var ready, group sync.WaitGroup
	ready.Add(n)
	for range n {
		group.Go(func() {
			ready.Done()
			if b, err := c.get(t.Context(), "k", load); err != nil || string(b) != "x" {
				t.Errorf("get = %q, %v", b, err)
			}
		})
	}
	ready.Wait()
	leave()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("who left got %v", err)
	}
	close(release)
	group.Wait()
	// Who was late to join may have made a flight of its own, but not each of them.
	if loads.Load() > 3 {
		t.Errorf("%d loads for one key", loads.Load())
	}
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	var b breaker
	now := time.Unix(1000, 0)
	for range breakerTrips - 1 {
		b.failed(now)
	}
	if !b.enter(now) || b.open(now) {
		t.Error("closed too soon")
	}
	b.worked()
	for range breakerTrips {
		b.failed(now)
	}
	if b.enter(now) || !b.open(now) {
		t.Error("not closed after failures in a row")
	}
	later := now.Add(breakerRest)
	if !b.enter(later) || b.enter(later) {
		t.Error("after the rest exactly one gets through")
	}
	b.worked()
	if !b.enter(later) || b.open(later) {
		t.Error("still closed after one that worked")
	}
}

func TestErrorsAreNotCached(t *testing.T) {
	t.Parallel()
	addr, _ := redisServer(t)
	c := newCache(addr, func(string) {})
	defer c.close()
	for i, want := range []error{errDown, nil, nil} {
		b, err := c.get(t.Context(), "k", func(context.Context) ([]byte, error) { return []byte{byte('0' + i)}, want })
		if !errors.Is(err, want) || err == nil && string(b) != "1" {
			t.Errorf("question %d = %q, %v", i, b, err)
		}
	}
}
