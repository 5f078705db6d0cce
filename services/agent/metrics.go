package agent

import (
	"context"
	"math"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/services/agent/agentapi"
)

// watchLinks shows what the border knows each time it is told on: up is 1 or 0.
func watchLinks(m *obs.Metrics, b *link.Border) func() map[string]link.Status {
	up := m.Gauge("cellmart_link_up", "1 while the link to the peer answers, else 0.", "peer")
	rtt := m.Gauge("cellmart_link_rtt_seconds", "Round trip of the last answer on the link.", "peer")
	open := m.Gauge("cellmart_link_streams", "Open streams to and from the peer.", "peer")
	return func() map[string]link.Status {
		all := b.Status()
		for peer, s := range all {
			value := 0.0
			if s.Up {
				value = 1
			}
			up.WithLabelValues(peer).Set(value)
			rtt.WithLabelValues(peer).Set(s.RTT.Seconds())
		}
		for peer, s := range b.Stats() {
			open.WithLabelValues(peer).Set(float64(s.Open))
		}
		return all
	}
}

// exportCounts shows what is in the database, asked at most once in 5 s; NaN
// while it can't be asked.
func exportCounts(ctx context.Context, m *obs.Metrics, db *store) {
	var mu sync.Mutex
	var last counts
	var err error
	var at time.Time
	get := func() (counts, error) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(at) > 5*time.Second {
			look, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			last, err = db.counts(look)
			at = time.Now()
		}
		return last, err
	}
	show := func(name, help string, value func(counts) float64) {
		m.GaugeFunc(name, help, func() float64 {
			c, err := get()
			if err != nil {
				return math.NaN()
			}
			return value(c)
		})
	}
	show("cellmart_slots_owned", "slots that this cell owns", func(c counts) float64 { return float64(c.Owned) })
	show("cellmart_messages_open", "requests without their final reply", func(c counts) float64 { return float64(c.Open) })
	show("cellmart_messages_oldest_open_seconds", "age of the oldest open request", func(c counts) float64 { return c.OldestOpenMS / 1000 })
	show("cellmart_messages_parked", "messages that nobody could handle", func(c counts) float64 { return float64(c.Parked) })
	show("cellmart_transfers_stuck", "transfers not ended after 30 s", func(c counts) float64 { return float64(c.Stuck) })
}

// exportLoop shows the closed-loop share: NaN while nothing was counted.
func exportLoop(m *obs.Metrics, s *server) {
	show := func(name, help string, value func(agentapi.Requests) float64) {
		m.GaugeFunc(name, help, func() float64 {
			r := s.requests.Sums(s.sent(), time.Now())
			if r == nil {
				return math.NaN()
			}
			return value(*r)
		})
	}
	show("cellmart_closed_loop_share", "share of the requests since the agent began that needed no other zone", func(r agentapi.Requests) float64 {
		if share, ok := r.ClosedLoop(); ok {
			return share
		}
		return math.NaN()
	})
	show("cellmart_requests_heard_age_seconds", "age of the oldest gateway's last word on its requests", func(r agentapi.Requests) float64 { return float64(r.AgeMS) / 1000 })
}
