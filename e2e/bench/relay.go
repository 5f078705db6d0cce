package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/pg"
)

// The size of relay. CELLMART_BENCH_ROWS makes its rounds smaller.
const (
	relayRows  = 300_000 // of a round
	relayPairs = 5       // rounds of each side, in turn; before them one to warm up
	relayLarge = 1_000_000
	recvSlot   = "bench_recv"
	relayLimit = 2 * time.Minute // of a round, and of writing it
)

// relay measures how fast the WAL gets into JetStream, by our relay, and to
// nowhere, by pg_recvlogical. Both read the same rows of the same server with the
// same options over TCP, in turn; everything else of the demo is stopped.
func relay(ctx context.Context, log io.Writer) ([]row, error) {
	rows := relayRows
	if v := os.Getenv("CELLMART_BENCH_ROWS"); v != "" {
		var err error
		if rows, err = strconv.Atoi(v); err != nil || rows < 1000 {
			return nil, cellkit.Usage{Err: fmt.Errorf("CELLMART_BENCH_ROWS is %q, not a number of rows", v)}
		}
	}
	return withDemo(ctx, log, func(d demo) ([]row, error) {
		b, err := openRelay(ctx, d, rows, log)
		defer b.close(context.WithoutCancel(ctx))
		if err != nil {
			return nil, err
		}
		out, err := b.lines(ctx, log, "relay", relayPairs, true)
		if err != nil {
			return nil, err
		}
		large, err := b.large(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, large)
		if err := b.split(ctx); err != nil {
			return nil, err
		}
		four, err := b.lines(ctx, log, "relay/4-sinks", 3, false)
		return append(out, four...), err
	})
}

// lines compares both sides on transactions of one row and of ten.
func (b *relayBench) lines(ctx context.Context, log io.Writer, name string, pairs int, judged bool) (out []row, err error) {
	for _, each := range []int{1, 10} {
		ours, theirs, err := b.compare(ctx, log, fmt.Sprintf("%s/%d-row", name, each), each, pairs)
		if err != nil {
			return nil, err
		}
		out = append(out, b.linesOf(fmt.Sprintf("%s/%d-row", name, each), ours, theirs, judged)...)
	}
	return out, nil
}

// drained is one side's round.
type drained struct {
	rate                   float64 // rows a second
	sender, reader, stream float64 // CPU-microseconds of a row: walsender, reader, NATS
}

func (b *relayBench) linesOf(name string, ours, theirs []drained, judged bool) []row {
	pick := func(all []drained, f func(drained) float64) float64 {
		var v []float64
		for _, x := range all {
			v = append(v, f(x))
		}
		return median(v)
	}
	rate := func(x drained) float64 { return x.rate }
	cpu := func(x drained) float64 { return x.sender + x.reader }
	part := func(all []drained) string {
		return fmt.Sprintf("walsender %.2f, reader %.2f", pick(all, func(x drained) float64 { return x.sender }), pick(all, func(x drained) float64 { return x.reader }))
	}
	fast, cheap := func(r float64) bool { return r >= 0.9 }, func(r float64) bool { return r <= 1 }
	fastGoal, cheapGoal := ">= 0.9", "<= 1.0"
	if !judged {
		fast, cheap, fastGoal, cheapGoal = nil, nil, shown, shown
	}
	return []row{
		compare(name, "rows/s", pick(ours, rate), pick(theirs, rate), fastGoal, fast,
			fmt.Sprintf("%d rows, median of %d pairs in turn; ours: chained, sent by slot to %d standbys, acknowledged by JetStream's files; baseline: pg_recvlogical to /dev/null, same plugin options, TCP, same role", b.rows, len(ours), len(b.sinks))),
		compare(name+"-cpu", "us/row", pick(ours, cpu), pick(theirs, cpu), cheapGoal, cheap,
			fmt.Sprintf("ours: %s, and NATS %.2f apart; baseline: %s", part(ours), pick(ours, func(x drained) float64 { return x.stream }), part(theirs))),
	}
}

// relayBench is a cell's database with nothing else at work.
type relayBench struct {
	d         demo
	rows      int
	log       *slog.Logger
	db        *pgx.Conn
	pool      *pgxpool.Pool
	dsn       string // as the agent's role, for both
	recv      string // pg_recvlogical
	nc        *nats.Conn
	js        jetstream.JetStream
	sinks     []string
	next      int64
	pid, nats int
}

// fillTransactions writes rows, so many in each transaction, as fast as it can.
const fillTransactions = `CREATE PROCEDURE bench_fill(first bigint, last bigint, each int) LANGUAGE plpgsql AS $$ BEGIN
	FOR i IN first .. last LOOP
		INSERT INTO orders.cart_items (slot, epoch, rev, user_id, sku, quantity) VALUES ((i - 1) / each % 16384, 1, 1, i, 16384 + i, 1 + i % 9);
		IF i % each = 0 THEN COMMIT; END IF;
	END LOOP; COMMIT; END $$`

