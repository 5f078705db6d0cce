package order

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/inventory/inventoryapi"
)

// State of an order. From Paid on nothing here cancels it; Shipped, Completed and
// Refunded are reached by later parts of the system and closed to every event here.
type State string

// The states.
const (
	Pending   State = "PENDING"
	Reserved  State = "RESERVED"
	Paid      State = "PAID"
	Shipped   State = "SHIPPED"
	Completed State = "COMPLETED"
	Cancelled State = "CANCELLED"
	Refunded  State = "REFUNDED"
)

// HoldState is a seller's hold as the order knows it.
type HoldState string

// The hold's states. Refused and Gone are ends at the seller: nothing is released.
const (
	Asked         HoldState = "ASKED"
	HoldReserved  HoldState = "RESERVED"
	HoldRefused   HoldState = "REFUSED"
	HoldConfirmed HoldState = "CONFIRMED"
	HoldGone      HoldState = "ENDED"
	HoldReleased  HoldState = "RELEASED"
)

// Payment and fulfilment are told apart from the state.
const (
	PaymentNone     = "NONE"
	PaymentFrozen   = "FROZEN"
	PaymentPaid     = "PAID"
	PaymentReturned = "RETURNED"

	FulfilmentWaiting   = "WAITING"
	FulfilmentToShip    = "TO_SHIP"
	FulfilmentCancelled = "CANCELLED"
)

// Why an order was cancelled.
const (
	ReasonOutOfStock = "OUT_OF_STOCK"
	ReasonFunds      = "INSUFFICIENT_FUNDS"
	ReasonHoldEnded  = "HOLD_ENDED" // a seller's hold was over before it was confirmed
	ReasonUser       = "CANCELLED_BY_USER"
	ReasonDeadline   = "TIMED_OUT" // a seller's cell didn't answer in time
)

// EventKind is what can happen to an order.
type EventKind string

// The events: the sellers' answers, what the wallet says, the user, the clock.
const (
	EvReserved  EventKind = "hold_reserved"
	EvRefused   EventKind = "hold_refused"
	EvConfirmed EventKind = "hold_confirmed"
	EvEnded     EventKind = "hold_ended"
	EvReleased  EventKind = "hold_released"
	EvFrozen    EventKind = "money_frozen"
	EvDeclined  EventKind = "money_declined"
	EvCancel    EventKind = "cancel"
	EvDeadline  EventKind = "deadline"
)

// Event is one of them; Hold is set for the sellers' answers.
type Event struct {
	Kind   EventKind
	Hold   id.ID
	Reason string // EvRefused: what the seller's home says
	SKU    id.ID  // EvRefused, EvEnded: which SKU was short, if one was
}

func (e Event) aboutHold() bool {
	switch e.Kind {
	case EvReserved, EvRefused, EvConfirmed, EvEnded, EvReleased:
		return true
	}
	return false
}

// Effect is what the same transaction has to do.
type Effect uint8

// The effects; Freeze is followed by EvFrozen or EvDeclined in the same
// transaction.
const (
	Nothing Effect = iota
	Freeze
	Confirm            // ask every hold's home to confirm
	Release            // release every hold that isn't over
	UnfreezeAndRelease // and give the money back
	Pay                // start the sellers' payments
)

// Line is one SKU of an order, with price and title as they were.
type Line struct {
	SKU, Product, Seller, Hold id.ID
	SellerSlot                 routing.Slot
	Title                      string
	Price, Quantity            int64
}

// Hold is one seller's part of an order.
type Hold struct {
	ID, Seller, Transfer id.ID
	Slot                 routing.Slot // where its messages go
	State                HoldState
	Amount               int64
}

// Order is an order in its buyer's slot.
type Order struct {
	ID, User            id.ID
	State               State
	Reason              string
	Payment, Fulfilment string
	Currency            string
	Total               int64
	Address             json.RawMessage
	FromCart            bool
	Deadline            time.Time
	CreatedAt           time.Time
	UpdatedAt           time.Time
	Events              int
	Lines               []Line // by SKU
	Holds               []Hold // by seller
}

