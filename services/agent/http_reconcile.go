package agent

import (
	"io"
	"net/http"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/errs"
)

// handleReconcile answers who compares transfers: another cell's agent, cellctl, a
// drill.
func (s *server) handleReconcile(c echo.Context) error {
	if s.books == nil {
		return errs.ErrNotFound.Msgf("zone %s has no cell database", s.cell)
	}
	body, err := io.ReadAll(c.Request().Body)
	if err != nil {
		return err
	}
	out, err := s.books.pairs.Answer(c.Request().Context(), c.Param("op"), body)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}
