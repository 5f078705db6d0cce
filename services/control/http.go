package control

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/control/controlapi"
)

const (
	maxBody   = 2 << 20 // a whole table
	maxReason = 200
	listed    = 100

	maxProcesses = 1100 // an agent knows up to 1,000
)

type server struct {
	service  *service
	exchange *exchanger
	operator string          // key of who may write; empty = nobody
	stop     context.Context // its end ends long polls, so that they don't hold up the shutdown
}

func (s *server) routes(e *echo.Echo) {
	e.GET("/route", s.handleRoute)
	e.GET("/route/versions", s.handleVersions)
	e.GET("/route/acks", s.handleAcks)
	e.POST("/route/acks", s.handleReport) // no key: it changes no table, and only agents reach control
	e.POST("/route/init", s.handleInit, s.operatorOnly)
	e.POST("/route/publish", s.handlePublish, s.operatorOnly)
	e.GET("/marks", s.handleMarks)
	e.POST("/marks", s.handleSetMarks)
	e.GET("/exchanges", s.handleExchanges)
	e.POST("/exchanges", s.handleExchange, s.operatorOnly)
	e.POST("/exchanges/:id/cancel", s.handleCancel, s.operatorOnly)
}

func (s *server) operatorOnly(next echo.HandlerFunc) echo.HandlerFunc {
	want := sha256.Sum256([]byte(s.operator))
	return func(c echo.Context) error {
		key, ok := strings.CutPrefix(c.Request().Header.Get("Authorization"), "Bearer ")
		got := sha256.Sum256([]byte(key)) // equal lengths, so comparing takes equal time
		if !ok || s.operator == "" || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			return controlapi.ErrOperator
		}
		return next(c)
	}
}

// handleRoute: GET /route?after=V&wait=25s.
func (s *server) handleRoute(c echo.Context) error {
	after, err := version(c, "after")
	if err != nil {
		return err
	}
	ctx, cancel, err := s.patience(c)
	if err != nil {
		return err
	}
	defer cancel()
	b, err := s.service.route(ctx, after)
	if err != nil {
		return err
	}
	if b == nil {
		return c.NoContent(http.StatusNoContent)
	}
	return c.Blob(http.StatusOK, "application/octet-stream", b)
}

// version reads a query parameter, -1 without one.
func version(c echo.Context, name string) (int64, error) {
	text := c.QueryParam(name)
	if text == "" {
		return -1, nil
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || v < 0 {
		return 0, errs.Field(name, "is not a version")
	}
	return v, nil
}

// patience is how long a long poll may wait: as the caller says with wait=25s, and
// not longer than control runs.
func (s *server) patience(c echo.Context) (context.Context, context.CancelFunc, error) {
	var wait time.Duration
	if text := c.QueryParam("wait"); text != "" {
		var err error
		if wait, err = time.ParseDuration(text); err != nil || wait < 0 {
			return nil, nil, errs.Field("wait", "is not a duration such as 25s")
		}
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), min(wait, controlapi.MaxWait))
	stop := context.AfterFunc(s.stop, cancel)
	return ctx, func() { stop(); cancel() }, nil
}

// handleAcks: GET /route/acks?version=V&wait=10s.
func (s *server) handleAcks(c echo.Context) error {
	want, err := version(c, "version")
	if err != nil {
		return err
	}
	ctx, cancel, err := s.patience(c)
	if err != nil {
		return err
	}
	defer cancel()
	t := s.service.holder.Load()
	if t == nil {
		return controlapi.ErrNone
	}
	if want <= 0 {
		want = t.Version()
	}
	return c.JSON(http.StatusOK, s.service.acks.wait(ctx, t, want))
}

func (s *server) handleReport(c echo.Context) error {
	var z controlapi.ZoneAcks
	if err := web.Bind(c, &z); err != nil {
		return err
	}
	if len(z.Processes) > maxProcesses {
		return errs.Field("processes", "are more than %d", maxProcesses)
	}
	t := s.service.holder.Load()
	if t == nil {
		return controlapi.ErrNone
	}
	if _, ok := t.Cell(z.Zone); !ok && z.Zone != routing.Global {
		return controlapi.ErrZone
	}
	s.service.acks.take(z)
	return c.NoContent(http.StatusNoContent)
}

func (s *server) handleVersions(c echo.Context) error {
	list, err := s.service.store.versions(c.Request().Context(), listed)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, controlapi.Versions{Versions: list})
}

func (s *server) handleInit(c echo.Context) error {
	var req controlapi.InitRequest
	if err := web.Bind(c, &req); err != nil {
		return err
	}
	p, err := s.service.initialize(c.Request().Context(), req)
	if err != nil {
		return err
	}
	return c.JSON(created(p), p)
}

func (s *server) handlePublish(c echo.Context) error {
	var req controlapi.PublishRequest
	if err := web.Bind(c, &req); err != nil {
		return err
	}
	if req.Reason == "" || len(req.Reason) > maxReason {
		return errs.Field("reason", "say why, in 1 to %d bytes", maxReason)
	}
	p, err := s.service.publish(c.Request().Context(), req)
	if err != nil {
		return err
	}
	return c.JSON(created(p), p)
}

func (s *server) handleExchanges(c echo.Context) error {
	list, err := s.service.store.exchanges(c.Request().Context(), 0, listed)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, controlapi.Exchanges{Exchanges: list})
}

func (s *server) handleExchange(c echo.Context) error {
	var req controlapi.ExchangeRequest
	if err := web.Bind(c, &req); err != nil {
		return err
	}
	if req.Reason == "" || len(req.Reason) > maxReason {
		return errs.Field("reason", "say why, in 1 to %d bytes", maxReason)
	}
	out, err := s.exchange.begin(c.Request().Context(), req)
	if err != nil {
		return err
	}
	if out.ID == 0 {
		return c.JSON(http.StatusOK, out)
	}
	return c.JSON(http.StatusCreated, out)
}

func (s *server) handleCancel(c echo.Context) error {
	id, err := strconv.ParseInt(c.Param("id"), 10, 64)
	if err != nil {
		return controlapi.ErrNoExchange
	}
	out, err := s.exchange.cancel(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

func created(p controlapi.Published) int {
	if p.Created {
		return http.StatusCreated
	}
	return http.StatusOK
}
