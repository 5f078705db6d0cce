// Package pgtest gives each test a database of its own on a real Postgres,
// cloned from a migrated template and dropped at the end.
package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// DB is a test's own database.
type DB struct {
	Cell       string
	DSN        string        // as the application's role
	AgentDSN   string        // as the agent's role
	ApplierDSN string        // as the applier's role
	SuperDSN   string        // as superuser
	App        *pgxpool.Pool // role cellmart_app
	Super      *pgxpool.Pool // superuser, no fence checks on connect
}

// New gives a cell database: schema cell, then the given ones; cell c1 with
// ordinal 1, owner of every slot and of its cell slot at epoch 1, with a lease
// that never ends.
func New(t testing.TB, schemas ...pg.Migrations) *DB { return NewCell(t, "c1", 1, schemas...) }

// NewCell is New for another cell. It too owns every slot: see Own and Disown.
func NewCell(t testing.TB, cell string, ordinal int, schemas ...pg.Migrations) *DB {
	t.Helper()
	db := clone(t, append([]pg.Migrations{pg.CellMigrations()}, schemas...))
	ctx := context.Background()
	if err := pg.SetIdentity(ctx, db.as("postgres"), cell, ordinal); err != nil {
		t.Fatal(err)
	}
	db.Cell = cell
	db.Super = pool(t, func() (*pgxpool.Pool, error) { return pgxpool.New(ctx, db.SuperDSN) })
	db.exec(t, "SELECT cell.set_lease('infinity')")
	db.exec(t, `INSERT INTO cell.slots (slot, epoch, owner, role) SELECT n, 1, $1, 'owner' FROM generate_series(0, $2) n`,
		cell, routing.Slots-1)
	db.exec(t, `INSERT INTO cell.slots (slot, epoch, owner, role) VALUES ($1, 1, $2, 'owner')`, routing.CellSlot(ordinal), cell)
	db.App = pool(t, func() (*pgxpool.Pool, error) { return pg.Open(ctx, db.DSN, cell, slog.New(slog.DiscardHandler)) })
	return db
}

// NewGlobal gives a database of the global zone with the given schemas and no
// schema cell. DSN is the migrating role's.
func NewGlobal(t testing.TB, schemas ...pg.Migrations) *DB {
	t.Helper()
	db := clone(t, schemas)
	db.DSN = db.as(pg.RoleMigrate)
	ctx := context.Background()
	db.Super = pool(t, func() (*pgxpool.Pool, error) { return pgxpool.New(ctx, db.SuperDSN) })
	db.App = pool(t, func() (*pgxpool.Pool, error) { return pgxpool.New(ctx, db.DSN) })
	return db
}

// Disown gives slots [lo, hi] to another cell at the next epoch.
func (d *DB) Disown(t testing.TB, lo, hi routing.Slot, to string) {
	t.Helper()
	d.exec(t, "UPDATE cell.slots SET owner = $3, role = 'none', epoch = epoch + 1 WHERE slot BETWEEN $1 AND $2", lo, hi, to)
}

// Own takes slots [lo, hi] for this cell at the next epoch.
func (d *DB) Own(t testing.TB, lo, hi routing.Slot) {
	t.Helper()
	d.exec(t, "UPDATE cell.slots SET owner = $3, role = 'owner', state = 'active', given_to = NULL, epoch = epoch + 1 WHERE slot BETWEEN $1 AND $2",
		lo, hi, d.Cell)
}

// StandBy makes this cell the standby of slots [lo, hi] of another cell.
func (d *DB) StandBy(t testing.TB, lo, hi routing.Slot, of string) {
	t.Helper()
	d.exec(t, "UPDATE cell.slots SET owner = $3, standby = $4, role = 'standby', epoch = epoch + 1 WHERE slot BETWEEN $1 AND $2", lo, hi, of, d.Cell)
}

// Plant runs SQL as the superuser behind the fence's back: no trigger fires, as for
// rows that the applier writes.
func (d *DB) Plant(t testing.TB, sql string) {
	t.Helper()
	d.exec(t, "SET session_replication_role = replica; "+sql+"; RESET session_replication_role")
}

