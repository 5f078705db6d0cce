package standby_test

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/bus/bustest"
	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/standby"
)

//go:embed testdata/migrations/*.sql
var shopFiles embed.FS

const limit = 90 * time.Second // only a failure takes so long

// world is cells: each a database, a NATS, a relay and an applier, as they are
// wanted. Their databases are on one server.
type world struct {
	t     *testing.T
	cells map[string]*cell
}

type cell struct {
	w       *world
	name    string
	db      *pgtest.DB
	nats    *bustest.NATS
	pool    *pgxpool.Pool // as the agent's role
	log     *slog.Logger
	stop    map[string]func()
	applier *standby.Applier

	bound, wal int64 // of the relay; 0 = the defaults
}

// newWorld makes c1, which owns all slots, and others which own none. c2 stands by
// for slots 0 to 9, and nobody for the rest.
func newWorld(t *testing.T, others ...string) *world {
	t.Helper()
	sub, err := fs.Sub(shopFiles, "testdata/migrations")
	if err != nil {
		t.Fatal(err)
	}
	shop := pg.Migrations{Schema: "shop", FS: sub}
	w := &world{t: t, cells: map[string]*cell{}}
	for i, name := range append([]string{"c1"}, others...) {
		c := &cell{w: w, name: name, db: pgtest.NewCell(t, name, i+1, cdc.Migrations(), shop), stop: map[string]func(){}, log: slog.New(slog.DiscardHandler)}
		w.cells[name] = c
		if testing.Verbose() {
			c.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("cell", name)
		}
		c.pool = open(t, func() (*pgxpool.Pool, error) { return pg.Open(t.Context(), c.db.AgentDSN, name, c.log) })
		if name != "c1" {
			c.super("UPDATE cell.slots SET owner = 'c1', role = CASE WHEN slot < 10 AND $1 = 'c2' THEN 'standby' ELSE 'none' END WHERE slot < 16384", name)
		}
		c.super("UPDATE cell.slots SET standby = 'c2' WHERE slot < 10")
	}
	return w
}

