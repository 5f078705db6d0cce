package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/standby"
)

// The size of apply. CELLMART_BENCH_ROWS makes it shorter.
const (
	applyRows  = 300_000
	applyPairs = 5
)

// applySlots are the tables that it is measured with: every how manieth slot one
// cell stands by for another, and in how many pairs.
var applySlots = []struct {
	name         string
	every, pairs int
	goal         string
	reached      func(float64) bool
	about        string
}{
	{"apply", 12, applyPairs, ">= 1.0", func(r float64) bool { return r >= 1 }, "the 1,366 slots that one of four cells stands by for another"},
	{"apply/every-slot", 1, 3, shown, nil, "all 16,384 slots, each transaction of another one: the most there can be, two cells after a failover"},
}

// apply measures how fast a standby gets through single-row transactions: by our
// applier from the stream, rows and watermark in one commit, and by Postgres' own
// subscription, between the same two servers, in turn. A demo's servers are used
// with everything else of it stopped.
func apply(ctx context.Context, log io.Writer) ([]row, error) {
	rows := applyRows
	if v := os.Getenv("CELLMART_BENCH_ROWS"); v != "" {
		var err error
		if rows, err = strconv.Atoi(v); err != nil || rows < 100 {
			return nil, cellkit.Usage{Err: fmt.Errorf("CELLMART_BENCH_ROWS is %q, not a number of rows", v)}
		}
	}
	var out []row
	for _, with := range applySlots {
		got, err := withDemo(ctx, log, func(d demo) ([]row, error) {
			a, err := openApply(ctx, d, rows, with.every)
			if err != nil {
				return nil, err
			}
			defer a.close(context.WithoutCancel(ctx))
			var ours, native []float64
			for n := range with.pairs {
				theirs, err := a.native.round(ctx)
				if err != nil {
					return nil, fmt.Errorf("subscription: %w", err)
				}
				took, err := a.round(ctx)
				if err != nil {
					return nil, fmt.Errorf("applier: %w", err)
				}
				ours, native = append(ours, float64(rows)/took.Seconds()), append(native, float64(rows)/theirs.Seconds())
				fmt.Fprintf(log, "bench: %s: pair %d: %.0f transactions a second, the subscription %.0f\n", with.name, n+1, ours[n], native[n])
			}
			return []row{compare(with.name, "tx/s", median(ours), median(native), with.goal, with.reached,
				fmt.Sprintf("%d single-row transactions of another cell's, of %s; median of %d pairs in turn; ours: from the stream into the fenced table, with keys and policies, the watermark in the rows' commit, each commit flushed; baseline: a subscription between the same two servers into a plain table with the same columns and keys, from its slot, commits not flushed (its default)", rows, with.about, with.pairs))}, nil
		})
		if err != nil {
			return nil, err
		}
		out = append(out, got...)
	}
	return out, nil
}

// applySide is one kind of table on two servers: the one that is written, and the
// one that follows.
type applySide struct {
	from, to *pgx.Conn
	table    string
	rows     int
	every    int   // manieth slot is written to
	last     int64 // written so far
	next     func(ctx context.Context) error
	start    func(ctx context.Context) (stop func(), err error)
}

// round writes the transactions while nobody follows, and times the following.
func (s *applySide) round(ctx context.Context) (time.Duration, error) {
	first := s.last + 1
	s.last += int64(s.rows)
	if _, err := s.from.Exec(ctx, "CALL bench_fill($1, $2)", first, s.last); err != nil {
		return 0, err
	}
	if err := s.next(ctx); err != nil {
		return 0, err
	}
	begun := time.Now()
	stop, err := s.start(ctx)
	if err != nil {
		return 0, err
	}
	defer stop()
	for there := false; !there; {
		if time.Since(begun) > 10*time.Minute {
			return 0, errors.New("not through in 10 minutes")
		}
		time.Sleep(10 * time.Millisecond)
		if err := s.to.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+s.table+" WHERE slot = $1 AND user_id = $2)", slotOfRow(s.last, s.every), s.last).Scan(&there); err != nil {
			return 0, err
		}
	}
	took := time.Since(begun)
	var n int64
	if err := s.to.QueryRow(ctx, "SELECT count(*) FROM "+s.table).Scan(&n); err != nil {
		return 0, err
	}
	if n != s.last {
		return 0, fmt.Errorf("%d rows are there, not %d", n, s.last)
	}
	return took, nil
}

// applyBench is both sides. Each has a database of its own on both servers, so
// that neither decodes the other's changes.
type applyBench struct {
	applySide
	native  *applySide
	pools   []*pgxpool.Pool
	cancel  context.CancelFunc
	relayed chan error
	stream  jetstream.Stream
	nc      *nats.Conn
}

func openApply(ctx context.Context, d demo, rows, every int) (*applyBench, error) {
	var names []string
	for _, p := range d.state.Processes {
		if p.Name != "c1/postgres" && p.Name != "c2/postgres" && p.Name != "c1/nats" {
			names = append(names, p.Name)
		}
	}
	if err := d.state.StopAll(ctx, names...); err != nil {
		return nil, err
	}
	b := &applyBench{}
	if err := b.openNative(ctx, d, rows, every); err != nil {
		return nil, err
	}
	return b, b.openOurs(ctx, d, rows, every)
}

