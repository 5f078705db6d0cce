package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/catalog/catalogapi"
)

// server is the HTTP side of a cell's copy.
type server struct {
	copy      *follower
	cache     *cache
	cursorKey []byte
	category  *regexp.Regexp // what a category's ID looks like
}

func newServer(f *follower, c *cache, cursorKey []byte) *server {
	return &server{copy: f, cache: c, cursorKey: cursorKey, category: regexp.MustCompile(`^[a-z][a-z-]{1,39}$`)}
}

// mount adds the routes; the gateway forwards those under /api/v1 unchanged and
// never those under /internal.
func (s *server) mount(e *echo.Echo) {
	route := web.RouteContext()
	e.GET("/api/v1/products", s.handleList, route)
	e.GET("/api/v1/products/:id", s.handleProduct, route)
	e.GET("/api/v1/categories", s.handleCategories, route)
	e.GET("/internal/skus", s.handleSKUs, route)
}

// answer gives what load makes, from the cache when it's there, and says how new
// it is. A copy that was never complete answers nothing: it would call things
// unknown that exist.
func (s *server) answer(c echo.Context, what string, load func(context.Context) (any, error)) error {
	ctx := c.Request().Context()
	at, err := s.position(c)
	if err != nil {
		return err
	}
	key := fmt.Sprintf("catalog:%d:%d:%s", at.generation, at.version, what)
	body, err := s.cache.get(ctx, key, func(ctx context.Context) ([]byte, error) {
		v, err := load(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(v)
	})
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, body)
}

// position gives the copy's and puts it on the answer.
func (s *server) position(c echo.Context) (position, error) {
	at, err := s.copy.where(c.Request().Context())
	if err != nil {
		return at, err
	}
	if !at.complete {
		return at, ErrNotReady
	}
	c.Response().Header().Set(catalogapi.HeaderVersion, strconv.FormatInt(at.version, 10))
	return at, nil
}

func (s *server) handleList(c echo.Context) error {
	var from cursor
	if v := c.QueryParam("category"); v != "" {
		if !s.category.MatchString(v) {
			return ErrCategory
		}
		from.Category = v
	}
	if v := c.QueryParam("seller"); v != "" {
		seller, err := id.Parse(v)
		if err != nil {
			return errs.Field("seller", "is not an ID")
		}
		from.Seller = seller
	}
	limit, err := web.QueryInt(c, "limit", 20, 1, 100)
	if err != nil {
		return err
	}
	if v := c.QueryParam("cursor"); v != "" {
		asked := from.filter
		if err := web.DecodeCursor(s.cursorKey, v, &from); err != nil {
			return err
		}
		if from.filter != asked {
			return web.ErrInvalidCursor.Msgf("the cursor is of another list")
		}
	}
	what := fmt.Sprintf("l:%s:%d:%d:%d:%d", from.Category, from.Seller, from.At.UnixMicro(), from.ID, limit)
	return s.answer(c, what, func(ctx context.Context) (any, error) {
		items, err := s.copy.store.list(ctx, from, limit+1)
		if err != nil {
			return nil, err
		}
		out := catalogapi.ProductList{Items: items}
		if int64(len(items)) > limit {
			last := items[limit-1]
			out.Items = items[:limit]
			out.NextCursor = web.EncodeCursor(s.cursorKey, cursor{filter: from.filter, At: last.CreatedAt, ID: last.ID})
		}
		return out, nil
	})
}

func (s *server) handleProduct(c echo.Context) error {
	product, err := web.PathID(c, "id")
	if err != nil {
		return err
	}
	return s.answer(c, "p:"+product.String(), func(ctx context.Context) (any, error) {
		return s.copy.store.product(ctx, product)
	})
}

func (s *server) handleCategories(c echo.Context) error {
	return s.answer(c, "c", func(ctx context.Context) (any, error) {
		items, err := s.copy.store.categories(ctx)
		return catalogapi.CategoryList{Items: items}, err
	})
}

// handleSKUs is for orders and stock, which need the price and the seller as they
// are here now: not cached.
func (s *server) handleSKUs(c echo.Context) error {
	if _, err := web.RequireRoute(c); err != nil {
		return err
	}
	var ids []id.ID
	for text := range strings.SplitSeq(c.QueryParam("ids"), ",") {
		v, err := id.Parse(text)
		if err != nil {
			return errs.Field("ids", "must be IDs, with commas between them")
		}
		ids = append(ids, v)
	}
	if len(ids) > catalogapi.MaxSKUs {
		return errs.Field("ids", "must be at most %d", catalogapi.MaxSKUs)
	}
	if _, err := s.position(c); err != nil {
		return err
	}
	items, err := s.copy.store.skus(c.Request().Context(), ids)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, catalogapi.SKUList{Items: items})
}
