package inventory

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/inventory/inventoryapi"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema inventory.
func Migrations() pg.Migrations { return pg.Sub("inventory", files) }

// store has all SQL of the service.
type store struct{ pool *pgxpool.Pool }

// outcome is what an event came to.
type outcome struct {
	State State
	Short id.ID // the SKU of which too few were free, 0 = none
}

// step takes one event to a hold. m is what the message says of it.
func (s store) step(ctx context.Context, tx *pg.Tx, e Event, m Hold, ttl time.Duration) (outcome, error) {
	h, err := s.lockHold(ctx, tx, m.ID)
	if err != nil {
		return outcome{}, err
	}
	if h.State != Unknown && !h.same(m) {
		return outcome{}, fmt.Errorf("hold %d: %w", m.ID, errOther)
	}
	was := h.State
	if was == Unknown {
		h = m
	}
	step := Next(was, e)
	out := outcome{State: step.Next}
	if step.Move != Stay {
		short, err := s.move(ctx, tx, h, step.Move)
		if err != nil {
			return outcome{}, err
		}
		if short != 0 {
			out = outcome{State: step.Short, Short: short}
		}
	}
	if out.State == was {
		return out, nil
	}
	if was == Unknown {
		if out.State == Released {
			h.Lines = nil
		}
		h.State = out.State
		return out, s.insertHold(ctx, tx, h, ttl)
	}
	tag, err := tx.Exec(ctx, `UPDATE inventory.holds SET state = $4, changed_at = now() WHERE slot = $1 AND id = $2 AND state = $3`,
		tx.Slot, m.ID, was, out.State)
	if err == nil && tag.RowsAffected() != 1 { // can't happen under the hold's lock
		err = fmt.Errorf("hold %d is not %s any more", m.ID, was)
	}
	return out, err
}

// lockHold reads a hold under its lock; state Unknown when there is none. The lock
// is on the ID, not on the row, because two messages may both be the first.
func (s store) lockHold(ctx context.Context, tx *pg.Tx, hold id.ID) (Hold, error) {
	var b pgx.Batch
	b.Queue(`SELECT pg_advisory_xact_lock(hashtextextended('inventory.hold ' || $1::bigint, $2))`, hold, int64(tx.Slot))
	b.Queue(`SELECT order_id, buyer_slot, seller_id, state FROM inventory.holds WHERE slot = $1 AND id = $2`, tx.Slot, hold)
	b.Queue(`SELECT sku, quantity FROM inventory.hold_lines WHERE slot = $1 AND hold_id = $2 ORDER BY sku`, tx.Slot, hold)
	r := tx.SendBatch(ctx, &b)
	defer r.Close() //nolint:errcheck // each answer is read below
	if _, err := r.Exec(); err != nil {
		return Hold{}, err
	}
	h := Hold{ID: hold}
	err := r.QueryRow().Scan(&h.Order, &h.BuyerSlot, &h.Seller, &h.State)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return h, err
	}
	rows, err := r.Query()
	if err != nil {
		return h, err
	}
	h.Lines, err = pgx.CollectRows(rows, pgx.RowToStructByPos[inventoryapi.Line])
	if err != nil {
		return h, err
	}
	return h, r.Close()
}

// move takes every line's units from one counter to another, or none and gives
// the SKU that was short. The rows are locked by SKU, so two holds never wait for
// each other in a circle.
func (s store) move(ctx context.Context, tx *pg.Tx, h Hold, m Move) (short id.ID, err error) {
	skus := make([]id.ID, len(h.Lines))
	for i, l := range h.Lines {
		skus[i] = l.SKU
	}
	rows, err := tx.Query(ctx, `SELECT sku, seller_id, stocked, free, held, sold FROM inventory.stock
		WHERE slot = $1 AND sku = ANY($2) ORDER BY sku FOR UPDATE`, tx.Slot, skus)
	if err != nil {
		return 0, err
	}
	have, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Stock])
	if err != nil {
		return 0, err
	}
	stock := make(map[id.ID]Stock, len(have))
	for _, v := range have {
		stock[v.SKU] = v
	}
	var b pgx.Batch
	for _, l := range h.Lines {
		v, ok := stock[l.SKU]
		if !ok || v.Seller != h.Seller {
			return l.SKU, nil
		}
		v, ok = v.Apply(m, l.Quantity)
		if !ok && (m == FreeToHeld || m == FreeToSold) {
			return l.SKU, nil
		}
		// Any other shortage is a bug, and the database's check says so.
		b.Queue(`UPDATE inventory.stock SET free = $3, held = $4, sold = $5 WHERE slot = $1 AND sku = $2`,
			tx.Slot, v.SKU, v.Free, v.Held, v.Sold)
	}
	return 0, tx.SendBatch(ctx, &b).Close()
}

