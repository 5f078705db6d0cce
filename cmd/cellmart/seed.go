package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/catalog/catalogapi"
	"example.com/cellmart/services/inventory/inventoryapi"
	"example.com/cellmart/services/user/userapi"
)

// What the seed makes. All of it has fixed names, phones and Idempotency-Keys, so
// that a second run finds what the first made.
const (
	seedShoppers = 8
	seedPerShop  = 17 // products; the shops are in seed_goods.go
	seedPassword = "cellmart-demo"
	seedMoney    = 1_000_000 // 10,000.00 CNY
	seedRun      = "seed-1-" // of every Idempotency-Key
)

type seedConfig struct {
	Gateways []entrance
	Logins   string
	Timeout  time.Duration
	Parallel int
}

// entrance is where one cell's users register, so that homes are spread.
type entrance struct{ cell, url string }

func loadSeed(getenv func(string) string) (seedConfig, *env.Reader) {
	r := env.NewReader("SEED", getenv)
	var c seedConfig
	for pair := range strings.SplitSeq(r.Required("GATEWAYS", "every cell's gateway, c1=http://host:port,c2=..., or the edge for each: it is told the cell"), ",") {
		if pair == "" {
			continue // not set: said already
		}
		cell, url, ok := strings.Cut(pair, "=")
		if !ok || cell == "" || !strings.HasPrefix(url, "http") {
			r.Fail("GATEWAYS", fmt.Sprintf("has %q, which is not CELL=http://host:port", pair))
			continue
		}
		c.Gateways = append(c.Gateways, entrance{cell, strings.TrimSuffix(url, "/")})
	}
	c.Logins = r.String("LOGINS", "", "file that gets the logins as JSON, readable by its owner only; empty = none")
	c.Timeout = r.Duration("TIMEOUT", 150*time.Second, "for all of it, waiting for services that are not up yet included")
	c.Parallel = r.Int("PARALLEL", 4, "requests at a time, 1 to 64")
	if c.Parallel < 1 || c.Parallel > 64 {
		r.Fail("PARALLEL", "must be from 1 to 64")
	}
	return c, r
}

func seedVars() []env.Var {
	_, r := loadSeed(func(string) string { return "" })
	return r.Vars()
}

// runSeed fills a fresh system: shops with products and stock, shoppers with money
// and an address, all through the public API. Running it again changes nothing.
func runSeed(ctx context.Context, p cellkit.Process) error {
	cfg, r := loadSeed(p.Getenv)
	if err := r.Err(); err != nil {
		return cellkit.Usage{Err: err}
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Timeout, fmt.Errorf("not done within %s", cfg.Timeout))
	defer cancel()
	s := &seeder{config: cfg, http: newSeedHTTP(cfg.Parallel)}
	defer s.http.CloseIdleConnections()
	accounts, err := s.all(ctx)
	if err != nil {
		return err
	}
	if err := writeLogins(cfg.Logins, accounts); err != nil {
		return err
	}
	took := time.Since(begun).Round(100 * time.Millisecond)
	if n := s.made.Load(); n > 0 {
		fmt.Fprintf(p.Stdout, "seed: %d shops, %d products and %d shoppers in %d cells (%d things made in %s); the password of all is %s\n",
			len(shops()), len(shops())*seedPerShop, seedShoppers, len(cfg.Gateways), n, took, seedPassword)
	} else {
		fmt.Fprintf(p.Stdout, "seed: all of it is there already, nothing changed (looked for %s)\n", took)
	}
	return nil
}

// seeder makes things and counts what wasn't there.
type seeder struct {
	config seedConfig
	http   *http.Client
	made   atomic.Int64
}

// account is a shop or a shopper.
type account struct {
	at    entrance
	name  string
	phone string
	shop  string // of a seller
	token string
	cell  string // the home
}

// accounts lists who there will be, in turn over the cells.
func (s *seeder) accounts() (out []*account) {
	for i, name := range shopperNames()[:seedShoppers] {
		out = append(out, &account{at: s.gateway(i), name: name, phone: fmt.Sprintf("+86138%08d", i+1)})
	}
	for i, shop := range shops() {
		out = append(out, &account{at: s.gateway(i), name: shop.owner, phone: fmt.Sprintf("+86138%08d", 101+i), shop: shop.name})
	}
	return out
}

func (s *seeder) gateway(i int) entrance { return s.config.Gateways[i%len(s.config.Gateways)] }

