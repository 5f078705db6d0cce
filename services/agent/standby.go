package agent

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/standby"
	"example.com/cellmart/services/agent/agentapi"
)

// keepCopies runs the applier of what other cells own; nil where none is to run.
func keepCopies(ctx context.Context, group *errgroup.Group, c Config, pool *pgxpool.Pool, log *slog.Logger, metrics *obs.Metrics) *standby.Applier {
	if c.ApplierDSN == "" || c.ApplierDSN == "off" {
		return nil
	}
	o := standby.Options{Cell: c.Zone, DSN: c.ApplierDSN, Pool: pool, Log: log, Metrics: metrics, Sources: map[string]func() (*nats.Conn, error){}}
	for zone := range c.Peers {
		if zone != Global {
			o.Sources[zone] = func() (*nats.Conn, error) {
				return bus.ConnectZone(link.Dialer{Addr: c.LinkAddr}, zone, "standby", log)
			}
		}
	}
	a := standby.New(o)
	group.Go(func() error { return a.Run(ctx) })
	return a
}

// handleStandby answers how far this cell is with its copies, out of its own
// database: what it says was committed.
func (s *server) handleStandby(c echo.Context) error {
	out := agentapi.Standbys{Cell: s.cell, Sources: []agentapi.StandbySource{}}
	if s.copies == nil {
		return c.JSON(http.StatusOK, out)
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), 2*time.Second)
	defer cancel()
	all, err := s.copies.Status(ctx)
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
