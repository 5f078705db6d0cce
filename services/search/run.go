package search

import (
	"context"
	"errors"
	"math"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
)

// Config is what the environment says.
type Config struct {
	Zone         string
	Addr         string
	InternalAddr string
	Dir          string
	LinkAddr     string
	NATSURL      string
	NumberKey    env.Secret
	CursorKey    env.Secret
	Drain        time.Duration
	Route        route.Options
}

func loadConfig(getenv func(string) string) (Config, []env.Var, error) {
	r := env.NewReader("SEARCH", getenv)
	c := Config{
		Zone:         r.String("CELL", routing.Global, "the zone"),
		Addr:         r.String("ADDR", "127.0.0.1:8430", "HTTP: search; reached through the border only"),
		InternalAddr: r.String("INTERNAL_ADDR", "", "/livez, /readyz, /metrics; empty = off"),
		Dir:          r.Required("DIR", "folder of the index; deleted, it is built again"),
		LinkAddr:     r.Required("LINK_ADDR", "the own agent's CONNECT listener, to the cells' NATS"),
		NumberKey:    r.Secret("ORDER_NUMBER_KEY", "secret of the order numbers, the same as the order services'"),
		CursorKey:    r.Secret("CURSOR_KEY", "signs the cursors of lists"),
		Drain:        r.Duration("DRAIN", 5*time.Second, "time for running requests at the end"),
		Route:        route.ReadOptions(r),
	}
	c.NATSURL = c.Route.NATSURL
	if c.NATSURL == "" {
		r.Fail("NATS_URL", "is not set: the own zone's NATS")
	}
	return c, r.Vars(), r.Err()
}

// Vars lists the variables for `cellmart help search`.
func Vars() []env.Var {
	_, vars, _ := loadConfig(func(string) string { return "" })
	return vars
}

// Run is search, until ctx ends: it follows all zones, and answers from what it
// has.
func Run(ctx context.Context, p cellkit.Process) error {
	cfg, _, err := loadConfig(p.Getenv)
	if err != nil {
		return cellkit.Usage{Err: err}
	}
	numbers, err := id.NewNumbers([]byte(cfg.NumberKey.Reveal()))
	if err != nil {
		return cellkit.Usage{Err: errors.Join(errors.New("ORDER_NUMBER_KEY"), err)}
	}

	// the index; another process may be at its end and still hold it
	var x *index
	err = pg.RetryDeadline(ctx, func(context.Context) (err error) {
		if x, err = openIndex(cfg.Dir, numbers.Encode, p.Log); err != nil {
			p.Log.Warn("no index yet", "error", err)
		}
		return err
	})
	if err != nil {
		return nil // ctx ended before it could be opened
	}
	defer func() { err = errors.Join(err, x.close()) }()

	// the table, for which cells there are
	var table routing.Holder
	metrics := obs.New(cfg.Zone, "search")
	cfg.Route.Log, cfg.Route.Metrics = p.Log, metrics
	follower := route.Open(cfg.Route, &table)
	s := &sources{
		index: x, table: &table, dialer: link.Dialer{Addr: cfg.LinkAddr}, own: cfg.Zone, natsURL: cfg.NATSURL, log: p.Log,
		zone: map[string]*cdc.Follower{},
	}

	// the ways to ask it
	e := web.New(web.Options{Service: "search", Cell: cfg.Zone, Log: p.Log, Metrics: metrics, Timeout: 3 * time.Second})
	newServer(x, s, []byte(cfg.CursorKey.Reveal())).mount(e)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return follower.Run(ctx) })
	group.Go(func() error { return s.run(ctx) })
	group.Go(func() error { return expose(ctx, metrics, s) })
	group.Go(func() error { return web.Serve(ctx, cfg.Addr, quiet(e), cfg.Drain) })
	group.Go(func() error { return obs.ServeInternal(ctx, cfg.InternalAddr, metrics, nil) })
	err = group.Wait()
	return err
}

// quiet answers health calls without a log line: they come many times a second.
func quiet(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/livez" && r.Method == http.MethodGet {
			_, _ = w.Write([]byte("ok\n"))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// expose shows what is known of each zone; what isn't is NaN, not 0.
func expose(ctx context.Context, m *obs.Metrics, s *sources) error {
	lag := m.Gauge("cellmart_search_lag_seconds", "How long after its commit a change of the zone is found.", "source")
	age := m.Gauge("cellmart_search_age_seconds", "Time since the zone was last heard of.", "source")
	live := m.Gauge("cellmart_search_source_live", "1 while everything of the zone is in the index.", "source")
	rows := m.Gauge("cellmart_search_rows", "Rows of the zone taken since the start.", "source")
	gaps := m.Gauge("cellmart_search_gaps", "Times that something of the zone was missing, since the start.", "source")
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		now := time.Now()
		for zone, st := range s.status() {
			behind, old, ok := lagOf(st, now)
			b, a, up := math.NaN(), math.NaN(), 0.0
			if ok {
				b, a, up = behind.Seconds(), old.Seconds(), 1
			}
			lag.WithLabelValues(zone).Set(b)
			age.WithLabelValues(zone).Set(a)
			live.WithLabelValues(zone).Set(up)
			rows.WithLabelValues(zone).Set(float64(st.Changes))
			gaps.WithLabelValues(zone).Set(float64(st.Gaps))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
