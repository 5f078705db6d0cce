package control

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/control/controlapi"
)

// exchangeLock is held by who plans an exchange, so that no slot is in two.
const exchangeLock = 4406

// part is one row of an exchange.
type part struct {
	exchange      int64
	n             int
	owner, target string
	slots         []int32
	epochs        []int64
	state         string
	incarnation   string
	lsn           string
	version       int64
	reason        string
}

// plan stores an exchange of parts, all planned, unless a slot is in another open one.
func (s *store) plan(ctx context.Context, reason string, parts []part) (id int64, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", exchangeLock); err != nil {
			return err
		}
		var all []int32
		for _, p := range parts {
			all = append(all, p.slots...)
		}
		var other int64
		err := tx.QueryRow(ctx, `SELECT exchange FROM control.exchange_parts
			WHERE state NOT IN ('DONE', 'CANCELLED') AND slots && $1 ORDER BY exchange LIMIT 1`, all).Scan(&other)
		if err == nil {
			return controlapi.ErrExchangeOpen.Msgf("exchange %d has some of these slots, and has not ended", other)
		} else if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if err := tx.QueryRow(ctx, "INSERT INTO control.exchanges (reason) VALUES ($1) RETURNING id", reason).Scan(&id); err != nil {
			return err
		}
		for i, p := range parts {
			if _, err := tx.Exec(ctx, `INSERT INTO control.exchange_parts (exchange, part, owner, target, slots, epochs) VALUES ($1, $2, $3, $4, $5, $6)`,
				id, i+1, p.owner, p.target, p.slots, p.epochs); err != nil {
				return err
			}
		}
		return nil
	})
	return id, pg.Error(err)
}

// openParts lists the parts that have not ended.
func (s *store) openParts(ctx context.Context) ([]part, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT p.exchange, p.part, p.owner, p.target, p.slots, p.epochs, p.state, p.incarnation, p.lsn::text, p.version, x.reason
		FROM control.exchange_parts p JOIN control.exchanges x ON x.id = p.exchange
		WHERE p.state NOT IN ('DONE', 'CANCELLED') ORDER BY p.exchange, p.part`)
	if err != nil {
		return nil, pg.Error(err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (part, error) {
		var p part
		err := r.Scan(&p.exchange, &p.n, &p.owner, &p.target, &p.slots, &p.epochs, &p.state, &p.incarnation, &p.lsn, &p.version, &p.reason)
		return p, err
	})
	return out, pg.Error(err)
}

// become brings a part to what to says, unless it has left the state that it was
// found in: somebody cancelled it, or another instance did the same.
func (s *store) become(ctx context.Context, was part, to part, detail string) error {
	_, err := s.pool.Exec(ctx, `UPDATE control.exchange_parts
		SET state = $4, slots = $5, epochs = $6, incarnation = $7, lsn = $8::text::pg_lsn, detail = $9, looked_at = clock_timestamp(),
		    changed_at = CASE WHEN state = $4 THEN changed_at ELSE clock_timestamp() END
		WHERE exchange = $1 AND part = $2 AND state = $3`,
		was.exchange, was.n, was.state, to.state, to.slots, to.epochs, to.incarnation, to.lsn, detail)
	return pg.Error(err)
}

// errAgain says that a part changed while a table was made for it.
var errAgain = errors.New("a part of the exchange has changed meanwhile")

// switched notes, in the transaction that stores a table, which parts it switches.
func switched(ctx context.Context, tx pgx.Tx, parts []part, version int64) error {
	for _, p := range parts {
		tag, err := tx.Exec(ctx, `UPDATE control.exchange_parts
			SET state = 'SWITCHED', version = $3, detail = '', changed_at = clock_timestamp(), looked_at = clock_timestamp()
			WHERE exchange = $1 AND part = $2 AND state = 'COPYING' AND slots = $4`, p.exchange, p.n, version, p.slots)
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return errAgain
		}
	}
	return nil
}

// cancel gives up what isn't switched.
func (s *store) cancel(ctx context.Context, id int64) error {
	return pg.Error(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var there bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM control.exchanges WHERE id = $1)", id).Scan(&there); err != nil {
			return err
		}
		if !there {
			return controlapi.ErrNoExchange
		}
		_, err := tx.Exec(ctx, `UPDATE control.exchange_parts
			SET state = 'CANCELLING', detail = 'cancelled by an operator', changed_at = clock_timestamp(), looked_at = clock_timestamp()
			WHERE exchange = $1 AND state IN ('PLANNED', 'COPYING')`, id)
		return err
	}))
}

// exchanges lists the newest, and all that are open; only id unless that is 0.
func (s *store) exchanges(ctx context.Context, id int64, limit int) ([]controlapi.Exchange, error) {
	rows, err := s.pool.Query(ctx, `
		WITH x AS (SELECT * FROM control.exchanges WHERE $1::bigint = 0 OR id = $1::bigint),
		shown AS (SELECT * FROM (SELECT * FROM x ORDER BY id DESC LIMIT $2) newest
			UNION SELECT x.* FROM x WHERE EXISTS (SELECT FROM control.exchange_parts p WHERE p.exchange = x.id AND p.state NOT IN ('DONE', 'CANCELLED')))
		SELECT x.id, x.reason, x.created_at, p.part, p.owner, p.target, p.slots, p.state, p.version, p.detail,
		       clock_timestamp() - x.created_at, clock_timestamp() - p.changed_at, clock_timestamp() - p.looked_at
		FROM shown x JOIN control.exchange_parts p ON p.exchange = x.id ORDER BY x.id DESC, p.part`, id, limit)
	if err != nil {
		return nil, pg.Error(err)
	}
	defer rows.Close()
	out := []controlapi.Exchange{}
	for rows.Next() {
		var x controlapi.Exchange
		var p controlapi.ExchangePart
		var slots []int32
		var age, state time.Duration
		var looked *time.Duration
		if err := rows.Scan(&x.ID, &x.Reason, &x.CreatedAt, &p.Part, &p.Owner, &p.Target, &slots, &p.State, &p.Version, &p.Detail, &age, &state, &looked); err != nil {
			return nil, pg.Error(err)
		}
		p.Slots, p.Ranges, p.StateMS = len(slots), ranges(slots), state.Milliseconds()
		if looked != nil {
			ms := looked.Milliseconds()
			p.LookedMS = &ms
		}
		if len(out) == 0 || out[len(out)-1].ID != x.ID {
			x.AgeMS = age.Milliseconds()
			out = append(out, x)
		}
		last := &out[len(out)-1]
		last.Parts = append(last.Parts, p)
	}
	return out, pg.Error(rows.Err())
}

// ranges gives slots as ranges, both ends included.
func ranges(slots []int32) [][2]routing.Slot {
	out := [][2]routing.Slot{}
	for _, n := range slices.Sorted(slices.Values(slots)) {
		if s := routing.Slot(n); len(out) > 0 && out[len(out)-1][1] == s-1 {
			out[len(out)-1][1] = s
		} else {
			out = append(out, [2]routing.Slot{s, s})
		}
	}
	return out
}
