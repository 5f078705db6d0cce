package agent

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"

	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/cellkit/route/redistest"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

// zoned is a keeper without a database, as the global zone's agent has it.
func zoned(t *testing.T, priv ed25519.PrivateKey) *keeper {
	t.Helper()
	return &keeper{
		log: slog.New(slog.NewTextHandler(t.Output(), nil)), key: priv.Public().(ed25519.PublicKey), dir: t.TempDir(),
		holder: &routing.Holder{}, acks: route.NewAcks(), stats: route.NewStats(nil), silent: make(chan struct{}, 1),
		publish: func([]byte) {},
		control: func(context.Context, int64, time.Duration) (*routing.Table, []byte, error) {
			return nil, nil, errors.New("no answer")
		},
	}
}

func testKey() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)) }

func (k *keeper) get(t *testing.T, table *routing.Table) {
	t.Helper()
	k.take(table, routing.Sign(testKey(), table).Bytes(), "control")
}

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// background runs a part until the test ends.
func background(t *testing.T, part func(context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestScenario_R01_ControlDiesInTheMiddleOfAPush: one agent got the new table,
// then control is gone: for the second it's dead, and the third hears nothing
// from it at all, not even that. Nobody is left behind.
func TestScenario_R01_ControlDiesInTheMiddleOfAPush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		told, dead, deaf := zoned(t, testKey()), zoned(t, testKey()), zoned(t, testKey())
		ask := func(k *keeper) source { // what GET /route of that agent gives
			return func(_ context.Context, after int64, _ time.Duration) (*routing.Table, []byte, error) {
				if signed := k.current(after); signed != nil {
					return k.holder.Load(), signed, nil
				}
				return nil, nil, nil
			}
		}
		for _, k := range []*keeper{dead, deaf} {
			k.get(t, table(t, 1, "c1", 1))
			k.peers = map[string]source{"c1": ask(told), "c9": func(context.Context, int64, time.Duration) (*routing.Table, []byte, error) {
				return nil, nil, errors.New("unplugged")
			}}
		}
		deaf.control = func(ctx context.Context, _ int64, _ time.Duration) (*routing.Table, []byte, error) {
			<-ctx.Done()
			return nil, nil, ctx.Err()
		}
		done := make(chan error, 2)
		for _, k := range []*keeper{dead, deaf} {
			go func() { done <- k.fetch(ctx) }()
		}
		time.Sleep(time.Minute)
		told.get(t, table(t, 2, "c2", 2))
		time.Sleep(retry + time.Millisecond)
		if v := dead.holder.Version(); v != 2 {
			t.Errorf("control is dead: version %d is held a second later, want 2", v)
		}
		time.Sleep(askEach)
		if v := deaf.holder.Version(); v != 2 {
			t.Errorf("control is silent: version %d is held 5 s later, want 2", v)
		}
		stop()
		if err := errors.Join(<-done, <-done); err != nil {
			t.Error(err)
		}
	})
}

// TestScenario_R03_AgentAndRedis: the agent starts from the newer of snapshot and
// Redis, and keeps Redis at its table whatever happens to it.
func TestScenario_R03_AgentAndRedis(t *testing.T) {
	t.Parallel()
	r := redistest.New(t)
	raw, ctx := r.Client(), t.Context()
	start := func(dir string) *keeper {
		k := zoned(t, testKey())
		if dir != "" {
			k.dir = dir
		}
		k.cache = route.OpenCache(r.Addr)
		t.Cleanup(k.cache.Close)
		k.load(ctx)
		return k
	}
	first := start("")
	if v := first.holder.Version(); v != -1 {
		t.Fatalf("a table of version %d comes from nothing", v)
	}
	first.get(t, table(t, 3, "c1", 1))
	old := start(first.dir) // its snapshot stays at 3, as on a disk that was rolled back
	background(t, first.spread)
	first.get(t, table(t, 5, "c1", 1))
	has := func(version string) bool { return raw.Get(ctx, "route:version").Val() == version }
	until(t, "Redis gets the table", func() bool { return has("5") })

	if err := old.sync(ctx); err != nil || old.holder.Version() != 5 {
		t.Errorf("beside a newer Redis the agent holds %d, %v", old.holder.Version(), err)
	}
	if lost := start(""); lost.holder.Version() != 5 {
		t.Errorf("without a snapshot the agent starts with %d, want 5 from Redis", lost.holder.Version())
	} else if s := route.ReadSnapshot(lost.dir, lost.key); s.Table == nil || s.Table.Version() != 5 {
		t.Error("what came from Redis isn't on the disk")
	}
	if err := errors.Join(raw.FlushAll(ctx).Err(), raw.Set(ctx, "route:version", 1, 0).Err()); err != nil {
		t.Fatal(err)
	}
	until(t, "Redis is brought back within 5 s", func() bool { return has("5") })
	r.Kill()
	if cold := start(first.dir); cold.holder.Version() != 5 {
		t.Errorf("with Redis down the agent starts with %d, want 5 from its snapshot", cold.holder.Version())
	}
	first.get(t, table(t, 6, "c1", 1))
	r.Start()
	until(t, "a new Redis gets the table", func() bool { return has("6") })
}

