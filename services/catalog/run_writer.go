package catalog

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/clock"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/idbank"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/catalog/catalogapi"
	"example.com/cellmart/services/idgen/idgenapi"
)

// WriterConfig is the settings of the writer.
type WriterConfig struct {
	Cell         string
	Addr         string
	InternalAddr string
	DSN          env.Secret
	LinkAddr     string
	AgentURL     string
	Drain        time.Duration
}

func loadWriterConfig(getenv func(string) string) (WriterConfig, []env.Var, error) {
	r := env.NewReader("CATALOG_WRITER", getenv)
	c := WriterConfig{
		Cell:         r.String("CELL", routing.Global, "the zone"),
		Addr:         r.String("ADDR", "127.0.0.1:8420", "HTTP: products to write, the feed; reached through the border only"),
		InternalAddr: r.String("INTERNAL_ADDR", "", "/livez, /readyz, /metrics; empty = off"),
		DSN:          r.Secret("PG_DSN", "the global zone's database, as cellmart_app"),
		LinkAddr:     r.Required("LINK_ADDR", "the own agent's CONNECT listener, for IDs"),
		AgentURL:     r.String("AGENT_URL", "", "local API of the own zone's agent (http://host:port), for the clock and to tell how IDs are; empty = neither"),
		Drain:        r.Duration("DRAIN", 5*time.Second, "time for running requests at the end"),
	}
	return c, r.Vars(), r.Err()
}

// WriterVars lists the variables for `cellmart help catalog-writer`.
func WriterVars() []env.Var {
	_, vars, _ := loadWriterConfig(func(string) string { return "" })
	return vars
}

// RunWriter is the one place that writes the catalog, until ctx ends.
func RunWriter(ctx context.Context, p cellkit.Process) error {
	cfg, _, err := loadWriterConfig(p.Getenv)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	pool, err := pg.OpenGlobal(ctx, cfg.DSN.Reveal(), p.Log)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	defer pool.Close()

	transport := &http.Transport{DialContext: link.Dialer{Addr: cfg.LinkAddr}.DialContext(routing.Global, "idgen"), IdleConnTimeout: time.Minute}
	defer transport.CloseIdleConnections()
	lessor := idgenapi.NewClient("http://idgen", &http.Client{Transport: transport})
	wall := clock.Follow(ctx, cfg.AgentURL, p.Log)
	lessor.Holder, lessor.Clock = cfg.Cell+"/catalog-writer", wall.Now
	// The global zone has no stock of its own: without idgen products are written for as long as the segments last.
	ids := id.NewClient(id.Options{Lease: lessor.Lease, Room: lessor.Room, Clock: wall.Now, Kinds: []string{idgenapi.Product, idgenapi.SKU}, Log: p.Log})

	metrics := obs.New(cfg.Cell, "catalog-writer")
	w := &writer{store: writerStore{pool}, ids: ids}
	e := web.New(web.Options{
		Service: "catalog-writer", Cell: cfg.Cell, Log: p.Log, Metrics: metrics,
		Timeout: catalogapi.MaxWait + 5*time.Second, // of the feed; writing has its own limit
	})
	ready := func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return pool.Ping(ctx)
	}
	group, ctx := errgroup.WithContext(ctx)
	(&writerServer{writer: w, stop: ctx}).mount(e)
	group.Go(func() error { return web.Serve(ctx, cfg.Addr, e, cfg.Drain) })
	group.Go(func() error { return obs.ServeInternal(ctx, cfg.InternalAddr, metrics, ready) })
	group.Go(func() error { return ids.Run(ctx) })
	if cfg.AgentURL != "" {
		group.Go(func() error {
			return idbank.NewClient(cfg.AgentURL, cfg.Cell+"/catalog-writer").Tell(ctx, ids, metrics)
		})
	}
	return group.Wait()
}
