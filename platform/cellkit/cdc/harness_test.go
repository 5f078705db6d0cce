package cdc_test

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/bus/bustest"
	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
)

//go:embed testdata/migrations/*.sql
var shopFiles embed.FS

var shopTables = cdc.Tables{"shop.things": {"slot", "epoch", "rev", "id", "name", "note"}}

const limit = 90 * time.Second // only a failure takes so long

// world is a cell's database, its NATS, and a sink that keeps rows in memory.
type world struct {
	t    *testing.T
	db   *pgtest.DB
	nats *bustest.NATS
	log  *slog.Logger
	pool *pgxpool.Pool

	mu       sync.Mutex
	pos      cdc.Position
	things   map[string]thing // what the sink has stored
	begins   int
	small    int64        // the stream's bound, 0 = the default
	maxWAL   int64        // the same of the WAL
	through  string       // the relay's way to Postgres, "" = straight
	settings string       // of its connections then: a URL's query
	silences atomic.Int64 // times that a session ended for want of a sign
	hasty    bool         // the relay ends a session for want of a sign soon
	via      string       // the sink's way to NATS, "" = straight
	stop     map[string]func()
	last     *cdc.Follower
}

type thing struct {
	Name, Note string
	copy       string
	lsn        cdc.LSN
}

func newWorld(t *testing.T) *world {
	t.Helper()
	schema := pg.Sub("shop", shopFiles)
	sub, err := subTestdata()
	if err != nil {
		t.Fatal(err)
	}
	schema.FS = sub
	w := &world{t: t, nats: bustest.NewNATS(t), things: map[string]thing{}, stop: map[string]func(){}}
	w.db = pgtest.New(t, cdc.Migrations(), schema)
	requireLogical(t, w.db.Super)
	w.log = slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		w.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if err := cdc.Publish(t.Context(), w.db.SuperDSN, shopTables); err != nil {
		t.Fatal(err)
	}
	if w.pool, err = pg.Open(t.Context(), w.db.AgentDSN, w.db.Cell, w.log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Close)
	t.Cleanup(w.haltAll)
	return w
}

// requireLogical says what is wrong with the test's server.
func requireLogical(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	var level string
	if err := pool.QueryRow(t.Context(), "SHOW wal_level").Scan(&level); err != nil {
		t.Fatal(err)
	}
	if level != "logical" {
		t.Fatalf("wal_level is %s on the Postgres of CELLMART_TEST_PG: start it with -c wal_level=logical, as scripts/test does", level)
	}
}

func (w *world) haltAll() {
	for name := range maps.Clone(w.stop) {
		w.halt(name)
	}
}

// run starts a part and remembers how to end it.
func (w *world) run(name string, f func(ctx context.Context) error) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(ctx); err != nil && ctx.Err() == nil {
			w.t.Errorf("%s: %v", name, err)
		}
	}()
	w.stop[name] = func() { cancel(); <-done }
}

// halt ends a part.
func (w *world) halt(name string) {
	if stop := w.stop[name]; stop != nil {
		stop()
		delete(w.stop, name)
	}
}

// relay starts the relay; step is a failpoint, or nil.
func (w *world) relay(step func(string) error) {
	o := cdc.Options{
		Zone: w.db.Cell, Pool: w.pool, DSN: w.db.AgentDSN, NATSURL: w.nats.URL, Sinks: []cdc.Sink{{Name: "test", Tables: shopTables}},
		Log: slog.New(listening{w.log.Handler(), &w.silences}), Beat: 300 * time.Millisecond, MaxBytes: w.small, MaxWAL: w.maxWAL,
	}
	if w.through != "" {
		u, err := url.Parse(o.DSN)
		if err != nil {
			w.t.Fatal(err)
		}
		u.Host = w.through
		u.RawQuery = w.settings
		o.DSN = u.String()
	}
	if !w.hasty {
		o = o.Patient()
	}
	w.run("relay", cdc.NewRelay(o.WithStep(step)).Run)
}

// pgAddress is the server's host and port.
func (w *world) pgAddress() string {
	c := w.db.Super.Config().ConnConfig
	return net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
}

// listening counts the sessions that ended because nothing came through.
type listening struct {
	slog.Handler
	silences *atomic.Int64
}

func (l listening) Enabled(context.Context, slog.Level) bool { return true }

func (l listening) WithAttrs(a []slog.Attr) slog.Handler {
	return listening{l.Handler.WithAttrs(a), l.silences}
}

func (l listening) Handle(ctx context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" && strings.Contains(a.Value.String(), "the slot is silent") {
			l.silences.Add(1)
		}
		return true
	})
	if !l.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

