//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/cellmart/api/apitest"
	"example.com/cellmart/services/agent/agentapi"
)

// answer is what came back over HTTP.
type answer struct {
	status int
	header http.Header
	body   []byte
	took   time.Duration
}

// at reads a value by its path, "user.id" or "items.0.id"; nil when it isn't there.
func (a answer) at(path string) any {
	var v any
	if json.Unmarshal(a.body, &v) != nil {
		return nil
	}
	for step := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[step]
		case []any:
			var i int
			if _, err := fmt.Sscan(step, &i); err != nil || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

func (a answer) str(path string) string {
	s, _ := a.at(path).(string)
	return s
}

func (a answer) num(path string) int64 {
	f, _ := a.at(path).(float64)
	return int64(f)
}

func (a answer) code() string { return a.str("code") }

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, bytes.TrimSpace(a.body)) }

var client = &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second}}

// send is one request; an error is one of the transport, or an answer that the
// API document doesn't allow.
func send(ctx context.Context, method, url, token, key string, body any) (answer, error) {
	return exchange(ctx, true, method, url, token, key, body)
}

func exchange(ctx context.Context, check bool, method, url, token, key string, body any) (answer, error) {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return answer{}, err
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, in)
	if err != nil {
		return answer{}, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	start := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	a := answer{resp.StatusCode, resp.Header, b, time.Since(start)}
	if err == nil && check {
		resp.Body = io.NopCloser(bytes.NewReader(b))
		err = apitest.Validate(req, resp)
	}
	return a, err
}

// gateway is the URL of a cell's gateway; "edge" is the edge.
func gateway(t testing.TB, cell string) string {
	t.Helper()
	if cell == "edge" {
		return sys.Edge
	}
	c, err := sys.Cell(cell)
	if err != nil {
		t.Fatal(err)
	}
	return c.Gateway
}

var serial atomic.Int64

// fresh gives a text that nobody used before, also not in another run on the same data.
func fresh(word string) string {
	return fmt.Sprintf("%s-%d-%d", word, time.Now().UnixNano(), serial.Add(1))
}

func freshPhone() string {
	return fmt.Sprintf("+86139%08d", (time.Now().UnixNano()/1000+serial.Add(1)*7919)%1e8)
}

const password = "correct horse battery"

// shopper is a registered user who talks to one gateway.
type shopper struct {
	id, token, phone, home string
	via                    string // the gateway's cell, or edge
}

// register makes a user whose home is the given cell.
func register(t testing.TB, cell string) *shopper {
	t.Helper()
	u := &shopper{phone: freshPhone(), home: cell, via: cell}
	in := map[string]any{"phone": u.phone, "password": password, "name": "Test " + cell}
	key := fresh("reg")
	a := patiently(t, func() (answer, error) {
		return send(t.Context(), "POST", gateway(t, cell)+"/api/v1/users", "", key, in)
	})
	if a.status == http.StatusAccepted {
		u.operation(t, gateway(t, cell)+a.header.Get("Location"))
		u.login(t, cell)
		return u
	}
	if a.status != http.StatusCreated {
		t.Fatalf("register at %s = %s", cell, a)
	}
	u.id, u.token = a.str("user.id"), a.str("token")
	return u
}

func (u *shopper) operation(t testing.TB, url string) {
	t.Helper()
	eventually(t, patience, "the registration ends", func() (bool, string) {
		a, err := send(t.Context(), "GET", url, "", "", nil)
		return err == nil && a.str("state") == "DONE", a.String()
	})
}

// login asks at a gateway; the copy of a new phone may take a moment to arrive.
func (u *shopper) login(t testing.TB, cell string) {
	t.Helper()
	eventually(t, patience, "login at "+cell, func() (bool, string) {
		a, err := send(t.Context(), "POST", gateway(t, cell)+"/api/v1/sessions", "", "", map[string]any{"phone": u.phone, "password": password})
		if err != nil {
			return false, err.Error()
		}
		u.token, u.id = a.str("token"), a.str("user.id")
		return a.status == http.StatusCreated, a.String()
	})
}

// patiently repeats a request that fails for want of IDs: after a restart of its
// database idgen pauses for 65 s (docs/cells-and-slots.md), and a service that was
// restarted too has no stock of its own.
func patiently(t testing.TB, ask func() (answer, error)) answer {
	t.Helper()
	var a answer
	eventually(t, 65*time.Second+patience, "IDs to be had", func() (bool, string) {
		var err error
		if a, err = ask(); err != nil {
			t.Fatal(err)
		}
		return a.code() != "IDS_EXHAUSTED", a.String()
	})
	return a
}

