package agent

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

func (s *server) handleStuck(c echo.Context) error {
	db, err := s.database()
	if err != nil {
		return err
	}
	all, err := db.stuck(c.Request().Context())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, echo.Map{"items": all})
}

func (s *server) handleParked(c echo.Context) error {
	db, err := s.database()
	if err != nil {
		return err
	}
	all, err := db.parked(c.Request().Context(), s.cell)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, echo.Map{"items": all})
}

func (s *server) handleTransfer(c echo.Context) error {
	db, err := s.database()
	if err != nil {
		return err
	}
	transfer, err := web.PathID(c, "id")
	if err != nil {
		return err
	}
	homes := []routing.Slot{transfer.Slot()}
	if t, _ := s.keeper.held(); t != nil {
		homes = append(homes, t.TakenFrom(transfer.Slot())...)
	}
	out, err := db.transfer(c.Request().Context(), transfer, homes)
	if err != nil {
		return err
	}
	out.Cell = s.cell
	return c.JSON(http.StatusOK, out)
}

// handleAskJob keeps what an operator wants done to a transfer. The service that
// handles transfers does it: nothing is done here.
func (s *server) handleAskJob(c echo.Context) error {
	db, err := s.database()
	if err != nil {
		return err
	}
	transfer, err := web.PathID(c, "id")
	if err != nil {
		return err
	}
	var in agentapi.TransferJob
	if err := web.Bind(c, &in); err != nil {
		return err
	}
	switch {
	case !agentapi.ValidTask(in.What):
		return errs.Field("what", "must be retry, cancel or reverse")
	case in.Reason == "" || len(in.Reason) > 200:
		return errs.Field("reason", "must have 1 to 200 bytes")
	case !agentapi.ValidJobID(in.ID):
		return errs.Field("id", "must be 1 to 64 letters, digits and hyphens")
	}
	in.Transfer = transfer
	out, err := db.askJob(c.Request().Context(), in)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusAccepted, out)
}

func (s *server) handleJob(c echo.Context) error {
	db, err := s.database()
	if err != nil {
		return err
	}
	out, err := db.job(c.Request().Context(), c.Param("job"))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}
