package idgen

import (
	"errors"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/idgen/idgenapi"
)

var noon = id.Epoch.Add(200*24*time.Hour + 12*time.Hour)

func TestDecide(t *testing.T) {
	t.Parallel()
	const inc = "7/00000001/1"
	at := id.SeqAt(noon)
	top := id.SeqAt(noon.Add(id.Budget))
	ms := noon.Sub(id.Epoch).Milliseconds()
	used := row{found: true, hi: at - 5000, incarnation: inc}
	with := func(f func(*row)) row { r := used; f(&r); return r }
	same := clocks{own: noon, database: noon}
	for _, tc := range []struct {
		name   string
		row    row
		floor  int64
		size   int64
		clocks clocks
		lo, hi int64
		err    error
		paused int64
	}{
		{name: "the time is the floor", row: used, size: 1000, clocks: same, lo: at, hi: at + 1000},
		{name: "never leased", row: row{found: true, incarnation: inc}, size: 1000, clocks: same, lo: at, hi: at + 1000},
		{name: "above the row", row: with(func(r *row) { r.hi = at + 7 }), size: 10, clocks: same, lo: at + 7, hi: at + 17},
		{name: "above the caller", row: used, floor: at + 9, size: 10, clocks: same, lo: at + 9, hi: at + 19},
		{name: "cut short", row: with(func(r *row) { r.hi = top - 3 }), size: 1000, clocks: same, lo: top - 3, hi: top},
		{name: "used up", row: with(func(r *row) { r.hi = top }), size: 1, clocks: same, err: idgenapi.ErrBudget},
		{name: "behind the row", row: with(func(r *row) { r.hi = top + 1 }), size: 1, clocks: same, err: idgenapi.ErrClock},
		{name: "behind the caller", row: used, floor: top + 1, size: 1, clocks: same, err: idgenapi.ErrClock},
		{name: "no row", row: row{}, size: 1, clocks: same, err: idgenapi.ErrPaused, paused: ms + 65_000},
		{name: "another incarnation", row: with(func(r *row) { r.incarnation = "old" }), size: 1, clocks: same, err: idgenapi.ErrPaused, paused: ms + 65_000},
		{name: "changed again in a pause", row: with(func(r *row) { r.incarnation = "old"; r.pausedUntil = ms + 1 }), size: 1, clocks: same, err: idgenapi.ErrPaused, paused: ms + 65_000},
		{name: "in a pause", row: with(func(r *row) { r.pausedUntil = ms + 1 }), size: 1, clocks: same, err: idgenapi.ErrPaused, paused: ms + 1},
		{name: "after a pause", row: with(func(r *row) { r.pausedUntil = ms }), size: 10, clocks: same, lo: at, hi: at + 10, paused: ms},
		{name: "a day ahead of the database", row: used, size: 1, clocks: clocks{own: noon, database: noon.Add(-24*time.Hour - 1)}, err: idgenapi.ErrClock},
		{name: "a day ahead of the caller", row: used, size: 1, clocks: clocks{own: noon, database: noon, caller: noon.Add(-24*time.Hour - 1)}, err: idgenapi.ErrClock},
		{name: "an hour ahead of the caller", row: used, size: 9, clocks: clocks{own: noon, database: noon, caller: noon.Add(-time.Hour)}, lo: at, hi: at + 9},
		{name: "an hour ahead of the database", row: used, size: 9, clocks: clocks{own: noon, database: noon.Add(-time.Hour)}, err: idgenapi.ErrClock},
		{name: "an hour behind the database", row: used, size: 9, clocks: clocks{own: noon, database: noon.Add(time.Hour)}, err: idgenapi.ErrClock},
		{name: "begins at the later clock", row: used, size: 9, clocks: clocks{own: noon.Add(-10 * time.Second), database: noon}, lo: at, hi: at + 9},
		{name: "ends by the earlier clock", row: with(func(r *row) { r.hi = top - 1_000_005 }), size: 9, clocks: clocks{own: noon.Add(-10 * time.Second), database: noon}, lo: top - 1_000_005, hi: top - 1_000_000},
		{name: "a pause begins by the later clock", row: row{}, size: 1, clocks: clocks{own: noon, database: noon.Add(-time.Second)}, err: idgenapi.ErrPaused, paused: ms + 65_000},
		{name: "a pause ends by the earlier clock", row: with(func(r *row) { r.pausedUntil = ms }), size: 1, clocks: clocks{own: noon, database: noon.Add(-time.Second)}, err: idgenapi.ErrPaused, paused: ms},
		{name: "before the epoch", row: used, size: 1, clocks: clocks{own: id.Epoch.Add(-1), database: noon}, err: idgenapi.ErrClock},
	} {
		t.Run(tc.name, func(t *testing.T) {
			next, lease, err := decide(tc.row, inc, idgenapi.LeaseRequest{Floor: tc.floor, Size: tc.size}, tc.clocks)
			if !errors.Is(err, tc.err) || lease != (idgenapi.Lease{Lo: tc.lo, Hi: tc.hi}) {
				t.Fatalf("decide = %+v, %v, want [%d, %d), %v", lease, err, tc.lo, tc.hi, tc.err)
			}
			if next.pausedUntil != tc.paused {
				t.Errorf("paused until %d, want %d", next.pausedUntil, tc.paused)
			}
			if err == nil && next.hi != lease.Hi || err != nil && next.hi != tc.row.hi {
				t.Errorf("hi became %d", next.hi)
			}
			if errors.Is(err, idgenapi.ErrClock) && next != tc.row {
				t.Errorf("a clock that can't be right changed the row: %+v", next)
			}
		})
	}
}

