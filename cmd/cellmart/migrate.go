package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/catalog"
	"example.com/cellmart/services/console"
	"example.com/cellmart/services/control"
	"example.com/cellmart/services/idgen"
	"example.com/cellmart/services/inventory"
	"example.com/cellmart/services/order"
	"example.com/cellmart/services/search/searchapi"
	"example.com/cellmart/services/user"
)

// The databases that migrate knows, by kind.
const (
	kindCell   = "cell"
	kindGlobal = "global"
	kindIDs    = "idgen"
)

type migrateConfig struct {
	Kind, Cell, Database string
	Ordinal              int
	SuperDSN             string
	Passwords            map[string]string
	Wait                 time.Duration
}

func loadMigrate(getenv func(string) string) (migrateConfig, *env.Reader) {
	r := env.NewReader("MIGRATE", getenv)
	c := migrateConfig{
		Kind:     r.String("KIND", kindCell, "what the database is for: cell, global (control and catalog) or idgen"),
		Cell:     r.String("CELL", "", "kind cell: the cell whose database this is, for ever"),
		Ordinal:  r.Int("ORDINAL", 0, "kind cell: the cell's number, 1 to 31, never used again for another cell"),
		Database: r.String("DATABASE", "cellmart", "name of the database, made if it is missing"),
		SuperDSN: r.Secret("SUPER_DSN", "administrator's connection (postgres://...), for roles and the database").Reveal(),
		Wait:     r.Duration("WAIT", time.Minute, "how long to wait for the server"),
		Passwords: map[string]string{
			pg.RoleMigrate: r.OptionalSecret("PASSWORD_MIGRATE", "password for "+pg.RoleMigrate).Reveal(),
			pg.RoleApp:     r.OptionalSecret("PASSWORD_APP", "password for "+pg.RoleApp).Reveal(),
			pg.RoleAgent:   r.OptionalSecret("PASSWORD_AGENT", "password for "+pg.RoleAgent).Reveal(),
			pg.RoleApplier: r.OptionalSecret("PASSWORD_APPLIER", "password for "+pg.RoleApplier).Reveal(),
		},
	}
	switch c.Kind {
	case kindCell:
		if c.Cell == "" {
			r.Fail("CELL", "is not set")
		}
		if c.Ordinal < 1 || c.Ordinal > 31 {
			r.Fail("ORDINAL", "must be from 1 to 31")
		}
	case kindGlobal, kindIDs:
	default:
		r.Fail("KIND", fmt.Sprintf("is %q, not cell, global or idgen", c.Kind))
	}
	return c, r
}

func migrateVars() []env.Var {
	_, r := loadMigrate(func(string) string { return "" })
	return r.Vars()
}

// runMigrate brings one database to the newest schema. It may run again.
func runMigrate(ctx context.Context, p cellkit.Process) error {
	c, r := loadMigrate(p.Getenv)
	if err := r.Err(); err != nil {
		return cellkit.Usage{Err: err}
	}
	dsn, err := ownerDSN(c)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	waiting, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	err = pg.RetryDeadline(waiting, func(ctx context.Context) error {
		return pg.Setup(ctx, c.SuperDSN, c.Database, c.Passwords)
	})
	if err != nil {
		return err
	}
	switch c.Kind {
	case kindGlobal:
		if err := pg.Migrate(ctx, dsn, control.Migrations(), console.Migrations(), catalog.WriterMigrations(), cdc.Migrations()); err != nil {
			return err
		}
		return cdc.Publish(ctx, dsn, searchapi.GlobalTables())
	case kindIDs:
		if err := pg.Migrate(ctx, dsn, idgen.Migrations()); err != nil {
			return err
		}
		return idgen.Setup(ctx, dsn)
	}
	err = pg.Migrate(ctx, dsn, pg.CellMigrations(), user.Migrations(), inventory.Migrations(), order.Migrations(), catalog.Migrations(), cdc.Migrations())
	if err != nil {
		return err
	}
	if err := cdc.Publish(ctx, dsn, searchapi.CellTables()); err != nil {
		return err
	}
	return pg.SetIdentity(ctx, dsn, c.Cell, c.Ordinal)
}

// ownerDSN is the administrator's connection as the role that owns the schemas.
func ownerDSN(c migrateConfig) (string, error) {
	u, err := url.Parse(c.SuperDSN)
	if err != nil || u.Scheme == "" {
		return "", fmt.Errorf("MIGRATE_SUPER_DSN is not a postgres:// URL")
	}
	u.User = url.User(pg.RoleMigrate)
	if pw := c.Passwords[pg.RoleMigrate]; pw != "" {
		u.User = url.UserPassword(pg.RoleMigrate, pw)
	}
	u.Path = "/" + c.Database
	return u.String(), nil
}
