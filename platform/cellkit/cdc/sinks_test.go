package cdc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// taker is a sink that keeps what it got, by the row's key, and where it is.
type taker struct {
	w    *world
	sink string

	mu     sync.Mutex
	pos    cdc.Position
	rows   map[string]map[string]cdc.Value // by table and key
	slots  map[string]bool                 // that rows came of
	table  []string                        // of cell.slots: slot/standby/incoming, as they came
	kinds  map[cdc.Kind]int
	seen   []string // what came of shop.things, in order
	begins int
}

// taker starts a standby's follower.
func (w *world) taker(cell string) *taker {
	w.t.Helper()
	return w.follow(&taker{
		w: w, sink: cdc.StandbySink(cell), rows: map[string]map[string]cdc.Value{}, slots: map[string]bool{}, kinds: map[cdc.Kind]int{},
	})
}

func (w *world) follow(k *taker) *taker {
	k.mu.Lock()
	at := k.pos
	k.mu.Unlock()
	f := cdc.NewFollower(cdc.FollowerOptions{
		Zone: w.db.Cell, Sink: k.sink, Position: at, Log: w.log, Apply: k.apply,
		Connect: func() (*nats.Conn, error) { return bus.Connect(w.nats.URL, "sink", w.log) },
	}.Quick())
	w.run(k.sink, f.Run)
	return k
}

func (k *taker) apply(_ context.Context, changes []cdc.Change, p cdc.Position) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range changes {
		k.kinds[c.Kind]++
		if c.Kind == cdc.KindBegin && c.Slots == nil {
			k.begins++
		}
		for _, r := range c.Rows {
			if c.Kind == cdc.KindSchema {
				continue
			}
			if r.Table == "cell.slots" {
				k.table = append(k.table, r.Text("slot")+"/"+r.Text("standby")+"/"+r.Text("incoming"))
				continue
			}
			key := r.Table + "/" + r.Text("slot") + "/" + r.Text("id")
			k.slots[r.Text("slot")] = true
			if r.Table == "shop.things" && c.Kind == cdc.KindTx {
				k.seen = append(k.seen, r.Text("slot")+"/"+r.Text("id"))
			}
			if r.Op == cdc.Delete {
				delete(k.rows, key)
				continue
			}
			have := k.rows[key]
			if have == nil {
				have = map[string]cdc.Value{}
			}
			for i, name := range r.Columns {
				if r.Values[i].State != cdc.Same {
					have[name] = r.Values[i]
				}
			}
			k.rows[key] = have
		}
	}
	k.pos = p
	return nil
}

// holds waits until the taker is live and the condition holds.
func (k *taker) holds(what string, cond func() bool) {
	k.w.t.Helper()
	wait(k.w.t, func() string {
		return fmt.Sprintf("%s: %s: %+v, %d rows, %v", k.sink, what, k.pos, len(k.rows), k.kinds)
	}, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.pos.State == cdc.Live && cond()
	})
}

func (k *taker) has(slot, id int) bool {
	_, ok := k.rows[fmt.Sprintf("shop.things/%d/%d", slot, id)]
	return ok
}

// standby names a slot's standby and incoming cell at its owner.
func (w *world) standby(slot int, standby, incoming string) {
	w.t.Helper()
	w.super("UPDATE cell.slots SET standby = nullif($2, ''), incoming = nullif($3, '') WHERE slot = $1", slot, standby, incoming)
}

// put writes one thing into a slot.
func (w *world) put(slot, id int) {
	w.t.Helper()
	w.super(fmt.Sprintf("DO $$ BEGIN PERFORM cell.enter(%d, 1); INSERT INTO shop.things (slot, id, name) VALUES (%d, %d, 'thing'); END $$", slot, slot, id))
}

