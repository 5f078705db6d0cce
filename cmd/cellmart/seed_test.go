package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/catalog/catalogapi"
	"example.com/cellmart/services/inventory/inventoryapi"
	"example.com/cellmart/services/user/userapi"
)

// shopSystem stands for the whole system's public API, with its bad moments: each
// kind of request fails in some way before it works.
type shopSystem struct {
	t        *testing.T
	mu       sync.Mutex
	next     int64
	users    map[string]*userapi.User // by phone
	pending  map[id.ID]int            // operations: polls to go
	kept     map[string][]byte        // answers by caller and key
	hiccups  map[string]int
	address  map[string]int
	products map[string]catalogapi.NewProduct
	units    map[id.ID]int64
	money    int64
}

func newShopSystem(t *testing.T) *shopSystem {
	return &shopSystem{
		t: t, users: map[string]*userapi.User{}, pending: map[id.ID]int{}, kept: map[string][]byte{}, hiccups: map[string]int{},
		address: map[string]int{}, products: map[string]catalogapi.NewProduct{}, units: map[id.ID]int64{},
	}
}

func (s *shopSystem) id() id.ID { s.next++; return id.ID(s.next) }

// server is a cell's gateway, or with "" the edge, which has c1 answer for a cell
// that it can't reach yet.
func (s *shopSystem) server(cell string) *httptest.Server {
	asked := map[string]int{}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		by, region := cell, r.Header.Get("X-Region")
		if asked[region]++; by == "" {
			by = "c1"
			if asked[region] > 5 {
				by = region
			}
		}
		w.Header().Set(call.HeaderCell, by)
		if err := s.hiccup(w, r); err != nil {
			web.WriteProblem(w, r, err)
			return
		}
		s.serve(w, r)
	})
	server := httptest.NewServer(h)
	s.t.Cleanup(server.Close)
	return server
}

// hiccup fails the first four requests of each kind, a new way each time.
func (s *shopSystem) hiccup(w http.ResponseWriter, r *http.Request) error {
	kind := r.Method + " " + strings.Join(strings.Split(r.URL.Path, "/")[:4], "/")
	s.hiccups[kind]++
	switch s.hiccups[kind] {
	case 1:
		return errs.ErrUnavailable.After(time.Millisecond)
	case 2:
		return userapi.ErrBusy.After(time.Millisecond)
	case 3:
		panic(http.ErrAbortHandler) // the connection breaks
	case 4:
		return errs.ErrMisrouted
	}
	return nil
}

func (s *shopSystem) serve(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	phone, role, _ := strings.Cut(token, "/")
	fail := func(err error) { web.WriteProblem(w, r, err) }
	ok := func(status int, v any) {
		b, _ := json.Marshal(v)
		if key := r.Header.Get(call.HeaderIdempotencyKey); key != "" {
			if old, had := s.kept[phone+" "+key]; had {
				w.Header().Set(call.HeaderReplayed, "true")
				b = old
			}
			s.kept[phone+" "+key] = b
		}
		w.WriteHeader(status)
		_, _ = w.Write(b)
	}
	had := func() bool { _, had := s.kept[phone+" "+r.Header.Get(call.HeaderIdempotencyKey)]; return had }
	session := func(u *userapi.User) userapi.Session {
		return userapi.Session{Token: fmt.Sprintf("%s/%v", u.Phone, u.Seller), User: *u}
	}
	read := func(v any) {
		if err := json.NewDecoder(r.Body).Decode(v); err != nil {
			s.t.Errorf("%s %s: %v", r.Method, r.URL.Path, err)
		}
	}
	path := strings.TrimPrefix(r.URL.Path, apiPrefix)
	switch kind := r.Method + " " + path; {
	case kind == "POST /sessions":
		var in userapi.LoginRequest
		read(&in)
		if u := s.users[in.Phone]; u != nil && s.pending[u.ID] == 0 {
			ok(201, session(u))
			return
		}
		fail(userapi.ErrCredentials)
	case kind == "POST /users":
		var in userapi.RegisterRequest
		read(&in)
		u := &userapi.User{ID: s.id(), Phone: in.Phone, Name: in.Name}
		s.users[in.Phone] = u
		if u.ID%3 == 0 {
			s.pending[u.ID] = 2
			w.Header().Set("Location", apiPrefix+"/operations/"+u.ID.String())
			ok(202, userapi.Operation{ID: u.ID, State: userapi.OperationPending})
			return
		}
		ok(201, session(u))
	case strings.HasPrefix(kind, "GET /operations/"):
		op, _ := id.Parse(path[len("/operations/"):])
		state := userapi.OperationPending
		if s.pending[op]--; s.pending[op] == 0 {
			state = userapi.OperationDone
		}
		ok(200, userapi.Operation{ID: op, State: state})
	case kind == "GET /categories":
		ok(200, struct{}{})
	case token == "":
		fail(web.ErrUnauthenticated)
	case kind == "POST /seller":
		var in userapi.SellerRequest
		read(&in)
		s.users[phone].Seller, s.users[phone].ShopName = true, in.ShopName
		ok(201, session(s.users[phone]))
	case kind == "POST /wallet/deposits":
		var in userapi.DepositRequest
		read(&in)
		if !had() {
			s.money += in.Amount
		}
		ok(201, userapi.Deposit{})
	case kind == "GET /me/addresses":
		ok(200, userapi.Addresses{Items: slices.Repeat([]userapi.Address{{ID: 1}}, s.address[phone])})
	case kind == "POST /me/addresses":
		s.address[phone]++
		ok(201, userapi.Address{})
	case role != "true":
		fail(errs.New(errs.Forbidden, "NOT_A_SELLER", ""))
	case kind == "POST /products":
		var in catalogapi.NewProduct
		read(&in)
		p := catalogapi.Product{ID: s.id(), Seller: 1}
		for range in.SKUs {
			p.SKUs = append(p.SKUs, catalogapi.Variant{ID: s.id()})
		}
		s.products[phone+in.Title] = in
		ok(201, p)
	case strings.HasPrefix(kind, "PUT /seller/stock/"):
		sku, _ := id.Parse(path[len("/seller/stock/"):])
		s.hiccups[path]++
		if s.hiccups[path] == 1 && sku%50 == 0 { // the copy is behind
			fail(errs.ErrNotFound)
			return
		}
		var in inventoryapi.Add
		read(&in)
		if !had() {
			s.units[sku] += in.Add
		}
		ok(200, inventoryapi.Stock{})
	default:
		s.t.Errorf("not of the API: %s", kind)
		fail(errs.ErrNotFound)
	}
}

