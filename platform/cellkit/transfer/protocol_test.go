package transfer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/transfer"
)

// S-M09: random drops, doubles, reorderings and crashes: money is conserved and
// every transfer ends.
func TestScenario_M09_Storm(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 10_000, "d:1")
	deposit(t, w.dbs[1], bob, "CNY", 10_000, "d:2")
	pairs := [][2]id.ID{{anna, bob}, {bob, anna}, {bob, carol}, {anna, nobody}, {anna, carol}}
	var all []id.ID
	var replies []bus.Message
	for range 400 {
		switch r.IntN(9) {
		case 0:
			p := pairs[r.IntN(len(pairs))]
			all = append(all, w.start(p[0], p[1], 1+r.Int64N(60)))
		case 1:
			if len(all) > 0 {
				if err := w.cancel(all[r.IntN(len(all))]); err != nil && !errors.Is(err, transfer.ErrEnded) {
					t.Fatalf("cancel: %v", err)
				}
			}
		case 8:
			if len(all) > 0 {
				if t, err := w.giveBack(all[r.IntN(len(all))], r.Int64N(40)); err == nil {
					all = append(all, t.ID)
				} else if !refused(err) {
					w.t.Fatalf("refund: %v", err)
				}
			}
		case 2, 3, 4:
			list := w.open()
			if len(list) == 0 {
				continue
			}
			m := list[r.IntN(len(list))]
			reply, err := w.request(m, nil, r.IntN(4) == 0)
			if errors.Is(err, errCrash) {
				continue
			} else if err != nil {
				t.Fatalf("%s: %v", m.ID, err)
			}
			if r.IntN(3) > 0 { // else lost
				replies = append(replies, reply)
			}
		default:
			if len(replies) == 0 {
				continue
			}
			i := r.IntN(len(replies))
			if err := w.answer(replies[i], nil, r.IntN(4) == 0); err != nil && !errors.Is(err, errCrash) {
				t.Fatalf("%s: %v", replies[i].ReplyTo, err)
			} // kept: comes again at any later time
		}
	}
	w.drain()
	for _, old := range replies {
		if err := w.answer(old, nil, false); err != nil {
			t.Errorf("an old answer to %s: %v", old.ReplyTo, err)
		}
	}
	w.audit(20_000)
}

// S-M01: crash between every two statements of every handler, then again.
func TestScenario_M01_CrashBetweenStatements(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	crashAt := func(n int) func(*pg.Tx) *pg.Tx {
		return func(tx *pg.Tx) *pg.Tx {
			c := *tx
			c.Tx = &crashing{Tx: tx.Tx, left: n}
			return &c
		}
	}
	// again crashes a step at its statement 0, 1, 2 ... until it comes through.
	again := func(step func(wrap func(*pg.Tx) *pg.Tx) error) {
		t.Helper()
		for n := 0; ; n++ {
			err := step(crashAt(n))
			if err == nil {
				if n < 1 {
					t.Error("no statement: the crashes were not felt")
				}
				return
			}
			if !errors.Is(err, errCrash) || n > 30 {
				t.Fatalf("crash at statement %d: %v", n, err)
			}
			for _, db := range w.dbs {
				check(t, db)
			}
		}
	}
	credited := w.start(anna, bob, 10)
	cancelled := w.start(anna, bob, 20)
	refused := w.start(anna, nobody, 30)
	if err := w.cancel(cancelled); err != nil {
		t.Fatal(err)
	}
	list := w.open()
	for i := len(list) - 1; i >= 0; i-- { // CANCEL before CREDIT
		m := list[i]
		var reply bus.Message
		again(func(wrap func(*pg.Tx) *pg.Tx) (err error) { reply, err = w.request(m, wrap, false); return err })
		if _, err := w.request(m, nil, false); err != nil { // and once more
			t.Errorf("%s again: %v", m.ID, err)
		}
		again(func(wrap func(*pg.Tx) *pg.Tx) error { return w.answer(reply, wrap, false) })
	}
	w.drain()
	for n, want := range map[id.ID]transfer.State{credited: transfer.Settled, cancelled: transfer.Reversed, refused: transfer.Reversed} {
		if got := w.state(n); got != want {
			t.Errorf("transfer %d = %s, want %s", n, got, want)
		}
	}
	w.audit(1000)
}

