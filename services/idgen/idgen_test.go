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
		{name: "an hour ahead of both", row: used, size: 9, clocks: clocks{own: noon, database: noon.Add(-time.Hour), caller: noon.Add(-time.Hour)}, lo: at, hi: at + 9},
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
