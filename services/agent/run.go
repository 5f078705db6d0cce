package agent

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/clock"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/idbank"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/outputcommit"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/cellkit/standby"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
	"example.com/cellmart/services/idgen/idgenapi"
	"example.com/cellmart/services/search/searchapi"
)

// Config of one agent.
type Config struct {
	Zone                             string
	Addr, PeerAddr, BorderAddr       string
	LinkAddr, InternalAddr, PKIDir   string
	Peers, Targets                   map[string]string
	DSN, NATSURL, RouteDir, Operator string
	CDCDSN, RedisAddr, Process       string
	ApplierDSN                       string
	CDCMaxBytes, CDCMaxWAL           int // 0 = what the relay takes by itself
	OutputCommit                     string
	RouteKey                         ed25519.PublicKey
	Cells                            []string
	Drain                            time.Duration
}

func loadConfig(getenv func(string) string) (Config, *env.Reader) {
	r := env.NewReader("AGENT", getenv)
	c := Config{
		Zone:         r.Required("CELL", "the zone: a cell's name, or global"),
		Addr:         r.String("ADDR", "127.0.0.1:8103", "listen address for the own zone and the operator"),
		PeerAddr:     r.String("PEER_ADDR", "127.0.0.1:8106", "listen address for peers' agents, reached through the border only"),
		BorderAddr:   r.String("BORDER_ADDR", "127.0.0.1:8104", "listen address of the border, for other zones"),
		LinkAddr:     r.String("LINK_ADDR", "127.0.0.1:8105", "listen address of the way out, for the own zone's processes"),
		InternalAddr: r.String("INTERNAL_ADDR", "", "listen address of /livez, /readyz, /metrics; empty = none"),
		PKIDir:       r.Required("PKI_DIR", "folder with ca.pem and agent.<zone>.pem and .key"),
		NATSURL:      r.Required("NATS_URL", "the own zone's NATS"),
		RedisAddr:    r.String("REDIS_ADDR", "", "the cell's Redis, host:port, which gets the newest route table; empty = none"),
		RouteDir:     r.Required("ROUTE_DIR", "folder that gets the snapshots of the route table"),
		Operator:     r.Secret("OPERATOR_KEY", "bearer key of the admin routes").Reveal(),
		Cells:        r.List("CELLS", "", "all cells, for the time before the first table"),
		Drain:        r.Duration("DRAIN", 3*time.Second, "how long requests may finish at the end"),
	}
	c.Process = route.ProcessName(r)
	if c.Zone != Global {
		c.DSN = r.Secret("PG_DSN", "the cell's database, as cellmart_agent (not in the global zone)").Reveal()
		c.ApplierDSN = r.OptionalSecret("APPLIER_DSN", "the cell's database, as cellmart_applier, for the copies of slots that this cell stands by for; empty or off = it keeps none").Reveal()
	}
	c.CDCDSN = r.OptionalSecret("CDC_DSN", "database whose changes are told, as cellmart_agent; default PG_DSN (global zone: the catalog's; empty = none); off = none are told, and search doesn't hear of them").Reveal()
	if c.CDCDSN == "" {
		c.CDCDSN = c.DSN
	}
	c.OutputCommit = readCommit(r)
	c.CDCMaxBytes = r.Int("CDC_MAX_BYTES", 0, "bound of each sink's stream in bytes; 0 = 256 MiB")
	c.CDCMaxWAL = r.Int("CDC_MAX_WAL", 0, "WAL in bytes that may be kept for sinks: alarms at 50 and 80 %, and there a sink that holds it up is detached; 0 = the server's max_slot_wal_keep_size, else 2 GiB")
	var err error
	if c.Peers, err = parsePairs(r.List("PEERS", "", "borders of the other zones: c2=host:port,global=host:port; the own zone's is left out")); err != nil {
		r.Fail("PEERS", err.Error())
	}
	delete(c.Peers, c.Zone) // one list may serve all zones
	if c.Targets, err = parsePairs(r.List("TARGETS", "", "what others may reach here: gateway=host:port,nats=host:port")); err != nil {
		r.Fail("TARGETS", err.Error())
	}
	if c.RouteKey, err = route.ParseKey(r.Required("ROUTE_KEY", "control's public key (Ed25519, base64)")); err != nil {
		r.Fail("ROUTE_KEY", err.Error())
	}
	return c, r
}

// Vars lists the settings.
func Vars() []env.Var {
	_, r := loadConfig(func(string) string { return "" })
	return r.Vars()
}

