package storefront

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"example.com/cellmart/platform/cellkit/call"
)

// unreachable is the API's answer for a home that is away.
var unreachable = answer{status: 503, code: "CELL_UNREACHABLE", body: "c3"}

// S-W01: every designed state of a page, in both languages.
func TestDesignedStates(t *testing.T) {
	t.Parallel()
	ok := func(body string) answer { return answer{status: 200, body: body} }
	refused := func(status int, code string) answer { return answer{status: status, code: code} }
	const empty = `{"items":[]}`
	for _, tc := range []struct {
		name   string
		api    map[string]answer
		guest  bool
		path   string
		status int
		says   string
		zh     string
	}{
		{"no products", map[string]answer{"GET /api/v1/products": ok(empty)}, true, "/", 200, "nothing here yet", "还没有商品"},
		{"products away, the rest is there", map[string]answer{"GET /api/v1/products": refused(503, "UNAVAILABLE")}, true, "/", 200, "can&#39;t be shown", "暂时无法显示商品"},
		{"categories away, the rest is there", map[string]answer{"GET /api/v1/categories": refused(503, "UNAVAILABLE")}, true, "/", 200, "Oolong", "Oolong"},
		{"the catalog is away", map[string]answer{"GET /api/v1/products": refused(503, "CATALOG_NOT_READY"), "GET /api/v1/categories": refused(503, "CATALOG_NOT_READY")}, true, "/", 503, "can&#39;t be done at the moment", "暂时无法完成"},
		{"search away", map[string]answer{"GET /api/v1/search": refused(503, "SEARCH_UNAVAILABLE")}, true, "/search?q=tea", 503, "The shop goes on", "商店照常营业"},
		{"sorting away", map[string]answer{"GET /api/v1/search": refused(503, "SEARCH_UNAVAILABLE")}, true, "/categories/food?sort=price", 200, "newest first", "上架时间"},
		{"nothing found", map[string]answer{"GET /api/v1/search": ok(`{"items":[],"total_approx":0,"lag":{}}`)}, true, "/search?q=x", 200, "isn&#39;t known", "未知"},
		{"lag unknown is not 0", map[string]answer{"GET /api/v1/search": ok(`{"items":[],"total_approx":0,"lag":{"c1":{"ms":5,"age_ms":1,"state":"live"},"c2":{"ms":null,"age_ms":null,"state":"unknown"}}}`)}, true, "/search?q=x", 200, "isn&#39;t known", "未知"},
		{"a category that isn't there", nil, true, "/categories/nowhere", 404, "no such page", "没有这个页面"},
		{"a product that isn't there", nil, true, "/products/404", 404, "no such page", "没有这个页面"},
		{"a page that isn't there", nil, true, "/nowhere/at/all", 404, "no such page", "没有这个页面"},
		{"a product that isn't sold any more", map[string]answer{"GET /api/v1/products/31": ok(`{"id":"31","seller_id":"9","title":"Old","description":"","category":"food","active":false,"skus":[{"id":"32","title":"","price":1,"currency":"CNY"}],"version":1,"created_at":"` + at + `","updated_at":"` + at + `"}`)}, true, "/products/31", 200, "not for sale", "已下架"},
		{"a product whose seller's cell is away", map[string]answer{"GET /api/v1/products/31/stock": unreachable}, true, "/products/31", 200, "stock not known", "暂时不知道库存"},
		{"a product that is sold out", nil, true, "/products/31", 200, "sold out", "已售完"},
		{"an empty cart", map[string]answer{"GET /api/v1/cart": ok(empty)}, false, "/cart", 200, "Your cart is empty", "购物车是空的"},
		{"a cart with something gone", map[string]answer{"GET /api/v1/cart": ok(items(`{"sku":"32","quantity":1,"available":false}`))}, false, "/cart", 200, "can&#39;t be ordered as it is", "目前无法下单"},
		{"an empty checkout, back after the order", map[string]answer{"GET /api/v1/cart": ok(empty)}, false, "/checkout", 200, "Your cart is empty", "购物车是空的"},
		{"too little money is said before", map[string]answer{"GET /api/v1/wallet": ok(`{"balances":[]}`)}, false, "/checkout", 200, "not enough money", "余额不足"},
		{"wallet away at the checkout", map[string]answer{"GET /api/v1/wallet": refused(503, "UNAVAILABLE")}, false, "/checkout", 200, "wallet can&#39;t be shown", "无法显示您的钱包"},
		{"addresses away at the checkout", map[string]answer{"GET /api/v1/me/addresses": refused(503, "UNAVAILABLE")}, false, "/checkout", 200, "addresses can&#39;t be shown", "无法显示您的地址"},
		{"no address yet", map[string]answer{"GET /api/v1/me/addresses": ok(empty)}, false, "/checkout", 200, "no address yet", "还没有地址"},
		{"no orders", map[string]answer{"GET /api/v1/orders": ok(empty)}, false, "/orders", 200, "ordered nothing yet", "还没有订单"},
		{"an order that waits", map[string]answer{"GET /api/v1/orders/" + number: ok(orderJSON("PENDING"))}, false, "/orders/" + number, 200, "hasn&#39;t answered yet", "尚未答复"},
		{"an order being confirmed", map[string]answer{"GET /api/v1/orders/" + number: ok(orderJSON("RESERVED"))}, false, "/orders/" + number, 200, "sellers are confirming", "等待卖家确认"},
		{"an order out of stock", map[string]answer{"GET /api/v1/orders/" + number: ok(strings.Replace(orderJSON("CANCELLED"), `"lines_count"`, `"reason":"OUT_OF_STOCK","lines_count"`, 1))}, false, "/orders/" + number, 200, "not enough in stock", "库存不足"},
		{"somebody else's order", map[string]answer{"GET /api/v1/orders/" + number: refused(404, "NOT_FOUND")}, false, "/orders/" + number, 404, "no such page", "没有这个页面"},
		{"forbidden is not there", map[string]answer{"GET /api/v1/orders/" + number: refused(403, "NOT_A_SELLER")}, false, "/orders/" + number, 404, "no such page", "没有这个页面"},
		{"the home is away", map[string]answer{"GET /api/v1/orders": unreachable}, false, "/orders", 503, "Cell c3 can&#39;t be reached", "无法连接单元 c3"},
		{"from a standby", map[string]answer{"GET /api/v1/orders": {status: 200, body: empty, header: http.Header{"X-Stale": {"c3"}}}}, false, "/orders", 200, "a little old", "略有延迟"},
		{"an empty wallet", map[string]answer{"GET /api/v1/wallet": ok(`{"balances":[]}`), "GET /api/v1/transfers": ok(empty)}, false, "/wallet", 200, "no money in your wallet yet", "还没有钱"},
		{"transfers away", map[string]answer{"GET /api/v1/transfers": refused(503, "UNAVAILABLE")}, false, "/wallet", 200, "transfers can&#39;t be shown", "无法显示您的转账"},
		{"an empty statement", map[string]answer{"GET /api/v1/wallet/statement": ok(empty)}, false, "/wallet/statement?currency=JPY", 200, "Nothing has been posted", "还没有记录"},
		{"a transfer that waits", nil, false, "/transfers/99", 200, "asked 3 times", "已询问 3 次"},
		{"a transfer that is done", map[string]answer{"GET /api/v1/transfers/99": ok(transferJSON("SETTLED"))}, false, "/transfers/99", 200, "Done", "已完成"},
		{"a registration that waits", nil, true, "/register/88", 200, "hasn&#39;t answered yet", "尚未答复"},
		{"a registration that is done", map[string]answer{"GET /api/v1/operations/88": ok(`{"id":"88","state":"DONE","user_id":"77"}`)}, true, "/register/88", 200, "account is there", "账号已创建"},
		{"a registration that failed", map[string]answer{"GET /api/v1/operations/88": ok(`{"id":"88","state":"FAILED","reason":"PHONE_TAKEN"}`)}, true, "/register/88", 200, "has an account", "已有账号"},
		{"addresses away", map[string]answer{"GET /api/v1/me/addresses": refused(503, "UNAVAILABLE")}, false, "/account", 200, "addresses can&#39;t be shown", "无法显示您的地址"},
		{"a bug: the request id and nothing more", map[string]answer{"GET /api/v1/orders": refused(500, "INTERNAL")}, false, "/orders", 500, "<code>rid-7</code>", "已记录"},
		{"an answer that is no problem", map[string]answer{"GET /api/v1/orders": {status: 500, body: `{}`}}, false, "/orders", 503, "can&#39;t be done", "暂时无法完成"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := visitShop(t)
			if tc.name == "an answer that is no problem" {
				b.api.t = nil // it's against the document on purpose
			}
			if !tc.guest {
				b.logIn()
			}
			for what, a := range tc.api {
				b.api.set(what, a)
			}
			for lang, says := range map[string]string{"en": tc.says, "zh-Hans": tc.zh} {
				s := b.get(tc.path, "Accept-Language", lang, "X-Request-Id", "rid-7")
				s.is(t, tc.status, says)
				lawful(t, s, lang, !tc.guest)
				if (s.status == 503) != (s.header.Get("Retry-After") != "") {
					t.Errorf("%d with Retry-After %q", s.status, s.header.Get("Retry-After"))
				}
			}
		})
	}
}

