package storefront

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

var hidden = regexp.MustCompile(`<input type="hidden" name="([a-z]+)" value="([^"]*)">`)

// fill reads the hidden fields of the form with an action.
func fill(t *testing.T, body, action string) url.Values {
	t.Helper()
	for _, f := range forms.FindAllString(body, -1) {
		if strings.Contains(f, `action="`+action+`"`) {
			out := url.Values{}
			for _, m := range hidden.FindAllStringSubmatch(f, -1) {
				out.Set(m[1], m[2])
			}
			return out
		}
	}
	t.Fatalf("no form for %s:\n%s", action, body)
	return nil
}

func TestAGuestBuysAndLogsInOnTheWay(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	form := fill(t, b.get("/products/31").body, "/cart/items")
	form.Set("sku", "32")
	form.Set("quantity", "3")
	b.send("POST", "/cart/items", form).leads(t, "/cart")
	b.get("/cart").is(t, 200, "CNY 37.50", "Oolong &lt;tea&gt;, 250 g")
	if n := len(b.api.calls("PUT /api/v1/cart/items/32")); n != 0 {
		t.Errorf("a guest's cart was written %d times at the API", n)
	}
	b.get("/checkout").leads(t, "/login?next=%2Fcheckout")
	form = fill(t, b.get("/login?next=%2Fcheckout").body, "/login")
	form.Set("phone", "+8613800000001")
	form.Set("password", " spaces count ")
	b.send("POST", "/login", form).leads(t, "/checkout")
	if c := b.api.calls("POST /api/v1/sessions"); len(c) != 1 || !strings.Contains(c[0].body, `" spaces count "`) || c[0].token != "" {
		t.Errorf("logins %+v", c)
	}
	// The cart at home has 2 of it, the guest's 3.
	if c := b.api.calls("PUT /api/v1/cart/items/32"); len(c) != 1 || c[0].body != `{"quantity":3}` || c[0].token != aToken {
		t.Errorf("merged by %+v", c)
	}
	form = fill(t, b.get("/checkout").body, "/checkout")
	form.Set("address", "55")
	b.send("POST", "/checkout", form).leads(t, "/orders/"+number)
	b.send("POST", "/checkout", form).leads(t, "/orders/"+number) // twice: the same wish
	c := b.api.calls("POST /api/v1/orders")
	if len(c) != 2 || c[0].key != form.Get("key") || c[0].key != c[1].key || c[0].body != c[1].body ||
		c[0].body != `{"address_id":"55","expected_total":{"amount":2500,"currency":"CNY"}}` {
		t.Errorf("ordered by %+v", c)
	}
	if b.get("/checkout").body == "" || fill(t, b.get("/checkout").body, "/checkout").Get("key") == form.Get("key") {
		t.Error("a new look has the old key")
	}
}

func TestCookiesAreHeldToThisHost(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	for _, s := range []seen{
		b.post("/login", "phone", "+8613800000001", "password", "x"),
		b.get("/?lang=zh-Hans"),
		b.post("/logout"),
	} {
		for _, c := range s.header.Values("Set-Cookie") {
			if !strings.HasPrefix(c, "__Host-") || !strings.Contains(c, "; Path=/;") || !strings.Contains(c, "HttpOnly") ||
				!strings.Contains(c, "Secure") || !strings.Contains(c, "SameSite=Lax") || strings.Contains(c, "Domain") {
				t.Errorf("cookie %s", c)
			}
		}
		if len(s.header.Values("Set-Cookie")) == 0 {
			t.Error("no cookie was set")
		}
	}
	b.get("/").is(t, 200, "欢迎") // the language stays
	b.get("/?lang=xx").is(t, 200, "欢迎")
	b.get("/orders").leads(t, "/login?next=%2Forders") // nobody is logged in
}

// Two people after each other in one browser: nothing of the first is left.
func TestTheNextUserSeesNothingOfTheFirst(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	b.logIn()
	if s := b.get("/orders"); s.header.Get("Cache-Control") != "no-store" {
		t.Errorf("a user's page may be stored: %v", s.header)
	}
	s := b.post("/logout")
	s.leads(t, "/")
	if s.header.Get("Clear-Site-Data") != `"cache"` {
		t.Error("the browser's cache stays")
	}
	b.get("/cart").is(t, 200, "Your cart is empty")
	b.get("/account").leads(t, "/login?next=%2Faccount")
}

func TestFormsOfOtherOriginsAreRefused(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	b.logIn()
	for _, rt := range routes() {
		path, ok := strings.CutPrefix(rt.pattern, "POST ")
		if !ok {
			continue
		}
		path = strings.NewReplacer("{number}", number, "{id}", "55").Replace(path)
		before := len(b.api.asked)
		for _, with := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Sec-Fetch-Site", "", "Origin", "https://evil.example"}} {
			b.send("POST", path, url.Values{"key": {"0123456789abcdef"}}, with...).is(t, 403, "came from another site")
		}
		if len(b.api.asked) != before {
			t.Errorf("POST %s asked the API", path)
		}
		b.get(path).is(t, map[bool]int{true: 200, false: 404}[hasPage(path)])
	}
}

