package order

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/bus/bustest"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/inventory/inventoryapi"
	"example.com/cellmart/services/order/orderapi"
)

// audit checks everything at rest: no open message, nothing parked; stock and
// money conserved; every order at an end, paid once or given back once.
func (w *world) audit(deposited int64) {
	w.t.Helper()
	for cell, db := range w.db {
		var parked int
		if err := db.Super.QueryRow(context.Background(), "SELECT count(*) FROM cell.parked").Scan(&parked); err != nil || parked != 0 {
			w.t.Errorf("%s: %d parked (%v)", cell, parked, err)
		}
		// Only what expires by itself may leave before the standby has it (P4.1).
		var early []string
		err := db.Super.QueryRow(context.Background(), `SELECT coalesce(array_agg(DISTINCT kind), '{}') FROM cell.outbox
			WHERE reply_to = '' AND early IS DISTINCT FROM (kind = $1)`, inventoryapi.KindReserve).Scan(&early)
		if err != nil || len(early) > 0 {
			w.t.Errorf("%s: %v leave early and shouldn't, or the other way round (%v)", cell, early, err)
		}
	}
	if due := w.due(); len(due) != 0 {
		w.t.Errorf("open messages at rest: %+v", due)
	}
	// Orders and their money in the buyer's home.
	for what, sql := range map[string]string{
		"undecided orders": `SELECT id FROM orders.orders WHERE state NOT IN ('PAID', 'CANCELLED')`,
		"paid orders with a hold that isn't confirmed": `SELECT o.id FROM orders.orders o JOIN orders.holds h ON h.order_id = o.id
			WHERE o.state = 'PAID' AND h.state <> 'CONFIRMED'`,
		"paid orders whose payments aren't settled once": `SELECT o.id FROM orders.orders o JOIN orders.holds h ON h.order_id = o.id
			LEFT JOIN cell.transfers t ON t.id = h.transfer_id AND t.order_id = o.id AND t.amount = h.amount AND t.state = 'SETTLED'
			WHERE o.state = 'PAID' AND t.id IS NULL`,
		"cancelled orders with a payment": `SELECT o.id FROM orders.orders o JOIN cell.transfers t ON t.order_id = o.id WHERE o.state = 'CANCELLED'`,
		"orders frozen and not given back, or the other way round": `SELECT o.id FROM orders.orders o WHERE
			(SELECT count(*) FROM cell.postings p WHERE p.ref = 'order:' || o.id AND step = 'freeze')
			- (SELECT count(*) FROM cell.postings p WHERE p.ref = 'order:' || o.id AND step = 'unfreeze') <> (o.state = 'PAID')::int`,
		"cancelled orders with a hold that isn't over": `SELECT o.id FROM orders.orders o JOIN orders.holds h ON h.order_id = o.id
			WHERE o.state = 'CANCELLED' AND h.state NOT IN ('REFUSED', 'ENDED', 'RELEASED')`,
		"wallets with money frozen": `SELECT user_id FROM cell.wallets WHERE frozen <> 0`,
		"orders whose lines aren't their total": `SELECT o.id FROM orders.orders o WHERE o.total <> (SELECT sum(price * quantity) FROM orders.lines l WHERE l.order_id = o.id)
			OR o.total <> (SELECT sum(amount) FROM orders.holds h WHERE h.order_id = o.id)`,
		"gaps in a timeline": `SELECT o.id FROM orders.orders o WHERE o.events <> (SELECT count(*) FROM orders.order_events e WHERE e.order_id = o.id)`,
	} {
		if bad := one[[]int64](w, "SELECT coalesce(array_agg(id), '{}') FROM ("+sql+") AS v(id)"); len(bad) != 0 {
			w.t.Errorf("%s: %v", what, bad)
		}
	}
	// Money over both cells.
	var available, clearing, suspense int64
	for _, db := range w.db {
		var a, c, s int64
		if err := db.Super.QueryRow(context.Background(), "SELECT coalesce(sum(available), 0)::bigint, coalesce(sum(clearing), 0)::bigint, coalesce(sum(suspense), 0)::bigint FROM cell.wallets").Scan(&a, &c, &s); err != nil {
			w.t.Fatal(err)
		}
		available, clearing, suspense = available+a, clearing+c, suspense+s
	}
	if available != deposited || clearing != 0 || suspense != 0 {
		w.t.Errorf("available %d, clearing %d, suspense %d, want %d, 0, 0", available, clearing, suspense, deposited)
	}
	w.auditStock()
}