func TestSeed(t *testing.T) {
	t.Parallel()
	system := newShopSystem(t)
	file := filepath.Join(t.TempDir(), "logins.json")
	var gateways []string
	edge := system.server("")
	for _, cell := range []string{"c1", "c2", "c3", "c4"} {
		url := edge.URL
		if cell < "c3" {
			url = system.server(cell).URL
		}
		gateways = append(gateways, cell+"="+url)
	}
	run := func() string {
		t.Helper()
		vars := map[string]string{"SEED_GATEWAYS": strings.Join(gateways, ","), "SEED_LOGINS": file, "SEED_TIMEOUT": "1m"}
		var out bytes.Buffer
		if err := runSeed(t.Context(), cellkit.Process{Getenv: func(k string) string { return vars[k] }, Stdout: &out}); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if out := run(); !strings.Contains(out, "12 shops, 204 products and 8 shoppers in 4 cells") {
		t.Errorf("the first run said %q", out)
	}
	units := int64(0)
	for sku, n := range system.units {
		if units += n; n < 50 || n > 500 {
			t.Errorf("SKU %d has %d units", sku, n)
		}
	}
	if len(system.products) != 204 || system.money != 8*seedMoney || len(system.address) != 8 || len(system.users) != 20 {
		t.Errorf("%d products, %d money, %d addresses, %d users", len(system.products), system.money, len(system.address), len(system.users))
	}
	if out := run(); !strings.Contains(out, "nothing changed") {
		t.Errorf("the second run said %q", out)
	}
	again := int64(0)
	for _, n := range system.units {
		again += n
	}
	if len(system.products) != 204 || system.money != 8*seedMoney || again != units {
		t.Errorf("after the second run: %d products, %d money, %d units, were %d", len(system.products), system.money, again, units)
	}

	var logins []map[string]string
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &logins); err != nil || len(logins) != 20 {
		t.Fatalf("%d logins, %v", len(logins), err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the logins' file has mode %v, %v", info.Mode(), err)
	}
	count := map[string]int{}
	for _, l := range logins {
		count[l["role"]+" "+l["cell"]]++
	}
	for _, cell := range []string{"c1", "c2", "c3", "c4"} {
		if count["shopper "+cell] != 2 || count["seller "+cell] != 3 {
			t.Errorf("%s: %d shoppers, %d sellers", cell, count["shopper "+cell], count["seller "+cell])
		}
	}
}

// The words give titles that differ and prices within the promised limits.
func TestSeedGoods(t *testing.T) {
	t.Parallel()
	titles, categories := map[string]bool{}, map[string]int{}
	for _, s := range shops() {
		for n := range seedPerShop {
			p := s.product(n)
			if titles[p.Title] {
				t.Errorf("two products are %q", p.Title)
			}
			titles[p.Title] = true
			categories[p.Category]++
			for _, v := range p.SKUs {
				if v.Price < 500 || v.Price > 50_000 {
					t.Errorf("%q costs %d", p.Title, v.Price)
				}
			}
			if again := s.product(n); again.Title != p.Title || again.SKUs[0] != p.SKUs[0] {
				t.Errorf("product %d of %q differs from run to run", n, s.name)
			}
		}
	}
	if len(titles) < 200 || len(categories) != 8 {
		t.Errorf("%d products in %d categories", len(titles), len(categories))
	}
}

func TestSeedGivesUp(t *testing.T) {
	t.Parallel()
	never := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		web.WriteProblem(w, r, errs.ErrUnavailable.After(time.Millisecond))
	}))
	defer never.Close()
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		web.WriteProblem(w, r, errs.Field("phone", "is not one"))
	}))
	defer refuses.Close()
	for _, tc := range []struct{ gateways, timeout, want string }{
		{"", "1s", "SEED_GATEWAYS"},
		{"c1", "1s", "not CELL=http"},
		{"c1=" + never.URL, "300ms", "not done within 300ms"},
		{"c1=" + refuses.URL, "10s", "is not one"},
	} {
		vars := map[string]string{"SEED_GATEWAYS": tc.gateways, "SEED_TIMEOUT": tc.timeout}
		err := runSeed(t.Context(), cellkit.Process{Getenv: func(k string) string { return vars[k] }, Stdout: &bytes.Buffer{}})
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("gateways %q: %v, want one line with %q", tc.gateways, err, tc.want)
		}
	}
}
