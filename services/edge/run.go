package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/web"
)

// config is what the environment says.
type config struct {
	addr, internalAddr, pki string
	zones                   []zone
}

// Vars lists the variables for `help edge`.
func Vars() []env.Var {
	r := env.NewReader("EDGE", func(string) string { return "" })
	read(r)
	return r.Vars()
}

func read(r *env.Reader) config {
	c := config{
		addr:         r.String("ADDR", "127.0.0.1:8080", "where people come in"),
		internalAddr: r.String("INTERNAL_ADDR", "", "/livez, /readyz, /metrics; empty is off"),
		pki:          r.Required("PKI", "folder with edge.pem, edge.key and ca.pem"),
	}
	cells := r.Required("CELLS", "the borders of the cells' agents: c1=host:port,c2=host:port")
	regions := r.List("REGIONS", "", "the cells' regions for X-Region: c1=north,c2=south")
	if cells == "" {
		return c
	}
	var list []string
	for text := range strings.SplitSeq(cells, ",") {
		if text = strings.TrimSpace(text); text != "" {
			list = append(list, text)
		}
	}
	var err error
	if c.zones, err = parseCells(list, regions); err != nil {
		r.Fail("CELLS", err.Error())
	}
	return c
}

// Run serves until ctx ends. It starts with every cell down.
func Run(ctx context.Context, p cellkit.Process) error {
	r := env.NewReader("EDGE", p.Getenv)
	c := read(r)
	if err := r.Err(); err != nil {
		return cellkit.Usage{Err: err}
	}
	conf, err := loadTLS(c.pki)
	if err != nil {
		return cellkit.Usage{Err: fmt.Errorf("EDGE_PKI: %w", err)}
	}
	metrics := obs.New("edge", "edge")
	requests := metrics.Counter("cellmart_edge_requests_total", "Requests by the cell they were passed to, first or again after another failed.", "target", "how")
	up := metrics.Gauge("cellmart_edge_gateway_up", "1 while the cell's gateway answers health calls.", "target")
	proxy := newProxy(c.zones, conf, p.Log,
		func(cell, how string) { requests.WithLabelValues(cell, how).Inc() },
		func(cell string, answers bool) { up.WithLabelValues(cell).Set(map[bool]float64{true: 1}[answers]) })

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { proxy.run(ctx); return nil })
	group.Go(func() error { return web.Serve(ctx, c.addr, newHandler(proxy, p.Log, metrics), 5*time.Second) })
	group.Go(func() error {
		return obs.ServeInternal(ctx, c.internalAddr, metrics, func() error {
			for i := range proxy.gateways {
				if proxy.healthy(i) {
					return nil
				}
			}
			return errors.New("no gateway is healthy")
		})
	})
	return group.Wait()
}

func loadTLS(dir string) (*tls.Config, error) {
	return link.LoadTLS(filepath.Join(dir, link.EdgeName))
}
