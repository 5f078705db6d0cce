package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"example.com/cellmart/deploy/local"
	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/id"
)

// The size of order-placement. order.sql counts on four buyers and four sellers.
const (
	buyers     = 4
	rounds     = 5
	orders     = 120 // of a round, for each figure
	baseOrders = 480 // of pgbench: its connections are new each time, and that must not count
)

// orderPlacement starts a demo, has orders placed through its gateway and by
// pgbench in turn, and ends it.
func orderPlacement(ctx context.Context, log io.Writer) (_ []row, err error) {
	root, err := os.MkdirTemp("", "cellmart-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(root)                      //nolint:errcheck // what is left is in the system's folder for that
	if err := os.Chmod(root, 0o755); err != nil { // Postgres runs as another user
		return nil, err
	}
	binary := filepath.Join(root, "bin", "cellmart")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "example.com/cellmart/cmd/cellmart")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build: %w: %s", err, out)
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if down := local.Down(end, root); down != nil && !errors.Is(down, local.ErrNoDemo) {
			err = errors.Join(err, down)
		}
	}()
	state, err := up(ctx, root, log)
	if err != nil {
		return nil, err
	}
	m := &market{state: state, http: &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: buyers}}}
	defer m.http.CloseIdleConnections()
	if err := m.open(ctx); err != nil {
		return nil, fmt.Errorf("open the market: %w", err)
	}
	defer m.close()
	b, err := openBaseline(ctx, state, binary, root)
	if err != nil {
		return nil, err
	}
	defer b.super.Close(context.WithoutCancel(ctx))
	return m.measure(ctx, b, log)
}

// up takes CELLMART_PORT_BASE, or looks for a free range of ports a few times.
func up(ctx context.Context, root string, log io.Writer) (*local.State, error) {
	fixed, err := 0, error(nil)
	if v := os.Getenv("CELLMART_PORT_BASE"); v != "" {
		if fixed, err = strconv.Atoi(v); err != nil {
			return nil, cellkit.Usage{Err: fmt.Errorf("CELLMART_PORT_BASE is %q, not a port", v)}
		}
	}
	for try := 0; ; try++ {
		base := fixed
		if fixed == 0 {
			base = 21000 + 500*rand.IntN(20)
		}
		s, err := local.Up(ctx, local.Options{Root: root, Cells: 2, PortBase: base, Log: func(f string, a ...any) {
			fmt.Fprintf(log, "bench: demo: "+f+"\n", a...)
		}})
		var busy cellkit.Usage
		if errors.As(err, &busy) && fixed == 0 && try < 5 && strings.Contains(err.Error(), "is taken") {
			continue
		}
		return s, err
	}
}

// market is the demo with people in it: buyers in c1, sellers in c1 and c2.
type market struct {
	idle   map[int]spent // CPU-seconds per second of so many cells at rest
	state  *local.State
	http   *http.Client
	buyers []*person
	skus   map[string][]id.ID // by the sellers' cell
	dbs    []*pgx.Conn        // of the cells, as superuser, for counts
}

func (m *market) open(ctx context.Context) error {
	m.skus = map[string][]id.ID{}
	for i := range buyers {
		p, err := register(ctx, m.http, m.state.Cells[0].Gateway, fmt.Sprintf("+861380000%04d", i))
		if err != nil {
			return err
		}
		if err := p.deposit(ctx); err != nil {
			return err
		}
		m.buyers = append(m.buyers, p)
		for k, c := range m.state.Cells {
			seller, err := register(ctx, m.http, c.Gateway, fmt.Sprintf("+861390000%04d", 10*i+k))
			if err != nil {
				return err
			}
			sku, err := seller.sell(ctx, fmt.Sprintf("Shop %d of %s", i, c.Name))
			if err != nil {
				return err
			}
			m.skus[c.Name] = append(m.skus[c.Name], sku)
		}
	}
	for _, c := range m.state.Cells {
		db, err := pgx.Connect(ctx, c.PG)
		if err != nil {
			return err
		}
		m.dbs = append(m.dbs, db)
	}
	return nil
}