// Only what goes on by itself is asked for again.
func TestPagesThatWaitAreAskedForAgain(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	b.logIn()
	for state, waits := range map[string]bool{"PENDING": true, "RESERVED": true, "PAID": false, "CANCELLED": false} {
		b.api.set("GET /api/v1/orders/"+number, answer{status: 200, body: orderJSON(state)})
		s := b.get("/orders/" + number)
		for _, part := range []string{`<meta http-equiv="refresh"`, "live.js", `data-wait="2000"`, `aria-live="polite"`} {
			if strings.Contains(s.body, part) != waits {
				t.Errorf("%s: %q is there: %v", state, part, !waits)
			}
		}
		if strings.Contains(s.body, "/cancel") != waits {
			t.Errorf("%s: it can be cancelled: %v", state, !waits)
		}
	}
}

// What a form is told, and under which key it is sent next. S-O11: prices that changed
// are shown, and asked about again.
func TestRefusedForms(t *testing.T) {
	t.Parallel()
	const key = "KEYKEYKEYKEYKEYKEYKEY"
	order := []string{"key", key, "total", "2500", "currency", "CNY", "address", "55"}
	send := []string{"key", key, "to", "78", "amount", "12.50", "currency", "CNY", "confirm", "seen", "memo", "<hi>", "phone", "+1"}
	for _, tc := range []struct {
		path   string
		form   []string
		what   string
		a      answer
		says   string
		again  bool // the same wish under the same key
		action string
	}{
		{"/checkout", order, "POST /api/v1/orders", answer{status: 422, code: "OUT_OF_STOCK"}, "Nothing was charged", false, "/checkout"},
		{"/checkout", order, "POST /api/v1/orders", answer{status: 422, code: "INSUFFICIENT_FUNDS"}, "not enough money", false, "/checkout"},
		{"/checkout", order, "POST /api/v1/orders", answer{status: 409, code: "PRICE_CHANGED"}, "what it costs now", false, "/checkout"},
		{"/checkout", order, "POST /api/v1/orders", answer{status: 409, code: "CART_CHANGED"}, "cart changed", false, "/checkout"},
		{"/checkout", order, "POST /api/v1/orders", answer{status: 409, code: "CHECKOUT_IN_PROGRESS"}, "Look at your orders", false, "/checkout"},
		{"/checkout", order, "POST /api/v1/orders", answer{status: 422, code: "IDEMPOTENCY_KEY_REUSED"}, "sent before", false, "/checkout"},
		{"/checkout", order, "POST /api/v1/orders", answer{status: 503, code: "OUTCOME_UNKNOWN", body: "c3"}, "isn&#39;t known", true, "/checkout"},
		{"/checkout", order, "POST /api/v1/orders", unreachable, "Cell c3", true, "/checkout"},
		{"/transfers", send, "POST /api/v1/transfers", answer{status: 422, code: "NOT_CONFIRMED"}, "Look at it again", false, "/transfers/preview"},
		{"/transfers", send, "POST /api/v1/transfers", answer{status: 422, code: "INSUFFICIENT_FUNDS"}, "not enough money", false, "/transfers/preview"},
		{"/transfers", send, "POST /api/v1/transfers", answer{status: 503, code: "OUTCOME_UNKNOWN"}, "once only", true, "/transfers"},
		{"/transfers/preview", send, "POST /api/v1/transfers/preview", answer{status: 422, code: "UNKNOWN_PAYEE"}, "Nobody has", false, "/transfers/preview"},
		{"/transfers/preview", send, "POST /api/v1/transfers/preview", answer{status: 400, code: "SELF_TRANSFER"}, "the same", false, "/transfers/preview"},
		{"/wallet/deposits", send, "POST /api/v1/wallet/deposits", answer{status: 422, code: "BALANCE_LIMIT"}, "hold that much", false, "/wallet/deposits"},
		{"/wallet/withdrawals", send, "POST /api/v1/wallet/withdrawals", answer{status: 503, code: "OUTCOME_UNKNOWN"}, "once only", true, "/wallet/withdrawals"},
		{"/login", []string{"phone", "+1", "password", "hunter22"}, "POST /api/v1/sessions", answer{status: 401, code: "INVALID_CREDENTIALS"}, "is wrong", false, "/login"},
		{"/login", []string{"phone", "+1", "password", "hunter22"}, "POST /api/v1/sessions", answer{status: 429, code: "TOO_MANY_LOGINS"}, "Too many people", false, "/login"},
		{"/register", []string{"key", key, "phone", "+1", "password", "hunter22", "name", "A"}, "POST /api/v1/users", answer{status: 409, code: "PHONE_TAKEN"}, "has an account", false, "/register"},
		{"/register", []string{"key", key, "phone", "+1", "password", "hunter22", "name", "A"}, "POST /api/v1/users", answer{status: 503, code: "OUTCOME_UNKNOWN"}, "once only", true, "/register"},
		{"/account/addresses", []string{"line", "1 <Lane>"}, "POST /api/v1/me/addresses", answer{status: 422, code: "TOO_MANY_ADDRESSES"}, "at most 20", false, "/account/addresses"},
		{"/account/name", []string{"name", "x"}, "PATCH /api/v1/me", answer{status: 400, code: "INVALID_FIELD"}, "isn&#39;t filled in", false, "/account/name"},
	} {
		t.Run(fmt.Sprint(tc.path, " ", tc.a.code, tc.a.status), func(t *testing.T) {
			b := visitShop(t)
			b.logIn()
			b.api.set(tc.what, tc.a)
			s := b.post(tc.path, tc.form...)
			want := tc.a.status
			if tc.a.code == "INVALID_CREDENTIALS" {
				want = 422 // 401 would be for the browser itself
			}
			s.is(t, want, tc.says, `role="alert"`)
			lawful(t, s, "en", true)
			if strings.Contains(s.body, "hunter22") {
				t.Error("the password is written back")
			}
			next := fill(t, s.body, tc.action)
			if tc.again && next.Get("key") != key {
				t.Errorf("sent again under %q, not under the same key", next.Get("key"))
			}
			if !tc.again && strings.Contains(s.body, key) {
				t.Error("a new wish has the old key")
			}
			if !tc.again || tc.path == "/register" {
				return
			}
			for i := 0; i < len(tc.form); i += 2 {
				if got := next.Get(tc.form[i]); got != strings.NewReplacer("<", "&lt;", ">", "&gt;", "+", "&#43;").Replace(tc.form[i+1]) {
					t.Errorf("%s is sent again as %q, not %q", tc.form[i], got, tc.form[i+1])
				}
			}
		})
	}
}