// auditStock: what isn't free any more was sold in a paid order.
func (w *world) auditStock() {
	w.t.Helper()
	w.stock.mu.Lock()
	defer w.stock.mu.Unlock()
	for _, h := range w.stock.holds {
		if h.state == "HELD" {
			w.t.Errorf("a hold is left: %+v", h)
		}
	}
	for v, free := range w.stock.free {
		sold := one[int64](w, `SELECT coalesce(sum(l.quantity), 0)::bigint FROM orders.lines l JOIN orders.orders o ON o.id = l.order_id WHERE o.state = 'PAID' AND l.sku = $1`, v)
		if free+sold != 1000 {
			w.t.Errorf("SKU %d: %d free and %d sold of 1000", v, free, sold)
		}
	}
}

func TestOrderIsPaidAcrossCells(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deposit(buyer, 10_000)
	// SKU 0 and 1 are of sellers in c2, SKU 2 of one in c1; SKU 0 comes twice.
	placed := w.want(202, "POST", "/orders", items(0, 1, 1, 2, 2, 1, 0, 1), buyer, "k")
	if placed.State != "PENDING" || placed.Payment != "NONE" || len(placed.Lines) != 3 || len(placed.Parts) != 3 {
		t.Fatalf("placed %+v", placed)
	}
	w.drain()
	got := w.want(200, "GET", "/orders/"+placed.Number, nil, buyer, "")
	if got.State != "PAID" || got.Payment != "PAID" || got.Fulfilment != "TO_SHIP" || got.Total != (orderapi.Money{Amount: 900, Currency: "CNY"}) {
		t.Errorf("order %+v", got)
	}
	for _, p := range got.Parts {
		if p.TransferState != "SETTLED" || p.State != "CONFIRMED" {
			t.Errorf("part %+v", p)
		}
	}
	var events []string
	for _, e := range got.Timeline {
		events = append(events, e.Event)
	}
	if s := strings.Join(events, " "); !strings.HasPrefix(s, "placed hold_reserved") || !strings.HasSuffix(s, "PAID") || !strings.Contains(s, "RESERVED hold_confirmed") {
		t.Errorf("timeline %s", s)
	}
	if rec := w.ask("POST", "/orders/"+placed.Number+"/cancel", nil, buyer, ""); rec.Code != 409 {
		t.Errorf("cancel of a paid order: %d %s", rec.Code, rec.Body)
	}
	w.audit(10_000)
}

// S-O06: a decline leaves the cart usable and gives everything back once.
func TestScenario_O06_CartAfterADecline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.svc.wait = 20 * time.Second
	stop := w.run()
	for n := range 2 {
		w.want(200, "PUT", "/cart/items/"+sku(n).String(), orderapi.Quantity{Quantity: 2}, buyer, "")
	}
	rec := w.ask("POST", "/orders", "{}", buyer, "k1")
	if rec.Code != 422 || !strings.Contains(rec.Body.String(), "INSUFFICIENT_FUNDS") || rec.Header().Get("Location") == "" {
		t.Fatalf("without money: %d %s", rec.Code, rec.Body)
	}
	w.rest() // what was held is back
	w.stock.set(sku(1), 1)
	if rec := w.ask("POST", "/orders", "{}", buyer, "k2"); rec.Code != 422 || !strings.Contains(rec.Body.String(), "OUT_OF_STOCK") {
		t.Fatalf("without stock: %d %s", rec.Code, rec.Body)
	}
	w.rest()
	w.stock.set(sku(1), 1000)
	w.deposit(buyer, 5_000)
	// The cart has grown since; all of it can be ordered, and is gone then.
	w.want(200, "PUT", "/cart/items/"+sku(2).String(), orderapi.Quantity{Quantity: 1}, buyer, "")
	if o := w.want(201, "POST", "/orders", "{}", buyer, "k3"); len(o.Lines) != 3 || o.Total.Amount != 900 {
		t.Errorf("order %+v", o)
	}
	if rec := w.ask("GET", "/cart", nil, buyer, ""); !strings.Contains(rec.Body.String(), `"items":[]`) {
		t.Errorf("the cart has what was bought: %s", rec.Body)
	}
	if rec := w.ask("POST", "/orders", "{}", buyer, "k4"); rec.Code != 422 || !strings.Contains(rec.Body.String(), "CART_EMPTY") {
		t.Errorf("empty cart: %d %s", rec.Code, rec.Body)
	}
	stop()
	w.drain()
	w.audit(5_000)
}