func (s store) insertHold(ctx context.Context, tx *pg.Tx, h Hold, ttl time.Duration) error {
	var b pgx.Batch
	b.Queue(`INSERT INTO inventory.holds (slot, id, order_id, buyer_slot, seller_id, state, tombstone, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, now() + $8::bigint * interval '1 microsecond')`,
		tx.Slot, h.ID, h.Order, h.BuyerSlot, h.Seller, h.State, len(h.Lines) == 0, ttl.Microseconds())
	for _, l := range h.Lines {
		b.Queue(`INSERT INTO inventory.hold_lines (slot, hold_id, sku, quantity) VALUES ($1, $2, $3, $4)`, tx.Slot, h.ID, l.SKU, l.Quantity)
	}
	return tx.SendBatch(ctx, &b).Close()
}

// due names holds past their time in slots that this cell owns, oldest first.
type due struct {
	pg.Entry
	Hold, Order id.ID
}

func (s store) dueHolds(ctx context.Context, limit int) ([]due, error) {
	rows, err := s.pool.Query(ctx, `SELECT h.slot, c.epoch, h.id, h.order_id FROM inventory.holds h
		CROSS JOIN LATERAL (SELECT epoch FROM cell.owned w WHERE w.slot = h.slot AND w.active OFFSET 0) c
		WHERE h.state = 'HELD' AND h.expires_at < now() ORDER BY h.expires_at LIMIT $1`, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (d due, err error) {
		return d, r.Scan(&d.Slot, &d.Epoch, &d.Hold, &d.Order)
	})
}

// stillDue asks again under the hold's lock, which step takes: the sweeper only
// ends what it saw, HELD and past its time by the database's clock.
func (s store) stillDue(ctx context.Context, tx *pg.Tx, hold id.ID) (bool, error) {
	if _, err := s.lockHold(ctx, tx, hold); err != nil {
		return false, err
	}
	var ok bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM inventory.holds WHERE slot = $1 AND id = $2 AND state = 'HELD' AND expires_at < now())`,
		tx.Slot, hold).Scan(&ok)
	return ok, err
}

const stockColumns = `sku, stocked, free, held, sold, created_at`

// known says whether a SKU has a stock row, and whose it is.
func (s store) known(ctx context.Context, slot routing.Slot, sku id.ID) (seller id.ID, ok bool, err error) {
	err = pg.See(ctx, s.pool, slot, func(tx pgx.Tx, _ bool) error {
		return tx.QueryRow(ctx, `SELECT seller_id FROM inventory.stock WHERE slot = $1 AND sku = $2`, slot, sku).Scan(&seller)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	return seller, err == nil, err
}

// add puts units into stock; the first ones make the row. Another seller's SKU is
// unknown.
func (s store) add(ctx context.Context, tx *pg.Tx, seller, sku id.ID, n int64) (inventoryapi.Stock, error) {
	rows, err := tx.Query(ctx, `INSERT INTO inventory.stock AS s (slot, sku, seller_id, stocked, free) VALUES ($1, $2, $3, $4, $4)
		ON CONFLICT (slot, sku) DO UPDATE SET stocked = s.stocked + excluded.stocked, free = s.free + excluded.free
		WHERE s.seller_id = excluded.seller_id RETURNING `+stockColumns, tx.Slot, sku, seller, n)
	if err != nil {
		return inventoryapi.Stock{}, err
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[inventoryapi.Stock])
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return v, ErrUnknownSKU
	case err == nil && v.Stocked > maxStock:
		return v, ErrStockLimit
	}
	v.CreatedAt = v.CreatedAt.UTC()
	return v, err
}

// position is where a page of a seller's stock starts, exclusive.
type position struct {
	Seller id.ID     `json:"s"`
	At     time.Time `json:"t"`
	SKU    id.ID     `json:"k,omitempty"`
}

func (s store) list(ctx context.Context, slot routing.Slot, from position, limit int64) (items []inventoryapi.Stock, err error) {
	err = pg.See(ctx, s.pool, slot, func(tx pgx.Tx, _ bool) error {
		rows, err := tx.Query(ctx, `SELECT `+stockColumns+` FROM inventory.stock
			WHERE slot = $1 AND seller_id = $2 AND (created_at, sku) > ($3, $4) ORDER BY created_at, sku LIMIT $5`,
			slot, from.Seller, from.At, from.SKU, limit)
		if err != nil {
			return err
		}
		items, err = pgx.CollectRows(rows, pgx.RowToStructByPos[inventoryapi.Stock])
		return err
	})
	for i := range items {
		items[i].CreatedAt = items[i].CreatedAt.UTC()
	}
	return items, err
}

// shelf gives about how much is left of the SKUs that the slot has.
func (s store) shelf(ctx context.Context, slot routing.Slot, skus []id.ID) (items []inventoryapi.ShelfItem, err error) {
	err = pg.See(ctx, s.pool, slot, func(tx pgx.Tx, _ bool) error {
		rows, err := tx.Query(ctx, `SELECT sku, CASE WHEN free <= 0 THEN 'out' WHEN free <= $3 THEN 'few' ELSE 'plenty' END,
			CASE WHEN free BETWEEN 1 AND $3 THEN free ELSE 0 END
			FROM inventory.stock WHERE slot = $1 AND sku = ANY($2) ORDER BY sku`, slot, skus, int64(inventoryapi.Few))
		if err != nil {
			return err
		}
		items, err = pgx.CollectRows(rows, pgx.RowToStructByPos[inventoryapi.ShelfItem])
		return err
	})
	return items, err
}
