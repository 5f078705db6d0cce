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

	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/clock"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/idbank"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/outputcommit"
	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/cellkit/standby"
	"example.com/cellmart/platform/cellkit/verify"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

var (
	errNoTable    = errors.New("no route table yet")
	errNotApplied = errors.New("the route table is not in the database yet")
)

// server answers the own zone, the operator and peers.
type server struct {
	cell     string
	name     string // of this process, among those that hold a table
	operator string
	keeper   *keeper
	border   *link.Border
	clock    *clock.Source
	bank     *idbank.Bank
	control  http.Handler     // the way to control
	db       *store           // nil in the global zone
	copies   *standby.Applier // nil where none are kept
	relay    *cdc.Relay       // nil where changes aren't told
	verify   *verify.Server   // nil in the global zone
	requests *agentapi.Book
	cover    *cover                          // nil in the global zone
	sent     func() map[string]agentapi.Ways // what the own dispatcher sent; nil in the global zone
	places   *places                         // nil in the global zone
	gate     *outputcommit.Gate              // nil in the global zone, and where outputs aren't held
	books    *books                          // nil in the global zone
}

// local is for the own zone and the operator.
func (s *server) local(o web.Options) http.Handler {
	o.MaxBody, o.Timeout = 64<<10, 30*time.Second
	e := web.New(o)
	e.GET("/route", s.handleRoute, s.noteProcess)
	e.GET("/links", s.handleLinks)
	e.GET("/standby", s.handleStandby)
	e.POST("/requests", s.handleRequests)
	e.GET("/clock", echo.WrapHandler(s.clock))
	e.POST(idbank.PathWithdraw, handleIDs(s.bank.Withdraw))
	e.POST(idbank.PathFallback, handleIDs(s.bank.Fallback))
	e.POST(idbank.PathReport, s.handleReport)
	admin := e.Group("/admin", s.requireOperator)
	s.console(admin)
	admin.PUT("/faults/:peer", s.handleFault)
	admin.PUT("/clock", s.handleClock)
	admin.Any("/control/*", s.handleControl)
	admin.POST("/verify/:op", s.handleVerify)
	admin.POST("/reconcile/:op", s.handleReconcile)
	return e
}

// console is what the console asks, from the own zone or over the link: nothing of it
// changes a link, so nobody can cut off the way to mend it.
func (s *server) console(admin *echo.Group) {
	admin.GET("/status", s.handleStatus)
	admin.GET("/ids", s.handleFigures)
	admin.GET("/facts/:part", s.handleFacts)
	admin.GET("/transfers", s.handleStuck)
	admin.GET("/transfers/parked", s.handleParked)
	admin.GET("/transfers/:id", s.handleTransfer)
	admin.POST("/transfers/:id/jobs", s.handleAskJob)
	admin.GET("/transfers/jobs/:job", s.handleJob)
}

// peer is what other zones' agents may ask.
func (s *server) peer(o web.Options) http.Handler {
	o.MaxBody, o.Timeout = 1<<20, 30*time.Second // a list of all slots
	o.Quiet = []string{"/standby/applied"}
	e := web.New(o)
	e.GET("/route", s.handleRoute)
	e.GET("/standby", s.handleStandby)
	e.POST("/standby/applied", s.handleApplied)
	e.POST("/incoming", s.handleIncoming, s.requireOperator) // control brings the key
	e.POST("/admin/verify/:op", s.handleVerify, s.requireOperator)
	e.POST("/admin/reconcile/:op", s.handleReconcile, s.requireOperator)
	s.console(e.Group("/admin", s.requireOperator))
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

// noteProcess takes the question of a process of this zone for a word on what it
// holds: its NATS may be down.
func (s *server) noteProcess(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		after, err := web.QueryInt(c, "after", -1, -1, math.MaxInt64)
		if p := c.QueryParam("process"); p != "" && err == nil {
			if err := s.keeper.acks.Note(route.Ack{Process: p, Version: max(0, after)}); err != nil {
				return errs.Field("process", "%v", err)
			}
		}
		return next(c)
	}
}

func (s *server) handleLinks(c echo.Context) error {
	return c.JSON(http.StatusOK, s.border.Status())
}

func (s *server) handleStatus(c echo.Context) error {
	out := agentapi.Status{
		Cell: s.cell, RouteVersion: s.keeper.holder.Version(), ControlAgeMS: -1,
		Links: map[string]agentapi.Link{}, Faults: map[string]agentapi.Fault{},
	}
	out.Route, out.ListeningMS = s.processes(), s.keeper.acks.Listening().Milliseconds()
	out.ClockOffsetMS = s.clock.Offset().Milliseconds()
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
	out.Sinks = s.sinks(c.Request().Context())
	out.Reconciled, out.Books = s.books.reconciled(), s.books.looks()
	if s.db == nil {
		return c.JSON(http.StatusOK, out)
	}
	out.Requests = s.requests.Sums(s.sent(), time.Now())
	out.Cover = s.cover.figures()
	out.Commit = s.commitStatus()
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
	out.Database.Misplaced = s.places.last()
	if l, err := s.db.leftovers(ctx); err == nil {
		out.Database.Leftovers = &l
	}
	if !math.IsInf(n.LeaseLeftMS, 1) {
		out.Database.LeaseLeftMS = int64(n.LeaseLeftMS)
	}
	return c.JSON(http.StatusOK, out)
}