// crashing is a connection that dies after some statements.
type crashing struct {
	pgx.Tx
	left int
}

func (c *crashing) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if c.left--; c.left < 0 {
		return pgconn.CommandTag{}, errCrash
	}
	return c.Tx.Exec(ctx, sql, args...)
}

func (c *crashing) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if c.left--; c.left < 0 {
		return nil, errCrash
	}
	return c.Tx.Query(ctx, sql, args...)
}

// S-M10: every order of CREDIT, CANCEL and a CREDIT with another amount.
func TestScenario_M10_AllOrders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	var names = []string{"credit", "cancel", "forged"}
	for _, order := range permutations([]int{0, 1, 2, 0, 1}) {
		n := w.start(anna, bob, 10)
		if err := w.cancel(n); err != nil {
			t.Fatal(err)
		}
		forged := false
		first := ""
		for _, k := range order {
			var m bus.Message
			for _, o := range w.open() {
				if o.Key == n.String() && (o.Kind == transfer.KindCancel) == (names[k] == "cancel") {
					m = o
				}
			}
			if m.ID == "" {
				t.Fatalf("%v: no open %s", order, names[k])
			}
			if names[k] == "forged" {
				if forged = true; first == "" {
					continue // it would be the genuine one: see the next test
				}
				m.Body = json.RawMessage(fmt.Sprintf(`{"transfer":"%d","kind":"transfer","from":"%d","to":"%d","amount":11,"currency":"CNY"}`, n, anna, bob))
				_, err := w.request(m, nil, false)
				if err == nil || !isParked(err) {
					t.Errorf("%v: another amount after %s: %v, want parked", order, first, err)
				}
				continue
			}
			if first == "" {
				first = names[k]
			}
			reply, err := w.request(m, nil, false)
			if err != nil {
				t.Fatalf("%v: %v", order, err)
			}
			want := map[string]string{"credit": "CREDITED", "cancel": "CANCELLED"}[first]
			var a transfer.Answer
			if err := json.Unmarshal(reply.Body, &a); err != nil || string(a.Verdict) != want {
				t.Errorf("%v: %s answers %s, want %s for ever", order, names[k], reply.Body, want)
			}
		}
		w.drain()
		want := map[string]transfer.State{"credit": transfer.Settled, "cancel": transfer.Reversed}[first]
		if got := w.state(n); got != want || !forged {
			t.Errorf("%v: the transfer ends %s, want %s", order, got, want)
		}
	}
	w.audit(1000)
}

// S-M02: the rollback of a credit that never arrived is answered at once and ends
// (an "empty rollback" isn't retried for ever), and its tombstone doesn't vanish
// with a rolled-back try.
func TestScenario_M02_EmptyRollback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	n := w.start(anna, bob, 10)
	if err := w.cancel(n); err != nil {
		t.Fatal(err)
	}
	var credit, cancel bus.Message
	for _, m := range w.open() {
		if m.Kind == transfer.KindCancel {
			cancel = m
		} else {
			credit = m
		}
	}
	if _, err := w.request(cancel, nil, true); !errors.Is(err, errCrash) {
		t.Fatalf("a try that is rolled back: %v", err)
	}
	if _, err := w.request(credit, nil, true); !errors.Is(err, errCrash) {
		t.Fatalf("a try that is rolled back: %v", err)
	}
	var reply bus.Message
	for _, m := range []bus.Message{cancel, cancel, credit, cancel, credit} {
		var a transfer.Answer
		var err error
		if reply, err = w.request(m, nil, false); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(reply.Body, &a); err != nil || a.Verdict != transfer.Cancelled {
			t.Errorf("%s is answered %s, want CANCELLED for ever", m.Kind, reply.Body)
		}
	}
	if err := w.answer(reply, nil, false); err != nil {
		t.Fatal(err)
	}
	if list := w.open(); len(list) != 0 || w.state(n) != transfer.Reversed {
		t.Errorf("state %s, %d questions still asked", w.state(n), len(list))
	}
	w.audit(1000)
}

func isParked(err error) bool {
	return err != nil && len(err.Error()) > 7 && err.Error()[:7] == "parked:"
}

