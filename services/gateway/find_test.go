package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/relay"
	"example.com/cellmart/platform/routing"
)

// alone moves users into private slots of their own, in the cells given.
func (w *world) alone(t *testing.T, users []id.ID, cells ...string) []routing.Slot {
	t.Helper()
	var slots []routing.Slot
	w.publish(t, func(s *routing.Spec) {
		for i, u := range users {
			p := routing.FirstUserSlot + routing.Slot(len(s.Overrides))
			s.Overrides[int64(u)] = p
			s.Private[p] = routing.Assignment{Owner: cells[i], Epoch: 1}
			slots = append(slots, p)
		}
	})
	return slots
}

// keeps makes a cell's services have things in some slots only: 404 elsewhere.
func (f *fake) keeps(slots ...routing.Slot) {
	f.answers(func(w http.ResponseWriter, r *http.Request) bool {
		for _, s := range slots {
			if r.Header.Get(call.HeaderSlot) == s.String() {
				return false
			}
		}
		refuse(w, call.Problem{Status: 404, Code: "NOT_FOUND"})
		return true
	})
}

// slots lists what a cell's services were asked about since before.
func (f *fake) slots(before int) string {
	var out []string
	for _, c := range f.calls()[before:] {
		out = append(out, c.Header.Get(call.HeaderSlot))
	}
	return strings.Join(out, " ")
}

func numberOf(t *testing.T, order id.ID) string {
	t.Helper()
	return numberReader().Encode(order)
}

// S-R04: a user who was moved alone is served by the new home, whoever is asked.
func TestScenario_R04_UserMovedAlone(t *testing.T) {
	w := newWorld(t, "c1", "c2", "c3")
	user := w.userOf("c1")
	neighbour := user + 1<<14 // of the same slot
	p := w.alone(t, []id.ID{user}, "c2")[0]
	for name, c := range w.cells {
		before := len(w.cells["c2"].services.calls())
		do(t, c.public, "GET", "/api/v1/me", "", as("user", user)).want(t, 200, "", "c2")
		do(t, c.public, "POST", "/api/v1/orders", "{}", as("user", user), with(call.HeaderIdempotencyKey, "k")).want(t, 200, "", "c2")
		do(t, c.public, "GET", "/api/v1/operations/"+user.String(), "").want(t, 200, "", "c2")
		if got, want := w.cells["c2"].services.slots(before), fmt.Sprintf("%d %d %d", p, p, p); got != want {
			t.Errorf("by %s c2 was asked about slots %q, want %q", name, got, want)
		}
		do(t, c.public, "GET", "/api/v1/me", "", as("user", neighbour)).want(t, 200, "", "c1")
	}
	t.Run("a gateway with the old table corrects itself", func(t *testing.T) {
		w := newWorld(t, "c1", "c2")
		c1, c2 := w.cells["c1"], w.cells["c2"]
		user := w.userOf("c1")
		old := w.table
		w.alone(t, []id.ID{user}, "c2")
		late := *c1.gateway
		late.table, late.refresh = &routing.Holder{}, func() { late.table.Store(w.table) }
		late.table.Store(old)
		// The old home's database knows the forwarding row.
		c1.services.answers(func(rw http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get(call.HeaderSlot) == user.Slot().String() {
				refuse(rw, call.Problem{Status: 421, Code: "MISROUTED"})
				return true
			}
			return false
		})
		do(t, startPublic(t, &late), "GET", "/api/v1/me", "", as("user", user)).want(t, 200, "", "c2")
		if n := len(c2.services.calls()); n != 1 {
			t.Errorf("the new home was asked %d times", n)
		}
	})
	t.Run("a home with the old table says nothing about a private slot", func(t *testing.T) {
		w := newWorld(t, "c1", "c2")
		user := w.userOf("c2")
		late := *w.cells["c2"].gateway
		late.table = &routing.Holder{}
		late.table.Store(w.table)
		w.alone(t, []id.ID{user}, "c2")
		peers := startPeers(t, &late)
		for _, path := range []string{"/api/v1/me", "/api/v1/orders/" + numberOf(t, user)} {
			do(t, peers, "GET", path, "", as("user", user), hop(routing.FirstUserSlot, 1, "c1")).want(t, 503, "ROUTE_UNSETTLED", "c2")
		}
		if n := len(w.cells["c2"].services.calls()); n != 0 {
			t.Errorf("a service was asked %d times about a slot that isn't the user's", n)
		}
	})
}

