package outputcommit_test

import (
	"fmt"
	"testing"

	"example.com/cellmart/platform/cellkit/bus"
)

// Nothing final leaves before the standby has it, neither a request nor its reply;
// what is early does.
func TestNothingLeavesBeforeTheStandbyHasIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	v := &voters{}
	for _, c := range w.cells {
		other := map[*cell]*cell{c1: c2, c2: c1}[c]
		c.relay()
		c.apply(other.name)
		c.consume()
		c.send(v, strict)
		c.heard.watch(func(id string) { // in the moment it leaves, the other cell has the row
			slot, rest, _ := cut(id)
			if slot != "1" && slot != fmt.Sprint(half+1) {
				return
			}
			n, err := other.read("SELECT count(*) FROM cell.outbox WHERE slot = $1::int AND id = $2 AND NOT early", slot, rest)
			early := rest[:3] == "try" || rest == bus.ReplyID(1, "try.it:early") || rest == bus.ReplyID(1, "try.it:early2")
			if !early && (err != nil || n != "1") {
				t.Errorf("%s left %s, which %s doesn't have (%v)", rest, c.name, other.name, err)
			}
		})
	}
	w.synced(c2, 1)
	w.synced(c1, half+1)

	c2.halt("applier") // from here on c2 has nothing new of c1
	c1.ask(1, half+1, "a", false)
	c1.ask(1, half+1, "early", true)
	w.left(c1, "try.it:early") // and its early reply comes, while the standby of c1 stands still
	w.left(c2, bus.ReplyID(1, "try.it:early"))
	c1.held(1)
	if n := c1.heard.times("do.it:a"); n != 0 {
		t.Fatalf("the request left %d times before the standby had it", n)
	}

	c1.halt("applier") // and c1 nothing of c2
	c2.apply("c1")
	w.left(c1, "do.it:a")
	w.waitFor("the effect", func() string { return missing(c2, "do a") })
	c2.held(1)
	c1.ask(1, half+1, "early2", true) // its reply comes after that of a was held
	w.left(c2, bus.ReplyID(1, "try.it:early2"))
	if n := c2.heard.times(bus.ReplyID(1, "do.it:a")); n != 0 {
		t.Fatalf("the reply left %d times before the standby had it", n)
	}
	c1.apply("c2")
	w.left(c2, bus.ReplyID(1, "do.it:a"))
	w.waitFor("the end", func() string { return missing(c1, "done.it a") })

	for i := range 50 {
		c1.ask(1, half+1, fmt.Sprint("many", i), false)
	}
	w.waitFor("all of many", func() string { return missing(c1, "done.it many49", "done.it many0", "done.it many25") })
	if n := c1.text("SELECT count(*) FROM cell.uncovered") + c2.text("SELECT count(*) FROM cell.uncovered"); n != "00" {
		t.Errorf("marks: %s", n)
	}
	if got := c1.gate.Status().Released; got["covered"] < 51 || len(got) != 1 {
		t.Errorf("c1 released %v, want 51 covered and nothing else", got)
	}
}

func cut(id string) (slot, rest string, ok bool) {
	for i, c := range id {
		if c == '/' {
			for j := len(id) - 1; j > i; j-- {
				if id[j] == '/' {
					return id[:i], id[i+1 : j], true
				}
			}
		}
	}
	return "", "", false
}

func missing(c *cell, effects ...string) string {
	for _, e := range effects {
		if n, err := c.read("SELECT count(*) FROM toy.effects WHERE what = $1", e); err != nil || n != "1" {
			return fmt.Sprint(e, ": ", n, " ", err)
		}
	}
	return ""
}

// A request that is claimed again and again while it is held is one message, and
// its note is settled when it has left.
func TestClaimedAgainWhileHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	c1.relay()
	c2.apply("c1")
	w.synced(c2, 1)
	c2.halt("applier")
	c1.tell(1, "r")
	c1.send(&voters{}, strict)
	w.waitFor("two claims", func() string {
		if n := c1.text("SELECT attempts FROM cell.relay WHERE id = 'r'"); n < "2" {
			return n
		}
		return ""
	})
	if st := c1.gate.Status(); st.Held != 1 || c1.heard.times("r") != 0 {
		t.Errorf("%+v, left %d times", st, c1.heard.times("r"))
	}
	c2.apply("c1")
	w.left(c1, "r")
	w.waitFor("the note's end", func() string {
		if n := c1.text("SELECT count(*) FROM cell.relay"); n != "0" {
			return n + " notes"
		}
		return ""
	})
}

