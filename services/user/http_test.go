package user

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/user/userapi"
)

// Bad input on every path: the status, the code, and the field that is wrong.
func TestBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1")
	w.live()
	ann := w.newUser("c1", w.phoneAt("c1", 0)).ID
	bob := w.newUser("c1", w.phoneAt("c1", 1)).ID
	w.deposit(ann, 1000)
	const reg = `{"phone":"+8613800000009","password":"correct horse","name":"Ann"}`
	const address = `{"recipient":"Ann","phone":"+8613800000009","line":"1 Road","city":"Hangzhou"}`
	pay := func(amount string) string { return fmt.Sprintf(`{"to_user":"%d","amount":%s}`, bob, amount) }
	edit := func(body, from, to string) string { return strings.Replace(body, from, to, 1) }
	for _, c := range []struct {
		name, method, path, body, key string
		status                        int
		want                          string
	}{
		{"no key", "POST", "/users", reg, "", 400, "IDEMPOTENCY_KEY_MISSING"},
		{"key with a blank", "POST", "/users", reg, "a b", 400, "IDEMPOTENCY_KEY_MISSING"},
		{"key too long", "POST", "/users", reg, strings.Repeat("k", 129), 400, "IDEMPOTENCY_KEY_MISSING"},
		{"no body", "POST", "/users", "", "k", 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"no object", "POST", "/users", `[]`, "k", 400, "INVALID_JSON"},
		{"unknown field", "POST", "/users", edit(reg, `"name"`, `"admin":true,"name"`), "k", 400, `"field":"admin"`},
		{"wrong type", "POST", "/users", edit(reg, `"Ann"`, `7`), "k", 400, `"field":"name"`},
		{"two objects", "POST", "/users", reg + reg, "k", 400, "INVALID_JSON"},
		{"no country", "POST", "/users", edit(reg, "+86", ""), "k", 400, `"field":"phone"`},
		{"no phone", "POST", "/users", edit(reg, "+8613800000009", ""), "k", 400, `"field":"phone"`},
		{"short password", "POST", "/users", edit(reg, "correct horse", "horse"), "k", 400, `"field":"password"`},
		{"no name", "POST", "/users", edit(reg, "Ann", "  "), "k", 400, `"field":"name"`},
		{"name with a control character", "POST", "/users", edit(reg, "Ann", `A\u0007n`), "k", 400, `"field":"name"`},
		{"name of 65", "POST", "/users", edit(reg, "Ann", strings.Repeat("安", 65)), "k", 400, `"field":"name"`},
		{"body of 70 kB", "POST", "/users", edit(reg, "Ann", strings.Repeat("a", 70<<10)), "k", 413, "BODY_TOO_LARGE"},
		{"malformed operation", "GET", "/operations/abc", "", "", 404, "NOT_FOUND"},
		{"unknown operation", "GET", "/operations/163847", "", "", 404, "NOT_FOUND"},
		{"login without a password", "POST", "/sessions", `{"phone":"+8613800000009"}`, "", 400, `"field":"password"`},
		{"login with a list", "POST", "/sessions", `{"phone":["+8613800000009"],"password":"x"}`, "", 400, `"field":"phone`},
		{"unknown phone", "POST", "/sessions", `{"phone":"+8613800000009","password":"x"}`, "", 401, "INVALID_CREDENTIALS"},
		{"patch with a wrong type", "PATCH", "/me", `{"name":1}`, "", 400, `"field":"name"`},
		{"patch of the phone", "PATCH", "/me", `{"phone":"+1"}`, "", 400, `"field":"phone"`},
		{"patch to nothing", "PATCH", "/me", `{"name":""}`, "", 400, `"field":"name"`},
		{"shop without a name", "POST", "/seller", `{}`, "", 400, `"field":"shop_name"`},
		{"address without a city", "POST", "/me/addresses", edit(address, "Hangzhou", ""), "", 400, `"field":"city"`},
		{"address with a bad phone", "POST", "/me/addresses", edit(address, "+86", "x"), "", 400, `"field":"phone"`},
		{"address with an ID", "POST", "/me/addresses", edit(address, "{", `{"id":"1",`), "", 400, `"field":"id"`},
		{"malformed address", "DELETE", "/me/addresses/0x1", "", "", 404, "NOT_FOUND"},
		{"unknown address", "DELETE", "/me/addresses/77", "", "", 404, "NOT_FOUND"},
		{"deposit without a key", "POST", "/wallet/deposits", `{"amount":1}`, "", 400, "IDEMPOTENCY_KEY_MISSING"},
		{"deposit of nothing", "POST", "/wallet/deposits", `{}`, "k", 400, `"field":"amount"`},
		{"deposit of zero", "POST", "/wallet/deposits", `{"amount":0}`, "k", 400, `"field":"amount"`},
		{"negative deposit", "POST", "/wallet/deposits", `{"amount":-1}`, "k", 400, `"field":"amount"`},
		{"deposit of a fraction", "POST", "/wallet/deposits", `{"amount":1.5}`, "k", 400, `"field":"amount"`},
		{"deposit of a text", "POST", "/wallet/deposits", `{"amount":"100"}`, "k", 400, `"field":"amount"`},
		{"deposit over the limit", "POST", "/wallet/deposits", `{"amount":1000000000001}`, "k", 400, `"field":"amount"`},
		{"deposit over int64", "POST", "/wallet/deposits", `{"amount":9223372036854775808}`, "k", 400, `"field":"amount"`},
		{"deposit in gold", "POST", "/wallet/deposits", `{"amount":1,"currency":"XAU"}`, "k", 400, `"field":"currency"`},
		{"deposit in small letters", "POST", "/wallet/deposits", `{"amount":1,"currency":"cny"}`, "k", 400, `"field":"currency"`},
		{"withdrawal without a key", "POST", "/wallet/withdrawals", `{"amount":1}`, "", 400, "IDEMPOTENCY_KEY_MISSING"},
		{"withdrawal of nothing", "POST", "/wallet/withdrawals", `{}`, "k", 400, `"field":"amount"`},
		{"withdrawal of zero", "POST", "/wallet/withdrawals", `{"amount":0}`, "k", 400, `"field":"amount"`},
		{"negative withdrawal", "POST", "/wallet/withdrawals", `{"amount":-1}`, "k", 400, `"field":"amount"`},
		{"withdrawal over the limit", "POST", "/wallet/withdrawals", `{"amount":1000000000001}`, "k", 400, `"field":"amount"`},
		{"withdrawal over int64", "POST", "/wallet/withdrawals", `{"amount":9223372036854775808}`, "k", 400, `"field":"amount"`},
		{"withdrawal in gold", "POST", "/wallet/withdrawals", `{"amount":1,"currency":"XAU"}`, "k", 400, `"field":"currency"`},
		{"withdrawal of more than there is", "POST", "/wallet/withdrawals", `{"amount":1001}`, "k", 422, "INSUFFICIENT_FUNDS"},
		{"withdrawal in another currency", "POST", "/wallet/withdrawals", `{"amount":1,"currency":"KWD"}`, "k", 422, "INSUFFICIENT_FUNDS"},
		{"preview to nobody", "POST", "/transfers/preview", `{"amount":1}`, "", 400, `"field":"to_user"`},
		{"preview to two", "POST", "/transfers/preview", edit(pay("1"), "{", `{"to_phone":"+8613800000009",`), "", 400, `"field":"to_user"`},
		{"preview to no phone", "POST", "/transfers/preview", `{"to_phone":"12","amount":1}`, "", 400, `"field":"to_phone"`},
		{"preview to an unknown phone", "POST", "/transfers/preview", `{"to_phone":"+8613800000009","amount":1}`, "", 422, "UNKNOWN_PAYEE"},
		{"preview to an unknown user", "POST", "/transfers/preview", `{"to_user":"16385","amount":1}`, "", 422, "UNKNOWN_PAYEE"},
		{"preview to oneself", "POST", "/transfers/preview", edit(pay("1"), bob.String(), ann.String()), "", 400, "SELF_TRANSFER"},
		{"preview to oneself by phone", "POST", "/transfers/preview", fmt.Sprintf(`{"to_phone":%q,"amount":1}`, w.phoneAt("c1", 0)), "", 400, "SELF_TRANSFER"},
		{"preview of zero", "POST", "/transfers/preview", pay("0"), "", 400, `"field":"amount"`},
		{"preview of less than zero", "POST", "/transfers/preview", pay("-5"), "", 400, `"field":"amount"`},
		{"preview over int64", "POST", "/transfers/preview", pay("99999999999999999999"), "", 400, `"field":"amount"`},
		{"preview in gold", "POST", "/transfers/preview", edit(pay("1"), "{", `{"currency":"XAU",`), "", 400, `"field":"currency"`},
		{"preview of more than there is", "POST", "/transfers/preview", pay("1001"), "", 422, "INSUFFICIENT_FUNDS"},
		{"preview with a memo", "POST", "/transfers/preview", edit(pay("1"), "{", `{"memo":"x",`), "", 400, `"field":"memo"`},
		{"made up confirmation", "POST", "/transfers", edit(pay("1"), "{", `{"confirm":"AAAA",`), "k", 422, "NOT_CONFIRMED"},
		{"statement page of zero", "GET", "/wallet/statement?limit=0", "", "", 400, `"field":"limit"`},
		{"statement page of text", "GET", "/wallet/statement?limit=x", "", "", 400, `"field":"limit"`},
		{"statement page of 101", "GET", "/wallet/statement?limit=101", "", "", 400, `"field":"limit"`},
		{"statement in gold", "GET", "/wallet/statement?currency=XAU", "", "", 400, `"field":"currency"`},
		{"made up cursor", "GET", "/wallet/statement?cursor=eyJ1IjoiMSJ9", "", "", 400, "INVALID_CURSOR"},
		{"made up cursor of transfers", "GET", "/transfers?cursor=AAAA", "", "", 400, "INVALID_CURSOR"},
		{"transfer without a key", "POST", "/transfers", pay("1"), "", 400, "IDEMPOTENCY_KEY_MISSING"},
		{"transfer to nobody", "POST", "/transfers", `{"amount":1}`, "k", 400, `"field":"to_user"`},
		{"transfer to two", "POST", "/transfers", edit(pay("1"), "{", `{"to_phone":"+8613800000009",`), "k", 400, `"field":"to_user"`},
		{"transfer to a number", "POST", "/transfers", `{"to_user":5,"amount":1}`, "k", 400, `"field":"to_user"`},
		{"transfer to no phone", "POST", "/transfers", `{"to_phone":"12","amount":1}`, "k", 400, `"field":"to_phone"`},
		{"transfer to an unknown phone", "POST", "/transfers", `{"to_phone":"+8613800000009","amount":1}`, "k", 422, "UNKNOWN_PAYEE"},
		{"transfer to oneself", "POST", "/transfers", edit(pay("1"), bob.String(), ann.String()), "k", 400, "SELF_TRANSFER"},
		{"transfer to oneself by phone", "POST", "/transfers", fmt.Sprintf(`{"to_phone":%q,"amount":1}`, w.phoneAt("c1", 0)), "k", 400, "SELF_TRANSFER"},
		{"transfer of zero", "POST", "/transfers", pay("0"), "k", 400, `"field":"amount"`},
		{"negative transfer", "POST", "/transfers", pay("-5"), "k", 400, `"field":"amount"`},
		{"transfer over int64", "POST", "/transfers", pay("99999999999999999999"), "k", 400, `"field":"amount"`},
		{"transfer over the limit", "POST", "/transfers", pay("1000000000001"), "k", 400, `"field":"amount"`},
		{"transfer with a long memo", "POST", "/transfers", edit(pay("1"), "{", `{"memo":"`+strings.Repeat("m", 201)+`",`), "k", 400, `"field":"memo"`},
		{"malformed transfer", "GET", "/transfers/-1", "", "", 404, "NOT_FOUND"},
		{"unknown transfer", "GET", "/transfers/77", "", "", 404, "NOT_FOUND"},
		{"cancel of an unknown transfer", "POST", "/transfers/77/cancel", "", "", 404, "NOT_FOUND"},
		{"no such path", "GET", "/wallets", "", "", 404, "NOT_FOUND"},
		{"no such method", "DELETE", "/wallet", "", "", 405, "METHOD_NOT_ALLOWED"},
	} {
		a := w.as(ann, c.method, api+c.path, c.body, c.key)
		if a.status != c.status || !strings.Contains(a.body, c.want) || a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s, want %d with %s", c.name, a.status, a.body, c.status, c.want)
		}
	}
	var wallet userapi.Wallet
	w.as(ann, "GET", "/api/v1/wallet", "", "").decode(t, &wallet)
	if len(wallet.Balances) != 1 || wallet.Balances[0] != (userapi.Balance{Currency: "CNY", Available: 1000, Digits: 2}) {
		t.Errorf("wallet = %+v: a refused request left a trace", wallet)
	}
}

