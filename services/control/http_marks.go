package control

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/control/controlapi"
)

// maxMarks is how many slots one request may name.
const maxMarks = 4 * routing.Slots

// handleSetMarks: no key: it can only keep somebody from being promoted, and only
// agents reach control.
func (s *server) handleSetMarks(c echo.Context) error {
	var m controlapi.MarkChange
	if err := web.Bind(c, &m); err != nil {
		return err
	}
	if len(m.Set)+len(m.Lift) > maxMarks {
		return errs.Field("set", "and lift are more than %d", maxMarks)
	}
	if t := s.service.holder.Load(); t != nil {
		if _, ok := t.Cell(m.Cell); !ok {
			return controlapi.ErrZone
		}
	}
	if err := s.service.store.setMarks(c.Request().Context(), m); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *server) handleMarks(c echo.Context) error {
	list, err := s.service.store.marks(c.Request().Context(), c.QueryParam("cell"))
	if err != nil {
		return err
	}
	if t := s.service.holder.Load(); t != nil {
		for i, m := range list {
			a, ok := t.Slot(m.Slot)
			list[i].Over = ok && a.Epoch > m.Epoch
		}
	}
	return c.JSON(http.StatusOK, controlapi.Marks{Marks: list})
}
