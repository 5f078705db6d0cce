package bus_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/bus/bustest"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/routing"
)

// alone is one cell that owns all slots, without NATS.
func alone(t testing.TB) *cell {
	t.Helper()
	table := new(routing.Holder)
	table.Store(routing.Spread([]string{"c1"}))
	return &cell{name: "c1", db: pgtest.New(t, toy()), table: table, links: &links{}, nats: &bustest.NATS{}}
}

// kill ends every connection of the application but this test's own.
func kill(t testing.TB, db *pgtest.DB) {
	t.Helper()
	_, err := db.Super.Exec(context.Background(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'cellmart_app'")
	if err != nil {
		t.Error(err)
	}
}

// want checks an outcome.
func want(t testing.TB, res bus.Result, outcome bus.Outcome) {
	t.Helper()
	if res.Outcome != outcome {
		t.Fatalf("outcome = %s (%v), want %s", res.Outcome, res.Err, outcome)
	}
}

// The barrier and its effect are one: after a crash at any step the rerun does
// the effect once, never "already done" without it.
func TestScenario_M01_CrashBetweenEveryTwoSteps(t *testing.T) {
	t.Parallel()
	steps := map[string][]string{"request": {"inbox", "handled", "commit"}, "reply": {"locked", "handled", "commit"}}
	c := alone(t)
	for what, list := range steps {
		for _, step := range list {
			for _, how := range []string{"error", "connection killed", "context"} {
				t.Run(what+"/"+step+"/"+how, func(t *testing.T) { crashAt(t, c, what, step, how) })
			}
		}
	}
	t.Run("commit of unknown outcome", func(t *testing.T) {
		t.Parallel()
		c := alone(t)
		con := c.consumer()
		_, err := c.db.Super.Exec(t.Context(), `CREATE FUNCTION cell.end_it() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN DELETE FROM cell.lease; RETURN NULL; END $$;
			CREATE CONSTRAINT TRIGGER end_it AFTER INSERT ON toy.effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION cell.end_it()`)
		if err != nil {
			t.Fatal(err)
		}
		res := con.Deliver(t.Context(), request(1, 2, "a"))
		want(t, res, bus.Again)
		if !errors.Is(res.Err, errs.ErrUnknown) {
			t.Errorf("error = %v, want OUTCOME_UNKNOWN", res.Err)
		}
		if _, err := c.db.Super.Exec(t.Context(), "SELECT cell.set_lease('infinity')"); err != nil {
			t.Fatal(err)
		}
		want(t, con.Deliver(t.Context(), request(1, 2, "a")), bus.Duplicate)
		if err := once(t, c.db, "2 do a"); err != nil {
			t.Error(err)
		}
	})
}

func crashAt(t *testing.T, c *cell, what, step, how string) {
	con := c.consumer()
	key := step + " " + how
	m, effect := request(1, 2, key), "2 do "+key
	if what == "reply" {
		key = "replied " + key
		c.send(t, 1, 2, key)
		m = bus.Message{ID: bus.ReplyID(1, "do.it:"+key), Kind: "done.it", Key: key, Service: "toy", From: 2, To: 1, ReplyTo: "do.it:" + key, Body: []byte(`{}`)}
		effect = "1 done " + key
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	crashed := false
	con.FailAt(func(at string) error {
		if at != step || crashed {
			return nil
		}
		crashed = true
		switch how {
		case "context":
			cancel()
			return nil
		case "error":
			return errCrash
		}
		kill(t, c.db)
		return nil
	})
	want(t, con.Deliver(ctx, m), bus.Again)
	if !crashed {
		t.Fatalf("step %s was never reached", step)
	}
	if n := effects(t, c.db)[effect]; n != 0 {
		t.Fatalf("the effect after the crash: %d times", n)
	}
	want(t, con.Deliver(t.Context(), m), bus.Handled)
	want(t, con.Deliver(t.Context(), m), bus.Duplicate)
	if n := effects(t, c.db)[effect]; n != 1 {
		t.Errorf("the effect at the end: %d times, want 1", n)
	}
}

// What can't be done is answered or put aside, not tried for ever; what was
// rolled back leaves no trace that could count as done.
func TestScenario_M02_NothingIsRetriedForEver(t *testing.T) {
	t.Parallel()
	t.Run("a reply to a request that was never sent", func(t *testing.T) {
		t.Parallel()
		c := alone(t)
		con := c.consumer()
		m := bus.Message{ID: "re:2:do.it:x", Kind: "done.it", Key: "x", Service: "toy", From: 2, To: 1, ReplyTo: "do.it:x", Body: []byte(`{}`)}
		want(t, con.Deliver(t.Context(), m), bus.Parked)
		want(t, con.Deliver(t.Context(), m), bus.Parked)
		if n := count(t, c.db, "cell.parked"); n != 1 {
			t.Errorf("%d parked rows, want 1", n)
		}
	})
	t.Run("a handler that gives up", func(t *testing.T) {
		t.Parallel()
		c := alone(t)
		con := c.consumer()
		con.Handle("do.it", func(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
			return bus.Reply{}, bus.Park(errors.Join(effect(ctx, tx, "undone"), errors.New("no such account")))
		})
		want(t, con.Deliver(t.Context(), request(1, 2, "a")), bus.Parked)
		want(t, con.Deliver(t.Context(), request(1, 2, "a")), bus.Duplicate)
		if n := count(t, c.db, "cell.parked"); n != 1 || len(effects(t, c.db)) != 0 || len(bustest.Outbox(t, c.db.Super, 2)) != 0 {
			t.Errorf("%d parked, effects %v, want one and none, and no reply", n, effects(t, c.db))
		}
	})
	t.Run("a handler that fails and later is mended", func(t *testing.T) {
		t.Parallel()
		c := alone(t)
		con := c.consumer()
		n := 0
		con.Handle("do.it", func(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
			if n++; n%2 == 0 {
				panic("a bug")
			}
			return bus.Reply{}, errors.Join(effect(ctx, tx, "undone"), errors.New("a bug"))
		})
		for range bus.MaxTries - 1 {
			want(t, con.Deliver(t.Context(), request(1, 2, "a")), bus.Again)
		}
		want(t, con.Deliver(t.Context(), request(1, 2, "a")), bus.Parked)
		mended := c.consumer()
		want(t, mended.Deliver(t.Context(), request(1, 2, "a")), bus.Handled) // the source sends it until it is answered
		if n := count(t, c.db, "cell.parked WHERE resolved_at IS NULL"); n != 0 {
			t.Errorf("%d parked rows still open, want 0", n)
		}
		if err := once(t, c.db, "2 do a"); err != nil {
			t.Error(err)
		}
	})
	t.Run("a passing reason never parks", func(t *testing.T) {
		t.Parallel()
		c := alone(t)
		con := c.consumer()
		con.Handle("do.it", func(context.Context, *pg.Tx, bus.Message) (bus.Reply, error) {
			return bus.Reply{}, errs.ErrUnavailable
		})
		for range 2 * bus.MaxTries {
			want(t, con.Deliver(t.Context(), request(1, 2, "a")), bus.Again)
		}
	})
	t.Run("a kind nobody knows", func(t *testing.T) {
		t.Parallel()
		c := alone(t)
		m := request(1, 2, "a")
		m.Kind = "do.that"
		con := c.consumer()
		for range bus.MaxTries - 1 {
			want(t, con.Deliver(t.Context(), m), bus.Again) // a newer version of the service may know it
		}
		want(t, con.Deliver(t.Context(), m), bus.Parked)
	})
}

// Receivers take any order, also after some of a batch failed.
func TestScenario_M09_AnyOrder(t *testing.T) {
	t.Parallel()
	c := alone(t)
	con := c.consumer()
	for i := range 4 {
		c.send(t, 1, 2, fmt.Sprint(i))
	}
	failed := false
	con.FailAt(func(step string) error {
		if step == "handled" && !failed {
			failed = true
			return errCrash
		}
		return nil
	})
	for _, i := range []int{1, 3, 0, 1, 2, 3, 3} { // 1 fails first
		con.Deliver(t.Context(), request(1, 2, fmt.Sprint(i)))
	}
	replies := bustest.Outbox(t, c.db.Super, 2)
	if len(replies) != 4 {
		t.Fatalf("%d replies, want 4", len(replies))
	}
	for _, i := range []int{2, 0, 3, 2, 1} {
		con.Deliver(t.Context(), replies[i].Message)
	}
	err := once(t, c.db, "2 do 0", "2 do 1", "2 do 2", "2 do 3", "1 done 0", "1 done 1", "1 done 2", "1 done 3")
	if err != nil {
		t.Error(err)
	}
	for _, r := range bustest.Outbox(t, c.db.Super, 1) {
		if !r.Closed || r.Due || len(r.Reply) == 0 {
			t.Errorf("request %s: closed %v, due %v, reply %s, want closed with its reply", r.ID, r.Closed, r.Due, r.Reply)
		}
	}
}

func TestScenario_M10_SameIDOtherBody(t *testing.T) {
	t.Parallel()
	c := alone(t)
	con := c.consumer()
	m := request(1, 2, "a")
	m.Body = []byte(`{"amount":10,"to":"x"}`)
	want(t, con.Deliver(t.Context(), m), bus.Handled)
	before := bustest.Outbox(t, c.db.Super, 2)

	other := m
	other.Body = []byte(`{"amount":11,"to":"x"}`)
	want(t, con.Deliver(t.Context(), other), bus.Parked)
	other.Attempt, other.Hop = 2, 1
	want(t, con.Deliver(t.Context(), other), bus.Parked)
	kind := m
	kind.Kind = "do.other"
	want(t, con.Deliver(t.Context(), kind), bus.Parked)
	if n := count(t, c.db, "cell.parked"); n != 2 {
		t.Errorf("%d parked rows, want one for each conflict, not for each attempt", n)
	}
	if diff := cmp.Diff(before, bustest.Outbox(t, c.db.Super, 2)); diff != "" {
		t.Errorf("the reply changed (-want +got):\n%s", diff)
	}
	same := m
	same.Body = []byte(` { "to": "x", "amount": 10 } `)
	want(t, con.Deliver(t.Context(), same), bus.Duplicate)
	elsewhere := m
	elsewhere.From = 3 // ids are unique within a slot only
	want(t, con.Deliver(t.Context(), elsewhere), bus.Handled)
	if n := len(bustest.Outbox(t, c.db.Super, 2)); n != 2 {
		t.Errorf("%d replies, want one for each source slot", n)
	}
}

// Copies at the same time: one is handled, all are answered.
func TestCopiesAtTheSameTime(t *testing.T) {
	t.Parallel()
	c := alone(t)
	con := c.consumer()
	var mu sync.Mutex
	got := map[bus.Outcome]int{}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			res := con.Deliver(t.Context(), request(1, 2, "a"))
			for try := 0; res.Outcome == bus.Again && try < 20; try++ { // 16 at once may be more than a busy machine does in 2 s
				res = con.Deliver(t.Context(), request(1, 2, "a"))
			}
			mu.Lock()
			defer mu.Unlock()
			got[res.Outcome]++
		})
	}
	wg.Wait()
	if got[bus.Handled] > 1 || got[bus.Handled]+got[bus.Duplicate] != 16 { // whose commit was cut off finds its own row
		t.Errorf("outcomes %v, want 1 handled and 15 duplicates", maps.Clone(got))
	}
	if err := once(t, c.db, "2 do a"); err != nil {
		t.Error(err)
	}
}

