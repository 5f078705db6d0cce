package order

import (
	"context"
	"fmt"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/inventory/inventoryapi"
	"example.com/cellmart/services/order/orderapi"
)

// replies are the answers of the sellers' homes, each in a transaction of the
// buyer's slot. All of them are final.
func (s *Service) replies() map[string]bus.ReplyHandler {
	return map[string]bus.ReplyHandler{
		inventoryapi.KindReserved:  s.on(EvReserved),
		inventoryapi.KindRefused:   s.on(EvRefused),
		inventoryapi.KindConfirmed: s.on(EvConfirmed),
		inventoryapi.KindEnded:     s.on(EvEnded),
		inventoryapi.KindReleased:  s.on(EvReleased),
	}
}

func (s *Service) on(kind EventKind) bus.ReplyHandler {
	return func(ctx context.Context, tx *pg.Tx, m bus.Message) (bool, error) {
		var body inventoryapi.Answer
		if err := m.Decode(&body); err != nil {
			return false, err
		}
		o, err := s.store.lock(ctx, tx, body.Order)
		if notFound(err) {
			return false, bus.Park(fmt.Errorf("%s: no order %d in slot %d", m.ID, body.Order, tx.Slot))
		}
		if err != nil {
			return false, err
		}
		_, err = s.apply(ctx, tx, o, Event{Kind: kind, Hold: body.Hold, Reason: body.Reason, SKU: body.SKU})
		if errs.IsKind(err, errs.Internal) && errs.From(err).Code == errImpossible.Code {
			return false, bus.Park(err)
		}
		return err == nil, err
	}
}

// askHolds sends RESERVE or CONFIRM to every seller's home.
func (s *Service) askHolds(ctx context.Context, tx *pg.Tx, o Order, kind string) error {
	for _, h := range o.Holds {
		body := inventoryapi.Reserve{
			Hold: h.ID, Order: o.ID, BuyerSlot: tx.Slot, Seller: h.Seller, Lines: o.linesOf(h.Seller), TTL: s.holdTTL,
		}
		if err := s.send(ctx, tx, kind, h, body, kind == inventoryapi.KindReserve); err != nil {
			return err
		}
	}
	return nil
}

// releaseHolds sends RELEASE for every hold that isn't over at its home. One that
// was never asked for, or is confirmed, is released all the same. A RELEASE waits for
// this slot's standby like anything final: were the cancelled order lost with its
// cell, the new owner could take it on to PAID, and the RELEASE would then undo a
// CONFIRM.
func (s *Service) releaseHolds(ctx context.Context, tx *pg.Tx, o Order) error {
	for _, h := range o.Holds {
		if h.State == HoldRefused || h.State == HoldGone {
			continue
		}
		if err := s.send(ctx, tx, inventoryapi.KindRelease, h, inventoryapi.Release{Hold: h.ID, Order: o.ID}, false); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) send(ctx context.Context, tx *pg.Tx, kind string, h Hold, body any, early bool) error {
	tx.AfterCommit(s.poke)
	return bus.Send(ctx, tx, bus.Request{
		Service: inventoryapi.Service, Kind: kind, Key: bus.IDKey(h.ID), To: h.Slot, Body: body, ReplyService: orderapi.Service,
		Trace: call.RequestID(ctx), Early: early,
	})
}
