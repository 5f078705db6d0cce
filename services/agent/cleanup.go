package agent

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit/cleanup"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/services/agent/agentapi"
)

// placesEach is between two looks for rows in the wrong place. A look reads the
// columns of IDs of every table; where that takes long they come less often.
const placesEach = time.Minute

// places is what the last look for rows in the wrong place found.
type places struct {
	patience time.Duration // the pause after a look is so many times what it took

	mu sync.Mutex
	n  int64
	at time.Time // zero = nobody has looked yet
}

// keepClean cleans up what the cell has let go of, where it may, and looks for rows
// in the wrong place.
func keepClean(ctx context.Context, group *errgroup.Group, c Config, db *store, log *slog.Logger, m *obs.Metrics) *places {
	if c.ApplierDSN != "" && c.ApplierDSN != "off" {
		group.Go(func() error {
			return cleanup.Run(ctx, cleanup.Options{Cell: c.Zone, Pool: db.pool, DSN: c.ApplierDSN, Log: log.With("part", "cleanup")})
		})
	}
	p := &places{patience: 20}
	group.Go(func() error { p.watch(ctx, db, log, placesEach); return nil })
	m.GaugeFunc("cellmart_misplaced_rows", "rows in the wrong place (I2) as of the last look", func() float64 {
		if l := p.last(); l != nil {
			return float64(l.Rows)
		}
		return math.NaN()
	})
	m.GaugeFunc("cellmart_misplaced_rows_age_seconds", "how long ago the last look for rows in the wrong place was", func() float64 {
		if l := p.last(); l != nil {
			return float64(l.AgeMS) / 1000
		}
		return math.NaN()
	})
	exportLeftovers(ctx, m, db)
	return p
}

// watch looks again and again. A look that fails leaves what is known to get old.
func (p *places) watch(ctx context.Context, db *store, log *slog.Logger, each time.Duration) {
	said := int64(0)
	for ctx.Err() == nil {
		start := time.Now()
		n, err := db.countMisplaced(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.Warn("looking for rows in the wrong place", "error", err)
		default:
			p.mu.Lock()
			p.n, p.at = n, start
			p.mu.Unlock()
			if n > 0 && n != said {
				log.Error("rows in the wrong place: cellctl invariants names them", "alarm", true, "rows", n)
			}
			said = n
		}
		pause(ctx, max(each, p.patience*time.Since(start)))
	}
}

// last is nil while nobody has looked.
func (p *places) last() *agentapi.Misplaced {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at.IsZero() {
		return nil
	}
	return &agentapi.Misplaced{Rows: p.n, AgeMS: time.Since(p.at).Milliseconds()}
}

// exportLeftovers shows what the clean-up has still to do, asked at most once in
// 15 s; NaN while it can't be asked.
func exportLeftovers(ctx context.Context, m *obs.Metrics, db *store) {
	var mu sync.Mutex
	var last agentapi.Leftovers
	var err error
	var at time.Time
	show := func(name, help string, value func(agentapi.Leftovers) float64) {
		m.GaugeFunc(name, help, func() float64 {
			mu.Lock()
			defer mu.Unlock()
			if time.Since(at) > 15*time.Second {
				last, err = db.leftovers(ctx)
				at = time.Now()
			}
			if err != nil {
				return math.NaN()
			}
			return value(last)
		})
	}
	show("cellmart_leftover_rows", "rows of slots that the cell has let go of, to be cleaned up", func(l agentapi.Leftovers) float64 { return float64(l.Rows) })
	show("cellmart_leftover_slots", "slots that the cell has let go of and that may have rows left", func(l agentapi.Leftovers) float64 { return float64(l.Slots) })
	show("cellmart_leftover_slots_held", "those of them that another cell took: their rows are kept", func(l agentapi.Leftovers) float64 { return float64(l.Held) })
	show("cellmart_leftover_age_seconds", "how long ago the first of these slots was let go of", func(l agentapi.Leftovers) float64 { return float64(l.OldestMS) / 1000 })
	show("cellmart_cleaned_up_rows", "rows cleaned up, ever", func(l agentapi.Leftovers) float64 { return float64(l.Deleted) })
}
