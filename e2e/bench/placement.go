package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"example.com/cellmart/deploy/local"
	"example.com/cellmart/platform/cellkit/id"
)

// The size of order-placement. order.sql counts on four buyers and four sellers.
const (
	buyers     = 4
	rounds     = 5
	orders     = 120 // of a round, for each figure
	baseOrders = 480 // of pgbench: its connections are new each time, and that must not count
)

// orderPlacement has orders placed through a demo's gateway and by pgbench in turn.
func orderPlacement(ctx context.Context, log io.Writer) ([]row, error) {
	return withDemo(ctx, log, func(d demo) ([]row, error) {
		m := &market{state: d.state, http: &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: buyers}}}
		defer m.http.CloseIdleConnections()
		if err := m.open(ctx); err != nil {
			return nil, fmt.Errorf("open the market: %w", err)
		}
		defer m.close()
		b, err := openBaseline(ctx, d.state, d.binary, d.root)
		if err != nil {
			return nil, err
		}
		defer b.super.Close(context.WithoutCancel(ctx))
		return m.measure(ctx, b, log)
	})
}

// market is the demo with people in it: buyers in c1, sellers in c1 and c2.
type market struct {
	idle   map[int]spent // CPU-seconds per second of so many cells at rest
	state  *local.State
	http   *http.Client
	buyers []*person
	skus   map[string][]id.ID // by the sellers' cell
	seller map[id.ID]*person  // of each SKU
	search bool               // changes are captured and search runs: it counts too
	dbs    []*pgx.Conn        // of the cells, as superuser, for counts
}

