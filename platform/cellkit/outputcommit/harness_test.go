package outputcommit_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/bus/bustest"
	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/outputcommit"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/standby"
	"example.com/cellmart/platform/routing"
)

const (
	limit = time.Minute
	half  = routing.Slots / 2
)

// world is cells: c1 owns the lower half of the slots, c2 the upper one. c2 stands by
// for slots 0 to 9, c1 for the first ten of c2's; c3 owns nothing.
type world struct {
	t     *testing.T
	cells map[string]*cell
	table *routing.Holder
	proxy string
}

type cell struct {
	w       *world
	name    string
	db      *pgtest.DB
	nats    *bustest.NATS
	agent   *pgxpool.Pool
	log     *slog.Logger
	stop    map[string]func()
	applier atomic.Pointer[standby.Applier]
	silent  atomic.Bool // its agent answers nobody
	gate    *outputcommit.Gate
	heard   *spy
}

// voters keep the marks, as control does.
type voters struct {
	mu    sync.Mutex
	down  bool
	calls int
	marks map[routing.Slot]outputcommit.Mark
}

var errDown = errors.New("nobody answers")

func (v *voters) do(f func()) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.calls++
	if v.down {
		return errDown
	}
	f()
	return nil
}

func (v *voters) Mark(_ context.Context, list []outputcommit.Mark) error {
	return v.do(func() {
		for _, m := range list {
			if v.marks == nil {
				v.marks = map[routing.Slot]outputcommit.Mark{}
			}
			if v.marks[m.Slot].Token < m.Token {
				v.marks[m.Slot] = m
			}
		}
	})
}

func (v *voters) Lift(_ context.Context, list []outputcommit.Mark) error {
	return v.do(func() {
		for _, m := range list {
			if have, ok := v.marks[m.Slot]; ok && have.Token <= m.Token {
				delete(v.marks, m.Slot)
			}
		}
	})
}

func (v *voters) Marks(context.Context) (out []outputcommit.Mark, err error) {
	return out, v.do(func() { out = slices.Collect(maps.Values(v.marks)) })
}

func (v *voters) setDown(down bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.down = down
}

func (v *voters) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.marks)
}

func (v *voters) has(s routing.Slot) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ok := v.marks[s]
	return ok
}

func toy() pg.Migrations {
	return pg.Migrations{Schema: "toy", FS: fstest.MapFS{"0001_toy.sql": {Data: []byte(`-- +goose Up
CREATE TABLE toy.effects (slot int NOT NULL, epoch bigint NOT NULL, rev bigint NOT NULL, what text NOT NULL, PRIMARY KEY (slot, what));
SELECT cell.unit_table('toy.effects');
`)}}}
}

func newWorld(t *testing.T, names ...string) *world {
	t.Helper()
	w := &world{t: t, cells: map[string]*cell{}, table: &routing.Holder{}}
	spec := routing.Spec{Version: 1, Slots: make([]routing.Assignment, routing.Slots)}
	for i, name := range names {
		spec.Cells = append(spec.Cells, routing.Cell{Name: name, Ordinal: i + 1, Weight: 1})
		c := &cell{w: w, name: name, db: pgtest.NewCell(t, name, i+1, cdc.Migrations(), toy()), stop: map[string]func(){}, log: slog.New(slog.DiscardHandler)}
		if os.Getenv("CELLMART_TEST_LOG") != "" {
			c.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("cell", name)
		}
		w.cells[name] = c
		var err error
		if c.agent, err = pg.Open(t.Context(), c.db.AgentDSN, name, c.log); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.agent.Close)
		c.nats = bustest.NewNATS(t)
		t.Cleanup(c.clean)
		c.super(`UPDATE cell.slots s SET owner = o.owner, standby = o.standby,
				role = CASE $1 WHEN o.owner THEN 'owner' WHEN o.standby THEN 'standby' ELSE 'none' END
			FROM (SELECT n, CASE WHEN n < $2 THEN 'c1' ELSE 'c2' END AS owner,
				CASE WHEN n < 10 THEN 'c2' WHEN n BETWEEN $2 AND $2 + 9 THEN 'c1' END AS standby FROM generate_series(0, 16383) n) o
			WHERE o.n = s.slot`, name, half)
		if err := cdc.Publish(t.Context(), c.db.SuperDSN, nil); err != nil {
			t.Fatal(err)
		}
		c.heard = c.spy()
	}
	for i := range spec.Slots {
		spec.Slots[i] = routing.Assignment{Owner: "c1", Epoch: 1}
		if i >= half {
			spec.Slots[i].Owner = "c2"
		}
	}
	table, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	w.table.Store(table)
	w.proxy = w.connect()
	return w
}

