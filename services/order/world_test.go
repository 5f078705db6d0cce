package order

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/api/apitest"
	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/bus/bustest"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/inventory/inventoryapi"
	"example.com/cellmart/services/order/orderapi"
)

// Buyers live in c1, sellers 1 and 2 in c2, seller 3 in c1 too.
var (
	buyer   = id.Make(1, 100, false)
	sellers = []id.ID{id.Make(2, 9001, false), id.Make(3, 9002, false), id.Make(4, 200, false)}
)

func sku(n int) id.ID { return id.Make(int64(1000+n), sellers[n%3].Slot(), false) }

// world is two cells with real databases and real transactions of the bus; what
// carries the messages is the test.
type world struct {
	t         testing.TB
	db        map[string]*pgtest.DB
	consumers map[string]map[string]*bus.Consumer // cell, service
	svc       *Service
	echo      *echo.Echo
	catalog   *fakeCatalog
	stock     *fakeStock
	known     atomic.Bool // the links' states are known, and c2 is down
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, db: map[string]*pgtest.DB{}, consumers: map[string]map[string]*bus.Consumer{}, stock: newFakeStock(t)}
	spec := routing.Spec{Version: 1, Cells: []routing.Cell{{Name: "c1", Ordinal: 1, Weight: 1}, {Name: "c2", Ordinal: 2, Weight: 1}}}
	for s := range routing.Slots {
		owner := "c1"
		if s >= routing.Slots/2 {
			owner = "c2"
		}
		spec.Slots = append(spec.Slots, routing.Assignment{Owner: owner, Epoch: 1})
	}
	spec.Private = map[routing.Slot]routing.Assignment{routing.CellSlot(1): {Owner: "c1", Epoch: 1}, routing.CellSlot(2): {Owner: "c2", Epoch: 1}}
	table, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	holder := &routing.Holder{}
	holder.Store(table)
	w.db["c1"] = pgtest.New(t, Migrations())
	w.db["c2"] = pgtest.NewCell(t, "c2", 2, Migrations())
	w.catalog = &fakeCatalog{m: map[id.ID]SKU{}}
	for n := range 6 {
		w.catalog.m[sku(n)] = SKU{
			SKU: sku(n), Product: sku(n) + 1<<30, Seller: sellers[n%3], SellerSlot: sellers[n%3].Slot(),
			Title: fmt.Sprint("thing ", n), Price: int64(100 * (n + 1)), Currency: "CNY", Active: true,
		}
	}
	numbers, err := id.NewNumbers([]byte("a key of sixteen bytes and more"))
	if err != nil {
		t.Fatal(err)
	}
	w.svc = &Service{
		store: store{w.db["c1"].App}, catalog: w.catalog, addresses: fakeAddresses{}, ids: &counter{}, waiters: &bus.Waiters{},
		poke: func() {}, reachable: func(s routing.Slot) bool { return !w.known.Load() || s < routing.Slots/2 },
		wait: 0, deadline: 15 * time.Minute, holdTTL: 15 * time.Minute, number: numbers.Encode,
		log: slog.New(slog.DiscardHandler), count: func(State, string) {},
	}
	for cell, db := range w.db {
		make1 := func(service string) *bus.Consumer {
			return bus.NewConsumer(bus.ConsumerOptions{Service: service, Cell: cell, Pool: db.App, Table: holder})
		}
		order, inventory, user := make1("order"), make1("inventory"), make1("user")
		if cell == "c1" {
			for kind, h := range w.svc.replies() {
				order.HandleReply(kind, h)
			}
		}
		for _, kind := range []string{inventoryapi.KindReserve, inventoryapi.KindConfirm, inventoryapi.KindRelease} {
			inventory.Handle(kind, w.stock.handle)
		}
		transfer.Register(user.Handle, user.HandleReply, func(context.Context, *pg.Tx, id.ID) (bool, string, error) { return true, "", nil })
		w.consumers[cell] = map[string]*bus.Consumer{"order": order, "inventory": inventory, "user": user}
	}
	w.echo = web.New(web.Options{Service: "order", Cell: "c1", Timeout: 30 * time.Second})
	(&server{Service: w.svc, numbers: numbers, cursorKey: []byte("a key for cursors")}).mount(w.echo)
	return w
}

func cellOf(s routing.Slot) string {
	if s >= routing.Slots/2 && s < routing.Slots {
		return "c2"
	}
	return "c1"
}