// Run is one agent, until ctx ends.
func Run(ctx context.Context, p cellkit.Process) error {
	c, r := loadConfig(p.Getenv)
	if err := r.Err(); err != nil {
		return cellkit.Usage{Err: err}
	}
	log, metrics := p.Log, obs.New(c.Zone, "agent")
	news := newBulletin()

	// the border
	border, err := openBorder(ctx, c, p, news)
	if err != nil {
		return err
	}

	// the table, the database, the messages
	holder := &routing.Holder{}
	k := &keeper{
		log: log, key: c.RouteKey, dir: c.RouteDir, holder: holder, publish: news.table, silent: make(chan struct{}, 1),
		cache: route.OpenCache(c.RedisAddr), acks: route.NewAcks(), stats: route.NewStats(metrics),
	}
	defer k.cache.Close()
	control, peers := sources(c)
	k.control, k.peers = control.Route, peers
	if err := news.connect(c.NATSURL, c.Zone+"-agent", log); err != nil {
		return cellkit.Usage{Err: fmt.Errorf("AGENT_NATS_URL: %w", err)}
	}
	defer news.close()
	k.load(ctx)
	holder.Store(routing.Spread(c.Cells))
	if err := news.hear(k.acks, log); err != nil {
		return err
	}
	s := &server{cell: c.Zone, name: c.Process, operator: c.Operator, keeper: k, border: border, control: toControl(control.HTTP.Transport), requests: agentapi.NewBook(time.Now())}
	s.bank = idbank.Open(idbank.Options{Cell: c.Zone, Log: log}) // without a database it only hears how processes stand
	s.clock = clock.NewSource(c.RouteDir, log)
	group, ctx := errgroup.WithContext(ctx)
	if c.DSN != "" {
		pool, err := pg.Open(ctx, c.DSN, c.Zone, log)
		if err != nil {
			return cellkit.Usage{Err: err}
		}
		defer pool.Close()
		k.db = &store{pool}
		s.db = k.db
		s.copies = keepCopies(ctx, group, c, standby.Options{Pool: pool, Log: log, Metrics: metrics})
		s.verify = newVerify(c, s.copies, log)
		defer s.verify.Close()
		s.places = keepClean(ctx, group, c, s.db, log, metrics)
		s.books = keepBooks(ctx, group, c, s.db, log, metrics)
		s.bank = openBank(c, pool, s.clock.Now, log)
		exportCounts(ctx, metrics, k.db)
		s.cover = newCover(c, k)
		exportCover(metrics, s.cover)
		group.Go(func() error { return s.cover.run(ctx) })
		sending := bus.DispatcherOptions{
			Cell: c.Zone, Pool: pool, NATSURL: c.NATSURL, Table: holder, Log: log, Metrics: metrics, Begins: begins,
		}
		if s.gate = openGate(c, control, outputcommit.Options{Pool: pool, Log: log, Metrics: metrics}); s.gate != nil {
			sending.Commit = s.gate
			group.Go(func() error { return s.gate.Run(ctx) })
		}
		dispatcher := bus.NewDispatcher(sending)
		s.sent = func() map[string]agentapi.Ways { return sentWays(dispatcher.Asked()) }
		exportLoop(metrics, s)
		group.Go(func() error {
			if s.gate == nil && outputcommit.Off(ctx, pool) != nil {
				return nil // ctx has ended
			}
			return dispatcher.Run(ctx)
		})
	}
	if s.relay, err = tellChanges(ctx, group, c, holder, log, metrics); err != nil {
		return err
	}
	group.Go(func() error { return border.Run(ctx) })
	group.Go(func() error { return news.links(ctx, watchLinks(metrics, border)) })
	group.Go(func() error { return k.fetch(ctx) })
	group.Go(func() error { return k.keep(ctx) })
	group.Go(func() error { return k.spread(ctx) })
	group.Go(func() error { return s.bank.Run(ctx) })
	group.Go(func() error { return s.tellControl(ctx, control.Report) })

	// the ways to ask it
	o := web.Options{Service: "agent", Cell: c.Zone, Log: log, RouteVersion: holder.Version}
	group.Go(func() error { return web.Serve(ctx, c.Addr, s.local(o), c.Drain) })
	group.Go(func() error { return web.Serve(ctx, c.PeerAddr, s.peer(o), c.Drain) })
	group.Go(func() error { return obs.ServeInternal(ctx, c.InternalAddr, metrics, k.ready) })
	return group.Wait()
}

