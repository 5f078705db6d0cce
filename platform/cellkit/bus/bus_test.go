package bus_test

import (
	"errors"
	"testing"
	"time"
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
	waitFor(t, 20*time.Second, "both requests and replies", func() error {
		return errors.Join(once(t, c1.db, "8 do b", "7 done a", "7 done b"), once(t, c2.db, "8199 do a"), settled(t, c1, c2))
	})
}