// connect stands for the agents' CONNECT listeners.
func (w *world) connect() string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ln.Close() })
	serve := func(c net.Conn) {
		defer c.Close()
		br := bufio.NewReader(c)
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", strings.TrimPrefix(w.cells[r.URL.Host].nats.URL, "nats://"))
		if err != nil {
			return
		}
		defer far.Close()
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { io.Copy(far, br); far.Close() }()
		io.Copy(c, far)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return ln.Addr().String()
}

func (c *cell) super(sql string, args ...any) {
	c.w.t.Helper()
	if _, err := c.db.Super.Exec(c.w.t.Context(), sql, args...); err != nil {
		c.w.t.Fatalf("%s: %v", sql, err)
	}
}

func (c *cell) text(sql string, args ...any) string {
	c.w.t.Helper()
	out, err := c.read(sql, args...)
	if err != nil {
		c.w.t.Fatalf("%s: %v", sql, err)
	}
	return out
}

func (c *cell) read(sql string, args ...any) (out string, err error) {
	err = c.db.Super.QueryRow(context.Background(), "SELECT coalesce(("+sql+")::text, 'NULL')", args...).Scan(&out)
	return out, err
}

// run starts a part; halt ends it.
func (c *cell) run(name string, f func(ctx context.Context) error) {
	c.halt(name)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(ctx); err != nil && ctx.Err() == nil {
			c.w.t.Errorf("%s of %s: %v", name, c.name, err)
		}
	}()
	c.stop[name] = func() { cancel(); <-done }
}

func (c *cell) halt(name string) {
	if stop := c.stop[name]; stop != nil {
		stop()
		delete(c.stop, name)
	}
}

