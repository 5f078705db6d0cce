package user

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
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
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/password"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/user/userapi"
)

// world is some cells on databases of their own. Messages go from outbox to
// consumer by hand (pump), or by themselves (live).
type world struct {
	t     *testing.T
	table *routing.Holder
	cells map[string]*cell
	names []string
	seq   atomic.Int64
	poked chan struct{}

	mu  sync.Mutex
	cut map[string]bool // cells that nothing comes to or from
}

type cell struct {
	t    testing.TB
	name string
	db   *pgtest.DB
	svc  *service
	echo *echo.Echo
	bus  *bus.Consumer
}

// Next makes the world the source of everybody's IDs.
func (w *world) Next(_ string, slot routing.Slot) (id.ID, error) {
	return id.Make(w.seq.Add(1), slot, false), nil
}

func newWorld(t *testing.T, names ...string) *world {
	t.Helper()
	apitest.Prepare(t)
	w := &world{t: t, table: &routing.Holder{}, cells: map[string]*cell{}, names: names, poked: make(chan struct{}, 1), cut: map[string]bool{}}
	spec := routing.Spread(names).Spec()
	spec.Version = 1
	keys := map[string]ed25519.PrivateKey{}
	for i := range spec.Cells {
		c := &spec.Cells[i]
		pub, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		keys[c.Name] = key
		c.Keys = []routing.PublicKey{{ID: routing.KeyID(pub), Key: pub}}
	}
	table, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	w.table.Store(table)
	for _, c := range table.Cells() {
		w.cells[c.Name] = w.newCell(c, keys[c.Name])
	}
	return w
}

func (w *world) newCell(c routing.Cell, key ed25519.PrivateKey) *cell {
	w.t.Helper()
	db := pgtest.NewCell(w.t, c.Name, c.Ordinal, Migrations())
	for _, other := range w.names {
		if other != c.Name {
			if _, err := db.Super.Exec(w.t.Context(), "UPDATE cell.slots SET owner = $1, role = 'none' WHERE slot = ANY($2)",
				other, w.table.Load().SlotsOf(other)); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	consumer := bus.NewConsumer(bus.ConsumerOptions{Service: name, Cell: c.Name, Pool: db.App, Table: w.table})
	s := &service{cell: c.Name, store: &store{pool: db.App}, table: w.table, links: &route.Links{}, ids: w, waiters: &bus.Waiters{},
		hasher: password.New(4, 200, userapi.ErrBusy), key: key, secret: []byte("a secret of all cells"), poke: w.poke, now: time.Now, log: slog.New(slog.DiscardHandler)}
	s.handlers(consumer)
	e := web.New(web.Options{Service: name, Cell: c.Name, Timeout: 20 * time.Second})
	s.routes(e)
	return &cell{t: w.t, name: c.Name, db: db, svc: s, echo: e, bus: consumer}
}

func (w *world) poke() {
	select {
	case w.poked <- struct{}{}:
	default:
	}
}

func (w *world) setCut(cell string, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[cell] = cut
}

func (w *world) isCut(cell string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut[cell]
}

func (w *world) owner(s routing.Slot) *cell {
	a, _ := w.table.Load().Slot(s)
	return w.cells[a.Owner]
}

// due lists what could be sent now.
func (w *world) due() (out []bustest.Row) {
	for _, n := range w.names {
		out = append(out, bustest.Due(w.t, w.cells[n].db.Super)...)
	}
	return out
}

// deliver sends one message, unless a cut is in the way.
func (w *world) deliver(r bustest.Row) (bus.Result, bool) {
	from, to := w.owner(r.From), w.owner(r.To)
	if from != to && (w.isCut(from.name) || w.isCut(to.name)) {
		return bus.Result{}, false
	}
	if r.ReplyTo != "" { // published: its note ends
		if _, err := from.db.Super.Exec(context.Background(), "DELETE FROM cell.relay WHERE slot = $1 AND id = $2", r.From, r.ID); err != nil {
			w.t.Error(err)
		}
	}
	return to.bus.Deliver(context.Background(), r.Message), true
}

// pump delivers until nothing is open that can be delivered.
func (w *world) pump() {
	w.t.Helper()
	for range 100 {
		n := 0
		for _, r := range w.due() {
			res, sent := w.deliver(r)
			if !sent {
				continue
			}
			n++
			if res.Outcome == bus.Parked || res.Outcome == bus.Again {
				w.t.Errorf("%s: %s (%v)", r.ID, res.Outcome, res.Err)
				return
			}
		}
		if n == 0 {
			return
		}
	}
	w.t.Error("messages without end")
}

// live pumps in the background until the test ends, or calls stop.
func (w *world) live() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.poked:
			case <-tick.C:
			}
			for _, r := range w.due() {
				if ctx.Err() != nil {
					return
				}
				if _, sent := w.deliver(r); sent && r.ReplyTo == "" {
					w.poke() // its reply is there to be sent
				}
			}
		}
	}()
	stop = func() { cancel(); <-ended }
	w.t.Cleanup(stop)
	return stop
}

