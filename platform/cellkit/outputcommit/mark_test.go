package outputcommit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/outputcommit"
	"example.com/cellmart/platform/routing"
)

// pair is c1 and c2, where c2 keeps copies of c1's slots 0 to 9.
func pair(t *testing.T) (w *world, c1, c2 *cell) {
	t.Helper()
	w = newWorld(t, "c1", "c2")
	c1, c2 = w.cells["c1"], w.cells["c2"]
	c1.relay()
	c2.apply("c1")
	w.synced(c2, 1, 2, 3, 4)
	return w, c1, c2
}

// marked looks, in the moment a message of a slot leaves, that it is marked: in the
// own database, with a position behind it, and at the voters unless they are away.
func (c *cell) marked(v *voters, told bool) {
	c.heard.watch(func(id string) {
		slot, rest, _ := cut(id)
		if slot == "500" { // nobody stands by for it
			return
		}
		var n routing.Slot
		if _, err := fmt.Sscan(slot, &n); err != nil {
			c.w.t.Error(err)
		}
		row, err := c.read("SELECT sent FROM cell.uncovered WHERE slot = $1", n)
		if err != nil || row == "NULL" || told && !v.has(n) {
			c.w.t.Errorf("%s leaves with row %s (%v), voters %v", rest, row, err, v.has(n))
		}
	})
}

func (c *cell) released(how string) uint64 { return c.gate.Status().Released[how] }

// A standby that is slow, silent or gone holds an output for 2 s, and then nothing
// more: the slot is marked first. When the standby is back the marks go.
func TestTimed(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(c2 *cell){
		"slow":   func(c2 *cell) { c2.halt("applier") },
		"silent": func(c2 *cell) { c2.silent.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, c1, c2 := pair(t)
			v := &voters{}
			c1.send(v, nil)
			c1.tell(1, "before")
			w.left(c1, "before")
			fail(c2)
			c1.marked(v, true)
			c1.tell(1, "waits")
			w.left(c1, "waits")
			waited := c1.released("timed")
			for n := range 5 { // the slot is marked
				c1.tell(1, fmt.Sprint("same", n))
			}
			for n := range 5 {
				w.left(c1, fmt.Sprint("same", n))
			}
			if st := c1.gate.Status().Released; st["timed"] != waited || st["unmarked"] != 0 {
				t.Errorf("released %v, want none of a marked slot that has waited (%d before)", st, waited)
			}
			c1.tell(2, "other") // of another slot, which isn't marked yet
			c1.tell(3, "third")
			w.left(c1, "other")
			w.left(c1, "third")
			c1.heard.watch(nil)
			c2.silent.Store(false)
			c2.apply("c1")
			w.waitFor("the marks go", func() string {
				n := c1.text("SELECT count(*) FROM cell.uncovered")
				if n == "0" && !v.has(1) && !v.has(2) && !v.has(3) {
					return ""
				}
				return n + " rows"
			})
			was := c1.released("covered")
			w.waitFor("outputs are covered again", func() string {
				c1.tell(2, fmt.Sprint("after", time.Now().UnixNano()))
				if c1.released("covered") == was {
					return fmt.Sprint(c1.gate.Status().Released)
				}
				return ""
			})
		})
	}
}

// A slot whose standby isn't in sync is uncovered: nothing waits.
func TestNotInSyncIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	v := &voters{}
	c2.apply("c1") // c1's relay doesn't run: there never is a copy
	c1.send(v, nil)
	c1.marked(v, true)
	for n := range 5 {
		c1.ask(routing.Slot(n), half, fmt.Sprint("k", n), false)
	}
	c1.ask(500, half, "alone", false) // nobody stands by for it
	for n := range 5 {
		w.left(c1, fmt.Sprint("do.it:k", n))
	}
	w.left(c1, "do.it:alone")
	if st := c1.gate.Status(); st.Released["covered"] != 0 || st.Released["alone"] == 0 {
		t.Errorf("released %v", st.Released)
	}
	c1.heard.watch(nil)
	c1.relay()
	w.synced(c2, 0, 1, 2, 3, 4)
	w.waitFor("the marks go", func() string {
		if n := c1.text("SELECT count(*) FROM cell.uncovered"); n != "0" || v.has(1) {
			return n
		}
		return ""
	})
}

