package pg

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql driver for goose
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

// Migrations is one schema's forward-only steps: NNNN_name.sql at the FS's root.
type Migrations struct {
	Schema string
	FS     fs.FS
}

//go:embed migrations/*.sql
var cellFiles embed.FS

// CellMigrations is the schema cell; it comes before every service's.
func CellMigrations() Migrations { return Sub("cell", cellFiles) }

// Sub is the migrations in the folder "migrations" of an embedded FS.
func Sub(schema string, files embed.FS) Migrations {
	sub, err := fs.Sub(files, "migrations")
	if err != nil {
		sub = files // can't happen: "migrations" is a valid path
	}
	return Migrations{Schema: schema, FS: sub}
}

// Role is a database role and the password that Setup gives it ("" = none).
type Role struct{ Name, Password string }

// The roles of a cell's database.
const (
	RoleMigrate = "cellmart_migrate"
	RoleApp     = "cellmart_app"
	RoleAgent   = "cellmart_agent"
	RoleApplier = "cellmart_applier"
)

// Setup is the administrator's step, as superuser and once per server: roles,
// and a database that RoleMigrate owns. Running it again changes only passwords.
func Setup(ctx context.Context, superDSN, dbname string, passwords map[string]string) error {
	c, err := pgx.Connect(ctx, superDSN)
	if err != nil {
		return Error(err)
	}
	defer c.Close(context.WithoutCancel(ctx))
	if _, err := c.Exec(ctx, "SELECT pg_advisory_lock(4403)"); err != nil { // several set-ups on one server
		return err
	}
	for _, role := range []string{RoleMigrate, RoleApp, RoleAgent, RoleApplier} {
		var have bool
		if err := c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", role).Scan(&have); err != nil {
			return err
		}
		q := "CREATE ROLE " + role + " LOGIN"
		if have {
			q = "ALTER ROLE " + role + " LOGIN"
		}
		if p := passwords[role]; p != "" {
			var lit string
			if err := c.QueryRow(ctx, "SELECT quote_literal($1)", p).Scan(&lit); err != nil {
				return err
			}
			q += " PASSWORD " + lit
		}
		if _, err := c.Exec(ctx, q); err != nil {
			return fmt.Errorf("role %s: %w", role, err)
		}
	}
	if _, err := c.Exec(ctx, "GRANT pg_read_server_files TO "+RoleMigrate); err != nil {
		return err
	}
	// The server's second would be half of a transaction's time: nothing would be left to try again in.
	for _, role := range []string{RoleApp, RoleAgent, RoleApplier} {
		if _, err := c.Exec(ctx, "ALTER ROLE "+role+" SET deadlock_timeout = '200ms'"); err != nil {
			return fmt.Errorf("role %s: %w", role, err)
		}
	}
	// The agent's relay decodes the WAL.
	if _, err := c.Exec(ctx, "ALTER ROLE "+RoleAgent+" REPLICATION"); err != nil {
		return err
	}
	if dbname == "" {
		return nil
	}
	var have bool
	if err := c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", dbname).Scan(&have); err != nil {
		return err
	}
	if !have {
		if _, err := c.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{dbname}.Sanitize()+" OWNER "+RoleMigrate); err != nil {
			return fmt.Errorf("database %s: %w", dbname, err)
		}
	}
	cfg := c.Config().Copy()
	cfg.Database = dbname
	db, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer db.Close(context.WithoutCancel(ctx))
	// cell.boot_ms reads /proc/uptime: only the owner of the functions may.
	if _, err = db.Exec(ctx, "GRANT EXECUTE ON FUNCTION pg_read_file(text) TO "+RoleMigrate+"; REVOKE CREATE ON SCHEMA public FROM PUBLIC"); err != nil {
		return err
	}
	// The applier writes what other cells' triggers have made: none fire in its session. And it marks what it writes
	// with an origin, so that it isn't told on as if it were this cell's own. (Before 15 nobody could be granted the first.)
	if _, err = db.Exec(ctx, `GRANT SET ON PARAMETER session_replication_role TO `+RoleApplier+`;
		GRANT EXECUTE ON FUNCTION pg_replication_origin_oid(text), pg_replication_origin_create(text),
		pg_replication_origin_session_setup(text), pg_replication_origin_session_is_setup() TO `+RoleApplier); err != nil {
		return fmt.Errorf("role %s: %w", RoleApplier, err)
	}
	return nil
}

// Migrate brings schemas up to date, in order, under a session lock; each schema
// keeps its version in <schema>.goose_db_version. It never goes back.
func Migrate(ctx context.Context, dsn string, all ...Migrations) error {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(2) // one of them holds the lock
	for _, m := range all {
		if err := migrate(ctx, db, m); err != nil {
			return fmt.Errorf("migrate %s: %w", m.Schema, err)
		}
	}
	return nil
}

func migrate(ctx context.Context, db *sql.DB, m Migrations) error {
	schema := pgx.Identifier{m.Schema}.Sanitize()
	if _, err := db.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS "+schema+
		"; GRANT USAGE ON SCHEMA "+schema+" TO "+RoleApp+", "+RoleAgent+", "+RoleApplier); err != nil {
		return err
	}
	store, err := database.NewStore(database.DialectPostgres, m.Schema+".goose_db_version")
	if err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return err
	}
	p, err := goose.NewProvider("", db, m.FS, goose.WithStore(store), goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	_, err = p.Up(ctx)
	return err
}

// SetIdentity says whose database this is: once, for ever. Another name or
// ordinal than the one stored is refused.
func SetIdentity(ctx context.Context, dsn, cell string, ordinal int) error {
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return Error(err)
	}
	defer c.Close(context.WithoutCancel(ctx))
	if _, err := c.Exec(ctx, "INSERT INTO cell.identity (cell, ordinal) VALUES ($1, $2) ON CONFLICT DO NOTHING", cell, ordinal); err != nil {
		return err
	}
	var have string
	var n int
	if err := c.QueryRow(ctx, "SELECT cell, ordinal FROM cell.identity").Scan(&have, &n); err != nil {
		return err
	}
	if have != cell || n != ordinal {
		return fmt.Errorf("this database belongs to cell %s with ordinal %d, not to %s with %d", have, n, cell, ordinal)
	}
	return nil
}
