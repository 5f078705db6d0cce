// Package inventoryapi is what other services may know of inventory: the
// messages about holds, and the JSON of a seller's stock.
//
//	stock.reserve -> stock.reserved | stock.refused
//	stock.confirm -> stock.confirmed | stock.ended
//	stock.release -> stock.released
//
// All go to the seller's slot, with the hold's ID as their key, so each is
// written once per hold. Receivers take them in any order.
package inventoryapi

import (
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// Service is the name that messages are addressed to.
const Service = "inventory"

// Kinds of messages.
const (
	KindReserve   = "stock.reserve"
	KindReserved  = "stock.reserved"
	KindRefused   = "stock.refused"
	KindConfirm   = "stock.confirm"
	KindConfirmed = "stock.confirmed"
	KindEnded     = "stock.ended"
	KindRelease   = "stock.release"
	KindReleased  = "stock.released"
)

// Why a hold was refused.
const (
	ReasonOutOfStock = "OUT_OF_STOCK" // not enough is free, or was never stocked
	ReasonEnded      = "ENDED"        // the hold was released or has expired before
)

// Line is a number of units of one SKU. A hold names each SKU once.
type Line struct {
	SKU      id.ID `json:"sku"`
	Quantity int64 `json:"quantity"`
}

// Reserve asks for a hold: all lines or none. It is the body of stock.confirm
// too: the confirm of a hold that nobody knows reserves again.
type Reserve struct {
	Hold      id.ID         `json:"hold_id"`
	Order     id.ID         `json:"order_id"`
	BuyerSlot routing.Slot  `json:"buyer_slot"`
	Seller    id.ID         `json:"seller_id"`
	Lines     []Line        `json:"lines"`
	TTL       time.Duration `json:"ttl_ns,omitempty"` // at most the seller's own; 0 = that
}

// Release gives a hold back, whatever became of it.
type Release struct {
	Hold  id.ID `json:"hold_id"`
	Order id.ID `json:"order_id"`
}

// Answer is the body of every reply.
type Answer struct {
	Hold   id.ID  `json:"hold_id"`
	Order  id.ID  `json:"order_id"`
	State  string `json:"state"`            // the hold's, "" when there is none
	Reason string `json:"reason,omitempty"` // refused, ended
	SKU    id.ID  `json:"sku,omitempty"`    // the first that was short
}

// Levels of a shelf.
const (
	LevelOut    = "out"
	LevelFew    = "few" // at most Few
	LevelPlenty = "plenty"
)

// Few is up to how many units everybody may see the number.
const Few = 5

// ShelfItem says about how much of a SKU is left, to everybody.
type ShelfItem struct {
	SKU   id.ID  `json:"sku"`
	Level string `json:"level"`
	Left  int64  `json:"left,omitempty"` // of few
}

// Shelf is what GET /api/v1/products/{id}/stock answers: what was ever stocked.
type Shelf struct {
	Items []ShelfItem `json:"items"`
	AsOf  time.Time   `json:"as_of"`
}

// Stock is one SKU as its seller sees it: stocked = free + held + sold.
type Stock struct {
	SKU       id.ID     `json:"sku"`
	Stocked   int64     `json:"stocked"`
	Free      int64     `json:"free"`
	Held      int64     `json:"held"`
	Sold      int64     `json:"sold"`
	CreatedAt time.Time `json:"created_at"`
}

// StockList is a page of GET /api/v1/seller/stock.
type StockList struct {
	Items      []Stock `json:"items"`
	NextCursor string  `json:"next_cursor,omitempty"`
}

// Add is the body of PUT /api/v1/seller/stock/{sku}.
type Add struct {
	Add int64 `json:"add"` // units that arrived, 1 to 1,000,000
}