func openRelay(ctx context.Context, d demo, rows int, log io.Writer) (*relayBench, error) {
	b := &relayBench{d: d, rows: rows, log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	var others []string
	for _, p := range d.state.Processes {
		switch p.Name {
		case "c1/postgres":
			b.pid = p.PID
			b.recv = filepath.Join(filepath.Dir(p.Argv[0]), "pg_recvlogical")
		case "c1/nats":
			b.nats = p.PID
		default:
			others = append(others, p.Name)
		}
	}
	if _, err := os.Stat(b.recv); err != nil {
		if b.recv, err = exec.LookPath("pg_recvlogical"); err != nil {
			return b, cellkit.Usage{Err: errors.New("pg_recvlogical is not installed (Debian: apt-get install postgresql-client)")}
		}
	}
	if err := d.state.StopAll(ctx, others...); err != nil {
		return b, err
	}
	if err := migrateBench(ctx, d, 0, "bench_apply"); err != nil {
		return b, err
	}
	var err error
	if b.db, err = pgx.Connect(ctx, inDatabase(d.state.Cells[0].PG, "bench_apply")); err != nil {
		return b, err
	}
	b.dsn = roleDSN(d.state.Cells[0].PG, "bench_apply", pg.RoleAgent, d.state.Secrets.Agent)
	if b.pool, err = pg.Open(ctx, b.dsn, "c1", slog.New(slog.DiscardHandler)); err != nil {
		return b, err
	}
	for _, q := range []string{
		// Its workers end too, and would be counted as walsenders.
		"ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()",
		"INSERT INTO cell.slots (slot, epoch, owner, standby, role) SELECT n, 1, 'c1', 'c2', 'owner' FROM generate_series(0, 16383) n",
		fillTransactions, "SET synchronous_commit = off", "SET session_replication_role = replica",
		"SELECT pg_create_logical_replication_slot('" + recvSlot + "', 'pgoutput')",
	} {
		if _, err := b.db.Exec(ctx, q); err != nil {
			return b, err
		}
	}
	if b.nc, err = nats.Connect(d.state.Cells[0].NATS); err != nil {
		return b, err
	}
	if b.js, err = jetstream.New(b.nc); err != nil {
		return b, err
	}
	return b, b.attach(ctx, cdc.StandbySink("c2"))
}

// split has four cells stand by for the slots, in place of one.
func (b *relayBench) split(ctx context.Context) error {
	if _, err := b.db.Exec(ctx, "UPDATE cell.slots SET standby = 'c' || 2 + slot % 4"); err != nil {
		return err
	}
	return b.attach(ctx, cdc.StandbySink("c3"), cdc.StandbySink("c4"), cdc.StandbySink("c5"))
}

// attach has sinks ask for a copy, after which they count.
func (b *relayBench) attach(ctx context.Context, sinks ...string) error {
	stop := b.run(ctx)
	defer stop()
	b.sinks = append(b.sinks, sinks...)
	for _, sink := range sinks {
		err := eventually(ctx, func() error {
			_, err := b.nc.Request("cdc.copy."+sink, []byte(`{"id":"bench","reason":"bench"}`), time.Second)
			return err
		})
		if err != nil {
			return fmt.Errorf("attach %s: %w", sink, err)
		}
	}
	err := within(ctx, relayLimit, func() error {
		var n int
		err := b.db.QueryRow(ctx, "SELECT count(*) FROM cdc.copies WHERE state = 'done'").Scan(&n)
		if err == nil && n < len(b.sinks) {
			err = fmt.Errorf("%d of %d sinks have their copy", n, len(b.sinks))
		}
		return err
	})
	if err != nil {
		return err
	}
	end, err := b.beat(ctx)
	if err == nil {
		_, err = b.wait(ctx, end)
	}
	if err != nil {
		return err
	}
	return b.stored(ctx, end)
}

// fill writes a round, and gives the place of a heartbeat behind it.
func (b *relayBench) fill(ctx context.Context, each int) (end cdc.LSN, err error) {
	ctx, cancel := context.WithTimeout(ctx, relayLimit)
	defer cancel()
	first := b.next + 1
	b.next += int64(b.rows)
	if _, err := b.db.Exec(ctx, "CALL bench_fill($1, $2, $3)", first, b.next, each); err != nil {
		return 0, err
	}
	// It notes what runs: the next round's decoding begins here, and not earlier.
	if _, err := b.db.Exec(ctx, "CHECKPOINT"); err != nil {
		return 0, err
	}
	return b.beat(ctx)
}

// beat writes a heartbeat, and has the server write all before it to its disk.
func (b *relayBench) beat(ctx context.Context) (end cdc.LSN, err error) {
	var text string
	if err := b.pool.QueryRow(ctx, "SELECT pg_logical_emit_message(true, 'cellmart.beat', '')::text").Scan(&text); err != nil {
		return 0, err
	}
	return end, end.UnmarshalText([]byte(text))
}

// compare drains the same rounds by both, the first of each to warm up.
func (b *relayBench) compare(ctx context.Context, log io.Writer, name string, each, pairs int) (ours, theirs []drained, err error) {
	for n := range pairs + 1 {
		end, err := b.fill(ctx, each)
		if err != nil {
			return nil, nil, fmt.Errorf("write a round: %w", err)
		}
		var got [2]drained
		sides := []func() error{
			func() (err error) { got[0], err = b.recvlogical(ctx, end); return err },
			func() (err error) { got[1], err = b.relayed(ctx, end); return err },
		}
		if n%2 == 1 {
			slices.Reverse(sides)
		}
		for _, side := range sides {
			if err := side(); err != nil {
				return nil, nil, err
			}
		}
		fmt.Fprintf(log, "bench: %s: pair %d: pg_recvlogical %.0f rows/s, CPU %.2f+%.2f us/row; ours %.0f rows/s, CPU %.2f+%.2f, NATS %.2f\n", name, n,
			got[0].rate, got[0].sender, got[0].reader, got[1].rate, got[1].sender, got[1].reader, got[1].stream)
		if n > 0 {
			theirs, ours = append(theirs, got[0]), append(ours, got[1])
		}
	}
	return ours, theirs, nil
}

func (b *relayBench) close(ctx context.Context) {
	if b.nc != nil {
		b.nc.Close()
	}
	if b.pool != nil {
		b.pool.Close()
	}
	if b.db != nil {
		_ = b.db.Close(ctx) // the demo is about to end
	}
}
