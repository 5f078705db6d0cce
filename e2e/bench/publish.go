package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"example.com/cellmart/deploy/local"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/services/control/controlapi"
)

// The size of route-publish: the goal is on the p99 of 30, the best of five.
const (
	publishCells  = 4
	publishes     = 30
	publishRounds = 5
	publishGoal   = 100 * time.Millisecond
)

// routePublish publishes tables in a demo of four cells, each until every process
// of every zone has acknowledged it to control.
func routePublish(ctx context.Context, log io.Writer) ([]row, error) {
	return withCells(ctx, log, publishCells, func(d demo) ([]row, error) {
		key, err := link.LoadPublicKey(filepath.Join(d.root, ".demo", "pki", "control.pub"))
		if err != nil {
			return nil, err
		}
		c := &controlapi.Client{BaseURL: d.state.Control, Key: key, OperatorKey: d.state.OperatorKey}
		all, err := settled(ctx, c)
		if err != nil {
			return nil, err
		}
		bare, err := openBare(ctx, d.state)
		if err != nil {
			return nil, err
		}
		defer bare.close()
		var ours, base, spent []float64
		for n := range publishRounds {
			var took, without []time.Duration
			before, err := d.state.CPU()
			if err != nil {
				return nil, err
			}
			for range publishes {
				t, err := publishOnce(ctx, c)
				if err != nil {
					return nil, err
				}
				b, err := bare.once(ctx)
				if err != nil {
					return nil, err
				}
				took, without = append(took, t), append(without, b)
			}
			after, err := d.state.CPU()
			if err != nil {
				return nil, err
			}
			ours, base = append(ours, p99(took)), append(base, p99(without))
			spent = append(spent, float64((after-before).Milliseconds())/publishes)
			fmt.Fprintf(log, "bench: route-publish: round %d: p99 %.1f ms, baseline %.1f ms, %.0f ms of CPU for each publish\n", n+1, ours[n], base[n], spent[n])
		}
		best := slices.Min(ours)
		r := compare("route-publish", "ms", best, slices.Min(base), fmt.Sprintf("< %d ms", publishGoal.Milliseconds()), nil,
			fmt.Sprintf("p99 of %d publishes, best of %d, from the request until all %d processes of %d cells and the global zone have acknowledged; %.0f ms of CPU for each, with databases, brokers, the baseline and what a demo does anyway; baseline: a row of the same size committed at control's Postgres and one NATS round trip",
				publishes, publishRounds, all, publishCells, slices.Min(spent)))
		ok := best < float64(publishGoal.Milliseconds())
		r.OK = &ok
		return []row{r}, nil
	})
}

// settled waits until everybody holds the first table, and counts them.
func settled(ctx context.Context, c *controlapi.Client) (processes int, err error) {
	a, err := c.Acks(ctx, 0, controlapi.MaxWait)
	if err != nil {
		return 0, err
	}
	if !a.Complete {
		return 0, fmt.Errorf("not everybody holds table %d: %+v", a.Version, a.Zones)
	}
	for _, z := range a.Zones {
		processes += len(z.Processes)
	}
	return processes, nil
}

// publishOnce publishes the newest table anew, with nothing changed but its version.
func publishOnce(ctx context.Context, c *controlapi.Client) (time.Duration, error) {
	now, err := c.Acks(ctx, 0, 0)
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	p, err := c.Publish(ctx, controlapi.PublishRequest{ExpectVersion: now.Version, Reason: "bench", Changes: &controlapi.Changes{}})
	if err != nil {
		return 0, err
	}
	a, err := c.Acks(ctx, p.Version, controlapi.MaxWait)
	took := time.Since(begun)
	if err == nil && !a.Complete {
		err = fmt.Errorf("not everybody holds table %d", p.Version)
	}
	return took, err
}

// bare is what no publish can do without: the table on a disk, and a message.
type bare struct {
	db  *pgx.Conn
	nc  *nats.Conn
	row []byte
}

func openBare(ctx context.Context, s *local.State) (*bare, error) {
	db, err := pgx.Connect(ctx, s.Global.PG)
	if err != nil {
		return nil, err
	}
	b := &bare{db: db}
	if _, err := db.Exec(ctx, `CREATE TABLE bench_tables (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, signed bytea NOT NULL)`); err != nil {
		return nil, errors.Join(err, db.Close(ctx))
	}
	if err := db.QueryRow(ctx, `SELECT signed FROM control.route_versions ORDER BY version DESC LIMIT 1`).Scan(&b.row); err != nil {
		return nil, errors.Join(err, db.Close(ctx))
	}
	if b.nc, err = nats.Connect(s.Cells[0].NATS); err != nil {
		return nil, errors.Join(err, db.Close(ctx))
	}
	_, err = b.nc.Subscribe("bench.table", func(m *nats.Msg) { _ = m.Respond(nil) }) // no answer: the request fails
	if err = errors.Join(err, b.nc.Flush()); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bare) close() {
	b.nc.Close()
	_ = b.db.Close(context.Background()) // the demo is about to end
}

func (b *bare) once(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	if _, err := b.db.Exec(ctx, `INSERT INTO bench_tables (signed) VALUES ($1)`, b.row); err != nil {
		return 0, err
	}
	_, err := b.nc.RequestWithContext(ctx, "bench.table", b.row)
	return time.Since(begun), err
}

// p99 in milliseconds.
func p99(all []time.Duration) float64 {
	s := slices.Sorted(slices.Values(all))
	return float64(s[(len(s)*99+99)/100-1].Microseconds()) / 1000
}
