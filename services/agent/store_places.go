package agent

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

// atRest is how long after the clean-up last got on, or a slot was let go, the rows
// that are left of it are no longer leftovers but in the wrong place.
const atRest = "interval '1 minute'"

// slotted are the columns that must have the row's slot in their low 14 bits,
// unless the row lives in a private slot.
var slotted = []struct{ table, columns string }{
	{"cell.transfers", "id, from_user"}, {"cell.wallets", "user_id"}, {"cell.postings", "user_id"}, {"cell.credits", "user_id"},
	{"orders.carts", "user_id"}, {"orders.cart_items", "user_id"}, {"orders.orders", "id, user_id"}, {"orders.lines", "order_id"},
	{"orders.holds", "order_id, transfer_id"}, {"orders.order_events", "order_id"},
	{"inventory.stock", "sku, seller_id"}, {"inventory.holds", "id, seller_id"}, {"inventory.hold_lines", "hold_id, sku"},
	{"users.users", "id"}, {"users.registrations", "user_id"}, {"users.addresses", "id, user_id"}, {"users.sessions", "user_id"},
}

// misplaced are the checks of I2 that one database can do: over all its rows,
// copies too.
func misplaced(ctx context.Context, tx pgx.Tx) ([]check, error) {
	rows, err := tx.Query(ctx, `SELECT u.name, string_agg(quote_ident(a.attname) || '::text', ', ' ORDER BY k.n) FILTER (WHERE a.attname <> 'slot')
		FROM cell.unit_tables u JOIN pg_index i ON i.indrelid = u.name::regclass AND i.indisprimary, unnest(i.indkey) WITH ORDINALITY k(att, n), pg_attribute a
		WHERE a.attrelid = i.indrelid AND a.attnum = k.att GROUP BY u.name ORDER BY u.name`)
	if err != nil {
		return nil, err
	}
	// The contradictions that let a cell write, or be written to, where it mustn't.
	all := []check{{"I2", "SELECT count(*) FROM cell.slots", `
		SELECT format('cell.slots: slot %s has the role %s here, its owner is %s, its standby %s, incoming %s',
			s.slot, s.role, s.owner, coalesce(s.standby, 'none'), coalesce(s.incoming, 'none'))
		FROM cell.slots s, cell.identity me WHERE s.role <> CASE me.cell WHEN s.owner THEN 'owner' WHEN s.standby THEN 'standby' WHEN s.incoming THEN 'incoming' ELSE 'none' END`}}
	var table, key string
	_, err = pgx.ForEachRow(rows, []any{&table, &key}, func() error {
		all = append(all,
			// From slot to slot along the primary key: only rows in the wrong place are read one by one.
			check{"I2", "SELECT count(*) FROM " + table, fmt.Sprintf(`
				WITH RECURSIVE here AS ((SELECT slot FROM %[1]s ORDER BY slot LIMIT 1)
					UNION ALL SELECT (SELECT t.slot FROM %[1]s t WHERE t.slot > here.slot ORDER BY t.slot LIMIT 1) FROM here WHERE here.slot IS NOT NULL)
				SELECT format('%[1]s: row %%s lies in slot %%s, which %%s', concat_ws(' ', %[2]s), t.slot,
					CASE WHEN c.slot IS NULL THEN coalesce(s.owner || ' owns', 'nobody owns') WHEN c.state = 'held' THEN s.owner || ' took from this cell: nobody has reviewed it'
						ELSE s.owner || ' owns, and the clean-up doesn''t get on' END)
				FROM here JOIN %[1]s t USING (slot) LEFT JOIN cell.slots s USING (slot) LEFT JOIN cell.cleanup c USING (slot)
				WHERE coalesce(s.role, 'none') = 'none' AND NOT coalesce(c.state = 'open'
					AND greatest(c.since, (SELECT batch_at FROM cell.cleanup_run)) > now() - %[3]s, false)`, table, key, atRest)},
			check{"I1", "SELECT 0", fmt.Sprintf(`
				SELECT format('%[1]s has %%s rows of slot %%s at epochs up to %%s, the slot is at %%s', count(*), t.slot, max(t.epoch), max(s.epoch))
				FROM %[1]s t JOIN cell.slots s USING (slot) WHERE t.epoch > s.epoch GROUP BY t.slot`, table)})
		return nil
	})
	for _, c := range slotted {
		var pairs []string
		for _, column := range strings.Split(c.columns, ", ") {
			pairs = append(pairs, fmt.Sprintf("('%s', %[1]s)", column))
		}
		all = append(all, check{"I2", "SELECT 0", fmt.Sprintf(`
			SELECT format('%[1]s: %%s %%s names slot %%s and lies in slot %%s', id.what, id.n, id.n & %[3]d, slot)
			FROM %[1]s CROSS JOIN LATERAL (VALUES %[2]s) id(what, n) WHERE slot < %[4]d AND id.n & %[3]d <> slot`,
			c.table, strings.Join(pairs, ", "), routing.SlotMask, routing.Slots)})
	}
	return all, err
}

// countMisplaced is how many violations of I2 this database shows.
func (s store) countMisplaced(ctx context.Context) (n int64, err error) {
	err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly, IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL statement_timeout = '25s'"); err != nil {
			return err
		}
		all, err := misplaced(ctx, tx)
		for _, c := range all {
			if c.id != "I2" {
				continue
			}
			var k int64
			if err := tx.QueryRow(ctx, "SELECT count(*) FROM ("+c.found+") x").Scan(&k); err != nil {
				return fmt.Errorf("%w: %s", err, c.found)
			}
			n += k
		}
		return err
	})
	return n, pg.Error(err)
}

func (s store) leftovers(ctx context.Context) (agentapi.Leftovers, error) {
	ctx, cancel := context.WithTimeout(ctx, pg.TxTimeout)
	defer cancel()
	l, err := leftovers(ctx, s.pool)
	return l, pg.Error(err)
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// leftovers counts what the clean-up has still to do.
func leftovers(ctx context.Context, q querier) (l agentapi.Leftovers, err error) {
	err = q.QueryRow(ctx, "SELECT slots, held, rows, oldest_ms::bigint, deleted FROM cell.leftovers()").Scan(&l.Slots, &l.Held, &l.Rows, &l.OldestMS, &l.Deleted)
	return l, err
}
