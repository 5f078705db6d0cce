package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// writes counts, by table of unit data, the rows and how often they were written:
// a row's rev is 1 when it is made and one more with each change. Standby copies
// are their owner's writes.
type writes map[string][2]float64

func countWrites(ctx context.Context, dbs []*pgx.Conn) (writes, error) {
	out := writes{}
	for _, db := range dbs {
		rows, err := db.Query(ctx, "SELECT name FROM cell.unit_tables ORDER BY name")
		if err != nil {
			return nil, err
		}
		tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, err
		}
		for _, t := range tables {
			var n, revs float64
			if err := db.QueryRow(ctx, "SELECT count(*)::float8, coalesce(sum(u.rev), 0)::float8 FROM "+t+" u JOIN cell.slots s ON s.slot = u.slot WHERE s.role = 'owner'").Scan(&n, &revs); err != nil {
				return nil, err
			}
			out[t] = [2]float64{out[t][0] + n, out[t][1] + revs}
		}
	}
	return out, nil
}

// during counts what f writes, per order.
func during(ctx context.Context, dbs []*pgx.Conn, orders float64, f func() error) (writes, error) {
	before, err := countWrites(ctx, dbs)
	if err != nil {
		return nil, err
	}
	if err := f(); err != nil {
		return nil, err
	}
	after, err := countWrites(ctx, dbs)
	if err != nil {
		return nil, err
	}
	for t, v := range after {
		after[t] = [2]float64{(v[0] - before[t][0]) / orders, (v[1] - before[t][1]) / orders}
	}
	return after, nil
}

// differ says where the baseline doesn't write what the code writes; "" when it
// does. A few more writes are messages that came twice.
func differ(ours, base writes) string {
	var out []string
	for _, t := range sorted(ours) {
		for k, what := range []string{"rows", "writes"} {
			if a, b := ours[t][k], base[t][k]; math.Abs(a-b) > 0.05 {
				out = append(out, fmt.Sprintf("%s has %.2f %s per order, pgbench makes %.2f", t, a, what, b))
			}
		}
	}
	if out == nil {
		return ""
	}
	return "order.sql is out of date: " + strings.Join(out, "; ")
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
