package storefront

import (
	"net/http"
	"net/url"
	"path"
	"strconv"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

const (
	codeInFlight = "IDEMPOTENCY_KEY_IN_FLIGHT"
	patience     = 2 * time.Second
	pause        = 100 * time.Millisecond
)

// patiently sends a wish again that is under way already: of a double click the
// second gets the first one's answer.
func (v *visit) patiently(send func() error) error {
	end := time.Now().Add(patience)
	for {
		err := send()
		if code(err) != codeInFlight || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-v.ctx.Done():
			return err
		}
	}
}

// review is what is looked at before it's ordered.
type review struct {
	Cart          cart
	Addresses     []address
	AddressesAway bool
	Chosen        string
	Balances      []balance
	WalletAway    bool
	Short         bool // the wallet has less than the total
}

func (v *visit) checkout() error {
	p, err := v.checkoutPage()
	if err != nil {
		return err
	}
	p.Key = newKey()
	return v.show(p)
}

func (v *visit) checkoutPage() (*page, error) {
	var d review
	var l list[address]
	var w wallet
	failed := together(
		func() error { return v.get("/cart", nil, &d.Cart) },
		func() error { return v.get("/me/addresses", nil, &l) },
		func() error { return v.get("/wallet", nil, &w) },
	)
	if failed[0] != nil {
		return nil, failed[0]
	}
	d.Addresses, d.AddressesAway = l.Items, failed[1] != nil
	d.Balances, d.WalletAway = w.Balances, failed[2] != nil
	d.Chosen = v.form("address")
	if d.Chosen == "" && len(d.Addresses) > 0 {
		d.Chosen = d.Addresses[0].ID
	}
	if d.Cart.Total != nil && !d.WalletAway {
		d.Short = true
		for _, b := range d.Balances {
			if b.Currency == d.Cart.Total.Currency && b.Available >= d.Cart.Total.Amount {
				d.Short = false
			}
		}
	}
	p := v.page("checkout", "checkout.title", d)
	p.at = "/checkout"
	return p, nil
}

// place orders the cart for the total that was looked at, or nothing.
func (v *visit) place() error {
	key, err := v.key()
	if err != nil {
		return err
	}
	amount, err := strconv.ParseInt(v.form("total"), 10, 64)
	if err != nil || v.form("currency") == "" {
		return errForm
	}
	in := struct {
		Address  string `json:"address_id,omitempty"`
		Expected money  `json:"expected_total"`
	}{v.form("address"), money{amount, v.form("currency")}}
	var o order
	var head reply
	err = v.patiently(func() (err error) {
		head, err = v.do(ask{method: http.MethodPost, path: "/orders", key: key, in: in, own: true}, &o)
		return err
	})
	if err != nil {
		return v.refused(err, key, v.checkoutPage)
	}
	number := o.Number
	if number == "" {
		number = path.Base(head.header.Get("Location"))
	}
	return v.see("/orders/" + segment(number))
}

func (v *visit) orders() error {
	q := url.Values{}
	put(q, "cursor", v.r.URL.Query().Get("cursor"))
	var l list[orderSummary]
	if err := v.get("/orders", q, &l); err != nil {
		if code(err) == "INVALID_CURSOR" {
			return errNotFound
		}
		return err
	}
	if l.Next != "" {
		l.Next = "/orders?" + url.Values{"cursor": {l.Next}}.Encode()
	}
	return v.show(v.page("orders", "orders.title", l))
}

func (v *visit) order() error {
	p, err := v.orderPage()
	if err != nil {
		return err
	}
	return v.show(p)
}

func (v *visit) orderPage() (*page, error) {
	var o order
	if err := v.get("/orders/"+segment(v.r.PathValue("number")), nil, &o); err != nil {
		return nil, err
	}
	p := v.page("order", "order.title", o)
	p.Wait = o.Open()
	p.Title = v.text("order.of", o.Number)
	p.at = "/orders/" + segment(o.Number)
	return p, nil
}

func (v *visit) cancelOrder() error {
	number := segment(v.r.PathValue("number"))
	_, err := v.do(ask{method: http.MethodPost, path: "/orders/" + number + "/cancel", own: true}, nil)
	if err != nil {
		return v.refusedThere(err, v.orderPage)
	}
	return v.see("/orders/" + number)
}

// refusedThere shows a thing as it stands now, and why it can't be ended any more.
func (v *visit) refusedThere(err error, show func() (*page, error)) error {
	if !errs.IsKind(err, errs.Conflict) && !errs.IsKind(err, errs.Unprocessable) {
		return err
	}
	p, showErr := show()
	if showErr != nil {
		return err
	}
	p.Trouble = v.trouble(err)
	return v.write(http.StatusConflict, p)
}
