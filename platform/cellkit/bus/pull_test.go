package bus_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// everything starts both cells' parts.
func everything(t testing.TB) (c1, c2 *cell) {
	t.Helper()
	c1, c2 = newCells(t)
	for _, c := range []*cell{c1, c2} {
		start(t, c.dispatcher().Run)
		start(t, c.consumer().Run)
	}
	return c1, c2
}

// traffic sends n requests from c1 to c2 under a name, and gives the check that
// each was done, and answered, exactly once.
func traffic(t testing.TB, c1, c2 *cell, name string, n int, sum *[2][]string) func() error {
	t.Helper()
	for i := range n {
		key := fmt.Sprint(name, i)
		c1.send(t, routing.Slot(i), half+routing.Slot(i), key)
		sum[0] = append(sum[0], fmt.Sprintf("%d done %s", i, key))
		sum[1] = append(sum[1], fmt.Sprintf("%d do %s", half+i, key))
	}
	return func() error {
		return errors.Join(once(t, c1.db, sum[0]...), once(t, c2.db, sum[1]...), settled(t, c1, c2))
	}
}

// Crashes while everything runs: the message comes again, the effect doesn't.
func TestScenario_M01_CrashBeforeAck(t *testing.T) {
	t.Parallel()
	c1, c2 := newCells(t)
	start(t, c1.dispatcher().Run)
	start(t, c2.dispatcher().Run)
	start(t, c1.consumer().Run)
	con := c2.consumer()
	var n atomic.Int32
	con.FailAt(func(step string) error {
		if step == "ack" && n.Add(1) <= 10 {
			return errCrash
		}
		return nil
	})
	start(t, con.Run)
	var sum [2][]string
	waitFor(t, "all done once", traffic(t, c1, c2, "a", 10, &sum))
	waitFor(t, "every lost ack's copy", func() error {
		got, err := c1.spy(t).messages(t.Context(), "c2")
		if len(got) > 0 {
			return fmt.Errorf("%d messages left", len(got))
		}
		return err
	})
}

// Messages that wait for another try, or that fail at each, leave room for others
// and don't pile up.
func TestScenario_M11_NakWithDelayStarvesNobody(t *testing.T) {
	t.Parallel()
	const bad = 300 // more than most would let be pending
	for _, tt := range []struct {
		name  string
		first time.Duration
	}{{"long waits", 30 * time.Second}, {"short waits", 20 * time.Millisecond}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c1, c2 := newCells(t)
			start(t, c1.dispatcher().Run)
			con := c2.consumer()
			con.Hurry(10*time.Second, 2*time.Second, tt.first, 30*time.Second)
			con.Handle("do.it", func(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
				if m.Key != "good" {
					return bus.Reply{}, errs.ErrUnavailable // for ever
				}
				return bus.Reply{Kind: "done.it", Body: 1}, effect(ctx, tx, "do "+m.Key)
			})
			con.HandleMany("do.it", func(_ context.Context, _ *pg.Many, list []bus.Message) ([]bus.Reply, bus.Effect, error) {
				return make([]bus.Reply, len(list)), nil, nil // each goes alone
			})
			exec(t, c1, fmt.Sprintf(`BEGIN; SELECT cell.enter(1, 1); INSERT INTO cell.outbox (slot, id, to_slot, service, kind, key, body, reply_service)
				SELECT 1, 'bad' || i, 9000, 'toy', 'do.it', 'bad' || i, '1', 'toy' FROM generate_series(1, %d) i; COMMIT`, bad))
			c1.spy(t).has(t, "c2", "bad1", fmt.Sprint("bad", bad))
			start(t, con.Run)
			waitFor(t, "a try of each", func() error {
				if n := c2.metric(t, "cellmart_bus_handled_total", `outcome="again"`); n < bad {
					return fmt.Errorf("%v tries", n)
				}
				return nil
			})
			c1.send(t, 1, 9000, "good")
			waitFor(t, "the good one", func() error { return once(t, c2.db, "9000 do good") })
			if tt.first > time.Second {
				return
			}
			waitFor(t, "copies let go", func() error {
				if n := c2.metric(t, "cellmart_bus_handled_total", `outcome="dropped"`); n < bad/2 {
					return fmt.Errorf("%v dropped", n)
				}
				return nil
			})
		})
	}
}

