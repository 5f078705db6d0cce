package agent

import (
	"context"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/outputcommit"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

// maxAsked is how many slots a question may name: all there are, and some private ones.
const maxAsked = 4 * routing.Slots

// handleApplied tells an owner how far this cell is with what it commits.
func (s *server) handleApplied(c echo.Context) error {
	var q agentapi.Question
	if err := web.Bind(c, &q); err != nil {
		return err
	}
	if len(q.Slots) > maxAsked {
		return errs.Field("slots", "are more than %d", maxAsked)
	}
	if s.copies == nil {
		return errs.ErrUnavailable.Msgf("%s keeps no copies", s.cell)
	}
	slots := make([]int, 0, len(q.Slots))
	seen := map[routing.Slot]bool{}
	for _, n := range q.Slots {
		if !seen[n] {
			seen[n] = true
			slots = append(slots, int(n))
		}
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), outputcommit.MaxWait)
	defer cancel()
	a, err := s.copies.Applied(ctx, q.Source, cdc.LSN(max(0, q.LSN)), slots)
	if err != nil {
		return errs.ErrUnavailable.Because(fmt.Errorf("how far this cell is with %s: %w", q.Source, err))
	}
	out := agentapi.Answer{Incarnation: a.Incarnation, LSN: int64(a.LSN), InSync: make(map[routing.Slot]routing.Epoch, len(a.InSync))}
	for slot, epoch := range a.InSync {
		out.InSync[routing.Slot(slot)] = routing.Epoch(epoch)
	}
	return c.JSON(http.StatusOK, out)
}

// commitStatus is what status shows of it; nil = no cell.
func (s *server) commitStatus() *agentapi.OutputCommit {
	if s.db == nil {
		return nil
	}
	if s.gate == nil {
		return &agentapi.OutputCommit{Mode: commitOff, Released: map[string]uint64{}}
	}
	st := s.gate.Status()
	out := &agentapi.OutputCommit{Mode: st.Mode, Held: st.Held, OldestMS: st.OldestMS, Released: st.Released}
	if st.Uncovered != nil {
		u := agentapi.Uncovered(*st.Uncovered)
		out.Uncovered = &u
	}
	return out
}