func (c *cell) clean() {
	for name := range maps.Clone(c.stop) {
		c.halt(name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, _ = c.db.Super.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database() AND NOT active")
	_, _ = c.db.Super.Exec(ctx, "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname LIKE '%@' || current_database()")
}

func (c *cell) relay() {
	var peers []string
	for name := range c.w.cells {
		if name != c.name {
			peers = append(peers, name)
		}
	}
	c.run("relay", cdc.NewRelay(cdc.Options{
		Zone: c.name, Pool: c.agent, DSN: c.db.AgentDSN, NATSURL: c.nats.URL, Log: c.log, Peers: func() []string { return peers },
		Beat: 300 * time.Millisecond, // a copy is whole when the stream has passed its place
	}).Run)
}

func (c *cell) apply(sources ...string) {
	c.halt("applier")
	o := standby.Options{Cell: c.name, DSN: c.db.ApplierDSN, Pool: c.agent, Log: c.log, Sources: map[string]func() (*nats.Conn, error){}}
	for _, s := range sources {
		o.Sources[s] = func() (*nats.Conn, error) { return bus.Connect(c.w.cells[s].nats.URL, "standby", c.log) }
	}
	a := standby.New(o)
	c.applier.Store(a)
	c.run("applier", a.Run)
}

// asked is a cell's agent, answering an owner.
func (c *cell) asked(ctx context.Context, q outputcommit.Question) (outputcommit.Answer, error) {
	a := c.applier.Load()
	if c.silent.Load() {
		<-ctx.Done()
		return outputcommit.Answer{}, ctx.Err()
	}
	if a == nil {
		return outputcommit.Answer{}, errDown
	}
	ctx, cancel := context.WithTimeout(ctx, outputcommit.MaxWait)
	defer cancel()
	var slots []int
	for _, s := range q.Slots {
		slots = append(slots, int(s))
	}
	got, err := a.Applied(ctx, q.Source, cdc.LSN(q.LSN), slots)
	if err != nil {
		return outputcommit.Answer{}, err
	}
	out := outputcommit.Answer{Incarnation: got.Incarnation, LSN: int64(got.LSN), InSync: map[routing.Slot]routing.Epoch{}}
	for s, e := range got.InSync {
		out.InSync[routing.Slot(s)] = routing.Epoch(e)
	}
	return out, nil
}

// send starts a dispatcher with a gate.
func (c *cell) send(v *voters, change func(outputcommit.Options) outputcommit.Options) {
	c.halt("dispatcher")
	c.halt("gate")
	o := outputcommit.Options{Cell: c.name, Pool: c.agent, Ask: map[string]outputcommit.Ask{}, Mark: v, Log: c.log}
	for name, other := range c.w.cells {
		if name != c.name {
			o.Ask[name] = other.asked
		}
	}
	if change != nil {
		o = change(o)
	}
	c.gate = outputcommit.New(o)
	c.run("gate", c.gate.Run)
	c.run("dispatcher", bus.NewDispatcher(bus.DispatcherOptions{
		Cell: c.name, Pool: c.agent, NATSURL: c.nats.URL, Table: c.w.table, Log: c.log, MaxBytes: 64 << 20, Commit: c.gate,
	}).Run)
}

func strict(o outputcommit.Options) outputcommit.Options {
	o.Strict = true
	return o
}

// consume starts a consumer: do.it answers done.it, and try.it an early tried.it.
func (c *cell) consume() {
	con := bus.NewConsumer(bus.ConsumerOptions{
		Service: "toy", Cell: c.name, Pool: c.db.App, NATSURL: c.nats.URL, Dialer: link.Dialer{Addr: c.w.proxy}, Table: c.w.table, Log: c.log,
	})
	note := func(ctx context.Context, tx *pg.Tx, what string) error {
		_, err := tx.Exec(ctx, "INSERT INTO toy.effects (slot, what) VALUES ($1, $2)", tx.Slot, what)
		return err
	}
	con.Handle("do.it", func(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
		return bus.Reply{Kind: "done.it"}, note(ctx, tx, "do "+m.Key)
	})
	con.Handle("try.it", func(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
		return bus.Reply{Kind: "tried.it", Early: true}, note(ctx, tx, "try "+m.Key)
	})
	for _, kind := range []string{"done.it", "tried.it"} {
		con.HandleReply(kind, func(ctx context.Context, tx *pg.Tx, m bus.Message) (bool, error) {
			return true, note(ctx, tx, kind+" "+m.Key)
		})
	}
	c.run("consumer", con.Run)
}

// ask writes a request.
func (c *cell) ask(from, to routing.Slot, key string, early bool) {
	c.w.t.Helper()
	r := bus.Request{Service: "toy", Kind: "do.it", Key: key, To: to, Body: map[string]string{"key": key}, ReplyService: "toy", Early: early}
	if early {
		r.Kind = "try.it"
	}
	err := pg.InSlot(c.w.t.Context(), c.db.App, pg.Entry{Slot: from, Epoch: 1}, func(tx *pg.Tx) error { return bus.Send(c.w.t.Context(), tx, r) })
	if err != nil {
		c.w.t.Fatal(err)
	}
}

// tell writes a reply: it is sent once, and not again for want of an answer.
func (c *cell) tell(from routing.Slot, key string) {
	c.w.t.Helper()
	c.super(fmt.Sprintf(`BEGIN; SELECT cell.enter(%d, 1); INSERT INTO cell.outbox (slot, id, to_slot, service, kind, key, body, reply_to)
		VALUES (%d, '%s', 9000, 'toy', 'x', '%s', '{}', 'q'); COMMIT`, from, from, key, key))
}

// spy hears what is published to a cell's streams, in the moment it is.
type spy struct {
	mu   sync.Mutex
	n    map[string]int
	look func(id string)
}

func (c *cell) spy() *spy {
	nc, err := nats.Connect(c.nats.URL)
	if err != nil {
		c.w.t.Fatal(err)
	}
	c.w.t.Cleanup(nc.Close)
	s := &spy{n: map[string]int{}}
	if _, err := nc.Subscribe("x.>", func(m *nats.Msg) {
		id := m.Header.Get("Nats-Msg-Id")
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.look != nil {
			s.look(id)
		}
		s.n[id]++
	}); err != nil {
		c.w.t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		c.w.t.Fatal(err)
	}
	return s
}

// times says how often a message left: its id without attempt.
func (s *spy) times(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for k, v := range s.n {
		if _, rest, ok := strings.Cut(k, "/"); ok && strings.HasPrefix(rest, id+"/") {
			n += v
		}
	}
	return n
}

func (s *spy) watch(f func(id string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look = f
}

// waitFor polls until check gives "".
func (w *world) waitFor(what string, check func() string) {
	w.t.Helper()
	end := time.After(limit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		why := check()
		if why == "" {
			return
		}
		select {
		case <-end:
			w.t.Fatalf("%s: not within %s: %s", what, limit, why)
		case <-tick.C:
		}
	}
}

func (w *world) left(c *cell, id string) {
	w.t.Helper()
	w.waitFor(id+" leaves "+c.name, func() string {
		if c.heard.times(id) == 0 {
			return fmt.Sprintf("nothing; gate: %+v", c.gate.Status())
		}
		return ""
	})
}

// synced waits until a cell keeps these slots of another.
func (w *world) synced(keeper *cell, slots ...int) {
	w.t.Helper()
	w.waitFor(fmt.Sprintf("%s is in sync with %v", keeper.name, slots), func() string {
		n, err := keeper.read("SELECT count(*) FROM cell.standing_by WHERE state = 'in_sync' AND slot = ANY ($1)", slots)
		if err != nil || n != fmt.Sprint(len(slots)) {
			return fmt.Sprint(n, " slots ", err)
		}
		return ""
	})
}

// held waits until the gate holds so many.
func (c *cell) held(n int) {
	c.w.t.Helper()
	c.w.waitFor(fmt.Sprintf("%s holds %d", c.name, n), func() string {
		if got := c.gate.Status().Held; got != n {
			return fmt.Sprint("it holds ", got)
		}
		return ""
	})
}