// Refusals.
var (
	ErrNotCancellable = errs.New(errs.Conflict, "ORDER_NOT_CANCELLABLE", "the order is paid, it can't be cancelled any more")
	ErrOutOfStock     = errs.New(errs.Unprocessable, ReasonOutOfStock, "not enough is in stock")
	ErrFunds          = errs.New(errs.Unprocessable, ReasonFunds, "there is not enough money in the wallet")
	ErrCancelled      = errs.New(errs.Unprocessable, "ORDER_CANCELLED", "the order was cancelled")
	// errImpossible is an answer to a question that was never asked.
	errImpossible = errs.New(errs.Internal, "ORDER_EVENT", "this can't happen to the order")
)

// Next is the whole state machine: the order after an event, and what to do.
//
//   - All sellers have reserved: Freeze. Only then, EvFrozen sends the CONFIRMs.
//   - All sellers have confirmed, and only then: Paid.
//   - Any refusal, any ended hold, the user, the clock: everything is given back.
//     A CONFIRM may be out then; the RELEASE makes it undone, whichever comes first.
//   - Cancelled is for ever: of what comes late only releases are noted.
func (o Order) Next(e Event) (Order, Effect, error) {
	o.Holds = slices.Clone(o.Holds)
	i := -1
	if e.aboutHold() {
		if i = slices.IndexFunc(o.Holds, func(h Hold) bool { return h.ID == e.Hold }); i < 0 {
			return o, Nothing, errImpossible.Because(fmt.Errorf("hold %d is not of order %d", e.Hold, o.ID))
		}
	}
	switch o.State {
	case Pending:
		return o.nextPending(e, i)
	case Reserved:
		return o.nextReserved(e, i)
	case Cancelled:
		if e.Kind == EvReleased {
			o.Holds[i].State = HoldReleased
		}
		return o, Nothing, nil
	}
	if e.Kind == EvCancel {
		return o, Nothing, ErrNotCancellable
	}
	return o, Nothing, nil
}

func (o Order) nextPending(e Event, i int) (Order, Effect, error) {
	switch e.Kind {
	case EvReserved:
		o.Holds[i].State = HoldReserved
		if o.all(HoldReserved) {
			return o, Freeze, nil
		}
		return o, Nothing, nil
	case EvRefused:
		o.Holds[i].State = HoldRefused
		if e.Reason == inventoryapi.ReasonOutOfStock {
			return o.cancel(ReasonOutOfStock), Release, nil
		}
		return o.cancel(ReasonHoldEnded), Release, nil
	case EvFrozen:
		if !o.all(HoldReserved) {
			break
		}
		o.State, o.Payment = Reserved, PaymentFrozen
		return o, Confirm, nil
	case EvDeclined:
		return o.cancel(ReasonFunds), Release, nil
	case EvCancel:
		return o.cancel(ReasonUser), Release, nil
	case EvDeadline:
		return o.cancel(ReasonDeadline), Release, nil
	}
	return o, Nothing, errImpossible.Because(fmt.Errorf("%s in PENDING", e.Kind))
}

func (o Order) nextReserved(e Event, i int) (Order, Effect, error) {
	switch e.Kind {
	case EvConfirmed:
		o.Holds[i].State = HoldConfirmed
		if o.all(HoldConfirmed) {
			o.State, o.Payment, o.Fulfilment = Paid, PaymentPaid, FulfilmentToShip
			return o, Pay, nil
		}
		return o, Nothing, nil
	case EvEnded:
		o.Holds[i].State = HoldGone
		return o.cancel(ReasonHoldEnded), UnfreezeAndRelease, nil
	case EvCancel:
		return o.cancel(ReasonUser), UnfreezeAndRelease, nil
	case EvReserved, EvFrozen, EvDeadline: // late: it was in time
		return o, Nothing, nil
	}
	return o, Nothing, errImpossible.Because(fmt.Errorf("%s in RESERVED", e.Kind))
}

func (o Order) all(s HoldState) bool {
	return !slices.ContainsFunc(o.Holds, func(h Hold) bool { return h.State != s })
}