func permutations(in []int) (out [][]int) {
	if len(in) == 0 {
		return [][]int{nil}
	}
	seen := map[int]bool{}
	for i, x := range in {
		if seen[x] {
			continue
		}
		seen[x] = true
		rest := append(append([]int{}, in[:i]...), in[i+1:]...)
		for _, p := range permutations(rest) {
			out = append(out, append([]int{x}, p...))
		}
	}
	return out
}

// Same ID, any other field: parked, and nothing moves.
func TestScenario_M10_SameIDOtherFields(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	n := w.start(anna, bob, 10)
	m := w.open()[0]
	if _, err := w.request(m, nil, false); err != nil {
		t.Fatal(err)
	}
	base := map[string]any{"transfer": n, "kind": "transfer", "from": anna, "to": bob, "amount": 10, "currency": "CNY"}
	for field, value := range map[string]any{"kind": "order", "from": bob, "to": carol, "amount": 11, "currency": "USD"} {
		b := map[string]any{}
		for k, v := range base {
			b[k] = v
		}
		b[field] = value
		forged := m
		forged.Body, _ = json.Marshal(b)
		if _, err := w.request(forged, nil, false); !isParked(err) {
			t.Errorf("other %s: %v, want parked", field, err)
		}
	}
	other := m
	other.From = anna.Slot() + 1
	if _, err := w.request(other, nil, false); !isParked(err) {
		t.Errorf("from another slot: %v, want parked", err)
	}
	for name, body := range map[string]string{"no JSON": `7`, "nothing": `{}`, "negative": fmt.Sprintf(`{"transfer":"%d","kind":"transfer","from":"1","to":"2","amount":-1,"currency":"CNY"}`, n+1<<20)} {
		bad := m
		bad.Body = json.RawMessage(body)
		if _, err := w.request(bad, nil, false); !isParked(err) {
			t.Errorf("%s: %v, want parked", name, err)
		}
	}
	// Answers nobody can have given.
	for name, r := range map[string]transfer.Answer{"unknown transfer": {Transfer: n + 1<<20, Verdict: "CREDITED"}, "unknown verdict": {Transfer: n, Verdict: "MAYBE"}} {
		body, _ := json.Marshal(r)
		if err := w.answer(bus.Message{To: anna.Slot(), ReplyTo: m.ID, Body: body}, nil, false); !isParked(err) {
			t.Errorf("%s: %v, want parked", name, err)
		}
	}
	w.drain()
	body, _ := json.Marshal(transfer.Answer{Transfer: n, Verdict: transfer.Cancelled})
	if err := w.answer(bus.Message{To: anna.Slot(), ReplyTo: m.ID, Body: body}, nil, false); !isParked(err) {
		t.Errorf("CANCELLED after SETTLED: %v, want parked", err)
	}
	w.audit(1000)
}

