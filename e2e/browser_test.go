//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// stand is what the browser tests walk through: a product on sale, and people.
type stand struct {
	product, sku string
	me, here     *shopper // two of c1
	there        *shopper // of c2
	shots        string
	code, why    string // axe; or why there is none
	browser      context.Context
}

// The shop as people have it: in a browser, through the edge.
func TestShopInTheBrowser(t *testing.T) {
	browser, shots := chrome(t)
	fmt.Fprintln(os.Stderr, "e2e: pictures of the pages are in", shots)
	s := &stand{browser: browser, shots: shots, me: register(t, "c1"), here: register(t, "c1"), there: register(t, "c2")}
	seller := register(t, "c4")
	s.code, s.why = axe(t)
	s.sku = seller.sell(t, 1250, 50)
	for _, p := range must(t, "c1", "/products?limit=100&seller="+seller.id) {
		s.product, _ = p.(map[string]any)["id"].(string)
	}
	s.me.deposit(t, 50000)
	s.me.want(t, 201, "POST", "/me/addresses", "", map[string]any{"recipient": "Me", "phone": s.me.phone, "line": "1 Lane", "city": "Wuhan"})

	for _, part := range []struct {
		name string
		run  func(*testing.T, *stand)
	}{
		{"guest buys", guestBuys},
		{"one after the other", oneAfterTheOther},
		{"transfers", transfersInTheBrowser},
		{"own cell unplugged", ownCellUnplugged},
		{"without JavaScript", withoutJavaScript},
		{"logins", logins},
		{"every page", everyPage},
	} {
		start := time.Now()
		if !t.Run(part.name, func(t *testing.T) { part.run(t, s) }) {
			return // the next begins where this ends
		}
		t.Logf("%s: %s", part.name, time.Since(start).Round(time.Millisecond))
	}
	atRest(t)
}

// tab opens a browser of its own at the edge.
func (s *stand) tab(t *testing.T) *tab { return openTab(t, s.browser, sys.Edge, s.shots) }

// sound checks that nothing broke the policy, and no script failed.
func (b *tab) sound() {
	b.t.Helper()
	if wrongs := b.complaints(); len(wrongs) > 0 {
		b.t.Errorf("at %s the browser complains:\n%s", b.path(), strings.Join(wrongs, "\n"))
	}
}

// A guest fills a cart, logs in on the way, clicks twice on the order, and goes back
// after it: one order.
func guestBuys(t *testing.T, s *stand) {
	b := s.tab(t)
	b.open("/products/" + s.product)
	b.fill("#quantity", "2")
	b.press("form[action='/cart/items'] button")
	b.now("CNY 25.00")
	b.press("a[href='/checkout']")
	if !strings.HasPrefix(b.path(), "/login?") {
		b.fail("the checkout asks nobody who they are")
	}
	b.logIn(s.me)
	if b.path() != "/checkout" {
		b.fail("the login leads elsewhere")
	}
	b.now("CNY 25.00", "1 Lane")
	b.arrive(chromedp.DoubleClick(chromedp.CSS("form[action='/checkout'] button")))
	eventually(t, glance, "the order's page", func() (bool, string) { return strings.HasPrefix(b.path(), "/orders/"), b.path() })
	place := b.path()
	b.says("Paid", "1 Lane")
	b.shoot("order-paid")

	b.back()
	if b.path() == "/checkout" && eval[bool](b, "!!document.querySelector(\"form[action='/checkout']\")") {
		eval[bool](b, "document.querySelector(\"form[action='/checkout'] button\").click(); true") // the old form: the same wish
		eventually(t, glance, "the same order", func() (bool, string) { return b.path() == place, b.path() })
	}
	b.open("/orders")
	if n := eval[int](b, `document.querySelectorAll("tbody tr").length`); n != 1 {
		b.fail("%d orders, want 1", n)
	}
	b.open("/wallet")
	b.now("CNY 475.00")
	b.sound()
}

// Who comes after sees nothing of who went, forward or back.
func oneAfterTheOther(t *testing.T, s *stand) {
	b := s.tab(t)
	b.logIn(s.me)
	b.open("/wallet")
	b.now("CNY 475.00")
	b.open("/account")
	b.now(s.me.phone)
	b.press("header form[action='/logout'] button")
	for range 2 {
		b.back()
		if text := b.text(); strings.Contains(text, "475.00") || strings.Contains(text, s.me.phone) {
			b.fail("after the logout, going back shows what was there")
		}
	}
	b.open("/login")
	b.logIn(s.there)
	for _, path := range []string{"/orders", "/wallet", "/account", "/cart"} {
		b.open(path)
		if text := b.text(); strings.Contains(text, "475.00") || strings.Contains(text, s.me.phone) || strings.Contains(text, "1 Lane") {
			b.fail("the second sees the first one's things")
		}
	}
	b.now("slot ")
	b.sound()
}

