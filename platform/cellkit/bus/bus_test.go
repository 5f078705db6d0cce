package bus_test

import (
	"errors"
	"testing"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/pg"
)

// A request from a slot of c1 to one of c2, and its reply, through both NATS
// servers and the link.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	c1, c2 := newCells(t)
	for _, c := range []*cell{c1, c2} {
		start(t, c.dispatcher().Run)
		start(t, c.consumer().Run)
	}
	c1.send(t, 7, half+7, "a") // other cell
	c1.send(t, 7, 8, "b")      // same cell, other slot
	waitFor(t, "both requests and replies", func() error {
		return errors.Join(once(t, c1.db, "8 do b", "7 done a", "7 done b"), once(t, c2.db, "8199 do a"), settled(t, c1, c2))
	})
}

// NATS that comes late is waited for.
func TestNATSComesLate(t *testing.T) {
	t.Parallel()
	c1, c2 := newCells(t)
	c1.nats.Stop()
	c2.nats.Stop()
	for _, c := range []*cell{c1, c2} {
		start(t, c.dispatcher().Run)
		start(t, c.consumer().Run)
	}
	var sum [2][]string
	check := traffic(t, c1, c2, "a", 3, &sum)
	c1.nats.Start(t)
	c2.nats.Start(t)
	waitFor(t, "everything", check)
}

// The dispatcher hears of a commit at once, not at its next look.
func TestPoke(t *testing.T) {
	t.Parallel()
	c1, c2 := newCells(t)
	start(t, c1.dispatcher().Run)
	con := c1.consumer()
	start(t, con.Run)
	start(t, c2.dispatcher().Run)
	s := c1.spy(t)
	s.stream(t, "c2")
	waitFor(t, "the consumer", func() error { _, err := s.js.Consumer(t.Context(), bus.Stream("c1"), "toy"); return err })
	poked, err := s.nc.SubscribeSync(bus.PokeSubject)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	err = pg.InSlot(t.Context(), c1.db.App, pg.Entry{Slot: 1, Epoch: 1}, func(tx *pg.Tx) error {
		tx.AfterCommit(con.Poke)
		return bus.Send(t.Context(), tx, bus.Request{Service: "toy", Kind: "do.it", Key: "a", To: half, Body: 1, ReplyService: "toy"})
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := poked.NextMsg(patience); err != nil {
		t.Errorf("no poke after the commit: %v", err)
	}
	want(t, con.Deliver(t.Context(), request(half, 1, "b")), bus.Handled)
	if _, err := poked.NextMsg(patience); err != nil {
		t.Errorf("no poke after a reply was written: %v", err)
	}
	s.has(t, "c2", "do.it:a", bus.ReplyID(half, "do.it:b"))
}
