package order

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
)

var (
	states = []State{Pending, Reserved, Paid, Shipped, Completed, Cancelled, Refunded}
	kinds  = []EventKind{EvReserved, EvRefused, EvConfirmed, EvEnded, EvReleased, EvFrozen, EvDeclined, EvCancel, EvDeadline}
)

// two is an order with two sellers' holds, both in the given state.
func two(s State, h HoldState) Order {
	o := Order{ID: 1, State: s, Payment: PaymentNone, Fulfilment: FulfilmentWaiting, Total: 10, Holds: []Hold{{ID: 11, State: h}, {ID: 12, State: h}}}
	if s == Reserved {
		o.Payment = PaymentFrozen
	}
	return o
}

// eventOn is an event of that kind, about the first hold if it is about one.
func eventOn(k EventKind) Event {
	e := Event{Kind: k}
	if e.aboutHold() {
		e.Hold = 11
	}
	if k == EvRefused {
		e.Reason = "OUT_OF_STOCK"
	}
	return e
}

// S-O08: every event in every state.
func TestScenario_O08_EveryEventInEveryState(t *testing.T) {
	t.Parallel()
	type result struct {
		State  State
		Effect Effect
		Err    string
	}
	const impossible = "ORDER_EVENT"
	want := map[State]map[EventKind]result{
		Pending: { // the other hold is reserved, this one asked
			EvReserved: {Pending, Freeze, ""}, EvRefused: {Cancelled, Release, ""},
			EvConfirmed: {Pending, Nothing, impossible}, EvEnded: {Pending, Nothing, impossible}, EvReleased: {Pending, Nothing, impossible},
			EvFrozen: {Pending, Nothing, impossible}, EvDeclined: {Cancelled, Release, ""},
			EvCancel: {Cancelled, Release, ""}, EvDeadline: {Cancelled, Release, ""},
		},
		Reserved: { // the other hold is confirmed, this one reserved
			EvReserved: {Reserved, Nothing, ""}, EvRefused: {Reserved, Nothing, impossible},
			EvConfirmed: {Paid, Pay, ""}, EvEnded: {Cancelled, UnfreezeAndRelease, ""}, EvReleased: {Reserved, Nothing, impossible},
			EvFrozen: {Reserved, Nothing, ""}, EvDeclined: {Reserved, Nothing, impossible},
			EvCancel: {Cancelled, UnfreezeAndRelease, ""}, EvDeadline: {Reserved, Nothing, ""},
		},
	}
	for _, s := range states {
		for _, k := range kinds {
			o := two(s, Asked)
			switch s {
			case Pending:
				o.Holds[1].State = HoldReserved
			case Reserved:
				o.Holds[0].State, o.Holds[1].State = HoldReserved, HoldConfirmed
			case Cancelled:
				o.Reason = ReasonUser
			}
			w, ok := want[s][k]
			if !ok { // nothing moves an order on from the other states
				w = result{State: s}
				if k == EvCancel && s != Cancelled {
					w.Err = "ORDER_NOT_CANCELLABLE"
				}
			}
			before := slices.Clone(o.Holds)
			next, effect, err := o.Next(eventOn(k))
			got := result{next.State, effect, ""}
			if err != nil {
				got.Err = errs.From(err).Code
			}
			if diff := cmp.Diff(w, got); diff != "" {
				t.Errorf("%s in %s (-want +got):\n%s", k, s, diff)
			}
			if diff := cmp.Diff(before, o.Holds); diff != "" {
				t.Errorf("%s in %s changed the order it was asked about:\n%s", k, s, diff)
			}
		}
	}
}

