package cdc

import (
	"context"
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/pg"
)

// Publication is the name of what the relay decodes.
const Publication = "cellmart_cdc"

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema cdc: the relay's own state.
func Migrations() pg.Migrations { return pg.Sub("cdc", files) }

// Tables are what a sink takes: columns by table (schema.table). No columns
// means all. What isn't listed never leaves the database.
type Tables map[string][]string

// Publish brings the publication to these tables and lets the agent read them.
// It is a part of migrating, as the role that owns the tables. A slot decodes
// with the publication as it was at that place of the WAL, so this comes before
// the relay's first start.
func Publish(ctx context.Context, dsn string, tables Tables) error {
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return pg.Error(err)
	}
	defer c.Close(context.WithoutCancel(ctx))
	var names []string
	for _, t := range slices.Sorted(maps.Keys(tables)) {
		names = append(names, quote(t))
	}
	return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		var have bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1)", Publication).Scan(&have); err != nil {
			return err
		}
		q := "CREATE PUBLICATION " + Publication + " FOR TABLE "
		if have {
			var same bool
			err := tx.QueryRow(ctx, `SELECT coalesce(array_agg(schemaname || '.' || tablename ORDER BY 1), '{}') = $2::text[]
				FROM (SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = $1 ORDER BY 1, 2) t`,
				Publication, slices.Sorted(maps.Keys(tables))).Scan(&same)
			if err != nil || same {
				return err
			}
			q = "ALTER PUBLICATION " + Publication + " SET TABLE "
		}
		if _, err := tx.Exec(ctx, q+strings.Join(names, ", ")); err != nil {
			return fmt.Errorf("publication: %w", err)
		}
		_, err := tx.Exec(ctx, "GRANT SELECT ON "+strings.Join(names, ", ")+" TO "+pg.RoleAgent)
		return err
	})
}

// quote makes an identifier of schema.table.
func quote(table string) string { return pgx.Identifier(strings.SplitN(table, ".", 2)).Sanitize() }
