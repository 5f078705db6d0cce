package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/clock"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/user/userapi"
)

// config is what the environment says.
type config struct {
	cell, addr, peerAddr, internalAddr string
	link                               string
	services                           map[string][]string
	demoFile                           string
	redirects                          redirects
	forward, local                     time.Duration
	route                              route.Options
}

// Vars lists the variables for `help gateway`.
func Vars() []env.Var {
	r := env.NewReader("GATEWAY", func(string) string { return "" })
	read(r)
	return r.Vars()
}

func read(r *env.Reader) config {
	c := config{
		cell:         r.Required("CELL", "the own cell (c1)"),
		addr:         r.String("ADDR", "127.0.0.1:8081", "where people and the edge come in"),
		peerAddr:     r.String("PEER_ADDR", "127.0.0.1:8181", "where other cells' gateways come in; only the own agent may reach it"),
		internalAddr: r.String("INTERNAL_ADDR", "", "/livez, /readyz, /metrics; empty is off"),
		link:         r.Required("LINK_ADDR", "the own agent's CONNECT listener (host:port)"),
		demoFile:     r.String("DEMO_FILE", "", "JSON file with the demo's logins, shown at GET /demo"),
		forward:      r.Duration("FORWARD_TIMEOUT", defaultLimits().forward, "wait for another cell's answer"),
		local:        r.Duration("LOCAL_TIMEOUT", defaultLimits().local, "wait for an own service's answer"),
		route:        route.ReadOptions(r),
		services:     map[string][]string{},
	}
	c.readRedirects(r)
	for _, name := range []string{svcUser, svcOrder, svcInventory, svcCatalog} {
		variable := strings.ToUpper(name) + "_URL"
		urls := r.List(variable, "", "instances of the own "+name+" service (http://host:port), comma separated; one that isn't there is left out; needed")
		for i, text := range urls {
			u, err := url.Parse(text)
			if err != nil || u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
				r.Fail(variable, fmt.Sprintf("has %q, not http://host:port", text))
				continue
			}
			urls[i] = "http://" + u.Host
		}
		if len(urls) == 0 {
			r.Fail(variable, "is not set: the own "+name+" service")
		}
		c.services[name] = urls
	}
	if c.cell != "" && !routing.ValidName(c.cell) {
		r.Fail("CELL", fmt.Sprintf("is %q, which can't be a cell's name", c.cell))
	}
	if c.addr == c.peerAddr && !strings.HasSuffix(c.addr, ":0") {
		r.Fail("PEER_ADDR", "is the same as ADDR; other cells are believed what people are not")
	}
	return c
}

// readRedirects reads what is done with a request of another cell's user.
func (c *config) readRedirects(r *env.Reader) {
	mode := r.String("MODE", "forward", "what to do with a request of another cell's user: forward, or redirect (307) to that cell's gateway")
	public, err := parsePublic(r.List("PUBLIC_URLS", "", "where people reach the cells' gateways, for redirect: c1=http://host:port,c2=..."))
	switch {
	case err != nil:
		r.Fail("PUBLIC_URLS", err.Error())
	case mode == "redirect" && len(public) == 0:
		r.Fail("PUBLIC_URLS", "is not set, so nobody can be redirected")
	case mode == "redirect":
		c.redirects = public
	case mode != "forward":
		r.Fail("MODE", fmt.Sprintf("is %q, not forward or redirect", mode))
	}
}

// Run serves until ctx ends. It starts with everything else down.
func Run(ctx context.Context, p cellkit.Process) error {
	r := env.NewReader("GATEWAY", p.Getenv)
	c := read(r)
	if err := r.Err(); err != nil {
		return cellkit.Usage{Err: err}
	}
	c.route.Log = p.Log
	public, err := listen(ctx, c.addr)
	if err != nil {
		return err
	}
	defer public.Close()
	inner, err := listen(ctx, c.peerAddr)
	if err != nil {
		return err
	}
	defer inner.Close()

	var tables routing.Holder
	metrics := obs.New(c.cell, "gateway")
	c.route.Metrics = metrics
	follower := route.Open(c.route, &tables)
	home, err := newPage(c.cell, c.demoFile)
	if err != nil {
		return err
	}
	g := build(c, &tables, follower, metrics, p.Log)
	g.wall = clock.Follow(ctx, c.route.AgentURL, p.Log).Now
	counted := newTally(c.route.Process, metrics.Counter("cellmart_gateway_requests_total",
		"Requests that people brought here, by what they took: local, forwarded, global; redirected ones count where they go.", "kind", "way"), time.Now())
	g.count = counted.add

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return follower.Run(ctx) })
	group.Go(func() error { g.peers.run(ctx, &tables); return nil })
	group.Go(func() error { g.search.breaker.Run(ctx); return nil })
	if c.route.AgentURL != "" {
		agent := &agentapi.Client{BaseURL: c.route.AgentURL}
		group.Go(func() error { counted.run(ctx, agent.Report); return nil })
	}
	group.Go(func() error { g.follow(ctx); return nil })
	for _, s := range g.local {
		group.Go(func() error { s.run(ctx); return nil })
	}
	group.Go(func() error {
		return web.ServeListener(ctx, public, newHandler(g, p.Log, metrics, false, home), 5*time.Second)
	})
	group.Go(func() error {
		return web.ServeListener(ctx, inner, newHandler(g, p.Log, metrics, true, nil), 5*time.Second)
	})
	group.Go(func() error { return obs.ServeInternal(ctx, c.internalAddr, metrics, nil) })
	return group.Wait()
}

// listen opens one of the two ways in before anything else starts.
func listen(ctx context.Context, addr string) (net.Listener, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, cellkit.Usage{Err: fmt.Errorf("can't listen: %w", err)}
	}
	return ln, nil
}

// build puts the gateway together.
func build(c config, tables *routing.Holder, follower *route.Follower, m *obs.Metrics, log *slog.Logger) *Gateway {
	dialer := link.Dialer{Addr: c.link}
	dial := func(zone, target string) dialFunc { return dialer.DialContext(zone, target) }
	up := m.Gauge("cellmart_gateway_cell_up", "1 while the other cell's gateway answers health calls.", "target")
	g := &Gateway{
		cell: c.cell, table: tables, refresh: follower.Refresh, now: time.Now, wall: time.Now, numbers: numberReader(),
		verify: userapi.Verify, denied: &denied{},
		local: map[string]*service{},
		peers: newPeers(c.cell, dial, log, func(zone string, answers bool) {
			up.WithLabelValues(zone).Set(map[bool]float64{true: 1}[answers])
		}),
		writer: newWriter(dial), search: newSearch(dial, log),
		linkUp: follower.Links().Up,
		limits: defaultLimits(), redirects: c.redirects,
	}
	g.limits.forward, g.limits.local = c.forward, c.local
	for name, urls := range c.services {
		g.local[name] = newService(name, urls, log)
	}
	return g
}
