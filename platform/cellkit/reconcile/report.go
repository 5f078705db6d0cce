package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Ask says what to compare.
type Ask struct {
	Cells []string      // payers' cells; nil = all
	Since time.Duration // begun so long ago or later; 0 = all
}

// Report is what a comparison of all pairs found.
type Report struct {
	Transfers   int64         `json:"transfers_compared"`
	Open        int           `json:"open"` // in flight
	Differences []Difference  `json:"differences"`
	Differing   []PairHour    `json:"differing_hours"`
	NotLooked   int           `json:"not_looked"` // hours, parts or transfers that differ in a digest only: too many
	NotCompared []NotCompared `json:"not_compared"`
	Summary     []Line        `json:"pairs"`
	ElapsedMS   int64         `json:"elapsed_ms"`
}

// PairHour is an hour that differs.
type PairHour struct {
	From string `json:"from"`
	To   string `json:"to"`
	Hour
}

// NotCompared is what was asked for and isn't known.
type NotCompared struct {
	From   string `json:"from"`
	To     string `json:"to,omitempty"`
	Reason string `json:"reason"`
}

// Line is one pair of cells, all its hours.
type Line struct {
	From      string    `json:"from"`
	To        string    `json:"to"`
	Since     time.Time `json:"since"`
	Until     time.Time `json:"until"`
	Hours     int       `json:"hours"`
	Transfers int64     `json:"transfers"`
	Open      int       `json:"open"`
	Different int       `json:"differences"`
	MS        int64     `json:"ms"`
}

// Equal says that everything that was asked for is known, and that no transfer's
// two sides differ.
func (r Report) Equal() bool {
	return len(r.Summary) > 0 && len(r.Differences) == 0 && r.NotLooked == 0 && len(r.NotCompared) == 0
}

// window is how much is compared at a time: an answer has half a minute. What is too
// much is asked for in halves, down to an hour; of these, some may fail.
const (
	window    = 7 * 24 * time.Hour
	failsMost = 3
)

// Run has each cell compare its transfers with the cells that they went to, cells
// at the same time, each its pairs one by one. The error is about the question
// only: what can't be compared is in the report.
func Run[C Caller](ctx context.Context, cells map[string]C, a Ask) (Report, error) {
	began := time.Now()
	r := Report{Differences: []Difference{}, Differing: []PairHour{}, NotCompared: []NotCompared{}, Summary: []Line{}}
	payers := a.Cells
	for _, name := range payers {
		if _, ok := cells[name]; !ok {
			return r, fmt.Errorf("there is no cell %s", name)
		}
	}
	if len(payers) == 0 {
		payers = slices.Sorted(maps.Keys(cells))
	}
	spans, failed := each(cells, func(p peer) (s span, err error) {
		return s, p.ask(ctx, opSpan, question{Oldest: a.Since == 0}, &s)
	}, slices.Sorted(maps.Keys(cells)))
	var all []span
	for _, s := range spans {
		all = append(all, s)
	}
	for _, name := range payers {
		if err := failed[name]; err != nil {
			r.NotCompared = append(r.NotCompared, NotCompared{From: name, Reason: err.Error()})
		}
	}
	asked := slices.DeleteFunc(slices.Clone(payers), func(name string) bool { return failed[name] != nil })
	since := func(now time.Time) time.Time {
		if a.Since > 0 {
			return now.Add(-a.Since)
		}
		return oldest(now, all...).Truncate(time.Hour)
	}
	parts, _ := each(cells, func(p peer) (Report, error) {
		s := spans[p.name]
		return pairs(ctx, p, s.Cells, since(s.Now), s.Now), nil
	}, asked)
	for _, name := range asked {
		r.add(parts[name])
	}
	slices.SortFunc(r.Differences, func(a, b Difference) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Kind, b.Kind)) })
	r.ElapsedMS = time.Since(began).Milliseconds()
	return r, nil
}

// each asks some cells at the same time.
func each[C Caller, T any](cells map[string]C, f func(peer) (T, error), names []string) (map[string]T, map[string]error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	got, failed := map[string]T{}, map[string]error{}
	for _, name := range names {
		wg.Go(func() {
			out, err := f(caller(name, cells[name]))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[name] = err
				return
			}
			got[name] = out
		})
	}
	wg.Wait()
	return got, failed
}

// wide makes windows so wide that there aren't too many: a clock that was wrong for
// a while leaves transfers of long ago behind.
func wide(least, all time.Duration) time.Duration {
	return min(max(least, all/100), longest-time.Hour)
}

// pairs has one cell compare with each of the others, window by window.
func pairs(ctx context.Context, payer peer, cells []string, since, until time.Time) Report {
	r := Report{}
	for _, to := range cells {
		line := Line{From: payer.name, To: to, Since: since, Until: since}
		usual := wide(window, until.Sub(since))
		width, fails := usual, 0
		for at := since; at.Before(until) && fails < failsMost; {
			end := earlier(at.Add(width), until)
			if !end.Before(until) {
				end = end.Add(time.Minute) // the cell knows best what can be compared by now
			}
			var p Pair
			err := payer.ask(ctx, opCompare, question{To: to, Since: at, Until: end}, &p)
			if err != nil && end.Sub(at) > time.Hour+time.Minute && ctx.Err() == nil && !isAway(err, to) {
				width = max(earlier(end, until).Sub(at)/2, time.Hour)
				continue
			}
			if err != nil {
				r.NotCompared = append(r.NotCompared, NotCompared{payer.name, to, "from " + at.UTC().Format(time.RFC3339) + " on: " + err.Error()})
				if fails++; ctx.Err() != nil || isAway(err, to) {
					break
				}
				at = at.Add(width)
				continue
			}
			at, width = at.Add(width), min(2*width, usual)
			line.Until = p.Until
			line.Hours += p.Hours
			line.Transfers += p.Transfers
			line.Open += p.Open
			line.Different += len(p.Differences)
			line.MS += p.MS
			r.Differences = append(r.Differences, p.Differences...)
			r.NotLooked += p.NotLooked
			for _, h := range p.Differing {
				r.Differing = append(r.Differing, PairHour{payer.name, to, h})
			}
			for _, why := range p.NotCompared {
				r.NotCompared = append(r.NotCompared, NotCompared{payer.name, to, why})
			}
		}
		r.Summary = append(r.Summary, line)
		r.Transfers += line.Transfers
		r.Open += line.Open
	}
	return r
}

func (r *Report) add(p Report) {
	r.Transfers += p.Transfers
	r.Open += p.Open
	r.NotLooked += p.NotLooked
	r.Differences = append(r.Differences, p.Differences...)
	r.Differing = append(r.Differing, p.Differing...)
	r.NotCompared = append(r.NotCompared, p.NotCompared...)
	r.Summary = append(r.Summary, p.Summary...)
}
