package cdc_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"example.com/cellmart/platform/cellkit/cdc"
)

// The relay is killed at each of its steps, and starts again. Duplicates are
// dropped, nothing is missing, and no copy was needed for it.
func TestKilledBetweenEveryTwoSteps(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"publish", "published"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.relay(nil)
			w.sink()
			w.add(1, 1)
			w.equal()
			w.halt("relay")
			fail, hit := once(step, 4)
			w.relay(fail) // its session ends there, and the next one starts from what Postgres was told
			for i := range 6 {
				w.add(100+i, 100+i)
			}
			<-hit
			w.equal()
			if w.begins != 1 {
				t.Errorf("%d copies, want the first alone", w.begins)
			}
		})
	}
}

// After a publish that Postgres wasn't told of, the same transactions come again.
func TestKilledBetweenPublishAndConfirm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.relay(nil)
	w.sink()
	w.add(1, 1)
	w.equal()
	w.halt("relay")
	var slot, confirmed string
	row := w.db.Super.QueryRow(t.Context(), "SELECT slot_name, confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()")
	if err := row.Scan(&slot, &confirmed); err != nil {
		t.Fatal(err)
	}
	w.db.SlotsFree(t)
	w.super("SELECT pg_copy_logical_replication_slot($1::text, $1::text || '_before')", slot)
	w.relay(nil)
	w.add(2, 9)
	w.equal()
	w.halt("relay")
	w.db.SlotsFree(t)
	// The server forgets what it was told: as after a crash, which keeps it for a while in memory only.
	w.super("SELECT pg_drop_replication_slot($1)", slot)
	w.super("SELECT pg_copy_logical_replication_slot($1::text || '_before', $1::text)", slot)
	w.relay(nil)
	w.add(10, 10)
	w.equal()
	if w.begins != 1 {
		t.Errorf("%d copies: the repeated transactions were taken for a gap", w.begins)
	}
}

// S-C02: a slot that is gone is declared and stored; then, and only then, there is a new one.
func TestScenario_C02_LostSlotIsDeclared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.relay(nil)
	f := w.sink()
	w.add(1, 5)
	w.equal()
	w.halt("relay")
	w.add(6, 8)
	w.db.SlotsFree(t)
	w.super("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
	w.write("UPDATE shop.things SET name = 'changed while nobody looked' WHERE id < 4")
	w.relay(nil)
	w.equal()
	var losses int
	var declared bool
	var reason string
	if err := w.db.Super.QueryRow(t.Context(), "SELECT losses, declared, reason FROM cdc.slot").Scan(&losses, &declared, &reason); err != nil {
		t.Fatal(err)
	}
	if losses != 1 || !declared || reason != "the replication slot is gone" {
		t.Errorf("cdc.slot has losses %d, declared %v, reason %q", losses, declared, reason)
	}
	if w.begins != 2 || f.Status().Gaps != 1 {
		t.Errorf("%d copies, %d gaps; want a second copy for one gap", w.begins, f.Status().Gaps)
	}
}

// A slot that was being made when the relay died lost nothing: no resync.
func TestKilledWhileMakingTheSlot(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"slot-recorded", "slot-made"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			fail, hit := once(step, 1)
			w.relay(fail)
			w.sink()
			w.add(1, 2)
			<-hit
			w.equal()
			var losses int
			if err := w.db.Super.QueryRow(t.Context(), "SELECT losses FROM cdc.slot").Scan(&losses); err != nil {
				t.Fatal(err)
			}
			if losses != 0 {
				t.Errorf("%d losses declared", losses)
			}
		})
	}
}

// A copy that is broken off, by relay or sink, begins again; what commits beside it is there too.
func TestKilledWhileCopying(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"copy-begin", "copy-copy", "copy-end"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.write("INSERT INTO shop.things (slot, id, name) SELECT 7, n, repeat('x', 1000) || n FROM generate_series(1, 1000) n")
			fail, hit := once(step, 1)
			w.relay(func(s string) error {
				if s == "copy-copy" {
					w.super("DO $$ BEGIN PERFORM cell.enter(7, 1); UPDATE shop.things SET name = name || 'y' WHERE id % 100 = 1; END $$")
				}
				return fail(s)
			})
			w.sink()
			<-hit
			w.halt("sink")
			w.sink()
			w.equal()
		})
	}
}

