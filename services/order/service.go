package order

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/idgen/idgenapi"
	"example.com/cellmart/services/inventory/inventoryapi"
	"example.com/cellmart/services/order/orderapi"
)

// catalog is the cell's copy of what is sold; SKUs that it doesn't have are
// missing from the answer.
type catalog interface {
	skus(ctx context.Context, ids []id.ID) ([]SKU, error)
}

// addresses are kept by the user service of the same cell.
type addresses interface {
	address(ctx context.Context, user, address id.ID) (json.RawMessage, error)
}

// ids hands out IDs; it never waits.
type ids interface {
	Next(kind string, slot routing.Slot) (id.ID, error)
}

// waiters wakes a request that waits for an order's decision; *bus.Waiters.
type waiters interface {
	Wake(key string)
	Until(ctx context.Context, key string, limit time.Duration, done func(context.Context) (bool, error)) (bool, error)
}

// Service is the use cases of carts and orders.
type Service struct {
	store     store
	catalog   catalog
	addresses addresses
	ids       ids
	waiters   waiters
	poke      func()                  // tells the dispatcher of new messages
	reachable func(routing.Slot) bool // false when a slot's cell is known not to answer
	wait      time.Duration           // of a request, for the decision
	deadline  time.Duration           // of a PENDING order
	holdTTL   time.Duration           // asked of the sellers
	number    func(id.ID) string      // the order number of an ID
	log       *slog.Logger
	count     func(state State, reason string)
}

// answer is what POST /orders says. It is stored as it is first said (status,
// location, body), and said again to who asks again.
type answer struct {
	Status   int
	Location string
	Body     []byte      // of a success
	Refusal  *errs.Error // otherwise
	Replayed bool
}

const placeRoute = "POST /orders"

func entry(r call.Route, user id.ID) pg.Entry {
	return pg.Entry{Slot: r.Slot, Epoch: r.Epoch, User: user}
}

func waitKey(order id.ID) string { return "order:" + order.String() }

// place orders items, or the cart (P5). Whatever the key was used for before
// counts; else one transaction writes the order, the key's record and a RESERVE for
// each seller, and the answer is what is known when the wait is over.
func (s *Service) place(ctx context.Context, r call.Route, user id.ID, key string, req orderapi.Place) (answer, error) {
	canonical, err := json.Marshal(req)
	if err != nil {
		return answer{}, err
	}
	hash := sha256.Sum256(canonical)
	k := pg.Key{Actor: user, Route: placeRoute, Key: key, Hash: hash[:]}
	e := entry(r, user)

	// A replay needs neither the catalog nor IDs.
	rec, err := s.store.kept(ctx, r.Slot, k)
	if err != nil {
		return answer{}, err
	}
	var o Order
	if rec == nil {
		if o, err = s.draft(ctx, r, user, req); err != nil {
			return answer{}, err
		}
		if rec, err = s.write(ctx, e, k, o); err != nil {
			return answer{}, err
		}
	}
	replayed := rec != nil
	if replayed {
		if rec.Status != 0 {
			return fromRecord(*rec)
		}
		if o, err = s.undecided(ctx, r.Slot, user, rec.Ref); err != nil {
			return answer{}, err
		}
	} else {
		s.count(Pending, "")
	}
	return s.decide(ctx, e, k, o, replayed)
}

// draft asks the neighbours and makes the order in memory. No lock is held
// meanwhile.
func (s *Service) draft(ctx context.Context, r call.Route, user id.ID, req orderapi.Place) (Order, error) {
	want, fromCart, err := s.wanted(ctx, r.Slot, user, req.Items)
	if err != nil {
		return Order{}, err
	}
	list := make([]id.ID, 0, len(want))
	for sku := range want {
		list = append(list, sku)
	}
	skus, err := s.catalog.skus(ctx, list)
	if err != nil {
		return Order{}, err
	}
	o, err := price(user, want, skus)
	if err != nil {
		return o, err
	}
	o.FromCart = fromCart
	if x := req.Expected; x != nil && (x.Amount != o.Total || x.Currency != o.Currency) {
		return o, ErrPrice.Msgf("the total is %d %s now", o.Total, o.Currency)
	}
	if req.Address != nil {
		if o.Address, err = s.addresses.address(ctx, user, *req.Address); err != nil {
			return o, err
		}
	}
	return o, s.allocate(&o)
}

// wanted sums the quantities by SKU, of the request or of the cart.
func (s *Service) wanted(ctx context.Context, slot routing.Slot, user id.ID, items []orderapi.Item) (want map[id.ID]int64, fromCart bool, err error) {
	if len(items) == 0 {
		fromCart = true
		if items, err = s.store.seeCart(ctx, slot, user); err != nil {
			return nil, true, err
		}
		if len(items) == 0 {
			return nil, true, ErrCartEmpty
		}
	}
	want = make(map[id.ID]int64, len(items))
	for i, item := range items {
		if item.SKU == 0 {
			return nil, fromCart, errs.Field(fmt.Sprintf("items[%d].sku", i), "is missing")
		}
		if item.Quantity < 1 || item.Quantity > maxQuantity || want[item.SKU]+item.Quantity > maxQuantity {
			return nil, fromCart, errs.Field(fmt.Sprintf("items[%d].quantity", i), "must be a whole number from 1 to %d, summed by SKU", maxQuantity)
		}
		want[item.SKU] += item.Quantity
	}
	if len(want) > maxLines {
		return nil, fromCart, errs.Field("items", "an order has at most %d different SKUs", maxLines)
	}
	return want, fromCart, nil
}