func (m *market) close() {
	for _, db := range m.dbs {
		_ = db.Close(context.Background()) // the demo is about to end
	}
}

// place has n orders placed, each buyer one after the other, from sellers of a
// cell, and returns when all are paid and no message is left anywhere.
func (m *market) place(ctx context.Context, cell string, n int) error {
	group, inner := errgroup.WithContext(ctx)
	for i, b := range m.buyers {
		group.Go(func() error {
			for k := range n / len(m.buyers) {
				list := m.skus[cell]
				sku := list[(i+k)%len(list)]
				if k == 0 { // the first may come before the product's copy
					if err := eventually(inner, func() error { return b.buy(inner, sku) }); err != nil {
						return err
					}
				} else if err := b.buy(inner, sku); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return eventually(ctx, func() error { return m.rest(ctx) })
}

func (m *market) rest(ctx context.Context) error {
	for i, db := range m.dbs {
		var waiting, unpaid int
		err := db.QueryRow(ctx, `SELECT (SELECT count(*) FROM cell.relay), (SELECT count(*) FROM orders.orders WHERE state <> 'PAID')`).Scan(&waiting, &unpaid)
		if err != nil {
			return err
		}
		if waiting > 0 || unpaid > 0 {
			return fmt.Errorf("%s: %d messages wait, %d orders are not paid", m.state.Cells[i].Name, waiting, unpaid)
		}
	}
	return nil
}

// watchIdle measures what the cells use with nothing to do (polls, probes, leases).
// That goes on in a round, and longer in a slow one, so it is taken off there.
func (m *market) watchIdle(ctx context.Context) error {
	const long = 10 * time.Second
	m.idle = map[int]spent{}
	names := []string{"c1", "c2"}
	var before [2]spent
	var err error
	for i := range names {
		if before[i], err = cellCPU(m.state, "cellmart", names[:i+1]...); err != nil {
			return err
		}
	}
	if err := pause(ctx, long); err != nil {
		return err
	}
	for i := range names {
		after, err := cellCPU(m.state, "cellmart", names[:i+1]...)
		if err != nil {
			return err
		}
		m.idle[i+1] = spent{}
		for part, v := range after.since(before[i]) {
			m.idle[i+1][part] = v / long.Seconds()
		}
	}
	return nil
}

// figures collects CPU-milliseconds per order, by round.
type figures struct {
	idle           float64 // CPU-seconds per second of c1
	search         string  // whether it runs
	near, far      []spent // same cell; buyer in c1, seller in c2
	client, server []float64
}

func (m *market) measure(ctx context.Context, b *baseline, log io.Writer) ([]row, error) {
	// Warm up: connections, prepared statements, IDs, caches.
	if err := errors.Join(m.place(ctx, "c1", 10*buyers), m.place(ctx, "c2", 10*buyers)); err != nil {
		return nil, err
	}
	if _, _, err := b.run(ctx, 10*buyers); err != nil {
		return nil, err
	}
	if err := m.watchIdle(ctx); err != nil {
		return nil, err
	}
	f := figures{idle: m.idle[1].sum(), search: "no changes are captured, no search runs"}
	missing := "there is no capture of changes and no search yet, so nothing to switch on"
	for _, p := range m.state.Processes {
		if strings.HasSuffix(p.Name, "/search") {
			f.search = "changes are captured and search runs"
			missing = "the lines above are with it; it can't be switched off here yet"
		}
	}
	var reason string
	for i := range rounds {
		start := time.Now()
		baseWrites, err := during(ctx, []*pgx.Conn{b.super}, baseOrders, func() error {
			client, server, err := b.run(ctx, baseOrders)
			f.client, f.server = append(f.client, client*1000/baseOrders), append(f.server, server*1000/baseOrders)
			return err
		})
		if err != nil {
			return nil, err
		}
		writes, err := during(ctx, m.dbs, orders, func() error { return m.round(ctx, "c1", &f.near, "c1") })
		if err != nil {
			return nil, err
		}
		if err := m.round(ctx, "c2", &f.far, "c1", "c2"); err != nil {
			return nil, err
		}
		if reason = differ(writes, baseWrites); reason != "" {
			break
		}
		fmt.Fprintf(log, "bench: round %d of %d in %s: pgbench %.2f, cell %.2f, cells %.2f CPU-ms/order\n", i+1, rounds,
			time.Since(start).Round(100*time.Millisecond), f.client[i]+f.server[i], f.near[i].sum(wide...), f.far[i].sum(wide...))
	}
	return append(f.rows(reason), row{Name: "order-placement/search", Unit: "CPU-ms/order", Goal: shown, Reason: missing}), nil
}

func (m *market) round(ctx context.Context, sellers string, to *[]spent, cells ...string) error {
	start := time.Now()
	before, err := cellCPU(m.state, "cellmart", cells...)
	if err != nil {
		return err
	}
	if err := m.place(ctx, sellers, orders); err != nil {
		return err
	}
	after, err := cellCPU(m.state, "cellmart", cells...)
	if err != nil {
		return err
	}
	used, took := after.since(before), time.Since(start).Seconds()
	for part, v := range used {
		used[part] = max(0, v-m.idle[len(cells)][part]*took) * 1000 / orders
	}
	*to = append(*to, used)
	return nil
}

// The parts of a figure, as patterns of spent.
var (
	narrow = []string{"gateway*", "order*", "postgres cellmart_app", "postgres ended"}
	wide   = []string{"*"}
)

func (f figures) rows(reason string) []row {
	base := make([]float64, len(f.client))
	for i := range base {
		base[i] = f.client[i] + f.server[i]
	}
	what := fmt.Sprintf("; pgbench %.2f + its backends %.2f, the same statements on the same server (order.sql); median of %d rounds of %d orders "+
		"(pgbench: %d), %d buyers at once; what a cell uses at rest (here %.0f CPU-ms/s) is taken off; %s",
		median(f.client), median(f.server), len(base), orders, baseOrders, buyers, f.idle*1000, f.search)
	line := func(name, text string, all []spent, patterns []string) row {
		var ours []float64
		for _, s := range all {
			ours = append(ours, s.sum(patterns...))
		}
		lo, hi := math.Inf(1), math.Inf(-1)
		for i := range ours {
			lo, hi = min(lo, ours[i]/base[i]), max(hi, ours[i]/base[i])
		}
		r := compare(name, "CPU-ms/order", median(ours), median(base), shown, nil,
			fmt.Sprintf("%s: %s; ratio %.2f to %.2f%s", text, parts(all, patterns), lo, hi, what))
		if reason != "" { // nothing to compare
			r.Baseline, r.Ratio, r.OK, r.Reason = nil, nil, nil, reason
		}
		return r
	}
	return []row{
		line("order-placement", "buyer and seller in one cell; gateway, order service and the services' Postgres backends", f.near, narrow),
		line("order-placement/cell", "the same orders; every process of the cell, all backends", f.near, wide),
		line("order-placement/cross-cell", "buyer in c1, seller in c2; gateway, order service and the services' backends of both", f.far, narrow),
		line("order-placement/cross-cell/cells", "the same orders; every process of both cells, all backends", f.far, wide),
	}
}

// parts lists the medians of what is in a figure.
func parts(all []spent, patterns []string) string {
	names := map[string]bool{}
	for _, s := range all {
		for part := range s {
			if (spent{part: 1}).sum(patterns...) > 0 {
				names[part] = true
			}
		}
	}
	var out []string
	for _, part := range sorted(names) {
		var v []float64
		for _, s := range all {
			v = append(v, s[part])
		}
		out = append(out, fmt.Sprintf("%s %.2f", part, median(v)))
	}
	return strings.Join(out, ", ")
}
