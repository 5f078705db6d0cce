// Package orderapi is what others may know of order: the JSON of carts and
// orders under /api/v1.
package orderapi

import (
	"encoding/json"
	"time"

	"example.com/cellmart/platform/cellkit/id"
)

// Service is the name that replies are addressed to.
const Service = "order"

// Money is an amount in minor units of a currency.
type Money struct {
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

// Item is a SKU and how many of it.
type Item struct {
	SKU      id.ID `json:"sku"`
	Quantity int64 `json:"quantity"` // 1 to 99
}

// Quantity is the body of PUT /cart/items/{sku}.
type Quantity struct {
	Quantity int64 `json:"quantity"`
}

// CartItem is one row of a cart with what the catalog says now. Price is
// missing when the catalog doesn't answer or doesn't sell it any more.
type CartItem struct {
	SKU       id.ID  `json:"sku"`
	Quantity  int64  `json:"quantity"`
	Product   id.ID  `json:"product_id,omitempty"`
	Seller    id.ID  `json:"seller_id,omitempty"`
	Title     string `json:"title,omitempty"`
	Price     *Money `json:"price,omitempty"`
	Available bool   `json:"available"` // the catalog sells it
}

// Cart is what GET /cart answers. Total is missing unless every item has a
// price in one currency.
type Cart struct {
	Items []CartItem `json:"items"`
	Total *Money     `json:"total,omitempty"`
}

// Place is the body of POST /orders. Without items the cart is ordered. With an
// expected total the order is refused when prices have changed.
type Place struct {
	Items    []Item `json:"items,omitempty"`
	Address  *id.ID `json:"address_id,omitempty"`
	Expected *Money `json:"expected_total,omitempty"`
}

// Line is one SKU as it was when the order was placed.
type Line struct {
	SKU      id.ID  `json:"sku"`
	Product  id.ID  `json:"product_id"`
	Seller   id.ID  `json:"seller_id"`
	Title    string `json:"title"`
	Price    Money  `json:"price"`
	Quantity int64  `json:"quantity"`
	Amount   Money  `json:"amount"`
}

// Part is what one seller delivers: one hold of stock and one payment.
type Part struct {
	Seller        id.ID  `json:"seller_id"`
	State         string `json:"state"` // of the hold, as the buyer's home knows it
	Amount        Money  `json:"amount"`
	Transfer      id.ID  `json:"transfer_id,omitempty"` // once the order is paid
	TransferState string `json:"transfer_state,omitempty"`
}

// Happening is one entry of an order's timeline.
type Happening struct {
	At     time.Time `json:"at"`
	Event  string    `json:"event"`
	Detail string    `json:"detail,omitempty"`
}

// Summary is an order in a list.
type Summary struct {
	Number      string    `json:"number"`
	State       string    `json:"state"`
	Reason      string    `json:"reason,omitempty"` // why it was cancelled
	Payment     string    `json:"payment_status"`
	Fulfilment  string    `json:"fulfilment_status"`
	Total       Money     `json:"total"`
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
	LinesNumber int       `json:"lines_count"`
}

// Order is a whole order.
type Order struct {
	Summary
	Address  json.RawMessage `json:"address,omitempty"` // as it was when the order was placed
	Lines    []Line          `json:"lines"`
	Parts    []Part          `json:"parts"`
	Timeline []Happening     `json:"timeline"`
}

// List is a page of GET /orders, newest first.
type List struct {
	Items      []Summary `json:"items"`
	NextCursor string    `json:"next_cursor,omitempty"`
}
