package transfer_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/platform/routing"
)

func payees(b *pgx.Batch, _ []routing.Slot, users []id.ID, takes []bool) {
	b.Queue("SELECT u <> $2 FROM unnest($1::bigint[]) WITH ORDINALITY AS t(u, i) ORDER BY i", users, nobody).Query(transfer.Flags(takes))
}

// consumers gives each cell's consumer, with both kinds of handlers.
func (w *world) consumers() (out [2]*bus.Consumer) {
	table := new(routing.Holder)
	s := routing.Spec{Version: 1, Slots: make([]routing.Assignment, routing.Slots),
		Cells: []routing.Cell{{Name: "c1", Ordinal: 1, Weight: 1}, {Name: "c2", Ordinal: 2, Weight: 1}}}
	for i := range s.Slots {
		s.Slots[i] = routing.Assignment{Owner: []string{"c1", "c2"}[i/half], Epoch: 1}
	}
	t, err := routing.Build(s)
	if err != nil {
		w.t.Fatal(err)
	}
	table.Store(t)
	for i, db := range w.dbs {
		c := bus.NewConsumer(bus.ConsumerOptions{Service: transfer.Service, Cell: db.Cell, Pool: db.App, Table: table})
		transfer.Register(c.Handle, c.HandleReply, payee)
		transfer.RegisterMany(c.HandleMany, c.HandleManyReplies, payees)
		out[i] = c
	}
	return out
}

// waiting gives the messages of a kind for a cell that have no end yet, as its
// dispatcher would send them.
func (w *world) waiting(kind string, to int) (out []bus.Message) {
	w.t.Helper()
	for _, db := range w.dbs {
		rows, err := db.Super.Query(w.t.Context(), `SELECT slot, id, kind, key, service, to_slot, body, reply_service, reply_to FROM cell.outbox
			WHERE closed_at IS NULL AND kind = $1 AND to_slot / $2 = $3 ORDER BY slot, id`, kind, half, to)
		if err != nil {
			w.t.Fatal(err)
		}
		for rows.Next() {
			var m bus.Message
			if err := rows.Scan(&m.From, &m.ID, &m.Kind, &m.Key, &m.Service, &m.To, &m.Body, &m.ReplyService, &m.ReplyTo); err != nil {
				w.t.Fatal(err)
			}
			out = append(out, m)
		}
		if rows.Err() != nil {
			w.t.Fatal(rows.Err())
		}
	}
	return out
}

// S-M09 with messages that are handled together: transfers of every kind of end, in
// both directions and several to one wallet, handled in groups at the same time, each
// message twice. Money is conserved, each entry has the balances after it, and every
// transfer ends as it would have alone.
func TestScenario_M09_Together(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 7))
	w := newWorld(t)
	deposit(t, w.dbs[0], anna, "CNY", 100_000, "d:1")
	deposit(t, w.dbs[1], bob, "CNY", 100_000, "d:2")
	deposit(t, w.dbs[1], carol, "CNY", 100_000, "d:3")
	cons := w.consumers()
	together := map[string]int{}
	for range 4 {
		var first []id.ID
		for i := range 40 {
			pair := [][2]id.ID{{anna, bob}, {bob, anna}, {carol, anna}, {anna, carol}, {anna, nobody}, {bob, carol}}[i%6]
			first = append(first, w.start(pair[0], pair[1], 1+r.Int64N(50)))
		}
		for _, n := range first[:6] {
			if err := w.cancel(n); err != nil {
				t.Fatal(err)
			}
		}
		for _, kind := range []string{transfer.KindCredit, transfer.KindCancel, transfer.KindAnswer} {
			for to, con := range cons {
				list := w.waiting(kind, to)
				if kind == transfer.KindAnswer {
					list = slices.DeleteFunc(list, func(m bus.Message) bool { return !w.isOpen(m.To, m.ReplyTo) })
				}
				var mu sync.Mutex
				var wg sync.WaitGroup
				for range 2 {
					mine := slices.Clone(list)
					r.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
					size := 2 + r.IntN(20)
					wg.Go(func() {
						for part := range slices.Chunk(mine, size) {
							for i, res := range con.DeliverMany(t.Context(), part) {
								if res.Outcome == bus.Handled {
									mu.Lock()
									together[kind]++
									mu.Unlock()
								}
								for tries := 0; res.Outcome == "" || res.Outcome == bus.Again; tries++ {
									if res = con.Deliver(t.Context(), part[i]); tries > 20 {
										t.Errorf("%s: %s (%v)", part[i].ID, res.Outcome, res.Err)
										break
									}
								}
								if res.Outcome != bus.Handled && res.Outcome != bus.Duplicate {
									t.Errorf("%s: %s (%v)", part[i].ID, res.Outcome, res.Err)
								}
							}
						}
					})
				}
				wg.Wait()
			}
		}
		if n := len(w.open()); n != 0 {
			t.Fatalf("%d requests are open", n)
		}
		for i, n := range first {
			want := transfer.Settled
			if i%6 == 4 { // to nobody
				want = transfer.Reversed
			}
			if got := w.state(n); got != want {
				t.Errorf("transfer %d ends %s, want %s", n, got, want)
			}
		}
	}
	w.audit(300_000)
	for _, db := range w.dbs {
		chained(t, db)
	}
	if together[transfer.KindCredit] < 40 || together[transfer.KindAnswer] < 40 {
		t.Errorf("handled together: %v: of each kind most should be", together)
	}
}

// isOpen says whether a request waits for its reply.
func (w *world) isOpen(slot routing.Slot, request string) (open bool) {
	w.t.Helper()
	err := w.db(slot).Super.QueryRow(w.t.Context(), "SELECT EXISTS (SELECT FROM cell.outbox WHERE slot = $1 AND id = $2 AND closed_at IS NULL)", slot, request).Scan(&open)
	if err != nil {
		w.t.Fatal(err)
	}
	return open
}

// chained checks each entry's balances against those of the entry before it.
func chained(t testing.TB, db *pgtest.DB) {
	t.Helper()
	var n, bad int
	err := db.Super.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE available <> was_a + amount * ((credit = 'available')::int - (debit = 'available')::int)
			OR frozen <> was_f + amount * ((credit = 'frozen')::int - (debit = 'frozen')::int) OR seq <> was_seq + 1)
		FROM (SELECT *, lag(available, 1, 0::bigint) OVER w AS was_a, lag(frozen, 1, 0::bigint) OVER w AS was_f, lag(seq, 1, 0::bigint) OVER w AS was_seq
			FROM cell.postings WINDOW w AS (PARTITION BY slot, user_id, currency ORDER BY seq)) p`).Scan(&n, &bad)
	if err != nil || n == 0 || bad != 0 {
		t.Errorf("%s: %d of %d entries don't follow the one before (%v)", db.Cell, bad, n, err)
	}
}