func (o Order) cancel(reason string) Order {
	o.State, o.Reason, o.Fulfilment = Cancelled, reason, FulfilmentCancelled
	if o.Payment == PaymentFrozen {
		o.Payment = PaymentReturned
	}
	return o
}

// decided says whether the buyer can be told, and what: nil for a success.
func (o Order) decided() (bool, *errs.Error) {
	if o.State != Cancelled {
		return o.State != Pending, nil
	}
	switch o.Reason {
	case ReasonOutOfStock:
		return true, ErrOutOfStock
	case ReasonFunds:
		return true, ErrFunds
	}
	return true, ErrCancelled.Msgf("the order was cancelled: %s", o.Reason)
}

// Limits of an order.
const (
	maxQuantity = 99
	maxLines    = 50
	maxTotal    = 1_000_000_000_000
)

// SKU is what the catalog says of one.
type SKU struct {
	SKU, Product, Seller id.ID
	SellerSlot           routing.Slot
	Title                string
	Price                int64
	Currency             string
	Active               bool
}

// Refusals of what is to be ordered.
var (
	ErrUnknownSKU = errs.New(errs.Unprocessable, "UNKNOWN_SKU", "there is no such SKU for sale")
	ErrOwn        = errs.New(errs.Unprocessable, "OWN_PRODUCT", "nobody buys from themselves")
	ErrCurrencies = errs.New(errs.Unprocessable, "MIXED_CURRENCIES", "one order has one currency")
	ErrTotal      = errs.New(errs.Unprocessable, "TOTAL_TOO_LARGE", "an order's total is at most 1000000000000 minor units")
	ErrPrice      = errs.New(errs.Conflict, "PRICE_CHANGED", "the prices have changed").At("expected_total")
	ErrCartEmpty  = errs.New(errs.Unprocessable, "CART_EMPTY", "the cart is empty").At("items")
)

// price makes the lines and the sellers' parts of a new order from quantities by
// SKU and the catalog's answer. Lines are in the order of their SKUs, which is
// the order in which stock is locked; IDs of holds are left to be filled in.
func price(buyer id.ID, want map[id.ID]int64, skus []SKU) (o Order, err error) {
	known := make(map[id.ID]SKU, len(skus))
	for _, s := range skus {
		if s.Active {
			known[s.SKU] = s
		}
	}
	parts := map[id.ID]*Hold{}
	for _, sku := range slices.Sorted(maps.Keys(want)) {
		quantity := want[sku]
		s, ok := known[sku]
		switch {
		case !ok:
			return o, ErrUnknownSKU.At("items").Msgf("there is no SKU %d for sale", sku)
		case s.Seller == buyer:
			return o, ErrOwn
		case o.Currency != "" && o.Currency != s.Currency:
			return o, ErrCurrencies
		case s.Price < 0 || s.Price > maxTotal || o.Total+s.Price*quantity > maxTotal: // quantity <= 99: no overflow
			return o, ErrTotal
		}
		o.Currency = s.Currency
		o.Total += s.Price * quantity
		o.Lines = append(o.Lines, Line{
			SKU: sku, Product: s.Product, Seller: s.Seller, SellerSlot: s.SellerSlot,
			Title: s.Title, Price: s.Price, Quantity: quantity,
		})
		if parts[s.Seller] == nil {
			parts[s.Seller] = &Hold{Seller: s.Seller, Slot: s.SellerSlot, State: Asked}
		}
		parts[s.Seller].Amount += s.Price * quantity
	}
	for _, h := range parts {
		o.Holds = append(o.Holds, *h)
	}
	slices.SortFunc(o.Holds, func(a, b Hold) int { return cmp.Compare(a.Seller, b.Seller) })
	o.User, o.State, o.Payment, o.Fulfilment = buyer, Pending, PaymentNone, FulfilmentWaiting
	return o, nil
}

// linesOf is what a hold's home is asked for.
func (o Order) linesOf(seller id.ID) (out []inventoryapi.Line) {
	for _, l := range o.Lines {
		if l.Seller == seller {
			out = append(out, inventoryapi.Line{SKU: l.SKU, Quantity: l.Quantity})
		}
	}
	return out
}