// S-O13: every path with an ID, by another user: 404. And every path that needs
// somebody, by nobody: 401.
func TestScenario_O13_OthersObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1")
	w.live()
	ann, bob, eve := w.newUser("c1", w.phoneAt("c1", 0)).ID, w.newUser("c1", w.phoneAt("c1", 1)).ID, w.newUser("c1", w.phoneAt("c1", 2)).ID
	w.deposit(ann, 1000)
	var address userapi.Address
	w.as(ann, "POST", "/api/v1/me/addresses", `{"recipient":"Ann","phone":"+8613800000009","line":"1 Road","city":"Hangzhou"}`, "").decode(t, &address)
	var tr userapi.Transfer
	w.as(ann, "POST", "/api/v1/transfers", fmt.Sprintf(`{"to_user":"%d","amount":10}`, bob), "k").decode(t, &tr)
	// The gateway routes by the ID: the slot is Ann's, the user Eve.
	as := func(user id.ID, method, path string) response {
		return w.cells["c1"].ask(method, path, "", user, ann.Slot(), "")
	}
	paths := []struct{ method, path string }{
		{"DELETE", "/api/v1/me/addresses/" + address.ID.String()}, {"GET", "/api/v1/transfers/" + tr.ID.String()},
		{"POST", "/api/v1/transfers/" + tr.ID.String() + "/cancel"}, {"GET", "/internal/users/" + eve.String() + "/addresses/" + address.ID.String()},
	}
	for _, p := range paths {
		if a := as(eve, p.method, p.path); a.status != http.StatusNotFound || !strings.Contains(a.body, "NOT_FOUND") {
			t.Errorf("%s %s by another user = %d %s", p.method, p.path, a.status, a.body)
		}
	}
	if a := as(bob, "POST", paths[2].path); a.status != http.StatusNotFound {
		t.Errorf("cancel by the payee = %d %s", a.status, a.body)
	}
	for _, user := range []id.ID{ann, bob} { // both parties may look
		if a := as(user, "GET", paths[1].path); a.status != http.StatusOK {
			t.Errorf("%d looks at the transfer: %d %s", user, a.status, a.body)
		}
	}
	if a := w.as(ann, "GET", "/internal/users/"+ann.String()+"/addresses/"+address.ID.String(), "", ""); a.status != http.StatusOK {
		t.Errorf("own address = %d %s", a.status, a.body)
	}
	for _, p := range []struct{ method, path string }{
		{"GET", "/me"}, {"PATCH", "/me"}, {"GET", "/me/addresses"}, {"POST", "/me/addresses"}, {"DELETE", "/me/addresses/1"}, {"POST", "/seller"},
		{"GET", "/wallet"}, {"GET", "/wallet/statement"}, {"POST", "/wallet/deposits"}, {"POST", "/wallet/withdrawals"}, {"POST", "/transfers/preview"}, {"POST", "/transfers"}, {"GET", "/transfers"},
		{"GET", "/transfers/1"}, {"POST", "/transfers/1/cancel"},
	} {
		if a := as(0, p.method, api+p.path); a.status != http.StatusUnauthorized {
			t.Errorf("%s %s by nobody = %d", p.method, p.path, a.status)
		}
	}
	// A cursor of one user opens no list of another.
	w.deposit(ann, 1)
	w.deposit(eve, 1)
	w.deposit(eve, 1)
	for _, path := range []string{"/api/v1/wallet/statement?limit=1", "/api/v1/transfers?limit=1"} {
		w.as(ann, "POST", "/api/v1/transfers", fmt.Sprintf(`{"to_user":"%d","amount":10}`, bob), "k"+path)
		var page struct {
			Next string `json:"next_cursor"`
		}
		w.as(ann, "GET", path, "", "").decode(t, &page)
		if page.Next == "" {
			t.Fatalf("%s has no next page", path)
		}
		if a := w.as(ann, "GET", path+"&cursor="+page.Next, "", ""); a.status != http.StatusOK {
			t.Errorf("own cursor = %d %s", a.status, a.body)
		}
		if a := w.as(eve, "GET", path+"&cursor="+page.Next, "", ""); a.status != http.StatusBadRequest || !strings.Contains(a.body, "INVALID_CURSOR") {
			t.Errorf("another's cursor = %d %s", a.status, a.body)
		}
		if a := w.as(ann, "GET", path+"&cursor="+tampered(page.Next), "", ""); a.status != http.StatusBadRequest {
			t.Errorf("tampered cursor = %d %s", a.status, a.body)
		}
	}
}

