package catalog

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/catalog/catalogapi"
)

// Config is the settings of a cell's copy.
type Config struct {
	Cell         string
	Addr         string
	InternalAddr string
	DSN          env.Secret
	RedisAddr    string
	LinkAddr     string
	CursorKey    env.Secret
	Drain        time.Duration
}

func loadConfig(getenv func(string) string) (Config, []env.Var, error) {
	r := env.NewReader("CATALOG", getenv)
	c := Config{
		Cell:         r.Required("CELL", "the cell's name"),
		Addr:         r.String("ADDR", "127.0.0.1:8230", "HTTP: the catalog, for the gateway and the cell's services"),
		InternalAddr: r.String("INTERNAL_ADDR", "", "/livez, /readyz, /metrics; empty = off"),
		DSN:          r.Secret("PG_DSN", "the cell's database, as cellmart_app"),
		RedisAddr:    r.String("REDIS_ADDR", "", "the cell's Redis, host:port; empty = no cache"),
		LinkAddr:     r.Required("LINK_ADDR", "way out of the cell: the own agent's CONNECT listener"),
		CursorKey:    r.Secret("CURSOR_KEY", "signs the cursors of lists; the same in every cell"),
		Drain:        r.Duration("DRAIN", 5*time.Second, "time for running requests at the end"),
	}
	return c, r.Vars(), r.Err()
}

// Vars lists the variables for `cellmart help catalog`.
func Vars() []env.Var {
	_, vars, _ := loadConfig(func(string) string { return "" })
	return vars
}

// Run is a cell's copy of the catalog: it serves and follows until ctx ends.
func Run(ctx context.Context, p cellkit.Process) error {
	cfg, _, err := loadConfig(p.Getenv)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	pool, err := pg.Open(ctx, cfg.DSN.Reveal(), cfg.Cell, p.Log)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	defer pool.Close()

	metrics := obs.New(cfg.Cell, "catalog")
	asked := metrics.Counter("cellmart_catalog_cache_total", "Questions to the cache by what came of them.", "result")
	cache := newCache(cfg.RedisAddr, func(result string) { asked.WithLabelValues(result).Inc() })
	defer cache.close()

	transport := &http.Transport{
		DialContext:         link.Dialer{Addr: cfg.LinkAddr}.DialContext(routing.Global, "catalog"),
		MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
	}
	defer transport.CloseIdleConnections()
	var heard atomic.Int64
	copy := &follower{
		store: store{pool}, log: p.Log,
		feed:  catalogapi.NewFeedClient(cfg.Cell, routing.Global, "http://catalog", transport),
		heard: func() { heard.Store(time.Now().UnixNano()) },
	}
	metrics.GaugeFunc("cellmart_catalog_copy_version", "Newest change that the copy has, -1 before the database answered.", func() float64 {
		if at := copy.at.Load(); at != nil {
			return float64(at.version)
		}
		return -1
	})
	metrics.GaugeFunc("cellmart_catalog_copy_age_seconds", "Time since the writer was last heard, -1 for never.", func() float64 {
		if at := heard.Load(); at != 0 {
			return time.Since(time.Unix(0, at)).Seconds()
		}
		return -1
	})

	e := web.New(web.Options{Service: "catalog", Cell: cfg.Cell, Log: p.Log, Metrics: metrics})
	newServer(copy, cache, []byte(cfg.CursorKey.Reveal())).mount(e)
	group, ctx := errgroup.WithContext(ctx)
	ready := func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return copy.ready(ctx)
	}
	group.Go(func() error { return web.Serve(ctx, cfg.Addr, e, cfg.Drain) })
	group.Go(func() error { return obs.ServeInternal(ctx, cfg.InternalAddr, metrics, ready) })
	group.Go(func() error { return copy.run(ctx) })
	return group.Wait()
}