// sink starts the follower, from what it has stored.
func (w *world) sink() *cdc.Follower {
	w.mu.Lock()
	o := cdc.FollowerOptions{
		Zone: w.db.Cell, Sink: "test", Position: w.pos, Log: w.log, Apply: w.apply,
		Connect: func() (*nats.Conn, error) {
			if w.via != "" {
				return bus.Connect(w.via, "sink", w.log)
			}
			return bus.Connect(w.nats.URL, "sink", w.log)
		},
	}.Quick()
	w.mu.Unlock()
	f := cdc.NewFollower(o)
	w.last = f
	w.run("sink", f.Run)
	return f
}

func (w *world) apply(_ context.Context, changes []cdc.Change, p cdc.Position) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range changes {
		switch c.Kind {
		case cdc.KindBegin:
			w.begins++
		case cdc.KindEnd:
			maps.DeleteFunc(w.things, func(_ string, t thing) bool { return t.copy != c.Copy })
		}
		for _, r := range c.Rows {
			w.row(c, r)
		}
	}
	w.pos = p
	return nil
}

func (w *world) row(c cdc.Change, r cdc.Row) {
	key := r.Text("id")
	have, ok := w.things[key]
	if ok && have.lsn > c.LSN {
		have.copy = c.Copy
		w.things[key] = have
		return
	}
	if r.Op == cdc.Delete {
		delete(w.things, key)
		return
	}
	next := thing{Name: r.Text("name"), Note: have.Note, copy: c.Copy, lsn: c.LSN}
	if v, _ := r.Value("note"); v.State != cdc.Same { // else it's large, and unchanged
		next.Note = r.Text("note")
	}
	w.things[key] = next
}

// write changes the database as a service does: slot entered.
func (w *world) write(sql string, args ...any) {
	w.t.Helper()
	// Without a service's limits: this machine may stand still for longer.
	o := pgx.TxOptions{BeginQuery: "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0; SELECT cell.enter(7, 1)"}
	for try := 1; ; try++ {
		err := pgx.BeginTxFunc(w.t.Context(), w.db.App, o, func(tx pgx.Tx) error {
			_, err := tx.Exec(w.t.Context(), sql, args...)
			return err
		})
		if err == nil {
			return
		}
		var unconnected *pgconn.ConnectError // within 2 s: nothing has begun
		if try == 10 || !errors.As(err, &unconnected) {
			w.t.Fatal(err)
		}
	}
}

func (w *world) add(from, to int) {
	w.t.Helper()
	w.write("INSERT INTO shop.things (slot, id, name) SELECT 7, n, 'thing ' || n FROM generate_series($1::int, $2::int) n", from, to)
}

func (w *world) super(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Super.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// equal waits until the sink has exactly what the database has, says it's live,
// and the relay has noted that its copy is whole.
func (w *world) equal() {
	w.t.Helper()
	var diff string
	wait(w.t, func() string { return diff }, func() bool {
		rows, err := w.db.Super.Query(w.t.Context(), "SELECT id::text, name, coalesce(note, '') FROM shop.things")
		if err != nil {
			w.t.Fatal(err)
		}
		want := map[string]thing{}
		var key, name, note string
		if _, err := pgx.ForEachRow(rows, []any{&key, &name, &note}, func() error {
			want[key] = thing{Name: name, Note: note}
			return nil
		}); err != nil {
			w.t.Fatal(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		have := map[string]thing{}
		for k, v := range w.things {
			have[k] = thing{Name: v.Name, Note: v.Note}
		}
		diff = cmp.Diff(want, have, cmp.AllowUnexported(thing{}))
		if w.pos.State != cdc.Live {
			diff = fmt.Sprintf("the sink is %q", w.pos.State)
		}
		var copying bool
		if err := w.db.Super.QueryRow(w.t.Context(), "SELECT EXISTS (SELECT FROM cdc.copies WHERE state <> 'done')").Scan(&copying); err != nil || copying {
			diff = fmt.Sprintf("a copy is being made: %v", err)
		}
		return diff == ""
	})
}

func wait(t *testing.T, why any, cond func() bool) {
	t.Helper()
	end := time.After(limit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-end:
			if f, ok := why.(func() string); ok {
				why = f()
			}
			t.Fatalf("not within %s: %v", limit, why)
		case <-tick.C:
		}
	}
}

func (w *world) js() jetstream.JetStream {
	w.t.Helper()
	nc, err := nats.Connect(w.nats.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		w.t.Fatal(err)
	}
	return js
}

var errKilled = errors.New("killed by the test")

// once gives a failpoint that fails at the nth time that it comes to a step.
func once(step string, nth int) (f func(string) error, hit <-chan struct{}) {
	done := make(chan struct{})
	n := 0
	var mu sync.Mutex
	return func(s string) error {
		mu.Lock()
		defer mu.Unlock()
		if s != step {
			return nil
		}
		if n++; n == nth {
			close(done)
			return errKilled
		}
		return nil
	}, done
}