// rest waits until the background deliveries have nothing left.
func (w *world) rest() {
	w.t.Helper()
	end := time.NewTimer(time.Minute)
	defer end.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		open := 0
		for _, db := range w.db {
			open += len(bustest.Due(w.t, db.Super))
		}
		if open == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-end.C:
			w.t.Fatalf("%d messages are still open", open)
		}
	}
}

// S-O07: double click, two tabs, retries: one order.
func TestScenario_O07_DoubleSubmit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.svc.wait = 20 * time.Second
	stop := w.run()
	w.deposit(buyer, 50_000)
	var wg sync.WaitGroup
	var mu sync.Mutex
	numbers := map[string]int{}
	for range 8 {
		wg.Go(func() {
			rec := w.ask("POST", "/orders", items(0, 1, 2, 1), buyer, "click")
			mu.Lock()
			defer mu.Unlock()
			switch rec.Code {
			case 201:
				numbers[rec.Header().Get("Location")+rec.Body.String()]++
			case 409: // the first was still in its transaction
				if !strings.Contains(rec.Body.String(), "IN_FLIGHT") {
					t.Errorf("%d %s", rec.Code, rec.Body)
				}
			default:
				t.Errorf("%d %s", rec.Code, rec.Body)
			}
		})
	}
	wg.Wait()
	if n := w.orders(); n != 1 || len(numbers) != 1 {
		t.Errorf("%d orders, answers %v, want one", n, numbers)
	}
	// Two tabs have keys of their own, and one cart.
	w.want(200, "PUT", "/cart/items/"+sku(1).String(), orderapi.Quantity{Quantity: 3}, buyer, "")
	for tab := range 4 {
		wg.Go(func() {
			rec := w.ask("POST", "/orders", "{}", buyer, fmt.Sprint("tab", tab))
			if rec.Code != 201 && rec.Code != 409 && rec.Code != 422 {
				t.Errorf("tab %d: %d %s", tab, rec.Code, rec.Body)
			}
		})
	}
	wg.Wait()
	if n := w.orders(); n != 2 {
		t.Errorf("%d orders, want one more", n)
	}
	stop()
	w.drain()
	w.audit(50_000)
}

// S-O09: no message of an order is visible before the order is, and none of an
// order that wasn't committed.
func TestScenario_O09_MessagesAreInTheOrdersTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.want(202, "POST", "/orders", items(0, 1, 1, 1), buyer, "k")
	if n := one[int64](w, `SELECT count(DISTINCT x) FROM (SELECT xmin::text FROM orders.orders UNION ALL SELECT xmin::text FROM orders.lines
		UNION ALL SELECT xmin::text FROM orders.holds UNION ALL SELECT xmin::text FROM cell.outbox UNION ALL SELECT xmin::text FROM cell.relay) AS v(x)`); n != 1 {
		t.Errorf("the order was written by %d transactions, want 1", n)
	}
	if n := one[int64](w, `SELECT count(*) FROM cell.outbox`); n != 2 {
		t.Errorf("%d messages, want one per seller", n)
	}
	w.db["c1"].Disown(t, buyer.Slot(), buyer.Slot(), "c2")
	if rec := w.ask("POST", "/orders", items(0, 1), buyer, "k2"); rec.Code != 421 {
		t.Errorf("a slot that isn't here: %d %s, want 421", rec.Code, rec.Body)
	}
	if n := one[int64](w, `SELECT count(*) FROM cell.outbox`); n != 2 {
		t.Errorf("%d messages after a refused order, want 2", n)
	}
}

