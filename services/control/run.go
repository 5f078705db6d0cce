package control

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

// Config is control's settings.
type Config struct {
	Cell         string
	Addr         string
	InternalAddr string
	DSN          env.Secret
	PKIDir       string
	Init         []string
	OperatorKey  env.Secret
	LinkAddr     string
	Drain        time.Duration
}

func loadConfig(getenv func(string) string) (Config, []env.Var, error) {
	r := env.NewReader("CONTROL", getenv)
	c := Config{
		Cell:         r.String("CELL", routing.Global, "the zone"),
		Addr:         r.String("ADDR", "127.0.0.1:8400", "HTTP: route tables"),
		InternalAddr: r.String("INTERNAL_ADDR", "", "/livez, /readyz, /metrics; empty = off"),
		DSN:          r.Secret("PG_DSN", "the global zone's database"),
		PKIDir:       r.Required("PKI_DIR", "folder with control.key, which signs tables, and token.CELL.pub"),
		Init:         r.List("INIT", "", "cells of the first table, NAME:REGION:WEIGHT,... ordinals from 1 in this order; counts while there is no table"),
		OperatorKey:  r.OptionalSecret("OPERATOR_KEY", "bearer key for publishing; empty = nobody may"),
		LinkAddr:     r.String("LINK_ADDR", "127.0.0.1:8105", "the own agent's CONNECT listener, to the cells' agents"),
		Drain:        r.Duration("DRAIN", 5*time.Second, "time for running requests at the end"),
	}
	return c, r.Vars(), r.Err()
}

// Vars lists the variables for `cellmart help control`.
func Vars() []env.Var {
	_, vars, _ := loadConfig(func(string) string { return "" })
	return vars
}

// Run is control: it serves until ctx ends.
func Run(ctx context.Context, p cellkit.Process) error {
	cfg, _, err := loadConfig(p.Getenv)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	key, err := link.LoadSigningKey(filepath.Join(cfg.PKIDir, "control.key"))
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	first, err := firstCells(cfg.Init, cfg.PKIDir)
	if err != nil {
		return cellkit.Usage{Err: fmt.Errorf("CONTROL_INIT: %w", err)}
	}
	pool, err := pg.OpenGlobal(ctx, cfg.DSN.Reveal(), p.Log)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	defer pool.Close()

	s := newService(&store{pool: pool}, key, p.Log)
	metrics := obs.New(cfg.Cell, "control")
	metrics.GaugeFunc("cellmart_control_route_version", "Newest route table that is handed out.", func() float64 { return float64(s.holder.Version()) })
	e := web.New(web.Options{
		Service: "control", Cell: cfg.Cell, Log: p.Log, Metrics: metrics, MaxBody: maxBody,
		Timeout: controlapi.MaxWait + 5*time.Second, RouteVersion: s.holder.Version,
	})
	x := newExchanger(s, agents(cfg), p.Log)
	metrics.GaugeFunc("cellmart_control_exchange_parts_open", "Parts of exchanges of standbys that have not ended.", func() float64 {
		if n := x.open.Load(); n >= 0 {
			return float64(n)
		}
		return math.NaN()
	})
	group, ctx := errgroup.WithContext(ctx)
	(&server{service: s, exchange: x, operator: cfg.OperatorKey.Reveal(), stop: ctx}).routes(e)
	group.Go(func() error { return web.Serve(ctx, cfg.Addr, e, cfg.Drain) })
	group.Go(func() error { return obs.ServeInternal(ctx, cfg.InternalAddr, metrics, s.ready) })
	group.Go(func() error { return s.watch(ctx, first) })
	group.Go(func() error { return x.run(ctx) })
	return group.Wait()
}

// agents are the ways to the cells' agents, over the link.
func agents(cfg Config) func(cell string) *agentapi.Client {
	dialer := link.Dialer{Addr: cfg.LinkAddr}
	var mu sync.Mutex
	ways := map[string]*agentapi.Client{}
	return func(cell string) *agentapi.Client {
		mu.Lock()
		defer mu.Unlock()
		if ways[cell] == nil {
			way := &http.Transport{DialContext: dialer.DialContext(cell, "agent"), MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute}
			ways[cell] = &agentapi.Client{BaseURL: "http://" + cell, HTTP: &http.Client{Transport: way}, OperatorKey: cfg.OperatorKey.Reveal()}
		}
		return ways[cell]
	}
}

func newService(st *store, key ed25519.PrivateKey, log *slog.Logger) *service {
	if st.step == nil {
		st.step = func(string) error { return nil }
	}
	return &service{store: st, key: key, log: log, acks: newAcks()}
}

// firstCells reads NAME:REGION:WEIGHT of each cell and its token key; nil when
// there are none.
func firstCells(specs []string, dir string) (*controlapi.InitRequest, error) {
	if len(specs) == 0 {
		return nil, nil
	}
	var req controlapi.InitRequest
	for i, text := range specs {
		parts := strings.Split(text, ":")
		if len(parts) != 3 {
			return nil, fmt.Errorf("%q is not NAME:REGION:WEIGHT", text)
		}
		weight, err := strconv.Atoi(parts[2])
		if err != nil {
			return nil, fmt.Errorf("%q: the weight is no number", text)
		}
		if !routing.ValidName(parts[0]) { // before it becomes part of a path
			return nil, fmt.Errorf("%q can't be a cell's name", parts[0])
		}
		pub, err := link.LoadPublicKey(filepath.Join(dir, "token."+parts[0]+".pub"))
		if err != nil {
			return nil, err
		}
		req.Cells = append(req.Cells, controlapi.Cell{
			Name: parts[0], Ordinal: i + 1, Region: parts[1], Weight: weight,
			Keys: []controlapi.Key{{ID: routing.KeyID(pub), Key: pub}},
		})
	}
	if _, err := firstTable(req); err != nil {
		return nil, err
	}
	return &req, nil
}
