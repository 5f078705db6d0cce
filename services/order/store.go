package order

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/order/orderapi"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema orders.
func Migrations() pg.Migrations { return pg.Sub("orders", files) }

// store has all SQL of the service.
type store struct{ pool *pgxpool.Pool }

const orderColumns = `id, user_id, state, reason, payment_status, fulfilment_status, currency, total, address, from_cart, deadline, created_at, updated_at, events`

func scanOrder(r pgx.CollectableRow) (o Order, err error) {
	err = r.Scan(&o.ID, &o.User, &o.State, &o.Reason, &o.Payment, &o.Fulfilment, &o.Currency, &o.Total, &o.Address,
		&o.FromCart, &o.Deadline, &o.CreatedAt, &o.UpdatedAt, &o.Events)
	o.CreatedAt, o.UpdatedAt = o.CreatedAt.UTC(), o.UpdatedAt.UTC()
	return o, err
}

// insert writes a new order and its first event.
func (s store) insert(ctx context.Context, tx *pg.Tx, o Order, wait time.Duration) error {
	var b pgx.Batch
	b.Queue(`INSERT INTO orders.orders (slot, id, user_id, state, payment_status, fulfilment_status, currency, total, address, from_cart, deadline, events)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, now() + $11::bigint * interval '1 microsecond', 1)`,
		tx.Slot, o.ID, o.User, o.State, o.Payment, o.Fulfilment, o.Currency, o.Total, o.Address, o.FromCart, wait.Microseconds())
	for _, l := range o.Lines {
		b.Queue(`INSERT INTO orders.lines (slot, order_id, sku, product_id, seller_id, hold_id, hold_slot, title, price, quantity)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
			tx.Slot, o.ID, l.SKU, l.Product, l.Seller, l.Hold, l.SellerSlot, l.Title, l.Price, l.Quantity)
	}
	for _, h := range o.Holds {
		b.Queue(`INSERT INTO orders.holds (slot, order_id, hold_id, seller_id, seller_slot, transfer_id, state, amount)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`, tx.Slot, o.ID, h.ID, h.Seller, h.Slot, h.Transfer, h.State, h.Amount)
	}
	b.Queue(`INSERT INTO orders.order_events (slot, order_id, seq, event) VALUES ($1, $2, 1, 'placed')`, tx.Slot, o.ID)
	return tx.SendBatch(ctx, &b).Close()
}

// lock reads an order under its row's lock: one event at a time. The row is locked
// before anything else of the order, and before the wallet.
func (s store) lock(ctx context.Context, tx *pg.Tx, order id.ID) (Order, error) {
	rows, err := tx.Query(ctx, `SELECT `+orderColumns+` FROM orders.orders WHERE slot = $1 AND id = $2 FOR UPDATE`, tx.Slot, order)
	if err != nil {
		return Order{}, err
	}
	o, err := pgx.CollectExactlyOneRow(rows, scanOrder)
	if err != nil {
		return o, err
	}
	return o, s.parts(ctx, tx, tx.Slot, &o)
}

// parts reads lines and holds.
func (s store) parts(ctx context.Context, tx pgx.Tx, slot routing.Slot, o *Order) error {
	rows, err := tx.Query(ctx, `SELECT sku, product_id, seller_id, hold_id, hold_slot, title, price, quantity
		FROM orders.lines WHERE slot = $1 AND order_id = $2 ORDER BY sku`, slot, o.ID)
	if err != nil {
		return err
	}
	if o.Lines, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Line]); err != nil {
		return err
	}
	rows, err = tx.Query(ctx, `SELECT hold_id, seller_id, transfer_id, seller_slot, state, amount
		FROM orders.holds WHERE slot = $1 AND order_id = $2 ORDER BY seller_id`, slot, o.ID)
	if err != nil {
		return err
	}
	o.Holds, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Hold])
	return err
}

// save writes what an event changed. The row is locked, and names the state that
// was seen nevertheless: a slip here must fail, not overwrite (S-M07).
func (s store) save(ctx context.Context, tx *pg.Tx, was, o Order, events []orderapi.Happening) error {
	tag, err := tx.Exec(ctx, `UPDATE orders.orders SET state = $4, reason = $5, payment_status = $6, fulfilment_status = $7,
		events = events + $8, updated_at = now() WHERE slot = $1 AND id = $2 AND state = $3`,
		tx.Slot, o.ID, was.State, o.State, o.Reason, o.Payment, o.Fulfilment, len(events))
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("order %d is not %s any more", o.ID, was.State)
	}
	if err != nil {
		return err
	}
	var b pgx.Batch
	for i, h := range o.Holds {
		if h.State != was.Holds[i].State {
			b.Queue(`UPDATE orders.holds SET state = $4 WHERE slot = $1 AND order_id = $2 AND hold_id = $3`, tx.Slot, o.ID, h.ID, h.State)
		}
	}
	for i, e := range events {
		b.Queue(`INSERT INTO orders.order_events (slot, order_id, seq, event, detail) VALUES ($1, $2, $3, $4, $5)`,
			tx.Slot, o.ID, was.Events+1+i, e.Event, e.Detail)
	}
	return tx.SendBatch(ctx, &b).Close()
}

// state is what a waiting request looks at.
func (s store) state(ctx context.Context, slot routing.Slot, order id.ID) (st State, err error) {
	err = pg.See(ctx, s.pool, slot, func(tx pgx.Tx, _ bool) error {
		return tx.QueryRow(ctx, `SELECT state FROM orders.orders WHERE slot = $1 AND id = $2`, slot, order).Scan(&st)
	})
	return st, err
}

// full is an order with what only readers want.
type full struct {
	Order
	Transfers map[id.ID]string // state by transfer
	Timeline  []orderapi.Happening
}

// get reads a user's order; ErrNotFound when the user has none of that ID.
func (s store) get(ctx context.Context, slot routing.Slot, user, order id.ID) (f full, err error) {
	err = pg.See(ctx, s.pool, slot, func(tx pgx.Tx, _ bool) error {
		rows, err := tx.Query(ctx, `SELECT `+orderColumns+` FROM orders.orders WHERE slot = $1 AND id = $2 AND user_id = $3`, slot, order, user)
		if err != nil {
			return err
		}
		if f.Order, err = pgx.CollectExactlyOneRow(rows, scanOrder); err != nil {
			return err
		}
		if err := s.parts(ctx, tx, slot, &f.Order); err != nil {
			return err
		}
		rows, err = tx.Query(ctx, `SELECT at, event, detail FROM orders.order_events WHERE slot = $1 AND order_id = $2 ORDER BY seq`, slot, order)
		if err != nil {
			return err
		}
		if f.Timeline, err = pgx.CollectRows(rows, pgx.RowToStructByPos[orderapi.Happening]); err != nil {
			return err
		}
		for i := range f.Timeline {
			f.Timeline[i].At = f.Timeline[i].At.UTC()
		}
		f.Transfers = map[id.ID]string{}
		rows, err = tx.Query(ctx, `SELECT id, state FROM cell.transfers WHERE slot = $1 AND order_id = $2`, slot, order)
		if err != nil {
			return err
		}
		var t id.ID
		var st string
		_, err = pgx.ForEachRow(rows, []any{&t, &st}, func() error { f.Transfers[t] = st; return nil })
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = errs.ErrNotFound
	}
	return f, err
}

// position is where a page of a user's orders starts, exclusive, newest first.
type position struct {
	User  id.ID     `json:"u"`
	At    time.Time `json:"t"`
	Order id.ID     `json:"o"`
}

type listed struct {
	Order
	Lines int
}

func (s store) list(ctx context.Context, slot routing.Slot, from position, limit int64) (out []listed, err error) {
	err = pg.See(ctx, s.pool, slot, func(tx pgx.Tx, _ bool) error {
		rows, err := tx.Query(ctx, `SELECT o.id, o.state, o.reason, o.payment_status, o.fulfilment_status, o.currency, o.total, o.created_at, o.updated_at,
				(SELECT count(*) FROM orders.lines l WHERE l.slot = o.slot AND l.order_id = o.id)
			FROM orders.orders o WHERE o.slot = $1 AND o.user_id = $2 AND (o.created_at, o.id) < ($3, $4)
			ORDER BY o.created_at DESC, o.id DESC LIMIT $5`, slot, from.User, from.At, from.Order, limit)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (l listed, err error) {
			err = r.Scan(&l.ID, &l.State, &l.Reason, &l.Payment, &l.Fulfilment, &l.Currency, &l.Total, &l.CreatedAt, &l.UpdatedAt, &l.Lines)
			l.CreatedAt, l.UpdatedAt = l.CreatedAt.UTC(), l.UpdatedAt.UTC()
			return l, err
		})
		return err
	})
	return out, err
}

// kept looks for the record of an earlier request before anything else is asked.
func (s store) kept(ctx context.Context, slot routing.Slot, k pg.Key) (rec *pg.Record, err error) {
	err = pg.See(ctx, s.pool, slot, func(tx pgx.Tx, _ bool) error {
		rec, err = pg.Kept(ctx, tx, slot, k)
		return err
	})
	return rec, err
}

// overdue is a PENDING order past its deadline in a slot that this cell owns.
type overdue struct {
	pg.Entry
	Order id.ID
}

func (s store) overdue(ctx context.Context, limit int) ([]overdue, error) {
	rows, err := s.pool.Query(ctx, `SELECT o.slot, c.epoch, o.id FROM orders.orders o
		CROSS JOIN LATERAL (SELECT epoch FROM cell.owned w WHERE w.slot = o.slot AND w.active OFFSET 0) c
		WHERE o.state = 'PENDING' AND o.deadline < now() ORDER BY o.deadline LIMIT $1`, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (o overdue, err error) {
		return o, r.Scan(&o.Slot, &o.Epoch, &o.Order)
	})
}

// isOverdue asks the database's clock again, under the order's lock.
func (s store) isOverdue(ctx context.Context, tx *pg.Tx, order id.ID) (yes bool, err error) {
	err = tx.QueryRow(ctx, `SELECT state = 'PENDING' AND deadline < now() FROM orders.orders WHERE slot = $1 AND id = $2`, tx.Slot, order).Scan(&yes)
	return yes, err
}

// notFound says whether err means that there is no such row.
func notFound(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// What the cart refuses.
var (
	ErrCartFull    = errs.New(errs.Unprocessable, "CART_FULL", "a cart has at most 50 different SKUs")
	ErrCartChanged = errs.New(errs.Conflict, "CART_CHANGED", "the cart changed while it was ordered, try again")
	ErrCheckout    = errs.New(errs.Conflict, "CHECKOUT_IN_PROGRESS", "the cart is being ordered already")
)

// lockCart takes the one lock that changes of a cart and orders from it share.
func (s store) lockCart(ctx context.Context, tx *pg.Tx, user id.ID) error {
	_, err := tx.Exec(ctx, `INSERT INTO orders.carts AS c (slot, user_id) VALUES ($1, $2) ON CONFLICT (slot, user_id) DO UPDATE SET user_id = c.user_id`,
		tx.Slot, user)
	return err
}

// cart lists a user's items in the order in which they were added.
func (s store) cart(ctx context.Context, tx pgx.Tx, slot routing.Slot, user id.ID) ([]orderapi.Item, error) {
	rows, err := tx.Query(ctx, `SELECT sku, quantity FROM orders.cart_items WHERE slot = $1 AND user_id = $2 AND quantity > 0 ORDER BY added_at, sku`, slot, user)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[orderapi.Item])
}

func (s store) seeCart(ctx context.Context, slot routing.Slot, user id.ID) (items []orderapi.Item, err error) {
	err = pg.See(ctx, s.pool, slot, func(tx pgx.Tx, _ bool) error {
		items, err = s.cart(ctx, tx, slot, user)
		return err
	})
	return items, err
}

// putItem sets an item's quantity; 0 takes it out.
func (s store) putItem(ctx context.Context, e pg.Entry, sku id.ID, quantity int64) error {
	return pg.InSlot(ctx, s.pool, e, func(tx *pg.Tx) error {
		if err := s.lockCart(ctx, tx, e.User); err != nil {
			return err
		}
		if quantity == 0 {
			_, err := tx.Exec(ctx, `UPDATE orders.cart_items SET quantity = 0 WHERE slot = $1 AND user_id = $2 AND sku = $3`, tx.Slot, e.User, sku)
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO orders.cart_items AS c (slot, user_id, sku, quantity) VALUES ($1, $2, $3, $4)
			ON CONFLICT (slot, user_id, sku) DO UPDATE SET quantity = excluded.quantity,
				added_at = CASE WHEN c.quantity = 0 THEN excluded.added_at ELSE c.added_at END`, tx.Slot, e.User, sku, quantity)
		if err != nil {
			return err
		}
		var n int
		err = tx.QueryRow(ctx, `SELECT count(*) FROM orders.cart_items WHERE slot = $1 AND user_id = $2 AND quantity > 0`, tx.Slot, e.User).Scan(&n)
		if err == nil && n > maxLines {
			err = ErrCartFull
		}
		return err
	})
}

