package catalog

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/catalog/catalogapi"
)

// writerServer is the HTTP side of the writer. Only the border leads to it, which
// lets the cells' agents in and nobody else; so the gateways' headers are believed.
type writerServer struct {
	writer *writer
	stop   context.Context // its end ends long polls, so that they don't hold up the shutdown
}

func (s *writerServer) mount(e *echo.Echo) {
	e.POST("/api/v1/products", s.handleCreate)
	e.PATCH("/api/v1/products/:id", s.handleChange)
	e.GET("/feed", s.handleFeed)
}

// seller is the user who asks, if the gateway says that it's a seller.
func seller(c echo.Context) (id.ID, error) {
	actor, err := web.Actor(c)
	if err != nil {
		return 0, err
	}
	if c.Request().Header.Get(web.HeaderSeller) != "true" {
		return 0, ErrNotSeller
	}
	return actor, nil
}

func (s *writerServer) handleCreate(c echo.Context) error {
	actor, err := seller(c)
	if err != nil {
		return err
	}
	key, err := web.IdempotencyKey(c)
	if err != nil {
		return err
	}
	var in catalogapi.NewProduct
	if err := web.Bind(c, &in); err != nil {
		return err
	}
	r, replayed, err := s.writer.create(c.Request().Context(), actor, key, in)
	if err != nil {
		return err
	}
	h := c.Response().Header()
	h.Set("Location", r.Location)
	if replayed {
		h.Set(web.HeaderReplayed, "true")
	}
	return c.JSONBlob(r.Status, r.Body)
}

func (s *writerServer) handleChange(c echo.Context) error {
	actor, err := seller(c)
	if err != nil {
		return err
	}
	product, err := web.PathID(c, "id")
	if err != nil {
		return err
	}
	var in catalogapi.Change
	if err := web.Bind(c, &in); err != nil {
		return err
	}
	p, err := s.writer.change(c.Request().Context(), actor, product, in)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, p)
}

// handleFeed: GET /feed?history=H&after=V&limit=500&wait=20s.
func (s *writerServer) handleFeed(c echo.Context) error {
	const max = 1<<63 - 1
	after, err := web.QueryInt(c, "after", 0, 0, max)
	if err != nil {
		return err
	}
	limit, err := web.QueryInt(c, "limit", catalogapi.MaxFeed, 1, catalogapi.MaxFeed)
	if err != nil {
		return err
	}
	var wait time.Duration
	if v := c.QueryParam("wait"); v != "" {
		if wait, err = time.ParseDuration(v); err != nil || wait < 0 {
			return errs.Field("wait", "is not a duration such as 20s")
		}
	}
	waiting, cancel := context.WithTimeout(c.Request().Context(), min(wait, catalogapi.MaxWait))
	defer cancel()
	defer context.AfterFunc(s.stop, cancel)()
	f, err := s.writer.feed(c.Request().Context(), waiting, c.QueryParam("history"), after, int(limit))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, f)
}