// S-O14: the process dies between commit and publish; the outbox brings the order
// to its end without it, and the client's retry gets its answer.
func TestScenario_O14_KilledAfterCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deposit(buyer, 10_000)
	// The client is gone before an answer, right after the commit: nothing was decided.
	killed := errors.New("killed")
	w.svc.waiters = dying{killed}
	if rec := w.ask("POST", "/orders", items(0, 2), buyer, "k"); rec.Code != 500 {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	if s := one[string](w, "SELECT state FROM orders.orders"); s != "PENDING" {
		t.Fatalf("state %s", s)
	}
	w.svc.waiters = &bus.Waiters{} // the next process
	w.drain()
	rec := w.ask("POST", "/orders", items(0, 2), buyer, "k")
	if rec.Code != 201 || rec.Header().Get("Idempotent-Replayed") != "true" || !strings.Contains(rec.Body.String(), `"state":"PAID"`) {
		t.Errorf("retry: %d %s", rec.Code, rec.Body)
	}
	if w.orders() != 1 {
		t.Errorf("%d orders, want 1", w.orders())
	}
	w.audit(10_000)
}

type dying struct{ err error }

func (dying) Wake(string) {}
func (d dying) Until(context.Context, string, time.Duration, func(context.Context) (bool, error)) (bool, error) {
	return false, d.err
}

// S-O04, S-O05: the hold ends while the order pays; nothing is stuck or spent.
func TestScenario_O04_HoldEndsBeforeItsConfirm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deposit(buyer, 10_000)
	placed := w.want(202, "POST", "/orders", items(0, 1, 1, 1), buyer, "k")
	for range 2 { // RESERVEs, then their replies
		for _, r := range w.due() {
			w.deliver(context.Background(), r)
		}
	}
	if o := w.want(200, "GET", "/orders/"+placed.Number, nil, buyer, ""); o.State != "RESERVED" || o.Payment != "FROZEN" {
		t.Fatalf("order %+v, want RESERVED", o)
	}
	w.stock.end(id.ID(one[int64](w, "SELECT hold_id FROM orders.holds WHERE seller_id = $1", sellers[1])))
	w.drain()
	if o := w.want(200, "GET", "/orders/"+placed.Number, nil, buyer, ""); o.State != "CANCELLED" || o.Reason != "HOLD_ENDED" || o.Payment != "RETURNED" {
		t.Errorf("order %+v, want CANCELLED", o)
	}
	w.audit(10_000)
}

// The buyer cancels while CONFIRMs are out, at every point of the conversation.
func TestCancelAtEveryPoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deposit(buyer, 10_000)
	outcomes := map[string]int{}
	for steps := 0; outcomes["PAID"] == 0 && steps < 60; steps++ {
		placed := w.want(202, "POST", "/orders", items(0, 1, 1, 1), buyer, fmt.Sprint("k", steps))
		var queue []bustest.Row
		for range steps {
			if len(queue) == 0 {
				queue = w.due()
				slices.Reverse(queue)
			}
			if len(queue) == 0 {
				break
			}
			w.deliver(context.Background(), queue[0])
			queue = queue[1:]
		}
		before := w.want(200, "GET", "/orders/"+placed.Number, nil, buyer, "").State
		outcomes[before]++
		want := 200
		if before == "PAID" {
			want = 409
		}
		for range 2 { // the second time changes nothing
			if rec := w.ask("POST", "/orders/"+placed.Number+"/cancel", nil, buyer, ""); rec.Code != want {
				t.Errorf("cancel in %s after %d messages: %d %s", before, steps, rec.Code, rec.Body)
			}
		}
		for _, r := range queue { // what was on its way arrives now
			w.deliver(context.Background(), r)
		}
		w.drain()
		w.audit(10_000)
	}
	if outcomes["PENDING"] == 0 || outcomes["RESERVED"] == 0 || outcomes["PAID"] == 0 {
		t.Errorf("cancelled in %v, want all states", outcomes)
	}
}