// During an exchange only the old standby gates, until the owner is told that the
// incoming one is in sync: from then on both do, whatever becomes of its copy.
func TestExchangeGatesOnBoth(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2", "c3")
	c1, c2, c3 := w.cells["c1"], w.cells["c2"], w.cells["c3"]
	c1.relay()
	c2.apply("c1")
	w.synced(c2, 1, 2)
	c1.send(&voters{}, strict)
	c1.super("SELECT cell.set_incoming(ARRAY[1], 'c3')")
	c1.tell(1, "away") // the incoming cell isn't there, and isn't asked
	w.left(c1, "away")

	c3.apply("c1")
	w.synced(c3, 1)
	c3.halt("applier")
	c1.tell(1, "before")
	w.left(c1, "before")
	if n := c1.text("SELECT cell.gate_incoming(ARRAY[1, 2], 'c3')"); n != "1" {
		t.Errorf("c3 gates %s of slots 1 and 2, and is the incoming cell of one", n)
	}
	c1.tell(1, "both")
	c1.tell(2, "other") // not of the exchange, and behind it
	w.left(c1, "other")
	c1.held(1)
	if c1.heard.times("both") != 0 {
		t.Error("left before the incoming cell had it")
	}
	c3.apply("c1")
	w.left(c1, "both")

	c2.halt("applier")
	c1.tell(1, "old")
	c1.held(1)
	if c1.heard.times("old") != 0 {
		t.Error("left before the old standby had it")
	}
	c2.apply("c1")
	w.left(c1, "old")

	// Its copy is stopped, while its watermark goes on.
	c3.super("UPDATE cell.standby_slots SET state = 'stopped', reason = 'test', tries = 8, since = clock_timestamp() + interval '1 h' WHERE slot = 1")
	c1.tell(1, "stopped")
	c1.tell(2, "other2")
	w.left(c1, "other2")
	c1.held(1)
	at := c1.text("SELECT pg_current_wal_insert_lsn()")
	w.waitFor("the watermark of c3 passes it", func() string {
		lsn, err := c3.read("SELECT lsn >= $1::text::pg_lsn FROM cell.watermarks WHERE source = 'c1'", at)
		if err != nil || lsn != "true" {
			return fmt.Sprint(lsn, err)
		}
		return ""
	})
	if c1.heard.times("stopped") != 0 {
		t.Error("left although the incoming cell's copy isn't in sync")
	}

	c1.super("SELECT cell.set_incoming(ARRAY[1], '')") // the exchange is given up
	w.left(c1, "stopped")
	c1.super("SELECT cell.set_incoming(ARRAY[1], 'c3')")
	c1.tell(1, "anew")
	w.left(c1, "anew") // who is incoming anew doesn't gate yet
	if n := c1.text("SELECT count(*) FROM cell.uncovered"); n != "0" {
		t.Errorf("%s marks in strict mode", n)
	}
}

// What is held in strict mode follows its slot: to other standbys, and away.
func TestHeldFollowsItsSlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2", "c3")
	c1, c2, c3 := w.cells["c1"], w.cells["c2"], w.cells["c3"]
	c1.relay()
	c2.apply("c1")
	c3.apply("c1")
	w.synced(c2, 1, 2)
	c2.halt("applier")
	c1.send(&voters{}, strict)
	c1.tell(1, "moves")
	c1.tell(2, "goes")
	c1.held(2)
	c1.super("UPDATE cell.slots SET role = 'none', owner = 'c2', epoch = 2 WHERE slot = 2")
	c1.held(1)
	c1.super("UPDATE cell.slots SET standby = 'c3' WHERE slot = 1")
	w.synced(c3, 1)
	w.left(c1, "moves")
	if c1.heard.times("goes") != 0 {
		t.Error("what belongs to another owner left")
	}
}

// A slot's copy that isn't in sync has nothing, however far the cell is.
func TestInSyncCounts(t *testing.T) {
	t.Parallel()
	w, c1, c2 := pair(t)
	v := &voters{}
	c1.send(v, nil)
	c1.tell(1, "before")
	w.left(c1, "before")
	was := c1.released("covered")
	c2.super("UPDATE cell.standby_slots SET state = 'stopped', reason = 'test', tries = 8, since = clock_timestamp() + interval '1 h' WHERE slot = 1")
	c1.marked(v, true)
	c1.tell(1, "stopped")
	w.left(c1, "stopped")
	if n := c1.released("covered"); n != was {
		t.Errorf("released %v: a copy that is stopped covers nothing", c1.gate.Status().Released)
	}
}