// Each row goes where cell.slots says at that place in the WAL, also when the relay
// reads it again after a restart: what was written before a change of the standby
// never reaches the new one by the stream, what was after it never the old one.
func TestSlotMapIsExactAcrossARestart(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"", "map", "publish", "published"} {
		t.Run("killed at "+step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.standby(1, "c2", "")
			w.standby(2, "c3", "")
			w.relay(nil)
			c2, c3 := w.taker("c2"), w.taker("c3")
			c2.holds("copied", func() bool { return true })
			c3.holds("copied", func() bool { return true })
			w.put(1, 1)
			c2.holds("the first", func() bool { return c2.has(1, 1) })
			w.halt(c2.sink) // nothing more is confirmed: all that follows is read again
			w.halt(c3.sink)
			w.put(1, 2)
			w.standby(1, "c3", "")
			w.put(1, 3)
			w.standby(1, "c3", "c2") // back, as incoming: both get it
			w.put(1, 4)
			w.standby(1, "c2", "")
			w.put(1, 5)
			w.halt("relay")
			w.db.SlotsFree(t)
			if step == "" {
				w.relay(nil)
			} else {
				fail, hit := once(step, 3)
				w.relay(fail)
				w.put(1, 6)
				<-hit
			}
			w.put(1, 9)
			w.follow(c2)
			w.follow(c3)
			c2.holds("its rows", func() bool { return c2.has(1, 2) && c2.has(1, 4) && c2.has(1, 5) && c2.has(1, 9) })
			c3.holds("its rows", func() bool { return c3.has(1, 3) && c3.has(1, 4) })
			w.put(2, 1)
			c3.holds("the last", func() bool { return c3.has(2, 1) })
			if c2.has(1, 3) {
				t.Error("c2 got a row while it was no standby")
			}
			if c3.has(1, 2) || c3.has(1, 5) || c3.has(1, 9) || c3.has(1, 1) {
				t.Error("c3 got a row while it was no standby")
			}
			if c2.begins != 1 || c3.begins != 1 {
				t.Errorf("%d and %d copies, want the first ones", c2.begins, c3.begins)
			}
			if all := strings.Join(c2.table, " "); !strings.Contains(all, "1/c3/ 1/c3/c2 1/c2/") {
				t.Errorf("c2 heard of its slot: %s", all)
			}
		})
	}
}

// A transaction of several slots reaches each standby with the rows of its slots
// alone, each with its slot's epoch.
func TestManySlotsInOneTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.standby(1, "c2", "")
	w.standby(2, "c3", "")
	w.standby(3, "c2", "")
	w.relay(nil)
	c2, c3 := w.taker("c2"), w.taker("c3")
	c2.holds("copied", func() bool { return true })
	c3.holds("copied", func() bool { return true })
	err := pg.InSlots(t.Context(), w.db.App, map[routing.Slot]routing.Epoch{1: 1, 2: 1, 3: 1, 4: 1}, func(ctx context.Context, tx *pg.Many) error {
		_, err := tx.Exec(ctx, "INSERT INTO shop.things (slot, id, name) SELECT n % 4 + 1, n, 'thing' FROM generate_series(0, 39) n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	c2.holds("its rows", func() bool { return c2.has(1, 36) && c2.has(3, 38) })
	c3.holds("its rows", func() bool { return c3.has(2, 37) })
	if len(c2.rows) != 20 || len(c3.rows) != 10 || len(c2.slots) != 2 || len(c3.slots) != 1 {
		t.Errorf("c2 has %d rows of slots %v, c3 %d of %v", len(c2.rows), c2.slots, len(c3.rows), c3.slots)
	}
}

// A new cell's stream appears when it is named, with the relay running.
func TestNewcomerNeedsNoRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.relay(nil)
	w.put(5, 1)
	w.sink()
	w.equal()
	w.standby(5, "", "c4")
	c4 := w.taker("c4")
	c4.holds("the copy", func() bool { return c4.has(5, 1) })
	w.put(5, 2)
	w.put(6, 2)
	c4.holds("a change", func() bool { return c4.has(5, 2) })
	if len(c4.slots) != 1 {
		t.Errorf("c4 got rows of slots %v", c4.slots)
	}
}

// A sink that stores nothing is detached alone, and nothing else waits for it. It
// finds out when it's back, and copies.
func TestDeadSinkIsDetachedAlone(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(w *world){
		"its WAL":         func(w *world) { w.maxWAL = 128 << 20 },
		"its stream":      func(w *world) { w.small = 256 << 10 },
		"one transaction": func(w *world) { w.small = 256 << 10 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The server has the WAL of other tests, too: so much of it may come while this
			// one stands still that the good sink is detached as well.
			for try := 1; !deadSink(t, name, set); try++ {
				if try == 3 {
					t.Fatal("the other sink didn't go on as before, three times")
				}
			}
		})
	}
}