// The voters don't answer: it is sent on, counted, and they are told later.
func TestVotersAreAway(t *testing.T) {
	t.Parallel()
	w, c1, c2 := pair(t)
	v := &voters{}
	v.setDown(true)
	c2.silent.Store(true)
	c1.send(v, nil)
	c1.marked(v, false)
	c1.ask(1, half+1, "a", false)
	w.left(c1, "do.it:a")
	if n := c1.released("unmarked"); n == 0 {
		t.Errorf("released %v, want it unmarked", c1.gate.Status().Released)
	}
	refused, err := outputcommit.Promotable(t.Context(), c1.db.Super, nil, map[routing.Slot]routing.Epoch{1: 1, 2: 1})
	if err != nil || len(refused) != 1 || refused[1] == "" {
		t.Errorf("refused %v, %v: want slot 1 only", refused, err)
	}
	c1.heard.watch(nil)
	v.setDown(false)
	w.waitFor("the voters are told", func() string {
		if n := c1.text("SELECT count(*) FROM cell.uncovered WHERE marked_at IS NOT NULL"); n != "1" || !v.has(1) {
			return n
		}
		return ""
	})
	marks, err := v.Marks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	refused, err = outputcommit.Promotable(t.Context(), nil, marks, map[routing.Slot]routing.Epoch{1: 1, 2: 1})
	if err != nil || len(refused) != 1 || refused[1] == "" {
		t.Errorf("by the voters' marks: refused %v, %v: want slot 1 only", refused, err)
	}
	if refused, _ = outputcommit.Promotable(t.Context(), nil, marks, map[routing.Slot]routing.Epoch{1: 2}); len(refused) != 0 {
		t.Errorf("at the next epoch: refused %v", refused)
	}
	// They forget it while they are away, and hear of it when they are back.
	v.setDown(true)
	c1.ask(2, half+1, "b", false) // so it's known that they are
	w.left(c1, "do.it:b")
	v.forget()
	v.setDown(false)
	w.waitFor("the voters are told again", func() string {
		if !v.has(1) || !v.has(2) {
			return fmt.Sprint(v.has(1), v.has(2))
		}
		return ""
	})
	// The mark goes while they are away again: they are told when they are back.
	v.setDown(true)
	c2.silent.Store(false)
	w.waitFor("the row goes", func() string {
		if n := c1.text("SELECT count(*) FROM cell.uncovered"); n != "0" {
			return n
		}
		return ""
	})
	v.setDown(false)
	w.waitFor("the voters hear of the lift", func() string {
		if v.has(1) || v.has(2) {
			return "marked"
		}
		return ""
	})
}

// Killed between any two of row, voters and message: nothing is lost, nothing has
// left without its mark, and who starts again knows of it.
func TestKilledWhileMarking(t *testing.T) {
	t.Parallel()
	w, c1, c2 := pair(t)
	v := &voters{}
	c2.silent.Store(true)
	c1.marked(v, true)
	for i, step := range []string{"mark", "marked", "told"} {
		slot := routing.Slot(i + 1)
		var once sync.Once
		died := make(chan struct{})
		c1.send(v, func(o outputcommit.Options) outputcommit.Options {
			return o.FailAt(func(at string) error {
				if at == step {
					once.Do(func() { close(died) })
					return errors.New("the process died here")
				}
				return nil
			})
		})
		c1.tell(slot, step)
		<-died
		c1.halt("dispatcher")
		c1.halt("gate")
		if c1.heard.times(step) != 0 {
			t.Fatalf("it left, although it died at %s", step)
		}
		if n := c1.text("SELECT count(*) FROM cell.uncovered WHERE slot = $1", slot); (n == "1") != (step != "mark") {
			t.Errorf("%s rows after a death at %s", n, step)
		}
		if step != "marked" && v.has(slot) != (step == "told") { // the row alone may have been told on
			t.Errorf("after a death at %s the voters know: %v", step, v.has(slot))
		}
		c1.send(v, nil)
		w.left(c1, step)
		w.waitFor("the marks are read", func() string {
			if u := c1.gate.Status().Uncovered; u == nil || u.Slots < i+1 {
				return fmt.Sprint(u)
			}
			return ""
		})
		if n := c1.released("covered"); n > 0 {
			t.Errorf("%d covered by a cell that is silent", n)
		}
	}
}

