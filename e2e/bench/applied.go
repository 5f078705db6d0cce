package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// The size of commit-to-applied.
const (
	appliedCells   = 4
	appliedRate    = 500 // single-row transactions a second, over all cells
	appliedWindows = 6   // of ours, and as many of the baseline, in turn
	appliedWindow  = 5 * time.Second
	appliedGoal    = 300.0 // ms, of the p99
	appliedLeast   = 0.95  // of the rate: below it the machine couldn't
	rowsEach       = 120   // that a cell's writes go to, in turn, each in a slot of its own
	probeEach      = 12    // of this many writes one is looked for at its standby
)

// commitToApplied writes single rows into four cells at a fixed rate, and measures
// from a commit's answer to the first look that sees the row at the slot's standby.
//
// The baseline is a row of c1's server in c2's by Postgres' own replication, under
// the same writes, in turn with ours.
func commitToApplied(ctx context.Context, log io.Writer) ([]row, error) {
	return withCells(ctx, log, appliedCells, func(d demo) ([]row, error) {
		s, err := openStorm(ctx, d)
		if err != nil {
			return nil, err
		}
		defer s.close()
		r, err := openReplica(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("replicate: %w", err)
		}
		defer r.close(context.WithoutCancel(ctx))
		fmt.Fprintln(log, "bench: commit-to-applied: waiting until every slot has a standby in sync")
		if err := s.inSync(ctx); err != nil {
			return nil, err
		}
		return s.measure(ctx, r, log)
	})
}

// storm writes into all cells.
type storm struct {
	targets []*target // of all cells in turn
	apps    []*pgxpool.Pool
	supers  map[string]*pgxpool.Pool

	probing atomic.Bool
	written atomic.Int64
	mu      sync.Mutex
	took    []time.Duration
	failed  error
}

// target is one row of a cart.
type target struct {
	app     *pgxpool.Pool
	standby *pgxpool.Pool
	slot    routing.Slot
	epoch   routing.Epoch
	user    int64
}

