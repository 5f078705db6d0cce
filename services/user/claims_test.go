package user

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/bus/bustest"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/user/userapi"
)

// audit holds all cells against I7 at rest: every user has the claim of their
// phone, no phone has two users, every cell knows every phone.
func (w *world) audit() (users int) {
	w.t.Helper()
	byMAC := map[string]id.ID{}
	for _, n := range w.names {
		rows, _ := w.cells[n].db.Super.Query(w.t.Context(), "SELECT u.id, u.phone_mac, u.slot FROM users.users u")
		for rows.Next() {
			var user id.ID
			var mac []byte
			var slot routing.Slot
			if err := rows.Scan(&user, &mac, &slot); err != nil {
				w.t.Fatal(err)
			}
			if other, twice := byMAC[string(mac)]; twice {
				w.t.Errorf("users %d and %d have one phone", user, other)
			}
			if user.Slot() != slot || w.owner(slot).name != n {
				w.t.Errorf("user %d is in slot %d of %s", user, slot, n)
			}
			byMAC[string(mac)] = user
		}
	}
	for _, n := range w.names {
		db := w.cells[n].db.Super
		var open int
		if err := db.QueryRow(w.t.Context(), "SELECT count(*) FROM users.registrations WHERE state = 'PENDING'").Scan(&open); err != nil || open != 0 {
			w.t.Errorf("%s: %d registrations are pending, %v", n, open, err)
		}
		copies := 0
		rows, _ := db.Query(w.t.Context(), "SELECT user_id, phone_mac, 'copy' FROM users.claim_copies UNION ALL SELECT user_id, phone_mac, state FROM users.claims WHERE state <> 'RELEASED'")
		for rows.Next() {
			var user id.ID
			var mac []byte
			var kind string
			if err := rows.Scan(&user, &mac, &kind); err != nil {
				w.t.Fatal(err)
			}
			if byMAC[string(mac)] != user || kind == "PENDING" {
				w.t.Errorf("%s: %s of user %d, but the phone is user %d's", n, kind, user, byMAC[string(mac)])
			}
			if kind == "copy" {
				copies++
			}
		}
		if copies != len(byMAC) {
			w.t.Errorf("%s has %d copies for %d users", n, copies, len(byMAC))
		}
	}
	return len(byMAC)
}

func TestRegisterIsKnownEverywhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2", "c3")
	w.live()
	phone := w.phoneAt("c2", 0)
	a := w.cells["c1"].register("op-1", phone)
	for try := 1; try < 100 && a.status == http.StatusAccepted; try++ { // the machine is busy
		a = w.cells["c1"].register("op-1", phone)
	}
	if a.status != http.StatusCreated {
		t.Fatalf("register = %d %s", a.status, a.body)
	}
	var s userapi.Session
	a.decode(t, &s)
	claims, err := userapi.Verify(w.table.Load(), s.Token, time.Now())
	if err != nil || claims.User != s.User.ID || claims.Cell != "c1" || claims.Name != "Ann" || claims.Seller {
		t.Errorf("token = %+v, %v", claims, err)
	}
	if s.User.Phone != phone || w.owner(s.User.ID.Slot()).name != "c1" {
		t.Errorf("user = %+v", s.User)
	}
	waitFor(t, func() bool { // the copies are on their way
		for _, c := range w.cells {
			if c.lookup(phone) != s.User.ID {
				return false
			}
		}
		return true
	})
	w.cells["c1"].register("op-2", w.phoneAt("c1", 0))
	w.cells["c3"].register("op-3", w.phoneAt("c1", 1))
	waitFor(t, func() bool { return w.quiet() })
	if n := w.audit(); n != 3 {
		t.Errorf("%d users, want 3", n)
	}
}

func (c *cell) lookup(phone string) id.ID {
	a := c.ask("POST", "/internal/lookup", fmt.Sprintf(`{"phone":%q}`, phone), 0, c.slot(), "")
	var out userapi.LookupAnswer
	_ = json.Unmarshal([]byte(a.body), &out) // 404: nobody
	return out.UserID
}

// quiet says whether nothing is left to send.
func (w *world) quiet() bool { return len(w.due()) == 0 }

