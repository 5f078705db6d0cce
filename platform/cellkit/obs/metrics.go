package obs

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// seconds are the buckets of every duration, from a cache hit to a timeout.
var seconds = [...]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// Metrics is one service's registry. A name asked for again gives the same
// metric, so parts that are made per cell or per test need no coordination; the
// same name with other labels or another type is a bug and panics.
type Metrics struct {
	registry *prometheus.Registry
	labelled prometheus.Registerer
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// New makes a registry with the Go runtime's and the process's figures and
// those of HTTP.
func New(cell, service string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.labelled = prometheus.WrapRegistererWith(prometheus.Labels{"cell": cell, "service": service}, m.registry)
	m.labelled.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.requests = m.Counter("cellmart_http_requests_total", "HTTP requests answered.", "route", "method", "class")
	m.duration = m.Histogram("cellmart_http_request_seconds", "Time to answer an HTTP request.", "route", "method")
	return m
}

// Counter gives the counter of that name; names are cellmart_<part>_<what>_total.
func (m *Metrics) Counter(name, help string, labels ...string) *prometheus.CounterVec {
	return register(m, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

// Gauge gives the gauge of that name.
func (m *Metrics) Gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return register(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}

// Histogram gives the histogram of durations of that name, in seconds.
func (m *Metrics) Histogram(name, help string, labels ...string) *prometheus.HistogramVec {
	return register(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: seconds[:]}, labels))
}

// GaugeFunc shows a value that is asked for when the metrics are read.
func (m *Metrics) GaugeFunc(name, help string, value func() float64) {
	m.labelled.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
}

func register[C prometheus.Collector](m *Metrics, c C) C {
	err := m.labelled.Register(c)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if same, ok := already.ExistingCollector.(C); ok {
			return same
		}
	}
	if err != nil {
		panic(err)
	}
	return c
}

// HTTP counts one answered request. route is the pattern, never the path, and a
// method that nobody knows is "other": both come from outside and must not
// make series without end.
func (m *Metrics) HTTP(route, method string, status int, d time.Duration) {
	if route == "" {
		route = "unmatched"
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
	default:
		method = "other"
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status/100)+"xx").Inc()
	m.duration.WithLabelValues(route, method).Observe(d.Seconds())
}

// Handler serves the registry in the format of Prometheus.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