// natsAt starts a broker; with mute the user "svc" gets no pushed tables.
func natsAt(t *testing.T, port int, mute bool) *natsd.Server {
	t.Helper()
	o := &natsd.Options{Host: "127.0.0.1", Port: port, NoLog: true, NoSigs: true, Users: []*natsd.User{
		{Username: "agent", Password: "x"}, {Username: "svc", Password: "x"},
	}}
	if mute {
		o.Users[1].Permissions = &natsd.Permissions{Subscribe: &natsd.SubjectPermission{Deny: []string{route.SubjectTable}}}
	}
	s, err := natsd.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("nats-server is not ready")
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}

// TestScenario_R02_LostPush: two processes get no pushes. The one that reaches its
// agent follows by asking; the other stays behind, is shown with its age, and is
// brought up by a repeated push as soon as pushes reach it, without a new table.
func TestScenario_R02_LostPush(t *testing.T) {
	t.Parallel()
	broker := natsAt(t, -1, true)
	_, port, _ := net.SplitHostPort(broker.Addr().String())
	k, news := zoned(t, testKey()), newBulletin()
	if err := news.connect("nats://agent:x@127.0.0.1:"+port, "agent", k.log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(news.close)
	if err := news.hear(k.acks, k.log); err != nil {
		t.Fatal(err)
	}
	k.publish = news.table
	background(t, k.spread)
	srv := &server{cell: "c1", name: "agent@1", operator: "key", keeper: k}
	local := httptest.NewServer(srv.local(web.Options{Service: "agent", Cell: "c1"}))
	t.Cleanup(local.Close)
	got := make(chan controlapi.ZoneAcks, 1000)
	background(t, func(ctx context.Context) error {
		return srv.tellControl(ctx, func(_ context.Context, z controlapi.ZoneAcks) error { got <- z; return nil })
	})

	follow := func(process, agent string) *routing.Holder {
		h := &routing.Holder{}
		f := route.Open(route.Options{
			AgentURL: agent, NATSURL: "nats://svc:x@127.0.0.1:" + port, Key: k.key, Process: process,
			Interval: 50 * time.Millisecond, Log: k.log, Cells: []string{"c1"},
		}, h)
		background(t, f.Run)
		return h
	}
	asking, cut := follow("order@1", local.URL), follow("user@1", "")
	known := func(process string) agentapi.Process {
		for _, p := range srv.processes() {
			if p.Process == process {
				return p
			}
		}
		return agentapi.Process{Version: -1}
	}
	until(t, "both are known", func() bool { return known("order@1").Version == 0 && known("user@1").Version == 0 })
	k.get(t, table(t, 1, "c1", 1))
	until(t, "who asks is up to date and says so", func() bool { return asking.Version() == 1 && known("order@1").Version == 1 })
	until(t, "who is cut off is shown with its age", func() bool {
		p := known("user@1")
		return p.Version == 0 && p.BehindMS != nil && *p.BehindMS > 1500 // pushed to twice by then
	})
	if p := known("order@1"); p.BehindMS != nil || cut.Version() != 0 {
		t.Errorf("order@1 = %+v; user@1 holds %d", p, cut.Version())
	}

	broker.Shutdown()
	broker.WaitForShutdown()
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	natsAt(t, n, false)
	until(t, "the repeated push arrives", func() bool {
		return cut.Version() == 1 && known("user@1").Version == 1 && known("user@1").BehindMS == nil
	})
	until(t, "control hears it", func() bool {
		z := <-got
		return z.Zone == "c1" && z.Version == 1 && len(z.Processes) == 3 && z.Processes[2].Process == "user@1" && z.Processes[2].Version == 1
	})

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, local.URL+"/route?after=0&process=a%20b", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	var problem struct{ Code string }
	if err = errors.Join(err, json.Unmarshal(body, &problem)); err != nil || resp.StatusCode != 400 || problem.Code != "INVALID_FIELD" {
		t.Errorf("a process with a blank in its name: %d %s, %v", resp.StatusCode, body, err)
	}
}