// A duplicate's reply goes out again, also when its first note is long gone or
// the row itself was lost.
func TestReplyIsMadeAgain(t *testing.T) {
	t.Parallel()
	c := alone(t)
	con := c.consumer()
	want(t, con.Deliver(t.Context(), request(1, 2, "a")), bus.Handled)
	for _, lost := range []string{"DELETE FROM cell.relay", "ALTER TABLE cell.outbox DISABLE TRIGGER USER; DELETE FROM cell.outbox; DELETE FROM cell.relay; ALTER TABLE cell.outbox ENABLE TRIGGER USER"} {
		if _, err := c.db.Super.Exec(t.Context(), lost); err != nil {
			t.Fatal(err)
		}
		want(t, con.Deliver(t.Context(), request(1, 2, "a")), bus.Duplicate)
		due := bustest.Due(t, c.db.Super)
		if len(due) != 1 || due[0].ReplyTo != "do.it:a" || string(due[0].Body) != `{"of": "a"}` || due[0].To != 1 {
			t.Errorf("after %.30q: due %+v, want the first reply", lost, due)
		}
	}
}

// Who owns the slot: the newer of the table and the database.
func TestMovedSlot(t *testing.T) {
	t.Parallel()
	const slot = 2
	for _, tt := range []struct {
		name    string
		row     string // SQL on the cell's own row
		table   map[routing.Slot]string
		outcome bus.Outcome
		owner   string
	}{
		{"database knows of a move away", "UPDATE cell.slots SET owner = 'c2', role = 'none', epoch = 2", nil, bus.Elsewhere, "c2"},
		{"database has given it away", "UPDATE cell.slots SET state = 'given', given_to = 'c2'", nil, bus.Elsewhere, "c2"},
		{"table knows of a move away", "UPDATE cell.slots SET changed_at = now()", map[routing.Slot]string{slot: "c2"}, bus.Elsewhere, "c2"},
		{"both know", "UPDATE cell.slots SET owner = 'c2', role = 'none', epoch = 2", map[routing.Slot]string{slot: "c2"}, bus.Elsewhere, "c2"},
		{"database has it back already", "UPDATE cell.slots SET epoch = 3", map[routing.Slot]string{slot: "c2"}, bus.Handled, ""},
		{"database is ahead by an epoch", "UPDATE cell.slots SET epoch = 2", nil, bus.Handled, ""},
		{"database has yet to take it", "UPDATE cell.slots SET owner = 'c2', role = 'standby'", map[routing.Slot]string{slot: "c1"}, bus.Again, ""},
		{"draining", "UPDATE cell.slots SET state = 'draining'", nil, bus.Again, ""},
		{"not known to the database", "DELETE FROM cell.slots", nil, bus.Again, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := alone(t)
			c.table = new(routing.Holder)
			c.table.Store(tableOf(t, 2, tt.table))
			if _, err := c.db.Super.Exec(t.Context(), tt.row+" WHERE slot = 2"); err != nil {
				t.Fatal(err)
			}
			res := c.consumer().Deliver(t.Context(), request(1, slot, "a"))
			if res.Outcome != tt.outcome || res.Owner != tt.owner {
				t.Errorf("outcome %s owner %q (%v), want %s %q", res.Outcome, res.Owner, res.Err, tt.outcome, tt.owner)
			}
		})
	}
}

