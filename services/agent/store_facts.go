package agent

import (
	"context"
	"fmt"
	"regexp"
	"slices"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

// check is one thing that one database can say of itself: found selects a text
// for each violation, looked the number of rows that were looked at. In both,
// {table} is the table's rows in owned slots: copies of what others own are their
// owners' to answer for, and would count money and stock twice.
type check struct{ id, looked, found string }

var braces = regexp.MustCompile(`\{([a-z_]+\.[a-z_]+)\}`)

// own puts each {table}'s owned rows in its place; what it stands for needs a name
// behind it.
func own(sql string) string {
	return braces.ReplaceAllString(sql, "(SELECT its.* FROM $1 its JOIN cell.owned mine ON mine.slot = its.slot)")
}

// account is the sum of postings on one account, as an SQL expression.
func account(name string) string {
	return fmt.Sprintf("coalesce(sum(amount) FILTER (WHERE credit = '%[1]s'), 0) - coalesce(sum(amount) FILTER (WHERE debit = '%[1]s'), 0)", name)
}

// checks are read-only looks across the schemas of the cell's services: the
// auditor is the one place that may.
func checks() []check {
	return []check{
		{"I3", "SELECT count(*) FROM {cell.postings} p", `
			SELECT format('slot %s user %s %s: wallet says available %s frozen %s clearing %s external %s suspense %s recovery %s after %s, postings %s %s %s %s %s %s after %s',
				slot, user_id, currency, w.available, w.frozen, w.clearing, w.external, w.suspense, w.recovery, w.seq, p.a, p.f, p.c, p.e, p.s, p.r, p.n)
			FROM {cell.wallets} w FULL JOIN (
				SELECT slot, user_id, currency, count(*) AS n, max(seq) AS last, ` + account("available") + ` AS a, ` + account("frozen") + ` AS f, ` +
			account("clearing") + ` AS c, ` + account("external") + ` AS e, ` + account("suspense") + ` AS s, ` + account("recovery") + ` AS r
				FROM {cell.postings} x GROUP BY slot, user_id, currency) p USING (slot, user_id, currency)
			WHERE (coalesce(w.available, 0), coalesce(w.frozen, 0), coalesce(w.clearing, 0), coalesce(w.external, 0), coalesce(w.suspense, 0), coalesce(w.recovery, 0), coalesce(w.seq, 0), coalesce(w.seq, 0))
				IS DISTINCT FROM (coalesce(p.a, 0), coalesce(p.f, 0), coalesce(p.c, 0), coalesce(p.e, 0), coalesce(p.s, 0), coalesce(p.r, 0), coalesce(p.n, 0), coalesce(p.last, 0))`},
		{"I3", "SELECT count(*) FROM {cell.wallets} w", `
			SELECT format('slot %s: the ledger in %s sums to %s', slot, currency, sum(available + frozen + clearing + external + suspense + recovery))
			FROM {cell.wallets} w GROUP BY slot, currency HAVING sum(available + frozen + clearing + external + suspense + recovery) <> 0`},
		{"I3", "SELECT 0", `
			SELECT format('slot %s user %s %s: %s is frozen, open transfers and orders have %s', slot, user_id, currency, coalesce(w.frozen, 0), coalesce(o.amount, 0))
			FROM {cell.wallets} w FULL JOIN (
				SELECT slot, user_id, currency, sum(amount) AS amount FROM (
					SELECT slot, from_user AS user_id, currency, amount FROM {cell.transfers} t WHERE state IN ('FROZEN', 'CANCELLING')
					UNION ALL SELECT slot, user_id, currency, total FROM {orders.orders} o WHERE payment_status = 'FROZEN') x
				GROUP BY slot, user_id, currency) o USING (slot, user_id, currency)
			WHERE coalesce(w.frozen, 0) <> coalesce(o.amount, 0)`},
		{"I4", "SELECT count(*) FROM {cell.transfers} t", `
			SELECT format('slot %s %s: clearing is %s, settled less credited is %s', slot, currency, coalesce(w.clearing, 0), coalesce(t.amount, 0))
			FROM (SELECT slot, currency, sum(clearing) AS clearing FROM {cell.wallets} x GROUP BY slot, currency) w FULL JOIN (
				SELECT slot, currency, sum(amount) AS amount FROM (
					SELECT slot, currency, amount FROM {cell.transfers} t WHERE state = 'SETTLED'
					UNION ALL SELECT slot, currency, -amount FROM {cell.credits} c WHERE state = 'CREDITED') x
				GROUP BY slot, currency) t USING (slot, currency)
			WHERE coalesce(w.clearing, 0) <> coalesce(t.amount, 0)`},
		{"I4", "SELECT count(*) FROM {cell.credits} c WHERE refunded <> 0", `
			SELECT format('transfer %s: %s of it are counted as given back, refunds that began make %s', transfer_id, coalesce(c.refunded, 0), coalesce(r.amount, 0))
			FROM {cell.credits} c FULL JOIN (SELECT slot, refund_of AS transfer_id, sum(amount) AS amount
				FROM {cell.transfers} t WHERE refund_of <> 0 AND state NOT IN ('REVERSED', 'REJECTED') GROUP BY slot, refund_of) r USING (slot, transfer_id)
			WHERE coalesce(c.refunded, 0) <> coalesce(r.amount, 0)`},
		{"I4", "SELECT count(*) FROM {cell.transfers} t WHERE refunded <> 0", `
			SELECT format('transfer %s: %s of it are counted as come back, refunds that arrived make %s', id, coalesce(t.refunded, 0), coalesce(r.amount, 0))
			FROM {cell.transfers} t FULL JOIN (SELECT slot, refund_of AS id, sum(amount) AS amount
				FROM {cell.credits} c WHERE refund_of <> 0 AND state = 'CREDITED' GROUP BY slot, refund_of) r USING (slot, id)
			WHERE coalesce(t.refunded, 0) <> coalesce(r.amount, 0)`},
		{"I5", "SELECT count(*) FROM {inventory.stock} s", `
			SELECT format('SKU %s: stocked %s, free %s, held %s, sold %s', sku, stocked, free, held, sold)
			FROM {inventory.stock} s WHERE stocked <> free + held + sold OR least(free, held, sold) < 0`},
		{"I5", "SELECT count(*) FROM {inventory.hold_lines} l", `
			SELECT format('SKU %s: held %s and sold %s, its holds say %s and %s', sku, s.held, s.sold, coalesce(h.held, 0), coalesce(h.sold, 0))
			FROM {inventory.stock} s FULL JOIN (
				SELECT l.slot, l.sku, sum(quantity) FILTER (WHERE state = 'HELD') AS held, sum(quantity) FILTER (WHERE state = 'CONFIRMED') AS sold
				FROM {inventory.hold_lines} l JOIN inventory.holds h ON h.slot = l.slot AND h.id = l.hold_id GROUP BY l.slot, l.sku) h USING (slot, sku)
			WHERE coalesce(s.held, 0) <> coalesce(h.held, 0) OR coalesce(s.sold, 0) <> coalesce(h.sold, 0)`},
		{"I6", "SELECT 0", `
			SELECT format('order %s is %s with total %s: payments to its sellers make %s in %s transfers, %s of them ended badly', o.id, o.state, o.total,
				coalesce(t.amount, 0), coalesce(t.n, 0), coalesce(t.bad, 0))
			FROM {orders.orders} o LEFT JOIN (
				SELECT slot, order_id, sum(amount) AS amount, count(*) AS n, count(*) FILTER (WHERE state IN ('REVERSED', 'REJECTED')) AS bad
				FROM {cell.transfers} t WHERE kind = 'order' GROUP BY slot, order_id) t ON t.slot = o.slot AND t.order_id = o.id
			WHERE CASE WHEN o.state IN ('PAID', 'SHIPPED', 'COMPLETED')
				THEN coalesce(t.amount, 0) <> o.total OR coalesce(t.bad, 0) > 0 ELSE coalesce(t.n, 0) > 0 END`},
		{"I6", "SELECT 0", `
			SELECT format('order %s is CANCELLED: %s was frozen, %s was given back', o.id, coalesce(p.frozen, 0), coalesce(p.back, 0))
			FROM {orders.orders} o JOIN (
				SELECT slot, ref, sum(amount) FILTER (WHERE step = 'freeze') AS frozen, sum(amount) FILTER (WHERE step = 'unfreeze') AS back
				FROM {cell.postings} x WHERE ref LIKE 'order:%' GROUP BY slot, ref) p ON p.slot = o.slot AND p.ref = 'order:' || o.id
			WHERE o.state = 'CANCELLED' AND coalesce(p.frozen, 0) <> coalesce(p.back, 0)`},
	}
}

// facts reads one part in one snapshot.
func (s store) facts(ctx context.Context, part string) (agentapi.Facts, error) {
	f := agentapi.Facts{Checked: map[string]int64{}}
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly, IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL statement_timeout = '25s'"); err != nil {
			return err
		}
		if err := owned(ctx, tx, &f); err != nil {
			return err
		}
		switch part {
		case agentapi.PartLocal:
			return local(ctx, tx, &f)
		case agentapi.PartSource:
			return beginnings(ctx, tx, &f)
		case agentapi.PartDest:
			return destinations(ctx, tx, &f)
		}
		return errs.ErrNotFound.Msgf("there is no part %q", part)
	})
	return f, pg.Error(err)
}