// A row is written for the owner at its epoch only: not while the slot is fenced, nor
// after it went; and nothing leaves without one. Who has a slot's lock holds up no
// other.
func TestFenced(t *testing.T) {
	t.Parallel()
	w, c1, c2 := pair(t)
	v := &voters{}
	c2.halt("applier")
	var fenced atomic.Bool
	c1.send(v, func(o outputcommit.Options) outputcommit.Options {
		return o.FailAt(func(at string) error {
			if at == "mark" && !fenced.Load() {
				return errors.New("not yet")
			}
			return nil
		})
	})
	for _, slot := range []routing.Slot{1, 3, 4} {
		c1.tell(slot, fmt.Sprint("a", slot))
	}
	c1.ask(2, half+1, "a2", false) // a reply's note would go with the slot
	c1.held(4)
	c1.super("UPDATE cell.slots SET state = 'draining' WHERE slot = 1")
	c1.super("UPDATE cell.slots SET role = 'none', owner = 'c2', epoch = 2 WHERE slot = 2")
	c1.super("UPDATE cell.slots SET epoch = 2 WHERE slot = 3")
	tx, err := c1.db.Super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(4401, 4)"); err != nil {
		t.Fatal(err)
	}
	fenced.Store(true)
	w.left(c1, "a3") // by a later claim, at its new epoch
	if n := c1.text("SELECT string_agg(slot || ' at ' || epoch, ', ') FROM cell.uncovered"); n != "3 at 2" {
		t.Errorf("rows of slots %s", n)
	}
	for _, id := range []string{"a1", "do.it:a2", "a4"} {
		if c1.heard.times(id) != 0 {
			t.Errorf("%s left without a row", id)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.left(c1, "a4")
	c1.super("UPDATE cell.slots SET state = 'active' WHERE slot = 1")
	c1.super("UPDATE cell.slots SET role = 'owner', owner = 'c1', epoch = 3 WHERE slot = 2")
	w.left(c1, "a1")
	w.left(c1, "do.it:a2")
	if n := c1.text("SELECT string_agg(slot || ' at ' || epoch, ', ' ORDER BY slot) FROM cell.uncovered"); n != "1 at 1, 2 at 3, 3 at 2, 4 at 1" {
		t.Errorf("rows of slots %s", n)
	}
}

// Two dispatchers of a cell: what one lifts doesn't take away what the other sent on.
func TestTwoGatesAgreeThroughTheRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	c1 := w.cells["c1"]
	a := outputcommit.New(outputcommit.Options{Cell: "c1", Pool: c1.agent})
	b := outputcommit.New(outputcommit.Options{Cell: "c1", Pool: c1.agent})
	uncover := func(g *outputcommit.Gate, sent int64) {
		t.Helper()
		if got, err := g.Uncover(t.Context(), 1, 1, "c2", "", sent); err != nil || got != "uncovered" {
			t.Fatal(got, err)
		}
	}
	lift := func(sent int64, want int) {
		t.Helper()
		if n, err := a.Lift(t.Context(), 1, sent); err != nil || n != want {
			t.Errorf("a standby at %d: %d marks lifted (%v), want %d", sent, n, err, want)
		}
	}
	uncover(a, 100)
	uncover(b, 200)
	lift(199, 0)
	uncover(a, 150) // no way back
	lift(199, 0)
	lift(200, 1)
	uncover(b, 90)
	token := c1.text("SELECT token FROM cell.uncovered WHERE slot = 1")
	if token == "1" {
		t.Errorf("a new mark has an old one's token, %s", token)
	}
	for _, x := range []struct {
		epoch             routing.Epoch
		standby, incoming string
		want              string
	}{{1, "c3", "", "moved"}, {1, "c2", "c3", "moved"}, {1, "", "", "moved"}, {2, "c2", "", "gone"}, {0, "c2", "", "gone"}} {
		if got, err := a.Uncover(t.Context(), 1, x.epoch, x.standby, x.incoming, 1); err != nil || got != x.want {
			t.Errorf("%+v: %s, %v", x, got, err)
		}
	}
	c1.super("SELECT cell.set_lease(0)")
	if got, err := a.Uncover(t.Context(), 1, 1, "c2", "", 1); err != nil || got != "gone" {
		t.Errorf("when the lease is over: %s, %v", got, err)
	}
}

