package load

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit"
)

func TestMixIsExact(t *testing.T) {
	t.Parallel()
	const cells, rounds = 4, 40
	for _, search := range []bool{true, false} {
		p := newPlanner(7, cells, 5, search, nil)
		kindsOf := make([][kinds]int, cells)
		var far, all [kinds]int
		doors := map[int]int{}
		for range 20 * cells * rounds {
			s := p.next()
			kindsOf[s.home][s.kind]++
			all[s.kind]++
			if s.other != s.home {
				far[s.kind]++
			} else if s.kind == Transfer && s.peer == s.user || s.kind == Order && s.user == seller {
				t.Fatal("somebody pays, or buys from, themselves")
			}
			switch s.via {
			case s.home:
				doors[0]++
			case viaEdge:
				doors[2]++
			default:
				doors[1]++
			}
		}
		want := [kinds]int{8 * rounds, 2 * rounds, 3 * rounds, 3 * rounds, 2 * rounds, rounds, rounds}
		if !search {
			want[Browse], want[Search] = 10*rounds, 0
		}
		for home, got := range kindsOf {
			if got != want {
				t.Errorf("home %d: %v, want %v", home, got, want)
			}
		}
		if far[Order]*2 != all[Order] || far[Transfer]*4 != all[Transfer]*3 {
			t.Errorf("far: %d of %d orders, %d of %d transfers", far[Order], all[Order], far[Transfer], all[Transfer])
		}
		if doors[0] == 0 || doors[1] == 0 || doors[2] == 0 {
			t.Errorf("own gateway, others, edge: %v", doors)
		}
	}
}

func TestSameSeedSamePlan(t *testing.T) {
	t.Parallel()
	same, other := 0, 0
	a, b, c := newPlanner(1, 4, 9, true, nil), newPlanner(1, 4, 9, true, nil), newPlanner(2, 4, 9, true, nil)
	for range 500 {
		x, y, z := a.next(), b.next(), c.next()
		if x == y {
			same++
		}
		if x == z {
			other++
		}
	}
	if same != 500 || other > 50 {
		t.Errorf("%d of 500 equal from one seed, %d from another", same, other)
	}
}

// A home's users stay out of the doors that are closed to them.
func TestDoors(t *testing.T) {
	t.Parallel()
	p := newPlanner(3, 3, 4, false, func(int) []int { return []int{0, 1} })
	edge := map[int]int{}
	for range 600 {
		s := p.next()
		if s.via == 2 {
			t.Fatalf("home %d went through the closed gateway", s.home)
		}
		if s.via == viaEdge {
			edge[s.home]++
		}
	}
	if len(edge) != 3 {
		t.Errorf("who used the edge: %v", edge)
	}
}

// Without the edge everybody asks a gateway that is open to them.
func TestEdgeless(t *testing.T) {
	t.Parallel()
	p := newPlanner(3, 3, 4, false, func(home int) []int {
		if home == 2 {
			return []int{2}
		}
		return []int{0, 1}
	})
	p.edgeless = true
	seen := map[[2]int]bool{}
	for range 600 {
		s := p.next()
		if s.via == viaEdge || (s.home == 2) != (s.via == 2) {
			t.Fatalf("home %d went through %d", s.home, s.via)
		}
		seen[[2]int{s.home, s.via}] = true
	}
	if len(seen) != 5 {
		t.Errorf("home and gateway: %v", seen)
	}
}

func TestSchedule(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		n    int64
		rate float64
		want time.Duration
	}{{0, 80, 0}, {80, 80, time.Second}, {1, 4, 250 * time.Millisecond}, {3600, 0.5, 2 * time.Hour}} {
		if got := when(tc.n, tc.rate); got != tc.want {
			t.Errorf("when(%d, %g) = %s, want %s", tc.n, tc.rate, got, tc.want)
		}
	}
}

