package bus_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/bus/bustest"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/routing"
)

// half is the first slot of the second cell.
const half = routing.Slots / 2

// toy is a service whose every effect is counted, so that one done twice shows.
func toy() pg.Migrations {
	return pg.Migrations{Schema: "toy", FS: fstest.MapFS{"0001_toy.sql": {Data: []byte(`-- +goose Up
CREATE TABLE toy.effects (slot int NOT NULL, epoch bigint NOT NULL, rev bigint NOT NULL, what text NOT NULL, times int NOT NULL DEFAULT 1,
  PRIMARY KEY (slot, what));
SELECT cell.unit_table('toy.effects');
`)}}}
}

func effect(ctx context.Context, tx *pg.Tx, what string) error {
	_, err := tx.Exec(ctx, `INSERT INTO toy.effects (slot, what) VALUES ($1, $2)
		ON CONFLICT (slot, what) DO UPDATE SET times = effects.times + 1`, tx.Slot, what)
	return err
}

// effects gives how often each effect was done, of keys "slot what".
func effects(t testing.TB, db *pgtest.DB) map[string]int {
	t.Helper()
	rows, err := db.Super.Query(context.Background(), "SELECT slot || ' ' || what, times FROM toy.effects")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	var k string
	var n int
	for rows.Next() {
		if err := rows.Scan(&k, &n); err != nil {
			t.Fatal(err)
		}
		out[k] = n
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return out
}

// links stands for the agents' CONNECT listeners: one for all cells.
type links struct {
	mu      sync.Mutex
	targets map[string]string // cell -> address of its NATS
	down    bool
	conns   map[net.Conn]bool
	addr    string
}

func newLinks(t testing.TB) *links {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &links{targets: map[string]string{}, conns: map[net.Conn]bool{}, addr: ln.Addr().String()}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go l.serve(c)
		}
	}()
	return l
}