// Those who wait together are decided one after the other; when there is less than
// they want, each gets its share, and none nothing.
func TestDecideAll(t *testing.T) {
	t.Parallel()
	const inc = "7/00000001/1"
	top := id.SeqAt(noon.Add(id.Budget))
	asks := func(sizes ...int64) (out []idgenapi.LeaseRequest) {
		for _, n := range sizes {
			out = append(out, idgenapi.LeaseRequest{Size: n})
		}
		return out
	}
	far := asks(10, 10)
	far[0].Floor = top + 1
	ahead := asks(10, 10)
	ahead[1].NowMS = noon.Add(-25 * time.Hour).UnixMilli()
	for _, tc := range []struct {
		name string
		left int64
		asks []idgenapi.LeaseRequest
		want []int64 // sizes, 0 = refused
		errs []error
	}{
		{"enough for all", 1_000, asks(10, 500, 490), []int64{10, 500, 490}, nil},
		{"a share each", 1_000, asks(10_000, 100, 10_000, 10_000), []int64{250, 100, 325, 325}, nil},
		{"one each", 3, asks(50, 50, 50), []int64{1, 1, 1}, nil},
		{"fewer than wait", 1, asks(50, 50), []int64{1, 0}, []error{nil, idgenapi.ErrBudget}},
		{"one asks from beyond", 1_000, far, []int64{0, 10}, []error{idgenapi.ErrClock, nil}},
		{"one caller's clock is off", 1_000, ahead, []int64{10, 0}, []error{nil, idgenapi.ErrClock}},
	} {
		r := row{found: true, hi: top - tc.left, incarnation: inc}
		next, got := decideAll(r, inc, tc.asks, noon, noon)
		lo := r.hi
		for i, a := range got {
			var want error
			if tc.errs != nil {
				want = tc.errs[i]
			}
			if !errors.Is(a.err, want) || a.lease.Hi-a.lease.Lo != tc.want[i] || a.err == nil && a.lease.Lo != lo {
				t.Errorf("%s: %d is [%d, %d), %v, want %d from %d, %v", tc.name, i, a.lease.Lo, a.lease.Hi, a.err, tc.want[i], lo, want)
			}
			lo += tc.want[i]
		}
		if next.hi != lo {
			t.Errorf("%s: hi became %d, want %d", tc.name, next.hi, lo)
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	good := idgenapi.LeaseRequest{Kind: idgenapi.Order, Size: 1000}
	if err := validate(good); err != nil {
		t.Fatal(err)
	}
	for field, spoil := range map[string]func(*idgenapi.LeaseRequest){
		"kind":   func(r *idgenapi.LeaseRequest) { r.Kind = "cat" },
		"floor":  func(r *idgenapi.LeaseRequest) { r.Floor = -1 },
		"size":   func(r *idgenapi.LeaseRequest) { r.Size = maxSize + 1 },
		"now_ms": func(r *idgenapi.LeaseRequest) { r.NowMS = -1 },
		"holder": func(r *idgenapi.LeaseRequest) { r.Holder = string(make([]byte, 101)) },
	} {
		bad := good
		spoil(&bad)
		if e := errs.From(validate(bad)); e == nil || e.Kind != errs.Invalid || e.Field != field {
			t.Errorf("%s: %v", field, e)
		}
	}
	for _, size := range []int64{0, -1} {
		if validate(idgenapi.LeaseRequest{Kind: idgenapi.Order, Size: size}) == nil {
			t.Errorf("size %d was let through", size)
		}
	}
}

// Numbers of kinds are stored: their order must never change.
func TestKindNumbersStand(t *testing.T) {
	t.Parallel()
	for want, kind := range []string{"", "user", "product", "sku", "order", "transfer", "hold", "address", "deposit"} {
		if got := number(kind); got != want {
			t.Errorf("number(%q) = %d, want %d", kind, got, want)
		}
	}
}
