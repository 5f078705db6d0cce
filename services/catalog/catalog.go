package catalog

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/catalog/catalogapi"
)

// What the catalog refuses.
var (
	ErrNotSeller = errs.New(errs.Forbidden, "NOT_A_SELLER", "only sellers may do this; log in again if you have just become one")
	ErrNotReady  = errs.New(errs.Unavailable, "CATALOG_NOT_READY", "this cell's copy of the catalog is being made, try again").After(time.Second)
	ErrCategory  = errs.Field("category", "is not one of GET /api/v1/categories")
)

// Limits of a product. The feed's answer holds catalogapi.MaxFeed of them.
const (
	maxTitle       = 200  // characters
	maxDescription = 2000 // characters
	maxVariants    = 20
	maxPrice       = 1e12 // minor units, as everywhere
	defCurrency    = "CNY"
)

func currencies() []string { return []string{"CNY", "USD", "EUR", "JPY"} }

// clean brings a new product to the form that is stored and hashed, or says
// which field is wrong. Whether the category exists is for the database to say.
func clean(p catalogapi.NewProduct) (catalogapi.NewProduct, error) {
	var err error
	if p.Title, err = text("title", p.Title, 1, maxTitle, false); err != nil {
		return p, err
	}
	if p.Description, err = text("description", p.Description, 0, maxDescription, true); err != nil {
		return p, err
	}
	if p.Category == "" {
		return p, ErrCategory
	}
	if len(p.SKUs) < 1 || len(p.SKUs) > maxVariants {
		return p, errs.Field("skus", "must be 1 to %d", maxVariants)
	}
	variants := make([]catalogapi.NewVariant, len(p.SKUs))
	for i, v := range p.SKUs {
		field := func(name string) string { return fmt.Sprintf("skus[%d].%s", i, name) }
		if v.Title, err = text(field("title"), v.Title, 0, maxTitle, false); err != nil {
			return p, err
		}
		if err := checkPrice(field("price"), v.Price); err != nil {
			return p, err
		}
		if v.Currency == "" {
			v.Currency = defCurrency
		}
		if !slices.Contains(currencies(), v.Currency) {
			return p, errs.Field(field("currency"), "must be one of %s", strings.Join(currencies(), ", "))
		}
		variants[i] = v
	}
	p.SKUs = variants
	return p, nil
}

// cleanChange does the same for a change; one that changes nothing is refused.
func cleanChange(c catalogapi.Change) (catalogapi.Change, error) {
	if c.Title == nil && c.Description == nil && c.Active == nil && c.Price == nil && len(c.SKUs) == 0 {
		return c, errs.New(errs.Invalid, "EMPTY_CHANGE", "name at least one of title, description, active, price, skus")
	}
	if c.Title != nil {
		s, err := text("title", *c.Title, 1, maxTitle, false)
		if err != nil {
			return c, err
		}
		c.Title = &s
	}
	if c.Description != nil {
		s, err := text("description", *c.Description, 0, maxDescription, true)
		if err != nil {
			return c, err
		}
		c.Description = &s
	}
	if c.Price != nil {
		if err := checkPrice("price", *c.Price); err != nil {
			return c, err
		}
	}
	if len(c.SKUs) > maxVariants {
		return c, errs.Field("skus", "must be at most %d", maxVariants)
	}
	for i, v := range c.SKUs {
		if err := checkPrice(fmt.Sprintf("skus[%d].price", i), v.Price); err != nil {
			return c, err
		}
	}
	return c, nil
}

// change applies a cleaned change to a product, and says whether it differs then.
func change(p catalogapi.Product, c catalogapi.Change) (catalogapi.Product, bool, error) {
	before := p
	if c.Title != nil {
		p.Title = *c.Title
	}
	if c.Description != nil {
		p.Description = *c.Description
	}
	if c.Active != nil {
		p.Active = *c.Active
	}
	p.SKUs = slices.Clone(before.SKUs)
	if c.Price != nil {
		for i := range p.SKUs {
			p.SKUs[i].Price = *c.Price
		}
	}
	for i, r := range c.SKUs {
		at := slices.IndexFunc(p.SKUs, func(v catalogapi.Variant) bool { return v.ID == r.ID })
		if at < 0 {
			return p, false, errs.Field(fmt.Sprintf("skus[%d].id", i), "is not a SKU of this product")
		}
		p.SKUs[at].Price = r.Price
	}
	changed := p.Title != before.Title || p.Description != before.Description || p.Active != before.Active ||
		!slices.Equal(p.SKUs, before.SKUs)
	return p, changed, nil
}

func checkPrice(field string, price int64) error {
	if price < 1 || price > maxPrice {
		return errs.Field(field, "must be a whole number of minor units from 1 to %d", int64(maxPrice))
	}
	return nil
}

// text trims s and holds it against its limits. Control characters would end up
// in other people's pages and terminals; a description may have lines.
func text(field, s string, min, max int, lines bool) (string, error) {
	s = strings.TrimSpace(s)
	if n := utf8.RuneCountInString(s); n < min || n > max {
		return s, errs.Field(field, "must have %d to %d characters", min, max)
	}
	for _, r := range s {
		if unicode.IsControl(r) && (!lines || r != '\n' && r != '\t') {
			return s, errs.Field(field, "has a control character")
		}
	}
	return s, nil
}

// offerTitle is a SKU's title on an order.
func offerTitle(product, variant string) string {
	if variant == "" {
		return product
	}
	return product + ", " + variant
}

// position is how far a copy is. Answers are cached under it, so an answer of one
// position is never given for another.
type position struct {
	history    string
	version    int64
	generation int64
	rebuilding bool
	complete   bool
}

// filter is what a list is about; cursor is where it goes on, and carries its
// filter, so that one list's cursor doesn't open another.
type filter struct {
	Category string `json:"c,omitempty"`
	Seller   id.ID  `json:"s,omitempty"`
}

type cursor struct {
	filter
	At time.Time `json:"t"`
	ID id.ID     `json:"i"`
}
