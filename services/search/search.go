package search

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/search/searchapi"
)

// ErrDown is given while the index can't be read.
var ErrDown = errs.New(errs.Unavailable, "SEARCH_UNAVAILABLE", "search is away at the moment; the shop goes on").After(2 * time.Second)

// The kinds of things that are indexed.
const (
	kindProduct = "product"
	kindOrder   = "order"
)

// origin is where a change comes from, and how new it is there.
type origin struct {
	Zone        string `json:"z"`
	Incarnation string `json:"i"`
	LSN         uint64 `json:"l"`
	Epoch       int64  `json:"e,omitempty"` // of unit data
	Rev         int64  `json:"r,omitempty"` // of unit data; the version, of the catalog
}

// newer says whether a change replaces a row that is held. Between zones, and
// within one, the larger (epoch, rev) wins, whatever came first; the same one is
// decided by the place in the WAL. A database that is another than before is
// right about its rows, also where it is older.
func (o origin) newer(than record) bool {
	held := than.Origin
	if o.Zone == held.Zone && o.Incarnation != held.Incarnation {
		return true
	}
	if than.Gone && o.Zone == held.Zone { // a row that comes back begins its versions again
		return o.LSN >= held.LSN
	}
	if o.Epoch != held.Epoch {
		return o.Epoch > held.Epoch
	}
	if o.Rev != held.Rev {
		return o.Rev > held.Rev
	}
	return o.Zone != held.Zone || o.LSN >= held.LSN
}

// record is a row as it was last seen. A deleted one stays, without values, so
// that an older change doesn't bring it back.
type record struct {
	Values map[string]*string `json:"v,omitempty"`
	Origin origin             `json:"o"`
	Gone   bool               `json:"x,omitempty"`
}

// change is a row that changed, said of which thing it is a part.
type change struct {
	kind   string
	id     string // of the product or order; "" when only the part is known
	part   string // of the SKU or line; "" for the thing's own row
	values map[string]*string
	gone   bool
	origin origin
}

// entity is a product with its SKUs, or an order with its lines.
type entity struct {
	Kind  string            `json:"kind"`
	ID    string            `json:"id"`
	Copy  string            `json:"copy"` // the last copy of its zone that has it
	Root  record            `json:"root"`
	Parts map[string]record `json:"parts,omitempty"`
	Hits  []string          `json:"hits,omitempty"` // documents that are found
}

// parse makes a change of a row; ok is false for what isn't searched.
func parse(table string, values map[string]*string, gone bool, o origin) (c change, ok bool) {
	text := func(name string) string {
		if v := values[name]; v != nil {
			return *v
		}
		return ""
	}
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(text(name), 10, 64)
		return n
	}
	c = change{values: values, gone: gone, origin: o}
	switch table {
	case "catalogw.products":
		c.kind, c.id = kindProduct, text("id")
		c.origin.Rev = number("version")
	case "catalogw.skus": // without a version of their own
		c.kind, c.id, c.part = kindProduct, text("product_id"), text("id")
	case "orders.orders":
		c.kind, c.id = kindOrder, text("id")
		c.origin.Epoch, c.origin.Rev = number("epoch"), number("rev")
	case "orders.lines":
		c.kind, c.id, c.part = kindOrder, text("order_id"), text("sku")
		c.origin.Epoch, c.origin.Rev = number("epoch"), number("rev")
	default:
		return c, false
	}
	if gone {
		// Only the key is there, so no version: the place in the WAL has to do. What is deleted from a
		// unit table stays away until its owner changes.
		c.origin.Epoch, c.origin.Rev = -1, -1
		c.values = nil
	}
	return c, c.id != "" || c.part != "" && gone
}

// take applies a change, unless what is held is newer. It says whether anything
// is other than before.
func (e *entity) take(c change) bool {
	held := e.Root
	if c.part != "" {
		held = e.Parts[c.part]
	}
	known := held.Origin != (origin{})
	if c.gone { // as new as the row that it ends, and later
		if known && held.Origin.Zone == c.origin.Zone && held.Origin.Incarnation == c.origin.Incarnation && held.Origin.LSN > c.origin.LSN {
			return false
		}
		c.origin.Epoch, c.origin.Rev = held.Origin.Epoch, held.Origin.Rev
	} else if known && !c.origin.newer(held) {
		return false
	}
	next := record{Values: c.values, Origin: c.origin, Gone: c.gone}
	for name, value := range held.Values { // large values that an update left alone aren't sent
		if _, sent := next.Values[name]; !sent && !c.gone {
			if next.Values == nil {
				next.Values = map[string]*string{}
			}
			next.Values[name] = value
		}
	}
	if c.part == "" {
		e.Root = next
		return true
	}
	if e.Parts == nil {
		e.Parts = map[string]record{}
	}
	e.Parts[c.part] = next
	return true
}

