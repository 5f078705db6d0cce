package id

import "testing"

func TestNextStep(t *testing.T) {
	t.Parallel()
	const budget = 6_000_000
	for _, tc := range []struct {
		name string
		rate float64
		room Room
		want int64
	}{
		{"no rate yet", 0, Room{}, FirstLease},
		{"slow: still a first lease", 0.1, Room{}, FirstLease},
		{"half an hour at the rate", 100, Room{Left: budget, Holders: 4}, 180_000},
		{"never above the most", 10_000, Room{}, MaxLease},
		{"alone, a whole budget", 10_000, Room{Left: budget, Holders: 1}, MaxLease},
		{"a quarter of a share of the budget", 10_000, Room{Left: budget, Holders: 3}, 500_000},
		{"little is left", 10_000, Room{Left: 40_000, Holders: 10}, 1_000},
		{"less than a first lease is fair", 1, Room{Left: 40_000, Holders: 50}, 200},
		{"nothing is left", 10_000, Room{Holders: 50}, leastStep},
	} {
		if got := nextStep(tc.rate, tc.room); got != tc.want {
			t.Errorf("%s: nextStep(%g, %+v) = %d, want %d", tc.name, tc.rate, tc.room, got, tc.want)
		}
	}
}