func openBorder(ctx context.Context, c Config, p cellkit.Process, news *bulletin) (*link.Border, error) {
	tls, err := link.LoadTLS(filepath.Join(c.PKIDir, link.AgentName(c.Zone)))
	if err != nil {
		return nil, cellkit.Usage{Err: fmt.Errorf("AGENT_PKI_DIR: %w", err)}
	}
	allowed, err := allow(c.Targets, c.Peers)
	if err != nil {
		return nil, cellkit.Usage{Err: fmt.Errorf("AGENT_TARGETS %w", err)}
	}
	listen := func(addr string) (net.Listener, error) {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		if err != nil {
			return nil, cellkit.Usage{Err: fmt.Errorf("can't listen: %w", err)}
		}
		return l, nil
	}
	out, err := listen(c.BorderAddr)
	if err != nil {
		return nil, err
	}
	in, err := listen(c.LinkAddr)
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	return link.New(link.Config{
		Zone: c.Zone, Border: out, Local: in, TLS: tls, Peers: c.Peers, Targets: allowed, Log: p.Log, OnChange: news.linksChanged,
	})
}

// openBank is the cell's own stock of IDs, filled from idgen.
func openBank(c Config, pool *pgxpool.Pool, now func() time.Time, log *slog.Logger) *idbank.Bank {
	idgen := idgenapi.NewClient("http://idgen", &http.Client{Transport: &http.Transport{
		DialContext: link.Dialer{Addr: c.LinkAddr}.DialContext(Global, "idgen"), MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
	}})
	idgen.Holder = c.Zone + "/bank"
	budgets := func(ctx context.Context) (map[string]idbank.Budget, error) {
		st, err := idgen.Status(ctx)
		out := map[string]idbank.Budget{}
		for _, k := range st.Kinds {
			out[k.Kind] = idbank.Budget{Used: k.BudgetUsed, YearsLeft: k.YearsLeft}
		}
		return out, err
	}
	return idbank.Open(idbank.Options{
		Cell: c.Zone, Database: idbank.Postgres{Pool: pool}, Witness: idbank.File{Path: filepath.Join(c.RouteDir, "ids.json")},
		Lease: idgen.Lease, Budgets: budgets, Log: log, Clock: now,
	})
}

// sources are the ways to a newer table: control first, else the peers.
func sources(c Config) (*controlapi.Client, map[string]source) {
	dialer := link.Dialer{Addr: c.LinkAddr}
	client := func(zone, target string) *http.Client {
		return &http.Client{Transport: &http.Transport{
			DialContext: dialer.DialContext(zone, target), MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
		}}
	}
	control := &controlapi.Client{BaseURL: "http://control", HTTP: client(Global, "control"), Key: c.RouteKey}
	peers := map[string]source{}
	for zone := range c.Peers {
		peer := &agentapi.Client{BaseURL: "http://" + zone, HTTP: client(zone, "agent"), Key: c.RouteKey}
		peers[zone] = func(ctx context.Context, after int64, _ time.Duration) (*routing.Table, []byte, error) {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			return peer.Route(ctx, after)
		}
	}
	return control, peers
}

// toControl passes requests on over the link.
func toControl(way http.RoundTripper) http.Handler {
	return &httputil.ReverseProxy{
		Transport: way,
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "control"}) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "control: "+err.Error(), http.StatusServiceUnavailable)
		},
	}
}

// tellChanges runs the relay of what the zone's database commits: for search, and
// in a cell for every other cell, which may stand by for it.
func tellChanges(ctx context.Context, group *errgroup.Group, c Config, table *routing.Holder, log *slog.Logger, metrics *obs.Metrics) (*cdc.Relay, error) {
	if c.CDCDSN == "" || c.CDCDSN == "off" {
		return nil, nil
	}
	o := cdc.Options{
		Zone: c.Zone, DSN: c.CDCDSN, NATSURL: c.NATSURL, Log: log, Metrics: metrics,
		MaxBytes: int64(c.CDCMaxBytes), MaxWAL: int64(c.CDCMaxWAL),
	}
	var err error
	if c.Zone == Global {
		o.Sinks = []cdc.Sink{{Name: searchapi.Sink, Tables: searchapi.GlobalTables()}}
		o.Pool, err = pg.OpenGlobal(ctx, c.CDCDSN, log)
	} else {
		o.Sinks = []cdc.Sink{{Name: searchapi.Sink, Tables: searchapi.CellTables()}}
		o.Peers = func() (names []string) {
			if t := table.Load(); t != nil {
				for _, cell := range t.Cells() {
					names = append(names, cell.Name)
				}
			}
			return names
		}
		o.Pool, err = pg.Open(ctx, c.CDCDSN, c.Zone, log)
	}
	if err != nil {
		return nil, cellkit.Usage{Err: fmt.Errorf("AGENT_CDC_DSN: %w", err)}
	}
	relay := cdc.NewRelay(o)
	group.Go(func() error {
		defer o.Pool.Close()
		return relay.Run(ctx)
	})
	return relay, nil
}