// S-O07: of a double click the second request meets the first one's key, and gets
// its answer.
func TestScenario_O07_DoubleClickGetsOneAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		v := &visit{client: &client{ctx: t.Context()}}
		trying := func(times int) func() error {
			return func() error {
				if n++; n <= times {
					return call.Problem{Status: 409, Code: codeInFlight}.Err()
				}
				return nil
			}
		}
		if err := v.patiently(trying(5)); err != nil || n != 6 {
			t.Errorf("after %d tries: %v", n, err)
		}
		n = 0
		if err := v.patiently(trying(1000)); code(err) != codeInFlight || n < 10 || n > 30 {
			t.Errorf("%d tries, then %v", n, err)
		}
	})
}

// S-W09: what was ended already shows how it stands now, not an error alone.
func TestScenario_W09_EndedTwice(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	b.logIn()
	b.post("/orders/"+number+"/cancel").leads(t, "/orders/"+number)
	b.api.set("POST /api/v1/orders/"+number+"/cancel", answer{status: 409, code: "ORDER_NOT_CANCELLABLE"})
	b.post("/orders/"+number+"/cancel").is(t, 409, "can&#39;t be cancelled any more", "Order "+number, "Paid")
	b.api.set("POST /api/v1/transfers/99/cancel", answer{status: 409, code: "TRANSFER_ENDED"})
	b.api.set("GET /api/v1/transfers/99", answer{status: 200, body: transferJSON("SETTLED")})
	b.post("/transfers/99/cancel").is(t, 409, "come to its end", "Done")
	b.api.set("DELETE /api/v1/me/addresses/55", answer{status: 404, code: "NOT_FOUND"})
	b.post("/account/addresses/55/delete").leads(t, "/account")
}

