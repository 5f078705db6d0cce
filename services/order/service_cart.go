package order

import (
	"context"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/order/orderapi"
)

// showCart lists a cart with today's prices. Without the catalog the items are
// still shown, without prices.
func (s *Service) showCart(ctx context.Context, r call.Route, user id.ID) (orderapi.Cart, error) {
	items, err := s.store.seeCart(ctx, r.Slot, user)
	if err != nil {
		return orderapi.Cart{}, err
	}
	cart := orderapi.Cart{Items: make([]orderapi.CartItem, len(items))}
	if len(items) == 0 {
		return cart, nil
	}
	list := make([]id.ID, len(items))
	for i, item := range items {
		list[i] = item.SKU
		cart.Items[i] = orderapi.CartItem{SKU: item.SKU, Quantity: item.Quantity}
	}
	skus, err := s.catalog.skus(ctx, list)
	if err != nil {
		s.log.Warn("a cart is shown without prices", "error", err)
		return cart, nil
	}
	known := make(map[id.ID]SKU, len(skus))
	for _, v := range skus {
		known[v.SKU] = v
	}
	total, whole := orderapi.Money{}, true
	for i := range cart.Items {
		item := &cart.Items[i]
		v, ok := known[item.SKU]
		if !ok {
			whole = false
			continue
		}
		item.Product, item.Seller, item.Title, item.Available = v.Product, v.Seller, v.Title, v.Active
		item.Price = &orderapi.Money{Amount: v.Price, Currency: v.Currency}
		whole = whole && v.Active && (total.Currency == "" || total.Currency == v.Currency)
		total.Currency = v.Currency
		total.Amount += v.Price * item.Quantity
	}
	if whole {
		cart.Total = &total
	}
	return cart, nil
}

// putInCart sets an item's quantity. Only what is for sale gets in.
func (s *Service) putInCart(ctx context.Context, r call.Route, user, sku id.ID, quantity int64) error {
	if quantity < 1 || quantity > maxQuantity {
		return errs.Field("quantity", "must be a whole number from 1 to %d", maxQuantity)
	}
	skus, err := s.catalog.skus(ctx, []id.ID{sku})
	if err != nil {
		return err
	}
	if len(skus) != 1 || !skus[0].Active {
		e := *ErrUnknownSKU
		e.Kind, e.Field = errs.NotFound, "sku"
		return &e
	}
	return s.store.putItem(ctx, entry(r, user), sku, quantity)
}

// view is an order as its buyer sees it.
func (s *Service) view(f full) orderapi.Order {
	money := func(amount int64) orderapi.Money { return orderapi.Money{Amount: amount, Currency: f.Currency} }
	out := orderapi.Order{Summary: s.summary(f.Order, len(f.Lines)), Address: f.Address, Timeline: f.Timeline}
	for _, l := range f.Lines {
		out.Lines = append(out.Lines, orderapi.Line{
			SKU: l.SKU, Product: l.Product, Seller: l.Seller, Title: l.Title,
			Price: money(l.Price), Quantity: l.Quantity, Amount: money(l.Price * l.Quantity),
		})
	}
	for _, h := range f.Holds {
		p := orderapi.Part{Seller: h.Seller, State: string(h.State), Amount: money(h.Amount)}
		if state, ok := f.Transfers[h.Transfer]; ok {
			p.Transfer, p.TransferState = h.Transfer, state
		}
		out.Parts = append(out.Parts, p)
	}
	return out
}

func (s *Service) summary(o Order, lines int) orderapi.Summary {
	return orderapi.Summary{
		Number: s.number(o.ID), State: string(o.State), Reason: o.Reason, Payment: o.Payment, Fulfilment: o.Fulfilment,
		Total: orderapi.Money{Amount: o.Total, Currency: o.Currency}, CreatedAt: o.CreatedAt, UpdatedAt: o.UpdatedAt, LinesNumber: lines,
	}
}