// Two dispatchers at the same time, while the standby comes and goes: at the end all
// is sent, and covered.
func TestTwoDispatchers(t *testing.T) {
	t.Parallel()
	w, c1, c2 := pair(t)
	v := &voters{}
	c1.send(v, nil)
	first := c1.gate
	c1.stop["dispatcher 1"], c1.stop["gate 1"] = c1.stop["dispatcher"], c1.stop["gate"]
	delete(c1.stop, "dispatcher")
	delete(c1.stop, "gate")
	c1.send(v, nil)
	for round := range 2 {
		c2.silent.Store(true)
		for n := range 10 {
			c1.ask(routing.Slot(n%5), half+1, fmt.Sprint("silent", round, n), false)
		}
		w.left(c1, fmt.Sprint("do.it:silent", round, 9))
		c2.silent.Store(false)
		for n := range 10 {
			c1.ask(routing.Slot(n%5), half+1, fmt.Sprint("back", round, n), false)
		}
		for n := range 10 {
			w.left(c1, fmt.Sprint("do.it:back", round, n))
		}
	}
	w.waitFor("nothing is held or marked", func() string {
		if n := c1.text("SELECT count(*) FROM cell.uncovered"); n != "0" || first.Status().Held+c1.gate.Status().Held > 0 {
			return n
		}
		if marks, err := v.Marks(context.Background()); err != nil || len(marks) > 0 {
			return fmt.Sprint(marks, err)
		}
		return ""
	})
}

// A slot that sends all the time is lifted too: what comes waits while it is.
func TestBusySlotIsLifted(t *testing.T) {
	t.Parallel()
	w, c1, c2 := pair(t)
	v := &voters{}
	c2.silent.Store(true)
	n := 0
	c1.send(v, func(o outputcommit.Options) outputcommit.Options {
		return o.FailAt(func(at string) error {
			if at == "lift" { // when all is covered, and before the mark goes, one more leaves
				n++
				c1.tell(1, fmt.Sprint("more", n))
				w.left(c1, fmt.Sprint("more", n))
			}
			return nil
		})
	})
	c1.tell(1, "first")
	w.left(c1, "first")
	c2.silent.Store(false)
	w.waitFor("the mark goes", func() string {
		if rows := c1.text("SELECT count(*) FROM cell.uncovered"); rows != "0" || v.has(1) {
			return fmt.Sprint(rows, " rows, ", c1.gate.Status().Released)
		}
		return ""
	})
}

// Where outputs weren't held before, every slot is marked, until its standby is where
// the database was then.
func TestAllIsMarkedAfterOff(t *testing.T) {
	t.Parallel()
	w, c1, c2 := pair(t)
	v := &voters{}
	if got := c1.text("SELECT held FROM cell.output_commit"); got != "true" {
		t.Errorf("a new cell has held: %s", got)
	}
	if err := outputcommit.Off(t.Context(), c1.agent); err != nil {
		t.Fatal(err)
	}
	c2.halt("applier")
	c1.tell(1, "a")
	c1.send(v, nil)
	w.waitFor("all slots with a standby are marked", func() string {
		if n := c1.text("SELECT count(*) FROM cell.uncovered c JOIN cell.slots s USING (slot, epoch) WHERE s.standby = 'c2'"); n != "10" {
			return n
		}
		return ""
	})
	c2.apply("c1")
	w.waitFor("the marks go", func() string {
		n := c1.text("SELECT count(*) FROM cell.uncovered")
		if held := c1.text("SELECT held FROM cell.output_commit"); n != "0" || held != "true" {
			return n + " " + held
		}
		return ""
	})
	c1.send(v, nil)
	c1.tell(1, "b")
	w.left(c1, "b")
	if n := c1.text("SELECT count(*) FROM cell.uncovered"); n != "0" {
		t.Errorf("%s marks after another start", n)
	}
}
