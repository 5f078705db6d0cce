package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/relay"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/user/userapi"
)

const prefix = "/api/v1"

// rules is every path that the gateway lets through; nothing under /internal/.
func rules() []rule {
	return []rule{
		{"POST", "/users", svcUser, ofNew, anyone, "", ""},
		{"GET", "/operations/:id", svcUser, ofID, anyone, "id", ""},
		{"POST", "/sessions", svcUser, ofPhone, anyone, "", ""},
		{"DELETE", "/sessions", svcUser, ofUser, users, "", ""},
		{"POST", "/sessions/refresh", svcUser, ofRefresh, anyone, "", ""},
		{"POST", "/sessions/end", svcUser, ofRefresh, anyone, "", ""},
		{"GET", "/me", svcUser, ofUser, users, "", ""},
		{"PATCH", "/me", svcUser, ofUser, users, "", ""},
		{"DELETE", "/me", svcUser, ofUser, users, "", ""},
		{"GET", "/me/addresses", svcUser, ofUser, users, "", ""},
		{"POST", "/me/addresses", svcUser, ofUser, users, "", ""},
		{"DELETE", "/me/addresses/:id", svcUser, ofUser, users, "id", ""},
		{"GET", "/wallet", svcUser, ofUser, users, "", ""},
		{"GET", "/wallet/statement", svcUser, ofUser, users, "", ""},
		{"POST", "/wallet/deposits", svcUser, ofUser, users, "", ""},
		{"POST", "/wallet/withdrawals", svcUser, ofUser, users, "", ""},
		{"POST", "/transfers/preview", svcUser, ofUser, users, "", ""},
		{"POST", "/transfers", svcUser, ofUser, users, "", ""},
		{"GET", "/transfers", svcUser, ofUser, users, "", ""},
		{"GET", "/transfers/:id", svcUser, ofParty, users, "id", ""},
		{"POST", "/transfers/:id/cancel", svcUser, ofUser, users, "id", ""},
		{"POST", "/transfers/:id/refunds", svcUser, ofUser, users, "id", ""},
		{"POST", "/seller", svcUser, ofUser, users, "", ""},

		{"GET", "/products", svcCatalog, ofCell, anyone, "", "seller"},
		{"GET", "/products/:id", svcCatalog, ofCell, anyone, "id", ""},
		{"GET", "/products/:id/stock", svcInventory, ofThing, anyone, "id", ""},
		{"GET", "/categories", svcCatalog, ofCell, anyone, "", ""},
		{"POST", "/products", svcWriter, ofUser, sellers, "", ""},
		{"PATCH", "/products/:id", svcWriter, ofUser, sellers, "id", ""},

		{"GET", "/search", svcSearch, ofCell, anyone, "", ""},
		{"GET", "/seller/orders/search", svcSearch, ofCell, sellers, "", ""},

		{"GET", "/seller/stock", svcInventory, ofUser, sellers, "", ""},
		{"PUT", "/seller/stock/:sku", svcInventory, ofUser, sellers, "sku", ""},

		{"GET", "/cart", svcOrder, ofUser, users, "", ""},
		{"PUT", "/cart/items/:sku", svcOrder, ofUser, users, "sku", ""},
		{"DELETE", "/cart/items/:sku", svcOrder, ofUser, users, "sku", ""},
		{"POST", "/orders", svcOrder, ofUser, users, "", ""},
		{"GET", "/orders", svcOrder, ofUser, users, "", ""},
		{"GET", "/orders/:number", svcOrder, ofNumber, users, "number", ""},
		{"POST", "/orders/:number/cancel", svcOrder, ofNumber, users, "number", ""},
	}
}

// newHandler makes one of the gateway's two faces. The public one believes no
// internal header; the peers' one is only reached through the border, which lets
// other cells' agents in and nobody else, and never forwards.
func newHandler(g *Gateway, log *slog.Logger, m *obs.Metrics, peers bool, p *page) http.Handler {
	o := web.Options{
		Service: "gateway", Cell: g.cell, Log: log, Timeout: g.limits.request,
		RouteVersion: g.table.Version, Metrics: m,
	}
	e := web.New(o)
	for _, r := range rules() {
		e.Add(r.method, prefix+r.path, g.handler(r, peers))
	}
	var h http.Handler = e
	if p != nil {
		h = p.serve(e, o)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Health calls come many times a second: no log line, no figure.
		if r.URL.Path == "/livez" && r.Method == http.MethodGet {
			fmt.Fprintln(w, "ok")
			return
		}
		h.ServeHTTP(w, r)
	})
}

