package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/catalog/catalogapi"
	"example.com/cellmart/services/inventory/inventoryapi"
	"example.com/cellmart/services/order/orderapi"
	"example.com/cellmart/services/search/searchapi"
	"example.com/cellmart/services/user/userapi"
)

const password = "correct horse battery"

// person is a user at the gateway of the cell that is home.
type person struct {
	http    *http.Client
	gateway string
	token   string
}

// send is one request of the public API; an answer from 300 up is an error.
func (p *person) send(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, p.gateway+"/api/v1"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(call.HeaderIdempotencyKey, rand.Text())
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	res, err := p.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %w", method, path, call.DecodeProblem(res.StatusCode, res.Header, b))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(b, out)
}

// register makes a user in the gateway's cell and logs in, as soon as that works.
func register(ctx context.Context, client *http.Client, gateway, phone string) (*person, error) {
	p := &person{http: client, gateway: gateway}
	err := eventually(ctx, func() error {
		return p.send(ctx, "POST", "/users", userapi.RegisterRequest{Phone: phone, Password: password, Name: "Bench"}, nil)
	})
	if err != nil {
		return nil, err
	}
	var s userapi.Session
	err = eventually(ctx, func() error {
		return p.send(ctx, "POST", "/sessions", userapi.LoginRequest{Phone: phone, Password: password}, &s)
	})
	p.token = s.Token
	return p, err
}

// sell opens a shop with one product and plenty of it.
func (p *person) sell(ctx context.Context, name string) (product, sku id.ID, err error) {
	var s userapi.Session
	if err := p.send(ctx, "POST", "/seller", userapi.SellerRequest{ShopName: name}, &s); err != nil {
		return 0, 0, err
	}
	p.token = s.Token // the answer's token says seller
	var made catalogapi.Product
	err = p.send(ctx, "POST", "/products", catalogapi.NewProduct{
		Title: "Teapot of " + name, Description: "for one", Category: "home", SKUs: []catalogapi.NewVariant{{Title: "red", Price: 5350, Currency: "CNY"}},
	}, &made)
	if err != nil {
		return 0, 0, err
	}
	sku = made.SKUs[0].ID
	return made.ID, sku, eventually(ctx, func() error { // the cell's copy of the catalog follows
		return p.send(ctx, "PUT", "/seller/stock/"+sku.String(), inventoryapi.Add{Add: 100_000}, nil)
	})
}

func (p *person) deposit(ctx context.Context) error {
	return p.send(ctx, "POST", "/wallet/deposits", userapi.DepositRequest{Amount: 1_000_000_000, Currency: "CNY"}, nil)
}

// buy gives the order's number.
func (p *person) buy(ctx context.Context, sku id.ID) (string, error) {
	var placed orderapi.Summary
	err := p.send(ctx, "POST", "/orders", orderapi.Place{Items: []orderapi.Item{{SKU: sku, Quantity: 1}}}, &placed)
	return placed.Number, err
}

var errNotFound = errors.New("it isn't found yet")

// finds looks once for an order among those of one's shop.
func (p *person) finds(ctx context.Context, number string) error {
	var list searchapi.Orders
	if err := p.send(ctx, "GET", "/seller/orders/search?q="+number, nil, &list); err != nil {
		return err
	}
	if len(list.Items) != 1 || list.Items[0].Number != number {
		return errNotFound
	}
	return nil
}

// eventually repeats f until it has no error, for at most 20 s.
func eventually(ctx context.Context, f func() error) error { return within(ctx, 20*time.Second, f) }

func within(ctx context.Context, limit time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || pause(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("in vain: %w", err)
		}
	}
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