// A message parked for a slot that is not here goes to the cell's own slot.
func TestParkInCellSlot(t *testing.T) {
	t.Parallel()
	c := alone(t)
	con := c.consumer()
	con.Handle("do.it", func(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
		// The slot moves away while the message is in work.
		_, err := c.db.Super.Exec(ctx, "UPDATE cell.slots SET owner = 'c2', role = 'none', epoch = 2 WHERE slot = 2")
		return bus.Reply{}, bus.Park(errors.Join(errors.New("it can't be done"), err))
	})
	m := request(1, 2, "a")
	m.Body = []byte(`{"text":"a\u0000b"}`) // jsonb takes no NUL
	want(t, con.Deliver(t.Context(), m), bus.Parked)
	var slot routing.Slot
	var reason string
	if err := c.db.Super.QueryRow(t.Context(), "SELECT slot, reason FROM cell.parked").Scan(&slot, &reason); err != nil {
		t.Fatal(err)
	}
	if slot != routing.CellSlot(1) || !strings.Contains(reason, "can't be done") {
		t.Errorf("parked in slot %d for %q, want the cell slot and the reason", slot, reason)
	}
}

func TestPump(t *testing.T) {
	t.Parallel()
	c := alone(t)
	c.send(t, 1, 2, "a")
	c.send(t, 3, 1, "b")
	if n := bustest.Pump(t, c.db.Super, c.consumer()); n != 4 {
		t.Errorf("Pump = %d messages, want 4", n)
	}
	if err := errors.Join(once(t, c.db, "2 do a", "1 done a", "1 do b", "3 done b"), settled(t, c)); err != nil {
		t.Error(err)
	}
}

// A handler may use the limit of a transaction, not more.
func TestSlowHandler(t *testing.T) {
	t.Parallel()
	c := alone(t)
	con := c.consumer()
	con.Handle("do.it", func(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
		if end, ok := ctx.Deadline(); !ok || time.Until(end) > pg.TxTimeout {
			t.Errorf("the handler may go on until %s, want at most %s", end, pg.TxTimeout)
			return bus.Reply{}, nil
		}
		<-ctx.Done()
		return bus.Reply{}, ctx.Err()
	})
	want(t, con.Deliver(t.Context(), request(1, 2, "a")), bus.Again)
}