func (m *market) open(ctx context.Context) error {
	m.skus, m.seller = map[string][]id.ID{}, map[id.ID]*person{}
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
			_, sku, err := seller.sell(ctx, fmt.Sprintf("Shop %d of %s", i, c.Name))
			if err != nil {
				return err
			}
			m.skus[c.Name] = append(m.skus[c.Name], sku)
			m.seller[sku] = seller
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
// cell, and returns when all are paid and no message is left anywhere; with search
// on, also when the last ones are found.
func (m *market) place(ctx context.Context, cell string, n int) error {
	group, inner := errgroup.WithContext(ctx)
	list := m.skus[cell]
	last := make([]string, len(m.buyers))
	sku := func(i, k int) id.ID { return list[(i+k)%len(list)] }
	each := n / len(m.buyers)
	for i, b := range m.buyers {
		group.Go(func() (err error) {
			buy := func(k int) error {
				last[i], err = b.buy(inner, sku(i, k))
				return err
			}
			// the first may come before the product's copy
			if err := eventually(inner, func() error { return buy(0) }); err != nil {
				return err
			}
			for k := 1; k < each; k++ {
				if err := buy(k); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := eventually(ctx, func() error { return m.rest(ctx) }); err != nil || !m.search {
		return err
	}
	for i, number := range last {
		if err := eventually(ctx, func() error { return m.seller[sku(i, each-1)].finds(ctx, number) }); err != nil {
			return err
		}
	}
	return nil
}

// switchSearch has the cells' changes captured and search run, or neither.
func (m *market) switchSearch(ctx context.Context, on bool) error {
	var all []error
	for _, c := range m.state.Cells {
		if on {
			all = append(all, m.state.Restart(ctx, c.Name+"/agent"))
		} else {
			all = append(all, m.state.RestartWith(ctx, c.Name+"/agent", map[string]string{"AGENT_CDC_DSN": "off"}))
		}
	}
	if on {
		all = append(all, m.state.Restart(ctx, "global/search"))
	} else {
		all = append(all, m.state.Stop(ctx, "global/search", false))
	}
	m.search = on
	return errors.Join(all...)
}

// captured waits until all of the WAL so far was told: pgbench's writes are read
// there as well, and must not count as ours.
func (m *market) captured(ctx context.Context) error {
	for _, db := range m.dbs {
		var until string
		if err := db.QueryRow(ctx, "SELECT pg_current_wal_lsn()::text").Scan(&until); err != nil {
			return err
		}
		err := eventually(ctx, func() error {
			var slots, behind int
			err := db.QueryRow(ctx, "SELECT count(*), count(*) FILTER (WHERE confirmed_flush_lsn < $1::pg_lsn) FROM pg_replication_slots", until).Scan(&slots, &behind)
			if err == nil && (slots == 0 || behind > 0) {
				err = fmt.Errorf("%d of %d slots are behind", behind, slots)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// cpu is what a round costs: the cells', and search's where it runs.
func (m *market) cpu(cells ...string) (spent, error) {
	out, err := cellCPU(m.state, "cellmart", cells...)
	if err != nil || !m.search {
		return out, err
	}
	p, err := m.state.Process("global/search")
	if err != nil {
		return nil, err
	}
	st, err := readStat(p.PID)
	out["search"] = st.own
	return out, err
}

func (m *market) rest(ctx context.Context) error {
	for i, db := range m.dbs {
		var waiting, unpaid int
		err := db.QueryRow(ctx, `SELECT (SELECT count(*) FROM cell.relay), (SELECT count(*) FROM orders.orders o JOIN cell.slots s ON s.slot = o.slot WHERE s.role = 'owner' AND o.state <> 'PAID')`).Scan(&waiting, &unpaid)
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
		if before[i], err = m.cpu(names[:i+1]...); err != nil {
			return err
		}
	}
	if err := pause(ctx, long); err != nil {
		return err
	}
	for i := range names {
		after, err := m.cpu(names[:i+1]...)
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
	near, far      []spent // same cell; buyer in c1, seller in c2
	client, server []float64
	// The same cell once more, with changes captured and search on.
	searched                 []spent
	searchClient, searchBase []float64
}

func (m *market) measure(ctx context.Context, b *baseline, log io.Writer) ([]row, error) {
	if err := m.switchSearch(ctx, false); err != nil {
		return nil, err
	}
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
	f := figures{idle: m.idle[1].sum()}
	var reason string
	for i := range rounds {
		start := time.Now()
		baseWrites, err := during(ctx, []*pgx.Conn{b.super}, baseOrders, func() error { return b.measure(ctx, &f.client, &f.server) })
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
	if reason == "" {
		if err := m.measureSearched(ctx, b, &f, log); err != nil {
			return nil, err
		}
	}
	return f.rows(reason), nil
}

// measureSearched measures the same with changes captured and search on.
func (m *market) measureSearched(ctx context.Context, b *baseline, f *figures, log io.Writer) error {
	if err := m.switchSearch(ctx, true); err != nil {
		return err
	}
	if err := m.place(ctx, "c1", 10*buyers); err != nil { // warm up, and catch up
		return err
	}
	if err := errors.Join(m.captured(ctx), m.watchIdle(ctx)); err != nil {
		return err
	}
	for i := range rounds {
		if err := b.measure(ctx, &f.searchClient, &f.searchBase); err != nil {
			return err
		}
		if err := m.captured(ctx); err != nil {
			return err
		}
		if err := m.round(ctx, "c1", &f.searched, "c1"); err != nil {
			return err
		}
		fmt.Fprintf(log, "bench: round %d of %d with search: pgbench %.2f, cell and search %.2f CPU-ms/order\n", i+1, rounds,
			f.searchClient[i]+f.searchBase[i], f.searched[i].sum(wide...))
	}
	return nil
}

func (m *market) round(ctx context.Context, sellers string, to *[]spent, cells ...string) error {
	start := time.Now()
	before, err := m.cpu(cells...)
	if err != nil {
		return err
	}
	if err := m.place(ctx, sellers, orders); err != nil {
		return err
	}
	after, err := m.cpu(cells...)
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
	line := func(name, text string, all []spent, patterns []string, client, server []float64) row {
		what := fmt.Sprintf("; pgbench %.2f + its backends %.2f, the same statements on the same server (order.sql); median of %d rounds of %d orders "+
			"(pgbench: %d), %d buyers at once; what a cell uses at rest (here %.0f CPU-ms/s) is taken off",
			median(client), median(server), len(client), orders, baseOrders, buyers, f.idle*1000)
		var ours, base []float64
		lo, hi := math.Inf(1), math.Inf(-1)
		for i, s := range all {
			ours, base = append(ours, s.sum(patterns...)), append(base, client[i]+server[i])
			lo, hi = min(lo, ours[i]/base[i]), max(hi, ours[i]/base[i])
		}
		r := compare(name, "CPU-ms/order", median(ours), median(base), shown, nil,
			fmt.Sprintf("%s: %s; ratio %.2f to %.2f%s", text, parts(all, patterns), lo, hi, what))
		if reason != "" { // nothing to compare
			r.Baseline, r.Ratio, r.OK, r.Reason = nil, nil, nil, reason
		}
		return r
	}
	const off = "; no changes are captured, no search runs"
	out := []row{
		line("order-placement", "buyer and seller in one cell; gateway, order service and the services' Postgres backends"+off, f.near, narrow, f.client, f.server),
		line("order-placement/cell", "the same orders; every process of the cell, all backends"+off, f.near, wide, f.client, f.server),
		line("order-placement/cross-cell", "buyer in c1, seller in c2; gateway, order service and the services' backends of both"+off, f.far, narrow, f.client, f.server),
		line("order-placement/cross-cell/cells", "the same orders; every process of both cells, all backends"+off, f.far, wide, f.client, f.server),
	}
	if reason != "" {
		return append(out, row{Name: "order-placement/search", Unit: "CPU-ms/order", Goal: shown, Reason: reason})
	}
	return append(out, line("order-placement/search", "as order-placement/cell, with changes captured and search on, until the last order is found; "+
		"every process of the cell, all backends, and search", f.searched, wide, f.searchClient, f.searchBase))
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