// handleRequests takes what a gateway of this zone has counted.
func (s *server) handleRequests(c echo.Context) error {
	var w agentapi.Word
	if err := web.Bind(c, &w); err != nil {
		return err
	}
	if w.Process == "" || len(w.Process) > 200 || len(w.Kinds) > 200 {
		return errs.Field("process", "is missing, or says too much")
	}
	s.requests.Note(w, time.Now())
	return c.NoContent(http.StatusNoContent)
}

// handleControl passes an operator's request on to control, which listens for
// agents only: /admin/control/route/acks is its /route/acks.
func (s *server) handleControl(c echo.Context) error {
	http.StripPrefix("/admin/control", s.control).ServeHTTP(c.Response(), c.Request())
	return nil
}

// handleIncoming takes a cell as the incoming one of slots that this cell owns.
func (s *server) handleIncoming(c echo.Context) error {
	db, err := s.database()
	if err != nil {
		return err
	}
	var in agentapi.Incoming
	if err := web.Bind(c, &in); err != nil {
		return err
	}
	if t, _ := s.keeper.held(); in.Target != "" && t != nil {
		if _, ok := t.Cell(in.Target); !ok {
			return errs.Field("target", "there is no cell %q", in.Target)
		}
	}
	slots := make([]int32, len(in.Slots))
	for i, n := range in.Slots {
		slots[i] = int32(n)
	}
	changed, err := db.setIncoming(c.Request().Context(), slots, in.Target)
	if err != nil {
		return err
	}
	out, err := db.here(c.Request().Context())
	if err == nil && in.Gate && changed == 0 {
		out.LSN, err = db.gateIncoming(c.Request().Context(), slots, in.Target)
	}
	out.Changed = changed
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

// processes lists who holds which table, the agent itself first.
func (s *server) processes() []agentapi.Process {
	out := []agentapi.Process{{Process: s.name, Version: max(0, s.keeper.holder.Version())}}
	for _, h := range s.keeper.acks.List() {
		p := agentapi.Process{Process: h.Process, Version: h.Version, AgeMS: h.Age.Milliseconds()}
		if h.Behind >= 0 {
			ms := h.Behind.Milliseconds()
			p.BehindMS = &ms
		}
		out = append(out, p)
	}
	return out
}

// report is the same for control.
func (s *server) report() controlapi.ZoneAcks {
	z := controlapi.ZoneAcks{Zone: s.cell, Version: max(0, s.keeper.holder.Version()), ListeningMS: s.keeper.acks.Listening().Milliseconds()}
	for _, p := range s.processes() {
		z.Processes = append(z.Processes, controlapi.Ack(p))
	}
	return z
}

// gather is how long a report waits for more: after a push all processes speak up,
// and control is only asked whether all have.
const gather = 100 * time.Millisecond

// tellControl reports at each change and each 5 s; what control doesn't hear it
// hears with the next report.
func (s *server) tellControl(ctx context.Context, report func(context.Context, controlapi.ZoneAcks) error) error {
	for ctx.Err() == nil {
		send, cancel := context.WithTimeout(ctx, retry)
		err := report(send, s.report())
		cancel()
		if err != nil {
			pause(ctx, retry)
			continue
		}
		select {
		case <-ctx.Done():
		case <-s.keeper.acks.Changed():
			s.keeper.acks.Gather(ctx, gather)
		case <-time.After(askEach):
		}
	}
	return nil
}

// handleIDs hands out of the cell's own stock.
func handleIDs[Ask, Grant any](give func(context.Context, Ask) (Grant, error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		var ask Ask
		if err := web.Bind(c, &ask); err != nil {
			return err
		}
		grant, err := give(c.Request().Context(), ask)
		if err != nil {
			return err
		}
		return c.JSON(http.StatusOK, grant)
	}
}

// handleReport takes how a process of this zone stands with its IDs.
func (s *server) handleReport(c echo.Context) error {
	var r id.Report
	if err := web.Bind(c, &r); err != nil {
		return err
	}
	s.bank.Heard(r)
	return c.NoContent(http.StatusNoContent)
}

func (s *server) handleFigures(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), 2*time.Second)
	defer cancel()
	return c.JSON(http.StatusOK, s.bank.Figures(ctx))
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

func (s *server) handleClock(c echo.Context) error {
	var to agentapi.Clock
	if err := web.Bind(c, &to); err != nil {
		return err
	}
	if err := s.clock.Set(to.Offset()); err != nil {
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
	if c.Param("part") == agentapi.PartLocal {
		s.books.add(c.Request().Context(), &f)
	}
	return c.JSON(http.StatusOK, f)
}
