package standby

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// table is a unit table as it is in this database.
type table struct {
	name    string // schema.table
	quoted  string
	types   map[string]string // by column; "" = generated, never written
	key     []string
	slot    int // place of slot in key
	sql     map[string]string
	deletes string // of slots' rows below an epoch
}

// slotsTable is the one table that isn't unit data and is followed.
const slotsTable = "cell.slots"

// readTables asks the database for its unit tables. Sinks are migrated before
// sources (S-C10), so a column that isn't here stops the source's changes.
func readTables(ctx context.Context, c *pgx.Conn) (map[string]*table, error) {
	rows, err := c.Query(ctx, `
		SELECT u.name, a.attname, CASE WHEN a.attgenerated = '' THEN format_type(a.atttypid, a.atttypmod) ELSE '' END, coalesce(array_position(i.indkey::int2[], a.attnum), -1)
		FROM cell.unit_tables u
		JOIN pg_attribute a ON a.attrelid = u.name::regclass AND a.attnum > 0 AND NOT a.attisdropped
		JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
		ORDER BY u.name, 4`)
	if err != nil {
		return nil, err
	}
	out := map[string]*table{}
	var name, column, typ string
	var at int
	_, err = pgx.ForEachRow(rows, []any{&name, &column, &typ, &at}, func() error {
		t := out[name]
		if t == nil {
			t = &table{name: name, quoted: pgx.Identifier(strings.SplitN(name, ".", 2)).Sanitize(), types: map[string]string{}, sql: map[string]string{}}
			out[name] = t
		}
		t.types[column] = typ
		if at >= 0 { // ordered by it
			if column == "slot" {
				t.slot = len(t.key)
			}
			t.key = append(t.key, column)
		}
		return nil
	})
	for _, t := range out {
		t.deletes = "DELETE FROM " + t.quoted + " WHERE slot = ANY ($1) AND epoch < $2"
	}
	return out, err
}

// unknown names the columns that this table hasn't.
func (t *table) unknown(columns []string) []string {
	var out []string
	for _, c := range columns {
		if _, ok := t.types[c]; !ok {
			out = append(out, c)
		}
	}
	return out
}

// upsert writes whole rows, each column an array of texts: the larger (epoch, rev)
// wins, and the same once more changes nothing.
func (t *table) upsert(columns []string) string {
	id := "+" + strings.Join(columns, ",")
	if q, ok := t.sql[id]; ok {
		return q
	}
	var names, casts, args, sets []string
	for i, c := range columns {
		n := quote(c)
		names = append(names, n)
		casts = append(casts, "u.c"+strconv.Itoa(i+1)+"::"+t.types[c])
		args = append(args, "$"+strconv.Itoa(i+1)+"::text[]")
		if !slices.Contains(t.key, c) {
			sets = append(sets, n+" = excluded."+n)
		}
	}
	q := fmt.Sprintf("INSERT INTO %s AS t (%s) SELECT %s FROM unnest(%s) AS u(%s) ON CONFLICT (%s) DO UPDATE SET %s WHERE (excluded.epoch, excluded.rev) > (t.epoch, t.rev)",
		t.quoted, strings.Join(names, ", "), strings.Join(casts, ", "), strings.Join(args, ", "), numbered(len(columns)), quoteAll(t.key), strings.Join(sets, ", "))
	t.sql[id] = q
	return q
}

// patch writes a row of which some large values weren't sent: over a version that
// isn't older than the one it was made from, so what is missing is as it was. The
// key's values come first, then that version's rev, epoch and rev, then the columns.
func (t *table) patch(columns []string) string {
	id := "~" + strings.Join(columns, ",")
	if q, ok := t.sql[id]; ok {
		return q
	}
	k := len(t.key)
	var sets []string
	for i, c := range columns {
		sets = append(sets, fmt.Sprintf("%s = ($%d::text)::%s", quote(c), k+4+i, t.types[c]))
	}
	q := fmt.Sprintf("UPDATE %s t SET %s WHERE %s AND t.rev >= $%d AND (t.epoch, t.rev) < ($%d::bigint, $%d::bigint)",
		t.quoted, strings.Join(sets, ", "), t.byKey(), k+1, k+2, k+3)
	t.sql[id] = q
	return q
}

// find reads a row's version by its key; remove deletes it.
func (t *table) find() string   { return "SELECT epoch, rev FROM " + t.quoted + " t WHERE " + t.byKey() }
func (t *table) remove() string { return "DELETE FROM " + t.quoted + " t WHERE " + t.byKey() }

func (t *table) byKey() string {
	var where []string
	for i, c := range t.key {
		where = append(where, fmt.Sprintf("t.%s = ($%d::text)::%s", quote(c), i+1, t.types[c]))
	}
	return strings.Join(where, " AND ")
}

func numbered(n int) string {
	var out []string
	for i := range n {
		out = append(out, "c"+strconv.Itoa(i+1))
	}
	return strings.Join(out, ", ")
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

func quoteAll(names []string) string {
	var out []string
	for _, n := range names {
		out = append(out, quote(n))
	}
	return strings.Join(out, ", ")
}
