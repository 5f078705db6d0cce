package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/outputcommit"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

// The modes of output commit.
const (
	commitTimed  = "timed"
	commitStrict = "strict"
	commitOff    = "off"
)

func readCommit(r *env.Reader) string {
	mode := r.String("OUTPUT_COMMIT", commitTimed, "what becomes of outputs that a standby doesn't have yet: timed = they wait for 2 s, then the slot is marked uncovered; strict = they wait for ever; off = they don't wait")
	if mode != commitTimed && mode != commitStrict && mode != commitOff {
		r.Fail("OUTPUT_COMMIT", "is not timed, strict or off")
	}
	return mode
}

// openGate makes what holds the outputs; nil where none are held.
func openGate(c Config, pool *pgxpool.Pool, control *controlapi.Client, log *slog.Logger, metrics *obs.Metrics) *outputcommit.Gate {
	if c.OutputCommit == commitOff {
		return nil
	}
	o := outputcommit.Options{
		Cell: c.Zone, Pool: pool, Strict: c.OutputCommit == commitStrict, Ask: map[string]outputcommit.Ask{},
		Mark: marks{cell: c.Zone, control: control}, Log: log, Metrics: metrics,
	}
	dialer := link.Dialer{Addr: c.LinkAddr}
	for zone := range c.Peers {
		if zone != Global {
			way := &http.Transport{DialContext: dialer.DialContext(zone, "agent"), MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute}
			o.Ask[zone] = (&agentapi.Client{BaseURL: "http://" + zone, HTTP: &http.Client{Transport: way}}).Applied
		}
	}
	return outputcommit.New(o)
}

// marks are kept by control until cells' leases carry them.
type marks struct {
	cell    string
	control *controlapi.Client
}

// Mark implements outputcommit.Marker.
func (m marks) Mark(ctx context.Context, list []outputcommit.Mark) error {
	return m.control.SetMarks(ctx, controlapi.MarkChange{Cell: m.cell, Set: list})
}

// Lift implements outputcommit.Marker.
func (m marks) Lift(ctx context.Context, list []outputcommit.Mark) error {
	return m.control.SetMarks(ctx, controlapi.MarkChange{Cell: m.cell, Lift: list})
}

// Marks implements outputcommit.Marker.
func (m marks) Marks(ctx context.Context) ([]outputcommit.Mark, error) {
	all, err := m.control.Marks(ctx, m.cell)
	out := make([]outputcommit.Mark, len(all.Marks))
	for i, k := range all.Marks {
		out[i] = k.Mark
	}
	return out, err
}

// maxAsked is how many slots a question may name: all there are, and some private ones.
const maxAsked = 4 * routing.Slots

// handleApplied tells an owner how far this cell is with what it commits.
func (s *server) handleApplied(c echo.Context) error {
	var q outputcommit.Question
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
	out := outputcommit.Answer{Incarnation: a.Incarnation, LSN: int64(a.LSN), InSync: make(map[routing.Slot]routing.Epoch, len(a.InSync))}
	for slot, epoch := range a.InSync {
		out.InSync[routing.Slot(slot)] = routing.Epoch(epoch)
	}
	return c.JSON(http.StatusOK, out)
}

// commitStatus is what status shows of it; nil = no cell.
func (s *server) commitStatus() *outputcommit.Status {
	if s.db == nil {
		return nil
	}
	if s.gate == nil {
		return &outputcommit.Status{Mode: commitOff, Released: map[string]uint64{}}
	}
	st := s.gate.Status()
	return &st
}