func open(t *testing.T, f func() (*pgxpool.Pool, error)) *pgxpool.Pool {
	t.Helper()
	p, err := f()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// run starts a part and remembers how to end it.
func (c *cell) run(name string, f func(ctx context.Context) error) {
	c.w.t.Helper()
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

// halt ends a part.
func (c *cell) halt(name string) {
	if stop := c.stop[name]; stop != nil {
		stop()
		delete(c.stop, name)
	}
}

// clean ends all.
func (c *cell) clean() {
	for name := range maps.Clone(c.stop) {
		c.halt(name)
	}
}

// relay starts the cell's relay.
func (c *cell) relay() {
	c.w.t.Helper()
	if c.nats == nil {
		c.nats = bustest.NewNATS(c.w.t)
		c.w.t.Cleanup(c.clean)
		if err := cdc.Publish(c.w.t.Context(), c.db.SuperDSN, unitTables); err != nil {
			c.w.t.Fatal(err)
		}
	}
	c.run("relay", cdc.NewRelay(c.relayOptions()).Run)
}

// applierOf makes the cell's applier.
func (c *cell) applierOf(sources ...string) *standby.Applier {
	c.w.t.Helper()
	c.w.t.Cleanup(c.clean)
	o := standby.Options{Cell: c.name, DSN: c.db.ApplierDSN, Pool: c.pool, Log: c.log, Sources: map[string]func() (*nats.Conn, error){}}
	for _, s := range sources {
		o.Sources[s] = func() (*nats.Conn, error) { return bus.Connect(c.w.cells[s].nats.URL, "standby", c.log) }
	}
	c.applier = standby.New(o.Quick())
	return c.applier
}

// standby starts the cell's applier.
func (c *cell) standby(sources ...string) *standby.Applier {
	c.w.t.Helper()
	c.halt("applier")
	c.applierOf(sources...)
	c.run("applier", c.applier.Run)
	return c.applier
}

func (c *cell) super(sql string, args ...any) {
	c.w.t.Helper()
	if _, err := c.db.Super.Exec(c.w.t.Context(), sql, args...); err != nil {
		c.w.t.Fatalf("%s: %v", sql, err)
	}
}

// write changes a slot's rows as a service does.
func (c *cell) write(slot, epoch int, sql string, args ...any) {
	c.w.t.Helper()
	if err := c.tryWrite(c.w.t.Context(), slot, epoch, sql, args...); err != nil {
		c.w.t.Fatal(err)
	}
}

func (c *cell) tryWrite(ctx context.Context, slot, epoch int, sql string, args ...any) error {
	// Without a service's limits: this machine may stand still for longer.
	o := pgx.TxOptions{BeginQuery: fmt.Sprintf("BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0; SELECT cell.enter(%d, %d)", slot, epoch)}
	for try := 1; ; try++ {
		err := pgx.BeginTxFunc(ctx, c.db.App, o, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		})
		var unconnected *pgconn.ConnectError // within 2 s: nothing has begun
		if try == 10 || !errors.As(err, &unconnected) || ctx.Err() != nil {
			return err
		}
	}
}

func (c *cell) add(slot, epoch, id int, name string) {
	c.w.t.Helper()
	c.write(slot, epoch, "INSERT INTO shop.things (slot, id, name) VALUES ($1, $2, $3)", slot, id, name)
}

// text reads one value as text.
func (c *cell) text(sql string, args ...any) string {
	c.w.t.Helper()
	var out string
	if err := c.db.Super.QueryRow(c.w.t.Context(), "SELECT coalesce(("+sql+")::text, 'NULL')", args...).Scan(&out); err != nil {
		c.w.t.Fatalf("%s: %v", sql, err)
	}
	return out
}

// rows gives a table's rows of slots below 10, as text.
func (c *cell) rows(table string) []string {
	c.w.t.Helper()
	r, err := c.db.Super.Query(c.w.t.Context(), "SELECT t::text FROM "+table+" t WHERE slot < 10 ORDER BY 1")
	if err != nil {
		c.w.t.Fatal(err)
	}
	out, err := pgx.CollectRows(r, pgx.RowTo[string])
	if err != nil {
		c.w.t.Fatal(err)
	}
	return out
}

var tables = []string{"shop.things", "shop.types", "cell.outbox", "cell.wallets"}

// synced waits until these of c2's slots are in sync, and what is there is what
// c1 has, to the last column.
func (w *world) synced(owner, keeper *cell, slots ...int) {
	w.t.Helper()
	why := ""
	wait(w.t, func() string { return why }, func() bool {
		if n := keeper.text("SELECT count(*) FROM cell.standing_by WHERE source = $1 AND state = 'in_sync' AND slot = ANY ($2)", owner.name, slots); n != fmt.Sprint(len(slots)) {
			why = n + " slots are in sync: " + keeper.text("SELECT string_agg(format('%s: %s %s', slot, state, reason), ', ') FROM cell.standing_by WHERE slot = ANY ($1) AND source = $2 AND state <> 'in_sync'", slots, owner.name)
			return false
		}
		for _, t := range tables {
			if why = cmp.Diff(owner.rows(t), keeper.rows(t)); why != "" {
				return false
			}
		}
		return true
	})
}

// of gives the applier's word on a source.
func (c *cell) of(source string) standby.Status {
	c.w.t.Helper()
	all, err := c.applier.Status(c.w.t.Context())
	if err != nil {
		c.w.t.Fatal(err)
	}
	for _, st := range all {
		if st.Source == source {
			return st
		}
	}
	c.w.t.Fatalf("nothing is known of %s", source)
	return standby.Status{}
}

// status is its word on the one source.
func (c *cell) status() standby.Status {
	c.w.t.Helper()
	for source := range c.w.cells {
		if source != c.name {
			return c.of(source)
		}
	}
	return standby.Status{}
}

func (w *world) allTen() []int { return []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9} }

func wait(t *testing.T, why func() string, cond func() bool) {
	t.Helper()
	end := time.After(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-end:
			t.Fatalf("not within %s: %s", limit, why())
		case <-tick.C:
		}
	}
}

func long(n int) string { return strings.Repeat("0123456789", n/10) }
