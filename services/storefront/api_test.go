package storefront

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/cellmart/api/apitest"
	"example.com/cellmart/platform/cellkit/call"
)

// fakeAPI answers as api/openapi.yaml says, which each answer is held against.
type fakeAPI struct {
	t *testing.T // nil: it answers against the document

	mu      sync.Mutex
	answers map[string]answer // by "GET /api/v1/cart"
	asked   []asked
}

// answer is what the API says: a body with a status, or a problem's code.
type answer struct {
	status int
	body   string
	code   string
	header http.Header
}

type asked struct {
	what, query, key, token, body string
}

const (
	number = "ABCD-EFGHJ-KMNPQ"
	at     = "2026-01-02T03:04:05Z"
	aToken = "eyJzbG90Ijo0MjQyfQ.c2lnbmF0dXJl" // {"slot":4242}
)

func items(s ...string) string { return `{"items":[` + strings.Join(s, ",") + `]}` }

// usual is an API where all is well.
func usual() map[string]answer {
	user := `{"id":"77","name":"Ann Li","phone":"+8613800000001","seller":false,"created_at":"` + at + `"}`
	product := `{"id":"31","seller_id":"9","title":"Oolong <tea>","description":"Good","category":"food","active":true,"skus":[{"id":"32","title":"250 g","price":1250,"currency":"CNY"},{"id":"33","title":"500 g","price":2350,"currency":"CNY"}],"version":1,"created_at":"` + at + `","updated_at":"` + at + `"}`
	found := `{"id":"31","title":"Oolong <tea>","category":"food","price":1250,"currency":"CNY","seller_id":"9","active":true}`
	address := `{"id":"55","recipient":"Ann","phone":"+8613800000001","line":"1 Garden Road","city":"Wuhan","created_at":"` + at + `"}`
	cart := `{"items":[{"sku":"32","quantity":2,"available":true,"product_id":"31","seller_id":"9","title":"Oolong, 250 g","price":{"amount":1250,"currency":"CNY"}}],"total":{"amount":2500,"currency":"CNY"}}`
	transfer := transferJSON("FROZEN")
	session := fmt.Sprintf(`{"token":%q,"expires_at":%q,"user":%s}`, aToken, time.Now().Add(10*time.Minute).UTC().Format(time.RFC3339), user)
	lag := `,"total_approx":1,"categories":[{"category":"food","count":7}],"lag":{"c1":{"ms":12,"age_ms":3,"state":"live"}}}`
	ok := func(body string) answer { return answer{status: 200, body: body} }
	return map[string]answer{
		"GET /api/v1/categories":                    ok(items(`{"id":"food","name":"Food and drink","position":1}`)),
		"GET /api/v1/products":                      ok(items(product)),
		"GET /api/v1/products/31":                   ok(product),
		"GET /api/v1/products/31/stock":             ok(`{"items":[{"sku":"32","level":"few","left":3},{"sku":"33","level":"out"}],"as_of":"` + at + `"}`),
		"GET /api/v1/search":                        ok(strings.TrimSuffix(items(found), "}") + lag),
		"POST /api/v1/sessions":                     {status: 201, body: session},
		"DELETE /api/v1/sessions":                   {status: 204},
		"POST /api/v1/sessions/end":                 {status: 204},
		"POST /api/v1/sessions/refresh":             {status: 201, body: strings.Replace(session, `{"token"`, `{"refresh_token":"cmVmcmVzaA-2","token"`, 1)},
		"POST /api/v1/users":                        {status: 201, body: session},
		"GET /api/v1/operations/88":                 ok(`{"id":"88","state":"PENDING"}`),
		"GET /api/v1/me":                            ok(user),
		"PATCH /api/v1/me":                          ok(user),
		"GET /api/v1/me/addresses":                  ok(items(address)),
		"POST /api/v1/me/addresses":                 {status: 201, body: address},
		"DELETE /api/v1/me/addresses/55":            {status: 204},
		"GET /api/v1/cart":                          ok(cart),
		"PUT /api/v1/cart/items/32":                 ok(cart),
		"DELETE /api/v1/cart/items/32":              {status: 204},
		"POST /api/v1/orders":                       {status: 201, body: orderJSON("RESERVED"), header: http.Header{"Location": {"/api/v1/orders/" + number}}},
		"GET /api/v1/orders":                        ok(items(summaryJSON("PAID") + "}")),
		"GET /api/v1/orders/" + number:              ok(orderJSON("PAID")),
		"GET /api/v1/wallet":                        ok(`{"balances":[{"currency":"CNY","available":100000,"frozen":0,"digits":2}]}`),
		"GET /api/v1/wallet/statement":              ok(items(`{"seq":1,"from":"external","to":"available","amount":100000,"currency":"CNY","ref":"deposit:3","step":"deposit","available":100000,"frozen":0,"created_at":"` + at + `"}`)),
		"POST /api/v1/wallet/deposits":              {status: 201, body: `{"id":"3","amount":1250,"currency":"CNY","balance":{"currency":"CNY","available":1250,"frozen":0,"digits":2},"created_at":"` + at + `"}`},
		"POST /api/v1/wallet/withdrawals":           {status: 201, body: `{"id":"3","amount":1250,"currency":"CNY","balance":{"currency":"CNY","available":1250,"frozen":0,"digits":2},"created_at":"` + at + `"}`},
		"GET /api/v1/transfers":                     ok(items(transfer)),
		"POST /api/v1/transfers/preview":            ok(`{"to_user":"78","to_name":"B***o","amount":1250,"currency":"CNY","digits":2,"available":100000,"left_today":500000,"confirm":"seen","expires_at":"` + at + `"}`),
		"POST /api/v1/transfers":                    {status: 202, body: transfer, header: http.Header{"Location": {"/api/v1/transfers/99"}}},
		"GET /api/v1/transfers/99":                  ok(transfer),
		"POST /api/v1/transfers/99/cancel":          {status: 202, body: transferJSON("CANCELLING")},
		"POST /api/v1/orders/" + number + "/cancel": ok(orderJSON("CANCELLED")),
	}
}

