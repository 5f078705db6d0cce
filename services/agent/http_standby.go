package agent

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/services/agent/agentapi"
)

// handleStandby answers how far this cell is with its copies, out of its own
// database: what it says was committed.
func (s *server) handleStandby(c echo.Context) error {
	out := agentapi.Standbys{Cell: s.cell, Sources: []agentapi.StandbySource{}}
	if s.copies == nil {
		return c.JSON(http.StatusOK, out)
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), 2*time.Second)
	defer cancel()
	look := s.copies.Status
	if c.QueryParam("lately") == "1" {
		look = s.copies.Lately
	}
	all, err := look(ctx)
	if err != nil {
		return err
	}
	for _, st := range all {
		out.Sources = append(out.Sources, agentapi.StandbySource{
			Source: st.Source, State: st.State, Reason: st.Reason, Incarnation: st.Incarnation, LSN: st.LSN.String(), At: st.At,
			LagMS: st.LagMS, LagBytes: st.LagBytes, AgeMS: st.AgeMS, InSync: st.InSync, Copying: st.Copying, Stopped: st.Stopped,
			InSyncSlots: st.InSyncSlots, Reasons: st.Reasons,
			Rows: st.Rows, DroppedOld: st.DroppedOld, DroppedOther: st.DroppedOther, Copies: st.Copies, Gaps: st.Gaps,
		})
	}
	return c.JSON(http.StatusOK, out)
}