// response is what came back.
type response struct {
	status int
	header http.Header
	body   string
}

func (a response) decode(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), v); err != nil {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
}

// ask sends a request as the gateway does: as a user (0 = nobody), about a slot. One
// that a busy machine had no time for (many at once may be more than it does within
// the limit of a transaction) is sent again, as its answer says.
func (c *cell) ask(method, path, body string, user id.ID, slot routing.Slot, key string) response {
	a := c.askOnce(method, path, body, user, slot, key)
	for try := 1; try < 20 && a.status == http.StatusServiceUnavailable && (key != "" || method == "GET") &&
		(strings.Contains(a.body, `"UNAVAILABLE"`) || strings.Contains(a.body, `"OUTCOME_UNKNOWN"`)); try++ {
		a = c.askOnce(method, path, body, user, slot, key)
	}
	return a
}

func (c *cell) askOnce(method, path, body string, user id.ID, slot routing.Slot, key string) response {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set(web.HeaderSlot, slot.String())
	r.Header.Set(web.HeaderEpoch, "1")
	if user != 0 {
		r.Header.Set(web.HeaderUser, user.String())
	}
	if key != "" {
		r.Header.Set(web.HeaderIdempotencyKey, key)
	}
	rec := apitest.Serve(c.t, c.echo, r)
	raw, _ := io.ReadAll(rec.Body)
	return response{rec.Code, rec.Header(), string(raw)}
}

// as sends a request of a user to the user's home.
func (w *world) as(user id.ID, method, path, body, key string) response {
	return w.owner(user.Slot()).ask(method, path, body, user, user.Slot(), key)
}

func (c *cell) slot() routing.Slot {
	s, _ := c.svc.table.Load().CellSlot(c.name)
	return s
}

func (c *cell) register(op, phone string) response {
	return c.ask("POST", "/api/v1/users", fmt.Sprintf(`{"phone":%q,"password":"correct horse","name":"Ann"}`, phone), 0, c.slot(), op)
}

// phoneAt gives the n-th phone whose home is the given cell.
func (w *world) phoneAt(cell string, n int) string {
	for i := 10_000_000; ; i++ {
		phone := fmt.Sprint(86100, i)
		phone = strings.ReplaceAll(phone, " ", "")
		if w.owner(routing.HashSlot(phone)).name == cell {
			if n == 0 {
				return "+" + phone
			}
			n--
		}
	}
}

// newUser registers somebody at a cell; the world must be live.
func (w *world) newUser(cell, phone string) userapi.User {
	w.t.Helper()
	a := w.cells[cell].register("op-"+phone, phone)
	for range 100 {
		if a.status != http.StatusAccepted {
			break
		}
		a = w.cells[cell].register("op-"+phone, phone)
	}
	if a.status != http.StatusCreated {
		w.t.Fatalf("register = %d %s", a.status, a.body)
	}
	var s userapi.Session
	a.decode(w.t, &s)
	return s.User
}

func (w *world) deposit(user id.ID, amount int64) {
	w.t.Helper()
	a := w.as(user, "POST", "/api/v1/wallet/deposits", fmt.Sprintf(`{"amount":%d}`, amount), fmt.Sprint("d", w.seq.Add(1)))
	if a.status != http.StatusCreated {
		w.t.Fatalf("deposit = %d %s", a.status, a.body)
	}
}