// hasPage says that a path is a page, too.
func hasPage(path string) bool {
	switch path {
	case "/checkout", "/login", "/register", "/transfers", "/transfers/preview":
		return path != "/transfers/preview" // no transfer has that ID
	}
	return false
}

func TestMoneyIsSentAsItWasLookedAt(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	b.logIn()
	s := b.post("/transfers/preview", "phone", "+8613800000002", "amount", "12.5", "currency", "CNY", "memo", "tea & cake")
	s.is(t, 200, "B***o", "CNY 12.50", "tea &amp; cake", "CNY 5000.00")
	form := fill(t, s.body, "/transfers")
	form.Set("memo", "tea & cake")
	b.send("POST", "/transfers", form).leads(t, "/transfers/99")
	c := b.api.calls("POST /api/v1/transfers")
	if len(c) != 1 || c[0].key != form.Get("key") || c[0].body != `{"to_user":"78","amount":1250,"currency":"CNY","memo":"tea & cake","confirm":"seen"}` &&
		c[0].body != `{"to_user":"78","amount":1250,"currency":"CNY","memo":"tea \u0026 cake","confirm":"seen"}` {
		t.Errorf("sent by %+v", c)
	}
	b.post("/transfers/99/cancel").leads(t, "/transfers/99")
	form = fill(t, b.get("/wallet").body, "/wallet/deposits")
	form.Set("amount", "0.07")
	form.Set("currency", "USD")
	b.send("POST", "/wallet/deposits", form).leads(t, "/wallet/statement?currency=USD")
	b.send("POST", "/wallet/withdrawals", form).leads(t, "/wallet/statement?currency=USD")
	for _, what := range []string{"deposits", "withdrawals"} {
		if c := b.api.calls("POST /api/v1/wallet/" + what); len(c) != 1 || c[0].body != `{"amount":7,"currency":"USD"}` || c[0].key == "" {
			t.Errorf("%s %+v", what, c)
		}
	}
	for _, path := range []string{"/transfers", "/wallet/deposits", "/checkout", "/register"} {
		b.post(path, "amount", "1", "currency", "CNY", "confirm", "x", "total", "1").is(t, 400, "isn&#39;t whole") // no key
	}
}

func TestNextStaysInTheShop(t *testing.T) {
	t.Parallel()
	for next, want := range map[string]string{
		"/checkout": "/checkout", "/search?q=a+b": "/search?q=a+b", "": "/", "//evil.example": "/", "https://evil.example/": "/",
		"/\\evil.example": "/", "\\/evil": "/", "javascript:alert(1)": "/", "/\t/evil": "/", "orders": "/", "/a\r\nSet-Cookie: x": "/", "///evil": "/",
	} {
		if got := local(next); got != want {
			t.Errorf("local(%q) = %q, want %q", next, got, want)
		}
	}
	b := visitShop(t)
	b.post("/login", "phone", "+1", "password", "x", "next", "//evil.example").leads(t, "/")
}

func TestGuestCartSurvivesNonsense(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "_", "1-2", "1-2-0", "1-2-100", "0-2-1", "1-x-1", "1-2-3-4", "-1-2-3", strings.Repeat("9", 20) + "-1-1"} {
		if got := readGuest(text); len(got) != 0 {
			t.Errorf("readGuest(%q) = %v", text, got)
		}
	}
	items := readGuest("31-32-1")
	for n := range 30 {
		items, _ = set(items, guestItem{"31", "10" + string(rune('0'+n%10)) + string(rune('0'+n/10)), 1})
	}
	if len(items) != maxGuest || len(readGuest(writeGuest(items))) != maxGuest {
		t.Errorf("%d items", len(items))
	}
	if items, ok := set(items, guestItem{"31", "32", 0}); !ok || len(items) != maxGuest-1 {
		t.Errorf("taken out: %d items", len(items))
	}
}

func TestPicturesAndFiles(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	for category := range shapes {
		one, two := b.get("/pictures/"+category+"/31.svg"), b.get("/pictures/"+category+"/32.svg")
		one.is(t, 200, "<svg", "viewBox")
		if one.body == two.body || one.header.Get("Content-Type") != "image/svg+xml" || strings.Contains(one.body, "{") || len(one.body) > 2000 {
			t.Errorf("%s: %s", category, one.body)
		}
	}
	b.get("/pictures/nowhere/31.svg").is(t, 200, "<svg")
	for _, path := range []string{"/pictures/food/x.svg", "/pictures/food/31.png", "/pictures/food/<.svg", "/assets/x/nothing.css", "/assets/x/..%2fdoc.go"} {
		b.get(path).is(t, http.StatusNotFound)
	}
	link := regexp.MustCompile(`href="(/assets/[0-9a-f]{12}/style.css)"`).FindStringSubmatch(b.get("/").body)
	if link == nil {
		t.Fatal("no style")
	}
	if s := b.get(link[1]); s.status != 200 || !strings.Contains(s.header.Get("Cache-Control"), "immutable") || s.header.Get("Content-Type") != "text/css; charset=utf-8" {
		t.Errorf("style: %d %v", s.status, s.header)
	}
	if s := b.get("/assets/old/style.css"); s.status != 200 || s.header.Get("Cache-Control") != "no-cache" {
		t.Errorf("old style: %d %v", s.status, s.header)
	}
}