func TestProfileAddressesShop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1")
	w.live()
	ann := w.newUser("c1", w.phoneAt("c1", 0))
	steps := []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/me", "", 200, `"name":"Ann","phone":"` + ann.Phone + `","seller":false`},
		{"PATCH", "/me", `{}`, 200, `"name":"Ann"`},
		{"PATCH", "/me", `{"name":" Ann Li "}`, 200, `"name":"Ann Li"`},
		{"GET", "/me", "", 200, `"name":"Ann Li"`},
		{"POST", "/seller", `{"shop_name":"Tea"}`, 201, `"seller":true,"shop_name":"Tea"`},
		{"POST", "/seller", `{"shop_name":"Tea"}`, 201, `"token":"`},
		{"POST", "/seller", `{"shop_name":"Coffee"}`, 409, `ALREADY_SELLER`},
		{"GET", "/me/addresses", "", 200, `{"items":[]}`},
		{"GET", "/wallet", "", 200, `{"balances":[{"currency":"CNY","available":0,"frozen":0,"digits":2}]}`},
		{"GET", "/wallet/statement", "", 200, `{"items":[]}`},
		{"GET", "/transfers", "", 200, `{"items":[]}`},
	}
	for _, s := range steps {
		if a := w.as(ann.ID, s.method, api+s.path, s.body, ""); a.status != s.status || !strings.Contains(a.body, s.want) {
			t.Errorf("%s %s %s = %d %s, want %d with %s", s.method, s.path, s.body, a.status, a.body, s.status, s.want)
		}
	}
	var wg sync.WaitGroup
	for range maxAddresses + 5 { // at once: the limit holds
		wg.Go(func() {
			a := w.as(ann.ID, "POST", "/api/v1/me/addresses", `{"recipient":"Ann","phone":"+86 138 0000 0009","line":"1 Road","city":"Hangzhou"}`, "")
			if a.status != 201 && (a.status != 422 || !strings.Contains(a.body, "TOO_MANY_ADDRESSES")) {
				t.Errorf("add = %d %s", a.status, a.body)
			}
		})
	}
	wg.Wait()
	var list userapi.Addresses
	w.as(ann.ID, "GET", "/api/v1/me/addresses", "", "").decode(t, &list)
	if len(list.Items) != maxAddresses || list.Items[0].Phone != "+8613800000009" {
		t.Fatalf("%d addresses: %+v", len(list.Items), list.Items[0])
	}
	path := "/api/v1/me/addresses/" + list.Items[0].ID.String()
	for _, want := range []int{204, 404} {
		if a := w.as(ann.ID, "DELETE", path, "", ""); a.status != want {
			t.Errorf("delete = %d, want %d", a.status, want)
		}
	}
	w.as(ann.ID, "GET", "/api/v1/me/addresses", "", "").decode(t, &list)
	if len(list.Items) != maxAddresses-1 {
		t.Errorf("%d addresses after a delete", len(list.Items))
	}
	if a := w.as(ann.ID, "GET", "/internal/users/"+ann.ID.String(), "", ""); a.status != 200 || !strings.Contains(a.body, `"shop_name":"Tea"`) {
		t.Errorf("internal = %d %s", a.status, a.body)
	}
}