// P8: an order number is looked up at its slot's home and, after a 404, at the
// homes of the private slots taken from it. "Not found" needs all their answers.
func TestScenario_R04_ThingsOfMovedUsers(t *testing.T) {
	w := newWorld(t, "c1", "c2", "c3")
	c1, c2, c3 := w.cells["c1"], w.cells["c2"], w.cells["c3"]
	user := w.userOf("c1")
	h := user.Slot()
	p := w.alone(t, []id.ID{user, user + 1<<14, user + 2<<14}, "c2", "c3", "c1")
	order := id.Make(77, h, false)
	paths := map[string]string{"GET": "/api/v1/orders/" + numberOf(t, order), "POST": "/api/v1/orders/" + numberOf(t, order) + "/cancel"}
	type asked struct{ C1, C2, C3 string }
	for _, method := range []string{"GET", "POST"} {
		ask := func(from *cell, keep ...routing.Slot) (answer, asked) {
			for _, c := range w.cells {
				c.services.keeps(keep...)
			}
			n1, n2, n3 := len(c1.services.calls()), len(c2.services.calls()), len(c3.services.calls())
			a := do(t, from.public, method, paths[method], "", as("user", user))
			return a, asked{c1.services.slots(n1), c2.services.slots(n2), c3.services.slots(n3)}
		}
		for _, tc := range []struct {
			name string
			from *cell
			keep routing.Slot
			cell string
			want asked
		}{
			{"at home: nobody else is asked", c2, h, "c1", asked{C1: h.String()}},
			{"with the first who was moved", c1, p[0], "c2", asked{C1: h.String(), C2: p[0].String()}},
			{"with the second, seen from a third cell", c2, p[1], "c3", asked{h.String(), p[0].String(), p[1].String()}},
			{"with one who is in the home's cell", c3, p[2], "c1", asked{fmt.Sprint(h, " ", p[2]), p[0].String(), p[1].String()}},
		} {
			a, got := ask(tc.from, tc.keep)
			a.want(t, 200, "", tc.cell)
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s %s: asked (-want +got)\n%s", method, tc.name, d)
			}
		}
		a, _ := ask(c2)
		a.want(t, 404, "NOT_FOUND", "c1") // all have said so
	}
	do(t, c2.public, "GET", "/api/v1/transfers/"+order.String(), "", as("user", user)).want(t, 404, "NOT_FOUND", "c1")
	c2.services.keeps(p[0])
	do(t, c3.public, "GET", "/api/v1/transfers/"+order.String(), "", as("user", user)).want(t, 200, "", "c2")

	t.Run("a home whose database is away has not said no", func(t *testing.T) {
		for _, c := range []*cell{c1, c2} {
			c.services.keeps()
		}
		c3.services.answers(func(w http.ResponseWriter, _ *http.Request) bool {
			refuse(w, call.Problem{Status: 503, Code: "UNAVAILABLE"})
			return true
		})
		do(t, c1.public, "GET", paths["GET"], "", as("user", user)).want(t, 503, "UNAVAILABLE", "c1")
		c2.services.keeps(p[0]) // but another's yes is enough
		do(t, c1.public, "GET", paths["GET"], "", as("user", user)).want(t, 200, "", "c2")
	})
	t.Run("one home unreachable: 503, not 404", func(t *testing.T) {
		for _, c := range w.cells {
			c.services.keeps()
		}
		setFault(t, c3.border, link.Everyone, link.Fault{CutOut: true, CutIn: true})
		a := do(t, c1.public, "GET", paths["GET"], "", as("user", user))
		a.want(t, 503, "CELL_UNREACHABLE", "c1")
		if a.problem.Cell != "c3" {
			t.Errorf("the problem names %q, want c3", a.problem.Cell)
		}
		c1.services.keeps(p[2])
		do(t, c2.public, "GET", paths["GET"], "", as("user", user)).want(t, 200, "", "c1")
		// A number whose slot nobody was taken from doesn't care.
		other := id.Make(77, w.table.SlotsOf("c1")[9], false)
		do(t, c1.public, "GET", "/api/v1/orders/"+numberOf(t, other), "", as("user", user)).want(t, 404, "NOT_FOUND", "c1")
	})
}

