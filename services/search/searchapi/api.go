// Package searchapi is what others may know of search: the JSON under /api/v1,
// and which rows of which databases it takes.
//
// What it answers is approximate and says how old it is: Lag has an entry for
// each zone that it follows.
package searchapi

import (
	"time"

	"example.com/cellmart/platform/cellkit/id"
)

// Sink is search's name as a taker of changes.
const Sink = "search"

// HeaderLag is the largest lag of all sources in milliseconds, or "unknown".
const HeaderLag = "X-Search-Lag-Ms"

// CellTables are what search takes of a cell's database: columns by table.
func CellTables() map[string][]string {
	return map[string][]string{
		"orders.orders": {"slot", "epoch", "rev", "id", "state", "currency", "created_at", "updated_at"},
		"orders.lines":  {"slot", "epoch", "rev", "order_id", "sku", "product_id", "seller_id", "title", "price", "quantity"},
	}
}

// GlobalTables are what search takes of the catalog's database.
func GlobalTables() map[string][]string {
	return map[string][]string{
		"catalogw.products": {"id", "seller_id", "title", "description", "category", "active", "version", "created_at", "updated_at"},
		"catalogw.skus":     {"id", "product_id", "position", "title", "price", "currency"},
	}
}

// Product is a product that was found. Price is the least of its SKUs'.
type Product struct {
	ID       id.ID  `json:"id"`
	Title    string `json:"title"`
	Category string `json:"category"`
	Price    int64  `json:"price"`
	Currency string `json:"currency"`
	Seller   id.ID  `json:"seller_id"`
	Active   bool   `json:"active"`
}

// Products is what GET /api/v1/search answers.
type Products struct {
	Items       []Product      `json:"items"`
	TotalApprox uint64         `json:"total_approx"`
	Categories  []Facet        `json:"categories,omitempty"` // whichever is chosen; on the first page
	NextCursor  string         `json:"next_cursor,omitempty"`
	Lag         map[string]Lag `json:"lag"`
}

// Facet says how many a category has of what was found.
type Facet struct {
	Category string `json:"category"`
	Count    int    `json:"count"`
}

// Order is a seller's part of an order that was found.
type Order struct {
	Number    string    `json:"number"`
	State     string    `json:"state"`
	Total     int64     `json:"total"` // of the seller's lines
	Currency  string    `json:"currency"`
	Lines     []Line    `json:"lines"`
	CreatedAt time.Time `json:"created_at"`
}

// Line is one SKU of an Order.
type Line struct {
	SKU      id.ID  `json:"sku"`
	Title    string `json:"title"`
	Price    int64  `json:"price"`
	Quantity int64  `json:"quantity"`
}

// Orders is what GET /api/v1/seller/orders/search answers.
type Orders struct {
	Items       []Order        `json:"items"`
	TotalApprox uint64         `json:"total_approx"`
	NextCursor  string         `json:"next_cursor,omitempty"`
	Lag         map[string]Lag `json:"lag"`
}

// Lag is how far behind one zone search is. What isn't known is null, not 0.
type Lag struct {
	MS    *int64 `json:"ms"`     // from a commit there to being found here
	AgeMS *int64 `json:"age_ms"` // since that was last heard of
	State string `json:"state"`  // live, copying, unknown
}
