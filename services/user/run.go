package user

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/clock"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/idbank"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/password"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/idgen/idgenapi"
	"example.com/cellmart/services/user/userapi"
)

// Config is the service's settings.
type Config struct {
	Cell, Addr, InternalAddr, LinkAddr string
	DSN, ClaimKey                      env.Secret
	TokenKey                           string
	HashesAtOnce, HashQueue, Batch     int
	Sweep, Drain                       time.Duration
	Limits                             map[string]transfer.Limits
	Route                              route.Options
}

func loadConfig(getenv func(string) string) (Config, []env.Var, error) {
	r := env.NewReader("USER", getenv)
	c := Config{
		Cell:         r.Required("CELL", "the own cell (c1)"),
		Addr:         r.String("ADDR", "127.0.0.1:8401", "HTTP, for the own cell only"),
		InternalAddr: r.String("INTERNAL_ADDR", "", "/livez, /readyz, /metrics; empty = off"),
		LinkAddr:     r.Required("LINK_ADDR", "the own agent's CONNECT listener, the way to every other zone"),
		DSN:          r.Secret("PG_DSN", "the cell's database, as cellmart_app"),
		ClaimKey:     r.Secret("CLAIM_KEY", "key of phone hashes and cursors, 16 characters or more, the same in every cell"),
		TokenKey:     r.Required("TOKEN_KEY", "file with the key that signs sessions (token.CELL.key)"),
		HashesAtOnce: r.Int("HASHES_AT_ONCE", 2, "password hashes at a time, 19 MiB and a core each"),
		HashQueue:    r.Int("HASH_QUEUE", 64, "logins and registrations that may wait for a hash; more are told 429"),
		Batch:        r.Int("BUS_BATCH", bus.DefaultBatch, "transfers' messages that one transaction may handle, when as many wait; 1 = each has its own"),
		Sweep:        r.Duration("SWEEP", time.Second, "how often deadlines and open claims are looked at"),
		Drain:        r.Duration("DRAIN", 5*time.Second, "time for running requests at the end"),
		Route:        route.ReadOptions(r),
	}
	each := r.List("LIMIT_TRANSFER", "CNY=5000000,USD=700000,EUR=700000,JPY=1000000,KWD=2000000", "what one transfer may send, in minor units; a currency without is not limited")
	day := r.List("LIMIT_DAY", "CNY=20000000,USD=2800000,EUR=2800000,JPY=4000000,KWD=8000000", "what a user may send on one day (UTC), in minor units; what comes back is free again")
	var err error
	if c.Limits, err = transfer.ParseLimits(each, day); err != nil {
		r.Fail("LIMIT_TRANSFER", "or LIMIT_DAY: "+err.Error())
	}
	if n := len(c.ClaimKey.Reveal()); n > 0 && n < 16 {
		r.Fail("CLAIM_KEY", "has fewer than 16 characters")
	}
	if c.Cell != "" && !routing.ValidName(c.Cell) {
		r.Fail("CELL", "can't be a cell's name")
	}
	if c.HashesAtOnce < 1 || c.HashQueue < c.HashesAtOnce {
		r.Fail("HASHES_AT_ONCE", "must be 1 or more, and HASH_QUEUE no less")
	}
	if c.Batch < 1 || c.Batch > 1000 {
		r.Fail("BUS_BATCH", "must be from 1 to 1000")
	}
	if c.Sweep <= 0 {
		r.Fail("SWEEP", "must be above zero")
	}
	if c.Route.NATSURL == "" {
		r.Fail("NATS_URL", "is not set: the own cell's NATS")
	}
	return c, r.Vars(), r.Err()
}

// Vars lists the variables for `cellmart help user`.
func Vars() []env.Var {
	_, vars, _ := loadConfig(func(string) string { return "" })
	return vars
}

// Run is the user service: it serves until ctx ends. Whatever it needs may be
// late, or restart: it is waited for, and requests get 503 meanwhile.
func Run(ctx context.Context, p cellkit.Process) error {
	cfg, _, err := loadConfig(p.Getenv)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	key, err := link.LoadSigningKey(cfg.TokenKey)
	if err != nil {
		return cellkit.Usage{Err: fmt.Errorf("USER_TOKEN_KEY: %w", err)}
	}
	pool, err := pg.Open(ctx, cfg.DSN.Reveal(), cfg.Cell, p.Log)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	defer pool.Close()

	metrics := obs.New(cfg.Cell, name)
	dialer := link.Dialer{Addr: cfg.LinkAddr}
	holder := &routing.Holder{}
	cfg.Route.Log, cfg.Route.Metrics = p.Log, metrics
	follower := route.Open(cfg.Route, holder)
	lease := idgenapi.NewClient("http://idgen", &http.Client{
		Transport: &http.Transport{DialContext: dialer.DialContext(routing.Global, "idgen")}, Timeout: 2 * time.Second})
	wall := clock.Follow(ctx, cfg.Route.AgentURL, p.Log)
	lease.Holder, lease.Clock = cfg.Cell+"/"+name, wall.Now
	stock := idbank.NewClient(cfg.Route.AgentURL, cfg.Cell+"/"+name)
	ids := id.NewClient(id.Options{Lease: lease.Lease, Room: lease.Room, Bank: stock.Withdraw, Fallback: stock.Fallback, Clock: wall.Now, Log: p.Log,
		Kinds: []string{idgenapi.User, idgenapi.Transfer, idgenapi.Address, idgenapi.Deposit}})
	consumer := bus.NewConsumer(bus.ConsumerOptions{Service: name, Cell: cfg.Cell, Pool: pool, NATSURL: cfg.Route.NATSURL,
		Dialer: dialer, Table: holder, Log: p.Log, Metrics: metrics, Batch: cfg.Batch})

	s := &service{
		cell: cfg.Cell, store: &store{pool: pool}, table: holder, links: follower.Links(), ids: ids, waiters: &bus.Waiters{},
		hasher: password.New(cfg.HashesAtOnce, cfg.HashQueue, userapi.ErrBusy), key: key, secret: []byte(cfg.ClaimKey.Reveal()),
		limits: cfg.Limits, poke: consumer.Poke, now: wall.Now, log: p.Log,
	}
	s.handlers(consumer)
	e := web.New(web.Options{Service: name, Cell: cfg.Cell, Log: p.Log, Metrics: metrics, RouteVersion: holder.Version,
		Quiet: []string{"/internal/denied"}})
	s.routes(e)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return web.Serve(ctx, cfg.Addr, e, cfg.Drain) })
	group.Go(func() error {
		return obs.ServeInternal(ctx, cfg.InternalAddr, metrics, func() error { return s.ready(ctx) })
	})
	group.Go(func() error { return follower.Run(ctx) })
	group.Go(func() error { return endsWith(ctx, ids.Run(ctx)) })
	group.Go(func() error { return stock.Tell(ctx, ids, metrics) })
	group.Go(func() error { return consumer.Run(ctx) })
	group.Go(func() error { return transfer.RunExpire(ctx, pool, cfg.Sweep, p.Log) })
	group.Go(func() error {
		return transfer.Worker{Pool: pool, Next: ids.Next, Unpark: consumer.Unpark, Log: p.Log}.Run(ctx, cfg.Sweep)
	})
	group.Go(func() error { return s.ask(ctx, cfg.Sweep) })
	return group.Wait()
}

// endsWith takes the end of ctx for no error.
func endsWith(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// ready says whether the database answers and a table is there; what else is
// missing stops only parts.
func (s *service) ready(ctx context.Context) error {
	if s.table.Load() == nil {
		return errors.New("no route table yet")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return s.store.ready(ctx)
}