// pay sends money by the forms and ends at the transfer's page.
func (b *tab) pay(to *shopper, amount, masked string) {
	b.t.Helper()
	b.open("/transfers/new")
	b.fill("#phone", to.phone, "#amount", amount)
	b.press("form[action='/transfers/preview'] button")
	b.now(masked, to.phone, "CNY "+amount)
	b.press("form[action='/transfers'] button")
	if !strings.HasPrefix(b.path(), "/transfers/") {
		b.fail("the transfer has no page")
	}
}

// Money goes to somebody of the own cell, of another, and of one that is unplugged:
// then the page waits and is told by a stream when it's done, without a new page.
func transfersInTheBrowser(t *testing.T, s *stand) {
	b := s.tab(t)
	b.logIn(s.me)
	b.pay(s.here, "1.00", "T***1")
	b.says("Done")
	b.pay(s.there, "2.00", "T***2")
	b.says("Done")

	t.Cleanup(func() { cellctl(t, "plug", "c2") })
	mustCellctl(t, "unplug", "c2")
	linkIs(t, "c1", "c2", false)
	b.pay(s.there, "3.00", "T***2")
	b.now("On its way")
	if s.code != "" {
		b.look(s.code, "en transfer waiting")
	}
	eval[bool](b, "window.stays = true")
	eventually(t, glance, "the page has its stream", func() (bool, string) { return b.streamed() > 0, "" })
	// S-W06: one stream per tab, and none in the background, so that tabs don't use up the
	// browser's few connections.
	for _, hidden := range []bool{true, false} {
		b.hide(hidden)
		want := map[bool]int{true: 0, false: 1}[hidden]
		eventually(t, glance, fmt.Sprintf("%d streams of a tab that is hidden: %v", want, hidden), func() (bool, string) {
			return b.streams() == want, fmt.Sprint(b.streams())
		})
	}
	told := b.streamed()
	mustCellctl(t, "plug", "c2")
	b.says("Done")
	if !eval[bool](b, "window.stays") || b.streamed() <= told {
		b.fail("the page wasn't told, but loaded anew")
	}
	linkIs(t, "c1", "c2", true)
	b.sound()
}

// The own cell goes away while its user looks at a page: the page says which cell it
// is, the shop and the others go on, and everything is back when the cell is.
func ownCellUnplugged(t *testing.T, s *stand) {
	mine, other := s.tab(t), s.tab(t)
	mine.logIn(s.me)
	mine.open("/wallet")
	other.logIn(s.there)
	t.Cleanup(func() { cellctl(t, "plug", "c1") })
	mustCellctl(t, "unplug", "c1")
	linkIs(t, "c2", "c1", false)
	eventually(t, patience, "the page says who is away", func() (bool, string) {
		status := mine.open("/wallet")
		return status == 503 && strings.Contains(mine.text(), "Cell c1 can't be reached"), mine.text()
	})
	for _, lang := range []string{"zh-Hans", "en"} {
		mine.open("/wallet?lang=" + lang)
		if s.code != "" {
			mine.look(s.code, lang+" away")
		}
	}
	if status := mine.open("/"); status != 200 {
		mine.fail("the shop is away too: %d", status)
	}
	for _, path := range []string{"/", "/wallet", "/orders", "/products/" + s.product} {
		if status := other.open(path); status != 200 {
			other.fail("c2's user gets %d", status)
		}
	}
	mine.open("/wallet")
	mustCellctl(t, "plug", "c1")
	linkIs(t, "c2", "c1", true)
	eventually(t, patience, "the page is back", func() (bool, string) {
		return mine.open("/wallet") == 200, mine.text()
	})
	mine.now("CNY 469.00")
	mine.sound()
	other.sound()
}

// All that costs money works with JavaScript switched off.
func withoutJavaScript(t *testing.T, s *stand) {
	b := s.tab(t)
	b.scripts(false)
	b.logIn(s.me)
	b.open("/products/" + s.product)
	b.press("form[action='/cart/items'] button")
	b.press("a[href='/checkout']")
	b.press("form[action='/checkout'] button")
	if !strings.HasPrefix(b.path(), "/orders/") {
		b.fail("no order's page")
	}
	b.says("Paid") // the page asks for itself again
	b.open("/wallet")
	b.fill("#amount", "10")
	b.press("form[action='/wallet/deposits'] button")
	b.now("CNY 10.00")
	b.pay(s.here, "4.00", "T***1")
	b.says("Done")
	b.open("/?lang=zh-Hans")
	b.now("购物车")
	if b.streamed() != 0 {
		t.Error("JavaScript was on")
	}
	b.sound()
}