// A seller's cell that is known to be away isn't waited for; when it stays away
// past the deadline the order ends, and what is left is released when it is back.
func TestSellerAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deposit(buyer, 10_000)
	w.svc.wait = time.Minute // would be noticed
	w.known.Store(true)
	placed := w.want(202, "POST", "/orders", items(0, 1), buyer, "k")
	if n, err := w.svc.timeOut(context.Background()); n != 0 || err != nil {
		t.Errorf("timeOut = %d, %v before the deadline", n, err)
	}
	w.pass()
	if n, err := w.svc.timeOut(context.Background()); n != 1 || err != nil {
		t.Errorf("timeOut = %d, %v, want the order", n, err)
	}
	if o := w.want(200, "GET", "/orders/"+placed.Number, nil, buyer, ""); o.Reason != "TIMED_OUT" {
		t.Errorf("order %+v, want TIMED_OUT", o)
	}
	w.drain()
	w.audit(10_000)
	// The answer that was said first is said again.
	if rec := w.ask("POST", "/orders", items(0, 1), buyer, "k"); rec.Code != 202 || rec.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("replay: %d %s", rec.Code, rec.Body)
	}
}

// pass moves every deadline into the past.
func (w *world) pass() {
	w.t.Helper()
	_, err := w.db["c1"].Super.Exec(context.Background(), `ALTER TABLE orders.orders DISABLE TRIGGER USER;
		UPDATE orders.orders SET deadline = now() - interval '1 s'; ALTER TABLE orders.orders ENABLE TRIGGER USER`)
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestStorm loses, doubles, reorders and crashes; buyers cancel, holds and orders
// run out of time. At rest everything adds up.
func TestStorm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	orders := 40
	if testing.Short() {
		orders = 12
	}
	var buyers []id.ID
	for n := range 4 {
		buyers = append(buyers, id.Make(int64(50+n), routing.Slot(300+n), false))
		w.deposit(buyers[n], 9_000) // not enough for everything
	}
	for placed := 0; placed < orders; {
		if rnd.IntN(3) == 0 {
			p := items(rnd.Int64N(6), 1+rnd.Int64N(3), rnd.Int64N(6), 1+rnd.Int64N(3))
			rec := w.ask("POST", "/orders", p, buyers[placed%4], fmt.Sprint("k", placed))
			if rec.Code != 202 {
				t.Fatalf("%d %s", rec.Code, rec.Body)
			}
			placed++
		}
		w.chaos(rnd, buyers)
	}
	for range 10 {
		w.chaos(rnd, buyers)
	}
	w.drain()
	w.audit(4 * 9_000)
	states := one[string](w, "SELECT string_agg(state || ' ' || reason || ' ' || n, ', ') FROM (SELECT state, reason, count(*) n FROM orders.orders GROUP BY 1, 2) s")
	t.Log(states)
	if !strings.Contains(states, "PAID") {
		t.Errorf("no order was paid: %s", states)
	}
}

func (w *world) chaos(rnd *rand.Rand, buyers []id.ID) {
	due := w.due()
	rnd.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	for _, r := range due {
		switch rnd.IntN(6) {
		case 0: // lost; a request stays open, a reply is made again when the request comes again
		case 1:
			w.crash(rnd, r)
		case 2:
			w.deliver(context.Background(), r)
			w.deliver(context.Background(), r)
		default:
			w.deliver(context.Background(), r)
		}
		if rnd.IntN(8) == 0 {
			w.meddle(rnd, buyers)
		}
	}
}

// meddle is what people and clocks do meanwhile.
func (w *world) meddle(rnd *rand.Rand, buyers []id.ID) {
	user := buyers[rnd.IntN(len(buyers))]
	ids := one[[]int64](w, "SELECT coalesce(array_agg(id), '{}') FROM orders.orders WHERE user_id = $1", user)
	if len(ids) == 0 {
		return
	}
	order := id.ID(ids[rnd.IntN(len(ids))])
	switch rnd.IntN(8) {
	case 0:
		rec := w.ask("POST", "/orders/"+w.svc.number(order)+"/cancel", nil, user, "")
		if rec.Code != 200 && rec.Code != 409 {
			w.t.Errorf("cancel: %d %s", rec.Code, rec.Body)
		}
	case 1:
		w.pass()
		if _, err := w.svc.timeOut(context.Background()); err != nil && !errs.IsKind(err, errs.Unavailable) {
			w.t.Error(err)
		}
	case 2, 3, 4:
		w.stock.endOne()
	}
}