// The Idempotency-Key contract on deposits and transfers.
func TestIdempotencyKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1")
	w.live()
	ann, bob := w.newUser("c1", w.phoneAt("c1", 0)).ID, w.newUser("c1", w.phoneAt("c1", 1)).ID
	w.deposit(ann, 1000)
	for path, bodies := range map[string][2]string{
		"/api/v1/wallet/deposits":    {`{"amount":5}`, `{"amount":6}`},
		"/api/v1/wallet/withdrawals": {`{"amount":5}`, `{"amount":6}`},
		"/api/v1/transfers":          {fmt.Sprintf(`{"to_user":"%d","amount":5}`, bob), fmt.Sprintf(`{"to_user":"%d","amount":6}`, bob)},
	} {
		first := w.as(ann, "POST", path, bodies[0], "same")
		again := w.as(ann, "POST", path, bodies[0]+" ", "same")
		if first.status/100 != 2 || again.status != first.status || again.body != first.body || again.header.Get("Location") != first.header.Get("Location") {
			t.Errorf("%s: first %d %s, again %d %s", path, first.status, first.body, again.status, again.body)
		}
		if first.header.Get("Idempotent-Replayed") != "" || again.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s: Idempotent-Replayed = %q, %q", path, first.header.Get("Idempotent-Replayed"), again.header.Get("Idempotent-Replayed"))
		}
		if a := w.as(ann, "POST", path, bodies[1], "same"); a.status != 422 || !strings.Contains(a.body, "IDEMPOTENCY_KEY_REUSED") {
			t.Errorf("%s with another body = %d %s", path, a.status, a.body)
		}
		if a := w.as(bob, "POST", path, `{"amount":5,"to_user":"`+ann.String()+`"}`, "same"); strings.Contains(a.body, "IDEMPOTENCY") {
			t.Errorf("%s: another user's key is in the way: %d %s", path, a.status, a.body)
		}
		// In flight: another request holds the key until its transaction ends.
		held, release := make(chan struct{}), make(chan struct{})
		ended := make(chan error)
		route := strings.Replace(path, "/api/v1", "POST ", 1)
		go func() {
			ended <- pg.InSlot(t.Context(), w.cells["c1"].db.App, pg.Entry{Slot: ann.Slot(), Epoch: 1}, func(tx *pg.Tx) error {
				if _, err := pg.Claim(t.Context(), tx, pg.Key{Actor: ann, Route: route, Key: "flying"}); err != nil {
					return err
				}
				close(held)
				<-release
				return nil
			})
		}()
		<-held
		if a := w.as(ann, "POST", path, bodies[0], "flying"); a.status != 409 || !strings.Contains(a.body, "IN_FLIGHT") {
			t.Errorf("%s in flight = %d %s", path, a.status, a.body)
		}
		close(release)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	// A replay needs no IDs, which may have run out.
	sound := w.cells["c1"].svc.ids
	w.cells["c1"].svc.ids = noIDs{}
	for path, body := range map[string]string{"/api/v1/wallet/deposits": `{"amount":5}`, "/api/v1/transfers": fmt.Sprintf(`{"to_user":"%d","amount":5}`, bob)} {
		if a := w.as(ann, "POST", path, body, "same"); a.status/100 != 2 || a.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s again without IDs = %d %s", path, a.status, a.body)
		}
		if a := w.as(ann, "POST", path, body, "new"); a.status != 503 || !strings.Contains(a.body, "IDS_EXHAUSTED") {
			t.Errorf("%s without IDs = %d %s", path, a.status, a.body)
		}
	}
	w.cells["c1"].svc.ids = sound
	// Many at once with one key: one effect.
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if a := w.as(ann, "POST", "/api/v1/wallet/deposits", `{"amount":7}`, "at-once"); a.status != 201 && a.status != 409 {
				t.Errorf("deposit = %d %s", a.status, a.body)
			}
		})
	}
	wg.Wait()
	// A refusal for lack of money is an answer too, and stays one.
	body := fmt.Sprintf(`{"to_user":"%d","amount":5000}`, bob)
	poor := w.as(ann, "POST", "/api/v1/transfers", body, "poor")
	if poor.status != 422 || !strings.Contains(poor.body, "INSUFFICIENT_FUNDS") {
		t.Errorf("poor = %d %s", poor.status, poor.body)
	}
	var rejected userapi.Transfer
	w.as(ann, "GET", poor.header.Get("Location"), "", "").decode(t, &rejected)
	if rejected.State != "REJECTED" || rejected.Reason != "INSUFFICIENT_FUNDS" || rejected.EndedAt == nil {
		t.Errorf("its row = %+v", rejected)
	}
	w.deposit(ann, 10_000)
	if a := w.as(ann, "POST", "/api/v1/transfers", body, "poor"); a.status != 422 || a.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("poor again = %d %s", a.status, a.body)
	}
	waitFor(t, func() bool { return w.quiet() })
	var wallet userapi.Wallet
	w.as(ann, "GET", "/api/v1/wallet", "", "").decode(t, &wallet)
	if got, want := wallet.Balances[0], (userapi.Balance{Currency: "CNY", Available: 1000 + 5 - 5 + 7 - 5 + 10_000}); got.Available+got.Frozen != want.Available+w.incoming(ann) {
		t.Errorf("wallet = %+v, want %+v", got, want)
	}
}