// A session that has run out goes on by itself; logged out everywhere, the other
// browser is out too, for good.
func logins(t *testing.T, s *stand) {
	here, there := s.tab(t), s.tab(t)
	here.logIn(s.here)
	there.logIn(s.here)
	here.forget("__Host-session") // as after its ten minutes
	here.open("/account")
	here.now(s.here.phone)
	here.press("main form[action='/logout'] button")
	eventually(t, glance, "the other browser is out", func() (bool, string) {
		there.open("/account")
		return strings.HasPrefix(there.path(), "/login?"), there.path()
	})
	here.open("/account")
	if !strings.HasPrefix(here.path(), "/login?") {
		here.fail("this browser is still in")
	}
	here.sound()
	there.sound()
}

// look has axe look at the page, in the light and in the dark, and keeps a picture of
// one of the two.
func (b *tab) look(code, name string) {
	b.t.Helper()
	b.scheme("light")
	for _, found := range b.barriers(code) {
		b.t.Errorf("%s: axe: %s", name, found)
	}
	if strings.HasPrefix(name, "en") {
		b.shoot(name)
	}
	b.scheme("dark")
	for _, found := range b.barriers(code, "color-contrast") {
		b.t.Errorf("%s in the dark: axe: %s", name, found)
	}
	if !strings.HasPrefix(name, "en") {
		b.shoot(name)
	}
	b.sound()
}

// Every page, in both languages and colour schemes, has no barrier that axe knows and
// nothing that the policy forbids; a picture of each is kept,
// the English in the light, the Chinese in the dark.
func everyPage(t *testing.T, s *stand) {
	if s.code == "" { // the pages are looked at all the same
		fmt.Fprintf(os.Stderr, "SKIPPED: %s: axe-core: %s\n", t.Name(), s.why)
	}
	b := s.tab(t)
	paths := []string{"/", "/categories/home", "/categories/home?sort=price", "/search?q=teapot", "/search?q=nothinglikethis&min=1", "/products/" + s.product,
		"/cart", "/login", "/login?next=%2Fcart&over=1", "/register", "/register/" + s.me.id, "/nowhere", "/demo"}
	guests := len(paths)
	b.open("/products/" + s.product)
	b.press("form[action='/cart/items'] button")
	look := func(name string) { t.Helper(); b.look(s.code, name) }
	for n, lang := range []string{"en", "zh-Hans"} {
		if n > 0 {
			b.press("header form[action='/logout'] button")
			b.open("/products/" + s.product)
			b.press("form[action='/cart/items'] button")
		}
		b.open("/?lang=" + lang)
		for _, path := range paths[:guests] {
			b.open(path)
			look(lang + " guest " + path)
		}
		b.open("/products/" + s.product)
		eval[bool](b, `document.querySelector("input[name='product']").value = "x"; true`) // not a form of this shop
		b.press("form[action='/cart/items'] button")
		look(lang + " failed")
		b.open("/login")
		b.fill("#phone", s.me.phone, "#password", "wrong password")
		b.press("main form[action='/login'] button")
		look(lang + " login refused")
		b.open("/login")
		b.logIn(s.me)
		if n == 0 {
			order, transfer := b.first("/orders", "/orders/"), b.first("/transfers", "/transfers/")
			paths = append(paths, "/cart", "/checkout", "/orders", order, "/account", "/wallet", "/wallet/statement", "/transfers", "/transfers/new", transfer)
		}
		for _, path := range paths[guests:] {
			b.open(path)
			look(lang + " user " + path)
		}
		b.open("/transfers/new")
		b.fill("#phone", s.here.phone, "#amount", "1")
		b.press("form[action='/transfers/preview'] button")
		look(lang + " user transfer confirm")
	}
	// What finds nothing must be able to find something.
	eval[bool](b, `document.body.append(new Image()); document.body.lastChild.src = "https://example.com/x.png"; true`)
	eventually(t, glance, "a planted picture of another host is complained about", func() (bool, string) { return len(b.complaints()) > 0, "" })
	eval[bool](b, `document.body.append(document.createElement("input")); true`)
	if s.code != "" && len(b.barriers(s.code)) == 0 {
		t.Error("axe misses a planted field without a label and a picture without words")
	}
}

// first gives the path of the first link on a page that begins as told.
func (b *tab) first(page, prefix string) string {
	b.t.Helper()
	b.open(page)
	href := eval[string](b, `document.querySelector("tbody a[href^='`+prefix+`']")?.getAttribute("href") ?? ""`)
	if u, err := url.Parse(href); err != nil || href == "" || regexp.MustCompile(`\s`).MatchString(u.Path) {
		b.fail("no link to %s", prefix)
	}
	return href
}
