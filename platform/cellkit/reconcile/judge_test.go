package reconcile

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Only what is certain is called a difference: not what another cell owns by now,
// and not what is on its way. (What is wrong is in the tests with databases.)
func TestWhatIsInFlightIsNoDifference(t *testing.T) {
	t.Parallel()
	none := row{Owned: true}
	at := func(state string) row { return row{Owned: true, State: state, Amount: 5, Currency: "CNY", Asked: true} }
	gone := func(r row) row { r.Owned = false; return r }
	for _, tc := range []struct {
		name                 string
		before, payee, after row
		want                 Kind
	}{
		{"on its way", at("FROZEN"), none, at("FROZEN"), ""},
		{"credited, not answered", at("FROZEN"), at("CREDITED"), at("FROZEN"), ""},
		{"credited and answered in between", at("FROZEN"), none, at("SETTLED"), ""},
		{"refused, not answered", at("CANCELLING"), at("REFUSED"), at("CANCELLING"), ""},
		{"begun in between", none, at("CREDITED"), at("FROZEN"), ""},
		{"both ended", at("SETTLED"), at("CREDITED"), at("SETTLED"), ""},
		{"both without", at("REVERSED"), at("CANCELLED"), at("REVERSED"), ""},
		{"rejected", at("REJECTED"), none, at("REJECTED"), ""},
		{"a tombstone of what the payer lost", none, at("CANCELLED"), none, ""},
		{"nowhere", none, none, none, ""},
		{"the payee's slot has moved", at("SETTLED"), gone(none), at("SETTLED"), ""},
		{"the payer's slot has moved", gone(none), at("CREDITED"), gone(none), ""},
		{"a copy of the payer's", gone(at("SETTLED")), none, gone(at("SETTLED")), ""},
		{"settled before the payee was looked at", at("SETTLED"), none, at("SETTLED"), NoCredit},
		{"no beginning even after", none, at("CREDITED"), none, NoSource},
		{"open, and its request closed", at("FROZEN"), none, row{Owned: true, State: "FROZEN"}, Forgotten},
	} {
		if got, text := judge(7, tc.before, tc.payee, tc.after); got != tc.want || (text == "") != (tc.want == "") {
			t.Errorf("%s: %s %q, want %s", tc.name, got, text, tc.want)
		}
	}
}

// A difference of one unit of money, one row or one bit shows; order doesn't.
func TestDigestsAreCompared(t *testing.T) {
	t.Parallel()
	a := []group{{1, "SETTLED", "CNY", 2, "30", 99}, {1, "SETTLED", "JPY", 1, "7", 5}, {2, "REVERSED", "CNY", 1, "4", 6}}
	if d := differing(a, []group{a[2], a[0], a[1]}); len(d) != 0 {
		t.Errorf("the same in another order: %+v", d)
	}
	for _, other := range [][]group{
		{{1, "SETTLED", "CNY", 2, "31", 99}, a[1], a[2]},
		{{1, "SETTLED", "CNY", 2, "30", 98}, a[1], a[2]},
		{{1, "SETTLED", "CNY", 3, "30", 99}, a[1], a[2]},
		{a[1], a[2]},
		{{2, "SETTLED", "CNY", 2, "30", 99}, a[1], a[2]},
	} {
		for _, d := range [][]pairOf{differing(a, other), differing(other, a)} {
			if len(d) == 0 || d[0].key != 1 || d[0].currency != "CNY" {
				t.Errorf("%+v beside %+v: %+v", a, other, d)
			}
		}
	}
}

func TestWindows(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	var got []time.Duration
	for _, all := range []time.Duration{time.Hour, 50 * day, 365 * 20 * day, 365 * 200 * day} {
		got = append(got, wide(day, all))
	}
	if d := cmp.Diff([]time.Duration{day, day, 73 * day, 366*day - time.Hour}, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