// noIDs is an ID client that has run out.
type noIDs struct{}

func (noIDs) Next(string, routing.Slot) (id.ID, error) { return 0, id.ErrExhausted }

// incoming sums what a user was credited.
func (w *world) incoming(user id.ID) (sum int64) {
	err := w.owner(user.Slot()).db.Super.QueryRow(w.t.Context(), "SELECT coalesce(sum(amount), 0)::bigint FROM cell.credits WHERE user_id = $1 AND state = 'CREDITED'", user).Scan(&sum)
	if err != nil {
		w.t.Fatal(err)
	}
	return sum
}

func TestTransferBetweenCells(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	w.live()
	ann, bob := w.newUser("c1", w.phoneAt("c1", 0)).ID, w.newUser("c2", w.phoneAt("c1", 1))
	w.deposit(ann, 1000)
	waitFor(t, func() bool { return w.quiet() })
	get := func(user id.ID, path string) (out userapi.Transfer) {
		t.Helper()
		w.cells["c1"].ask("GET", path, "", user, ann.Slot(), "").decode(t, &out)
		return out
	}
	a := w.as(ann, "POST", "/api/v1/transfers", fmt.Sprintf(`{"to_phone":%q,"amount":300,"memo":"tea"}`, bob.Phone), "k1")
	var sent userapi.Transfer
	a.decode(t, &sent)
	path := a.header.Get("Location")
	if a.status != 202 || sent.State != "FROZEN" || sent.ToUser != bob.ID || path != "/api/v1/transfers/"+sent.ID.String() {
		t.Fatalf("pay = %d %s", a.status, a.body)
	}
	waitFor(t, func() bool { return get(ann, path).State == "SETTLED" })
	if seen := get(bob.ID, path); seen.Direction != "in" || seen.Amount != 300 || seen.Memo != "tea" {
		t.Errorf("the payee sees %+v", seen)
	}
	if a := w.as(ann, "POST", path+"/cancel", "", ""); a.status != 409 || !strings.Contains(a.body, "TRANSFER_ENDED") {
		t.Errorf("cancel of a settled one = %d %s", a.status, a.body)
	}
	// The other cell is away: the money waits, and a wish to take it back asks.
	w.setCut("c2", true)
	var second userapi.Transfer
	w.as(ann, "POST", "/api/v1/transfers", fmt.Sprintf(`{"to_user":"%d","amount":200}`, bob.ID), "k2").decode(t, &second)
	path = "/api/v1/transfers/" + second.ID.String()
	for range 2 {
		if a := w.as(ann, "POST", path+"/cancel", "", ""); a.status != 202 || !strings.Contains(a.body, `"CANCELLING"`) {
			t.Errorf("cancel = %d %s", a.status, a.body)
		}
	}
	var wallet userapi.Wallet
	w.as(ann, "GET", "/api/v1/wallet", "", "").decode(t, &wallet)
	if wallet.Balances[0] != (userapi.Balance{Currency: "CNY", Available: 500, Frozen: 200, Digits: 2}) {
		t.Errorf("wallet = %+v", wallet)
	}
	stuck, err := transfer.ListStuck(t.Context(), w.cells["c1"].db.App, 0, 10)
	if err != nil || len(stuck) != 1 || stuck[0].ID != second.ID {
		t.Errorf("stuck = %+v, %v", stuck, err)
	}
	w.setCut("c2", false)
	waitFor(t, func() bool { s := get(ann, path).State; return s == "REVERSED" || s == "SETTLED" }) // the destination decides
	// Nobody there: reversed with the reason.
	var third userapi.Transfer
	w.as(ann, "POST", "/api/v1/transfers", fmt.Sprintf(`{"to_user":"%d","amount":1}`, bob.ID+1<<40), "k3").decode(t, &third)
	waitFor(t, func() bool { return get(ann, "/api/v1/transfers/"+third.ID.String()).State == "REVERSED" })
	if got := get(ann, "/api/v1/transfers/"+third.ID.String()); got.Reason != "UNKNOWN_PAYEE" || got.EndedAt == nil {
		t.Errorf("to nobody = %+v", got)
	}
	var list userapi.Transfers
	w.as(bob.ID, "GET", "/api/v1/transfers", "", "").decode(t, &list)
	if len(list.Items) == 0 || list.Items[len(list.Items)-1].ID != sent.ID || list.Items[0].Direction != "in" || list.Items[0].State != "CREDITED" {
		t.Errorf("the payee's list = %+v", list)
	}
	var st userapi.Statement
	w.as(ann, "GET", "/api/v1/wallet/statement", "", "").decode(t, &st)
	first := st.Items[len(st.Items)-1]
	if first.From != "external" || first.To != "available" || first.Available != 1000 || first.Seq != 1 {
		t.Errorf("first entry = %+v", first)
	}
}