// deadSink has c2 store nothing, and tells whether c3 went on as before.
func deadSink(t *testing.T, name string, set func(w *world)) bool {
	t.Helper()
	w := newWorld(t)
	defer w.haltAll()
	set(w)
	w.standby(1, "c2", "")
	w.standby(2, "c3", "")
	w.relay(nil)
	c2, c3 := w.taker("c2"), w.taker("c3")
	c2.holds("copied", func() bool { return true })
	c3.holds("copied", func() bool { return true })
	w.halt(c2.sink)
	rows := 1 // of a transaction
	if name == "one transaction" {
		rows = 60
	}
	for n := range 60 {
		if n%rows == 0 {
			w.super(fmt.Sprintf(`DO $$ BEGIN PERFORM cell.enter(1, 1); INSERT INTO shop.things (slot, id, name, note)
				SELECT 1, id, 'big', (SELECT string_agg(md5((n * (id - 93))::text), '') FROM generate_series(1, 1000) n) FROM generate_series(%d, %d) id; END $$`, 100+n, 99+n+rows))
		}
		w.put(2, 100+n)
		if w.maxWAL > 0 && n%6 == 0 {
			c3.holds("all before", func() bool { return c3.has(2, 100+n) })
			w.super("SELECT pg_switch_wal()") // 16 MB each
		}
	}
	c3.holds("all of its own", func() bool { return c3.has(2, 159) })
	wait(t, "c2 is detached", func() bool {
		var state string
		err := w.db.Super.QueryRow(t.Context(), "SELECT state FROM cdc.sinks WHERE sink = $1", c2.sink).Scan(&state)
		return err == nil && state == "detached"
	})
	var others int
	if err := w.db.Super.QueryRow(t.Context(), "SELECT count(*) FROM cdc.sinks WHERE state = 'attached' AND sink = $1", c3.sink).Scan(&others); err != nil {
		t.Fatal(err)
	}
	if others != 1 {
		t.Log("c3 is detached too")
		return false
	}
	w.released() // nobody keeps the WAL
	w.follow(c2)
	c2.holds("it copied", func() bool { return c2.has(1, 159) && c2.begins >= 2 })
	w.put(1, 1)
	c2.holds("it goes on", func() bool { return c2.has(1, 1) })
	c3.mu.Lock()
	defer c3.mu.Unlock()
	if c2.begins != 2 || c3.begins != 1 {
		t.Logf("c2 took %d copies, c3 %d", c2.begins, c3.begins)
		return false
	}
	return true
}

// A sink that was full has room again, while another takes its copy: that one isn't
// begun anew.
func TestCopyGoesOnBesideAFullSink(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.small = 256 << 10
	for slot, cell := range map[int]string{1: "c2", 2: "c3", 3: "c4"} {
		w.standby(slot, cell, "")
	}
	w.put(2, 1)
	inside, goOn := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	var hold atomic.Bool
	var once sync.Once
	w.relay(func(step string) error {
		if step == "copy-copy" && hold.Load() {
			once.Do(func() { close(inside); <-goOn })
		}
		return nil
	})
	c2, c4 := w.taker("c2"), w.taker("c4")
	c2.holds("copied", func() bool { return true })
	c4.holds("copied", func() bool { return true })
	w.halt(c2.sink)
	for n := range 15 { // half a megabyte
		w.super(fmt.Sprintf(`DO $$ BEGIN PERFORM cell.enter(1, 1); INSERT INTO shop.things (slot, id, name, note)
			VALUES (1, %d, 'big', (SELECT string_agg(md5((n * %d)::text), '') FROM generate_series(1, 1000) n)); END $$`, 100+n, 7+n))
	}
	hold.Store(true)
	c3 := w.taker("c3")
	<-inside
	w.follow(c2)
	stream, err := w.js().Stream(t.Context(), cdc.StreamName(c2.sink))
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "c2's stream is never empty", func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == 0
	})
	at := func() cdc.LSN {
		c4.mu.Lock()
		defer c4.mu.Unlock()
		return c4.pos.LSN
	}
	for range 4 { // heartbeats: with each of them the relay looks after its sinks
		last := at()
		wait(t, "the relay stands still", func() bool { return at() > last })
	}
	release()
	c3.holds("copied", func() bool { return c3.has(2, 1) })
	c2.holds("what it missed", func() bool { return c2.has(1, 114) })
	if c3.begins != 1 {
		t.Errorf("c3 took %d copies, want one", c3.begins)
	}
}

