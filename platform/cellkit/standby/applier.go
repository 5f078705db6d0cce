package standby

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/pg"
)

// Options of a cell's applier.
type Options struct {
	Cell    string
	DSN     string                                // the cell's database, as the applier's role: one connection per source
	Pool    *pgxpool.Pool                         // the same database, for reading
	Sources map[string]func() (*nats.Conn, error) // the other cells, and the way to their NATS
	Log     *slog.Logger
	Metrics *obs.Metrics

	look time.Duration // between two looks for slots that want a copy; five times that when none does
}

// Applier keeps this cell's standby copies.
type Applier struct {
	o       Options
	sources map[string]*source
	metrics applierMetrics
	lately  atomic.Pointer[looked]
	changed chan struct{} // a batch has changed what a look finds
}

// looked is what a look found.
type looked struct {
	all []Status
	at  time.Time
}

type applierMetrics struct {
	rows, dropped, copies, stops *prometheus.CounterVec
	lag, slots                   *prometheus.GaugeVec
}

const (
	gather        = 50 * time.Millisecond // for more changes: each commit costs as much as ten rows
	heartbeatHold = 20 * time.Millisecond // others wait for positions, and a heartbeat comes when one does
)

// New makes an applier; nothing connects before Run.
func New(o Options) *Applier {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = obs.New(o.Cell, "agent")
	}
	if o.look == 0 {
		o.look = time.Second
	}
	o.Log = o.Log.With("part", "standby")
	m := o.Metrics
	a := &Applier{o: o, sources: map[string]*source{}, changed: make(chan struct{}, 1)}
	a.metrics = applierMetrics{
		rows:    m.Counter("cellmart_standby_rows_total", "Rows of other cells' slots that were applied.", "source"),
		dropped: m.Counter("cellmart_standby_dropped_total", "Rows that were not applied, by reason: older epoch, or of a slot that this cell doesn't stand by for.", "source", "reason"),
		copies:  m.Counter("cellmart_standby_copies_total", "Copies that began.", "source"),
		stops:   m.Counter("cellmart_standby_stops_total", "Slots that stopped being followed, and are copied anew.", "source"),
		lag:     m.Gauge("cellmart_standby_lag_seconds", "How long after its commit the newest change was applied; +Inf when nothing is known.", "source"),
		slots:   m.Gauge("cellmart_standby_slots", "Slots that this cell stands by for, by state of the copy.", "source", "state"),
	}
	for zone := range o.Sources {
		a.sources[zone] = &source{a: a, zone: zone, log: o.Log.With("source", zone), holding: make(chan struct{}, 1)}
	}
	return a
}

// Run applies until ctx ends. The error is a wrong setting: whatever else is
// missing is waited for.
func (a *Applier) Run(ctx context.Context) error {
	for zone, s := range a.sources {
		var at stored
		err := pg.RetryDeadline(ctx, func(ctx context.Context) (err error) {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			at, _, err = readStored(ctx, a.o.Pool, zone)
			return err
		})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.follower = cdc.NewFollower(cdc.FollowerOptions{
			Zone: zone, Sink: cdc.StandbySink(a.o.Cell), Connect: a.o.Sources[zone], Position: at.Position, Apply: s.apply,
			Gather: gather, Hold: heartbeatHold, Log: a.o.Log,
		})
		s.mu.Unlock()
	}
	var parts sync.WaitGroup
	defer parts.Wait()
	for _, s := range a.sources {
		parts.Go(func() {
			defer s.close()
			if err := s.follower.Run(ctx); err != nil { // only a malformed URL; the other sources go on
				s.log.Error("a cell isn't followed", "error", err)
			}
		})
	}
	parts.Go(func() { a.keep(ctx) })
	<-ctx.Done()
	return nil
}

// keep has slots copied that aren't, for ever. While all are in sync it looks when
// a batch has changed that, and every few seconds for what others may have changed: a
// look reads each slot's row.
func (a *Applier) keep(ctx context.Context) {
	said, settled := "", false
	for ctx.Err() == nil {
		a.rest(ctx, settled)
		all, trouble := a.show(ctx)
		settled = trouble == nil
		for _, st := range all {
			settled = settled && st.State == string(cdc.Live) && st.Copying+st.Stopped == 0
			if s := a.sources[st.Source]; s != nil && st.Copying+st.Stopped > 0 {
				trouble = cmp.Or(trouble, s.wish(ctx))
			}
		}
		if trouble == nil || ctx.Err() != nil {
			said = ""
		} else if trouble.Error() != said {
			said = trouble.Error()
			a.o.Log.Warn("copies can't be looked after", "error", trouble)
		}
	}
}

// change has the next look come soon.
func (a *Applier) change() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// rest is the pause between two looks.
func (a *Applier) rest(ctx context.Context, settled bool) {
	pause(ctx, a.o.look)
	if !settled {
		return
	}
	t := time.NewTimer(4 * a.o.look)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-a.changed:
	}
}

// Recopy has slots copied anew although their copies are taken for good: what the
// next copy brings replaces what is here.
func (a *Applier) Recopy(ctx context.Context, source string, slots []int32, reason string) error {
	s := a.sources[source]
	if s == nil {
		return fmt.Errorf("%s isn't followed here", source)
	}
	c, err := connectPlain(ctx, a.o.DSN)
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx))
	s.commit.Lock()
	tag, err := c.Exec(ctx, `
		INSERT INTO cell.standby_slots AS p (slot, source, epoch, state, reason, fresh)
		SELECT s.slot, s.owner, s.epoch, 'stopped', $3, true FROM cell.slots s
		WHERE s.slot = ANY ($2::int[]) AND s.owner = $1 AND s.role IN ('standby', 'incoming')
		ON CONFLICT (slot) DO UPDATE SET source = excluded.source, epoch = excluded.epoch, state = 'stopped', reason = excluded.reason, fresh = true,
			copy = '', copy_end = NULL, tries = 0, since = clock_timestamp()`, source, slots, reason)
	s.commit.Unlock()
	a.change()
	if err != nil {
		return err
	}
	if int(tag.RowsAffected()) != len(slots) {
		return fmt.Errorf("%d of %d slots are copies of %s's here", tag.RowsAffected(), len(slots), source)
	}
	return s.wish(ctx)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