func (l *links) serve(c net.Conn) {
	defer c.Close()
	br := bufio.NewReader(c)
	r, err := http.ReadRequest(br)
	if err != nil {
		return
	}
	l.mu.Lock()
	addr, ok := l.targets[r.URL.Host]
	refuse := l.down || !ok
	if !refuse {
		l.conns[c] = true
	}
	l.mu.Unlock()
	if refuse {
		fmt.Fprint(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
		return
	}
	far, err := net.Dial("tcp", addr)
	if err != nil {
		fmt.Fprint(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
		return
	}
	defer far.Close()
	fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { io.Copy(far, br); far.Close() }()
	io.Copy(c, far)
}

// plug connects or cuts the cells.
func (l *links) plug(up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down = !up; l.down {
		for c := range l.conns {
			c.Close()
			delete(l.conns, c)
		}
	}
}

// cell is one cell: database, NATS, and whichever parts a test starts.
type cell struct {
	name    string
	db      *pgtest.DB
	agent   *pgxpool.Pool
	nats    *bustest.NATS
	table   *routing.Holder
	links   *links
	metrics *obs.Metrics
}

// newCells gives c1, which owns the lower half of the slots, and c2.
func newCells(t testing.TB) (c1, c2 *cell) {
	t.Helper()
	l := newLinks(t)
	table := new(routing.Holder)
	table.Store(tableOf(t, 1, nil))
	c1, c2 = newCell(t, "c1", 1, table, l), newCell(t, "c2", 2, table, l)
	own(t, c1, "slot >= $1", "c2")
	own(t, c2, "slot < $1", "c1")
	return c1, c2
}

func own(t testing.TB, c *cell, which, owner string) {
	t.Helper()
	_, err := c.db.Super.Exec(t.Context(), fmt.Sprintf("UPDATE cell.slots SET owner = $2, role = 'none' WHERE %s AND slot < 16384", which), half, owner)
	if err != nil {
		t.Fatal(err)
	}
}

func newCell(t testing.TB, name string, ordinal int, table *routing.Holder, l *links) *cell {
	t.Helper()
	db := pgtest.NewCell(t, name, ordinal, toy())
	agent, err := pg.Open(t.Context(), db.AgentDSN, name, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(agent.Close)
	c := &cell{name: name, db: db, agent: agent, nats: bustest.NewNATS(t), table: table, links: l, metrics: obs.New(name, "toy")}
	l.mu.Lock()
	l.targets[name] = strings.TrimPrefix(c.nats.URL, "nats://")
	l.mu.Unlock()
	return c
}

// tableOf is the two cells' table, with some slots at other owners (and epoch 2).
func tableOf(t testing.TB, version int64, moved map[routing.Slot]string) *routing.Table {
	t.Helper()
	s := routing.Spec{
		Version: version, Slots: make([]routing.Assignment, routing.Slots),
		Cells: []routing.Cell{{Name: "c1", Ordinal: 1, Weight: 1}, {Name: "c2", Ordinal: 2, Weight: 1}},
	}
	for i := range s.Slots {
		s.Slots[i] = routing.Assignment{Owner: "c1", Epoch: 1}
		if i >= half {
			s.Slots[i].Owner = "c2"
		}
		if to, ok := moved[routing.Slot(i)]; ok {
			s.Slots[i] = routing.Assignment{Owner: to, Epoch: 2}
		}
	}
	table, err := routing.Build(s)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// consumer makes the toy service's consumer: do.it does an effect named by the
// key, and answers done.it, which is an effect too.
func (c *cell) consumer() *bus.Consumer {
	con := bus.NewConsumer(bus.ConsumerOptions{
		Service: "toy", Cell: c.name, Pool: c.db.App, NATSURL: c.nats.URL, Dialer: link.Dialer{Addr: c.links.addr}, Table: c.table,
		Log: logger(), Metrics: c.metrics,
	})
	con.Hurry(2*time.Second, 2*time.Second, 20*time.Millisecond, 200*time.Millisecond)
	con.Handle("do.it", func(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
		return bus.Reply{Kind: "done.it", Body: map[string]string{"of": m.Key}}, effect(ctx, tx, "do "+m.Key)
	})
	con.HandleReply("done.it", func(ctx context.Context, tx *pg.Tx, m bus.Message) (bool, error) {
		return true, effect(ctx, tx, "done "+m.Key)
	})
	con.HandleMany("do.it", func(_ context.Context, _ *pg.Many, list []bus.Message) ([]bus.Reply, bus.Effect, error) {
		replies := make([]bus.Reply, len(list))
		var of []bus.Message
		for i, m := range list {
			if !strings.HasPrefix(m.Key, "alone") {
				replies[i] = bus.Reply{Kind: "done.it", Body: map[string]string{"of": m.Key}}
				of = append(of, m)
			}
		}
		return replies, effectsOf("do ", of), nil
	})
	con.HandleManyReplies("done.it", func(_ context.Context, _ *pg.Many, list []bus.Message) ([]bool, bus.Effect, error) {
		takes := make([]bool, len(list))
		var of []bus.Message
		for i, m := range list {
			if takes[i] = !strings.HasPrefix(m.Key, "alone"); takes[i] {
				of = append(of, m)
			}
		}
		return takes, effectsOf("done ", of), nil
	})
	return con
}

// effectsOf does the effects of several messages in one statement. A key that begins
// with "late" isn't found out before it is done: it refuses the whole.
func effectsOf(what string, list []bus.Message) bus.Effect {
	return func(b *pgx.Batch) {
		var slots []routing.Slot
		var names []string
		for _, m := range list {
			if !strings.HasPrefix(m.Key, "late") {
				slots, names = append(slots, m.To), append(names, what+m.Key)
			}
		}
		b.Queue(`INSERT INTO toy.effects (slot, what) SELECT * FROM unnest($1::int[], $2::text[])
			ON CONFLICT (slot, what) DO UPDATE SET times = effects.times + 1`, slots, names).Exec(bus.Whole(len(list)))
	}
}

func (c *cell) dispatcher() *bus.Dispatcher {
	return bus.NewDispatcher(bus.DispatcherOptions{Cell: c.name, Pool: c.agent, NATSURL: c.nats.URL, Table: c.table, Log: logger(),
		Metrics: c.metrics, MaxBytes: 64 << 20})
}

// counting is a dispatcher that counts what begins something.
func (c *cell) counting(begins func(bus.Message) bool) *bus.Dispatcher {
	return bus.NewDispatcher(bus.DispatcherOptions{Cell: c.name, Pool: c.agent, NATSURL: c.nats.URL, Table: c.table, Log: logger(),
		Metrics: c.metrics, MaxBytes: 64 << 20, Begins: begins})
}

func logger() *slog.Logger {
	if os.Getenv("CELLMART_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.DiscardHandler)
}

// start runs a part until stop is called or the test ends.
func start(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("Run = %v", err)
				}
			case <-time.After(patience):
				t.Errorf("Run did not return in %s", patience)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// send writes a request in a transaction of its own. A busy machine may not do it
// within the limit of one; the same request a second time is none.
func (c *cell) send(t testing.TB, from, to routing.Slot, key string) {
	t.Helper()
	var err error
	for range 5 {
		err = pg.InSlot(t.Context(), c.db.App, pg.Entry{Slot: from, Epoch: 1}, func(tx *pg.Tx) error {
			return bus.Send(t.Context(), tx, bus.Request{Service: "toy", Kind: "do.it", Key: key, To: to, Body: map[string]string{"key": key}, ReplyService: "toy"})
		})
		if err == nil {
			return
		}
	}
	t.Fatal(err)
}

// open begins a transaction in a slot on a connection without the limits of the
// pool, for tests that keep it open.
func (c *cell) open(t testing.TB, slot routing.Slot) *pg.Tx {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT cell.enter($1, 1)", slot); err != nil {
		t.Fatal(err)
	}
	return &pg.Tx{Tx: tx, Entry: pg.Entry{Slot: slot, Epoch: 1}}
}

// metric sums the series of a name that have all of the labels.
func (c *cell) metric(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	w := httptest.NewRecorder()
	c.metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	sum := 0.0
lines:
	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, name+"{") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(line, l) {
				continue lines
			}
		}
		f := strings.Fields(line)
		v, err := strconv.ParseFloat(f[len(f)-1], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += v
	}
	return sum
}

// request is the message that send's request becomes.
func request(from, to routing.Slot, key string) bus.Message {
	return bus.Message{ID: bus.MessageID("do.it", key), Kind: "do.it", Key: key, Service: "toy", From: from, To: to, FromCell: "c1",
		Body: []byte(`{"key":"` + key + `"}`), ReplyService: "toy", Attempt: 1}
}

// publish puts bytes into a cell's stream as if its dispatcher had.
func (c *cell) publish(t testing.TB, to string, data []byte) {
	t.Helper()
	nc, err := nats.Connect(c.nats.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "publishing to "+to, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := js.Publish(ctx, bus.Subject(to, "toy", "do.it"), data)
		return err
	})
}

// patience is how long a condition is waited for: only a failure takes that long,
// however busy the machine is.
const patience = time.Minute

// waitFor polls until check gives nil.
func waitFor(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, patience, err)
		}
		<-tick.C
	}
}

// once checks that exactly these effects happened, each one time.
func once(t testing.TB, db *pgtest.DB, want ...string) error {
	t.Helper()
	got := effects(t, db)
	for _, w := range want {
		if got[w] == 0 {
			return fmt.Errorf("%s: %q didn't happen (%d of %d did)", db.Cell, w, len(got), len(want))
		}
	}
	for k, n := range got {
		if n != 1 {
			t.Fatalf("%s: effect %q happened %d times", db.Cell, k, n)
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("%s: %d effects, want %d", db.Cell, len(got), len(want))
	}
	return nil
}

// settled checks that no message waits for anything.
func settled(t testing.TB, cells ...*cell) error {
	t.Helper()
	for _, c := range cells {
		if due := bustest.Due(t, c.db.Super); len(due) > 0 {
			return fmt.Errorf("%s: %d messages due, first %s attempt %d", c.name, len(due), due[0].ID, due[0].Attempt)
		}
	}
	return nil
}

func count(t testing.TB, db *pgtest.DB, table string) int {
	t.Helper()
	var n int
	if err := db.Super.QueryRow(context.Background(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

var errCrash = errors.New("the process died here")