// S-M06: the store directory is deleted, and rolled back; the gap is seen and filled, with nobody's help.
func TestScenario_M06_StreamGoneOrRolledBack(t *testing.T) {
	t.Parallel()
	t.Run("gone", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.relay(nil)
		w.sink()
		w.add(1, 3)
		w.equal()
		w.halt("sink")
		w.add(4, 6)
		w.published()
		w.nats.WipeStore(t)
		w.sink()
		w.equal()
		if w.begins != 1 {
			t.Errorf("%d copies: what the stream lost is still in the WAL", w.begins)
		}
	})
	t.Run("rolled back", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.relay(nil)
		w.sink()
		w.add(1, 3)
		w.equal()
		w.halt("sink")
		w.nats.Stop()
		saved := t.TempDir()
		if err := os.CopyFS(saved, os.DirFS(w.nats.Dir())); err != nil {
			t.Fatal(err)
		}
		w.nats.Start(t)
		w.add(4, 6)
		w.published()
		w.nats.Stop()
		if err := os.RemoveAll(w.nats.Dir()); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(w.nats.Dir(), os.DirFS(saved)); err != nil {
			t.Fatal(err)
		}
		w.nats.Start(t)
		w.sink()
		w.equal()
		if w.begins != 1 {
			t.Errorf("%d copies: what the stream lost is still in the WAL", w.begins)
		}
	})
	t.Run("deleted in use", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.relay(nil)
		w.sink()
		w.add(1, 3)
		w.equal()
		if err := w.js().DeleteStream(t.Context(), cdc.StreamName("test")); err != nil {
			t.Fatal(err)
		}
		w.add(4, 6)
		w.equal()
	})
}

// The stream loses the end of a copy that the relay has given whole.
func TestCopyThatLostItsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(1, 3)
	reached, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.relay(func(step string) error {
		if step == "copy-copy" {
			once.Do(func() { close(reached); <-goOn })
		}
		return nil
	})
	w.sink()
	<-reached
	wait(t, "the begin isn't stored", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.pos.State == cdc.Copying
	})
	w.halt("sink")
	close(goOn)
	wait(t, "the relay doesn't call it done", func() bool {
		var done bool
		err := w.db.Super.QueryRow(t.Context(), "SELECT bool_and(state = 'done') FROM cdc.copies").Scan(&done)
		return err == nil && done
	})
	w.nats.WipeStore(t)
	w.sink()
	w.equal() // and live
}

// written is the end of everything that is written now.
func (w *world) written() (at cdc.LSN) {
	w.t.Helper()
	var upto string
	if err := w.db.Super.QueryRow(w.t.Context(), "SELECT pg_current_wal_lsn()::text").Scan(&upto); err != nil {
		w.t.Fatal(err)
	}
	if err := at.UnmarshalText([]byte(upto)); err != nil {
		w.t.Fatal(err)
	}
	return at
}

// published waits until everything that is written now is in the stream.
func (w *world) published() {
	w.t.Helper()
	upto, js := w.written(), w.js()
	wait(w.t, "the stream has it", func() bool {
		s, err := js.Stream(w.t.Context(), cdc.StreamName("test"))
		if err != nil {
			return false
		}
		m, err := s.GetLastMsgForSubject(w.t.Context(), "cdc.test."+w.db.Cell)
		if err != nil {
			return false
		}
		ms, err := cdc.Decode(m.Data)
		return err == nil && ms[len(ms)-1].LSN >= upto
	})
}

// released waits until Postgres was told that everything written now is stored.
func (w *world) released() {
	w.t.Helper()
	upto := w.written()
	wait(w.t, "the slot is confirmed", func() bool { return w.confirmed() >= upto })
}