func waitFor(t testing.TB, cond func() bool) {
	t.Helper()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-limit.C:
			t.Fatal("it did not come true in a minute")
		case <-tick.C:
		}
	}
}

// S-I04: the begin of a claim, retried, never meets its own pending claim as
// somebody else's: at the same gateway, at others, before and after the answer.
func TestScenario_I04_RetriedRegistration(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2", "c3")
	phone := w.phoneAt("c3", 0)
	body := fmt.Sprintf(`{"phone":%q,"password":"correct horse","name":"Ann"}`, phone)
	register := func(cell, body string) response {
		return w.cells[cell].ask("POST", "/api/v1/users", body, 0, w.cells[cell].slot(), "op-1")
	}

	// The phone's home is away: 202, and the retries at the same gateway name the same operation.
	first := register("c1", body)
	var op userapi.Operation
	first.decode(t, &op)
	if first.status != http.StatusAccepted || first.header.Get("Location") != "/api/v1/operations/"+op.ID.String() || op.State != userapi.OperationPending {
		t.Fatalf("register = %d %s, Location %q", first.status, first.body, first.header.Get("Location"))
	}
	again := register("c1", body)
	if again.status != http.StatusAccepted || again.body != first.body || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("again = %d %s", again.status, again.body)
	}
	for what, other := range map[string]string{
		"password": strings.Replace(body, "correct", "another", 1), "name": strings.Replace(body, "Ann", "Bob", 1), "phone": strings.Replace(body, phone, w.phoneAt("c3", 1), 1),
	} {
		if a := register("c1", other); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "IDEMPOTENCY_KEY_REUSED") {
			t.Errorf("same operation, another %s = %d %s", what, a.status, a.body)
		}
	}
	// At another gateway: a second registration, of which nobody knows yet.
	var op2 userapi.Operation
	register("c2", body).decode(t, &op2)
	if op2.ID == op.ID || op2.State != userapi.OperationPending {
		t.Errorf("second = %+v", op2)
	}
	w.pump()
	// One of them won; all answers name that one.
	a1, a2 := register("c1", body), register("c2", body)
	won, lost, winner := a1, a2, op.ID
	if a1.status != http.StatusCreated {
		won, lost, winner = a2, a1, op2.ID
	}
	var s userapi.Session
	won.decode(t, &s)
	var o userapi.Operation
	lost.decode(t, &o)
	if won.status != http.StatusCreated || s.User.ID != winner || s.Token == "" {
		t.Errorf("the winner = %d %s", won.status, won.body)
	}
	if lost.status != http.StatusAccepted || o.UserID != winner || o.State != userapi.OperationDone || lost.header.Get("Location") != "/api/v1/operations/"+winner.String() {
		t.Errorf("the other = %d %s", lost.status, lost.body)
	}
	for _, n := range []id.ID{op.ID, op2.ID} {
		var o userapi.Operation
		w.owner(n.Slot()).ask("GET", "/api/v1/operations/"+n.String(), "", 0, n.Slot(), "").decode(t, &o)
		if o.State != userapi.OperationDone || o.UserID != winner {
			t.Errorf("operation %d = %+v, want user %d", n, o, winner)
		}
	}
	// A third gateway, long after, and another operation for the phone.
	var o3 userapi.Operation
	register("c3", body).decode(t, &o3)
	w.pump()
	register("c3", body).decode(t, &o3)
	if o3.UserID != winner {
		t.Errorf("third = %+v", o3)
	}
	w.cells["c2"].register("op-2", phone)
	w.pump()
	if a := w.cells["c2"].register("op-2", phone); a.status != http.StatusConflict || !strings.Contains(a.body, "PHONE_TAKEN") {
		t.Errorf("another operation = %d %s", a.status, a.body)
	}
	if n := w.audit(); n != 1 {
		t.Errorf("%d users, want 1", n)
	}
}