func owned(ctx context.Context, tx pgx.Tx, f *agentapi.Facts) error {
	return list(ctx, tx, &f.Owned, `SELECT min(slot), max(slot), epoch FROM (
			SELECT slot, epoch, slot - row_number() OVER (PARTITION BY epoch ORDER BY slot) AS run FROM cell.owned WHERE active) x
		GROUP BY epoch, run ORDER BY 1`)
}

func list[T any](ctx context.Context, tx pgx.Tx, to *[]T, sql string) error {
	rows, err := tx.Query(ctx, own(sql))
	if err != nil {
		return err
	}
	*to, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	return err
}

func local(ctx context.Context, tx pgx.Tx, f *agentapi.Facts) error {
	places, err := misplaced(ctx, tx)
	if err != nil {
		return err
	}
	var left agentapi.Leftovers
	if left, err = leftovers(ctx, tx); err != nil {
		return err
	}
	f.Leftovers = &left
	all := slices.Concat(checks(), effects(), places)
	for _, c := range all {
		if err := look(ctx, tx, c, f); err != nil {
			return fmt.Errorf("%s: %w: %s", c.id, err, c.found)
		}
	}
	return nil
}

func look(ctx context.Context, tx pgx.Tx, c check, f *agentapi.Facts) error {
	var n int64
	if err := tx.QueryRow(ctx, own(c.looked)).Scan(&n); err != nil {
		return err
	}
	f.Checked[c.id] += n
	rows, err := tx.Query(ctx, own(c.found)+" LIMIT 50")
	if err != nil {
		return err
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, t := range texts {
		f.Found = append(f.Found, agentapi.Found{ID: c.id, Text: t})
	}
	return err
}

// effects compares the records of Idempotency-Keys with what they name: each has
// its effect, no other has the same, and no effect was made without a key.
func effects() []check {
	all := []check{{"I9", "SELECT count(*) FROM {cell.idempotency} i", `
		SELECT format('%s %s was made for %s keys: %s', route, ref, count(*), string_agg(key, ', '))
		FROM {cell.idempotency} i WHERE route IN ('POST /orders', 'POST /transfers', 'POST /transfers/:id/refunds', 'operator: reverse', 'POST /wallet/deposits', 'POST /wallet/withdrawals')
		GROUP BY slot, route, ref HAVING count(*) > 1`}}
	for _, e := range []struct{ what, routes, rows string }{
		{"order", "'POST /orders'", "SELECT slot, id::text AS ref FROM {orders.orders} o"},
		{"transfer", "'POST /transfers'", "SELECT slot, id::text AS ref FROM {cell.transfers} t WHERE kind = 'transfer'"},
		{"refund", "'POST /transfers/:id/refunds', 'operator: reverse'", "SELECT slot, id::text AS ref FROM {cell.transfers} t WHERE kind = 'refund'"},
		{"deposit", "'POST /wallet/deposits'", "SELECT slot, substr(ref, 9) AS ref FROM {cell.postings} p WHERE ref LIKE 'deposit:%'"},
		{"withdrawal", "'POST /wallet/withdrawals'", "SELECT slot, substr(ref, 12) AS ref FROM {cell.postings} p WHERE ref LIKE 'withdrawal:%'"},
	} {
		all = append(all, check{"I9", "SELECT 0", fmt.Sprintf(`
			SELECT CASE WHEN i.ref IS NULL THEN format('%[1]s %%s has no Idempotency-Key', e.ref)
				ELSE format('key %%s of user %%s names %[1]s %%s, which doesn''t exist', i.key, i.actor, i.ref) END
			FROM (%[3]s) e FULL JOIN (SELECT slot, ref, key, actor FROM {cell.idempotency} x WHERE route IN (%[2]s)) i USING (slot, ref)
			WHERE e.ref IS NULL OR i.ref IS NULL`, e.what, e.routes, e.rows)})
	}
	return all
}

func beginnings(ctx context.Context, tx pgx.Tx, f *agentapi.Facts) error {
	if err := list(ctx, tx, &f.Transfers, `SELECT id, state, to_slot, to_user, amount, currency FROM {cell.transfers} t`); err != nil {
		return err
	}
	if err := list(ctx, tx, &f.Claims, `SELECT encode(phone_mac, 'hex'), state, user_id, user_slot FROM {users.claims} c`); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, own(`SELECT o.id, o.state, h.hold_id, h.seller_slot, h.state,
			(SELECT coalesce(sum(quantity), 0)::bigint FROM orders.lines l WHERE l.slot = o.slot AND l.order_id = o.id AND l.hold_id = h.hold_id)
		FROM {orders.orders} o JOIN orders.holds h ON h.slot = o.slot AND h.order_id = o.id ORDER BY o.slot, o.id`))
	if err != nil {
		return err
	}
	var o agentapi.OrderFact
	var h agentapi.OrderHold
	_, err = pgx.ForEachRow(rows, []any{&o.ID, &o.State, &h.ID, &h.Slot, &h.State, &h.Units}, func() error {
		if n := len(f.Orders); n == 0 || f.Orders[n-1].ID != o.ID {
			f.Orders = append(f.Orders, agentapi.OrderFact{ID: o.ID, State: o.State})
		}
		last := &f.Orders[len(f.Orders)-1]
		last.Holds = append(last.Holds, h)
		return nil
	})
	return err
}

func destinations(ctx context.Context, tx pgx.Tx, f *agentapi.Facts) error {
	if err := list(ctx, tx, &f.Credits, `SELECT transfer_id, from_slot, state, user_id, amount, currency FROM {cell.credits} c`); err != nil {
		return err
	}
	var phone string
	rows, err := tx.Query(ctx, own(`SELECT id, encode(phone_mac, 'hex'), phone FROM {users.users} u`))
	if err != nil {
		return err
	}
	var u agentapi.UserFact
	_, err = pgx.ForEachRow(rows, []any{&u.ID, &u.Phone, &phone}, func() error {
		u.Claim = routing.HashSlot(phone)
		f.Users = append(f.Users, u)
		return nil
	})
	if err != nil {
		return err
	}
	return list(ctx, tx, &f.Holds, `SELECT id, order_id, buyer_slot, state,
			(SELECT coalesce(sum(quantity), 0)::bigint FROM inventory.hold_lines l WHERE l.slot = h.slot AND l.hold_id = h.id)
		FROM {inventory.holds} h`)
}