const applyTable = "orders.cart_items"

// slotsOf says how many slots every how manieth is.
func slotsOf(every int) int { return (16383 + every) / every }

func slotOfRow(n int64, every int) int64 { return n % int64(slotsOf(every)) * int64(every) }

// filling is a procedure that commits each row by itself, at any speed.
func filling(table string, every int) string {
	return `CREATE PROCEDURE bench_fill(first bigint, last bigint) LANGUAGE plpgsql AS $$ BEGIN
		FOR i IN first .. last LOOP
			INSERT INTO ` + table + ` (slot, epoch, rev, user_id, sku, quantity) VALUES (i % ` + strconv.Itoa(slotsOf(every)) + ` * ` + strconv.Itoa(every) + `, 1, 1, i, 16384 + i, 1 + i % 9);
			COMMIT;
		END LOOP; END $$;
		SET synchronous_commit = off; SET session_replication_role = replica`
}

func (b *applyBench) openNative(ctx context.Context, d demo, rows, every int) error {
	n := &applySide{table: "cart_items", rows: rows, every: every}
	b.native = n
	ddl := `CREATE TABLE cart_items (slot int NOT NULL, epoch bigint NOT NULL, rev bigint NOT NULL, user_id bigint NOT NULL, sku bigint NOT NULL,
		quantity bigint NOT NULL CHECK (quantity BETWEEN 0 AND 99), added_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (slot, user_id, sku))`
	var err error
	if n.from, err = newDatabase(ctx, d.state.Cells[0].PG, "bench_native"); err == nil {
		n.to, err = newDatabase(ctx, d.state.Cells[1].PG, "bench_native")
	}
	if err != nil {
		return err
	}
	for _, c := range []*pgx.Conn{n.from, n.to} {
		if _, err := c.Exec(ctx, ddl); err != nil {
			return err
		}
	}
	source := strings.ReplaceAll(inDatabase(d.state.Cells[0].PG, "bench_native"), "'", "''")
	for _, step := range []struct {
		c *pgx.Conn
		q string
	}{
		{n.from, filling(n.table, every)}, {n.from, "CREATE PUBLICATION bench FOR TABLE cart_items"},
		{n.from, "SELECT pg_create_logical_replication_slot('bench_native', 'pgoutput')"},
		{n.to, "CREATE SUBSCRIPTION bench CONNECTION '" + source + "' PUBLICATION bench WITH (create_slot = false, slot_name = 'bench_native', enabled = false, copy_data = false)"},
	} {
		if _, err := step.c.Exec(ctx, step.q); err != nil {
			return err
		}
	}
	n.next = func(context.Context) error { return nil }
	n.start = func(ctx context.Context) (func(), error) {
		_, err := n.to.Exec(ctx, "ALTER SUBSCRIPTION bench ENABLE")
		return func() {
			_, _ = n.to.Exec(ctx, "ALTER SUBSCRIPTION bench DISABLE")
			for active := true; active; time.Sleep(10 * time.Millisecond) { // until then its slot can't be moved
				if err := n.from.QueryRow(ctx, "SELECT active FROM pg_replication_slots WHERE slot_name = 'bench_native'").Scan(&active); err != nil {
					return
				}
			}
		}, err
	}
	return nil
}

