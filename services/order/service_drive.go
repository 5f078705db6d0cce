package order

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/services/inventory/inventoryapi"
	"example.com/cellmart/services/order/orderapi"
)

// moneyRef names an order's postings.
func moneyRef(order id.ID) string { return "order:" + order.String() }

// apply takes an event to an order that is locked, in one transaction with
// everything that follows from it.
func (s *Service) apply(ctx context.Context, tx *pg.Tx, was Order, e Event) (Order, error) {
	o, effect, err := was.Next(e)
	if err != nil {
		return was, err
	}
	events := happenings(was, o, e)
	if effect == Freeze {
		next := Event{Kind: EvFrozen}
		err := s.post(ctx, tx, o, transfer.Available, transfer.InFreeze, "freeze")
		if errors.Is(err, transfer.ErrInsufficientFunds) {
			next.Kind = EvDeclined
		} else if err != nil {
			return was, err
		}
		held := o
		if o, effect, err = held.Next(next); err != nil {
			return was, err
		}
		events = append(events, happenings(held, o, next)...)
	}
	if len(events) == 0 && effect == Nothing { // it came late: the row stays as it is
		return o, nil
	}
	if err := s.perform(ctx, tx, o, effect); err != nil {
		return was, err
	}
	if o.State == Reserved && was.State == Pending && o.FromCart {
		if err := s.store.takeFromCart(ctx, tx, o); err != nil {
			return was, err
		}
	}
	if err := s.store.save(ctx, tx, was, o, events); err != nil {
		return was, err
	}
	if o.State != was.State {
		tx.AfterCommit(func() {
			s.waiters.Wake(waitKey(o.ID))
			s.count(o.State, o.Reason)
		})
	}
	return o, nil
}

// perform does what the state machine asks for.
func (s *Service) perform(ctx context.Context, tx *pg.Tx, o Order, effect Effect) error {
	switch effect {
	case Confirm:
		return s.askHolds(ctx, tx, o, inventoryapi.KindConfirm)
	case Release:
		return s.releaseHolds(ctx, tx, o)
	case UnfreezeAndRelease:
		if err := s.post(ctx, tx, o, transfer.InFreeze, transfer.Available, "unfreeze"); err != nil {
			return err
		}
		return s.releaseHolds(ctx, tx, o)
	case Pay:
		return s.pay(ctx, tx, o)
	}
	return nil
}

// post moves an order's total between two accounts of its buyer. An order for
// nothing moves nothing.
func (s *Service) post(ctx context.Context, tx *pg.Tx, o Order, from, to transfer.Account, step string) error {
	if o.Total == 0 {
		return nil
	}
	return transfer.Post(ctx, tx, transfer.Posting{
		User: o.User, Currency: o.Currency, Debit: from, Credit: to, Amount: o.Total, Ref: moneyRef(o.ID), Step: step, Memo: s.number(o.ID),
	})
}

// pay starts the sellers' payments out of what is frozen. None of them is ever
// refused or cancelled.
func (s *Service) pay(ctx context.Context, tx *pg.Tx, o Order) error {
	for _, h := range o.Holds {
		if h.Amount == 0 {
			continue
		}
		err := transfer.Start(ctx, tx, transfer.Order{
			ID: h.Transfer, Kind: transfer.Sales, From: o.User, To: h.Seller, ToSlot: h.Slot, Amount: h.Amount,
			Currency: o.Currency, Memo: s.number(o.ID), OrderID: o.ID, Frozen: true,
		})
		if err != nil {
			return fmt.Errorf("payment %d of order %d: %w", h.Transfer, o.ID, err)
		}
	}
	tx.AfterCommit(s.poke)
	return nil
}

// happenings says for the timeline what an event did.
func happenings(was, o Order, e Event) []orderapi.Happening {
	var out []orderapi.Happening
	switch e.Kind {
	case EvReserved, EvRefused, EvConfirmed, EvEnded, EvReleased:
		for i, h := range o.Holds {
			if h.ID == e.Hold && h.State != was.Holds[i].State {
				detail := "seller " + h.Seller.String()
				if e.SKU != 0 {
					detail += ", SKU " + e.SKU.String()
				}
				out = append(out, orderapi.Happening{Event: string(e.Kind), Detail: detail})
			}
		}
	case EvDeclined:
		out = append(out, orderapi.Happening{Event: string(e.Kind)})
	}
	if o.State != was.State {
		out = append(out, orderapi.Happening{Event: string(o.State), Detail: o.Reason})
	}
	return out
}

// cancel is the buyer's: before the order is paid. An order that is cancelled
// already stays so.
func (s *Service) cancel(ctx context.Context, r call.Route, user, order id.ID) (full, error) {
	err := pg.InSlot(ctx, s.store.pool, entry(r, user), func(tx *pg.Tx) error {
		o, err := s.store.lock(ctx, tx, order)
		if notFound(err) || err == nil && o.User != user {
			return errs.ErrNotFound
		}
		if err != nil {
			return err
		}
		_, err = s.apply(ctx, tx, o, Event{Kind: EvCancel})
		return err
	})
	if err != nil {
		return full{}, err
	}
	return s.store.get(ctx, r.Slot, user, order)
}

// timeOut cancels PENDING orders past their deadline, and gives how many; one that
// fails is left for the next time and holds up no other. Until the deadline
// nothing has to resume an order: its open requests are sent again by the
// dispatcher for as long as they have no reply.
func (s *Service) timeOut(ctx context.Context) (_ int, last error) {
	list, err := s.store.overdue(ctx, 100)
	if err != nil {
		return 0, err
	}
	n, failed := 0, 0
	for _, d := range list {
		err := pg.InSlot(ctx, s.store.pool, d.Entry, func(tx *pg.Tx) error {
			o, err := s.store.lock(ctx, tx, d.Order)
			if err != nil {
				return err
			}
			still, err := s.store.isOverdue(ctx, tx, d.Order)
			if err != nil || !still {
				return err
			}
			_, err = s.apply(ctx, tx, o, Event{Kind: EvDeadline})
			return err
		})
		if err != nil {
			failed++
			last = fmt.Errorf("order %d, one of %d: %w", d.Order, failed, err)
			continue
		}
		n++
	}
	return n, last
}

// sweep runs timeOut until ctx ends.
func (s *Service) sweep(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if n, err := s.timeOut(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("overdue orders wait", "ended", n, "error", err)
		} else if n > 0 {
			s.log.Info("overdue orders cancelled", "n", n)
		}
	}
}
