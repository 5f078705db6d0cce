package order

import (
	"context"
	"crypto/rand"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/clock"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/idbank"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/catalog/catalogapi"
	"example.com/cellmart/services/idgen/idgenapi"
	"example.com/cellmart/services/order/orderapi"
	"example.com/cellmart/services/user/userapi"
)

// Config of the service.
type Config struct {
	Cell, Addr, InternalAddr, LinkAddr string
	DSN                                env.Secret
	Route                              route.Options
	CatalogURL, UserURL                string
	Numbers                            *id.Numbers
	CursorKey                          []byte
	Wait, Deadline, HoldTTL            time.Duration
	Sweep, Drain                       time.Duration
}

func loadConfig(getenv func(string) string) (Config, *env.Reader) {
	r := env.NewReader("ORDER", getenv)
	c := Config{
		Cell:         r.Required("CELL", "the cell, such as c1"),
		Addr:         r.String("ADDR", "127.0.0.1:8202", "listen address, for the own cell"),
		InternalAddr: r.String("INTERNAL_ADDR", "", "listen address of /livez, /readyz, /metrics; empty = none"),
		DSN:          r.Secret("PG_DSN", "the cell's database, as cellmart_app"),
		Route:        route.ReadOptions(r),
		LinkAddr:     r.Required("LINK_ADDR", "the own agent's way out to other zones"),
		CatalogURL:   r.Required("CATALOG_URL", "the cell's catalog service (http://host:port)"),
		UserURL:      r.Required("USER_URL", "the cell's user service (http://host:port)"),
		Wait:         r.Duration("WAIT", 300*time.Millisecond, "how long a request waits for the order's decision"),
		Deadline:     r.Duration("DEADLINE", 15*time.Minute, "a PENDING order is cancelled after that"),
		HoldTTL:      r.Duration("HOLD_TTL", 15*time.Minute, "how long sellers are asked to hold stock"),
		Sweep:        r.Duration("SWEEP", 2*time.Second, "pause between looks for overdue orders"),
		Drain:        r.Duration("DRAIN", 5*time.Second, "how long requests may finish at the end"),
	}
	key := r.Secret("NUMBER_KEY", "secret behind order numbers, the same in all cells, 16 characters or more").Reveal()
	if key != "" {
		var err error
		if c.Numbers, err = id.NewNumbers([]byte(key)); err != nil {
			r.Fail("NUMBER_KEY", err.Error())
		}
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
	log, metrics, dialer := p.Log, obs.New(c.Cell, orderapi.Service), link.Dialer{Addr: c.LinkAddr}
	pool, err := pg.Open(ctx, c.DSN.Reveal(), c.Cell, log)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	defer pool.Close()

	// the table, and which cells can be reached
	holder := &routing.Holder{}
	c.Route.Log, c.Route.Metrics = log, metrics
	follower := route.Open(c.Route, holder)

	// IDs
	wall := clock.Follow(ctx, c.Route.AgentURL, log)
	lease := idgenapi.NewClient("http://idgen", &http.Client{Transport: &http.Transport{
		DialContext: dialer.DialContext(routing.Global, "idgen"), MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
	}})
	lease.Holder, lease.Clock = c.Cell+"/order", wall.Now
	stock := idbank.NewClient(c.Route.AgentURL, c.Cell+"/order")
	ids := id.NewClient(id.Options{Lease: lease.Lease, Room: lease.Room, Bank: stock.Withdraw, Fallback: stock.Fallback, Clock: wall.Now, Kinds: []string{idgenapi.Order, idgenapi.Hold, idgenapi.Transfer}, Log: log})

	// the neighbours
	users := call.New(call.Options{Service: "user", Cell: c.Cell, TargetCell: c.Cell, BaseURL: c.UserURL, Timeout: time.Second})
	defer users.Close()
	near := catalogapi.NewClient(c.Cell, c.CatalogURL)
	defer near.Close()

	// messages
	consumer := bus.NewConsumer(bus.ConsumerOptions{
		Service: orderapi.Service, Cell: c.Cell, Pool: pool, NATSURL: c.Route.NATSURL, Dialer: dialer, Table: holder, Log: log, Metrics: metrics,
	})
	states := metrics.Counter("cellmart_order_states_total", "Orders that came into a state; PENDING = placed.", "state", "reason")
	s := &Service{
		store: store{pool}, ids: ids, waiters: &bus.Waiters{}, poke: consumer.Poke,
		catalog: nearCatalog{near}, addresses: nearUsers{userapi.NewClient(users)},
		reachable: reachable(c.Cell, holder, follower.Links()),
		wait:      c.Wait, deadline: c.Deadline, holdTTL: c.HoldTTL, number: c.Numbers.Encode, log: log,
		count: func(state State, reason string) { states.WithLabelValues(string(state), reason).Inc() },
	}
	for kind, h := range s.replies() {
		consumer.HandleReply(kind, h)
	}

	e := web.New(web.Options{Service: orderapi.Service, Cell: c.Cell, Log: log, RouteVersion: holder.Version, Metrics: metrics})
	(&server{Service: s, numbers: c.Numbers, cursorKey: c.CursorKey}).mount(e)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return follower.Run(ctx) })
	group.Go(func() error { return ids.Run(ctx) })
	group.Go(func() error { return stock.Tell(ctx, ids, metrics) })
	group.Go(func() error { return consumer.Run(ctx) })
	group.Go(func() error { return s.sweep(ctx, c.Sweep) })
	group.Go(func() error { return web.Serve(ctx, c.Addr, e, c.Drain) })
	group.Go(func() error { return obs.ServeInternal(ctx, c.InternalAddr, metrics, ready(pool.Ping)) })
	return group.Wait()
}

// reachable says no only when it is known: the slot's cell is another one, and
// the link to it is down.
func reachable(cell string, table *routing.Holder, links *route.Links) func(routing.Slot) bool {
	return func(slot routing.Slot) bool {
		a, err := route.Resolve(table.Load(), slot)
		if err != nil || a.Owner == cell {
			return true
		}
		up, known := links.Up(a.Owner)
		return up || !known
	}
}

func ready(ping func(context.Context) error) func() error {
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return ping(ctx)
	}
}
