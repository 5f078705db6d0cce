// Package catalogapi is what others may know of the catalog: the JSON of
// products, what the cell's own copy says of SKUs (for orders and stock), and
// the feed by which the copies follow the writer.
//
// Prices are whole minor units (2599 = 25.99), with the currency beside them.
package catalogapi

import (
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// HeaderVersion says how new an answer is: the newest change that the cell's copy
// had when it was made.
const HeaderVersion = "X-Catalog-Version"

// Category is a fixed part of the shop.
type Category struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Position int    `json:"position"`
}

// CategoryList is what GET /api/v1/categories answers.
type CategoryList struct {
	Items []Category `json:"items"`
}

// Variant is one SKU of a product.
type Variant struct {
	ID       id.ID  `json:"id"`
	Title    string `json:"title"` // "" when the product has only one
	Price    int64  `json:"price"`
	Currency string `json:"currency"`
}

// Product is what shoppers see. Version is the writer's, and grows with every
// change of anything in the catalog.
type Product struct {
	ID          id.ID     `json:"id"`
	Seller      id.ID     `json:"seller_id"`
	Title       string    `json:"title"`
	Description string    `json:"description"`
	Category    string    `json:"category"`
	Active      bool      `json:"active"`
	SKUs        []Variant `json:"skus"`
	Version     int64     `json:"version"`
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
}

// ProductList is a page of GET /api/v1/products, newest first.
type ProductList struct {
	Items      []Product `json:"items"`
	NextCursor string    `json:"next_cursor,omitempty"`
}

// NewProduct is the body of POST /api/v1/products.
type NewProduct struct {
	Title       string       `json:"title"`
	Description string       `json:"description"`
	Category    string       `json:"category"`
	SKUs        []NewVariant `json:"skus"`
}

// NewVariant is one SKU of a NewProduct; the currency's default is CNY.
type NewVariant struct {
	Title    string `json:"title,omitempty"`
	Price    int64  `json:"price"`
	Currency string `json:"currency,omitempty"`
}

// Change is the body of PATCH /api/v1/products/{id}; what is missing stays. Price
// is for every SKU, SKUs are for single ones and win.
type Change struct {
	Title       *string   `json:"title,omitempty"`
	Description *string   `json:"description,omitempty"`
	Active      *bool     `json:"active,omitempty"`
	Price       *int64    `json:"price,omitempty"`
	SKUs        []Reprice `json:"skus,omitempty"`
}

// Reprice gives one SKU a new price.
type Reprice struct {
	ID    id.ID `json:"id"`
	Price int64 `json:"price"`
}

// SKU is what the cell's copy says of one, to who takes an order or stock for it.
type SKU struct {
	SKU        id.ID        `json:"sku"`
	Product    id.ID        `json:"product_id"`
	Seller     id.ID        `json:"seller_id"`
	SellerSlot routing.Slot `json:"seller_slot"`
	Title      string       `json:"title"`
	Price      int64        `json:"price"`
	Currency   string       `json:"currency"`
	Active     bool         `json:"active"`
}

// SKUList is what GET /internal/skus answers; unknown SKUs are missing.
type SKUList struct {
	Items []SKU `json:"items"`
}

// Feed is one answer of the writer: everything that changed after After, up to and
// with Upto, in the order of versions. A product that changed twice is in it once,
// as it is now.
type Feed struct {
	// History names the writer's database. When it isn't the one asked for, or the
	// asker is ahead of it, the answer starts again from After = 0.
	History    string     `json:"history"`
	After      int64      `json:"after"`
	Upto       int64      `json:"upto"`
	Newest     int64      `json:"newest"`
	Categories []Category `json:"categories"`
	Products   []Product  `json:"products"`
}

// Limits of the feed.
const (
	MaxFeed = 500              // products per answer
	MaxWait = 20 * time.Second // for a change
)
