package load

import (
	"slices"
	"time"
)

// Sample is one request and what became of it.
type Sample struct {
	At     time.Duration // scheduled, since the load's start
	Took   time.Duration // from the scheduled time to the end of the answer
	Kind   Kind
	Home   int // index of the cell
	User   int // of the home's
	Status int // 0 = no answer
	OK     bool
}

// End is when the answer was there.
func (s Sample) End() time.Duration { return s.At + s.Took }

// Percentile gives the smallest value that p percent are not above, 0 of none
// (nearest rank; nothing is interpolated, so it is a value that was measured).
func Percentile(all []time.Duration, p float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Clone(all)
	slices.Sort(sorted)
	n := len(sorted)
	rank := int(p/100*float64(n) + 0.9999999)
	return sorted[min(max(rank, 1), n)-1]
}

// Median of an even number is the mean of the middle two.
func Median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Clone(all)
	slices.Sort(sorted)
	m := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[m]
	}
	return (sorted[m-1] + sorted[m]) / 2
}

// Took lists how long those samples took that keep says yes to.
func Took(all []Sample, keep func(Sample) bool) []time.Duration {
	var out []time.Duration
	for _, s := range all {
		if keep(s) {
			out = append(out, s.Took)
		}
	}
	return out
}

// MS is a time as figures have it.
func MS(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}

// Line is what came of one kind and one home; all homes together are "*".
type Line struct {
	Kind     string  `json:"kind"`
	Home     string  `json:"home"`
	Requests int     `json:"requests"`
	Errors   int     `json:"errors"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
}

// Lines sums samples up, every kind of every home, also those that had none.
func Lines(all []Sample, homes []string, search bool) []Line {
	var out []Line
	for k := range kinds {
		if k == Search && !search {
			continue
		}
		for h := -1; h < len(homes); h++ {
			l := Line{Kind: k.String(), Home: "*"}
			if h >= 0 {
				l.Home = homes[h]
			}
			var took []time.Duration
			for _, s := range all {
				if s.Kind != k || h >= 0 && s.Home != h {
					continue
				}
				took = append(took, s.Took)
				if !s.OK {
					l.Errors++
				}
			}
			l.Requests, l.P50, l.P99 = len(took), MS(Percentile(took, 50)), MS(Percentile(took, 99))
			out = append(out, l)
		}
	}
	return out
}
