package web

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/obs"
)

// The headers, as call has them.
const (
	HeaderUser           = call.HeaderUser
	HeaderSlot           = call.HeaderSlot
	HeaderEpoch          = call.HeaderEpoch
	HeaderSeller         = call.HeaderSeller
	HeaderHop            = call.HeaderHop
	HeaderFrom           = call.HeaderFrom
	HeaderRequestID      = call.HeaderRequestID
	HeaderCell           = call.HeaderCell
	HeaderRouteVersion   = call.HeaderRouteVersion
	HeaderIdempotencyKey = call.HeaderIdempotencyKey
	HeaderReplayed       = call.HeaderReplayed
)

// Options for New. Every field has a useful zero.
type Options struct {
	Service      string
	Cell         string        // named in X-Cell
	Log          *slog.Logger  // has service and cell already; nil = no log
	Timeout      time.Duration // per request, default 5 s
	MaxBody      int64         // default 64 kB
	RouteVersion func() int64  // for X-Route-Version; nil = no header
	Metrics      *obs.Metrics  // nil = not counted
	Quiet        []string      // routes that are asked all the time: what goes well there is logged for debugging only
}

// New makes an echo with the edge around every handler, also around paths that
// don't exist.
func New(o Options) *echo.Echo {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Second
	}
	if o.MaxBody <= 0 {
		o.MaxBody = 64 << 10
	}
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.Logger.SetOutput(io.Discard) // echo's own logger writes to stdout
	e.Binder = binder{}
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		if !c.Response().Committed {
			WriteProblem(c.Response(), c.Request(), err)
		}
	}
	e.Pre(alive)
	e.Use((&edge{o}).around)
	return e
}

// alive answers the health calls of those who choose between instances. They
// come all the time: no log line, no figure.
func alive(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if r := c.Request(); r.URL.Path == "/livez" && r.Method == http.MethodGet {
			return c.String(http.StatusOK, "ok\n")
		}
		return next(c)
	}
}

// Serve listens on addr and serves h until ctx ends; it returns when the last
// handler has returned. See cellkit.ServeListener.
func Serve(ctx context.Context, addr string, h http.Handler, drain time.Duration) error {
	return cellkit.Serve(ctx, addr, h, drain)
}

// ServeListener is Serve on a listener that is there already.
func ServeListener(ctx context.Context, ln net.Listener, h http.Handler, drain time.Duration) error {
	return cellkit.ServeListener(ctx, ln, h, drain)
}

// edge is what stands between the network and every handler.
type edge struct{ o Options }

const cellKey = "cellmart.cell" // in echo's context: the serving cell

func (s *edge) around(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		start := time.Now()
		rid := requestID(c.Request().Header.Get(HeaderRequestID))
		ctx, cancel := context.WithTimeout(call.WithRequestID(c.Request().Context(), rid), s.o.Timeout)
		defer cancel()
		c.SetRequest(c.Request().WithContext(ctx))
		c.Request().Header.Set(HeaderRequestID, rid)
		c.Set(cellKey, s.o.Cell)
		s.answerHeaders(c, rid)

		err := s.limitBody(c)
		if err == nil {
			err = s.call(next, c)
		}
		if err != nil {
			if c.Response().Committed {
				// Half an answer is out. Only a broken connection tells the client so.
				s.log(c, start, err)
				panic(http.ErrAbortHandler)
			}
			c.Error(err)
		}
		s.log(c, start, err)
		return nil
	}
}

// answerHeaders says who served, unless the handler passes on another's answer.
func (s *edge) answerHeaders(c echo.Context, rid string) {
	c.Response().Before(func() {
		h := c.Response().Header()
		fill := func(name, value string) {
			if value != "" && h.Get(name) == "" {
				h.Set(name, value)
			}
		}
		fill(HeaderRequestID, rid)
		fill(HeaderCell, s.o.Cell)
		if s.o.RouteVersion != nil {
			fill(HeaderRouteVersion, strconv.FormatInt(s.o.RouteVersion(), 10))
		}
	})
}