func TestPercentiles(t *testing.T) {
	t.Parallel()
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i)) // 1..100, not sorted
	}
	for _, tc := range []struct {
		all  []time.Duration
		p    float64
		want time.Duration
	}{
		{nil, 99, 0},
		{[]time.Duration{5}, 50, 5},
		{[]time.Duration{5}, 99, 5},
		{[]time.Duration{2, 1}, 50, 1},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
		{append([]time.Duration{500, 501}, hundred...), 99, 500}, // 101st of 102
	} {
		if got := Percentile(tc.all, tc.p); got != tc.want {
			t.Errorf("p%g of %d = %d, want %d", tc.p, len(tc.all), got, tc.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("Percentile sorted its input")
	}
	for _, tc := range []struct {
		all  []time.Duration
		want time.Duration
	}{{nil, 0}, {[]time.Duration{3}, 3}, {[]time.Duration{9, 1, 5}, 5}, {[]time.Duration{8, 2, 4, 100}, 6}} {
		if got := Median(tc.all); got != tc.want {
			t.Errorf("Median(%v) = %d, want %d", tc.all, got, tc.want)
		}
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	got := Lines([]Sample{
		{Kind: Order, Home: 0, Took: 10 * ms, OK: true},
		{Kind: Order, Home: 1, Took: 20 * ms, OK: true},
		{Kind: Order, Home: 1, Took: 30 * ms},
	}, []string{"c1", "c2"}, false)
	if len(got) != 6*3 {
		t.Errorf("%d lines, want every kind of every home and of all: 18", len(got))
	}
	var orders []Line
	for _, l := range got {
		if l.Kind == "order" {
			orders = append(orders, l)
		} else if l.Requests != 0 {
			t.Errorf("%+v of nothing", l)
		}
	}
	want := []Line{
		{"order", "*", 3, 1, 20, 30}, {"order", "c1", 1, 0, 10, 10}, {"order", "c2", 2, 1, 20, 30},
	}
	if diff := cmp.Diff(want, orders); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	good := func() Options {
		return Options{Cells: []Cell{{"c1", "http://127.0.0.1:1"}}, Edge: "http://localhost:2", Rate: 1, Users: 2}
	}
	o := good()
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Options){
		"no rate":            func(o *Options) { o.Rate = 0 },
		"rate that is none":  func(o *Options) { o.Rate = math.NaN() },
		"too fast":           func(o *Options) { o.Rate = maxRate + 1 },
		"one user":           func(o *Options) { o.Users = 1 },
		"too many users":     func(o *Options) { o.Users = maxUsers + 1 },
		"no cell":            func(o *Options) { o.Cells = nil },
		"somebody's gateway": func(o *Options) { o.Cells[0].Gateway = "http://192.0.2.1:80" },
		"somebody's edge":    func(o *Options) { o.Edge = "http://example.com" },
		"no edge":            func(o *Options) { o.Edge = "" },
	} {
		o := good()
		spoil(&o)
		var usage cellkit.Usage
		if err := o.check(); !errors.As(err, &usage) {
			t.Errorf("%s: %v, want a usage error", name, err)
		}
	}
}

func TestPhonesDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, seed := range []uint64{1, 2} {
		for cell := range 8 {
			for user := range maxUsers {
				p := phone(seed, cell, user)
				if len(p) != len("+8613800000001") || seen[p] {
					t.Fatalf("phone %s of seed %d, cell %d, user %d", p, seed, cell, user)
				}
				seen[p] = true
			}
		}
	}
	if first, second := phone(5, 1, 2), phone(5, 1, 2); first != second {
		t.Errorf("phones %s and %s from one seed", first, second)
	}
}

// Orders are remembered by their numbers, and looked for evenly over all of them.
func TestOrdersAreRemembered(t *testing.T) {
	t.Parallel()
	l := &Load{o: Options{Cells: make([]Cell, 2)}, errors: map[int][]string{}}
	l.note(shot{kind: Order, home: 1, user: 3, other: 0}, 0, 201, []byte(`{"number":"A"}`), nil)
	l.note(shot{kind: Order, home: 1, other: 1}, 0, 503, []byte(`{"number":"B"}`), nil)
	l.note(shot{kind: Cart, home: 1}, 0, 200, []byte(`{"number":"C"}`), nil)
	if diff := cmp.Diff([]bought{{1, 3, 0, "A"}}, l.orders, cmp.AllowUnexported(bought{})); diff != "" {
		t.Errorf("remembered (-want +got):\n%s", diff)
	}
	for n, want := range map[int]int{0: 0, 1: 1, 10: 10, 11: 6, 20: 10, 1001: 10} {
		if got := len(spread(make([]bought, n), 10)); got != want {
			t.Errorf("%d of %d are looked for, want %d", got, n, want)
		}
	}
}
