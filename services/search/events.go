package search

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/search/searchapi"
)

// gather is how long a change may wait for more. Each batch is a segment of the
// index, and segments are merged for ever after: at 80 requests a second, batches
// of 20 ms cost 15 % of two cores.
const gather = 500 * time.Millisecond

// heartbeat is how often a quiet zone says that it is there, about.
const heartbeat = 5 * time.Second

// sources follows every zone: the cells in the route table, and the global zone
// for the catalog.
type sources struct {
	index   *index
	table   *routing.Holder
	dialer  link.Dialer
	own     string // the zone that search runs in
	natsURL string // of the own zone
	log     *slog.Logger

	mu   sync.Mutex
	zone map[string]*cdc.Follower
}

// run follows until ctx ends. A cell that leaves the table is followed on: what
// it had said stays searchable until its slots' new owners say otherwise.
func (s *sources) run(ctx context.Context) error {
	var following sync.WaitGroup
	defer following.Wait()
	for ctx.Err() == nil {
		changed := s.table.Changed()
		zones := []string{s.own}
		if t := s.table.Load(); t != nil {
			for _, c := range t.Cells() {
				zones = append(zones, c.Name)
			}
		}
		for _, zone := range zones {
			if err := s.start(ctx, &following, zone); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	return nil
}

func (s *sources) start(ctx context.Context, following *sync.WaitGroup, zone string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.zone[zone] != nil {
		return nil
	}
	at, err := s.index.position(zone)
	if err != nil {
		return err
	}
	f := cdc.NewFollower(cdc.FollowerOptions{
		Zone: zone, Sink: searchapi.Sink, Position: at, Gather: gather, Log: s.log,
		Connect: func() (*nats.Conn, error) {
			if zone == s.own {
				return bus.Connect(s.natsURL, "search", s.log)
			}
			return bus.ConnectZone(s.dialer, zone, "search", s.log)
		},
		Apply: func(ctx context.Context, changes []cdc.Change, p cdc.Position) error {
			return s.index.apply(ctx, zone, changes, p)
		},
	})
	s.zone[zone] = f
	following.Go(func() {
		if err := f.Run(ctx); err != nil { // only a malformed URL; the other zones go on
			s.log.Error("a zone isn't followed", "source", zone, "error", err)
		}
	})
	return nil
}

func (s *sources) status() map[string]cdc.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]cdc.Status{}
	for zone, f := range s.zone {
		out[zone] = f.Status()
	}
	return out
}

// lag says how far behind each zone is, and the largest. A zone that has gone
// quiet is as far behind as its silence is longer than it should be; ok is false
// when of one of them nothing is known.
func (s *sources) lag(now time.Time) (all map[string]searchapi.Lag, most time.Duration, ok bool) {
	all, ok = map[string]searchapi.Lag{}, true
	status := s.status()
	for _, zone := range slices.Sorted(maps.Keys(status)) {
		st := status[zone]
		l := searchapi.Lag{State: string(st.State)}
		if st.State == cdc.Unknown {
			l.State = "unknown"
		}
		if behind, age, known := lagOf(st, now); known {
			ms, old := behind.Milliseconds(), age.Milliseconds()
			l.MS, l.AgeMS = &ms, &old
			most = max(most, behind)
		} else {
			ok = false
		}
		all[zone] = l
	}
	return all, most, ok && len(all) > 0
}

func lagOf(st cdc.Status, now time.Time) (behind, age time.Duration, known bool) {
	if st.State != cdc.Live || st.At.IsZero() || st.Seen.IsZero() {
		return 0, 0, false
	}
	age = max(0, now.Sub(st.Seen))
	return max(st.Delay, age-2*heartbeat), age, true
}
