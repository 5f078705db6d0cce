package console

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const maxMetrics = 4 << 20

// series is one line of a metrics page.
type series struct {
	name, labels string
	value        float64
}

// label gives the value of a label of a line; they are names and numbers, without quotes.
func (s series) label(name string) string {
	for rest := s.labels; ; {
		i := strings.Index(rest, name+`="`)
		if i < 0 {
			return ""
		}
		value, after, _ := strings.Cut(rest[i+len(name)+2:], `"`)
		if i == 0 || rest[i-1] == ',' {
			return value
		}
		rest = after
	}
}

// scrape reads a metrics page and gives the lines of the names that are wanted.
func scrape(ctx context.Context, client *http.Client, url string, names ...string) ([]series, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics: %s", resp.Status)
	}
	return parseMetrics(io.LimitReader(resp.Body, maxMetrics), names)
}

func parseMetrics(r io.Reader, names []string) ([]series, error) {
	var out []series
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		line := lines.Text()
		end := strings.LastIndexByte(line, ' ')
		if end < 0 || line[0] == '#' {
			continue
		}
		name, labels, _ := strings.Cut(line[:end], "{")
		if !slices.Contains(names, name) {
			continue
		}
		v, err := strconv.ParseFloat(line[end+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metrics: line %.80q", line)
		}
		out = append(out, series{name, strings.TrimSuffix(labels, "}"), v})
	}
	return out, lines.Err()
}

// sample is what a gateway has counted since its start.
type sample struct {
	at       time.Time
	requests float64
	errors   float64
	buckets  map[float64]float64 // requests that took at most so many seconds
}

// The gateway's names.
const (
	requestsName = "cellmart_http_requests_total"
	bucketsName  = "cellmart_http_request_seconds_bucket"
)

func sampleOf(all []series, now time.Time) sample {
	s := sample{at: now, buckets: map[float64]float64{}}
	for _, l := range all {
		switch l.name {
		case requestsName:
			s.requests += l.value
			if l.label("class") == "5xx" {
				s.errors += l.value
			}
		case bucketsName:
			if le, err := strconv.ParseFloat(l.label("le"), 64); err == nil {
				s.buckets[le] += l.value
			}
		}
	}
	return s
}

// Rates is what a gateway did in the last minute; nil is not known, or there was
// nothing to measure.
type Rates struct {
	PerSecond *float64
	Errors    *float64 // share of 5xx
	P99       *float64 // seconds, interpolated within the bucket
}

// ratesOver is how long rates are taken over.
const ratesOver = time.Minute

// rater keeps the samples of the last minute.
type rater struct{ samples []sample }

func (r *rater) next(s sample) Rates {
	if n := len(r.samples); n > 0 && s.requests < r.samples[n-1].requests {
		r.samples = nil // the gateway was started anew
	}
	r.samples = append(r.samples, s)
	for len(r.samples) > 2 && s.at.Sub(r.samples[0].at) > ratesOver {
		r.samples = r.samples[1:]
	}
	first := r.samples[0]
	took := s.at.Sub(first.at).Seconds()
	if took <= 0 {
		return Rates{}
	}
	n := s.requests - first.requests
	per := n / took
	out := Rates{PerSecond: &per}
	if n > 0 {
		share := (s.errors - first.errors) / n
		out.Errors, out.P99 = &share, quantile(.99, first.buckets, s.buckets)
	}
	return out
}

// quantile is that of what came between two samples; nil when nothing did.
func quantile(q float64, before, after map[float64]float64) *float64 {
	var bounds []float64
	for le := range after {
		bounds = append(bounds, le)
	}
	slices.Sort(bounds)
	if len(bounds) == 0 {
		return nil
	}
	count := func(le float64) float64 { return after[le] - before[le] }
	all := count(bounds[len(bounds)-1])
	if all <= 0 {
		return nil
	}
	low, under := 0., 0.
	for _, le := range bounds {
		n := count(le)
		if n >= q*all {
			if math.IsInf(le, 1) || n == under {
				return &low // longer than the longest bucket: at least that
			}
			v := low + (le-low)*(q*all-under)/(n-under)
			return &v
		}
		low, under = le, n
	}
	return &low
}

// searchLag is how far behind one zone search is; nil is not known.
type searchLag struct {
	Zone string
	Lag  *float64 // seconds
	Age  *float64
	Live bool
}

const (
	lagName  = "cellmart_search_lag_seconds"
	ageName  = "cellmart_search_age_seconds"
	liveName = "cellmart_search_source_live"
)

func searchLags(all []series) []searchLag {
	zones := map[string]*searchLag{}
	for _, l := range all {
		zone := l.label("source")
		if zones[zone] == nil {
			zones[zone] = &searchLag{Zone: zone}
		}
		z := zones[zone]
		var v *float64
		if !math.IsNaN(l.value) && l.value >= 0 {
			v = &l.value
		}
		switch l.name {
		case lagName:
			z.Lag = v
		case ageName:
			z.Age = v
		case liveName:
			z.Live = l.value == 1
		}
	}
	out := []searchLag{}
	for _, z := range zones {
		out = append(out, *z)
	}
	slices.SortFunc(out, func(a, b searchLag) int { return strings.Compare(a.Zone, b.Zone) })
	return out
}
