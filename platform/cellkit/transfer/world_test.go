package transfer_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/platform/routing"
)

// world is two cells on real databases, and a network that a test controls
// message by message. There is no inbox: the handlers must stand doubles alone.
type world struct {
	t   testing.TB
	dbs [2]*pgtest.DB
	seq int64
}

const half = routing.Slots / 2

var (
	bob    = id.Make(2, half+3, false) // in c2, as carol
	carol  = id.Make(3, half+3, false) // of bob's slot
	nobody = id.Make(4, half+9, false)
)

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dbs: [2]*pgtest.DB{pgtest.NewCell(t, "c1", 1), pgtest.NewCell(t, "c2", 2)}}
	w.dbs[0].Disown(t, half, routing.Slots-1, "c2")
	w.dbs[1].Disown(t, 0, half-1, "c1")
	return w
}

func (w *world) db(s routing.Slot) *pgtest.DB { return w.dbs[min(int(s)/half, 1)] }

func payee(_ context.Context, _ *pg.Tx, user id.ID) (bool, string, error) {
	return user != nobody, "UNKNOWN_PAYEE", nil
}

func (w *world) start(from, to id.ID, amount int64) id.ID {
	w.t.Helper()
	w.seq++
	n := id.Make(1000+w.seq, from.Slot(), false)
	err := inSlot(w.t, w.db(from.Slot()), from.Slot(), func(tx *pg.Tx) error {
		return transfer.Start(w.t.Context(), tx, transfer.Order{ID: n, From: from, To: to, ToSlot: to.Slot(), Amount: amount, Currency: "CNY"})
	})
	if err != nil {
		w.t.Fatalf("Start: %v", err)
	}
	return n
}

// open lists the requests without a final reply, as the sweeper would send them.
func (w *world) open() (out []bus.Message) {
	w.t.Helper()
	for _, db := range w.dbs {
		rows, err := db.Super.Query(w.t.Context(), `SELECT slot, id, kind, key, to_slot, body FROM cell.outbox WHERE closed_at IS NULL AND reply_to = ''`)
		if err != nil {
			w.t.Fatal(err)
		}
		for rows.Next() {
			var m bus.Message
			if err := rows.Scan(&m.From, &m.ID, &m.Kind, &m.Key, &m.To, &m.Body); err != nil {
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

var errCrash = errors.New("crash")

// request runs a message's handler at its destination; crash undoes it at the end.
func (w *world) request(m bus.Message, wrap func(*pg.Tx) *pg.Tx, crash bool) (reply bus.Message, err error) {
	handler := transfer.HandleCredit(payee)
	if m.Kind == transfer.KindCancel {
		handler = transfer.HandleCancel
	}
	err = inSlot(w.t, w.db(m.To), m.To, func(tx *pg.Tx) error {
		if wrap != nil {
			tx = wrap(tx)
		}
		r, err := handler(w.t.Context(), tx, m)
		if err != nil {
			return err
		}
		body, err := json.Marshal(r.Body)
		reply = bus.Message{ID: "reply", Kind: r.Kind, From: m.To, To: m.From, ReplyTo: m.ID, Body: body}
		if crash {
			return errCrash
		}
		return err
	})
	return reply, err
}

// answer runs a reply's handler at the source and closes the request.
func (w *world) answer(r bus.Message, wrap func(*pg.Tx) *pg.Tx, crash bool) error {
	return inSlot(w.t, w.db(r.To), r.To, func(tx *pg.Tx) error {
		if wrap != nil {
			tx = wrap(tx)
		}
		final, err := transfer.HandleAnswer(w.t.Context(), tx, r)
		if err != nil {
			return err
		}
		if final {
			if _, err := tx.Exec(w.t.Context(), `UPDATE cell.outbox SET closed_at = now(), reply = $3 WHERE slot = $1 AND id = $2 AND closed_at IS NULL`,
				r.To, r.ReplyTo, r.Body); err != nil {
				return err
			}
		}
		if crash {
			return errCrash
		}
		return nil
	})
}

// drain delivers everything in order until nothing is open.
func (w *world) drain() {
	w.t.Helper()
	for range 10 {
		list := w.open()
		if len(list) == 0 {
			return
		}
		for _, m := range list {
			r, err := w.request(m, nil, false)
			if err == nil {
				err = w.answer(r, nil, false)
			}
			if err != nil {
				w.t.Fatalf("%s: %v", m.ID, err)
			}
		}
	}
	w.t.Fatal("requests stay open though every message arrives")
}

func (w *world) cancel(n id.ID) error {
	return inSlot(w.t, w.db(n.Slot()), n.Slot(), func(tx *pg.Tx) error {
		_, err := transfer.Cancel(w.t.Context(), tx, n, transfer.WishUser)
		return err
	})
}

func (w *world) state(n id.ID) (s transfer.State) {
	w.t.Helper()
	err := pg.See(w.t.Context(), w.db(n.Slot()).App, n.Slot(), func(tx pgx.Tx, _ bool) error {
		got, err := transfer.Get(w.t.Context(), tx, n.Slot(), n)
		s = got.State
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// audit holds both cells against I3 and I4 at rest.
func (w *world) audit(deposited int64) {
	w.t.Helper()
	var total, clearing int64
	verdicts := map[id.ID]transfer.Verdict{}
	for _, db := range w.dbs {
		check(w.t, db)
		var a, c int64
		if err := db.Super.QueryRow(w.t.Context(), `SELECT coalesce(sum(available + frozen + suspense), 0)::bigint, coalesce(sum(clearing), 0)::bigint FROM cell.wallets`).Scan(&a, &c); err != nil {
			w.t.Fatal(err)
		}
		total, clearing = total+a, clearing+c
		rows, _ := db.Super.Query(w.t.Context(), `SELECT transfer_id, state FROM cell.credits`)
		var n id.ID
		var v transfer.Verdict
		if _, err := pgx.ForEachRow(rows, []any{&n, &v}, func() error { verdicts[n] = v; return nil }); err != nil {
			w.t.Fatal(err)
		}
	}
	if total != deposited || clearing != 0 {
		w.t.Errorf("money in wallets = %d, clearing = %d, want %d and 0", total, clearing, deposited)
	}
	for _, db := range w.dbs {
		rows, _ := db.Super.Query(w.t.Context(), `SELECT id, state FROM cell.transfers`)
		var n id.ID
		var s transfer.State
		_, err := pgx.ForEachRow(rows, []any{&n, &s}, func() error {
			if !s.Ended() {
				w.t.Errorf("transfer %d is still %s", n, s)
			}
			if (s == transfer.Settled) != (verdicts[n] == transfer.Credited) {
				w.t.Errorf("transfer %d is %s, its destination says %q", n, s, verdicts[n])
			}
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
}
