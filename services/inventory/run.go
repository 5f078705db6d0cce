package inventory

import (
	"context"
	"crypto/rand"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/catalog/catalogapi"
	"example.com/cellmart/services/inventory/inventoryapi"
)

// Config of the service.
type Config struct {
	Cell, Addr, InternalAddr, LinkAddr string
	DSN                                env.Secret
	Route                              route.Options
	CatalogURL                         string
	CursorKey                          []byte
	HoldTTL, Sweep, Drain              time.Duration
}

func loadConfig(getenv func(string) string) (Config, *env.Reader) {
	r := env.NewReader("INVENTORY", getenv)
	c := Config{
		Cell:         r.Required("CELL", "the cell, such as c1"),
		Addr:         r.String("ADDR", "127.0.0.1:8203", "listen address, for the own cell"),
		InternalAddr: r.String("INTERNAL_ADDR", "", "listen address of /livez, /readyz, /metrics; empty = none"),
		DSN:          r.Secret("PG_DSN", "the cell's database, as cellmart_app"),
		Route:        route.ReadOptions(r),
		LinkAddr:     r.Required("LINK_ADDR", "the own agent's way out to other zones"),
		CatalogURL:   r.String("CATALOG_URL", "", "the cell's catalog service (http://host:port); empty = who stocks a SKU first is its seller"),
		HoldTTL:      r.Duration("HOLD_TTL", 15*time.Minute, "how long stock is held for an order that isn't confirmed"),
		Sweep:        r.Duration("SWEEP", time.Second, "pause between looks for holds past their time"),
		Drain:        r.Duration("DRAIN", 5*time.Second, "how long requests may finish at the end"),
	}
	if c.Route.NATSURL == "" {
		r.Fail("NATS_URL", "is not set")
	}
	c.CursorKey = []byte(r.OptionalSecret("CURSOR_KEY", "secret that signs list cursors; empty = a new one at each start").Reveal())
	return c, r
}

// Vars lists the settings.
func Vars() []env.Var {
	_, r := loadConfig(func(string) string { return "" })
	return r.Vars()
}

// Run is the service, until ctx ends. It starts with everything else down.
func Run(ctx context.Context, p cellkit.Process) error {
	c, r := loadConfig(p.Getenv)
	if err := r.Err(); err != nil {
		return cellkit.Usage{Err: err}
	}
	if len(c.CursorKey) == 0 {
		c.CursorKey = []byte(rand.Text())
	}
	log, metrics := p.Log, obs.New(c.Cell, inventoryapi.Service)
	pool, err := pg.Open(ctx, c.DSN.Reveal(), c.Cell, log)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	defer pool.Close()

	holder := &routing.Holder{}
	c.Route.Log, c.Route.Metrics = log, metrics
	follower := route.Open(c.Route, holder)
	s := &Service{store: store{pool}, ttl: c.HoldTTL, newWait: time.Second, log: log}
	if c.CatalogURL != "" {
		near := catalogapi.NewClient(c.Cell, c.CatalogURL)
		defer near.Close()
		s.sellers = nearCatalog{near}
	}
	consumer := bus.NewConsumer(bus.ConsumerOptions{
		Service: inventoryapi.Service, Cell: c.Cell, Pool: pool, NATSURL: c.Route.NATSURL, Dialer: link.Dialer{Addr: c.LinkAddr},
		Table: holder, Log: log, Metrics: metrics,
	})
	for kind, h := range s.handlers() {
		consumer.Handle(kind, h)
	}

	e := web.New(web.Options{Service: inventoryapi.Service, Cell: c.Cell, Log: log, RouteVersion: holder.Version, Metrics: metrics})
	(&server{Service: s, cursorKey: c.CursorKey}).mount(e)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return follower.Run(ctx) })
	group.Go(func() error { return consumer.Run(ctx) })
	group.Go(func() error { return s.sweep(ctx, c.Sweep) })
	group.Go(func() error { return web.Serve(ctx, c.Addr, e, c.Drain) })
	group.Go(func() error { return obs.ServeInternal(ctx, c.InternalAddr, metrics, ready(pool.Ping)) })
	return group.Wait()
}

func ready(ping func(context.Context) error) func() error {
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return ping(ctx)
	}
}

// nearCatalog is the cell's own copy of the catalog.
type nearCatalog struct{ *catalogapi.Client }

func (c nearCatalog) seller(ctx context.Context, sku id.ID) (id.ID, bool, error) {
	list, err := c.SKUs(ctx, []id.ID{sku})
	if err != nil || len(list) != 1 {
		return 0, false, err
	}
	return list[0].Seller, true, nil
}