// S-O13: each page with an ID of somebody else's is 404, whatever is done to it.
func TestScenario_O13_OthersThingsAreNotThere(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	b.logIn()
	b.api.mu.Lock()
	for what := range b.api.answers {
		if strings.Contains(what, "/orders/"+number) || strings.Contains(what, "/transfers/99") {
			delete(b.api.answers, what)
		}
	}
	b.api.mu.Unlock()
	for _, path := range []string{"/orders/" + number, "/transfers/99"} {
		b.get(path).is(t, 404, "no such page")
		b.post(path+"/cancel").is(t, 404, "no such page")
	}
}

// A session that has run out leads to the login and back.
func TestASessionThatIsOver(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	b.logIn()
	b.api.set("GET /api/v1/orders", answer{status: 401, code: "TOKEN_EXPIRED"})
	b.get("/orders?cursor=x").leads(t, "/login?next=%2Forders%3Fcursor%3Dx&over=1")
	b.get("/login?next=%2Forders&over=1").is(t, 200, "session is over")
	b.get("/cart").is(t, 200, "Your cart is empty") // a guest's
	b.logIn()
	b.api.set("POST /api/v1/orders", answer{status: 401, code: "TOKEN_EXPIRED"})
	s := b.send("POST", "/checkout", map[string][]string{"key": {"0123456789abcdef"}, "total": {"1"}, "currency": {"CNY"}}, "Referer", b.url+"/checkout")
	s.leads(t, "/login?next=%2Fcheckout&over=1")
}