func (g *Gateway) handler(r rule, peers bool) echo.HandlerFunc {
	kind := r.method + " " + r.path
	return func(c echo.Context) error {
		j := job{rule: r, redirected: !peers && takeHop(c.Request())}
		found, err := g.check(r, c)
		if err != nil {
			return err
		}
		if peers {
			if j.from, err = arrivalOf(c.Request().Header); err != nil {
				return err
			}
		}
		j.authorization = c.Request().Header.Get("Authorization")
		who, err := r.authenticate(g.verify, g.table.Load(), j.authorization, g.wall())
		if err == nil && g.denied.covers(who) {
			err = userapi.ErrTokenExpired
		}
		if err != nil {
			if errs.IsKind(err, errs.Unauthenticated) {
				c.Response().Header().Set("WWW-Authenticate", `Bearer realm="cellmart"`)
			}
			return err
		}
		j.user = who.User
		q, err := relay.Read(c.Request())
		if err != nil {
			return err
		}
		if err = g.subject(c.Request().Context(), &j, found, q.Body); err != nil {
			return err
		}
		if j.at, err = g.locate(c.Request().Context(), j); err != nil {
			return err
		}
		// The log line has the slot then.
		route := call.Route{Cell: g.cell, Slot: j.at.slot, Epoch: j.at.epoch, User: j.user}
		c.SetRequest(c.Request().WithContext(call.WithRoute(c.Request().Context(), route)))
		if where := g.elsewhere(j, c.Request().URL); where != "" && !ofPage(c.Request().Context()) {
			g.count(kind, wayRedirected)
			c.Response().Header().Set("Cache-Control", "no-store") // the next request may belong here
			c.Response().Header().Set("Location", where)
			return c.NoContent(http.StatusTemporaryRedirect)
		}
		res, err := g.find(c.Request().Context(), &j, q)
		if !peers {
			g.count(kind, j.way())
		}
		if err != nil {
			return err
		}
		return relay.Answer(c.Response(), res)
	}
}

// check reads the IDs in path and query before anything else: what can't be an
// ID costs no call, and is 404 like one that doesn't exist.
func (g *Gateway) check(r rule, c echo.Context) (found id.ID, err error) {
	text := c.Param(r.param)
	switch {
	case r.slot == ofNumber:
		found, err = g.numbers.Decode(text)
	case r.param != "":
		found, err = id.Parse(text)
	}
	if err != nil {
		return 0, errs.ErrNotFound.Because(err)
	}
	if text := c.QueryParam(r.query); r.query != "" && text != "" {
		if _, err := id.Parse(text); err != nil {
			return 0, errs.Field(r.query, "is not an ID")
		}
	}
	return found, nil
}

// subject finds whom or what a request is about.
func (g *Gateway) subject(ctx context.Context, j *job, found id.ID, body []byte) (err error) {
	switch j.rule.slot {
	case ofUser:
		j.who = j.user
		return nil
	case ofRefresh:
		var ok bool
		if j.who, ok = refreshIn(body); !ok {
			return userapi.ErrToken
		}
		return nil
	case ofID:
		j.who = found
		return nil
	case ofThing, ofNumber, ofParty:
		j.slot = found.Slot()
		if j.from.hopped && (j.rule.slot == ofParty || j.from.slot >= routing.FirstUserSlot) {
			j.slot = j.from.slot // the other gateway asks all its homes one by one
		}
		return nil
	case ofPhone, ofNew:
		if j.from.hopped { // the other gateway has looked the phone up, or chosen
			j.slot = j.from.slot
			return nil
		}
	}
	if j.rule.slot == ofPhone {
		if j.who, err = g.lookup(ctx, body); err != nil || j.who != 0 {
			return err
		}
		// Nobody has the phone, or the body is wrong: the own user service says
		// so, in the same words and time as for a wrong password.
	}
	j.slot, err = g.ownSlot()
	return err
}

// ownSlot is the slot of what belongs to this cell.
func (g *Gateway) ownSlot() (routing.Slot, error) {
	t := g.table.Load()
	if t == nil {
		return 0, errs.ErrUnavailable.Because(errors.New("no route table yet"))
	}
	slot, ok := t.CellSlot(g.cell)
	if !ok {
		return 0, errs.ErrUnavailable.Because(fmt.Errorf("route table %d has no cell %s", t.Version(), g.cell))
	}
	return slot, nil
}

// groupIn reads the affinity group of a registration; what isn't one is empty.
func groupIn(body []byte) string {
	var in struct {
		Group string `json:"group"`
	}
	if json.Unmarshal(body, &in) != nil {
		return ""
	}
	return routing.CanonicalGroup(in.Group)
}

// refreshIn reads whose refresh token it is.
func refreshIn(body []byte) (id.ID, bool) {
	var in userapi.RefreshRequest
	if json.Unmarshal(body, &in) != nil {
		return 0, false
	}
	return userapi.RefreshUser(in.RefreshToken)
}

// phoneIn reads the phone of a login. What isn't one is empty: the user service
// has the words for it.
func phoneIn(body []byte) string {
	var in struct {
		Phone string `json:"phone"`
	}
	if json.Unmarshal(body, &in) != nil {
		return ""
	}
	return in.Phone
}