// do is a request of this user that must reach the gateway.
func (u *shopper) do(t testing.TB, method, path, key string, body any) answer {
	t.Helper()
	a, err := send(t.Context(), method, gateway(t, u.via)+"/api/v1"+path, u.token, key, body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (u *shopper) want(t testing.TB, status int, method, path, key string, body any) answer {
	t.Helper()
	a := u.do(t, method, path, key, body)
	if a.status != status {
		t.Fatalf("%s %s of %s = %s, want %d", method, path, u.home, a, status)
	}
	return a
}

func (u *shopper) deposit(t testing.TB, amount int64) {
	t.Helper()
	u.want(t, http.StatusCreated, "POST", "/wallet/deposits", fresh("dep"), map[string]any{"amount": amount, "currency": "CNY"})
}

func (u *shopper) available(t testing.TB) int64 {
	t.Helper()
	return u.want(t, http.StatusOK, "GET", "/wallet", "", nil).num("balances.0.available")
}

// sell makes the user a seller with one product and gives its SKU.
func (u *shopper) sell(t testing.TB, price, stock int64) string {
	t.Helper()
	u.want(t, http.StatusCreated, "POST", "/seller", fresh("seller"), map[string]any{"shop_name": fresh("Shop")})
	u.login(t, u.via) // the token says so now
	key, in := fresh("prod"), map[string]any{
		"title": fresh("Teapot"), "description": "for one", "category": "home",
		"skus": []map[string]any{{"title": "red", "price": price, "currency": "CNY"}},
	}
	p := patiently(t, func() (answer, error) { return u.do(t, "POST", "/products", key, in), nil })
	if p.status != http.StatusCreated {
		t.Fatalf("POST /products of %s = %s", u.home, p)
	}
	sku := p.str("skus.0.id")
	u.want(t, http.StatusOK, "PUT", "/seller/stock/"+sku, fresh("stock"), map[string]any{"add": stock})
	for _, c := range sys.Cells { // the copies follow
		eventually(t, patience, "the product in "+c.Name, func() (bool, string) {
			a, err := send(t.Context(), "GET", c.Gateway+"/api/v1/products/"+p.str("id"), "", "", nil)
			return err == nil && a.status == http.StatusOK, a.String()
		})
	}
	return sku
}

func items(sku string, quantity int) map[string]any {
	return map[string]any{"items": []map[string]any{{"sku": sku, "quantity": quantity}}}
}

// order waits until an order has one of the states.
func (u *shopper) order(t testing.TB, number string, states ...string) answer {
	t.Helper()
	var a answer
	eventually(t, patience, "order "+number+" becomes "+strings.Join(states, " or "), func() (bool, string) {
		a = u.do(t, "GET", "/orders/"+number, "", nil)
		for _, s := range states {
			if a.str("state") == s {
				return true, ""
			}
		}
		return false, a.String()
	})
	return a
}

// transfer waits until a transfer has one of the states.
func (u *shopper) transfer(t testing.TB, id string, states ...string) answer {
	t.Helper()
	var a answer
	eventually(t, patience, "transfer "+id+" becomes "+strings.Join(states, " or "), func() (bool, string) {
		a = u.do(t, "GET", "/transfers/"+id, "", nil)
		for _, s := range states {
			if a.str("state") == s {
				return true, ""
			}
		}
		return false, a.String()
	})
	return a
}

// patience is the usual limit of a wait: messages are sent again after up to half a
// minute, and the machine may do other things as well.
const patience = 75 * time.Second

// eventually waits for a condition with a limit; the text says what was seen last.
func eventually(t testing.TB, limit time.Duration, what string, cond func() (bool, string)) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, seen := cond()
		if ok {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("not within %s: %s; last: %s", limit, what, seen)
		case <-tick.C:
		}
	}
}

// atRest waits until no cell has an open message, then checks every invariant.
func atRest(t testing.TB) {
	t.Helper()
	eventually(t, 2*time.Minute, "all cells at rest", func() (bool, string) {
		for cell, a := range sys.agents {
			s, err := a.Status(t.Context())
			if err != nil {
				return false, err.Error()
			}
			if s.Database == nil || s.Database.Open > 0 {
				return false, fmt.Sprintf("%s: %+v %s", cell, s.Database, s.DatabaseError)
			}
		}
		return true, ""
	})
	for _, r := range agentapi.Check(t.Context(), sys.agents) {
		if r.OK == nil || !*r.OK {
			t.Errorf("%s (%s) does not hold: %v", r.ID, r.What, r.Violations)
		}
	}
}