func (w *world) deposit(user id.ID, amount int64) {
	w.t.Helper()
	var err error
	for try := 0; try == 0 || try < 5 && errs.IsKind(err, errs.Unavailable) && !errors.Is(err, errs.ErrUnknown); try++ { // the machine is busy
		err = pg.InSlot(context.Background(), w.db["c1"].App, pg.Entry{Slot: user.Slot(), Epoch: 1}, func(tx *pg.Tx) error {
			return transfer.Post(context.Background(), tx, transfer.Posting{
				User: user, Currency: "CNY", Debit: transfer.External, Credit: transfer.Available, Amount: amount, Ref: "deposit:" + user.String(), Step: "deposit",
			})
		})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// deliver hands one message to the consumer of its service in its slot's cell.
func (w *world) deliver(ctx context.Context, r bustest.Row) bus.Result {
	res := w.consumers[cellOf(r.To)][r.Service].Deliver(ctx, r.Message)
	switch res.Outcome {
	case bus.Handled, bus.Duplicate:
	case bus.Again: // a crash, or a lock
		if !errs.IsKind(res.Err, errs.Unavailable) && ctx.Err() == nil {
			w.t.Errorf("%s: %v", r.ID, res.Err)
		}
	default:
		w.t.Errorf("%s: %s (%v)", r.ID, res.Outcome, res.Err)
	}
	return res
}

// due lists what would be sent; replies are taken, as publishing does.
func (w *world) due() (out []bustest.Row) {
	w.t.Helper()
	for _, db := range w.db {
		for _, r := range bustest.Due(w.t, db.Super) {
			if r.ReplyTo != "" {
				if _, err := db.Super.Exec(context.Background(), "DELETE FROM cell.relay WHERE slot = $1 AND id = $2", r.From, r.ID); err != nil {
					w.t.Fatal(err)
				}
			}
			out = append(out, r)
		}
	}
	return out
}

// quiet waits for transactions whose client is gone: one that was cut off in its
// COMMIT may still commit.
func (w *world) quiet() {
	w.t.Helper()
	end, tick := time.NewTimer(time.Minute), time.NewTicker(5*time.Millisecond)
	defer end.Stop()
	defer tick.Stop()
	for _, db := range w.db {
		for busy := 1; busy > 0; {
			if err := db.Super.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND usename = $1 AND state <> 'idle'`, pg.RoleApp).Scan(&busy); err != nil {
				w.t.Fatal(err)
			}
			select {
			case <-tick.C:
			case <-end.C:
				w.t.Fatalf("%d transactions without end", busy)
			}
		}
	}
}

// drain delivers everything until nothing is open.
func (w *world) drain() {
	w.t.Helper()
	w.quiet()
	for range 200 {
		due := w.due()
		if len(due) == 0 {
			return
		}
		for _, r := range due {
			w.deliver(context.Background(), r)
		}
	}
	w.t.Fatalf("messages without end: %+v", w.due())
}

// run delivers messages in the background until stop, or the test's end.
func (w *world) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			for _, r := range w.due() {
				w.deliver(context.Background(), r)
			}
			<-tick.C
		}
	})
	stop = func() { cancel(); wg.Wait() }
	w.t.Cleanup(stop)
	return stop
}

// crash delivers a message with an end that may come between any two statements.
func (w *world) crash(rnd *rand.Rand, r bustest.Row) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.IntN(4000))*time.Microsecond)
	defer cancel()
	w.deliver(ctx, r)
}

// ask sends a request as the gateway does.
func (w *world) ask(method, path string, body any, user id.ID, key string) *httptest.ResponseRecorder {
	rec := w.askOnce(method, path, body, user, key)
	// One that a busy machine had no time for is sent again, as its answer says.
	for try := 1; try < 20 && rec.Code == 503 && (key != "" || method != "POST") &&
		(strings.Contains(rec.Body.String(), `"UNAVAILABLE"`) || strings.Contains(rec.Body.String(), `"OUTCOME_UNKNOWN"`)); try++ {
		rec = w.askOnce(method, path, body, user, key)
	}
	return rec
}

func (w *world) askOnce(method, path string, body any, user id.ID, key string) *httptest.ResponseRecorder {
	text, ok := body.(string)
	if !ok && body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			w.t.Fatal(err)
		}
		text = string(raw)
	}
	r := httptest.NewRequest(method, "/api/v1"+path, strings.NewReader(text))
	if text != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set(web.HeaderSlot, user.Slot().String())
	r.Header.Set(web.HeaderEpoch, "1")
	if user != 0 {
		r.Header.Set(web.HeaderUser, user.String())
	}
	if key != "" {
		r.Header.Set(web.HeaderIdempotencyKey, key)
	}
	return apitest.Serve(w.t, w.echo, r)
}

// want is ask that must have that status; it gives the order in the answer.
func (w *world) want(status int, method, path string, body any, user id.ID, key string) (o orderapi.Order) {
	w.t.Helper()
	rec := w.ask(method, path, body, user, key)
	if rec.Code != status {
		w.t.Fatalf("%s %s: %d %s, want %d", method, path, rec.Code, rec.Body, status)
	}
	if status < 300 {
		if err := json.Unmarshal(rec.Body.Bytes(), &o); err != nil {
			w.t.Fatal(err)
		}
	}
	return o
}

// one reads one value from c1's database.
func one[T any](w *world, sql string, args ...any) (v T) {
	w.t.Helper()
	if err := w.db["c1"].Super.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func (w *world) orders() int64 { return one[int64](w, "SELECT count(*) FROM orders.orders") }

func items(pairs ...int64) orderapi.Place {
	var p orderapi.Place
	for i := 0; i < len(pairs); i += 2 {
		p.Items = append(p.Items, orderapi.Item{SKU: sku(int(pairs[i])), Quantity: pairs[i+1]})
	}
	return p
}

// counter hands out IDs.
type counter struct{ n atomic.Int64 }

func (c *counter) Next(_ string, slot routing.Slot) (id.ID, error) {
	return id.Make(100_000+c.n.Add(1), slot, false), nil
}

type fakeCatalog struct {
	mu  sync.Mutex
	m   map[id.ID]SKU
	err error
}

func (c *fakeCatalog) skus(_ context.Context, ids []id.ID) (out []SKU, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range ids {
		if s, ok := c.m[v]; ok {
			out = append(out, s)
		}
	}
	return out, c.err
}

func (c *fakeCatalog) set(sku id.ID, price int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.m[sku]
	s.Price = price
	c.m[sku] = s
}

type fakeAddresses struct{}

func (fakeAddresses) address(_ context.Context, _, address id.ID) (json.RawMessage, error) {
	if address != 5 {
		return nil, ErrUnknownAddress
	}
	return json.RawMessage(`{"city": "Hangzhou"}`), nil
}

// fakeStock stands for the sellers' inventory: the same answers, kept in memory.
// The real one has tests of its own, which play all orders of these messages.
type fakeStock struct {
	t     testing.TB
	mu    sync.Mutex
	free  map[id.ID]int64
	holds map[id.ID]*fakeHold
}

type fakeHold struct {
	state string
	lines []inventoryapi.Line
}

func newFakeStock(t testing.TB) *fakeStock {
	s := &fakeStock{t: t, free: map[id.ID]int64{}, holds: map[id.ID]*fakeHold{}}
	for n := range 6 {
		s.free[sku(n)] = 1000
	}
	return s
}

func (s *fakeStock) set(sku id.ID, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free[sku] = n
}

// end lets a held hold expire.
func (s *fakeStock) end(hold id.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.holds[hold]; h != nil && h.state == "HELD" {
		s.back(h, "EXPIRED")
	}
}

// endOne lets some held hold expire.
func (s *fakeStock) endOne() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.holds {
		if h.state == "HELD" {
			s.back(h, "EXPIRED")
			return
		}
	}
}

func (s *fakeStock) back(h *fakeHold, state string) {
	for _, l := range h.lines {
		s.free[l.SKU] += l.Quantity
	}
	h.state = state
}

func (s *fakeStock) handle(_ context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
	var b inventoryapi.Reserve
	if err := m.Decode(&b); err != nil {
		return bus.Reply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holds[b.Hold]
	answer := func(kind, reason string, short id.ID) (bus.Reply, error) {
		a := inventoryapi.Answer{Hold: b.Hold, Order: b.Order, Reason: reason, SKU: short}
		if h != nil {
			a.State = h.state
		}
		return bus.Reply{Kind: kind, Body: a}, nil
	}
	for _, l := range b.Lines {
		if l.SKU.Slot() != tx.Slot {
			s.t.Errorf("SKU %d was asked for in slot %d", l.SKU, tx.Slot)
		}
		if h == nil && s.free[l.SKU] < l.Quantity {
			return answer(inventoryapi.KindRefused, inventoryapi.ReasonOutOfStock, l.SKU)
		}
	}
	if h == nil {
		h = &fakeHold{"HELD", b.Lines}
		for _, l := range b.Lines {
			s.free[l.SKU] -= l.Quantity
		}
		s.holds[b.Hold] = h
	}
	ended := h.state == "RELEASED" || h.state == "EXPIRED"
	switch {
	case m.Kind == inventoryapi.KindRelease && !ended:
		s.back(h, "RELEASED")
		fallthrough
	case m.Kind == inventoryapi.KindRelease:
		return answer(inventoryapi.KindReleased, "", 0)
	case m.Kind == inventoryapi.KindConfirm && !ended:
		h.state = "CONFIRMED"
		return answer(inventoryapi.KindConfirmed, "", 0)
	case m.Kind == inventoryapi.KindConfirm:
		return answer(inventoryapi.KindEnded, inventoryapi.ReasonEnded, 0)
	case ended:
		return answer(inventoryapi.KindRefused, inventoryapi.ReasonEnded, 0)
	}
	return answer(inventoryapi.KindReserved, "", 0)
}
