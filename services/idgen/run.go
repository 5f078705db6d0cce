package idgen

import (
	"context"
	"log/slog"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/clock"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/idgen/idgenapi"
)

// Config is idgen's settings.
type Config struct {
	Cell         string
	Addr         string
	InternalAddr string
	DSN          env.Secret
	AgentURL     string
	Drain        time.Duration
}

func loadConfig(getenv func(string) string) (Config, []env.Var, error) {
	r := env.NewReader("IDGEN", getenv)
	c := Config{
		Cell:         r.String("CELL", routing.Global, "the zone"),
		Addr:         r.String("ADDR", "127.0.0.1:8410", "HTTP: leases, status"),
		InternalAddr: r.String("INTERNAL_ADDR", "", "/livez, /readyz, /metrics; empty = off"),
		DSN:          r.Secret("PG_DSN", "idgen's own database, on a server of its own"),
		AgentURL:     r.String("AGENT_URL", "", "local API of the own zone's agent (http://host:port), for the clock; empty = the machine's"),
		Drain:        r.Duration("DRAIN", 5*time.Second, "time for running requests at the end"),
	}
	return c, r.Vars(), r.Err()
}

// Vars lists the variables for `cellmart help idgen`.
func Vars() []env.Var {
	_, vars, _ := loadConfig(func(string) string { return "" })
	return vars
}

// Run is idgen: it serves until ctx ends. Without its database it answers 503.
func Run(ctx context.Context, p cellkit.Process) error {
	cfg, _, err := loadConfig(p.Getenv)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	pool, err := pg.OpenGlobal(ctx, cfg.DSN.Reveal(), p.Log)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	defer pool.Close()

	metrics := obs.New(cfg.Cell, "idgen")
	leases := metrics.Counter("cellmart_idgen_leases_total", "Leases asked for, by kind and what came of it.", "kind", "result")
	s := newService(&store{pool: pool}, p.Log)
	s.clock = clock.Follow(ctx, cfg.AgentURL, p.Log).Now
	s.count = func(kind, result string) { leases.WithLabelValues(kind, result).Inc() }
	ready := func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return pool.Ping(ctx)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return web.Serve(ctx, cfg.Addr, newServer(s, cfg.Cell, metrics), cfg.Drain) })
	group.Go(func() error { return obs.ServeInternal(ctx, cfg.InternalAddr, metrics, ready) })
	return group.Wait()
}

func newService(st *store, log *slog.Logger) *service {
	if st.step == nil {
		st.step = func(string) error { return nil }
	}
	if st.databaseClock == nil {
		st.databaseClock = func(shows time.Time) time.Time { return shows }
	}
	s := &service{store: st, clock: time.Now, log: log, count: func(string, string) {}}
	for range idgenapi.Kinds() {
		s.queues = append(s.queues, &queue{})
	}
	return s
}

func newServer(s *service, cell string, metrics *obs.Metrics) *echo.Echo {
	e := web.New(web.Options{Service: "idgen", Cell: cell, Log: s.log, Metrics: metrics})
	(&server{service: s}).routes(e)
	return e
}