// The payment of an order is never refused and can't be cancelled; its deadline
// only makes it stuck.
func TestOrderPayment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	ctx := t.Context()
	err := inSlot(t, w.dbs[0], anna.Slot(), func(tx *pg.Tx) error {
		err := transfer.Post(ctx, tx, transfer.Posting{User: anna, Currency: "CNY", Debit: "available", Credit: "frozen", Amount: 70, Ref: "order:9", Step: "freeze"})
		for i, to := range []id.ID{bob, nobody} {
			err = errors.Join(err, transfer.Start(ctx, tx, transfer.Order{ID: id.Make(int64(50+i), anna.Slot(), false), Kind: "order", From: anna, To: to,
				ToSlot: to.Slot(), Amount: 35, Currency: "CNY", OrderID: 9, Frozen: true, Deadline: time.Now().Add(-time.Minute)}))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := transfer.Expire(ctx, w.dbs[0].App); n != 0 || err != nil {
		t.Errorf("Expire = %d, %v: an order's payment has no way back", n, err)
	}
	stuck, err := transfer.ListStuck(ctx, w.dbs[0].App, 0, 10)
	if err != nil || len(stuck) != 2 || stuck[0].State != transfer.Frozen {
		t.Errorf("stuck = %+v, %v, want both", stuck, err)
	}
	if err := w.cancel(id.Make(50, anna.Slot(), false)); !errors.Is(err, transfer.ErrNoCancel) {
		t.Errorf("cancel = %v", err)
	}
	w.drain()
	var suspense int64
	if err := w.dbs[1].Super.QueryRow(ctx, "SELECT suspense FROM cell.wallets WHERE user_id = $1", nobody).Scan(&suspense); err != nil || suspense != 35 {
		t.Errorf("suspense of the unknown seller = %d, %v, want 35", suspense, err)
	}
	if b := balance(t, w.dbs[1], bob, "CNY"); b.Available != 35 {
		t.Errorf("seller has %+v, want 35", b)
	}
	w.audit(1000)
}

func TestExpireAsksAndNeverReverses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	start := func(seq int64, deadline time.Time) id.ID {
		n := id.Make(seq, anna.Slot(), false)
		if err := inSlot(t, w.dbs[0], anna.Slot(), func(tx *pg.Tx) error {
			return transfer.Start(ctx, tx, transfer.Order{ID: n, From: anna, To: bob, ToSlot: bob.Slot(), Amount: 10, Currency: "CNY", Deadline: deadline})
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	late, fresh := start(1, time.Now().Add(-time.Second)), start(2, time.Time{})
	for _, m := range w.open() { // the credit has arrived, its answer hasn't
		if m.Key == late.String() {
			if _, err := w.request(m, nil, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, want := range []int{1, 0} {
		if n, err := transfer.Expire(ctx, w.dbs[0].App); n != want || err != nil {
			t.Errorf("Expire #%d = %d, %v, want %d", i, n, err, want)
		}
	}
	if a, b := w.state(late), w.state(fresh); a != transfer.Cancelling || b != transfer.Frozen {
		t.Errorf("states = %s, %s, want CANCELLING, FROZEN", a, b)
	}
	if b := balance(t, w.dbs[0], anna, "CNY"); b.Frozen != 20 || b.Available != 980 {
		t.Errorf("balance = %+v: a timeout moved money", b)
	}
	w.drain()
	if s := w.state(late); s != transfer.Settled {
		t.Errorf("the credit was first, yet the transfer is %s", s)
	}
	w.audit(1000)
}

// CREDIT and CANCEL at the same moment, several times each: one row, one verdict.
func TestCreditRacesCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	for range 15 {
		n := w.start(anna, bob, 10)
		if err := w.cancel(n); err != nil {
			t.Fatal(err)
		}
		verdicts := make(chan transfer.Verdict, 8)
		var wg sync.WaitGroup
		for _, m := range w.open() {
			for range 4 {
				wg.Go(func() {
					r, err := w.request(m, nil, false)
					var a transfer.Answer
					if err == nil {
						err = json.Unmarshal(r.Body, &a)
					}
					if err != nil {
						t.Errorf("%s: %v", m.ID, err)
					}
					verdicts <- a.Verdict
				})
			}
		}
		wg.Wait()
		close(verdicts)
		first := <-verdicts
		for v := range verdicts {
			if v != first {
				t.Errorf("transfer %d is %s and %s", n, first, v)
			}
		}
		w.drain()
	}
	w.audit(1000)
}

func TestBalanceLimitRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	deposit(t, w.dbs[1], bob, "CNY", transfer.MaxBalance-5, "d:2")
	n := w.start(anna, bob, 10)
	w.drain()
	if s := w.state(n); s != transfer.Reversed {
		t.Errorf("over the limit: %s", s)
	}
	w.audit(1000 + transfer.MaxBalance - 5)
}

func TestListBothSides(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	deposit(t, w.dbs[1], bob, "CNY", 1000, "d:2")
	want := map[id.ID]bool{w.start(anna, bob, 1): false, w.start(anna, nobody, 2): false, w.start(bob, anna, 3): true, w.start(bob, anna, 4): true}
	w.drain()
	got := map[id.ID]bool{}
	err := pg.See(t.Context(), w.dbs[0].App, anna.Slot(), func(tx pgx.Tx, _ bool) error {
		var after transfer.Place
		for {
			page, err := transfer.List(t.Context(), tx, anna.Slot(), anna, after, 1)
			if err != nil || len(page) == 0 {
				return err
			}
			got[page[0].ID] = page[0].Incoming
			after = transfer.Place{At: page[0].CreatedAt, ID: page[0].ID}
		}
	})
	if err != nil || len(got) != len(want) {
		t.Errorf("list = %v, %v, want %v", got, err, want)
	}
	for n, in := range want {
		if got[n] != in {
			t.Errorf("transfer %d incoming = %v, want %v", n, got[n], in)
		}
	}
}
