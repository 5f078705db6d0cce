package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/catalog/catalogapi"
	"example.com/cellmart/services/search/searchapi"
)

const (
	eachWrites = 150                  // of products, and of orders
	look       = 2 * time.Millisecond // pause between two looks, of both sides
)

// commitToSearchable measures from the answer of a write to the first search that
// finds it: products whose title is changed, and orders, at the gateways of a demo.
//
// The baseline is what Postgres itself has for "committed there, visible here": a
// row of c1's server, by logical replication, in c2's, looked for with SQL. It has
// no index, no cell border and no person's request in it.
func commitToSearchable(ctx context.Context, log io.Writer) ([]row, error) {
	return withDemo(ctx, log, func(d demo) ([]row, error) {
		client := &http.Client{Timeout: 15 * time.Second}
		defer client.CloseIdleConnections()
		w, err := openShop(ctx, client, d)
		if err != nil {
			return nil, fmt.Errorf("open the shop: %w", err)
		}
		r, err := openReplica(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("replicate: %w", err)
		}
		defer r.close(context.WithoutCancel(ctx))
		var products, orders, base []time.Duration
		for n := range eachWrites + 10 { // the first ones warm up
			for _, m := range []struct {
				write func(context.Context, int) (seen func(context.Context) error, err error)
				to    *[]time.Duration
			}{{w.changeTitle, &products}, {r.write, &base}, {w.order, &orders}, {r.write, &base}} {
				took, err := untilSeen(ctx, n, m.write)
				if err != nil {
					return nil, err
				}
				if n >= 10 {
					*m.to = append(*m.to, took)
				}
			}
		}
		fmt.Fprintf(log, "bench: %d products, %d orders, %d replicated rows\n", len(products), len(orders), len(base))
		return searchableRows(products, orders, base), nil
	})
}

// untilSeen does a write, and looks until it's seen, first at once.
func untilSeen(ctx context.Context, n int, write func(context.Context, int) (func(context.Context) error, error)) (time.Duration, error) {
	seen, err := write(ctx, n)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	for {
		err := seen(ctx)
		took := time.Since(start)
		if err == nil {
			return took, nil
		}
		if !errors.Is(err, errNotFound) || took > 20*time.Second {
			return 0, err
		}
		if err := pause(ctx, look); err != nil {
			return 0, err
		}
	}
}

// percentile is in milliseconds, 0 of none.
func percentile(all []time.Duration, p float64) float64 {
	if len(all) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(all))
	return float64(s[min(len(s)-1, int(p*float64(len(s))))]) / float64(time.Millisecond)
}

func searchableRows(products, orders, base []time.Duration) []row {
	ms := percentile
	ours := slices.Concat(products, orders)
	note := fmt.Sprintf("from the answer of a write to the first answer that finds it, a look each %s after the last one: %d products (catalog to search, p50 %.1f ms, "+
		"p99 %.1f ms) and %d orders (buyer's cell to search, p50 %.1f ms, p99 %.1f ms), by HTTP through a gateway; baseline: a row of c1's Postgres seen in c2's by "+
		"logical replication, looked for with SQL, %d times in turn", look, len(products), ms(products, 0.5), ms(products, 0.99),
		len(orders), ms(orders, 0.5), ms(orders, 0.99), len(base))
	return []row{
		compare("commit-to-searchable/p50", "ms", ms(ours, 0.5), ms(base, 0.5), shown, nil, note),
		compare("commit-to-searchable/p99", "ms", ms(ours, 0.99), ms(base, 0.99), shown, nil, "of the same writes"),
	}
}

// shop has a seller in c2 with one product, and a buyer in c1.
type shop struct {
	seller, buyer *person
	product, sku  id.ID
}