// SlotsFree returns when nobody reads from a replication slot of this database:
// the server notices a closed connection a moment later, and until then a slot
// can't be dropped or copied.
func (d *DB) SlotsFree(t testing.TB) {
	t.Helper()
	deadline := time.After(15 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var n int
		err := d.Super.QueryRow(context.Background(), "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND active").Scan(&n)
		if err == nil && n == 0 {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%d replication slots are still read from (%v)", n, err)
		case <-tick.C:
		}
	}
}

func (d *DB) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := d.Super.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (d *DB) as(role string) string {
	u, _ := url.Parse(d.SuperDSN) // parsed before, in clone
	if role != "postgres" {
		u.User = url.User(role)
	}
	return u.String()
}

func pool(t testing.TB, open func() (*pgxpool.Pool, error)) *pgxpool.Pool {
	t.Helper()
	p, err := open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// server gives the superuser's DSN of the test server.
func server(t testing.TB) *url.URL {
	t.Helper()
	dsn := os.Getenv("CELLMART_TEST_PG")
	if dsn == "" {
		if testing.Short() {
			t.Skip("needs Postgres: CELLMART_TEST_PG is not set, and -short allows that")
		}
		t.Fatal("CELLMART_TEST_PG is not set: run scripts/test, or set it to a superuser's URL of a Postgres 15 or later (postgres://postgres@127.0.0.1:5432/postgres)")
	}
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatalf("CELLMART_TEST_PG: %v", err)
	}
	return u
}

func clone(t testing.TB, schemas []pg.Migrations) *DB {
	t.Helper()
	u := server(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	admin, err := pgx.Connect(ctx, u.String())
	if err != nil {
		t.Fatalf("the Postgres of CELLMART_TEST_PG: %v", err)
	}
	defer admin.Close(ctx)
	template := template(ctx, t, admin, u, schemas)

	var name string
	if err := admin.QueryRow(ctx, "SELECT 'test_' || replace(gen_random_uuid()::text, '-', '')").Scan(&name); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(ctx, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s OWNER %s", name, template, pg.RoleMigrate)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := drop(u.String(), name); err != nil {
			t.Logf("drop %s: %v", name, err)
		}
	})
	own := *u
	own.Path = "/" + name
	db := &DB{SuperDSN: own.String()}
	db.DSN, db.AgentDSN, db.ApplierDSN = db.as(pg.RoleApp), db.as(pg.RoleAgent), db.as(pg.RoleApplier)
	return db
}

// drop drops a database, and what of it is the server's: replication slots go with
// it, and origins, whose names end in it; a server has few places for either. A slot
// or an origin is in use until the server has noticed that its connection is closed.
func drop(server, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := dropOnce(ctx, server, name)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

func dropOnce(ctx context.Context, server, name string) error {
	c, err := pgx.Connect(ctx, server)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	if _, err := c.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
		return err
	}
	_, err = c.Exec(ctx, "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname LIKE '%@' || $1::text", name)
	return err
}

// template makes, once per set of migrations and server, the database to clone;
// processes that run at the same time wait for each other.
func template(ctx context.Context, t testing.TB, admin *pgx.Conn, u *url.URL, schemas []pg.Migrations) string {
	t.Helper()
	h := sha256.New()
	for _, m := range schemas {
		fmt.Fprintln(h, m.Schema)
		err := fs.WalkDir(m.FS, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := fs.ReadFile(m.FS, path)
			fmt.Fprintln(h, path, len(b))
			h.Write(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	name := "template_" + hex.EncodeToString(h.Sum(nil))[:16]
	if _, err := admin.Exec(ctx, "SELECT pg_advisory_lock(4404)"); err != nil {
		t.Fatal(err)
	}
	defer admin.Exec(ctx, "SELECT pg_advisory_unlock(4404)") //nolint:errcheck // the connection's end unlocks too
	var ready bool
	err := admin.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND NOT datallowconn)", name).Scan(&ready)
	if err != nil {
		t.Fatal(err)
	}
	if ready {
		return name
	}
	if _, err := admin.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil { // a half-made one
		t.Fatal(err)
	}
	if err := pg.Setup(ctx, u.String(), name, nil); err != nil {
		t.Fatal(err)
	}
	own := *u
	own.Path = "/" + name
	own.User = url.User(pg.RoleMigrate)
	if err := pg.Migrate(ctx, own.String(), schemas...); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(ctx, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false"); err != nil {
		t.Fatal(err)
	}
	return name
}