func (s *seeder) all(ctx context.Context) ([]*account, error) {
	for _, at := range s.config.Gateways {
		if err := s.await(ctx, at); err != nil {
			return nil, fmt.Errorf("cell %s: %w", at.cell, err)
		}
	}
	accounts := s.accounts()
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(s.config.Parallel)
	for _, a := range accounts {
		group.Go(func() error { return s.open(inner, a) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	group, inner = errgroup.WithContext(ctx)
	group.SetLimit(s.config.Parallel)
	// Product by product over all shops, so that every cell has work from the start.
	for n := range seedPerShop {
		for i, shop := range shops() {
			group.Go(func() error { return s.product(inner, accounts[seedShoppers+i], shop, n) })
		}
	}
	return accounts, group.Wait()
}

// await returns when the cell itself answers there: an edge that can't reach it
// yet has another cell answer, and homes would all be in the first that is up.
func (s *seeder) await(ctx context.Context, at entrance) error {
	for {
		ans, err := s.send(ctx, &account{at: at}, request{method: "GET", path: "/categories"})
		if err != nil || ans.cell == at.cell {
			return err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("%w; %s answers in its place", err, ans.cell)
		}
	}
}

// open logs an account in, making first what isn't there: the user, then the shop
// or the money and the address.
func (s *seeder) open(ctx context.Context, a *account) error {
	session, err := s.login(ctx, a)
	if errors.Is(err, userapi.ErrCredentials) {
		session, err = s.register(ctx, a)
	}
	if err != nil {
		return fmt.Errorf("account %s at %s: %w", a.phone, a.at.cell, err)
	}
	a.token = session.Token
	if a.shop == "" {
		return s.provide(ctx, a)
	}
	if session.User.Seller {
		return nil
	}
	// The answer's token says seller; the one at hand doesn't.
	_, err = s.send(ctx, a, request{method: "POST", path: "/seller", in: userapi.SellerRequest{ShopName: a.shop}, out: &session})
	if err != nil {
		return fmt.Errorf("shop %q: %w", a.shop, err)
	}
	s.made.Add(1)
	a.token = session.Token
	return nil
}

func (s *seeder) login(ctx context.Context, a *account) (session userapi.Session, err error) {
	ans, err := s.send(ctx, a, request{
		method: "POST", path: "/sessions", out: &session,
		in: userapi.LoginRequest{Phone: a.phone, Password: seedPassword},
	})
	if err == nil {
		a.cell = ans.cell
	}
	return session, err
}

// register makes a user. While the home of the phone number can't be reached that
// is an operation, which is polled.
func (s *seeder) register(ctx context.Context, a *account) (session userapi.Session, err error) {
	var body json.RawMessage
	ans, err := s.send(ctx, a, request{
		method: "POST", path: "/users", key: seedRun + "user-" + a.phone, out: &body,
		in: userapi.RegisterRequest{Phone: a.phone, Password: seedPassword, Name: a.name},
	})
	if err != nil {
		return session, err
	}
	s.made.Add(1)
	if ans.status != http.StatusAccepted {
		a.cell = ans.cell
		return session, json.Unmarshal(body, &session)
	}
	var op userapi.Operation
	if err := json.Unmarshal(body, &op); err != nil {
		return session, err
	}
	for op.State == userapi.OperationPending {
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return session, err
		}
		if _, err := s.send(ctx, a, request{method: "GET", path: strings.TrimPrefix(ans.location, apiPrefix), out: &op}); err != nil {
			return session, err
		}
	}
	if op.State != userapi.OperationDone {
		return session, fmt.Errorf("the registration ended as %s: %s", op.State, op.Reason)
	}
	return s.login(ctx, a)
}

// provide gives a shopper money and an address.
func (s *seeder) provide(ctx context.Context, a *account) error {
	ans, err := s.send(ctx, a, request{
		method: "POST", path: "/wallet/deposits", key: seedRun + "money", in: userapi.DepositRequest{Amount: seedMoney, Currency: "CNY"},
	})
	if err != nil {
		return fmt.Errorf("money for %s: %w", a.phone, err)
	}
	s.count(ans)
	for try := 0; ; try++ {
		err := s.address(ctx, a)
		wait, again := later(err, try)
		if !again {
			return err
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// address adds the account's address unless it has one. A failure is repeated with
// the look, since nobody knows whether the first try came through.
func (s *seeder) address(ctx context.Context, a *account) error {
	var list userapi.Addresses
	if _, err := s.send(ctx, a, request{method: "GET", path: "/me/addresses", out: &list}); err != nil {
		return fmt.Errorf("addresses of %s: %w", a.phone, err)
	}
	if len(list.Items) > 0 {
		return nil
	}
	if _, err := s.send(ctx, a, request{method: "POST", path: "/me/addresses", in: addressOf(a), once: true}); err != nil {
		return fmt.Errorf("address of %s: %w", a.phone, err)
	}
	s.made.Add(1)
	return nil
}

// product makes a shop's nth product and puts its SKUs into stock.
func (s *seeder) product(ctx context.Context, a *account, shop shop, n int) error {
	var p catalogapi.Product
	ans, err := s.send(ctx, a, request{
		method: "POST", path: "/products", key: fmt.Sprintf("%sproduct-%d", seedRun, n), in: shop.product(n), out: &p,
	})
	if err != nil {
		return fmt.Errorf("product %d of %q: %w", n, shop.name, err)
	}
	s.count(ans)
	for i, sku := range p.SKUs {
		if err := s.stock(ctx, a, sku.ID, shop.units(n, i)); err != nil {
			return fmt.Errorf("stock of SKU %d of %q: %w", sku.ID, shop.name, err)
		}
	}
	return nil
}

// stock adds units. The home's copy of the catalog may not have the product for a
// moment; that is what 404 means here.
func (s *seeder) stock(ctx context.Context, a *account, sku id.ID, units int64) error {
	r := request{
		method: "PUT", path: "/seller/stock/" + sku.String(), key: seedRun + "stock-" + sku.String(), in: inventoryapi.Add{Add: units},
	}
	for try := 1; ; try++ {
		ans, err := s.send(ctx, a, r)
		if err == nil {
			s.count(ans)
			return nil
		}
		if !errs.IsKind(err, errs.NotFound) || try == 40 {
			return err
		}
		if err := pause(ctx, 250*time.Millisecond); err != nil {
			return err
		}
	}
}

// count counts what an answer says was made just now.
func (s *seeder) count(ans answer) {
	if !ans.replayed {
		s.made.Add(1)
	}
}

// writeLogins writes the file whole or not at all.
func writeLogins(path string, accounts []*account) error {
	if path == "" {
		return nil
	}
	type login struct {
		Role     string `json:"role"`
		Name     string `json:"name"`
		Phone    string `json:"phone"`
		Password string `json:"password"`
		Cell     string `json:"cell"`
	}
	var list []login
	for _, a := range accounts {
		l := login{"shopper", a.name, a.phone, seedPassword, a.cell}
		if a.shop != "" {
			l.Role, l.Name = "seller", a.shop
		}
		list = append(list, l)
	}
	b, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".logins-") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