// allocate gives the order, its holds and its payments their IDs: the order's and
// the payments' carry the buyer's slot, a hold's the seller's.
func (s *Service) allocate(o *Order) (err error) {
	if o.ID, err = s.ids.Next(idgenapi.Order, o.User.Slot()); err != nil {
		return err
	}
	hold := map[id.ID]id.ID{}
	for i := range o.Holds {
		h := &o.Holds[i]
		if h.ID, err = s.ids.Next(idgenapi.Hold, h.Seller.Slot()); err != nil {
			return err
		}
		if h.Transfer, err = s.ids.Next(idgenapi.Transfer, o.User.Slot()); err != nil {
			return err
		}
		hold[h.Seller] = h.ID
	}
	for i := range o.Lines {
		o.Lines[i].Hold = hold[o.Lines[i].Seller]
	}
	return nil
}

// write is the one transaction that places an order. It gives the record of
// another request with the key that was first.
func (s *Service) write(ctx context.Context, e pg.Entry, k pg.Key, o Order) (rec *pg.Record, err error) {
	want := make(map[id.ID]int64, len(o.Lines))
	for _, l := range o.Lines {
		want[l.SKU] = l.Quantity
	}
	err = pg.InSlot(ctx, s.store.pool, e, func(tx *pg.Tx) error {
		if rec, err = pg.Claim(ctx, tx, k); err != nil || rec != nil {
			return err
		}
		if o.FromCart {
			if err := s.store.checkout(ctx, tx, o.User, want); err != nil {
				return err
			}
		}
		if err := s.store.insert(ctx, tx, o, s.deadline); err != nil {
			return err
		}
		if err := pg.Keep(ctx, tx, k, pg.Record{Ref: o.ID.String()}); err != nil {
			return err
		}
		return s.askHolds(ctx, tx, o, inventoryapi.KindReserve)
	})
	return rec, err
}

// undecided finds the order of a record whose answer was never said.
func (s *Service) undecided(ctx context.Context, slot routing.Slot, user id.ID, ref string) (Order, error) {
	order, err := id.Parse(ref)
	if err != nil {
		return Order{}, fmt.Errorf("an idempotency record names %q, no order: %w", ref, err)
	}
	f, err := s.store.get(ctx, slot, user, order)
	return f.Order, err
}

// decide waits a bounded time for the order's decision, then stores the answer
// and says it. It doesn't wait for a seller whose cell is known to be away.
func (s *Service) decide(ctx context.Context, e pg.Entry, k pg.Key, o Order, replayed bool) (answer, error) {
	wait := s.wait
	for _, h := range o.Holds {
		if !s.reachable(h.Slot) {
			wait = 0
		}
	}
	_, err := s.waiters.Until(ctx, waitKey(o.ID), wait, func(ctx context.Context) (bool, error) {
		state, err := s.store.state(ctx, e.Slot, o.ID)
		return state != Pending, err
	})
	if err != nil {
		return answer{}, unknown(err)
	}
	f, err := s.store.get(ctx, e.Slot, o.User, o.ID)
	if err != nil {
		return answer{}, unknown(err)
	}
	rec, err := s.record(f)
	if err != nil {
		return answer{}, err
	}
	err = pg.InSlot(ctx, s.store.pool, e, func(tx *pg.Tx) error {
		rec, err = pg.Decide(ctx, tx, k.Actor, k.Route, k.Key, rec)
		return err
	})
	if err != nil {
		return answer{}, unknown(err)
	}
	a, err := fromRecord(rec)
	a.Replayed = replayed
	return a, err
}

// unknown: the order is committed, so a failure to look at it says nothing.
func unknown(err error) error {
	if errs.IsKind(err, errs.Unavailable) || errors.Is(err, context.DeadlineExceeded) {
		return errs.ErrUnknown.Because(err)
	}
	return err
}

// stored is how a refusal is kept in a record.
type stored struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"`
}

// record is the answer for an order as it stands.
func (s *Service) record(f full) (pg.Record, error) {
	rec := pg.Record{Ref: f.ID.String(), Status: http.StatusCreated, Location: "/api/v1/orders/" + s.number(f.ID)}
	done, refusal := f.decided()
	var err error
	switch {
	case refusal != nil:
		rec.Status = refusal.HTTPStatus()
		rec.Body, err = json.Marshal(stored{refusal.Code, refusal.Message, refusal.Field})
		return rec, err
	case !done:
		rec.Status = http.StatusAccepted
	}
	rec.Body, err = json.Marshal(s.view(f))
	return rec, err
}

func fromRecord(rec pg.Record) (answer, error) {
	a := answer{Status: rec.Status, Location: rec.Location, Body: rec.Body, Replayed: true}
	if rec.Status < 400 {
		return a, nil
	}
	var v stored
	if err := json.Unmarshal(rec.Body, &v); err != nil {
		return a, fmt.Errorf("a stored refusal: %w", err)
	}
	a.Refusal = &errs.Error{Kind: errs.KindOf(rec.Status), Code: v.Code, Message: v.Message, Field: v.Field}
	return a, nil
}
