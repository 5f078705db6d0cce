package inventory

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/inventory/inventoryapi"
)

var (
	states = []State{Unknown, Held, Confirmed, Released, Expired}
	events = []Event{Reserve, Confirm, Release, Expire}
)

func TestNextIsWhole(t *testing.T) {
	t.Parallel()
	type key struct {
		s State
		e Event
	}
	want := map[key]struct {
		step  Step
		reply string // when there was enough
	}{
		{Unknown, Reserve}:   {Step{Held, FreeToHeld, Unknown}, "stock.reserved"},
		{Unknown, Confirm}:   {Step{Confirmed, FreeToSold, Released}, "stock.confirmed"},
		{Unknown, Release}:   {Step{Next: Released}, "stock.released"},
		{Unknown, Expire}:    {Step{Next: Unknown}, "stock.released"},
		{Held, Reserve}:      {Step{Next: Held}, "stock.reserved"},
		{Held, Confirm}:      {Step{Next: Confirmed, Move: HeldToSold}, "stock.confirmed"},
		{Held, Release}:      {Step{Next: Released, Move: HeldToFree}, "stock.released"},
		{Held, Expire}:       {Step{Next: Expired, Move: HeldToFree}, "stock.released"},
		{Confirmed, Reserve}: {Step{Next: Confirmed}, "stock.reserved"},
		{Confirmed, Confirm}: {Step{Next: Confirmed}, "stock.confirmed"},
		{Confirmed, Release}: {Step{Next: Released, Move: SoldToFree}, "stock.released"},
		{Confirmed, Expire}:  {Step{Next: Confirmed}, "stock.released"},
		{Released, Reserve}:  {Step{Next: Released}, "stock.refused"},
		{Released, Confirm}:  {Step{Next: Released}, "stock.ended"},
		{Released, Release}:  {Step{Next: Released}, "stock.released"},
		{Released, Expire}:   {Step{Next: Released}, "stock.released"},
		{Expired, Reserve}:   {Step{Next: Expired}, "stock.refused"},
		{Expired, Confirm}:   {Step{Next: Expired}, "stock.ended"},
		{Expired, Release}:   {Step{Next: Expired}, "stock.released"},
		{Expired, Expire}:    {Step{Next: Expired}, "stock.released"},
	}
	for _, s := range states {
		for _, e := range events {
			w, ok := want[key{s, e}]
			if !ok {
				t.Errorf("the table has no row for %q, %s", s, e)
			}
			got := Next(s, e)
			if diff := cmp.Diff(w.step, got); diff != "" {
				t.Errorf("Next(%q, %s) (-want +got):\n%s", s, e, diff)
			}
			if r := reply(e, got.Next); r != w.reply {
				t.Errorf("reply to %s in %q = %s, want %s", e, s, r, w.reply)
			}
		}
	}
}

// Every sequence of six events keeps the counters right, and an end is for ever.
func TestEverySequence(t *testing.T) {
	t.Parallel()
	var walk func(s State, stock Stock, depth int)
	walk = func(s State, stock Stock, depth int) {
		if depth == 0 {
			return
		}
		for _, e := range events {
			step := Next(s, e)
			next := step.Next
			after, ok := stock.Apply(step.Move, 3)
			if !ok {
				if step.Move != FreeToHeld && step.Move != FreeToSold {
					t.Fatalf("%s in %q found too few units to give back: %+v", e, s, stock)
				}
				next, after = step.Short, stock
			}
			if (s == Released || s == Expired) && (next != s || after != stock) {
				t.Fatalf("%s changed an ended hold: %q to %q", e, s, next)
			}
			var held, sold int64
			switch next {
			case Held:
				held = 3
			case Confirmed:
				sold = 3
			}
			if after.Held != held || after.Sold != sold || after.Free+after.Held+after.Sold != after.Stocked {
				t.Fatalf("%s in %q leaves %+v in %q", e, s, after, next)
			}
			walk(next, after, depth-1)
		}
	}
	walk(Unknown, Stock{Stocked: 3, Free: 3}, 6)
	walk(Unknown, Stock{Stocked: 2, Free: 2}, 6)
}

func TestFromMessage(t *testing.T) {
	t.Parallel()
	line := func(sku, q int64) inventoryapi.Line { return inventoryapi.Line{SKU: id.ID(sku), Quantity: q} }
	good := inventoryapi.Reserve{Hold: 1, Order: 2, Lines: []inventoryapi.Line{line(9, 1), line(4, 2)}}
	h, err := fromMessage(good)
	if err != nil || h.Lines[0] != line(4, 2) || h.Lines[1] != line(9, 1) {
		t.Errorf("fromMessage = %+v, %v, want the lines by SKU", h, err)
	}
	for name, lines := range map[string][]inventoryapi.Line{
		"no lines": {}, "zero": {line(1, 0)}, "negative": {line(1, -1)}, "overflow": {line(1, 1<<62)},
		"twice": {line(1, 1), line(2, 1), line(1, 1)}, "no SKU": {line(0, 1)}, "too many": make([]inventoryapi.Line, 51),
	} {
		if _, err := fromMessage(inventoryapi.Reserve{Hold: 1, Order: 2, Lines: lines}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
