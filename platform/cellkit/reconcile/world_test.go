package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/reconcile"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/platform/routing"
)

const half = routing.Slots / 2

var (
	alice  = id.Make(1, 3, false)      // in c1
	anna   = id.Make(2, 9, false)      // in c1
	bob    = id.Make(3, half+3, false) // in c2
	nobody = id.Make(4, half+9, false)
)

// world is two cells with money, and their reconcilers; messages are carried by
// hand.
type world struct {
	t    testing.TB
	dbs  [2]*pgtest.DB
	both [2]*reconcile.Reconciler
	seq  int64

	looks atomic.Int64 // questions for single transfers, from cell to cell
}

// direct asks a Reconciler without a network in between.
type direct struct {
	r    func() *reconcile.Reconciler
	away *bool
	seen *atomic.Int64
	then func(op string) // after the answer was read
	fail func(op, question string) error
}

var errAway = errors.New("the link is down")

func (d direct) Admin(ctx context.Context, method, path string, in, out any) error {
	if d.away != nil && *d.away {
		return errAway
	}
	if d.seen != nil && (strings.HasSuffix(path, "/rows") || strings.HasSuffix(path, "/look")) {
		d.seen.Add(1)
	}
	b, err := json.Marshal(in)
	if err != nil {
		return err
	}
	if d.fail != nil {
		if err := d.fail(strings.TrimPrefix(path, "/reconcile/"), string(b)); err != nil {
			return err
		}
	}
	got, err := d.r().Answer(ctx, strings.TrimPrefix(path, "/reconcile/"), b)
	if err != nil {
		return err
	}
	if d.then != nil {
		d.then(strings.TrimPrefix(path, "/reconcile/"))
	}
	if b, err = json.Marshal(got); err != nil {
		return err
	}
	return json.Unmarshal(b, out)
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dbs: [2]*pgtest.DB{pgtest.NewCell(t, "c1", 1), pgtest.NewCell(t, "c2", 2)}}
	w.dbs[0].Disown(t, half, routing.Slots-1, "c2")
	w.dbs[1].Disown(t, 0, half-1, "c1")
	for _, db := range w.dbs {
		db.Plant(t, "UPDATE cell.slots SET epoch = 1") // both know the same
	}
	for i, name := range []string{"c1", "c2"} {
		w.both[i] = reconcile.New(reconcile.Options{
			Cell: name, Pool: w.dbs[i].App, Each: time.Millisecond, Patience: 1, Settled: time.Microsecond, Window: 12 * 24 * time.Hour, Slow: time.Millisecond,
			Peers: map[string]reconcile.Caller{[]string{"c2", "c1"}[i]: direct{r: func() *reconcile.Reconciler { return w.both[1-i] }, seen: &w.looks}},
		})
	}
	for _, user := range []id.ID{alice, anna, bob} {
		w.in(user.Slot(), func(tx *pg.Tx) error {
			return transfer.Post(t.Context(), tx, transfer.Posting{User: user, Currency: "CNY", Debit: transfer.External, Credit: transfer.Available,
				Amount: 1000, Ref: "deposit:" + user.String(), Step: "deposit"})
		})
	}
	return w
}

func (w *world) db(s routing.Slot) *pgtest.DB { return w.dbs[min(int(s)/half, 1)] }

func (w *world) in(slot routing.Slot, fn func(*pg.Tx) error) {
	w.t.Helper()
	if err := pg.InSlot(w.t.Context(), w.db(slot).App, pg.Entry{Slot: slot, Epoch: 1}, fn); err != nil {
		w.t.Fatal(err)
	}
}

// start begins a transfer and gives its CREDIT.
func (w *world) start(from, to id.ID, amount int64) (id.ID, bus.Message) {
	w.t.Helper()
	w.seq++
	n := id.Make(1000+w.seq, from.Slot(), false)
	w.in(from.Slot(), func(tx *pg.Tx) error {
		return transfer.Start(w.t.Context(), tx, transfer.Order{ID: n, From: from, To: to, ToSlot: to.Slot(), Amount: amount, Currency: "CNY"})
	})
	m := bus.Message{ID: "transfer.credit:" + n.String(), Kind: transfer.KindCredit, From: from.Slot(), To: to.Slot()}
	w.scan(from.Slot(), "SELECT body FROM cell.outbox WHERE id = '"+m.ID+"'", &m.Body)
	return n, m
}

// take is the payee's side, which gives the answer.
func (w *world) take(m bus.Message) bus.Message {
	w.t.Helper()
	answer := bus.Message{ID: "answer", Kind: transfer.KindAnswer, From: m.To, To: m.From, ReplyTo: m.ID}
	w.in(m.To, func(tx *pg.Tx) error {
		handle := transfer.HandleCredit(func(_ context.Context, _ *pg.Tx, user id.ID) (bool, string, error) {
			return user != nobody, "UNKNOWN_PAYEE", nil
		})
		if m.Kind == transfer.KindCancel {
			handle = transfer.HandleCancel
		}
		r, err := handle(w.t.Context(), tx, m)
		if err != nil {
			return err
		}
		answer.Body, err = json.Marshal(r.Body)
		return err
	})
	return answer
}

// end is the payer's side of the answer.
func (w *world) end(answer bus.Message) {
	w.t.Helper()
	w.in(answer.To, func(tx *pg.Tx) error {
		if _, err := transfer.HandleAnswer(w.t.Context(), tx, answer); err != nil {
			return err
		}
		return bus.Close(w.t.Context(), tx, strings.Split(answer.ReplyTo, ":")[0], strings.Split(answer.ReplyTo, ":")[1])
	})
}

// send is a whole transfer.
func (w *world) send(from, to id.ID, amount int64) id.ID {
	w.t.Helper()
	n, m := w.start(from, to, amount)
	w.end(w.take(m))
	return n
}

// cancelled is a transfer whose CANCEL came first.
func (w *world) cancelled(from, to id.ID, amount int64) id.ID {
	w.t.Helper()
	n, m := w.start(from, to, amount)
	w.in(from.Slot(), func(tx *pg.Tx) error {
		_, err := transfer.Cancel(w.t.Context(), tx, n, transfer.WishUser)
		return err
	})
	m.ID, m.Kind = "transfer.cancel:"+n.String(), transfer.KindCancel
	w.end(w.take(m))
	return n
}

func (w *world) scan(slot routing.Slot, sql string, to ...any) {
	w.t.Helper()
	if err := w.db(slot).Super.QueryRow(w.t.Context(), sql).Scan(to...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

// ago moves what has begun so far back in time, on both sides, and to the middle of
// its hour.
func (w *world) ago(hours int) {
	w.t.Helper()
	for _, db := range w.dbs {
		db.Plant(w.t, fmt.Sprintf("UPDATE cell.transfers SET created_at = date_trunc('hour', created_at) + interval '30 min' - interval '%[1]d hours'; UPDATE cell.credits SET begun_at = date_trunc('hour', begun_at) + interval '30 min' - interval '%[1]d hours'", hours))
	}
}

func (w *world) compare(from int, to string) reconcile.Pair {
	w.t.Helper()
	p, err := w.both[from].Compare(w.t.Context(), to, time.Now().Add(-100*24*time.Hour), time.Now().Add(time.Hour))
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) agents() map[string]direct {
	return map[string]direct{"c1": {r: func() *reconcile.Reconciler { return w.both[0] }}, "c2": {r: func() *reconcile.Reconciler { return w.both[1] }}}
}
