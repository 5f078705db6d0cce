package storefront

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// perPage is how many products a list shows at once.
const perPage = "24"

// sorts are the orders that a list may have, the default first.
var sorts = []string{"newest", "price", "-price"}

// shelf is a list of products with where it goes on.
type shelf struct {
	Categories []category
	Category   category
	Products   []hit
	Next       string // address of the next page
	Query      string
	Sort       string
	Sorts      []string
	Min, Max   string
	Total      int64
	Counted    bool             // Total says something
	Counts     map[string]int64 // by category, when search has counted
	Lag        string
	SearchAway bool
	ListAway   bool // the products themselves
}

// least is what a product's card shows: the lowest of its prices.
func least(p product) hit {
	h := hit{ID: p.ID, Title: p.Title, Category: p.Category, Active: p.Active}
	for i, s := range p.SKUs {
		if i == 0 || s.Price < h.Price {
			h.Price, h.Currency = s.Price, s.Currency
		}
	}
	return h
}

// newest reads a page of products, newest first, from the cell's own catalog.
func (v *visit) newest(category, cursor string) ([]hit, string, error) {
	q := url.Values{"limit": {perPage}}
	put(q, "category", category)
	put(q, "cursor", cursor)
	var l list[product]
	if err := v.look("/products", q, &l); err != nil {
		return nil, "", err
	}
	var out []hit
	for _, p := range l.Items {
		out = append(out, least(p))
	}
	return out, l.Next, nil
}

