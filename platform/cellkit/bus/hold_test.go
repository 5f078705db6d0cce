package bus_test

import (
	"fmt"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/pg"
)

// gate is a Commit that holds until it's opened, and says what it was given.
type gate struct {
	held  chan []bus.Held
	ready chan struct{}
	leave chan []bus.Held
	gone  chan []bus.Held
}

func newGate() *gate {
	return &gate{held: make(chan []bus.Held, 1000), ready: make(chan struct{}, 1000), leave: make(chan []bus.Held, 1000), gone: make(chan []bus.Held, 1000)}
}

func (g *gate) Hold(list []bus.Held)   { g.held <- list }
func (g *gate) Ready() <-chan struct{} { return g.ready }

func (g *gate) Take(int) (leave, gone []bus.Held) {
	select {
	case leave = <-g.leave:
	default:
	}
	select {
	case gone = <-g.gone:
	default:
	}
	return leave, gone
}

func (g *gate) next(t *testing.T) bus.Held {
	t.Helper()
	select {
	case list := <-g.held:
		if len(list) != 1 {
			t.Fatalf("%d are held at once: %v", len(list), list)
		}
		return list[0]
	case <-time.After(30 * time.Second):
		t.Fatal("nothing is held")
	}
	return bus.Held{}
}

// What is held has a place behind its commit, and the cells that gate its slot. It
// leaves when the gate lets it; what the gate gives up stays due. One that is claimed
// again is held anew only if its slot has changed.
func TestHeldMessages(t *testing.T) {
	t.Parallel()
	c1, _ := newCells(t)
	g := newGate()
	exec(t, c1, "UPDATE cell.slots SET standby = 'c2', incoming = 'c3' WHERE slot = 1")
	d := bus.NewDispatcher(bus.DispatcherOptions{Cell: "c1", Pool: c1.agent, NATSURL: c1.nats.URL, Table: c1.table, Commit: g})
	start(t, d.Run)
	s := c1.spy(t)
	err := pg.InSlot(t.Context(), c1.db.App, pg.Entry{Slot: 1, Epoch: 1}, func(tx *pg.Tx) error {
		for _, key := range []string{"final", "early"} {
			r := bus.Request{Service: "toy", Kind: "do.it", Key: key, To: half, Body: 1, ReplyService: "toy", Early: key == "early"}
			if err := bus.Send(t.Context(), tx, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var at int64
	if err := c1.db.Super.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").Scan(&at); err != nil {
		t.Fatal(err)
	}
	s.has(t, "c2", "do.it:early")
	first := g.next(t)
	if first.ID != "do.it:final" || first.Slot != 1 || first.Epoch != 1 || first.Standby != "c2" || first.Incoming != "" || first.Incarnation == "" {
		t.Errorf("held %+v", first)
	}
	exec(t, c1, "UPDATE cell.slots SET gates = true WHERE slot = 1")
	again := g.next(t) // by its second claim: the slot has changed
	if again.ID != first.ID || again.Incoming != "c3" || again.At <= first.At {
		t.Errorf("held anew %+v, after %+v", again, first)
	}
	if got, err := s.messages(t.Context(), "c2"); err != nil || got["do.it:final"] > 0 {
		t.Errorf("left while it was held: %v (%v)", got, err)
	}
	g.gone <- []bus.Held{again}
	g.ready <- struct{}{}
	if back := g.next(t); back.ID != first.ID { // it stays due, and is held anew
		t.Errorf("then %+v", back)
	} else {
		g.leave <- []bus.Held{back}
		g.ready <- struct{}{}
	}
	s.has(t, "c2", "do.it:final")
	exec(t, c1, "UPDATE cell.slots SET epoch = 2 WHERE slot = 1")
	exec(t, c1, "UPDATE cell.slots SET incoming = 'c4', gates = true WHERE slot = 1")
	waitFor(t, "who is incoming anew doesn't gate", func() error {
		var gates bool
		err := c1.db.Super.QueryRow(t.Context(), "SELECT gates FROM cell.slots WHERE slot = 1").Scan(&gates)
		if err == nil && gates {
			err = fmt.Errorf("it does")
		}
		return err
	})
}

// A reply to what left early, and was lost with its cell, is nobody's fault; any
// other reply to what was never sent is.
func TestReplyToWhatIsForgotten(t *testing.T) {
	t.Parallel()
	c1, c2 := newCells(t)
	asked := request(1, half, "a")
	asked.Early = true
	want(t, c2.consumer().Deliver(t.Context(), asked), bus.Handled)
	var echo bool
	if err := c2.db.Super.QueryRow(t.Context(), "SELECT echo FROM cell.outbox WHERE id = $1", bus.ReplyID(1, "do.it:a")).Scan(&echo); err != nil || !echo {
		t.Errorf("the reply doesn't say that its request was early (%v)", err)
	}
	reply := bus.Message{ID: bus.ReplyID(1, "do.it:a"), Kind: "done.it", Key: "a", Service: "toy", From: half, To: 1, Body: []byte(`{}`), ReplyTo: "do.it:a", Attempt: 1}
	con := c1.consumer()
	reply.Echo = true
	want(t, con.Deliver(t.Context(), reply), bus.Forgotten)
	if n := count(t, c1.db, "cell.parked"); n != 0 {
		t.Errorf("%d parked", n)
	}
	reply.Echo = false
	want(t, con.Deliver(t.Context(), reply), bus.Parked)
}