// Registering goes on while the phone's home is unreachable, and doesn't wait
// for it when the link is known to be down.
func TestRegisterWithoutTheHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	w.live()
	w.setCut("c2", true)
	c1 := w.cells["c1"]
	if err := c1.svc.links.Update([]byte(`{"c2":{"up":false}}`)); err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	c1.svc.waiters = noWaiting{t}
	a := c1.register("op-1", w.phoneAt("c2", 0))
	if a.status != http.StatusAccepted {
		t.Errorf("register = %d %s after %v", a.status, a.body, time.Since(at))
	}
	var op userapi.Operation
	a.decode(t, &op)
	c1.svc.waiters = &bus.Waiters{}
	w.setCut("c2", false)
	waitFor(t, func() bool {
		a := c1.ask("GET", "/api/v1/operations/"+op.ID.String(), "", 0, op.ID.Slot(), "")
		var o userapi.Operation
		a.decode(t, &o)
		return o.State == userapi.OperationDone && o.UserID == op.ID
	})
}

// noWaiting fails the test when somebody waits.
type noWaiting struct{ t *testing.T }

func (n noWaiting) Wake(string) {}

func (n noWaiting) Until(context.Context, string, time.Duration, func(context.Context) (bool, error)) (bool, error) {
	n.t.Error("waited for a link that is known to be down")
	return false, nil
}

// Logging in needs the user's home and nobody else; other cells' copies route.
func TestLoginNeedsNoOtherCell(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2", "c3")
	w.live()
	phone := w.phoneAt("c2", 0)
	ann := w.newUser("c1", phone)
	waitFor(t, func() bool { return w.quiet() })
	w.setCut("c2", true) // the phone's home
	w.setCut("c3", true)
	for _, c := range w.cells {
		if got := c.lookup(phone); got != ann.ID {
			t.Errorf("lookup in %s = %d, want %d", c.name, got, ann.ID)
		}
	}
	login := func(c *cell, slot routing.Slot, phone, password string) response {
		return c.ask("POST", "/api/v1/sessions", fmt.Sprintf(`{"phone":%q,"password":%q}`, phone, password), 0, slot, "")
	}
	c1 := w.cells["c1"]
	a := login(c1, ann.ID.Slot(), phone, "correct horse")
	var s userapi.Session
	a.decode(t, &s)
	if a.status != http.StatusCreated || s.User.ID != ann.ID {
		t.Errorf("login = %d %s", a.status, a.body)
	}
	if got, err := userapi.Verify(w.table.Load(), s.Token, time.Now()); err != nil || got.User != ann.ID {
		t.Errorf("token: %+v, %v", got, err)
	}
	wrong := login(c1, ann.ID.Slot(), phone, "incorrect horse")
	unknown := login(c1, c1.slot(), w.phoneAt("c1", 7), "correct horse")
	strip := func(a response) string { // the request id differs
		var p map[string]any
		a.decode(t, &p)
		delete(p, "request_id")
		return fmt.Sprint(a.status, p)
	}
	if wrong.status != http.StatusUnauthorized || strip(wrong) != strip(unknown) {
		t.Errorf("wrong password = %s, unknown phone = %s, want the same 401", strip(wrong), strip(unknown))
	}
}

