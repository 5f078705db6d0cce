package search

import (
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/search/searchapi"
)

const maxText = 200 // characters of what is looked for

// server answers the gateways. Only the border leads to it, which lets the cells'
// agents in and nobody else; so their headers are believed.
type server struct {
	index     *index
	sources   *sources
	cursorKey []byte
	category  *regexp.Regexp
	currency  *regexp.Regexp
}

func newServer(x *index, s *sources, cursorKey []byte) *server {
	return &server{
		index: x, sources: s, cursorKey: cursorKey,
		category: regexp.MustCompile(`^[a-z][a-z-]{1,39}$`), currency: regexp.MustCompile(`^[A-Z]{3}$`),
	}
}

func (s *server) mount(e *echo.Echo) {
	e.GET("/api/v1/search", s.handleProducts)
	e.GET("/api/v1/seller/orders/search", s.handleOrders)
}

func (s *server) handleProducts(c echo.Context) error {
	q := question{Kind: kindProduct, Sort: c.QueryParam("sort"), Category: c.QueryParam("category"), State: c.QueryParam("currency")}
	if q.Category != "" && !s.category.MatchString(q.Category) {
		return errs.Field("category", "is not a category")
	}
	if q.State != "" && !s.currency.MatchString(q.State) {
		return errs.Field("currency", "is not a currency such as CNY")
	}
	if !slices.Contains([]string{"", "relevance", "newest", "price", "-price"}, q.Sort) {
		return errs.Field("sort", "must be relevance, newest, price or -price")
	}
	for name, to := range map[string]**float64{"min_price": &q.Min, "max_price": &q.Max} {
		if c.QueryParam(name) == "" {
			continue
		}
		v, err := web.QueryInt(c, name, 0, 0, 1e12)
		if err != nil {
			return err
		}
		price := float64(v)
		*to = &price
	}
	var out searchapi.Products
	if err := page(s, c, q, &out.Items, &out.TotalApprox, &out.NextCursor); err != nil {
		return err
	}
	if c.QueryParam("cursor") == "" {
		var err error
		q.Text = strings.TrimSpace(c.QueryParam("q"))
		if out.Categories, err = s.index.categories(c.Request().Context(), q); err != nil {
			return ErrDown.Because(err)
		}
	}
	out.Lag = s.lag(c)
	return c.JSON(http.StatusOK, out)
}

// handleOrders finds a seller's parts of orders; others' they never see.
func (s *server) handleOrders(c echo.Context) error {
	seller, err := web.Actor(c)
	if err != nil {
		return err
	}
	if c.Request().Header.Get(web.HeaderSeller) != "true" {
		return errs.New(errs.Forbidden, "NOT_A_SELLER", "only sellers may do this; log in again if you have just become one")
	}
	q := question{Kind: kindOrder, Seller: seller.String(), Sort: "newest", State: c.QueryParam("state")}
	if !slices.Contains([]string{"", "PENDING", "RESERVED", "PAID", "SHIPPED", "COMPLETED", "CANCELLED", "REFUNDED"}, q.State) {
		return errs.Field("state", "is not a state of an order")
	}
	var out searchapi.Orders
	if err := page(s, c, q, &out.Items, &out.TotalApprox, &out.NextCursor); err != nil {
		return err
	}
	out.Lag = s.lag(c)
	return c.JSON(http.StatusOK, out)
}

// cursor is where a list goes on; it opens no other list.
type cursor struct {
	Question question `json:"q"`
	From     int      `json:"f"`
}

// page answers one page of a question.
func page[T any](s *server, c echo.Context, q question, items *[]T, total *uint64, next *string) error {
	q.Text = strings.TrimSpace(c.QueryParam("q"))
	if !utf8.ValidString(q.Text) || utf8.RuneCountInString(q.Text) > maxText || strings.ContainsRune(q.Text, 0) {
		return errs.Field("q", "must be at most %d characters", maxText)
	}
	limit, err := web.QueryInt(c, "limit", 20, 1, 100)
	if err != nil {
		return err
	}
	at := cursor{Question: q}
	if text := c.QueryParam("cursor"); text != "" {
		if err := web.DecodeCursor(s.cursorKey, text, &at); err != nil {
			return err
		}
		if !same(at.Question, q) {
			return web.ErrInvalidCursor.Msgf("the cursor is of another list")
		}
	}
	ctx := c.Request().Context()
	raw, n, err := s.index.search(ctx, q, at.From, int(limit))
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return ErrDown.Because(err)
	}
	*items, *total = make([]T, len(raw)), n
	for i, r := range raw {
		if err := json.Unmarshal(r, &(*items)[i]); err != nil {
			return errors.Join(errors.New("what the index keeps can't be read"), err)
		}
	}
	if at.From += len(raw); uint64(at.From) < n && len(raw) > 0 && at.From+int(limit) <= deepest {
		*next = web.EncodeCursor(s.cursorKey, at)
	}
	return nil
}

func same(a, b question) bool {
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && string(x) == string(y)
}

// lag puts the largest lag on the answer, and gives all.
func (s *server) lag(c echo.Context) map[string]searchapi.Lag {
	all, most, ok := s.sources.lag(time.Now())
	text := "unknown"
	if ok {
		text = strconv.FormatInt(most.Milliseconds(), 10)
	}
	c.Response().Header().Set(searchapi.HeaderLag, text)
	return all
}