func openShop(ctx context.Context, client *http.Client, d demo) (*shop, error) {
	var w shop
	var err error
	if w.seller, err = register(ctx, client, d.state.Cells[1].Gateway, "+8613900000001"); err != nil {
		return nil, err
	}
	if w.buyer, err = register(ctx, client, d.state.Cells[0].Gateway, "+8613800000001"); err != nil {
		return nil, err
	}
	if err := w.buyer.deposit(ctx); err != nil {
		return nil, err
	}
	if w.product, w.sku, err = w.seller.sell(ctx, "Kiln"); err != nil {
		return nil, err
	}
	return &w, eventually(ctx, func() error { // the first order may come before the product's copy
		_, err := w.buyer.buy(ctx, w.sku)
		return err
	})
}

// changeTitle gives the product a title that nothing had before.
func (w *shop) changeTitle(ctx context.Context, n int) (func(context.Context) error, error) {
	word := fmt.Sprintf("celadon%dx", n)
	title := "Bowl " + word
	err := w.seller.send(ctx, "PATCH", "/products/"+w.product.String(), catalogapi.Change{Title: &title}, nil)
	return func(ctx context.Context) error {
		var found searchapi.Products
		if err := w.buyer.send(ctx, "GET", "/search?q="+word, nil, &found); err != nil {
			return err
		}
		if len(found.Items) != 1 || !strings.Contains(found.Items[0].Title, word) {
			return errNotFound
		}
		return nil
	}, err
}

// order places one; its seller looks for its number.
func (w *shop) order(ctx context.Context, _ int) (func(context.Context) error, error) {
	number, err := w.buyer.buy(ctx, w.sku)
	return func(ctx context.Context) error { return w.seller.finds(ctx, number) }, err
}

// replica is a table of c1's Postgres that c2's follows.
type replica struct{ from, to *pgx.Conn }

func openReplica(ctx context.Context, d demo) (_ *replica, err error) {
	r := &replica{}
	defer func() {
		if err != nil {
			r.close(context.WithoutCancel(ctx))
		}
	}()
	const table = "CREATE TABLE bench_row (id int PRIMARY KEY, title text)"
	for i, c := range []**pgx.Conn{&r.from, &r.to} {
		config, err := pgx.ParseConfig(d.state.Cells[i].PG)
		if err != nil {
			return nil, err
		}
		config.Database = "postgres"
		if *c, err = pgx.ConnectConfig(ctx, config); err != nil {
			return nil, err
		}
		if _, err := (*c).Exec(ctx, table); err != nil {
			return nil, err
		}
	}
	from := r.from.Config()
	for _, do := range []struct {
		at  *pgx.Conn
		sql string
	}{
		{r.from, "CREATE PUBLICATION bench FOR TABLE bench_row"},
		{r.from, "INSERT INTO bench_row VALUES (1, '')"},
		{r.to, fmt.Sprintf("CREATE SUBSCRIPTION bench CONNECTION 'host=%s port=%d user=%s password=%s dbname=postgres' PUBLICATION bench",
			from.Host, from.Port, from.User, from.Password)},
	} {
		if _, err := do.at.Exec(ctx, do.sql); err != nil {
			return nil, err
		}
	}
	return r, eventually(ctx, func() error {
		var copied int
		err := r.to.QueryRow(ctx, "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate = 'r'").Scan(&copied)
		if err == nil && copied == 0 {
			err = errNotFound
		}
		return err
	})
}

func (r *replica) write(ctx context.Context, n int) (func(context.Context) error, error) {
	var title string
	err := r.from.QueryRow(ctx, "UPDATE bench_row SET title = $1 || gen_random_uuid() WHERE id = 1 RETURNING title", fmt.Sprint(n)).Scan(&title)
	return func(ctx context.Context) error {
		var n int
		err := r.to.QueryRow(ctx, "SELECT count(*) FROM bench_row WHERE title = $1", title).Scan(&n)
		if err == nil && n == 0 {
			err = errNotFound
		}
		return err
	}, err
}

func (r *replica) close(ctx context.Context) {
	for _, c := range []*pgx.Conn{r.to, r.from} {
		if c != nil {
			_ = c.Close(ctx) // the demo is about to end
		}
	}
}