// zone is the one that the entity was last said by.
func (e *entity) zone() string {
	last := e.Root.Origin
	for _, p := range e.Parts {
		if last == (origin{}) {
			last = p.Origin
		}
	}
	return last.Zone
}

func (r record) text(name string) string {
	if v := r.Values[name]; v != nil {
		return *v
	}
	return ""
}

func (r record) number(name string) int64 {
	n, _ := strconv.ParseInt(r.text(name), 10, 64)
	return n
}

func (r record) there() bool { return !r.Gone && r.Origin != (origin{}) }

// time reads the database's text form of a timestamptz.
func (r record) time(name string) time.Time {
	for _, layout := range []string{"2006-01-02 15:04:05.999999-07", "2006-01-02 15:04:05.999999-07:00"} {
		if t, err := time.Parse(layout, r.text(name)); err == nil {
			return t.UTC()
		}
	}
	return time.Time{}
}

// hit is a document that can be found.
type hit struct {
	doc      string
	kind     string
	seller   string
	category string
	text     []string // what words are looked for in
	title    []string // the same, of more weight
	exact    []string // what is found as a whole only: category, number
	state    string
	price    int64
	at       time.Time
	answer   any
}

// hits are what can be found of an entity: a product that is sold, a seller's
// part of an order.
func (e *entity) hits(number func(id.ID) string) []hit {
	if !e.Root.there() {
		return nil
	}
	if e.Kind == kindProduct {
		return e.product()
	}
	return e.orders(number)
}

func (e *entity) product() []hit {
	if e.Root.text("active") != "t" {
		return nil
	}
	p := searchapi.Product{
		Title: e.Root.text("title"), Category: e.Root.text("category"), Active: true,
	}
	p.ID, p.Seller = id.ID(e.Root.number("id")), id.ID(e.Root.number("seller_id"))
	h := hit{
		doc: kindProduct + "/" + e.ID, kind: kindProduct, seller: p.Seller.String(), category: p.Category,
		text: []string{e.Root.text("description"), strings.ReplaceAll(p.Category, "-", " ")}, title: []string{p.Title},
		exact: []string{p.Category, e.ID}, at: e.Root.time("created_at"),
	}
	for sku, part := range e.Parts {
		if !part.there() {
			continue
		}
		h.text = append(h.text, part.text("title"))
		h.exact = append(h.exact, sku)
		if price := part.number("price"); p.Currency == "" || price < p.Price {
			p.Price, p.Currency = price, part.text("currency")
		}
	}
	if p.Currency == "" {
		return nil // nothing to buy
	}
	slices.Sort(h.text)
	slices.Sort(h.exact)
	h.price, h.state, h.answer = p.Price, p.Currency, p
	return []hit{h}
}

func (e *entity) orders(number func(id.ID) string) []hit {
	sellers := map[string]*searchapi.Order{}
	for sku, part := range e.Parts {
		if !part.there() {
			continue
		}
		seller := part.text("seller_id")
		o := sellers[seller]
		if o == nil {
			o = &searchapi.Order{
				Number: number(id.ID(e.Root.number("id"))), State: e.Root.text("state"), Currency: e.Root.text("currency"),
				CreatedAt: e.Root.time("created_at"),
			}
			sellers[seller] = o
		}
		n, _ := strconv.ParseInt(sku, 10, 64)
		l := searchapi.Line{SKU: id.ID(n), Title: part.text("title"), Price: part.number("price"), Quantity: part.number("quantity")}
		o.Lines = append(o.Lines, l)
		o.Total += l.Price * l.Quantity
	}
	var out []hit
	for seller, o := range sellers {
		slices.SortFunc(o.Lines, func(a, b searchapi.Line) int { return int(min(max(int64(a.SKU)-int64(b.SKU), -1), 1)) })
		h := hit{
			doc: fmt.Sprintf("%s/%s/%s", kindOrder, e.ID, seller), kind: kindOrder, seller: seller,
			exact: []string{o.Number, e.ID}, state: o.State, at: o.CreatedAt, answer: *o,
		}
		for _, l := range o.Lines {
			h.title = append(h.title, l.Title)
		}
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b hit) int { return strings.Compare(a.doc, b.doc) })
	return out
}

func (e *entity) encode() (string, error) {
	b, err := json.Marshal(e)
	return string(b), err
}