// A pull that is silent with messages pending: paused is as silent as a server's
// bug can make it.
func TestScenario_M11_WatchdogRebuildsASilentConsumer(t *testing.T) {
	t.Parallel()
	c1, c2 := everything(t)
	var sum [2][]string
	waitFor(t, "the first ones", traffic(t, c1, c2, "a", 3, &sum))
	until := time.Now().Add(time.Hour)
	for _, c := range []*cell{c1, c2} {
		if _, err := c.spy(t).js.PauseConsumer(t.Context(), bus.Stream("c2"), "toy", until); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "messages after the rebuild", traffic(t, c1, c2, "b", 3, &sum))
}

// Whatever is taken away from NATS while messages flow is made again, and
// nothing is lost or done twice.
func TestScenario_M06_NATSIsDisposable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		damage func(t *testing.T, c1, c2 *cell)
	}{
		{"stream deleted", func(t *testing.T, c1, _ *cell) {
			if err := c1.spy(t).js.DeleteStream(t.Context(), bus.Stream("c2")); err != nil {
				t.Fatal(err)
			}
		}},
		{"consumer deleted", func(t *testing.T, c1, _ *cell) {
			err := c1.spy(t).js.DeleteConsumer(t.Context(), bus.Stream("c2"), "toy")
			if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
				t.Fatal(err)
			}
		}},
		{"consumer as it was before, on disk, and server restarted", func(t *testing.T, c1, _ *cell) {
			js := c1.spy(t).js
			waitFor(t, "an old consumer", func() error {
				err := js.DeleteConsumer(t.Context(), bus.Stream("c2"), "toy")
				if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
					return err
				}
				_, err = js.CreateConsumer(t.Context(), bus.Stream("c2"), jetstream.ConsumerConfig{
					Durable: "toy", FilterSubject: bus.Subject("c2", "toy", ">"), AckPolicy: jetstream.AckExplicitPolicy,
				})
				return err
			})
			c1.nats.Restart(t)
		}},
		{"server restarted", func(t *testing.T, c1, _ *cell) { c1.nats.Restart(t) }},
		{"source's store wiped", func(t *testing.T, c1, _ *cell) { c1.nats.WipeStore(t) }},
		{"destination's store wiped", func(t *testing.T, _, c2 *cell) { c2.nats.WipeStore(t) }},
		{"link cut and plugged", func(t *testing.T, c1, _ *cell) {
			c1.links.plug(false)
			t.Cleanup(func() { c1.links.plug(true) })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c1, c2 := everything(t)
			var sum [2][]string
			waitFor(t, "before", traffic(t, c1, c2, "before", 5, &sum))
			traffic(t, c1, c2, "during", 20, &sum)
			tt.damage(t, c1, c2)
			check := traffic(t, c1, c2, "after", 20, &sum)
			c1.links.plug(true)
			waitFor(t, "everything once", check)
		})
	}
}

// The database of the destination goes away: messages wait for it.
func TestDatabaseGone(t *testing.T) {
	t.Parallel()
	c1, c2 := everything(t)
	var sum [2][]string
	waitFor(t, "before", traffic(t, c1, c2, "before", 2, &sum))
	exec(t, c2, "SELECT cell.set_lease(0)")
	kill(t, c2.db)
	check := traffic(t, c1, c2, "during", 5, &sum)
	c1.spy(t).has(t, "c2", "do.it:during4")
	exec(t, c2, "SELECT cell.set_lease('infinity')")
	waitFor(t, "everything once", check)
}

