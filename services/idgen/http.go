package idgen

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/idgen/idgenapi"
)

type server struct{ service *service }

func (s *server) routes(e *echo.Echo) {
	e.POST("/leases", s.handleLease)
	e.GET("/status", s.handleStatus)
}

func (s *server) handleLease(c echo.Context) error {
	var ask idgenapi.LeaseRequest
	if err := web.Bind(c, &ask); err != nil {
		return err
	}
	lease, err := s.service.lease(c.Request().Context(), ask)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, lease)
}

func (s *server) handleStatus(c echo.Context) error {
	st, err := s.service.status(c.Request().Context())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, st)
}