// S-C03: a COPY of 10,000 rows, killed inside: all of them arrive, once more or
// not, and a transaction's end only after them.
func TestScenario_C03_KilledInsideACopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.relay(nil)
	w.sink()
	w.equal()
	w.halt("relay")
	fail, hit := once("publish", 2)
	w.relay(fail)
	var text strings.Builder
	for n := range 10_000 {
		fmt.Fprintf(&text, "7\t1\t1\t%d\t%s%d\n", 1000+n, strings.Repeat("x", 100), n)
	}
	c, err := w.db.Super.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{"BEGIN", "SELECT cell.enter(7, 1)"} {
		if _, err := c.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Conn().PgConn().CopyFrom(t.Context(), strings.NewReader(text.String()), "COPY shop.things (slot, epoch, rev, id, name) FROM STDIN"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	c.Release()
	<-hit
	w.equal()
	if w.begins != 1 {
		t.Errorf("%d copies", w.begins)
	}
}

// S-C06: the slot is held and nothing comes through: the session ends, and another
// connection is made.
func TestScenario_C06_SilenceEndsTheSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := newCable(t, strings.TrimPrefix(w.pgAddress(), "tcp://"))
	w.through = c.l.Addr().String()
	w.hasty = true
	w.relay(nil)
	w.sink()
	w.add(1, 1)
	w.equal()
	c.cut.Store(true) // what the server sends is swallowed; the connection stays
	w.add(2, 3)
	var before int
	count := func() (n int) {
		_ = w.db.Super.QueryRow(t.Context(), "SELECT coalesce(max(active_pid), 0) FROM pg_replication_slots WHERE database = current_database()").Scan(&n)
		return n
	}
	before = count()
	wait(t, "the session ended by itself", func() bool { return w.silences.Load() > 0 })
	c.cut.Store(false)
	c.breaks()
	w.equal()
	if count() == before {
		t.Error("the same connection still has the slot")
	}
}

// S-C10: a column is added while all runs. The marker comes before the first row
// that has it.
func TestScenario_C10_ColumnAdded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.standby(1, "c2", "")
	w.relay(nil)
	c2 := w.taker("c2")
	w.put(1, 1)
	c2.holds("the first", func() bool { return c2.has(1, 1) })
	w.super("ALTER TABLE shop.things ADD COLUMN extra text DEFAULT 'more'")
	w.put(1, 2)
	c2.holds("the new column", func() bool { return c2.rows["shop.things/1/2"]["extra"].Text == "more" })
	if c2.kinds[cdc.KindSchema] != 1 {
		t.Errorf("%d markers, want one", c2.kinds[cdc.KindSchema])
	}
}

// S-C09: a storm of writes through the first copy: no row is in neither.
func TestScenario_C09_StormThroughTheCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.standby(7, "c2", "")
	w.write("INSERT INTO shop.things (slot, id, name) SELECT 7, n, repeat('x', 300) || n FROM generate_series(1, 5000) n")
	storm, end := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	for part := range 3 {
		writing.Go(func() {
			for n := 0; storm.Err() == nil; n++ {
				_, err := w.db.Super.Exec(storm, fmt.Sprintf(`DO $$ BEGIN PERFORM cell.enter(7, 1);
					INSERT INTO shop.things (slot, id, name) VALUES (7, %d, 'storm'); UPDATE shop.things SET name = 'new' WHERE slot = 7 AND id = %d; END $$`, 100_000*(part+1)+n, 1+(n*7)%5000))
				if err != nil && !errors.Is(storm.Err(), context.Canceled) {
					t.Error(err)
					return
				}
			}
		})
	}
	w.relay(nil)
	w.sink()
	c2 := w.taker("c2")
	c2.holds("copied", func() bool { return len(c2.rows) >= 5000 })
	time.AfterFunc(500*time.Millisecond, end)
	writing.Wait()
	w.equal() // the other sink, with its own copy
	var want int
	if err := w.db.Super.QueryRow(t.Context(), "SELECT count(*) FROM shop.things").Scan(&want); err != nil {
		t.Fatal(err)
	}
	c2.holds(fmt.Sprintf("all %d rows", want), func() bool { return len(c2.rows) == want })
}