func (w *world) confirmed() (at cdc.LSN) {
	var text string
	err := w.db.Super.QueryRow(w.t.Context(), "SELECT min(confirmed_flush_lsn)::text FROM pg_replication_slots WHERE database = current_database() AND NOT temporary").Scan(&text)
	if err == nil {
		err = at.UnmarshalText([]byte(text))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return at
}

// S-C12: a sink that comes late gets what was published before it came.
func TestScenario_C12_ConsumerStartsAtTheFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.relay(nil)
	w.sink()
	w.add(1, 1)
	w.equal()
	w.halt("sink")
	js := w.js()
	if err := js.DeleteConsumer(t.Context(), cdc.StreamName("test"), "test"); err != nil {
		t.Fatal(err)
	}
	w.add(2, 5)
	w.published() // published while no consumer was there
	w.sink()
	w.equal()
	if w.begins != 1 {
		t.Errorf("%d copies: the first messages were lost", w.begins)
	}
	c, err := js.Consumer(t.Context(), cdc.StreamName("test"), "test")
	if err != nil {
		t.Fatal(err)
	}
	if p := c.CachedInfo().Config.DeliverPolicy; p != jetstream.DeliverAllPolicy {
		t.Errorf("the consumer starts at %s", p)
	}
}

// S-C04: an idle database's slot goes on, though nothing of ours is written.
func TestScenario_C04_IdleWALIsReleased(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.relay(nil)
	w.sink()
	w.equal()
	w.super("CREATE TABLE other (n int)")
	w.super("INSERT INTO other SELECT generate_series(1, 10000)") // WAL that no publication has
	w.released()
}

// A transaction of many messages arrives whole, also when the relay dies in it.
func TestLargeTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.relay(nil)
	w.sink()
	w.add(1, 1)
	w.equal()
	w.halt("relay")
	fail, hit := once("publish", 3)
	w.relay(fail)
	w.write("INSERT INTO shop.things (slot, id, name) SELECT 7, n, repeat('x', 500) || n FROM generate_series(10, 5000) n")
	<-hit
	w.equal()
	if w.begins != 1 {
		t.Errorf("%d copies", w.begins)
	}
}

// What was applied here by replication is not ours to publish: it would echo.
func TestForeignOriginIsLeftOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.relay(nil)
	w.sink()
	w.equal()
	name := "origin_" + w.db.Super.Config().ConnConfig.Database
	w.super("SELECT pg_replication_origin_create($1)", name)
	t.Cleanup(func() { _, _ = w.db.Super.Exec(context.Background(), "SELECT pg_replication_origin_drop($1)", name) })
	c, err := w.db.Super.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"SELECT pg_replication_origin_session_setup('" + name + "')",
		"BEGIN; SELECT cell.enter(7, 1); INSERT INTO shop.things (slot, id, name) VALUES (7, 500, 'echo'); COMMIT",
		"SELECT pg_replication_origin_session_reset()",
	} {
		if _, err := c.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	c.Release()
	w.add(1, 1) // later in the WAL
	wait(t, "the row after it", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.things["1"].Name != "" })
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, echoed := w.things["500"]; echoed {
		t.Error("a row that came by replication was published")
	}
}

// A truncated table is a resync: there is no row to say it with.
func TestTruncateIsAResync(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.relay(nil)
	w.sink()
	w.add(1, 3)
	w.equal()
	w.super("BEGIN; SET LOCAL session_replication_role = replica; TRUNCATE shop.things; COMMIT") // past the trigger that refuses it
	w.equal()
	w.add(4, 5)
	w.equal()
}

// A stream that is full stops the relay and loses nothing; room lets it go on.
func TestFullStreamWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.small = 200 << 10
	w.relay(nil)
	w.sink()
	w.equal()
	w.halt("sink")
	for i := range 40 {
		w.write("INSERT INTO shop.things (slot, id, name) VALUES (7, $1, repeat('x', 10000))", 100+i)
	}
	wait(t, "the stream refuses", func() bool {
		s, err := w.js().Stream(t.Context(), cdc.StreamName("test"))
		return err == nil && s.CachedInfo().State.Bytes > 150<<10
	})
	w.sink()
	w.equal()
	if w.begins != 1 {
		t.Errorf("%d copies: a full stream lost something", w.begins)
	}
}

// The status of a source that is followed is known and small; of one that isn't, not.
func TestStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.sink()
	if s := f.Status(); s.State != cdc.Unknown || !s.Seen.IsZero() || !s.At.IsZero() {
		t.Errorf("status before the first message: %+v", s)
	}
	w.relay(nil)
	w.add(1, 1)
	w.equal()
	wait(t, func() string { return fmt.Sprintf("no heartbeat is told as one: %+v", f.Status()) }, func() bool {
		s := f.Status()
		return s.State == cdc.Live && time.Since(s.At) < 2*time.Second && s.Delay < 2*time.Second && !s.Seen.IsZero()
	})
}
