package storefront

import (
	"net/http"
	"net/url"
	"path"
	"slices"
)

// purse is the wallet's page.
type purse struct {
	wallet
	Currencies []string
	Moves      []transfer
	MovesAway  bool
}

func (v *visit) wallet() error {
	p, err := v.walletPage()
	if err != nil {
		return err
	}
	p.Key = newKey()
	return v.show(p)
}

func (v *visit) walletPage() (*page, error) {
	d := purse{Currencies: currencies}
	var l list[transfer]
	failed := together(
		func() error { return v.get("/wallet", nil, &d.wallet) },
		func() error { return v.get("/transfers", url.Values{"limit": {"5"}}, &l) },
	)
	if failed[0] != nil {
		return nil, failed[0]
	}
	d.Moves, d.MovesAway = l.Items, failed[1] != nil
	p := v.page("wallet", "wallet.title", d)
	p.at = "/wallet"
	return p, nil
}

func (v *visit) deposit() error  { return v.move("/wallet/deposits") }
func (v *visit) withdraw() error { return v.move("/wallet/withdrawals") }

// move puts money in or takes some out.
func (v *visit) move(path string) error {
	key, err := v.key()
	if err != nil {
		return err
	}
	currency := v.form("currency")
	amount, ok := minor(v.form("amount"), currency)
	switch {
	case !slices.Contains(currencies, currency):
		return errForm
	case !ok:
		return v.wrong("amount", "error.INVALID_AMOUNT", v.walletPage)
	}
	err = v.patiently(func() error {
		_, err := v.do(ask{method: http.MethodPost, path: path, key: key, in: money{amount, currency}, own: true}, nil)
		return err
	})
	if err != nil {
		return v.refused(err, key, v.walletPage)
	}
	return v.see("/wallet/statement?" + url.Values{"currency": {currency}}.Encode())
}

// account is the statement of one currency.
type account struct {
	list[entry]
	Currency   string
	Currencies []string
}

func (v *visit) statement() error {
	q := v.r.URL.Query()
	d := account{Currency: q.Get("currency"), Currencies: currencies}
	if !slices.Contains(currencies, d.Currency) {
		d.Currency = currencies[0]
	}
	ask := url.Values{"currency": {d.Currency}}
	put(ask, "cursor", q.Get("cursor"))
	if err := v.get("/wallet/statement", ask, &d.list); err != nil {
		if code(err) == "INVALID_CURSOR" {
			return errNotFound
		}
		return err
	}
	if d.Next != "" {
		d.Next = "/wallet/statement?" + url.Values{"currency": {d.Currency}, "cursor": {d.Next}}.Encode()
	}
	return v.show(v.page("statement", "statement.title", d))
}

func (v *visit) transfers() error {
	q := url.Values{}
	put(q, "cursor", v.r.URL.Query().Get("cursor"))
	var l list[transfer]
	if err := v.get("/transfers", q, &l); err != nil {
		if code(err) == "INVALID_CURSOR" {
			return errNotFound
		}
		return err
	}
	if l.Next != "" {
		l.Next = "/transfers?" + url.Values{"cursor": {l.Next}}.Encode()
	}
	return v.show(v.page("transfers", "transfers.title", struct {
		Moves []transfer
		Next  string
	}{l.Items, l.Next}))
}

func (v *visit) transferForm() error {
	p, err := v.transferPage()
	if err != nil {
		return err
	}
	return v.show(p)
}

func (v *visit) transferPage() (*page, error) {
	p := v.page("transfer_new", "transfer.title", currencies)
	p.at = "/transfers/new"
	return p, nil
}

// wish is a transfer that its payer looks at before it's sent.
type wish struct {
	preview
	Phone, Memo string
}

// previewTransfer shows what would be sent, and to whom. It changes nothing; it's a
// form because phone numbers don't belong in addresses.
func (v *visit) previewTransfer() error {
	currency := v.form("currency")
	if !slices.Contains(currencies, currency) {
		return errForm
	}
	amount, ok := minor(v.form("amount"), currency)
	if !ok {
		return v.wrong("amount", "error.INVALID_AMOUNT", v.transferPage)
	}
	p, err := v.confirmPage(amount, currency)
	if err != nil {
		return v.refused(err, "", v.transferPage)
	}
	p.Key = newKey()
	return v.show(p)
}

func (v *visit) confirmPage(amount int64, currency string) (*page, error) {
	d := wish{Phone: v.form("phone"), Memo: v.form("memo")}
	_, err := v.do(ask{method: http.MethodPost, path: "/transfers/preview", own: true, in: struct {
		Phone string `json:"to_phone"`
		money
	}{d.Phone, money{amount, currency}}}, &d.preview)
	if err != nil {
		return nil, err
	}
	p := v.page("transfer_confirm", "confirm.title", d)
	p.at = "/transfers/new"
	return p, nil
}

// sendTransfer sends what was looked at, or nothing.
func (v *visit) sendTransfer() error {
	key, err := v.key()
	if err != nil {
		return err
	}
	currency := v.form("currency")
	amount, ok := minor(v.form("amount"), currency)
	if !ok || !slices.Contains(currencies, currency) || v.form("confirm") == "" {
		return errForm
	}
	in := struct {
		ToUser string `json:"to_user"`
		money
		Memo    string `json:"memo,omitempty"`
		Confirm string `json:"confirm"`
	}{v.form("to"), money{amount, currency}, v.form("memo"), v.form("confirm")}
	var head reply
	err = v.patiently(func() (err error) {
		head, err = v.do(ask{method: http.MethodPost, path: "/transfers", key: key, in: in, own: true}, nil)
		return err
	})
	if err != nil {
		return v.refused(err, key, v.transferPage)
	}
	return v.see("/transfers/" + segment(path.Base(head.header.Get("Location"))))
}

func (v *visit) transfer() error {
	p, err := v.transferStatePage()
	if err != nil {
		return err
	}
	return v.show(p)
}

func (v *visit) transferStatePage() (*page, error) {
	var t transfer
	if err := v.get("/transfers/"+segment(v.r.PathValue("id")), nil, &t); err != nil {
		return nil, err
	}
	p := v.page("transfer", "transfer.one", t)
	p.Wait = t.Open()
	p.at = "/transfers/" + segment(t.ID)
	return p, nil
}

func (v *visit) cancelTransfer() error {
	id := segment(v.r.PathValue("id"))
	if _, err := v.do(ask{method: http.MethodPost, path: "/transfers/" + id + "/cancel", own: true}, nil); err != nil {
		return v.refusedThere(err, v.transferStatePage)
	}
	return v.see("/transfers/" + id)
}
