package inventory

import (
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/inventory/inventoryapi"
)

// server is the HTTP side.
type server struct {
	*Service
	cursorKey []byte
}

// mount adds the routes; the gateway forwards them unchanged.
func (s *server) mount(e *echo.Echo) {
	g := e.Group("/api/v1", web.RouteContext())
	g.GET("/seller/stock", s.handleList)
	g.PUT("/seller/stock/:sku", s.handleAdd)
	g.GET("/products/:id/stock", s.handleShelf)
}

const maxShelf = 100 // SKUs that are asked for at once

// handleShelf tells everybody about how much is left. What isn't here may be with a
// seller who was moved alone, so nothing at all is 404, and the gateway asks on.
func (s *server) handleShelf(c echo.Context) error {
	route, err := web.RequireRoute(c)
	if err != nil {
		return err
	}
	var skus []id.ID
	for text := range strings.SplitSeq(c.QueryParam("skus"), ",") {
		sku, err := id.Parse(text)
		if err != nil || len(skus) == maxShelf {
			return errs.Field("skus", "must be 1 to %d IDs with commas between", maxShelf)
		}
		skus = append(skus, sku)
	}
	out := inventoryapi.Shelf{AsOf: time.Now().UTC()}
	if out.Items, err = s.store.shelf(c.Request().Context(), route.Slot, skus); err != nil {
		return err
	}
	if len(out.Items) == 0 {
		return errs.ErrNotFound
	}
	return c.JSON(http.StatusOK, out)
}

func (s *server) handleList(c echo.Context) error {
	actor, err := web.Actor(c)
	if err != nil {
		return err
	}
	route, err := web.RequireRoute(c)
	if err != nil {
		return err
	}
	limit, err := web.QueryInt(c, "limit", 50, 1, 200)
	if err != nil {
		return err
	}
	from := position{Seller: actor, At: time.Unix(0, 0)}
	if text := c.QueryParam("cursor"); text != "" {
		if err := web.DecodeCursor(s.cursorKey, text, &from); err != nil {
			return err
		}
		if from.Seller != actor {
			return web.ErrInvalidCursor
		}
	}
	items, err := s.store.list(c.Request().Context(), route.Slot, from, limit+1)
	if err != nil {
		return err
	}
	out := inventoryapi.StockList{Items: items}
	if int64(len(items)) > limit {
		last := items[limit-1]
		out.Items = items[:limit]
		out.NextCursor = web.EncodeCursor(s.cursorKey, position{Seller: actor, At: last.CreatedAt, SKU: last.SKU})
	}
	return c.JSON(http.StatusOK, out)
}

func (s *server) handleAdd(c echo.Context) error {
	actor, err := web.Actor(c)
	if err != nil {
		return err
	}
	route, err := web.RequireRoute(c)
	if err != nil {
		return err
	}
	sku, err := id.Parse(c.Param("sku"))
	if err != nil {
		return errs.ErrNotFound.Because(err)
	}
	key, err := web.IdempotencyKey(c)
	if err != nil {
		return err
	}
	var body inventoryapi.Add
	if err := web.Bind(c, &body); err != nil {
		return err
	}
	v, replayed, err := s.addStock(c.Request().Context(), route, actor, sku, key, body.Add)
	if err != nil {
		return err
	}
	if replayed {
		c.Response().Header().Set(web.HeaderReplayed, "true")
	}
	return c.JSON(http.StatusOK, v)
}
