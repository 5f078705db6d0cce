package order

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/order/orderapi"
)

// server is the HTTP side.
type server struct {
	*Service
	numbers   *id.Numbers
	cursorKey []byte
}

// mount adds the routes; the gateway forwards them unchanged.
func (s *server) mount(e *echo.Echo) {
	g := e.Group("/api/v1", web.RouteContext())
	g.GET("/cart", s.handleCart)
	g.PUT("/cart/items/:sku", s.handlePutItem)
	g.DELETE("/cart/items/:sku", s.handleDropItem)
	g.POST("/orders", s.handlePlace)
	g.GET("/orders", s.handleList)
	g.GET("/orders/:number", s.handleShow)
	g.POST("/orders/:number/cancel", s.handleCancel)
}

// who gives the actor and the request's route.
func who(c echo.Context) (id.ID, call.Route, error) {
	user, err := web.Actor(c)
	if err != nil {
		return 0, call.Route{}, err
	}
	r, err := web.RequireRoute(c)
	return user, r, err
}

func (s *server) handleCart(c echo.Context) error {
	user, r, err := who(c)
	if err != nil {
		return err
	}
	cart, err := s.showCart(c.Request().Context(), r, user)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, cart)
}

func (s *server) handlePutItem(c echo.Context) error {
	user, r, err := who(c)
	if err != nil {
		return err
	}
	sku, err := web.PathID(c, "sku")
	if err != nil {
		return err
	}
	var body orderapi.Quantity
	if err := web.Bind(c, &body); err != nil {
		return err
	}
	if err := s.putInCart(c.Request().Context(), r, user, sku, body.Quantity); err != nil {
		return err
	}
	return s.handleCart(c)
}

func (s *server) handleDropItem(c echo.Context) error {
	user, r, err := who(c)
	if err != nil {
		return err
	}
	sku, err := web.PathID(c, "sku")
	if err != nil {
		return err
	}
	if err := s.store.putItem(c.Request().Context(), entry(r, user), sku, 0); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *server) handlePlace(c echo.Context) error {
	user, r, err := who(c)
	if err != nil {
		return err
	}
	key, err := web.IdempotencyKey(c)
	if err != nil {
		return err
	}
	var body orderapi.Place
	if err := web.Bind(c, &body); err != nil {
		return err
	}
	a, err := s.place(c.Request().Context(), r, user, key, body)
	if err != nil {
		return err
	}
	h := c.Response().Header()
	if a.Replayed {
		h.Set(web.HeaderReplayed, "true")
	}
	h.Set("Location", a.Location)
	if a.Refusal != nil {
		return a.Refusal
	}
	return c.JSONBlob(a.Status, a.Body)
}

func (s *server) handleList(c echo.Context) error {
	user, r, err := who(c)
	if err != nil {
		return err
	}
	limit, err := web.QueryInt(c, "limit", 20, 1, 100)
	if err != nil {
		return err
	}
	from := position{User: user, At: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
	if text := c.QueryParam("cursor"); text != "" {
		if err := web.DecodeCursor(s.cursorKey, text, &from); err != nil {
			return err
		}
		if from.User != user {
			return web.ErrInvalidCursor
		}
	}
	rows, err := s.store.list(c.Request().Context(), r.Slot, from, limit+1)
	if err != nil {
		return err
	}
	out := orderapi.List{Items: []orderapi.Summary{}}
	for i, l := range rows {
		if int64(i) == limit {
			last := rows[i-1]
			out.NextCursor = web.EncodeCursor(s.cursorKey, position{User: user, At: last.CreatedAt, Order: last.ID})
			break
		}
		out.Items = append(out.Items, s.summary(l.Order, l.Lines))
	}
	return c.JSON(http.StatusOK, out)
}

// order reads the number in the path. A malformed one, and one that carries
// another user's slot, is 404 before any database is asked.
func (s *server) order(c echo.Context, user id.ID) (id.ID, error) {
	order, err := s.numbers.Decode(c.Param("number"))
	if err != nil {
		return 0, errs.ErrNotFound.Because(err)
	}
	if order.Slot() != user.Slot() {
		return 0, errs.ErrNotFound
	}
	return order, nil
}

func (s *server) handleShow(c echo.Context) error {
	user, r, err := who(c)
	if err != nil {
		return err
	}
	order, err := s.order(c, user)
	if err != nil {
		return err
	}
	f, err := s.store.get(c.Request().Context(), r.Slot, user, order)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, s.view(f))
}

func (s *server) handleCancel(c echo.Context) error {
	user, r, err := who(c)
	if err != nil {
		return err
	}
	order, err := s.order(c, user)
	if err != nil {
		return err
	}
	f, err := s.cancel(c.Request().Context(), r, user, order)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, s.view(f))
}
