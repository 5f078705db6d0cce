package transfer_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
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

// Together leaves the rows that alone leaves: of transfers and orders' payments, to
// one payee and to several, to nobody, and of refunds. What the source began is what
// both sides have.
func TestTogetherLeavesTheRowsOfAlone(t *testing.T) {
	t.Parallel()
	var worlds [2][]string
	for i := range worlds {
		w := newWorld(t)
		cons := w.consumers()
		deposit(t, w.dbs[0], anna, "CNY", 100_000, "d:1")
		deposit(t, w.dbs[1], bob, "CNY", 100_000, "d:2")
		deposit(t, w.dbs[1], carol, "CNY", 100_000, "d:3")
		deliver := func(kinds ...string) {
			t.Helper()
			for _, kind := range kinds {
				for to, con := range cons {
					list := w.waiting(kind, to)
					if kind == transfer.KindAnswer {
						list = slices.DeleteFunc(list, func(m bus.Message) bool { return !w.isOpen(m.To, m.ReplyTo) })
					}
					if len(list) == 0 {
						continue
					}
					results := make([]bus.Result, len(list))
					if i == 1 {
						results = con.DeliverMany(t.Context(), list)
					}
					for j, r := range results {
						if r.Outcome == "" {
							r = con.Deliver(t.Context(), list[j])
						}
						if r.Outcome != bus.Handled {
							t.Fatalf("%s: %s (%v)", list[j].ID, r.Outcome, r.Err)
						}
					}
				}
			}
		}
		var first id.ID
		for n, to := range []id.ID{bob, carol, bob, nobody, bob, carol} {
			if got := w.start(anna, to, int64(10+n)); n == 0 {
				first = got
			}
		}
		w.start(bob, anna, 33)
		for n, to := range []id.ID{bob, carol, nobody} {
			w.seq++
			err := inSlot(t, w.dbs[0], anna.Slot(), func(tx *pg.Tx) error {
				return transfer.Start(t.Context(), tx, transfer.Order{ID: id.Make(1000+w.seq, anna.Slot(), false), Kind: transfer.Sales, From: anna, To: to,
					ToSlot: to.Slot(), Amount: int64(50 + n), Currency: "CNY", OrderID: id.Make(int64(77+n), anna.Slot(), false), Memo: "order"})
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		deliver(transfer.KindCredit, transfer.KindAnswer)
		if _, err := w.giveBack(first, 4); err != nil {
			t.Fatal(err)
		}
		deliver(transfer.KindCredit, transfer.KindAnswer)
		w.drain()
		for j, db := range w.dbs {
			check(t, db)
			chained(t, db)
			for table, but := range map[string]string{"cell.credits": "", "cell.transfers": ",deadline", "cell.wallets": "", "cell.inbox": "", "cell.outbox": ",body,reply", "cell.postings": ",seq,available,frozen"} {
				rows, err := db.Super.Query(t.Context(), `SELECT (to_jsonb(x) - $1::text[])::text FROM `+table+` x ORDER BY 1`,
					strings.Split("rev,created_at,ended_at,closed_at,handled_at,begun_at,fingerprint,spent_on"+but, ","))
				if err != nil {
					t.Fatal(err)
				}
				list, err := pgx.CollectRows(rows, pgx.RowTo[string])
				if err != nil {
					t.Fatal(err)
				}
				for _, row := range list {
					worlds[i] = append(worlds[i], fmt.Sprint("c", j+1, " ", table, " ", row))
				}
			}
		}
		slices.Sort(worlds[i])
		w.begunAlike()
	}
	if diff := cmp.Diff(worlds[0], worlds[1]); diff != "" || len(worlds[0]) < 60 {
		t.Errorf("%d rows; alone -, together +:\n%s", len(worlds[0]), diff)
	}
}

// begunAlike checks that each transfer's message and its payee's row have its fields
// and the moment of its beginning.
func (w *world) begunAlike() {
	w.t.Helper()
	begun := map[string]time.Time{}
	var key string
	var at time.Time
	for _, db := range w.dbs {
		rows, err := db.Super.Query(w.t.Context(), `SELECT t.id::text, t.created_at FROM cell.transfers t JOIN cell.outbox o ON o.slot = t.slot AND o.id = 'transfer.credit:' || t.id
			WHERE o.body ->> 'amount' = t.amount::text AND o.body ->> 'from' = t.from_user::text AND o.body ->> 'to' = t.to_user::text
				AND o.body ->> 'memo' IS NOT DISTINCT FROM nullif(t.memo, '') AND (o.body ->> 'at')::timestamptz = t.created_at AND o.to_slot = t.to_slot`)
		if err != nil {
			w.t.Fatal(err)
		}
		if _, err := pgx.ForEachRow(rows, []any{&key, &at}, func() error { begun[key] = at; return nil }); err != nil {
			w.t.Fatal(err)
		}
	}
	n := 0
	for _, db := range w.dbs {
		rows, err := db.Super.Query(w.t.Context(), "SELECT transfer_id::text, begun_at FROM cell.credits")
		if err != nil {
			w.t.Fatal(err)
		}
		if _, err := pgx.ForEachRow(rows, []any{&key, &at}, func() error {
			n++
			if !begun[key].Equal(at) {
				w.t.Errorf("transfer %s began at %s, its payee has %s", key, begun[key], at)
			}
			return nil
		}); err != nil {
			w.t.Fatal(err)
		}
	}
	if n == 0 || n != len(begun) {
		w.t.Errorf("%d transfers have their message, %d their payee's row", len(begun), n)
	}
}

// In tables of a few rows that have been analyzed a plan would rather read them
// through, and the policies would refuse what it sees there.
func TestTogetherInSmallTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cons := w.consumers()
	deposit(t, w.dbs[0], anna, "CNY", 1000, "d:1")
	deposit(t, w.dbs[0], id.Make(9, 99, false), "CNY", 1000, "d:9")
	for n := range 5 {
		deposit(t, w.dbs[1], id.Make(int64(20+n), routing.Slot(half+20+n), false), "CNY", 1000, fmt.Sprint("d:", n))
	}
	for n := range 2 {
		w.start(anna, id.Make(int64(20+n), routing.Slot(half+20+n), false), 5)
	}
	for _, db := range w.dbs {
		if _, err := db.Super.Exec(t.Context(), "ANALYZE"); err != nil {
			t.Fatal(err)
		}
	}
	for i, kind := range []string{transfer.KindCredit, transfer.KindAnswer} {
		list := w.waiting(kind, 1-i)
		if len(list) != 2 {
			t.Fatalf("%d of %s", len(list), kind)
		}
		for j, r := range cons[1-i].DeliverMany(t.Context(), list) {
			if r.Outcome != bus.Handled {
				t.Errorf("%s: %q", list[j].ID, r.Outcome)
			}
		}
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