// A slot that moved: whoever gets its message sends it on, and the hops end.
func TestForward(t *testing.T) {
	t.Parallel()
	const slot = 100 // c1's by the first table
	t.Run("to the new owner", func(t *testing.T) {
		t.Parallel()
		c1, c2 := newCells(t)
		// c2's routers still have the old table; the slot and its messages have moved on to c2.
		c1.table, c2.table = new(routing.Holder), new(routing.Holder)
		c2.table.Store(tableOf(t, 1, nil))
		c1.table.Store(tableOf(t, 2, map[routing.Slot]string{slot: "c2"}))
		exec(t, c1, "UPDATE cell.slots SET owner = 'c2', role = 'none', epoch = 2 WHERE slot = 100")
		exec(t, c2, "UPDATE cell.slots SET owner = 'c2', role = 'owner', epoch = 2 WHERE slot = 100")
		for _, c := range []*cell{c1, c2} {
			start(t, c.dispatcher().Run)
			start(t, c.consumer().Run)
		}
		c2.send(t, half, slot, "a")
		waitFor(t, "the message at its new home", func() error {
			return errors.Join(once(t, c2.db, "100 do a", "8192 done a"), once(t, c1.db), settled(t, c1, c2))
		})
	})
	t.Run("not for ever", func(t *testing.T) {
		t.Parallel()
		c1, c2 := newCells(t)
		// Each thinks that the other has it.
		exec(t, c1, "UPDATE cell.slots SET owner = 'c2', role = 'none', epoch = 5 WHERE slot = 100")
		exec(t, c2, "UPDATE cell.slots SET owner = 'c1', role = 'none', epoch = 5 WHERE slot = 100")
		for _, c := range []*cell{c1, c2} {
			start(t, c.consumer().Run)
			start(t, c.dispatcher().Run)
		}
		c2.publish(t, "c1", bus.Encode(request(half, slot, "a")))
		waitFor(t, "the end of the hops", func() error {
			// More than once where an ack was late, so that a hop's message came again.
			if n := c1.metric(t, `cellmart_bus_handled_total`, `outcome="dropped"`) + c2.metric(t, `cellmart_bus_handled_total`, `outcome="dropped"`); n < 1 {
				return fmt.Errorf("dropped %v times", n)
			}
			there, err := c1.spy(t).messages(t.Context(), "c2")
			back, err2 := c2.spy(t).messages(t.Context(), "c1")
			if len(there)+len(back) > 0 {
				err = errors.Join(err, fmt.Errorf("on their way: %v, %v", there, back))
			}
			return errors.Join(err, err2)
		})
		if n := c1.metric(t, "cellmart_bus_forwarded_total") + c2.metric(t, "cellmart_bus_forwarded_total"); n < 4 {
			t.Errorf("sent on %v times, want 4", n)
		}
		if err := errors.Join(once(t, c1.db), once(t, c2.db)); err != nil {
			t.Error(err)
		}
	})
}

// What isn't a message is kept in the cell's own slot, and acknowledged.
func TestMalformedIsParked(t *testing.T) {
	t.Parallel()
	c1, c2 := newCells(t)
	start(t, c1.dispatcher().Run)
	start(t, c2.consumer().Run)
	other := request(1, half, "a")
	other.Service = "inventory"
	both := request(1, half, "b")
	both.ReplyTo = "x"
	for _, data := range [][]byte{[]byte("\x00\xff"), []byte(`{"id":`), []byte(`{}`), bus.Encode(other), bus.Encode(both)} {
		c1.publish(t, "c2", data)
	}
	waitFor(t, "all parked, none left", func() error {
		got, err := c1.spy(t).js.Stream(t.Context(), bus.Stream("c2"))
		if err != nil {
			return err
		}
		left := got.CachedInfo().State.Msgs
		if n := count(t, c2.db, fmt.Sprintf("cell.parked WHERE slot = %d", routing.CellSlot(2))); n != 5 || left > 0 {
			return fmt.Errorf("%d parked, %d left", n, left)
		}
		return nil
	})
}

// A cell that the table gets later is pulled from; one that it loses isn't.
func TestConsumerFollowsTheTable(t *testing.T) {
	t.Parallel()
	c1, c2 := newCells(t)
	c2.table = new(routing.Holder)
	start(t, c1.dispatcher().Run)
	start(t, c1.consumer().Run)
	start(t, c2.dispatcher().Run)
	start(t, c2.consumer().Run) // without any table yet
	var sum [2][]string
	check := traffic(t, c1, c2, "a", 2, &sum)
	c1.spy(t).has(t, "c2", "do.it:a1")
	alone, err := routing.Build(routing.Spec{Version: 1, Cells: []routing.Cell{{Name: "c2", Ordinal: 2, Weight: 1}}, Slots: func() []routing.Assignment {
		s := make([]routing.Assignment, routing.Slots)
		for i := range s {
			s[i] = routing.Assignment{Owner: "c2", Epoch: 1}
		}
		return s
	}()})
	if err != nil {
		t.Fatal(err)
	}
	c2.table.Store(alone)
	waitFor(t, "the consumer of the own cell", func() error {
		_, err := c2.spy(t).js.Consumer(t.Context(), bus.Stream("c2"), "toy")
		return err
	})
	if got := effects(t, c2.db); len(got) > 0 {
		t.Errorf("effects %v of a cell that isn't in the table", got)
	}
	c2.table.Store(tableOf(t, 2, nil))
	waitFor(t, "the new cell's messages", check)
}