// A claim never ends by time: when the user's slot is silent, its home asks.
func TestClaimIsAskedAbout(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	ctx := t.Context()

	// The grant is on its way when c1 is cut off; c2 asks, and the question is as good as the grant.
	phone := w.phoneAt("c2", 0)
	a := c1.register("op-1", phone)
	var op userapi.Operation
	a.decode(t, &op)
	for _, r := range w.due() {
		w.deliver(r)
	}
	if n, err := c2.svc.askOpen(ctx, time.Hour); n != 0 || err != nil {
		t.Errorf("asked %d claims that are young, %v", n, err)
	}
	for i, want := range []int{1, 0} { // once for each claim: the bus repeats it
		if n, err := c2.svc.askOpen(ctx, 0); n != want || err != nil {
			t.Errorf("askOpen #%d = %d, %v, want %d", i, n, err, want)
		}
	}
	for _, r := range w.due() {
		if r.Kind == kindGranted {
			continue // lost
		}
		w.deliver(r)
	}
	if a := c1.register("op-1", phone); a.status != http.StatusCreated {
		t.Errorf("after the question: %d %s", a.status, a.body)
	}
	w.pump()
	w.audit()

	// A claim of a registration that isn't there: tombstone, and the phone is free.
	free := w.phoneAt("c2", 1)
	digits := strings.TrimPrefix(free, "+")
	home := routing.HashSlot(digits)
	ghost := id.Make(999_999, op.ID.Slot(), false)
	begin := bus.Message{Kind: kindBegin, Key: ghost.String(), Service: name, From: ghost.Slot(), To: home, ReplyService: name,
		Body: marshal(t, claimBody{MAC: c2.svc.mac(digits), User: ghost, OpID: "op-ghost"})}
	if res := bustest.Deliver(t, c2.bus, begin); res.Outcome != bus.Handled {
		t.Fatalf("begin = %+v", res)
	}
	if _, err := c2.db.Super.Exec(ctx, "DELETE FROM cell.relay"); err != nil { // the grant reaches nobody
		t.Fatal(err)
	}
	c1.register("op-2", free)
	w.pump()
	if a := c1.register("op-2", free); a.status != http.StatusConflict {
		t.Errorf("while the ghost's claim stands: %d %s", a.status, a.body)
	}
	if n, err := c2.svc.askOpen(ctx, 0); n != 1 || err != nil {
		t.Errorf("askOpen = %d, %v", n, err)
	}
	w.pump()
	c1.register("op-3", free)
	w.pump()
	if a := c1.register("op-3", free); a.status != http.StatusCreated {
		t.Errorf("after the tombstone: %d %s", a.status, a.body)
	}
	// The ghost's BEGIN once more, under another message id: it stays gone.
	begin.ID = "late"
	if res := bustest.Deliver(t, c2.bus, begin); res.Outcome != bus.Handled {
		t.Errorf("late begin = %+v", res)
	}
	if _, err := c2.db.Super.Exec(ctx, "DELETE FROM cell.relay WHERE id LIKE 're:%late'"); err != nil {
		t.Fatal(err)
	}
	w.pump()
	if n := w.audit(); n != 2 {
		t.Errorf("%d users, want 2", n)
	}
}

func marshal(t testing.TB, v any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// One claim that can't be asked about must not keep the younger ones waiting.
func TestAskingPassesAFailingClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	for i := range 3 {
		c1.register(fmt.Sprint("op-", i), w.phoneAt("c2", i))
	}
	for _, r := range w.due() {
		w.deliver(r)
	}
	if _, err := c2.db.Super.Exec(t.Context(), `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'disk'; END $$;
		CREATE TRIGGER fail BEFORE UPDATE ON users.claims FOR EACH ROW WHEN (OLD.op_id = 'op-0') EXECUTE FUNCTION fail()`); err != nil {
		t.Fatal(err)
	}
	if n, err := c2.svc.askOpen(t.Context(), 0); n != 2 || err == nil {
		t.Errorf("askOpen = %d, %v, want 2 asked and the third's error", n, err)
	}
}

// Messages that contradict what is stored are parked, never acted on.
func TestClaimContradictionsAreParked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	w.live()
	ann := w.newUser("c1", w.phoneAt("c2", 0))
	waitFor(t, func() bool { return w.quiet() })
	c2 := w.cells["c2"]
	mac := c2.svc.mac(strings.TrimPrefix(ann.Phone, "+"))
	home := routing.HashSlot(strings.TrimPrefix(ann.Phone, "+"))
	stranger := id.Make(77, ann.ID.Slot(), false)
	for what, m := range map[string]bus.Message{
		"confirm of a stranger":  {Kind: kindConfirm, To: home, Body: marshal(t, claimBody{MAC: mac, User: stranger})},
		"confirm of no claim":    {Kind: kindConfirm, To: home, Body: marshal(t, claimBody{MAC: make([]byte, macSize), User: stranger})},
		"copy with another user": {Kind: kindCopy, To: c2.slot(), Body: marshal(t, claimBody{MAC: mac, User: stranger})},
		"no user":                {Kind: kindBegin, To: home, Body: marshal(t, claimBody{MAC: mac})},
		"short hash":             {Kind: kindBegin, To: home, Body: marshal(t, claimBody{MAC: mac[:5], User: stranger})},
		"not an object":          {Kind: kindBegin, To: home, Body: json.RawMessage(`[1]`)},
	} {
		m.Service, m.ReplyService, m.From, m.Key = name, name, ann.ID.Slot(), what
		if res := bustest.Deliver(t, c2.bus, m); res.Outcome != bus.Parked {
			t.Errorf("%s: %s, want parked", what, res.Outcome)
		}
	}
	w.audit()
}