// A write whose answer is lost may have been done: nobody else is asked.
func TestLostAnswerEndsTheSearch(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	user := w.userOf("c1")
	w.alone(t, []id.ID{user}, "c2")
	w.cells["c1"].services.answers(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
	for _, at := range []string{"c1", "c2"} { // c2 hears it from c1's gateway
		before := len(w.cells["c2"].services.calls())
		do(t, w.cells[at].public, "POST", "/api/v1/orders/"+numberOf(t, user)+"/cancel", "", as("user", user)).want(t, 503, "OUTCOME_UNKNOWN", at)
		if n := len(w.cells["c2"].services.calls()) - before; n != 0 {
			t.Errorf("by %s: c2's services were asked %d times", at, n)
		}
	}
}

// over is a context that ends between two homes: whoever looks is told so, and
// nothing under way is cut off.
type over struct {
	context.Context
	ended atomic.Bool
}

func (o *over) Err() error {
	if o.ended.Load() {
		return context.DeadlineExceeded
	}
	return nil
}

// A request whose time runs out after the first home's "not found" has not asked
// the others: it is not told that the thing doesn't exist.
func TestNotFoundNeedsAllHomes(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	user := w.userOf("c1")
	w.alone(t, []id.ID{user}, "c2")
	ctx := &over{Context: t.Context()}
	w.cells["c1"].services.answers(func(rw http.ResponseWriter, _ *http.Request) bool {
		ctx.ended.Store(true)
		refuse(rw, call.Problem{Status: 404, Code: "NOT_FOUND"})
		return true
	})
	g := w.cells["c1"].gateway
	j := job{rule: rule{method: "GET", path: "/orders/:number", service: svcOrder, slot: ofNumber}, user: user, slot: user.Slot()}
	var err error
	if j.at, err = g.locate(ctx, j); err != nil {
		t.Fatal(err)
	}
	res, err := g.find(ctx, &j, relay.Request{Method: "GET", Path: "/api/v1/orders/" + numberOf(t, user), Header: http.Header{}})
	if err == nil {
		defer res.Body.Close()
		if res.StatusCode == http.StatusNotFound {
			t.Error("404 after one home of two")
		}
	}
}

// While the payer's cell is away, a payee is told what their own home knows, at
// whatever gateway; and nobody that there's no such transfer.
func TestTransferWithoutThePayersCell(t *testing.T) {
	w := newWorld(t, "c1", "c2", "c3")
	payee, sent := w.userOf("c2"), id.Make(77, w.userOf("c1").Slot(), false)
	path := "/api/v1/transfers/" + sent.String()
	ask := func(at string) answer { return do(t, w.cells[at].public, "GET", path, "", as("user", payee)) }
	from := func(at, cell string) func() bool { // links may be slow for a moment
		return func() bool { a := ask(at); return a.status == 200 && a.header.Get(call.HeaderCell) == cell }
	}
	for _, at := range []string{"c1", "c2", "c3"} {
		waitFor(t, "the payer's home answers at "+at, from(at, "c1"))
	}
	setFault(t, w.cells["c1"].border, link.Everyone, link.Fault{CutOut: true, CutIn: true})
	for _, at := range []string{"c2", "c3"} {
		waitFor(t, "the payee's home answers at "+at, from(at, "c2"))
		calls := w.cells["c2"].services.calls()
		if got := calls[len(calls)-1].Header.Get(call.HeaderSlot); got != payee.Slot().String() {
			t.Errorf("%s: asked for slot %s, want the payee's, %s", at, got, payee.Slot())
		}
	}
	w.cells["c2"].services.keeps() // it hasn't arrived there: the payer's home may have it
	for _, at := range []string{"c2", "c3"} {
		if a := ask(at); a.status != 503 {
			t.Errorf("%s: %d, want 503", at, a.status)
		}
	}
}