// Every sequence of events up to six long, over two holds: an order never leaves
// an end, is paid only when all its holds are confirmed, and its money is frozen
// and given back at most once each.
func TestEverySequence(t *testing.T) {
	t.Parallel()
	var events []Event
	for _, k := range kinds {
		e := eventOn(k)
		events = append(events, e)
		if e.Hold != 0 {
			e.Hold = 12
			events = append(events, e)
		}
	}
	seen := map[string]bool{}
	var walk func(o Order, frozen, depth int, path string)
	walk = func(o Order, frozen, depth int, path string) {
		key := fmt.Sprint(o.State, o.Reason, o.Payment, o.Holds, frozen, depth)
		if depth == 0 || seen[key] {
			return
		}
		seen[key] = true
		for _, e := range events {
			next, effect, err := o.Next(e)
			at := path + " " + string(e.Kind)
			if err != nil {
				continue // refused or parked: nothing is stored
			}
			money := frozen
			switch effect {
			case Confirm:
				money++
			case UnfreezeAndRelease:
				money--
			case Pay:
				if !next.all(HoldConfirmed) || money != 1 {
					t.Fatalf("%s: paid with holds %v and %d frozen", at, next.Holds, money)
				}
			}
			wantFrozen := map[string]int{PaymentNone: 0, PaymentFrozen: 1, PaymentPaid: 1, PaymentReturned: 0}[next.Payment]
			if money != wantFrozen {
				t.Fatalf("%s: payment %s with %d frozen", at, next.Payment, money)
			}
			if (o.State == Paid || o.State == Cancelled) && (next.State != o.State || effect != Nothing) {
				t.Fatalf("%s: left %s for %s", at, o.State, next.State)
			}
			walk(next, money, depth-1, at)
		}
	}
	walk(two(Pending, Asked), 0, 7, "")
	for _, s := range []State{Paid, Cancelled} {
		found := false
		for k := range seen {
			found = found || len(k) > len(s) && k[:len(s)] == string(s)
		}
		if !found {
			t.Errorf("no sequence reached %s", s)
		}
	}
}

func TestUnknownHold(t *testing.T) {
	t.Parallel()
	for _, s := range states {
		for _, k := range kinds {
			for _, hold := range []id.ID{0, 99} {
				e := Event{Kind: k, Hold: hold}
				if _, _, err := two(s, Asked).Next(e); e.aboutHold() && !errors.Is(err, errImpossible) {
					t.Errorf("%s of hold %d in %s: %v, want refused", k, hold, s, err)
				}
			}
		}
	}
}

func TestPrice(t *testing.T) {
	t.Parallel()
	sku := func(n, seller, price int64, currency string, active bool) SKU {
		return SKU{SKU: id.ID(n), Product: id.ID(n + 100), Seller: id.ID(seller), SellerSlot: 5, Title: "t", Price: price, Currency: currency, Active: active}
	}
	catalog := []SKU{
		sku(1, 7, 250, "CNY", true), sku(2, 8, 100, "CNY", true), sku(3, 7, 1, "USD", true), sku(4, 7, 1, "CNY", false),
		sku(5, 7, maxTotal, "CNY", true), sku(6, 7, maxTotal+1, "CNY", true), sku(9, 7, 50, "CNY", true),
	}
	o, err := price(42, map[id.ID]int64{9: 1, 1: 2, 2: 3}, catalog)
	if err != nil {
		t.Fatal(err)
	}
	// S-O10, S-O12: the parts are the whole.
	var lines, parts int64
	for _, l := range o.Lines {
		lines += l.Price * l.Quantity
	}
	for _, h := range o.Holds {
		parts += h.Amount
	}
	if o.Total != 850 || lines != 850 || parts != 850 || len(o.Holds) != 2 || o.Holds[0].Amount != 550 {
		t.Errorf("total %d, lines %d, parts %d %+v, want 850 in two parts", o.Total, lines, parts, o.Holds)
	}
	if o.Lines[0].SKU != 1 || o.Lines[1].SKU != 2 || o.Lines[2].SKU != 9 {
		t.Errorf("lines %+v, want them by SKU", o.Lines)
	}
	for name, tc := range map[string]struct {
		buyer id.ID
		want  map[id.ID]int64
		err   error
	}{
		"unknown":        {42, map[id.ID]int64{77: 1}, ErrUnknownSKU},
		"not for sale":   {42, map[id.ID]int64{4: 1}, ErrUnknownSKU},
		"own":            {7, map[id.ID]int64{1: 1}, ErrOwn},
		"two currencies": {42, map[id.ID]int64{1: 1, 3: 1}, ErrCurrencies},
		"too much":       {42, map[id.ID]int64{5: 2}, ErrTotal},
		"too dear":       {42, map[id.ID]int64{6: 1}, ErrTotal},
	} {
		if _, err := price(tc.buyer, tc.want, catalog); !errors.Is(err, tc.err) {
			t.Errorf("%s: %v, want %v", name, err, tc.err)
		}
	}
}
