package main

import (
	"slices"
	"testing"
	"time"
)

func TestAppliedRows(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	all := func(last time.Duration) []time.Duration {
		return append(slices.Repeat([]time.Duration{10 * ms}, 98), last, last)
	}
	for name, x := range map[string]struct {
		last time.Duration
		rate float64
		ok   *bool
	}{
		"as it should be": {299 * ms, 500, new(true)},
		"too slow":        {301 * ms, 500, new(false)},
		"not the rate":    {10 * ms, 474, nil},
	} {
		r := appliedRows(all(x.last), slices.Repeat([]time.Duration{5 * ms}, 100), x.rate, 0.5)[0]
		if (r.OK == nil) != (x.ok == nil) || r.OK != nil && *r.OK != *x.ok || *r.Ours != float64(x.last/ms) || *r.Baseline != 5 || (r.Reason == "") != (x.ok != nil) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestBusy(t *testing.T) {
	t.Parallel()
	a, err := parseBusy("cpu  10 0 10 60 20 0 0 0 5 5")
	b, err2 := parseBusy("cpu  40 0 40 70 30 0 0 20 9 9")
	if err != nil || err2 != nil || b.since(a) != 0.8 || a.since(a) != 0 {
		t.Errorf("busy %v, %v, %v", b.since(a), err, err2)
	}
	for _, line := range []string{"", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3", "cpu 1 2 3 4 x 6 7 8"} {
		if _, err := parseBusy(line); err == nil {
			t.Errorf("%q is a line", line)
		}
	}
}