func (b *applyBench) openOurs(ctx context.Context, d demo, rows, every int) error {
	b.table, b.rows, b.every = applyTable, rows, every
	for i, cell := range []string{"c1", "c2"} {
		if err := migrateBench(ctx, d, i, "bench_apply"); err != nil {
			return err
		}
		c, err := pgx.Connect(ctx, inDatabase(d.state.Cells[i].PG, "bench_apply"))
		if err != nil {
			return err
		}
		if i == 0 {
			b.from = c
		} else {
			b.to = c
		}
		if _, err := c.Exec(ctx, `INSERT INTO cell.slots (slot, epoch, owner, standby, role)
			SELECT n * $2::int, 1, 'c1', 'c2', CASE $1 WHEN 'c1' THEN 'owner' ELSE 'standby' END FROM generate_series(0, $3::int - 1) n`, cell, every, slotsOf(every)); err != nil {
			return err
		}
		pool, err := pg.Open(ctx, roleDSN(d.state.Cells[i].PG, "bench_apply", pg.RoleAgent, d.state.Secrets.Agent), cell, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		b.pools = append(b.pools, pool)
	}
	if _, err := b.from.Exec(ctx, filling(b.table, every)); err != nil {
		return err
	}
	relay := cdc.NewRelay(cdc.Options{
		Zone: "c1", Pool: b.pools[0], DSN: roleDSN(d.state.Cells[0].PG, "bench_apply", pg.RoleAgent, d.state.Secrets.Agent),
		NATSURL: d.state.Cells[0].NATS, Peers: func() []string { return []string{"c2"} }, MaxBytes: 4 << 30, MaxWAL: 64 << 30, Beat: time.Second,
	})
	var running context.Context
	running, b.cancel = context.WithCancel(context.WithoutCancel(ctx))
	b.relayed = make(chan error, 1)
	go func() { b.relayed <- relay.Run(running) }()
	applierDSN := roleDSN(d.state.Cells[1].PG, "bench_apply", pg.RoleApplier, d.state.Secrets.Applier)
	b.start = func(ctx context.Context) (func(), error) {
		ctx, cancel := context.WithCancel(ctx)
		a := standby.New(standby.Options{Cell: "c2", DSN: applierDSN, Pool: b.pools[1], Sources: map[string]func() (*nats.Conn, error){
			"c1": func() (*nats.Conn, error) { return nats.Connect(d.state.Cells[0].NATS) },
		}})
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		return func() {
			cancel()
			<-done //nolint:errcheck // it was told to end; what it didn't do shows in the counts
		}, nil
	}
	b.next = b.streamed
	// The first start copies what there is, which is nothing.
	stop, err := b.start(ctx)
	if err != nil {
		return err
	}
	defer stop()
	for n, begun := 0, time.Now(); n < slotsOf(every); time.Sleep(50 * time.Millisecond) {
		if time.Since(begun) > time.Minute {
			return fmt.Errorf("%d slots are in sync after a minute", n)
		}
		if err := b.to.QueryRow(ctx, "SELECT count(*) FROM cell.standing_by WHERE state = 'in_sync'").Scan(&n); err != nil {
			return err
		}
	}
	if b.nc, err = nats.Connect(d.state.Cells[0].NATS); err != nil {
		return err
	}
	js, err := jetstream.New(b.nc)
	if err != nil {
		return err
	}
	b.stream, err = js.Stream(ctx, cdc.StreamName(cdc.StandbySink("c2")))
	return err
}

// streamed waits until the stream has what was committed up to now.
func (b *applyBench) streamed(ctx context.Context) error {
	var text string
	if err := b.from.QueryRow(ctx, "SELECT pg_current_wal_lsn()::text FROM pg_logical_emit_message(true, 'cellmart.beat', '')").Scan(&text); err != nil {
		return err
	}
	var end cdc.LSN
	if err := end.UnmarshalText([]byte(text)); err != nil {
		return err
	}
	for begun := time.Now(); time.Since(begun) < 10*time.Minute; time.Sleep(100 * time.Millisecond) {
		info, err := b.stream.Info(ctx)
		if err != nil {
			return err
		}
		m, err := b.stream.GetMsg(ctx, info.State.LastSeq)
		if errors.Is(err, jetstream.ErrMsgNotFound) { // none left to take
			continue
		}
		if err != nil {
			return err
		}
		if ms, err := cdc.Decode(m.Data); err == nil && len(ms) > 0 && ms[len(ms)-1].LSN >= end {
			return nil
		}
	}
	return errors.New("the relay didn't get through in 10 minutes")
}

func (b *applyBench) close(ctx context.Context) {
	if b.cancel != nil {
		b.cancel()
		<-b.relayed //nolint:errcheck // likewise
	}
	if b.nc != nil {
		b.nc.Close()
	}
	for _, p := range b.pools {
		p.Close()
	}
	for _, c := range []*pgx.Conn{b.from, b.to, b.native.from, b.native.to} {
		if c != nil {
			_ = c.Close(ctx) // the demo is about to end
		}
	}
}

// migrateBench makes a database like a cell's, beside the cell's own.
func migrateBench(ctx context.Context, d demo, i int, database string) error {
	cmd := exec.CommandContext(ctx, d.binary, "migrate")
	s := d.state.Secrets
	cmd.Env = []string{
		"MIGRATE_KIND=cell", fmt.Sprintf("MIGRATE_CELL=c%d", i+1), fmt.Sprintf("MIGRATE_ORDINAL=%d", i+1), "MIGRATE_DATABASE=" + database,
		"MIGRATE_SUPER_DSN=" + inDatabase(d.state.Cells[i].PG, "postgres"),
		"MIGRATE_PASSWORD_MIGRATE=" + s.Migrate, "MIGRATE_PASSWORD_APP=" + s.App, "MIGRATE_PASSWORD_AGENT=" + s.Agent, "MIGRATE_PASSWORD_APPLIER=" + s.Applier,
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate: %w: %s", err, out)
	}
	return nil
}

// newDatabase makes an empty one and connects to it.
func newDatabase(ctx context.Context, dsn, name string) (*pgx.Conn, error) {
	admin, err := pgx.Connect(ctx, inDatabase(dsn, "postgres"))
	if err != nil {
		return nil, err
	}
	defer admin.Close(ctx)
	if _, err := admin.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, err
	}
	return pgx.Connect(ctx, inDatabase(dsn, name))
}

func inDatabase(dsn, name string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		return dsn // can't be: the demo made it
	}
	u.Path = "/" + name
	return u.String()
}

func roleDSN(dsn, database, role, password string) string {
	u, err := url.Parse(inDatabase(dsn, database))
	if err != nil {
		return dsn // can't be: the demo made it
	}
	u.User = url.UserPassword(role, password)
	return u.String()
}