func transferJSON(state string) string {
	return `{"id":"99","direction":"out","kind":"transfer","from_user":"77","to_user":"78","amount":1250,"currency":"CNY","state":"` + state + `","created_at":"` + at +
		`","history":[{"at":"` + at + `","side":"payer","state":"FROZEN","attempts":3}]}`
}

func summaryJSON(state string) string {
	return `{"number":"` + number + `","state":"` + state + `","payment_status":"FROZEN","fulfilment_status":"WAITING","total":{"amount":2500,"currency":"CNY"},"created_at":"` + at + `","updated_at":"` + at + `","lines_count":1`
}

func orderJSON(state string) string {
	money := `{"amount":2500,"currency":"CNY"}`
	return summaryJSON(state) + `,"lines":[{"sku":"32","product_id":"31","seller_id":"9","title":"Oolong","price":{"amount":1250,"currency":"CNY"},"quantity":2,"amount":` + money + `}],` +
		`"parts":[{"seller_id":"9","state":"ASKED","amount":` + money + `}],"timeline":[{"at":"` + at + `","event":"PENDING"}],"address":{"recipient":"Ann","phone":"+1","line":"1 Garden Road","city":"Wuhan"}}`
}

func (f *fakeAPI) set(what string, a answer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[what] = a
}

func (f *fakeAPI) calls(what string) []asked {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []asked
	for _, a := range f.asked {
		if a.what == what {
			out = append(out, a)
		}
	}
	return out
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	what := r.Method + " " + r.URL.Path
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	f.mu.Lock()
	f.asked = append(f.asked, asked{what, r.URL.RawQuery, r.Header.Get(call.HeaderIdempotencyKey), token, string(body)})
	a, ok := f.answers[what]
	f.mu.Unlock()
	if !ok {
		a = answer{status: 404, code: "NOT_FOUND"}
	}
	h := w.Header()
	for name, values := range a.header {
		h[name] = values
	}
	h.Set(call.HeaderCell, "c2")
	h.Set(call.HeaderRouteVersion, "17")
	h.Set("Content-Type", "application/json")
	if a.code != "" {
		h.Set("Content-Type", call.ProblemType)
		raw, _ := json.Marshal(call.Problem{Type: "about:blank", Title: http.StatusText(a.status), Status: a.status, Code: a.code, Detail: "secret detail", Cell: a.body})
		a.body = string(raw)
	}
	if a.status == 204 {
		h.Del("Content-Type")
	}
	// What a page sends and what it's told are held to the document.
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	res := &http.Response{StatusCode: a.status, Header: h.Clone(), Body: io.NopCloser(strings.NewReader(a.body)), Request: r}
	if err := apitest.Validate(r, res); err != nil && f.t != nil {
		f.t.Error(err)
	}
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body)
}

// browser is a visitor with cookies and without JavaScript.
type browser struct {
	t    *testing.T
	http *http.Client
	url  string
	api  *fakeAPI
	shop *Shop
}

func visitShop(t *testing.T) *browser {
	t.Helper()
	shop, err := New("c1", func() []Login { return []Login{{Name: "Ann", Phone: "+1", Password: "p<1", Cell: "c1"}} })
	if err != nil {
		t.Fatal(err)
	}
	api := &fakeAPI{t: t, answers: usual()}
	s := httptest.NewTLSServer(shop.Handler(api, nil))
	t.Cleanup(s.Close)
	b := &browser{t: t, http: s.Client(), url: s.URL, api: api, shop: shop}
	b.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if b.http.Jar, err = cookiejar.New(nil); err != nil {
		t.Fatal(err)
	}
	return b
}

// seen is a page as it arrived.
type seen struct {
	status int
	header http.Header
	body   string
}

func (b *browser) send(method, path string, form url.Values, with ...string) seen {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for i := 0; i+1 < len(with); i += 2 {
		r.Header.Set(with[i], with[i+1])
	}
	res, err := b.http.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return seen{res.StatusCode, res.Header, string(body)}
}

func (b *browser) get(path string, with ...string) seen {
	b.t.Helper()
	return b.send(http.MethodGet, path, nil, with...)
}

func (b *browser) post(path string, fields ...string) seen {
	b.t.Helper()
	form := url.Values{}
	for i := 0; i+1 < len(fields); i += 2 {
		form.Set(fields[i], fields[i+1])
	}
	return b.send(http.MethodPost, path, form)
}

func (b *browser) logIn() {
	b.t.Helper()
	b.post("/login", "phone", "+8613800000001", "password", "correct horse").leads(b.t, "/")
}

// is checks the status, and that the page says something.
func (s seen) is(t *testing.T, status int, words ...string) {
	t.Helper()
	if s.status != status {
		t.Errorf("status %d, want %d: %s", s.status, status, s.body)
	}
	for _, w := range words {
		if !strings.Contains(s.body, w) {
			t.Errorf("the page doesn't say %q:\n%s", w, s.body)
		}
	}
}

// leads checks that the answer sends on.
func (s seen) leads(t *testing.T, to string) {
	t.Helper()
	if s.status != http.StatusSeeOther || s.header.Get("Location") != to {
		t.Errorf("status %d to %q, want 303 to %q: %s", s.status, s.header.Get("Location"), to, s.body)
	}
}
