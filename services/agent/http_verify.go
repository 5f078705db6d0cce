package agent

import (
	"context"
	"io"
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/standby"
	"example.com/cellmart/platform/cellkit/verify"
)

// newVerify is this cell's side of comparisons of copies with their owners.
func newVerify(c Config, copies *standby.Applier, log *slog.Logger) *verify.Server {
	o := verify.Options{Cell: c.Zone, DSN: c.DSN, Log: log}
	if copies != nil {
		o.Recopy = copies.Recopy
		o.Hold = func(ctx context.Context, source string) (verify.Held, error) {
			h, err := copies.Hold(ctx, source)
			if err != nil {
				return nil, err // not an interface around nil
			}
			return h, nil
		}
	}
	return verify.NewServer(o)
}

// handleVerify answers who compares: cellctl, a drill, control before a move.
func (s *server) handleVerify(c echo.Context) error {
	if s.verify == nil {
		return errs.ErrNotFound.Msgf("zone %s has no cell database", s.cell)
	}
	body, err := io.ReadAll(c.Request().Body)
	if err != nil {
		return err
	}
	out, err := s.verify.Answer(c.Request().Context(), c.Param("op"), body)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}
