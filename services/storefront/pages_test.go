package storefront

import (
	"fmt"
	"html/template"
	"regexp"
	"strings"
	"testing"
)

type reading struct {
	path  string
	users bool
	says  string
}

// all are the pages that are got, and who may.
func all() []reading {
	return []reading{
		{"/", false, "Oolong &lt;tea&gt;"},
		{"/categories/food", false, "Food and drink"},
		{"/categories/food?sort=price", false, "Oolong"},
		{"/search?q=tea", false, "About 1 found"},
		{"/search?q=tea", false, "Food and drink (7)"},
		{"/products/31", false, "only 3 left"},
		{"/demo", false, "p&lt;1"},
		{"/cart", false, "Cart"},
		{"/login", false, "Password"},
		{"/register", false, `name="key"`},
		{"/register/88", false, template.HTMLEscapeString("hasn't answered yet")},
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

// inline finds what the policy forbids, and other hosts.
var inline = regexp.MustCompile(`(?i)<script[^>]*>[^<]|<style|\sstyle=|\son[a-z]+=|javascript:|(?:src|href|action)="(?:https?:)?//`)

// lawful checks what holds for every page: headers, size, language, one main
// heading, labels, the badge.
func lawful(t *testing.T, s seen, lang string, session bool) {
	t.Helper()
	h := s.header
	if csp := h.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none';") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") {
		t.Errorf("policy %q", csp)
	}
	if got := h.Get("Cache-Control"); session && got != "no-store" || got == "" || strings.Contains(got, "public") {
		t.Errorf("Cache-Control %q with session %v", got, session)
	}
	if !strings.Contains(h.Get("Vary"), "Accept-Language") || !strings.Contains(h.Get("Vary"), "Cookie") || h.Get("Content-Language") != lang {
		t.Errorf("Vary %q, Content-Language %q", h.Get("Vary"), h.Get("Content-Language"))
	}
	if len(s.body) > 60_000 {
		t.Errorf("the page has %d bytes", len(s.body))
	}
	if m := inline.FindString(s.body); m != "" {
		t.Errorf("the page has %q", m)
	}
	for _, want := range []string{`<html lang="` + lang + `">`, `<a class="skip" href="#main">`, `<main id="main"`, "<footer>", "c1"} {
		if strings.Count(s.body, want) < 1 {
			t.Errorf("the page has no %s", want)
		}
	}
	if strings.Count(s.body, "<h1>") != 1 || strings.Contains(s.body, "ZgotmplZ") || strings.Contains(s.body, "secret detail") {
		t.Errorf("the page isn't sound:\n%s", s.body)
	}
	labelled(t, s.body)
}

var (
	fields = regexp.MustCompile(`<(?:input|select)[^>]*>`)
	id     = regexp.MustCompile(`\sid="([^"]+)"`)
	forms  = regexp.MustCompile(`(?s)<form[^>]*>.*?</form>`)
)

// labelled checks that each field of the page has a label, and each ID is there once.
func labelled(t *testing.T, body string) {
	t.Helper()
	for _, f := range fields.FindAllString(body, -1) {
		if strings.Contains(f, `type="hidden"`) || strings.Contains(f, `type="radio"`) { // these stand in their label
			continue
		}
		m := id.FindStringSubmatch(f)
		if m == nil || !strings.Contains(body, `for="`+m[1]+`"`) {
			t.Errorf("no label for %s", f)
		}
	}
	have := map[string]bool{}
	for _, m := range id.FindAllStringSubmatch(body, -1) {
		if have[m[1]] {
			t.Errorf("two elements are called %s", m[1])
		}
		have[m[1]] = true
	}
}

func TestEachPageInBothLanguages(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	for _, lang := range languages {
		for _, p := range all() {
			t.Run(lang+p.path, func(t *testing.T) {
				s := b.get(p.path, "Accept-Language", lang)
				if p.users {
					if s.status != 303 || !strings.HasPrefix(s.header.Get("Location"), "/login?next=") {
						t.Errorf("without a session: %d to %q", s.status, s.header.Get("Location"))
					}
					return
				}
				s.is(t, 200)
				lawful(t, s, lang, false)
			})
		}
	}
	b.logIn()
	for _, lang := range languages {
		for _, p := range all() {
			t.Run("with a session "+lang+p.path, func(t *testing.T) {
				s := b.get(p.path, "Accept-Language", lang)
				s.is(t, 200)
				lawful(t, s, lang, true)
				if lang == "en" {
					s.is(t, 200, p.says)
				}
			})
		}
	}
	b.get("/orders").is(t, 200, "Page from cell c1", "data from cell c2", "slot 4242", "route version 17")
}

// A page with all that it can hold is still small.
func TestFullPagesAreSmall(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	b.logIn()
	var products, orders, entries, lines []string
	for i := range 50 {
		long := strings.Repeat("长", 60)
		if i < 24 {
			products = append(products, fmt.Sprintf(`{"id":"%d","seller_id":"9","title":%q,"description":"","category":"food","active":true,"skus":[{"id":"3","title":"","price":1250,"currency":"CNY"}],"version":1,"created_at":%q,"updated_at":%q}`, 9000000000000000+i, long, at, at))
		}
		if i < 20 {
			orders = append(orders, summaryJSON("PAID")+"}")
			entries = append(entries, fmt.Sprintf(`{"seq":%d,"from":"external","to":"available","amount":100000,"currency":"CNY","ref":"deposit:9000000000000000","step":"deposit","available":100000,"frozen":0,"created_at":%q,"memo":%q}`, i+1, at, long))
		}
		lines = append(lines, fmt.Sprintf(`{"sku":"%d","quantity":2,"available":true,"product_id":"31","seller_id":"9","title":%q,"price":{"amount":1250,"currency":"CNY"}}`, 9000000000000000+i, long))
	}
	b.api.set("GET /api/v1/products", answer{status: 200, body: items(products...)})
	b.api.set("GET /api/v1/orders", answer{status: 200, body: items(orders...)})
	b.api.set("GET /api/v1/wallet/statement", answer{status: 200, body: items(entries...)})
	b.api.set("GET /api/v1/cart", answer{status: 200, body: `{"items":[` + strings.Join(lines, ",") + `],"total":{"amount":2500,"currency":"CNY"}}`})
	for _, path := range []string{"/", "/categories/food", "/orders", "/wallet/statement", "/cart", "/checkout"} {
		s := b.get(path)
		s.is(t, 200)
		lawful(t, s, "en", true)
	}
}

// No GET changes anything: each form that does is a POST, with a key where money
// is at stake.
func TestFormsThatChangeSomethingArePosts(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	b.logIn()
	keyed := regexp.MustCompile(`action="/(?:checkout|transfers|wallet/deposits|register)"`)
	n := 0
	for _, p := range all() {
		for _, f := range forms.FindAllString(b.get(p.path).body, -1) {
			if strings.Contains(f, `action="/search"`) {
				continue
			}
			n++
			if !strings.Contains(f, `method="post"`) {
				t.Errorf("%s: %s", p.path, f)
			}
			if keyed.MatchString(f) && !regexp.MustCompile(`name="key" value="[A-Z2-7]{20,}"`).MatchString(f) {
				t.Errorf("%s has no key: %s", p.path, f)
			}
		}
	}
	if n < 20 {
		t.Errorf("saw %d forms: this test looks in the wrong place", n)
	}
	for _, a := range b.api.asked {
		if !strings.HasPrefix(a.what, "GET ") && a.what != "POST /api/v1/sessions" {
			t.Errorf("a page that was only looked at asked for %s", a.what)
		}
	}
}
