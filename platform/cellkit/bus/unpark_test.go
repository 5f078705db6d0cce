package bus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// parkedOf is the key of the one message of an ID that is parked and not resolved.
func (c *cell) parkedOf(t testing.TB, id string) (p bus.ParkedKey) {
	t.Helper()
	err := c.db.Super.QueryRow(t.Context(), "SELECT slot, from_slot, id, digest FROM cell.parked WHERE id = $1 AND resolved_at IS NULL", id).
		Scan(&p.Slot, &p.From, &p.ID, &p.Digest)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A message that was parked in the cell's slot, since its own had moved away, goes
// to where that is, and is resolved.
func TestUnparkSendsOnWhatIsElsewhere(t *testing.T) {
	t.Parallel()
	c1, c2 := newCells(t)
	con := c1.consumer()
	con.Handle("do.it", func(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
		_, err := c1.db.Super.Exec(ctx, "UPDATE cell.slots SET owner = 'c2', role = 'none', epoch = 2 WHERE slot = 2")
		return bus.Reply{}, bus.Park(errors.Join(errors.New("it can't be done"), err))
	})
	want(t, con.Deliver(t.Context(), request(1, 2, "a")), bus.Parked)
	p := c1.parkedOf(t, "do.it:a")
	if p.Slot != routing.CellSlot(1) {
		t.Fatalf("parked in slot %d, want the cell's", p.Slot)
	}
	if _, err := c2.db.Super.Exec(t.Context(), "UPDATE cell.slots SET owner = 'c2', role = 'owner', epoch = 2 WHERE slot = 2"); err != nil {
		t.Fatal(err)
	}
	if res := con.Unpark(t.Context(), p); res.Outcome != bus.Again || !errs.IsKind(res.Err, errs.Unavailable) {
		t.Errorf("without NATS: %s, %v, want again", res.Outcome, res.Err)
	}
	for _, c := range []*cell{c1, c2} {
		start(t, c.dispatcher().Run)
	}
	start(t, con.Run)
	start(t, c2.consumer().Run)
	waitFor(t, "sent on", func() error {
		if res := con.Unpark(t.Context(), p); res.Outcome != bus.Forwarded {
			return fmt.Errorf("%s, %w", res.Outcome, res.Err)
		}
		return nil
	})
	waitFor(t, "handled in c2", func() error { return once(t, c2.db, "2 do a") })
	want(t, con.Unpark(t.Context(), p), bus.Duplicate)
}

// A handler that gives no reply isn't done, when a message was parked as little as
// the first time.
func TestUnparkWantsAReply(t *testing.T) {
	t.Parallel()
	c := alone(t)
	con := c.consumer()
	answer := bus.Park(errors.New("not yet"))
	con.Handle("do.it", func(context.Context, *pg.Tx, bus.Message) (bus.Reply, error) { return bus.Reply{}, answer })
	want(t, con.Deliver(t.Context(), request(1, 2, "a")), bus.Parked)
	p := c.parkedOf(t, "do.it:a")
	answer = nil
	if res := con.Unpark(t.Context(), p); res.Outcome != bus.Again || !strings.Contains(fmt.Sprint(res.Err), "gave no reply") {
		t.Errorf("no reply: %s, %v", res.Outcome, res.Err)
	}
	want(t, c.consumer().Unpark(t.Context(), p), bus.Handled)
}