// An API that breaks off has given no answer: of a write nobody knows what became.
func TestAnAPIThatBreaksOff(t *testing.T) {
	t.Parallel()
	h := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	c := &client{api: h, ctx: t.Context()}
	if _, err := c.do(ask{method: "GET", path: "/me"}, nil); code(err) != "UNAVAILABLE" {
		t.Errorf("read: %v", err)
	}
	if _, err := c.do(ask{method: "POST", path: "/orders"}, nil); code(err) != "OUTCOME_UNKNOWN" {
		t.Errorf("write: %v", err)
	}
}

// What people aren't told is in the log, with the request id that they are told.
func TestWhatIsNotToldIsLogged(t *testing.T) {
	t.Parallel()
	shop, err := New("c1", nil)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	api := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("[not JSON")) })
	h := shop.Handler(api, slog.New(slog.NewTextHandler(&log, nil)))
	r := httptest.NewRequest("GET", "/products/31", nil)
	r.Header.Set("X-Request-Id", "rid-7")
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	if rec.Code != 500 || !strings.Contains(rec.Body.String(), "rid-7") || strings.Contains(rec.Body.String(), "JSON") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if text := log.String(); !strings.Contains(text, "request_id=rid-7") || !strings.Contains(text, "decode the answer of GET /products/31") {
		t.Errorf("the log has %q", text)
	}
}
