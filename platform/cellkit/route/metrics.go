package route

import (
	"errors"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/routing"
)

// The levels of a read, as in the metrics.
const (
	level1 = "l1" // held in the process
	level2 = "l2" // the cell's Redis
	level3 = "l3" // the agent, who has it from control
)

// What a level answers.
const (
	hit  = "hit"  // the newest table: the held one, or a newer than that
	miss = "miss" // none, or an older one
	fail = "error"
)

func hitIf(yes bool) string {
	if yes {
		return hit
	}
	return miss
}

// Stats counts what a follower reads, and what an agent takes. A read is one check, which goes down the
// levels: the held table is the newest (l1 hit), or Redis has a newer one (l1
// miss, l2 hit), or the agent has (l1 and l2 miss, l3 hit). What a push brought
// before the check found it counts as held.
type Stats struct {
	reads   *prometheus.CounterVec
	took    *prometheus.HistogramVec
	lookup  *prometheus.GaugeVec
	tables  *prometheus.CounterVec
	refused *prometheus.CounterVec
}

// NewStats shows the counts in m; nil shows them nowhere.
func NewStats(m *obs.Metrics) *Stats {
	if m == nil {
		m = obs.New("", "")
	}
	return &Stats{
		reads:   m.Counter("cellmart_route_reads_total", "Checks for a newer route table, by level (l1 process, l2 Redis, l3 agent) and result (hit, miss, error).", "level", "result"),
		took:    m.Histogram("cellmart_route_read_seconds", "Time of one check at Redis (l2) or the agent (l3).", "level"),
		lookup:  m.Gauge("cellmart_route_lookup_seconds", "Time of one lookup in the held table (l1), mean of the last check's thousand.", "level"),
		tables:  m.Counter("cellmart_route_tables_total", "Route tables taken, by where they came from.", "source"),
		refused: m.Counter("cellmart_route_refused_total", "Route tables refused: older than the held one, signed by another, not valid.", "source", "reason"),
	}
}

func (s *Stats) read(level, result string, took time.Duration) {
	s.reads.WithLabelValues(level, result).Inc()
	if level != level1 {
		s.took.WithLabelValues(level).Observe(took.Seconds())
	}
}

// Took counts a table that was taken from a source.
func (s *Stats) Took(source string) { s.tables.WithLabelValues(source).Inc() }

// Refuse counts a table that wasn't taken: err says why, nil is for an older one.
func (s *Stats) Refuse(source string, err error) {
	reason := "invalid"
	switch {
	case err == nil:
		reason = "older"
	case errors.Is(err, routing.ErrSignature):
		reason = "signature"
	}
	s.refused.WithLabelValues(source, reason).Inc()
}

// probe measures what a lookup in the held table costs here and now.
func (s *Stats) probe(h *routing.Holder) {
	const n = 1000
	begun, found := time.Now(), 0
	for i := range int64(n) {
		if _, _, ok := h.Load().Home(i * 0x9E3779B97F4A7C1 & math.MaxInt64); ok {
			found++
		}
	}
	if found > 0 {
		s.lookup.WithLabelValues(level1).Set(time.Since(begun).Seconds() / n)
	}
}