// Two operations reach the phone's home at the same moment: one is granted.
func TestBeginsRace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	c2 := w.cells["c2"]
	for round := range 20 {
		digits := strings.TrimPrefix(w.phoneAt("c2", round), "+")
		mac := c2.svc.mac(digits)
		var wg sync.WaitGroup
		for i := range 4 {
			user := id.Make(int64(1000+4*round+i), 3, false)
			m := bus.Message{Kind: kindBegin, Key: user.String(), Service: name, ReplyService: name, From: 3, To: routing.HashSlot(digits),
				Body: marshal(t, claimBody{MAC: mac, User: user, OpID: user.String()})}
			wg.Go(func() {
				if res := bustest.Deliver(t, c2.bus, m); res.Outcome != bus.Handled {
					t.Errorf("begin = %+v", res)
				}
			})
		}
		wg.Wait()
		var granted int
		err := c2.db.Super.QueryRow(t.Context(), `SELECT count(*) FROM cell.outbox WHERE slot = $1 AND kind = $2`, routing.HashSlot(digits), kindGranted).Scan(&granted)
		if err != nil || granted != 1 {
			t.Fatalf("%d operations were granted one phone, %v", granted, err)
		}
	}
}

// Many operations for few phones at all gateways, messages dropped, doubled and
// reordered: one user for each phone in the end.
func TestClaimStorm(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	w := newWorld(t, "c1", "c2", "c3")
	for _, c := range w.cells {
		c.svc.waiters = impatient{}
	}
	const phones, ops = 4, 3
	var kept []bustest.Row
	for range 150 {
		switch r.IntN(6) {
		case 0:
			phone := r.IntN(phones)
			w.cells[w.names[r.IntN(3)]].register(fmt.Sprintf("op-%d-%d", phone, r.IntN(ops)), w.phoneAt("c2", phone))
		case 1:
			if _, err := w.cells[w.names[r.IntN(3)]].svc.askOpen(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		default:
			list := append(w.due(), kept...)
			if len(list) == 0 {
				continue
			}
			m := list[r.IntN(len(list))]
			if r.IntN(4) == 0 {
				kept = append(kept, m) // comes again at any later time
			}
			if res, _ := w.deliver(m); res.Outcome == bus.Parked {
				t.Errorf("%s: parked: %v", m.ID, res.Err)
			}
		}
	}
	for range 3 {
		w.pump()
		for _, c := range w.cells {
			if _, err := c.svc.askOpen(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.pump()
	for _, m := range kept {
		if res, _ := w.deliver(m); res.Outcome == bus.Parked {
			t.Errorf("%s, late: parked: %v", m.ID, res.Err)
		}
	}
	w.pump()
	w.audit()
}

// impatient waits for nothing.
type impatient struct{}

func (impatient) Wake(string) {}

func (impatient) Until(context.Context, string, time.Duration, func(context.Context) (bool, error)) (bool, error) {
	return false, nil
}

// One operation at all gateways at the same moment, several times each.
func TestRegisterAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2", "c3")
	w.live()
	phone := w.phoneAt("c1", 3)
	users := make(chan id.ID, 9)
	var wg sync.WaitGroup
	for i := range 9 {
		wg.Go(func() {
			for {
				a := w.cells[w.names[i%3]].register("op-1", phone)
				switch a.status {
				case http.StatusCreated:
					var s userapi.Session
					a.decode(t, &s)
					users <- s.User.ID
					return
				case http.StatusAccepted:
					var o userapi.Operation
					a.decode(t, &o)
					if o.State == userapi.OperationDone {
						users <- o.UserID
						return
					}
				default:
					t.Errorf("register = %d %s", a.status, a.body)
					users <- 0
					return
				}
			}
		})
	}
	wg.Wait()
	close(users)
	first := <-users
	for u := range users {
		if u != first {
			t.Errorf("users %d and %d for one operation", first, u)
		}
	}
	waitFor(t, func() bool { return w.quiet() })
	if n := w.audit(); n != 1 {
		t.Errorf("%d users, want 1", n)
	}
}
