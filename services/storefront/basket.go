package storefront

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

const (
	maxGuest    = 20 // SKUs in a guest's cart: the cookie has an end
	maxQuantity = 99
	guestLife   = 30 * 24 * time.Hour
)

// guestItem is a line in the cart of who isn't logged in.
type guestItem struct {
	product, sku string
	quantity     int64
}

// readGuest reads the cookie's product-sku-quantity_...; what isn't a line is left
// out.
func readGuest(text string) []guestItem {
	var out []guestItem
	for line := range strings.SplitSeq(text, "_") {
		part := strings.Split(line, "-")
		if len(part) != 3 || !isID(part[0]) || !isID(part[1]) || len(out) == maxGuest {
			continue
		}
		n, err := strconv.ParseInt(part[2], 10, 64)
		if err != nil || n < 1 || n > maxQuantity {
			continue
		}
		out = append(out, guestItem{part[0], part[1], n})
	}
	return out
}

func writeGuest(items []guestItem) string {
	var out []string
	for _, it := range items {
		out = append(out, it.product+"-"+it.sku+"-"+strconv.FormatInt(it.quantity, 10))
	}
	return strings.Join(out, "_")
}

func isID(s string) bool {
	return s != "" && len(s) <= 19 && s[0] != '0' && strings.Trim(s, "0123456789") == ""
}

// set gives the cart with another quantity of a SKU; 0 takes it out. Not ok: it is
// full.
func set(items []guestItem, it guestItem) (_ []guestItem, ok bool) {
	i := slices.IndexFunc(items, func(have guestItem) bool { return have.sku == it.sku })
	switch {
	case i >= 0 && it.quantity == 0:
		return slices.Delete(slices.Clone(items), i, i+1), true
	case i >= 0:
		items = slices.Clone(items)
		items[i].quantity = it.quantity
		return items, true
	case it.quantity == 0:
		return items, true
	case len(items) == maxGuest:
		return items, false
	}
	return append(slices.Clone(items), it), true
}

func (v *visit) setGuest(items []guestItem) {
	v.guest = items
	setCookie(v.w, cookieCart, writeGuest(items), guestLife)
}

// mergeCart brings the guest's cart to the user's home, where each SKU's quantity
// becomes the larger one. What doesn't get there stays in the cookie.
func (v *visit) mergeCart() {
	if len(v.guest) == 0 {
		return
	}
	var have cart
	if err := v.get("/cart", nil, &have); err != nil {
		return
	}
	var rest []guestItem
	for _, it := range v.guest {
		n := it.quantity
		for _, old := range have.Items {
			if old.SKU == it.sku {
				n = max(n, old.Quantity)
			}
		}
		if err := v.put(it.sku, n); err != nil && again503(err) {
			rest = append(rest, it)
		}
	}
	v.setGuest(rest)
}

func again503(err error) bool { return errs.IsKind(err, errs.Unavailable) }

// put sets how many of a SKU the user's cart has.
func (v *visit) put(sku string, n int64) error {
	if n == 0 {
		_, err := v.do(ask{method: http.MethodDelete, path: "/cart/items/" + segment(sku), own: true}, nil)
		return err
	}
	_, err := v.do(ask{method: http.MethodPut, path: "/cart/items/" + segment(sku), in: map[string]int64{"quantity": n}, own: true}, nil)
	return err
}

// readCart gives the user's cart, or the guest's with what the catalog says now.
func (v *visit) readCart() (cart, error) {
	var c cart
	if v.token != "" {
		err := v.get("/cart", nil, &c)
		return c, err
	}
	reads := make([]func() error, len(v.guest))
	products := make([]product, len(v.guest))
	for i, it := range v.guest {
		reads[i] = func() error { return v.look("/products/"+segment(it.product), nil, &products[i]) }
	}
	failed := together(reads...)
	total := &money{}
	for i, it := range v.guest {
		row := cartItem{SKU: it.sku, Quantity: it.quantity, Product: it.product}
		for _, s := range products[i].SKUs {
			if failed[i] == nil && s.ID == it.sku {
				row.Title, row.Available = title(products[i].Title, s.Title), products[i].Active
				row.Price = &money{s.Price, s.Currency}
			}
		}
		c.Items = append(c.Items, row)
		switch {
		case total == nil:
		case !row.Available || total.Currency != "" && total.Currency != row.Price.Currency:
			total = nil
		default:
			total.Amount, total.Currency = total.Amount+row.Price.Amount*row.Quantity, row.Price.Currency
		}
	}
	if len(c.Items) > 0 {
		c.Total = total
	}
	return c, nil
}

func title(product, variant string) string {
	if variant == "" {
		return product
	}
	return product + ", " + variant
}

func (v *visit) cart() error {
	p, err := v.cartPage()
	if err != nil {
		return err
	}
	return v.show(p)
}

func (v *visit) cartPage() (*page, error) {
	c, err := v.readCart()
	if err != nil {
		return nil, err
	}
	p := v.page("cart", "cart.title", c)
	p.at = "/cart"
	return p, nil
}

// putItem is the product page's "add" and the cart's "set". Adding reads first and
// sets then, so that two clicks at once add once.
func (v *visit) putItem() error {
	it := guestItem{product: v.form("product"), sku: v.form("sku")}
	adding := v.form("how") == "add"
	n, err := strconv.ParseInt(v.form("quantity"), 10, 64)
	if v.form("remove") != "" {
		n, err = 0, nil
	}
	back, field := v.cartPage, ""
	if adding {
		field = "quantity"
		back = func() (*page, error) {
			p, err := v.productPage(it.product)
			if p != nil {
				p.at = "/products/" + segment(it.product)
			}
			return p, err
		}
	}
	switch {
	case !isID(it.sku) || !isID(it.product):
		return errForm
	case err != nil || n < 0 || n > maxQuantity || adding && n == 0:
		return v.wrong(field, "error.quantity", back)
	}
	if v.token == "" {
		it.quantity = n
		if adding {
			for _, have := range v.guest {
				if have.sku == it.sku {
					it.quantity = min(maxQuantity, n+have.quantity)
				}
			}
		}
		items, ok := set(v.guest, it)
		if !ok {
			return v.wrong(field, "error.guest_full", back)
		}
		v.setGuest(items)
		return v.see("/cart")
	}
	if adding {
		var have cart
		if err := v.get("/cart", nil, &have); err != nil {
			return v.refused(err, "", back)
		}
		for _, old := range have.Items {
			if old.SKU == it.sku {
				n = min(maxQuantity, n+old.Quantity)
			}
		}
	}
	if err := v.put(it.sku, n); err != nil {
		return v.refused(err, "", back)
	}
	return v.see("/cart")
}