// panicked is a panic as an error; its text and stack are for the log only.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v\n%s", p.value, p.stack) }

func (s *edge) call(next echo.HandlerFunc, c echo.Context) (err error) {
	defer func() {
		switch v := recover(); v {
		case nil:
		case http.ErrAbortHandler: // a proxy's way to break the connection
			panic(v)
		default:
			err = &panicked{v, debug.Stack()}
		}
	}()
	return next(c)
}

// limitBody bounds the body's length and the time to send it. The server itself
// lifts the read deadline when the body has been read to its end, so it never
// breaks the connection under a handler that works on.
func (s *edge) limitBody(c echo.Context) error {
	r, w := c.Request(), c.Response().Writer
	if r.ContentLength > s.o.MaxBody {
		return &http.MaxBytesError{Limit: s.o.MaxBody}
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	end, _ := r.Context().Deadline()
	// Only a test's recorder can't: it has no connection.
	_ = http.NewResponseController(w).SetReadDeadline(end)
	r.Body = http.MaxBytesReader(w, r.Body, s.o.MaxBody)
	return nil
}

// log writes the one line of a request and counts it.
func (s *edge) log(c echo.Context, start time.Time, err error) {
	r, status, took := c.Request(), c.Response().Status, time.Since(start)
	if err != nil && errors.Is(r.Context().Err(), context.Canceled) {
		status = 499 // the client left; nobody saw the answer
	}
	// How long a stream lasts is not how long somebody waited.
	if s.o.Metrics != nil && c.Response().Header().Get("Content-Type") != "text/event-stream" {
		s.o.Metrics.HTTP(c.Path(), r.Method, status, took)
	}
	level := slog.LevelInfo
	switch {
	case status < 400 && slices.Contains(s.o.Quiet, c.Path()):
		level = slog.LevelDebug
	case status == http.StatusServiceUnavailable:
		level = slog.LevelWarn
	case status >= 500:
		level = slog.LevelError
	}
	if !s.o.Log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("request_id", call.RequestID(r.Context())),
		slog.String("method", r.Method),
		slog.String("route", c.Path()),
		slog.String("path", r.URL.Path),
		slog.Int("status", status),
		slog.Float64("ms", float64(took.Microseconds())/1000),
	}
	if route, ok := call.RouteFrom(r.Context()); ok {
		attrs = append(attrs, slog.Int("slot", int(route.Slot)))
	}
	if err != nil {
		attrs = append(attrs, slog.String("code", problem(r, err).Code), slog.String("error", err.Error()))
	}
	s.o.Log.LogAttrs(r.Context(), level, "request", attrs...)
}

// requestID keeps an id that came with the request if it can't hurt a log.
func requestID(given string) string {
	if len(given) == 0 || len(given) > 64 {
		return rand.Text()
	}
	for _, b := range []byte(given) {
		if (b < '0' || b > '9') && (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') && b != '-' && b != '_' && b != '.' {
			return rand.Text()
		}
	}
	return given
}

// RouteContext puts the route that the gateway sent in headers into the
// request's context, for pg and call. A malformed route, or one from a caller in
// another cell, is CELL_ROUTING_VIOLATION; no route at all is left to
// RequireRoute, since some paths need none.
func RouteContext() echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			cell, _ := c.Get(cellKey).(string)
			route, ok, err := call.RouteFromHeaders(c.Request().Header, cell)
			if err != nil {
				return err
			}
			if ok {
				c.SetRequest(c.Request().WithContext(call.WithRoute(c.Request().Context(), route)))
			}
			return next(c)
		}
	}
}

// RequireRoute gives the request's route, or CELL_ROUTING_VIOLATION.
func RequireRoute(c echo.Context) (call.Route, error) {
	route, ok := call.RouteFrom(c.Request().Context())
	if !ok {
		return route, errs.ErrViolation.Because(errors.New("a request without a route"))
	}
	return route, nil
}
