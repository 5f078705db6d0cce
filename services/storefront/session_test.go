package storefront

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// remember gives the browser a refresh token and no session: it comes back later.
func (b *browser) remember(session string) {
	b.t.Helper()
	u, err := url.Parse(b.url)
	if err != nil {
		b.t.Fatal(err)
	}
	cookies := []*http.Cookie{{Name: cookieRefresh, Value: "cmVmcmVzaA-1", Path: "/", Secure: true}}
	if session != "" {
		cookies = append(cookies, &http.Cookie{Name: cookieSession, Value: session, Path: "/", Secure: true})
	}
	b.http.Jar.SetCookies(u, cookies)
}

func (b *browser) has(name string) string {
	u, err := url.Parse(b.url)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range b.http.Jar.Cookies(u) {
		if c.Name == name {
			return c.Value
		}
	}
	return ""
}

const refreshing = "POST /api/v1/sessions/refresh"

// Who comes back goes on, whatever they do first; the next refresh token is kept.
func TestASessionGoesOn(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	b.remember("")
	s := b.get("/orders")
	s.is(t, 200, number)
	if s.header.Get("Cache-Control") != "no-store" || b.has(cookieSession) != aToken || b.has(cookieRefresh) != "cmVmcmVzaA-2" {
		t.Errorf("%v, cookies %q %q", s.header, b.has(cookieSession), b.has(cookieRefresh))
	}
	b.get("/wallet").is(t, 200)
	if c := b.api.calls(refreshing); len(c) != 1 || c[0].token != "" || !strings.Contains(c[0].body, "cmVmcmVzaA-1") {
		t.Errorf("refreshed by %+v", c)
	}
	other := visitShop(t) // a form comes first, and isn't lost
	other.remember("")
	other.post("/cart/items", "product", "31", "sku", "32", "quantity", "3", "how", "set").leads(t, "/cart")
	if c := other.api.calls("PUT /api/v1/cart/items/32"); len(c) != 1 || c[0].token != aToken {
		t.Errorf("the form was sent as %+v", c)
	}
}

func TestASessionThatCannotGoOn(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	b.api.set(refreshing, answer{status: 401, code: "TOKEN_REUSED"})
	b.remember("")
	b.get("/orders").leads(t, "/login?next=%2Forders")
	if b.has(cookieRefresh) != "" {
		t.Error("the refused token is kept")
	}

	away := visitShop(t)
	away.api.set(refreshing, unreachable)
	away.remember("")
	away.get("/orders").is(t, 503, "Cell c3 can&#39;t be reached")
	away.get("/").is(t, 200, "Oolong") // the shop goes on
	if away.has(cookieRefresh) == "" {
		t.Error("the token is lost while the home is away")
	}

	denied := visitShop(t) // logged out everywhere, in another browser
	denied.remember("old")
	denied.api.set("GET /api/v1/orders", answer{status: 401, code: "TOKEN_EXPIRED"})
	denied.api.set(refreshing, answer{status: 401, code: "TOKEN_EXPIRED"})
	denied.get("/orders").leads(t, "/orders")
	denied.get("/orders").leads(t, "/login?next=%2Forders")
	other := visitShop(t) // somebody logs in where another was, and gets a session alone
	other.api.set(refreshing, unreachable)
	other.remember("")
	other.post("/login", "phone", "13900000001", "password", "secret", "next", "/").leads(t, "/")
	if other.has(cookieSession) == "" || other.has(cookieRefresh) != "" {
		t.Errorf("the one before would go on: session %q, refresh %q", other.has(cookieSession), other.has(cookieRefresh))
	}
	loops := visitShop(t) // a token that is refused as soon as it's made
	loops.remember("old")
	loops.api.set("GET /api/v1/orders", answer{status: 401, code: "TOKEN_EXPIRED"})
	loops.get("/orders").leads(t, "/orders")
	loops.get("/orders").leads(t, "/login?next=%2Forders&over=1")
}

func TestLogOutHereAndEverywhere(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	b.remember("") // the session is over, and its home is away: nothing can be told, and the page says so
	b.api.set("POST /api/v1/sessions/refresh", unreachable)
	b.post("/logout", "everywhere", "1").is(t, 503, "Cell c3 can&#39;t be reached")
	if b.has(cookieRefresh) == "" {
		t.Error("a login that lives on elsewhere is forgotten here")
	}
	b.remember(aToken)
	b.post("/logout").leads(t, "/")
	if c := b.api.calls("POST /api/v1/sessions/end"); len(c) != 1 || !strings.Contains(c[0].body, "cmVmcmVzaA-1") {
		t.Errorf("ended by %+v", c)
	}
	if len(b.api.calls("DELETE /api/v1/sessions")) != 0 || b.has(cookieRefresh) != "" || b.has(cookieSession) != "" {
		t.Error("more or less than this browser's login ended")
	}
	b.remember(aToken)
	form := fill(t, b.get("/account").body, "/logout")
	if form.Get("everywhere") != "" {
		t.Error("the header's button logs out everywhere")
	}
	b.api.set("DELETE /api/v1/sessions", unreachable)
	b.post("/logout", "everywhere", "1").is(t, 503, "Cell c3 can&#39;t be reached")
	if b.has(cookieSession) == "" {
		t.Error("logged out here, and nowhere else: the page says that it failed")
	}
	b.api.set("DELETE /api/v1/sessions", answer{status: 204})
	b.post("/logout", "everywhere", "1").leads(t, "/")
	if c := b.api.calls("DELETE /api/v1/sessions"); len(c) != 2 || c[1].token != aToken || b.has(cookieRefresh) != "" {
		t.Errorf("everywhere: %+v", c)
	}
}