func openStorm(ctx context.Context, d demo) (_ *storm, err error) {
	s := &storm{supers: map[string]*pgxpool.Pool{}}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for _, c := range d.state.Cells {
		pool, err := pgxpool.New(ctx, c.PG)
		if err != nil {
			return nil, err
		}
		s.supers[c.Name] = pool
	}
	each := make([][]*target, 0, appliedCells)
	for _, c := range d.state.Cells {
		p, err := d.state.Process(c.Name + "/order")
		if err != nil {
			return nil, err
		}
		app, err := pg.Open(ctx, p.Env["PG_DSN"], c.Name, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		s.apps = append(s.apps, app)
		all, err := s.prepare(ctx, app, c.Name)
		if err != nil {
			return nil, fmt.Errorf("rows of %s: %w", c.Name, err)
		}
		each = append(each, all)
	}
	for n := range rowsEach {
		for _, all := range each {
			s.targets = append(s.targets, all[n])
		}
	}
	return s, nil
}

// prepare makes a cell's rows: carts of users that nobody is.
func (s *storm) prepare(ctx context.Context, app *pgxpool.Pool, cell string) ([]*target, error) {
	var all []*target
	err := eventually(ctx, func() error { // the first table may come without standbys
		rows, err := s.supers[cell].Query(ctx, `SELECT slot, epoch, standby FROM cell.slots
			WHERE role = 'owner' AND slot <= $1 AND standby IS NOT NULL ORDER BY hashint4(slot) LIMIT $2`, routing.Slots-1, rowsEach)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (*target, error) {
			var standby string
			t := &target{app: app}
			err := row.Scan(&t.slot, &t.epoch, &standby)
			t.standby, t.user = s.supers[standby], int64(1)<<40|int64(t.slot)
			return t, err
		})
		if err == nil && len(all) < rowsEach {
			err = errNotFound
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, t := range all {
		if err := pg.InSlot(ctx, app, pg.Entry{Slot: t.slot, Epoch: t.epoch}, func(tx *pg.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO orders.cart_items (slot, user_id, sku, quantity) VALUES ($1, $2, 1, 1)", t.slot, t.user)
			return err
		}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// inSync waits until every cell's copies are.
func (s *storm) inSync(ctx context.Context) error {
	for cell, db := range s.supers {
		err := within(ctx, 2*time.Minute, func() error {
			var slots, left int
			err := db.QueryRow(ctx, "SELECT count(*), count(*) FILTER (WHERE state <> 'in_sync') FROM cell.standing_by").Scan(&slots, &left)
			if err == nil && (slots == 0 || left > 0) {
				err = fmt.Errorf("%w: %d of %d slots that %s stands by for are not in sync", errNotFound, left, slots, cell)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// run writes at the rate until ctx ends.
func (s *storm) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	begun := time.Now()
	for n := 0; ; n++ {
		at := begun.Add(time.Duration(n) * time.Second / appliedRate)
		if pause(ctx, time.Until(at)) != nil {
			return
		}
		t, probe := s.targets[n%len(s.targets)], n%probeEach == 0
		wg.Go(func() {
			// Not ctx: what was begun when the time is over is finished.
			if err := s.write(context.WithoutCancel(ctx), t, probe && s.probing.Load()); err != nil {
				s.mu.Lock()
				s.failed = errors.Join(s.failed, err)
				s.mu.Unlock()
			}
		})
	}
}

// write is one transaction, and what is seen of it at the standby.
func (s *storm) write(ctx context.Context, t *target, probe bool) error {
	var rev int64
	if err := pg.InSlot(ctx, t.app, pg.Entry{Slot: t.slot, Epoch: t.epoch}, func(tx *pg.Tx) error {
		return tx.QueryRow(ctx, "UPDATE orders.cart_items SET quantity = (quantity + 1) % 100 WHERE slot = $1 AND user_id = $2 AND sku = 1 RETURNING rev", t.slot, t.user).Scan(&rev)
	}); err != nil {
		return err
	}
	s.written.Add(1)
	if !probe {
		return nil
	}
	for committed := time.Now(); ; {
		var seen bool
		err := t.standby.QueryRow(ctx, "SELECT rev >= $3 FROM orders.cart_items WHERE slot = $1 AND user_id = $2 AND sku = 1", t.slot, t.user, rev).Scan(&seen)
		took := time.Since(committed)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) || took > 20*time.Second {
			return errors.Join(errNotFound, err)
		}
		if seen {
			s.mu.Lock()
			s.took = append(s.took, took)
			s.mu.Unlock()
			return nil
		}
		if err := pause(ctx, look); err != nil {
			return err
		}
	}
}

// measure takes windows of ours and of the baseline, in turn, under the same writes.
func (s *storm) measure(ctx context.Context, r *replica, log io.Writer) ([]row, error) {
	inner, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { s.run(inner) })
	if err := pause(ctx, appliedWindow); err != nil { // warm up
		return nil, err
	}
	var base []time.Duration
	begun, from := time.Now(), s.written.Load()
	before, err := machineBusy()
	if err != nil {
		return nil, err
	}
	for n := range appliedWindows {
		s.probing.Store(true)
		if err := pause(ctx, appliedWindow); err != nil {
			return nil, err
		}
		s.probing.Store(false)
		for end := time.Now().Add(appliedWindow); time.Now().Before(end); {
			next := time.Now().Add(probeEach * time.Second / appliedRate) // as often as ours
			took, err := untilSeen(ctx, n, r.write)
			if err != nil {
				return nil, err
			}
			base = append(base, took)
			if err := pause(ctx, time.Until(next)); err != nil {
				return nil, err
			}
		}
		fmt.Fprintf(log, "bench: commit-to-applied: window %d of %d\n", n+1, appliedWindows)
	}
	after, err := machineBusy()
	if err != nil {
		return nil, err
	}
	rate := float64(s.written.Load()-from) / time.Since(begun).Seconds()
	stop()
	wg.Wait()
	if s.failed != nil {
		return nil, s.failed
	}
	return appliedRows(s.took, base, rate, after.since(before)), nil
}

// appliedRows judges. busy is the share of the machine's CPU that was used.
func appliedRows(ours, base []time.Duration, rate, busy float64) []row {
	note := fmt.Sprintf("from a commit's answer to the first look that sees the row in the slot's standby (a look each %s after the last one), one of %d of %.0f single-row transactions a second "+
		"over %d cells, %d looked for; p50 %.1f ms; %.0f %% of %d cores busy, writers and looks included; baseline: a row of c1's Postgres seen in c2's by logical replication, under the same writes, "+
		"%d times, p50 %.1f ms; in turn, %d windows of %s each",
		look, probeEach, rate, appliedCells, len(ours), percentile(ours, 0.5), 100*busy, runtime.NumCPU(), len(base), percentile(base, 0.5), appliedWindows, appliedWindow)
	p99 := percentile(ours, 0.99)
	r := compare("commit-to-applied", "ms", p99, percentile(base, 0.99), fmt.Sprintf("p99 < %.0f ms", appliedGoal), nil, note)
	ok := p99 < appliedGoal
	r.OK = &ok
	if rate < appliedLeast*appliedRate {
		r.OK, r.Reason = nil, fmt.Sprintf("only %.0f of %d writes a second got through here, with %.0f %% of %d cores busy", rate, appliedRate, 100*busy, runtime.NumCPU())
	}
	return []row{r}
}

func (s *storm) close() {
	for _, p := range s.apps {
		p.Close()
	}
	for _, p := range s.supers {
		p.Close()
	}
}

// busy is time of all cores since the machine's start, in ticks.
type busy struct{ all, idle float64 }

func (b busy) since(before busy) float64 {
	if b.all <= before.all {
		return 0
	}
	return 1 - (b.idle-before.idle)/(b.all-before.all)
}

func machineBusy() (busy, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return busy{}, err
	}
	return parseBusy(firstLine(string(b)))
}

// parseBusy reads "cpu user nice system idle iowait irq softirq steal ...".
func parseBusy(line string) (out busy, err error) {
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return out, fmt.Errorf("not a line of all cores: %q", line)
	}
	for i, field := range f[1:9] {
		v, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return out, fmt.Errorf("not a line of all cores: %w", err)
		}
		out.all += v
		if i == 3 || i == 4 {
			out.idle += v
		}
	}
	return out, nil
}
