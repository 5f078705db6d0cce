package inventory

import (
	"context"
	"errors"
	"time"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/inventory/inventoryapi"
)

// handlers are the requests that come by message, each in a transaction of the
// seller's slot.
func (s *Service) handlers() map[string]bus.Handler {
	return map[string]bus.Handler{
		inventoryapi.KindReserve: s.withLines(Reserve),
		inventoryapi.KindConfirm: s.withLines(Confirm),
		inventoryapi.KindRelease: s.onRelease,
	}
}

func (s *Service) withLines(e Event) bus.Handler {
	return func(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
		var body inventoryapi.Reserve
		if err := m.Decode(&body); err != nil {
			return bus.Reply{}, err
		}
		h, err := fromMessage(body)
		if err != nil {
			return bus.Reply{}, bus.Park(err)
		}
		return s.answer(ctx, tx, e, h, body.TTL)
	}
}

func (s *Service) onRelease(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
	var body inventoryapi.Release
	if err := m.Decode(&body); err != nil {
		return bus.Reply{}, err
	}
	return s.answer(ctx, tx, Release, Hold{ID: body.Hold, Order: body.Order, BuyerSlot: m.From}, 0)
}

// answer takes the event to the hold and says what became of it. A buyer's cell may
// ask for a shorter hold, never for a longer one.
func (s *Service) answer(ctx context.Context, tx *pg.Tx, e Event, h Hold, ttl time.Duration) (bus.Reply, error) {
	if ttl <= 0 || ttl > s.ttl {
		ttl = s.ttl
	}
	out, err := s.store.step(ctx, tx, e, h, ttl)
	if errors.Is(err, errOther) {
		return bus.Reply{}, bus.Park(err)
	}
	if err != nil {
		return bus.Reply{}, err
	}
	kind := reply(e, out.State)
	a := inventoryapi.Answer{Hold: h.ID, Order: h.Order, State: string(out.State), SKU: out.Short}
	if kind == inventoryapi.KindRefused || kind == inventoryapi.KindEnded {
		a.Reason = inventoryapi.ReasonEnded
		if out.Short != 0 {
			a.Reason = inventoryapi.ReasonOutOfStock
		}
	}
	// A hold expires by itself: nothing final. A refusal is final for its order.
	return bus.Reply{Kind: kind, Body: a, Early: kind == inventoryapi.KindReserved}, nil
}
