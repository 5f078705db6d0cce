package storefront

import (
	"testing"
)

// reading are all pages that are got, and who may.
func reading() []struct {
	path  string
	users bool
	says  string
} {
	return []struct {
		path  string
		users bool
		says  string
	}{
		{"/", false, "Oolong &lt;tea&gt;"},
		{"/categories/food", false, "Food and drink"},
		{"/categories/food?sort=price", false, "Oolong"},
		{"/search?q=tea", false, "About 1 found"},
		{"/products/31", false, "CNY 12.50"},
		{"/cart", false, "Cart"},
		{"/login", false, "Password"},
		{"/register", false, "name=\"key\""},
		{"/register/88", false, "has not answered yet"},
		{"/checkout", true, "CNY 25.00"},
		{"/orders", true, number},
		{"/orders/" + number, true, "Paid"},
		{"/account", true, "1 Garden Road"},
		{"/wallet", true, "CNY 1000.00"},
		{"/wallet/statement", true, "deposit:3"},
		{"/transfers", true, "CNY 12.50"},
		{"/transfers/new", true, "Payee"},
		{"/transfers/99", true, "On its way"},
	}
}

func TestEachPageIsServed(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	b.logIn()
	for _, p := range reading() {
		b.get(p.path).is(t, 200)
	}
}
