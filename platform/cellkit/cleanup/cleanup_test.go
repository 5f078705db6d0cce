package cleanup_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/cleanup"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
)

func things() pg.Migrations {
	return pg.Migrations{Schema: "shop", FS: fstest.MapFS{"0001_things.sql": {Data: []byte(`-- +goose Up
CREATE TABLE shop.things (slot int NOT NULL, epoch bigint NOT NULL, rev bigint NOT NULL, id bigint NOT NULL, PRIMARY KEY (slot, id));
SELECT cell.unit_table('shop.things');
`)}}}
}

// letGo is a database with slot 1 owned, 2 stood by for, and 3 and 4 let go of,
// each with that many rows.
func letGo(t *testing.T, rows int) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t, things())
	db.Plant(t, fmt.Sprintf("INSERT INTO shop.things SELECT slot, 1, 1, n FROM generate_series(1, 4) slot, generate_series(1, %d) n", rows))
	db.StandBy(t, 2, 4, "c2")
	db.Plant(t, "UPDATE cell.slots SET role = 'none', standby = 'c3' WHERE slot IN (3, 4)")
	return db
}

func options(db *pgtest.DB) cleanup.Options {
	return cleanup.Options{Cell: "c1", Pool: db.Super, DSN: db.ApplierDSN, Log: slog.New(slog.DiscardHandler), Pause: time.Millisecond, Look: 10 * time.Millisecond}
}

func run(t *testing.T, o cleanup.Options) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- cleanup.Run(ctx, o) }()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		done <- nil
	}
	t.Cleanup(stop)
	return stop
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	const limit = 90 * time.Second // only a failure takes so long
	deadline := time.After(limit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within %v: %s", limit, what)
		case <-tick.C:
		}
	}
}

func one[T any](t *testing.T, db *pgtest.DB, sql string) (v T) {
	t.Helper()
	if err := db.Super.QueryRow(context.Background(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

const perSlot = "SELECT coalesce(string_agg(slot || ': ' || n, ', ' ORDER BY slot), '') FROM (SELECT slot, count(*) n FROM shop.things GROUP BY slot) x"

// What was let go of goes, in transactions of at most a batch, and is told to nobody:
// to who reads the WAL without other cells' changes it isn't there.
func TestCleansUp(t *testing.T) {
	t.Parallel()
	db := letGo(t, 2500)
	slot := "probe_" + db.Super.Config().ConnConfig.Database
	for _, sql := range []string{"CREATE PUBLICATION probe FOR ALL TABLES", "SELECT pg_create_logical_replication_slot('" + slot + "', 'pgoutput')"} {
		if _, err := db.Super.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _, _ = db.Super.Exec(context.Background(), "SELECT pg_drop_replication_slot('"+slot+"')") })
	run(t, options(db))
	eventually(t, "the list is empty", func() bool { return one[int](t, db, "SELECT count(*) FROM cell.cleanup") == 0 })
	if got := one[string](t, db, perSlot); got != "1: 2500, 2: 2500" {
		t.Errorf("rows left: %s", got)
	}
	if n := one[int](t, db, "SELECT deleted FROM cell.cleanup_run"); n != 5000 {
		t.Errorf("%d rows deleted, want 5000", n)
	}
	// The first byte of pgoutput's messages: Begin, Origin, Delete, ...
	rows, err := db.Super.Query(t.Context(), "SELECT chr(get_byte(data, 0)) FROM pg_logical_slot_get_binary_changes('"+slot+"', NULL, NULL, 'proto_version', '1', 'publication_names', 'probe')")
	if err != nil {
		t.Fatal(err)
	}
	kinds, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var transactions, deletes, most int
	for tx := range strings.SplitSeq(strings.Join(kinds, ""), "B") {
		n := strings.Count(tx, "D")
		if n == 0 {
			continue
		}
		if !strings.HasPrefix(tx, "O") {
			t.Fatalf("a transaction with %d deletes has no origin", n)
		}
		transactions, deletes, most = transactions+1, deletes+n, max(most, n)
	}
	// Each slot's place on the list goes with its last batch.
	if most > 1000+2 || transactions < 5 || deletes != 5000+2 {
		t.Errorf("%d deletes in %d transactions, the largest has %d", deletes, transactions, most)
	}
}

// TestProcess isn't a test: it's the process that TestKilledInTheMiddle kills.
func TestProcess(t *testing.T) {
	super := os.Getenv("CLEANUP_PROCESS")
	if super == "" {
		return
	}
	pool, err := pgxpool.New(t.Context(), super)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	err = cleanup.Run(t.Context(), cleanup.Options{Cell: "c1", Pool: pool, DSN: os.Getenv("CLEANUP_DSN"), Log: slog.New(slog.DiscardHandler), Batch: 10, Pause: 20 * time.Millisecond})
	t.Fatalf("ended: %v", err)
}

// kill -9, between batches or in one: what was committed is gone, all else is there,
// and the next process finishes.
func TestKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	const rows = 3000 // the processes need 12 s: whoever is to kill them may be late
	db := letGo(t, rows)
	for n := range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestProcess$")
		cmd.Env = append(os.Environ(), "CLEANUP_PROCESS="+db.SuperDSN, "CLEANUP_DSN="+db.ApplierDSN)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		before := one[int](t, db, "SELECT deleted FROM cell.cleanup_run")
		eventually(t, "it deletes", func() bool { return one[int](t, db, "SELECT deleted FROM cell.cleanup_run") > before+10*(n+1) })
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		eventually(t, "the server has noticed", func() bool {
			return one[int](t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'cellmart_applier'") == 0
		})
		deleted, left := one[int](t, db, "SELECT deleted FROM cell.cleanup_run"), one[int](t, db, "SELECT count(*) FROM shop.things WHERE slot > 2")
		if deleted%10 != 0 || deleted+left != 2*rows || left == 0 {
			t.Fatalf("killed: %d deleted, %d left of %d", deleted, left, 2*rows)
		}
	}
	run(t, options(db))
	eventually(t, "the list is empty", func() bool { return one[int](t, db, "SELECT count(*) FROM cell.cleanup") == 0 })
	if got := one[string](t, db, perSlot); got != fmt.Sprintf("1: %d, 2: %[1]d", rows) {
		t.Errorf("rows left: %s", got)
	}
}

// A slot becomes a standby while it's being cleaned up: from then on no row of it
// goes, the other one is finished.
func TestStandbyAgainInTheMiddle(t *testing.T) {
	t.Parallel()
	db := letGo(t, 3000)
	o := options(db)
	o.Batch = 20
	run(t, o)
	eventually(t, "it deletes", func() bool { return one[int](t, db, "SELECT deleted FROM cell.cleanup_run") > 100 })
	if _, err := db.Super.Exec(t.Context(), "SELECT cell.apply_table(5, 'x', '{3}', '{c2}', '{c1}', '{9}')"); err != nil {
		t.Fatal(err)
	}
	left := one[int](t, db, "SELECT count(*) FROM shop.things WHERE slot = 3")
	db.Plant(t, "INSERT INTO shop.things VALUES (3, 9, 1, 9999)")
	eventually(t, "the list is empty", func() bool { return one[int](t, db, "SELECT count(*) FROM cell.cleanup") == 0 })
	want := fmt.Sprintf("1: 3000, 2: 3000, 3: %d", left+1)
	if got := one[string](t, db, perSlot); got != want || left == 0 {
		t.Errorf("rows left: %s, want %s", got, want)
	}
}
