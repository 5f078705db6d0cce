package agent

import (
	"context"
	"crypto/subtle"
	"errors"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/agent/agentapi"
)

var (
	errNoTable    = errors.New("no route table yet")
	errNotApplied = errors.New("the route table is not in the database yet")
)

// server answers the own zone, the operator and peers.
type server struct {
	cell     string
	operator string
	keeper   *keeper
	border   *link.Border
	db       *store // nil in the global zone
}

// local is for the own zone and the operator.
func (s *server) local(o web.Options) http.Handler {
	o.MaxBody, o.Timeout = 64<<10, 30*time.Second
	e := web.New(o)
	e.GET("/route", s.handleRoute)
	e.GET("/links", s.handleLinks)
	admin := e.Group("/admin", s.requireOperator)
	admin.GET("/status", s.handleStatus)
	admin.PUT("/faults/:peer", s.handleFault)
	admin.GET("/facts/:part", s.handleFacts)
	admin.GET("/transfers", s.handleStuck)
	admin.GET("/transfers/:id", s.handleTransfer)
	return e
}

// peer is what other zones' agents may ask.
func (s *server) peer(o web.Options) http.Handler {
	e := web.New(o)
	e.GET("/route", s.handleRoute)
	return e
}

func (s *server) requireOperator(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		key, ok := strings.CutPrefix(c.Request().Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(key), []byte(s.operator)) != 1 {
			return agentapi.ErrOperator
		}
		return next(c)
	}
}

func (s *server) handleRoute(c echo.Context) error {
	after, err := web.QueryInt(c, "after", -1, -1, math.MaxInt64)
	if err != nil {
		return err
	}
	if signed := s.keeper.current(after); signed != nil {
		return c.Blob(http.StatusOK, "application/json", signed)
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *server) handleLinks(c echo.Context) error {
	return c.JSON(http.StatusOK, s.border.Status())
}

func (s *server) handleStatus(c echo.Context) error {
	out := agentapi.Status{
		Cell: s.cell, RouteVersion: s.keeper.holder.Version(), ControlAgeMS: -1,
		Links: map[string]agentapi.Link{}, Faults: map[string]agentapi.Fault{},
	}
	if age := s.keeper.controlAge(); age >= 0 {
		out.ControlAgeMS = age.Milliseconds()
	}
	for zone, st := range s.border.Status() {
		l := agentapi.Link{Up: st.Up, SinceMS: -1, AgeMS: -1, RTTMS: float64(st.RTT.Microseconds()) / 1000, Reason: st.Reason}
		if !st.Since.IsZero() {
			l.SinceMS = time.Since(st.Since).Milliseconds()
		}
		if st.Age >= 0 {
			l.AgeMS = st.Age.Milliseconds()
		}
		out.Links[zone] = l
	}
	for peer, f := range s.border.Faults() {
		out.Faults[peer] = agentapi.Fault{DelayMS: f.Delay.Milliseconds(), CutOut: f.CutOut, CutIn: f.CutIn}
	}
	if s.db == nil {
		return c.JSON(http.StatusOK, out)
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), 2*time.Second)
	defer cancel()
	n, err := s.db.counts(ctx)
	if err != nil {
		out.DatabaseError = err.Error()
		return c.JSON(http.StatusOK, out)
	}
	s.keeper.mu.Lock()
	out.AppliedRoute = s.keeper.applied
	s.keeper.mu.Unlock()
	out.Database = &agentapi.Database{
		LeaseLeftMS: -1, Owned: n.Owned, Due: n.Due, Open: n.Open, OldestOpenMS: int64(n.OldestOpenMS), Parked: n.Parked, Stuck: n.Stuck,
	}
	if !math.IsInf(n.LeaseLeftMS, 1) {
		out.Database.LeaseLeftMS = int64(n.LeaseLeftMS)
	}
	return c.JSON(http.StatusOK, out)
}

func (s *server) handleFault(c echo.Context) error {
	var f agentapi.Fault
	if err := web.Bind(c, &f); err != nil {
		return err
	}
	err := s.border.SetFault(c.Param("peer"), link.Fault{
		Delay: time.Duration(f.DelayMS) * time.Millisecond, CutOut: f.CutOut, CutIn: f.CutIn,
	})
	if err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *server) database() (*store, error) {
	if s.db == nil {
		return nil, errs.ErrNotFound.Msgf("zone %s has no cell database", s.cell)
	}
	return s.db, nil
}

func (s *server) handleFacts(c echo.Context) error {
	db, err := s.database()
	if err != nil {
		return err
	}
	f, err := db.facts(c.Request().Context(), c.Param("part"))
	if err != nil {
		return err
	}
	f.Cell = s.cell
	return c.JSON(http.StatusOK, f)
}

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

func (s *server) handleTransfer(c echo.Context) error {
	db, err := s.database()
	if err != nil {
		return err
	}
	transfer, err := web.PathID(c, "id")
	if err != nil {
		return err
	}
	out, err := db.transfer(c.Request().Context(), transfer)
	if err != nil {
		return err
	}
	out.Cell = s.cell
	return c.JSON(http.StatusOK, out)
}
