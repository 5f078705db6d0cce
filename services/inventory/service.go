package inventory

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/inventory/inventoryapi"
)

// sellers says who sells a SKU, by the cell's copy of the catalog: false when the
// copy doesn't have it.
type sellers interface {
	seller(ctx context.Context, sku id.ID) (id.ID, bool, error)
}

// Service is the use cases of stock.
type Service struct {
	store   store
	sellers sellers       // nil: whoever adds first is the seller
	ttl     time.Duration // of a hold
	newWait time.Duration // for a new SKU to arrive in the cell's copy
	log     *slog.Logger
}

// entry is what a request writes to.
func entry(r call.Route, actor id.ID) pg.Entry {
	return pg.Entry{Slot: r.Slot, Epoch: r.Epoch, User: actor}
}

const addRoute = "PUT /seller/stock/{sku}"

// addStock adds units of a SKU, once per key. replayed says that the answer was
// given before.
func (s *Service) addStock(ctx context.Context, r call.Route, actor, sku id.ID, key string, n int64) (v inventoryapi.Stock, replayed bool, err error) {
	if sku.Slot() != actor.Slot() { // R1: a SKU lives where its seller lives
		return v, false, ErrUnknownSKU
	}
	if n < 1 || n > maxAdd {
		return v, false, errs.Field("add", "must be a whole number from 1 to %d", maxAdd)
	}
	if err := s.mayStock(ctx, r, actor, sku); err != nil {
		return v, false, err
	}
	hash := sha256.Sum256(fmt.Appendf(nil, "%d %d", sku, n))
	k := pg.Key{Actor: actor, Route: addRoute, Key: key, Hash: hash[:]}
	err = pg.InSlot(ctx, s.store.pool, entry(r, actor), func(tx *pg.Tx) error {
		kept, err := pg.Claim(ctx, tx, k)
		if err != nil {
			return err
		}
		if kept != nil {
			replayed = true
			return json.Unmarshal(kept.Body, &v)
		}
		if v, err = s.store.add(ctx, tx, actor, sku, n); err != nil {
			return err
		}
		body, err := json.Marshal(v)
		if err != nil {
			return err
		}
		return pg.Keep(ctx, tx, k, pg.Record{Ref: sku.String(), Status: http.StatusOK, Body: body})
	})
	return v, replayed, err
}

// mayStock refuses SKUs of others. A SKU without stock yet is asked for in the
// catalog, where it may be so new that the cell's copy doesn't have it: that is
// waited for a moment.
func (s *Service) mayStock(ctx context.Context, r call.Route, actor, sku id.ID) error {
	seller, ok, err := s.store.known(ctx, r.Slot, sku)
	if err != nil {
		return err
	}
	if !ok {
		if s.sellers == nil {
			return nil
		}
		if seller, ok, err = s.waitSeller(ctx, sku); err != nil {
			return err
		}
	}
	if !ok || seller != actor {
		return ErrUnknownSKU
	}
	return nil
}

func (s *Service) waitSeller(ctx context.Context, sku id.ID) (id.ID, bool, error) {
	end := time.NewTimer(s.newWait)
	defer end.Stop()
	for {
		seller, ok, err := s.sellers.seller(ctx, sku)
		if ok || err != nil {
			return seller, ok, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-end.C:
			return 0, false, nil
		case <-ctx.Done():
			return 0, false, ctx.Err()
		}
	}
}

// expire ends the holds that are past their time, and gives how many there were.
// One that fails is left for the next round, and holds up no other.
func (s *Service) expire(ctx context.Context) (_ int, last error) {
	list, err := s.store.dueHolds(ctx, 100)
	if err != nil {
		return 0, err
	}
	n, failed := 0, 0
	for _, d := range list {
		err := pg.InSlot(ctx, s.store.pool, d.Entry, func(tx *pg.Tx) error {
			ok, err := s.store.stillDue(ctx, tx, d.Hold)
			if err != nil || !ok {
				return err
			}
			_, err = s.store.step(ctx, tx, Expire, Hold{ID: d.Hold, Order: d.Order}, 0)
			return err
		})
		if err != nil {
			failed++
			last = fmt.Errorf("hold %d, one of %d: %w", d.Hold, failed, err)
			continue
		}
		n++
	}
	return n, last
}

// sweep runs expire until ctx ends.
func (s *Service) sweep(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if n, err := s.expire(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("holds past their time wait", "ended", n, "error", err)
		} else if n > 0 {
			s.log.Info("holds expired", "n", n)
		}
	}
}