// A slot that isn't here, or at another epoch, is 421 with the owner; no route at
// all is a violation.
func TestRouting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	c1 := w.cells["c1"]
	away := w.table.Load().SlotsOf("c2")[0]
	user := id.Make(5, away, false)
	for _, p := range []struct{ method, path, body, key string }{
		{"GET", "/me", "", ""}, {"GET", "/wallet", "", ""}, {"POST", "/wallet/deposits", `{"amount":1}`, "k"}, {"GET", "/operations/" + user.String(), "", ""},
		{"POST", "/sessions", `{"phone":"+8613800000009","password":"x"}`, ""}, {"PATCH", "/me", `{"name":"x"}`, ""},
	} {
		a := c1.ask(p.method, api+p.path, p.body, user, away, p.key)
		var problem call.Problem
		_ = json.Unmarshal([]byte(a.body), &problem)
		if a.status != 421 || problem.Owner != "c2" || problem.Epoch != 1 {
			t.Errorf("%s %s = %d %s", p.method, p.path, a.status, a.body)
		}
	}
}

// Nothing that a session needs is asked of others, and its keys are the cell's.
func TestSessionLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1")
	w.live()
	ann := w.newUser("c1", w.phoneAt("c1", 0))
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	w.cells["c1"].svc.now = func() time.Time { return now }
	a := w.as(ann.ID, "POST", "/api/v1/sessions", fmt.Sprintf(`{"phone":%q,"password":"correct horse"}`, ann.Phone), "")
	var s userapi.Session
	a.decode(t, &s)
	if !s.ExpiresAt.Equal(now.Add(10 * time.Minute)) {
		t.Errorf("expires at %v", s.ExpiresAt)
	}
	for at, ok := range map[time.Duration]bool{0: true, 599 * time.Second: true, 600 * time.Second: false} {
		if _, err := userapi.Verify(w.table.Load(), s.Token, now.Add(at)); (err == nil) != ok {
			t.Errorf("after %v: %v", at, err)
		}
	}
}

// tampered is s with another first letter.
func tampered(s string) string {
	if s[0] == 'B' {
		return "C" + s[1:]
	}
	return "B" + s[1:]
}
