package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/inventory/inventoryapi"
)

// State of a hold. Confirmed may still be released; the two ends are for ever.
type State string

// The states. Unknown is a hold without a row.
const (
	Unknown   State = ""
	Held      State = "HELD"
	Confirmed State = "CONFIRMED"
	Released  State = "RELEASED"
	Expired   State = "EXPIRED"
)

// Event is what can happen to a hold.
type Event string

// The events: three messages, and the owner's clock.
const (
	Reserve Event = "RESERVE"
	Confirm Event = "CONFIRM"
	Release Event = "RELEASE"
	Expire  Event = "EXPIRE"
)

// Move is what happens to the units of each line of a hold.
type Move uint8

// The moves between free, held and sold. Stay moves nothing.
const (
	Stay Move = iota
	FreeToHeld
	FreeToSold
	HeldToSold
	HeldToFree
	SoldToFree
)

// Step is the answer of the state machine: where the hold goes, what its units
// do, and where it goes instead when too few are free.
type Step struct {
	Next  State
	Move  Move
	Short State
}

// Next is the whole state machine.
//
//   - A Release that comes first leaves a tombstone, so a late Reserve finds the
//     hold ended.
//   - A Confirm that comes first (the hold was lost with its cell) sells from what
//     is free, or ends the hold for good.
//   - A Confirm decides by the stored state only: a hold past its time that the
//     sweeper hasn't ended yet is as good as any.
//   - A Release of a confirmed hold puts the units back. Its order sends one only
//     while it isn't paid.
func Next(s State, e Event) Step {
	switch {
	case s == Unknown && e == Reserve:
		return Step{Next: Held, Move: FreeToHeld, Short: Unknown}
	case s == Unknown && e == Confirm:
		return Step{Next: Confirmed, Move: FreeToSold, Short: Released}
	case s == Unknown && e == Release:
		return Step{Next: Released}
	case s == Held && e == Confirm:
		return Step{Next: Confirmed, Move: HeldToSold}
	case s == Held && e == Release:
		return Step{Next: Released, Move: HeldToFree}
	case s == Held && e == Expire:
		return Step{Next: Expired, Move: HeldToFree}
	case s == Confirmed && e == Release:
		return Step{Next: Released, Move: SoldToFree}
	}
	return Step{Next: s}
}

// reply is the kind of message that answers an event that left the hold in s.
func reply(e Event, s State) string {
	switch {
	case e == Reserve && (s == Held || s == Confirmed):
		return inventoryapi.KindReserved
	case e == Reserve:
		return inventoryapi.KindRefused
	case e == Confirm && s == Confirmed:
		return inventoryapi.KindConfirmed
	case e == Confirm:
		return inventoryapi.KindEnded
	}
	return inventoryapi.KindReleased
}

// Stock is the counters of one SKU.
type Stock struct {
	SKU                       id.ID
	Seller                    id.ID
	Stocked, Free, Held, Sold int64
}

// Apply moves q units; false when there are too few, and nothing has changed.
func (s Stock) Apply(m Move, q int64) (Stock, bool) {
	switch m {
	case FreeToHeld:
		s.Free, s.Held = s.Free-q, s.Held+q
	case FreeToSold:
		s.Free, s.Sold = s.Free-q, s.Sold+q
	case HeldToSold:
		s.Held, s.Sold = s.Held-q, s.Sold+q
	case HeldToFree:
		s.Held, s.Free = s.Held-q, s.Free+q
	case SoldToFree:
		s.Sold, s.Free = s.Sold-q, s.Free+q
	}
	return s, s.Free >= 0 && s.Held >= 0 && s.Sold >= 0
}

// Hold is the units that one order holds at one seller.
type Hold struct {
	ID        id.ID
	Order     id.ID
	BuyerSlot routing.Slot
	Seller    id.ID
	State     State
	Lines     []inventoryapi.Line // by SKU; none on a tombstone
}

// Limits of what is accepted.
const (
	MaxLines = 50
	maxAdd   = 1_000_000
	maxStock = 1_000_000_000
)

// fromMessage checks a message's hold and puts its lines into key order.
func fromMessage(r inventoryapi.Reserve) (Hold, error) {
	h := Hold{ID: r.Hold, Order: r.Order, BuyerSlot: r.BuyerSlot, Seller: r.Seller, Lines: slices.Clone(r.Lines)}
	if h.ID == 0 || h.Order == 0 || len(h.Lines) == 0 || len(h.Lines) > MaxLines {
		return h, fmt.Errorf("hold %d of order %d has %d lines", r.Hold, r.Order, len(r.Lines))
	}
	slices.SortFunc(h.Lines, func(a, b inventoryapi.Line) int { return cmp.Compare(a.SKU, b.SKU) })
	for i, l := range h.Lines {
		if l.SKU == 0 || l.Quantity < 1 || l.Quantity > maxStock || i > 0 && h.Lines[i-1].SKU == l.SKU {
			return h, fmt.Errorf("hold %d has a bad line: %d of SKU %d", r.Hold, l.Quantity, l.SKU)
		}
	}
	return h, nil
}

// errOther: the ID is known with other contents. Nobody can handle that message.
var errOther = errors.New("the same hold with other contents")

// same says whether a message speaks of the hold that is stored. A Release has no
// lines, and neither has a tombstone.
func (h Hold) same(m Hold) bool {
	return h.Order == m.Order && (len(h.Lines) == 0 || len(m.Lines) == 0 || slices.Equal(h.Lines, m.Lines))
}

// What the HTTP side refuses.
var (
	ErrUnknownSKU = errs.New(errs.NotFound, "UNKNOWN_SKU", "there is no such SKU").At("sku")
	ErrStockLimit = errs.New(errs.Unprocessable, "STOCK_LIMIT", "one SKU can't have more than 1,000,000,000 units")
)
