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
	"example.com/cellmart/services/control/controlapi"
)

const (
	maxBody   = 2 << 20 // a whole table
	maxReason = 200
	listed    = 100
)

type server struct {
	service  *service
	operator string          // key of who may write; empty = nobody
	stop     context.Context // its end ends long polls, so that they don't hold up the shutdown
}

func (s *server) routes(e *echo.Echo) {
	e.GET("/route", s.handleRoute)
	e.GET("/route/versions", s.handleVersions)
	e.POST("/route/init", s.handleInit, s.operatorOnly)
	e.POST("/route/publish", s.handlePublish, s.operatorOnly)
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
	after, wait := int64(-1), time.Duration(0)
	var err error
	if v := c.QueryParam("after"); v != "" {
		if after, err = strconv.ParseInt(v, 10, 64); err != nil || after < 0 {
			return errs.Field("after", "is not a version")
		}
	}
	if v := c.QueryParam("wait"); v != "" {
		if wait, err = time.ParseDuration(v); err != nil || wait < 0 {
			return errs.Field("wait", "is not a duration such as 25s")
		}
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), min(wait, controlapi.MaxWait))
	defer cancel()
	defer context.AfterFunc(s.stop, cancel)()
	b, err := s.service.route(ctx, after)
	if err != nil {
		return err
	}
	if b == nil {
		return c.NoContent(http.StatusNoContent)
	}
	return c.Blob(http.StatusOK, "application/octet-stream", b)
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

func created(p controlapi.Published) int {
	if p.Created {
		return http.StatusCreated
	}
	return http.StatusOK
}