func put(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

func (v *visit) categories() ([]category, error) {
	var l list[category]
	err := v.look("/categories", nil, &l)
	return l.Items, err
}

func (v *visit) home() error {
	var s shelf
	var next string
	failed := together(
		func() (err error) { s.Categories, err = v.categories(); return },
		func() (err error) { s.Products, next, err = v.newest("", v.r.URL.Query().Get("cursor")); return },
	)
	if failed[0] != nil && failed[1] != nil {
		return failed[1]
	}
	if code(failed[1]) == "INVALID_CURSOR" {
		return errNotFound
	}
	s.ListAway = failed[1] != nil
	if next != "" {
		s.Next = "/?" + url.Values{"cursor": {next}}.Encode()
	}
	return v.show(v.page("home", "home.title", s))
}

// category lists what it sells. Other orders than newest first are search's; while
// that is away the newest are shown.
func (v *visit) category() error {
	name, q := v.r.PathValue("category"), v.r.URL.Query()
	s := shelf{Sort: sorts[0], Sorts: sorts, Category: category{ID: name, Name: name}}
	if slices.Contains(sorts, q.Get("sort")) {
		s.Sort = q.Get("sort")
	}
	var next string
	failed := together(
		func() (err error) { s.Categories, err = v.categories(); return },
		func() (err error) { s.Products, next, err = v.sorted(&s, q.Get("cursor")); return },
	)
	switch {
	case code(failed[1]) == "INVALID_CURSOR" || code(failed[1]) == "INVALID_FIELD":
		return errNotFound
	case failed[0] != nil && failed[1] != nil:
		return failed[1]
	}
	s.ListAway = failed[1] != nil
	if failed[0] == nil {
		i := slices.IndexFunc(s.Categories, func(c category) bool { return c.ID == name })
		if i < 0 {
			return errNotFound
		}
		s.Category = s.Categories[i]
	}
	if next != "" {
		s.Next = v.r.URL.EscapedPath() + "?" + url.Values{"sort": {s.Sort}, "cursor": {next}}.Encode()
	}
	p := v.page("category", "category.title", s)
	p.Title = p.Category(s.Category)
	return v.show(p)
}

// sorted reads a page of a category in the shelf's order.
func (v *visit) sorted(s *shelf, cursor string) ([]hit, string, error) {
	if s.Sort == sorts[0] {
		return v.newest(s.Category.ID, cursor)
	}
	q := url.Values{"limit": {perPage}, "category": {s.Category.ID}, "sort": {s.Sort}}
	put(q, "cursor", cursor)
	var f found
	err := v.look("/search", q, &f)
	switch {
	case err == nil:
		return f.Items, f.Next, nil
	case code(err) == "INVALID_CURSOR" || code(err) == "INVALID_FIELD":
		return nil, "", err
	}
	s.SearchAway, s.Sort = true, sorts[0]
	return v.newest(s.Category.ID, "") // a cursor of search opens no other list
}

func (v *visit) search() error {
	q := v.r.URL.Query()
	s := shelf{Query: q.Get("q"), Sort: "relevance", Sorts: append([]string{"relevance"}, sorts...), Min: q.Get("min"), Max: q.Get("max")}
	if utf8.RuneCountInString(s.Query) > 200 || !utf8.ValidString(s.Query) {
		s.Query = ""
	}
	if slices.Contains(s.Sorts, q.Get("sort")) {
		s.Sort = q.Get("sort")
	}
	s.Category.ID = q.Get("category")
	ask := url.Values{"limit": {perPage}, "sort": {s.Sort}}
	put(ask, "q", s.Query)
	put(ask, "category", s.Category.ID)
	put(ask, "cursor", q.Get("cursor"))
	for name, text := range map[string]string{"min_price": s.Min, "max_price": s.Max} {
		if amount, ok := minor(text, "CNY"); ok {
			ask.Set(name, strconv.FormatInt(amount, 10))
		}
	}
	if ask.Has("min_price") || ask.Has("max_price") {
		ask.Set("currency", "CNY") // prices of one currency only can be compared
	}
	var f found
	failed := together(
		func() (err error) { s.Categories, err = v.categories(); return },
		func() error { return v.look("/search", ask, &f) },
	)
	switch {
	case code(failed[1]) == "INVALID_CURSOR" || code(failed[1]) == "INVALID_FIELD":
		return errNotFound
	case failed[1] != nil:
		s.SearchAway = true
		v.w.Header().Set("Retry-After", "2")
		return v.write(http.StatusServiceUnavailable, v.page("search", "search.title", s))
	}
	s.Products, s.Total, s.Counted, s.Lag, s.Counts = f.Items, f.Total, true, f.age(), map[string]int64{}
	for _, c := range f.Categories {
		s.Counts[c.ID] = c.Count
	}
	if f.Next != "" {
		next := v.r.URL.Query()
		next.Del("lang")
		next.Set("cursor", f.Next)
		s.Next = "/search?" + next.Encode()
	}
	return v.show(v.page("search", "search.title", s))
}

// age is the largest lag in milliseconds, empty when one isn't known: that is not 0.
func (f found) age() string {
	var most int64
	for _, l := range f.Lag {
		if l.MS == nil {
			return ""
		}
		most = max(most, *l.MS)
	}
	if len(f.Lag) == 0 {
		return ""
	}
	return strconv.FormatInt(most, 10)
}

// goods is a product's page.
type goods struct {
	product
	Stock    map[string]*left // by SKU; one that isn't there isn't known
	Chosen   string           // SKU
	Quantity string
}

// left is about how much there is of a SKU.
type left struct {
	Level string
	Left  int64
}

// glanceTime is how long a page waits for what it can do without: the seller's cell
// may be away. This is the one place where a page asks another cell than its user's
// home, and only until stock is shown from the sellers' streams.
const glanceTime = 100 * time.Millisecond

// stock asks the seller's cell; what it doesn't say in time isn't known.
func (v *visit) stock(p product) map[string]*left {
	if !p.Active || len(p.SKUs) == 0 {
		return nil
	}
	var skus []string
	for _, s := range p.SKUs {
		skus = append(skus, s.ID)
	}
	var answer shelfStock
	if v.briefly(glanceTime, "/products/"+segment(p.ID)+"/stock", url.Values{"skus": {strings.Join(skus, ",")}}, &answer) != nil {
		return nil
	}
	out := map[string]*left{}
	for _, s := range answer.Items {
		out[s.SKU] = &left{s.Level, s.Left}
	}
	return out
}

func (v *visit) product() error {
	p, err := v.productPage(v.r.PathValue("id"))
	if err != nil {
		return err
	}
	return v.show(p)
}

func (v *visit) productPage(id string) (*page, error) {
	g := goods{Quantity: "1"}
	if err := v.look("/products/"+segment(id), nil, &g.product); err != nil {
		return nil, err
	}
	g.Stock = v.stock(g.product)
	for _, s := range slices.Backward(g.SKUs) { // the first that there is
		if at := g.Stock[s.ID]; at == nil || at.Level != "out" {
			g.Chosen = s.ID
		}
	}
	if sku := v.form("sku"); sku != "" {
		g.Chosen, g.Quantity = sku, v.form("quantity")
	}
	p := v.page("product", "product.title", g)
	p.Title = g.Title
	return p, nil
}

// demo shows the demo's accounts and where the API is.
func (v *visit) demo() error { return v.show(v.page("demo", "layout.demo", v.shop.demo())) }
