package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/catalog/catalogapi"
	"example.com/cellmart/services/user/userapi"
)

const (
	apiPrefix = "/api/v1"
	password  = "cellmart-load" // of users that this makes, on a demo
	purse     = 100_000_000     // minor units that each user gets in each run
	stock     = 1_000_000       // units of each SKU, likewise
	skusEach  = 4               // of each cell's seller, so that no row is everybody's
)

// user is a shopper; the first of each cell sells, too.
type user struct {
	id    id.ID
	phone string
	at    string // base URL of the home's gateway
	token atomic.Pointer[userapi.Session]
	entry sync.Mutex // one log-in at a time
}

// cell is a cell with the load's people.
type cell struct {
	Cell
	users    []*user
	products []id.ID
	skus     []id.ID
}

// phone is the same for the same seed, so that a second run finds the users of
// the first. 500 fit for each of 100 cells.
func phone(seed uint64, cell, user int) string {
	h := fnv.New32a()
	fmt.Fprint(h, seed)
	return fmt.Sprintf("+86137%03d%02d%03d", h.Sum32()%1000, cell, user)
}

// open makes or finds the users of all cells, and their sellers' goods.
func (l *Load) open(ctx context.Context) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(4) // a password costs 19 MiB and some ten milliseconds
	for c, at := range l.o.Cells {
		l.cells = append(l.cells, &cell{Cell: at})
		for u := range l.o.Users {
			who := &user{phone: phone(l.o.Seed, c, u), at: at.Gateway}
			l.cells[c].users = append(l.cells[c].users, who)
			group.Go(func() error {
				if err := l.enter(inner, who, at.Name); err != nil {
					return fmt.Errorf("user %s of %s: %w", who.phone, at.Name, err)
				}
				return nil
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, c := range l.cells {
		if err := l.shop(ctx, c); err != nil {
			return fmt.Errorf("the seller of %s: %w", c.Name, err)
		}
	}
	for _, c := range l.cells { // the copies follow
		for _, of := range l.cells {
			for _, p := range of.products {
				if err := l.see(ctx, c, p); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// enter logs a user in, who is made first if need be, and gives them money.
func (l *Load) enter(ctx context.Context, u *user, home string) error {
	s, at, err := l.login(ctx, u)
	var refused *refusal
	if errors.As(err, &refused) && refused.status == http.StatusUnauthorized {
		_, err = l.ask(ctx, "POST", u.at+apiPrefix+"/users", "", fresh("user"), userapi.RegisterRequest{Phone: u.phone, Password: password, Name: "Load"}, nil)
		for try := 0; err == nil; try++ { // 202 while the phone's home thinks
			if s, at, err = l.login(ctx, u); err == nil || try > 50 || ctx.Err() != nil {
				break
			}
			err = pause(ctx, 200*time.Millisecond)
		}
	}
	if err != nil {
		return err
	}
	if at != home {
		return fmt.Errorf("lives in %s: use another --seed", at)
	}
	u.id = s.User.ID
	_, err = l.ask(ctx, "POST", u.at+apiPrefix+"/wallet/deposits", s.Token, fresh("purse"), userapi.DepositRequest{Amount: purse, Currency: "CNY"}, nil)
	return err
}

func (l *Load) login(ctx context.Context, u *user) (*userapi.Session, string, error) {
	var s userapi.Session
	header, err := l.ask(ctx, "POST", u.at+apiPrefix+"/sessions", "", "", userapi.LoginRequest{Phone: u.phone, Password: password}, &s)
	if err != nil {
		return nil, "", err
	}
	u.token.Store(&s)
	return &s, header.Get(call.HeaderCell), nil
}

// shop makes the cell's first user a seller of one product with a few SKUs.
func (l *Load) shop(ctx context.Context, c *cell) error {
	owner := c.users[seller]
	base := c.Gateway + apiPrefix
	if !owner.token.Load().User.Seller {
		if _, err := l.ask(ctx, "POST", base+"/seller", owner.token.Load().Token, fresh("seller"), userapi.SellerRequest{ShopName: "Load of " + owner.phone}, nil); err != nil {
			return err
		}
		if _, _, err := l.login(ctx, owner); err != nil { // the token says so now
			return err
		}
	}
	token := owner.token.Load().Token
	var list catalogapi.ProductList
	if _, err := l.ask(ctx, "GET", base+"/products?limit=1&seller="+owner.id.String(), "", "", nil, &list); err != nil {
		return err
	}
	if len(list.Items) == 0 {
		in := catalogapi.NewProduct{Title: "Teapot for load", Description: "of many", Category: "home"}
		for i := range skusEach {
			in.SKUs = append(in.SKUs, catalogapi.NewVariant{Title: fmt.Sprint("size ", i), Price: 10, Currency: "CNY"})
		}
		var made catalogapi.Product
		if _, err := l.ask(ctx, "POST", base+"/products", token, fresh("product"), in, &made); err != nil {
			return err
		}
		list.Items = append(list.Items, made)
	}
	for _, p := range list.Items {
		c.products = append(c.products, p.ID)
		for _, s := range p.SKUs {
			c.skus = append(c.skus, s.ID)
			if _, err := l.ask(ctx, "PUT", base+"/seller/stock/"+s.ID.String(), token, fresh("stock"), map[string]any{"add": stock}, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// see waits until a cell has a copy of every seller's product.
func (l *Load) see(ctx context.Context, c *cell, product id.ID) error {
	for try := 0; ; try++ {
		_, err := l.ask(ctx, "GET", c.Gateway+apiPrefix+"/products/"+product.String(), "", "", nil, nil)
		if err == nil || try > 100 {
			return err
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// refresh logs users in again before their tokens end.
func (l *Load) refresh(ctx context.Context) {
	for pause(ctx, 20*time.Second) == nil {
		for _, c := range l.cells {
			for _, u := range c.users {
				if time.Until(u.token.Load().ExpiresAt) < 4*time.Minute {
					_, _, _ = l.login(ctx, u) // again in 20 s: the old token lasts minutes
				}
			}
		}
	}
}

// insist fires a shot, and where Options.LogsIn says so does what a client must when
// its token is not taken: it logs in and asks again. A cell whose clock was set has processes that learn of
// it within a second of each other, so a few times.
func (l *Load) insist(ctx context.Context, s shot) (status int, body []byte, err error) {
	who := l.cells[s.home].users[s.user]
	for try := 0; ; try++ {
		had := who.token.Load()
		status, body, err = l.fire(ctx, s)
		if status != http.StatusUnauthorized || try == 3 || !s.kind.OfUser() || l.o.LogsIn == nil || !l.o.LogsIn(s.home) {
			return status, body, err
		}
		if try > 0 {
			_ = pause(ctx, 400*time.Millisecond) // ctx has no end
		}
		who.entry.Lock()
		if who.token.Load() == had { // nobody else did it meanwhile
			if _, _, err := l.login(ctx, who); err == nil {
				l.mu.Lock()
				l.again++
				l.mu.Unlock()
			}
		}
		who.entry.Unlock()
	}
}

// refusal is an answer that isn't 2xx.
type refusal struct {
	status int
	body   string
}

func (r *refusal) Error() string { return fmt.Sprintf("%d %s", r.status, strings.TrimSpace(r.body)) }

// ask is one request of the preparation. What nobody has an answer to yet is asked
// for again, with the same key: logging everybody in is more work for the cells
// than the load itself.
func (l *Load) ask(ctx context.Context, method, url, token, key string, in, out any) (http.Header, error) {
	for try := 0; ; try++ {
		header, err := l.once(ctx, method, url, token, key, in, out)
		var refused *refusal
		known := errors.As(err, &refused) && refused.status != http.StatusServiceUnavailable && refused.status != http.StatusConflict
		if err == nil || known || try == 8 || pause(ctx, time.Second) != nil {
			return header, err
		}
	}
}

func (l *Load) once(ctx context.Context, method, url, token, key string, in, out any) (http.Header, error) {
	status, header, body, err := l.send(ctx, method, url, token, key, in)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s %s: %w", method, url, err)
	case status/100 != 2:
		return nil, fmt.Errorf("%s %s: %w", method, url, &refusal{status, string(body)})
	case out != nil:
		err = json.Unmarshal(body, out)
	}
	return header, err
}

// send is one request; an error is one of the transport.
func (l *Load) send(ctx context.Context, method, url, token, key string, in any) (int, http.Header, []byte, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return 0, nil, nil, err
		}
		body = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return 0, nil, nil, err
	}
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if key != "" {
		r.Header.Set(call.HeaderIdempotencyKey, key)
	}
	res, err := l.http.Do(r)
	if err != nil {
		return 0, nil, nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, b, err
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