// checkout makes sure, under the cart's lock, that the order is of the cart as it
// is, and that no other order of the same cart is undecided: two tabs make one.
func (s store) checkout(ctx context.Context, tx *pg.Tx, user id.ID, want map[id.ID]int64) error {
	if err := s.lockCart(ctx, tx, user); err != nil {
		return err
	}
	var open bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM orders.orders WHERE slot = $1 AND user_id = $2 AND from_cart AND state = 'PENDING')`,
		tx.Slot, user).Scan(&open)
	if err != nil {
		return err
	}
	if open {
		return ErrCheckout
	}
	items, err := s.cart(ctx, tx, tx.Slot, user)
	if err != nil {
		return err
	}
	have := make(map[id.ID]int64, len(items))
	for _, i := range items {
		have[i.SKU] = i.Quantity
	}
	if !maps.Equal(have, want) {
		return ErrCartChanged
	}
	return nil
}

// takeFromCart removes what an order has bought; what was added since stays.
func (s store) takeFromCart(ctx context.Context, tx *pg.Tx, o Order) error {
	if err := s.lockCart(ctx, tx, o.User); err != nil {
		return err
	}
	var b pgx.Batch
	for _, l := range o.Lines {
		b.Queue(`UPDATE orders.cart_items SET quantity = greatest(0, quantity - $4) WHERE slot = $1 AND user_id = $2 AND sku = $3`,
			tx.Slot, o.User, l.SKU, l.Quantity)
	}
	return tx.SendBatch(ctx, &b).Close()
}
