package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/password"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
	"example.com/cellmart/services/user/userapi"
)

// Config is the console's settings.
type Config struct {
	Cell, Addr, InternalAddr string
	DSN, OperatorKey         env.Secret
	FirstPassword            env.Secret
	Cells, Agents, Gateways  []string
	AgentURL, LinkAddr       string
	ControlURL, SearchURL    string
	ShopURL                  string
	Cellctl, Root            string
	CheckEach, Drain         time.Duration
}

// overLinks is what AGENTS says when the cells' agents are reached over the links.
const overLinks = "link"

func loadConfig(getenv func(string) string) (Config, []env.Var, error) {
	r := env.NewReader("CONSOLE", getenv)
	c := Config{
		Cell:          r.String("CELL", routing.Global, "the zone"),
		Addr:          r.String("ADDR", "127.0.0.1:8090", "HTTP: the operators' pages; to be on loopback, or behind TLS"),
		InternalAddr:  r.String("INTERNAL_ADDR", "", "/livez, /readyz, /metrics; empty = off"),
		DSN:           r.Secret("PG_DSN", "the global zone's database"),
		OperatorKey:   r.OptionalSecret("OPERATOR_KEY", "bearer key of the agents' admin routes"),
		FirstPassword: r.OptionalSecret("FIRST_PASSWORD", "of the first operator; empty = a random one, printed once"),
		Cells:         r.List("CELLS", "", "the cells"),
		Agents:        r.List("AGENTS", overLinks, "NAME=URL,... of the cells' agents, on a way that unplugging leaves open; link = over the links: then nothing can be unplugged from here"),
		Gateways:      r.List("GATEWAYS", "", "NAME=URL,... of the gateways' internal listeners; without one its errors and times are unknown"),
		AgentURL:      r.String("AGENT_URL", "http://127.0.0.1:8103", "the own zone's agent"),
		LinkAddr:      r.String("LINK_ADDR", "127.0.0.1:8105", "the own agent's CONNECT listener"),
		ControlURL:    r.String("CONTROL_URL", "http://127.0.0.1:8400", "control's HTTP"),
		SearchURL:     r.String("SEARCH_URL", "", "search's internal listener; empty = its lag is unknown"),
		ShopURL:       r.String("SHOP_URL", "", "the shop's public address, for the tour; empty = it has no link there"),
		Cellctl:       r.String("CELLCTL", "", "the program cellctl, to run drills with; empty = none can be run from here"),
		Root:          r.String("ROOT", ".", "the checkout whose demo the drills break"),
		CheckEach:     r.Duration("CHECK_EACH", 2*time.Minute, "between two checks of all invariants, which read all rows; 0 = never"),
		Drain:         r.Duration("DRAIN", 5*time.Second, "time for running requests at the end"),
	}
	return c, r.Vars(), r.Err()
}

// Vars lists the variables for `cellmart help console`.
func Vars() []env.Var {
	_, vars, _ := loadConfig(func(string) string { return "" })
	return vars
}

// Run is the console: it serves until ctx ends.
func Run(ctx context.Context, p cellkit.Process) error {
	cfg, _, err := loadConfig(p.Getenv)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	agents, links, err := agentsOf(cfg)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	gateways, err := pairs("CONSOLE_GATEWAYS", cfg.Gateways)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	pool, err := pg.OpenGlobal(ctx, cfg.DSN.Reveal(), p.Log)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	defer pool.Close()

	st := &store{pool: pool}
	c := newCollector(agents, &controlapi.Client{BaseURL: cfg.ControlURL})
	c.checkEach = cfg.CheckEach
	c.gateways = map[string]string{}
	for cell, at := range gateways {
		c.gateways[cell] = at + "/metrics"
	}
	if cfg.SearchURL != "" {
		c.search = cfg.SearchURL + "/metrics"
	}
	sessions := newSessions(st, password.New(1, 4, userapi.ErrBusy))
	acts := newActions(agents, c.snapshot().Cells, st, links)
	acts.log, acts.drills.cellctl, acts.drills.root = p.Log, cfg.Cellctl, cfg.Root
	group, ctx := errgroup.WithContext(ctx)
	s, err := newServer(c, sessions, acts, st, ctx.Done(), p.Log)
	if err != nil {
		return err
	}
	s.shop = cfg.ShopURL
	h, err := s.handler()
	if err != nil {
		return err
	}
	metrics := obs.New(cfg.Cell, "console")
	all := http.NewServeMux()
	all.Handle("/", around(cfg, p, metrics, 10*time.Second, h))
	all.Handle(livePath, around(cfg, p, metrics, liveFor, h))
	group.Go(func() error { return web.Serve(ctx, cfg.Addr, all, cfg.Drain) })
	group.Go(func() error { return obs.ServeInternal(ctx, cfg.InternalAddr, metrics, func() error { return nil }) })
	group.Go(func() error { return c.run(ctx) })
	group.Go(func() error { return acts.run(ctx) })
	group.Go(func() error { return sessions.first(ctx, cfg.FirstPassword.Reveal(), p.Stdout, p.Log) })
	return group.Wait()
}

// liveFor is how long one stream lives; the browser opens the next one.
const liveFor = 10 * time.Minute

// around puts the usual edge around the pages: request IDs, one log line, figures, limits.
func around(cfg Config, p cellkit.Process, m *obs.Metrics, limit time.Duration, h http.Handler) http.Handler {
	e := web.New(web.Options{Service: "console", Cell: cfg.Cell, Log: p.Log, Metrics: m, Timeout: limit, Quiet: []string{"/*"}})
	e.Any("/*", echo.WrapHandler(h))
	return e
}

// pairs reads NAME=URL,...
func pairs(name string, list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, text := range list {
		key, at, ok := strings.Cut(text, "=")
		u, err := url.Parse(at)
		if !ok || err != nil || u.Host == "" || !routing.ValidName(key) {
			return nil, fmt.Errorf("%s: %q is not NAME=URL", name, text)
		}
		out[key] = strings.TrimSuffix(at, "/")
	}
	return out, nil
}

// agentsOf are the ways to all agents; open says that they don't lead over the links.
func agentsOf(cfg Config) (agents map[string]*agentapi.Client, open bool, err error) {
	key := cfg.OperatorKey.Reveal()
	agents = map[string]*agentapi.Client{routing.Global: {BaseURL: cfg.AgentURL, OperatorKey: key}}
	if slices.Equal(cfg.Agents, []string{overLinks}) {
		dialer := link.Dialer{Addr: cfg.LinkAddr}
		for _, cell := range cfg.Cells {
			way := &http.Transport{DialContext: dialer.DialContext(cell, "agent"), MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute}
			agents[cell] = &agentapi.Client{BaseURL: "http://" + cell, HTTP: &http.Client{Transport: way}, OperatorKey: key}
		}
		return agents, false, nil
	}
	at, err := pairs("CONSOLE_AGENTS", cfg.Agents)
	if err != nil {
		return nil, false, err
	}
	for cell, base := range at {
		agents[cell] = &agentapi.Client{BaseURL: base, OperatorKey: key}
	}
	return agents, true, nil
}
