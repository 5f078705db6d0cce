package route_test

import (
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/cellkit/route/redistest"
	"example.com/cellmart/platform/routing"
)

func openTable(t testing.TB, b []byte) *routing.Table {
	t.Helper()
	table, err := routing.Open(public(key(1)), b)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// bring brings Redis to version v, as the agent does; 0 only looks.
func bring(t testing.TB, c *route.Cache, v int64) int64 {
	t.Helper()
	var mine *routing.Table
	var b []byte
	if v > 0 {
		b = signed(t, key(1), v)
		mine = openTable(t, b)
	}
	newer, bytes, err := c.Sync(t.Context(), public(key(1)), mine, b)
	for range 20 { // each question has 0.1 s, which a busy machine may need for itself
		if err == nil {
			break
		}
		newer, bytes, err = c.Sync(t.Context(), public(key(1)), mine, b)
	}
	if err != nil {
		t.Fatal(err)
	}
	if newer == nil {
		return 0
	}
	if string(bytes) != string(signed(t, key(1), newer.Version())) {
		t.Error("Sync gives other bytes than the table's")
	}
	return newer.Version()
}

func stored(t testing.TB, c *route.Cache) (said, table int64) {
	t.Helper()
	said, verr := c.Version(t.Context())
	b, err := c.Signed(t.Context())
	var slow net.Error
	for range 20 { // as in bring
		if err == nil && !errors.As(verr, &slow) {
			break
		}
		said, verr = c.Version(t.Context())
		b, err = c.Signed(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if opened, err := routing.Open(public(key(1)), b); err == nil {
		table = opened.Version()
	}
	return said, table
}

func TestCacheGoesForwardOnly(t *testing.T) {
	t.Parallel()
	r := redistest.New(t)
	cache, raw, ctx := route.OpenCache(r.Addr), r.Client(), t.Context()
	t.Cleanup(cache.Close)
	set := func(table []byte, version string) {
		t.Helper()
		if err := errors.Join(raw.Set(ctx, "route:table", table, 0).Err(), raw.Set(ctx, "route:version", version, 0).Err()); err != nil {
			t.Fatal(err)
		}
	}
	five := signed(t, key(1), 5)
	for _, x := range []struct {
		name  string
		spoil func()
		mine  int64 // 0 = only look
		newer int64
		said  int64
		table int64
	}{
		{"a look at nothing", func() {}, 0, 0, 0, 0},
		{"the first", func() {}, 3, 0, 3, 3},
		{"a newer one", func() {}, 5, 0, 5, 5},
		{"an older one is not written", func() {}, 4, 5, 5, 5},
		{"a look", func() {}, 0, 5, 5, 5},
		{"flushed", func() { raw.FlushAll(ctx) }, 5, 0, 5, 5},
		{"rolled back", func() { set(signed(t, key(1), 2), "2") }, 5, 0, 5, 5},
		{"only the table evicted", func() { raw.Del(ctx, "route:table") }, 5, 0, 5, 5},
		{"only the version evicted", func() { raw.Del(ctx, "route:version") }, 5, 0, 5, 5},
		{"a version that lies", func() { set(five, "99") }, 5, 0, 5, 5},
		{"a version that is none", func() { set(five, "x") }, 5, 0, 5, 5},
		{"a table cut short", func() { set(five[:len(five)/2], "5") }, 5, 0, 5, 5},
		{"an older one that nobody signed", func() { set(signed(t, key(2), 4), "4") }, 5, 0, 5, 5},
		{"the same version, signed by another", func() { set(signed(t, key(2), 5), "5") }, 5, 0, 5, 5},
		{"an older one that calls itself newer", func() { set(signed(t, key(1), 4), "6") }, 5, 0, 5, 5},
		{"nonsense", func() { set([]byte("x"), "5") }, 5, 0, 5, 5},
		{"a newer one that nobody signed", func() { set(signed(t, key(2), 9), "9") }, 5, 0, 5, 5},
		{"a newer one whose version is lost", func() { set(signed(t, key(1), 7), "") }, 5, 7, 7, 7},
	} {
		x.spoil()
		if got := bring(t, cache, x.mine); got != x.newer {
			t.Errorf("%s: Sync(%d) gives version %d, want %d", x.name, x.mine, got, x.newer)
		}
		if said, table := stored(t, cache); said != x.said || table != x.table {
			t.Errorf("%s: Redis says %d and has %d, want %d and %d", x.name, said, table, x.said, x.table)
		}
	}
	r.Kill()
	if _, _, err := cache.Sync(ctx, public(key(1)), openTable(t, five), five); err == nil {
		t.Error("no error from a dead Redis")
	}
	var none *route.Cache
	if v, err := none.Version(ctx); v != 0 || err != nil {
		t.Errorf("no Redis: %d, %v", v, err)
	}
}

// TestScenario_R03_ColdStartWithRedis: a process starts beside a Redis that has a
// newer table than its snapshot, an older one, none, or that is dead or hangs.
func TestScenario_R03_ColdStartWithRedis(t *testing.T) {
	t.Parallel()
	down := httptest.NewServer(nil)
	down.Close()
	for name, x := range map[string]struct {
		snapshot, redis int64
		spoil           func(t *testing.T, r *redistest.Server, c *redis.Client, dir string)
		want            int64
		source          string
	}{
		"snapshot older than Redis has":   {snapshot: 3, redis: 5, want: 5, source: "redis"},
		"snapshot newer than Redis has":   {snapshot: 5, redis: 3, want: 5, source: "snapshot"},
		"no snapshot":                     {redis: 4, want: 4, source: "redis"},
		"Redis empty":                     {snapshot: 3, want: 3, source: "snapshot"},
		"nothing anywhere":                {want: 0, source: "spread"},
		"Redis dead":                      {snapshot: 3, redis: 5, want: 3, source: "snapshot", spoil: func(_ *testing.T, r *redistest.Server, _ *redis.Client, _ string) { r.Kill() }},
		"Redis has a table that is cut":   {snapshot: 3, redis: 5, want: 3, source: "snapshot", spoil: func(t *testing.T, _ *redistest.Server, c *redis.Client, _ string) { flip(t, c, -1) }},
		"Redis has a bit flipped":         {snapshot: 3, redis: 5, want: 3, source: "snapshot", spoil: func(t *testing.T, _ *redistest.Server, c *redis.Client, _ string) { flip(t, c, 200) }},
		"Redis helps a spoilt snapshot":   {snapshot: 5, redis: 4, want: 4, source: "redis", spoil: func(t *testing.T, _ *redistest.Server, _ *redis.Client, dir string) { truncate(t, path(dir, 5)) }},
		"snapshot spoilt and Redis empty": {snapshot: 5, want: 0, source: "spread", spoil: func(t *testing.T, _ *redistest.Server, _ *redis.Client, dir string) { truncate(t, path(dir, 5)) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, r := t.TempDir(), redistest.New(t)
			if x.snapshot > 0 {
				write(t, dir, x.snapshot)
			}
			if x.redis > 0 {
				c := route.OpenCache(r.Addr)
				bring(t, c, x.redis)
				c.Close()
			}
			if x.spoil != nil {
				x.spoil(t, r, r.Client(), dir)
			}
			var f *route.Follower
			var h *routing.Holder
			for range 5 { // Redis has 0.1 s to answer in
				f, h = run(t, route.Options{
					AgentURL: down.URL, NATSURL: "nats://127.0.0.1:1", RedisAddr: r.Addr, Dir: dir,
					Key: public(key(1)), Cells: []string{"c1", "c2"}, Interval: time.Second,
				})
				if f.Status().Source == x.source {
					break
				}
			}
			if a, err := route.Resolve(h.Load(), 7); err != nil || a.Owner != "c1" {
				t.Errorf("slot 7: %v, %v", a, err)
			}
			if s := f.Status(); s.Version != x.want || s.Source != x.source {
				t.Errorf("Status = %+v, want version %d from %s", s, x.want, x.source)
			}
		})
	}
	t.Run("Redis hangs", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never answers
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		dir := t.TempDir()
		write(t, dir, 3)
		var f *route.Follower
		h, took := &routing.Holder{}, time.Hour
		for range 5 { // a busy machine adds its own
			begun := time.Now()
			h = &routing.Holder{}
			f = route.Open(route.Options{RedisAddr: l.Addr().String(), Dir: dir, Key: public(key(1))}, h)
			if took = time.Since(begun); took < 2*time.Second {
				break
			}
		}
		if h.Version() != 3 || took > 2*time.Second {
			t.Errorf("version %d after %s, want 3 at once", h.Version(), took)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := f.Run(ctx); err != nil {
			t.Error(err)
		}
	})
}

// flip changes a bit of the table in Redis; -1 cuts it in half.
func flip(t *testing.T, c *redis.Client, at int) {
	t.Helper()
	b, err := c.Get(t.Context(), "route:table").Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if at < 0 {
		b = b[:len(b)/2]
	} else {
		b[at] ^= 1
	}
	if err := c.Set(t.Context(), "route:table", b, 0).Err(); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, path string) {
	t.Helper()
	if err := os.Truncate(path, 300); err != nil {
		t.Fatal(err)
	}
}

// TestLevels follows one process through what its Redis and its agent do, by the
// metrics that it shows.
func TestLevels(t *testing.T) {
	t.Parallel()
	r, a := redistest.New(t), newAgent(t)
	cache, m := route.OpenCache(r.Addr), obs.New("c1", "order")
	t.Cleanup(cache.Close)
	has := func(series string) bool {
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return strings.Contains(w.Body.String(), "\n"+series)
	}
	a.serve(signed(t, key(1), 1))
	f, h := run(t, route.Options{AgentURL: a.URL, RedisAddr: r.Addr, Key: public(key(1)), Cells: []string{"c1"}, Interval: 10 * time.Millisecond, Metrics: m})
	waitVersion(t, h, 1) // Redis is empty: the agent has it
	waitFor(t, "an l3 hit", func() bool {
		return has(`cellmart_route_reads_total{cell="c1",level="l3",result="hit",service="order"} 1`)
	})
	bring(t, cache, 2)
	waitVersion(t, h, 2)
	waitFor(t, "an l2 hit", func() bool {
		return has(`cellmart_route_reads_total{cell="c1",level="l2",result="hit",service="order"} 1`) &&
			has(`cellmart_route_tables_total{cell="c1",service="order",source="redis"} 1`)
	})

	// While Redis confirms the table the agent is left alone.
	waitFor(t, "checks by Redis alone", func() bool {
		before := a.asked.Load()
		waitFor(t, "a second", func() bool { return f.Status().Checked && f.Status().Age < 5*time.Millisecond })
		return a.asked.Load() == before
	})
	a.serve(signed(t, key(1), 3)) // but whoever is told that the table is old asks it
	f.Refresh()
	waitVersion(t, h, 3)

	// Rolled back, flushed, dead: refused and counted, and the agent goes on.
	if err := errors.Join(r.Client().Set(t.Context(), "route:version", "1", 0).Err(), r.Client().Set(t.Context(), "route:table", signed(t, key(1), 1), 0).Err()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "an older table in Redis is counted", func() bool {
		return has(`cellmart_route_refused_total{cell="c1",reason="older",service="order",source="redis"} `)
	})
	a.serve(signed(t, key(1), 4))
	waitVersion(t, h, 4)
	r.Kill()
	waitFor(t, "an l2 error", func() bool {
		return has(`cellmart_route_reads_total{cell="c1",level="l2",result="error",service="order"} `)
	})
	a.serve(signed(t, key(1), 5))
	waitVersion(t, h, 5)
	r.Start()
	bring(t, cache, 6)
	waitVersion(t, h, 6)
	for _, series := range []string{
		`cellmart_route_reads_total{cell="c1",level="l1",result="hit",service="order"} `,
		`cellmart_route_reads_total{cell="c1",level="l1",result="miss",service="order"} `,
		`cellmart_route_lookup_seconds{cell="c1",level="l1",service="order"} `,
		`cellmart_route_read_seconds_count{cell="c1",level="l2",service="order"} `,
		`cellmart_route_read_seconds_count{cell="c1",level="l3",service="order"} `,
	} {
		if !has(series) {
			t.Errorf("no %s in the metrics", series)
		}
	}
}

// TestDeafProcessAsksItsAgent: Redis confirms the table, but without NATS nobody
// would hear that it's held.
func TestDeafProcessAsksItsAgent(t *testing.T) {
	t.Parallel()
	r, a := redistest.New(t), newAgent(t)
	cache := route.OpenCache(r.Addr)
	t.Cleanup(cache.Close)
	bring(t, cache, 2)
	_, h := run(t, route.Options{
		AgentURL: a.URL, NATSURL: "nats://127.0.0.1:1", RedisAddr: r.Addr, Key: public(key(1)), Process: "order@1", Interval: 10 * time.Millisecond,
	})
	waitVersion(t, h, 2)
	waitFor(t, "the agent hears it again and again", func() bool { return a.asked.Load() > 3 && *a.after.Load() == "2" && *a.process.Load() == "order@1" })
}

// TestScenario_R04_AMovedUserIsNeverLookedForInTheOldCell: whatever comes late or
// again from Redis, the agent or a push, the process goes on to the new home.
func TestScenario_R04_AMovedUserIsNeverLookedForInTheOldCell(t *testing.T) {
	t.Parallel()
	const user, p = 5<<14 | 3, routing.FirstUserSlot
	r, a, s := redistest.New(t), newAgent(t), startNATS(t, -1)
	raw, m := r.Client(), obs.New("c1", "gateway")
	old := signed(t, key(1), 1)
	spec := openTable(t, old).Spec()
	spec.Version = 2
	spec.Private[p] = routing.Assignment{Owner: "c2", Standby: "c1", Epoch: 1}
	spec.Overrides = map[int64]routing.Slot{user: p}
	table, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	moved := routing.Sign(key(1), table).Bytes()

	a.serve(old)
	f, h := run(t, route.Options{
		AgentURL: a.URL, NATSURL: s.ClientURL(), RedisAddr: r.Addr, Key: public(key(1)), Cells: []string{"c1", "c2"},
		Interval: 5 * time.Millisecond, Metrics: m,
	})
	waitVersion(t, h, 1)
	if _, home, _ := h.Load().Home(user); home.Owner != "c1" {
		t.Fatalf("before the move the user is at %v", home)
	}
	a.serve(moved)
	f.Refresh() // as after a 421
	waitVersion(t, h, 2)

	a.serve(old) // an agent that lost its disk
	if err := errors.Join(raw.Set(t.Context(), "route:table", old, 0).Err(), raw.Set(t.Context(), "route:version", "1", 0).Err()); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	refused := func() int {
		n := 0
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		for _, source := range []string{"agent", "redis", "push"} {
			if strings.Contains(w.Body.String(), `cellmart_route_refused_total{cell="c1",reason="older",service="gateway",source="`+source+`"}`) {
				n++
			}
		}
		return n
	}
	waitFor(t, "all three old tables are refused", func() bool {
		if err := errors.Join(nc.Publish(route.SubjectTable, old), nc.Flush()); err != nil {
			t.Fatal(err)
		}
		if s, home, ok := h.Load().Home(user); !ok || s != p || home.Owner != "c2" {
			t.Fatalf("the user is looked for in slot %d at %v", s, home)
		}
		return refused() == 3
	})
	if s, home, ok := h.Load().Home(user + 1<<14); !ok || s.Private() || home.Owner != "c1" {
		t.Errorf("a neighbour in the slot: slot %d at %v", s, home)
	}
	if _, err := route.Resolve(h.Load(), p+1); err == nil {
		t.Error("a private slot that nobody has is found")
	}
}
