package standby_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/standby"
)

// storm writes into c1's slots 0 to 9 until it is stopped: new rows, changes, and
// changes that leave a large value alone.
func (c *cell) storm(epoch int) (stop func() int) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	var writes atomic.Int64
	for writer := range 3 {
		done.Go(func() {
			r := rand.New(rand.NewPCG(uint64(writer), 7))
			for n := 0; ctx.Err() == nil; n++ {
				slot, id := r.IntN(10), writer*1_000_000+r.IntN(60)
				q := "INSERT INTO shop.things (slot, id, name, note) VALUES ($1::int, $2::bigint, 'n' || $2::bigint, repeat(md5($3::text), 400)) ON CONFLICT (slot, id) DO UPDATE SET name = 'n' || $2::bigint || '.' || $3::text"
				if r.IntN(4) == 0 {
					q = "INSERT INTO shop.things (slot, id, name) VALUES ($1::int, $2::bigint, 'n' || $2::bigint) ON CONFLICT (slot, id) DO UPDATE SET note = repeat(md5($3::text), 400)"
				}
				if err := c.tryWrite(ctx, slot, epoch, q, slot, id, fmt.Sprint(n)); err == nil {
					writes.Add(1)
				}
			}
		})
	}
	return func() int { cancel(); done.Wait(); return int(writes.Load()) }
}

func TestStormThroughTheCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	c1.relay()
	stop := c1.storm(1)
	wait(t, func() string { return "few rows" }, func() bool { return len(c1.rows("shop.things")) > 500 })
	c2.standby("c1")
	wait(t, func() string {
		return c2.text("SELECT string_agg(DISTINCT state || reason, ',') FROM cell.standing_by")
	}, func() bool {
		return c2.text("SELECT count(*) FROM cell.standing_by WHERE state = 'in_sync'") == "10"
	})
	// Once more, some slots only, while all are written.
	if err := c2.applier.Recopy(t.Context(), "c1", []int32{2, 3, 4}, "the test wants it"); err != nil {
		t.Fatal(err)
	}
	wait(t, func() string { return "no second copy" }, func() bool { return c2.status().Copies >= 2 && c2.status().InSync == 10 })
	if n := stop(); n < 100 {
		t.Fatalf("only %d writes", n)
	}
	w.synced(c1, c2, w.allTen()...)
	if st := c2.status(); st.Gaps != 0 || st.DroppedOld != 0 {
		t.Errorf("%d gaps, %d rows of an older epoch, want none", st.Gaps, st.DroppedOld)
	}
}

func TestRestartsUnderWrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	c1.relay()
	c2.standby("c1")
	w.synced(c1, c2, w.allTen()...)
	stop := c1.storm(1)
	for n := range 4 {
		before := len(c2.rows("shop.things"))
		wait(t, func() string { return "nothing new" }, func() bool { return len(c2.rows("shop.things")) > before || before > 800 })
		c2.halt("applier")
		if n%2 == 0 {
			c1.relay()
		}
		c2.standby("c1")
		// Its connection is killed in the middle, too.
		c2.super("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cellmart-applier' AND datname = current_database()")
	}
	stop()
	w.synced(c1, c2, w.allTen()...)
	if st := c2.status(); st.Copies != 0 {
		t.Errorf("%d copies were made for restarts, want none", st.Copies)
	}
}

// S-C07: both ways, and nothing comes back: from then on there are heartbeats only.
func TestScenario_C07_NothingComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	for _, c := range w.cells {
		c.super("UPDATE cell.slots SET owner = 'c2', standby = 'c1', role = CASE WHEN $1 = 'c2' THEN 'owner' ELSE 'standby' END WHERE slot BETWEEN 5 AND 9", c.name)
	}
	c1.relay()
	c2.relay()
	c1.standby("c2")
	c2.standby("c1")
	for i := range 200 {
		c1.add(i%5, 1, i, fmt.Sprint("one ", i))
		c2.add(5+i%5, 1, i, fmt.Sprint("two ", i))
	}
	w.synced(c1, c2, 0, 1, 2, 3, 4)
	w.synced(c2, c1, 5, 6, 7, 8, 9)
	// From here on both streams carry heartbeats, and no row. With the first of them
	// what was committed before is counted, too.
	beats := func(a, b standby.Status) {
		wait(t, func() string { return "no heartbeat" }, func() bool { return c1.status().LSN > a.LSN+1000 && c2.status().LSN > b.LSN+1000 })
	}
	beats(c1.status(), c2.status())
	a, b := c1.status(), c2.status()
	beats(a, b)
	for _, st := range []standby.Status{c1.status(), c2.status()} {
		if was := map[string]int64{"c1": b.Rows, "c2": a.Rows}[st.Source]; st.Rows != was || st.DroppedOther+st.DroppedOld != 0 {
			t.Errorf("of %s %d rows came, then %d; %d were dropped", st.Source, was, st.Rows, st.DroppedOther+st.DroppedOld)
		}
	}
	for _, c := range []*cell{c1, c2} {
		if n := c.text("SELECT count(*) FROM shop.things WHERE rev <> 1"); n != "0" {
			t.Errorf("%s rows of %s were written again", n, c.name)
		}
	}
}

// The owner changes: what the old one has and nobody else goes, and what of it
// still comes is dropped.
func TestNewOwnerAndALostTail(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c2", "c3")
	c1, c2, c3 := w.cells["c1"], w.cells["c2"], w.cells["c3"]
	// c3 is to be slot 1's standby after the failover; until then it is c1's other one.
	c3.super("UPDATE cell.slots SET role = 'incoming', incoming = 'c3' WHERE slot = 1")
	c1.super("UPDATE cell.slots SET incoming = 'c3' WHERE slot = 1")
	for _, c := range w.cells {
		c.relay()
	}
	c2.standby("c1")
	c3.standby("c1", "c2")
	c1.add(1, 1, 1, "kept")
	w.synced(c1, c2, w.allTen()...)
	wait(t, func() string { return "c3 has no copy" }, func() bool { return len(c3.rows("shop.things")) == 1 })
	// The tail: c2 doesn't hear of it any more, c3 does.
	c2.halt("applier")
	c1.add(1, 1, 2, "lost")
	c1.write(1, 1, "UPDATE shop.things SET name = 'also lost' WHERE slot = 1 AND id = 1")
	wait(t, func() string { return "c3 has no tail" }, func() bool { return len(c3.rows("shop.things")) == 2 })
	c1.halt("relay")
	c1.write(1, 1, "UPDATE shop.things SET note = 'late' WHERE slot = 1 AND id = 1")

	c2.super("SELECT cell.promote(1, 2)")
	c2.super("UPDATE cell.slots SET standby = 'c3' WHERE slot = 1")
	c2.write(1, 2, "INSERT INTO shop.things (slot, id, name) VALUES (1, 3, 'new')")
	c2.standby("c1")
	w.synced(c2, c3, 1)
	// The old owner speaks up.
	c1.relay()
	wait(t, func() string { return "c3 has dropped nothing" }, func() bool { return c3.of("c1").DroppedOld+c3.of("c1").DroppedOther > 0 })
	w.synced(c2, c3, 1)
	// And becomes the standby itself.
	c1.super("UPDATE cell.slots SET owner = 'c2', role = 'standby', standby = 'c1', epoch = 2 WHERE slot = 1")
	c2.super("UPDATE cell.slots SET standby = 'c1' WHERE slot = 1")
	c1.standby("c2")
	wait(t, func() string { return fmt.Sprint(c1.rows("shop.things"), c2.rows("shop.things")) }, func() bool {
		return c1.text("SELECT state FROM cell.standing_by WHERE slot = 1 AND source = 'c2'") == "in_sync" &&
			c1.text("SELECT string_agg(t::text, ' ' ORDER BY id) FROM shop.things t WHERE slot = 1") == c2.text("SELECT string_agg(t::text, ' ' ORDER BY id) FROM shop.things t WHERE slot = 1")
	})
}

// A standby that is away for longer than the WAL is kept: said, and then equal.
func TestAwayForTooLong(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	c1.bound = 64 << 10
	c1.relay()
	c2.standby("c1")
	c1.add(1, 1, 1, "before")
	w.synced(c1, c2, w.allTen()...)
	c2.halt("applier")
	c1.wal = 4 << 20 // other tests' WAL counts too: nobody could keep up with this for long
	c1.relay()
	i := 1
	wait(t, func() string { return fmt.Sprintf("%d rows later the sink is still attached", i) }, func() bool {
		i++
		c1.write(i%10, 1, "INSERT INTO shop.things (slot, id, name, note) VALUES ($1, $2, $2::bigint::text, (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, CASE WHEN $2 < 50 THEN 500 ELSE 1 END)))", i%10, i)
		return c1.text("SELECT state FROM cdc.sinks WHERE sink = 'standby_c2'") != "attached"
	})
	c1.wal = 0
	c1.relay()
	c2.standby("c1")
	w.synced(c1, c2, w.allTen()...)
	if st := c2.status(); st.Copies == 0 {
		t.Error("no copy was made")
	}
}

func TestSnapshotsAtAPosition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	c1.relay()
	c2.standby("c1")
	w.synced(c1, c2, w.allTen()...)
	stop := c1.storm(1)
	defer stop()
	late := time.Now().Add(limit)
	for n := 0; n < 5; {
		start := time.Now()
		h, err := c2.applier.Hold(t.Context(), "c1")
		if err != nil {
			t.Fatal(err)
		}
		want, incarnation, lsn := c1.digestAt()
		c1.super("SELECT pg_logical_emit_message(true, 'cellmart.beat', '')")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		snapshot, err := h.At(ctx, incarnation, lsn)
		cancel()
		if took := time.Since(start); err != nil && took > 2*time.Second && time.Now().Before(late) {
			t.Logf("once more: within %v: %v", took, err) // the machine stood still for longer than a hold lasts
			h.Release()
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := c2.digest(snapshot); got != want {
			t.Errorf("at %s the copy is %s, the owner %s", lsn, got, want)
		}
		h.Release()
		h.Release()
		n++
	}
	h, err := c2.applier.Hold(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	if _, err := h.At(t.Context(), c2.status().Incarnation, 1); err == nil {
		t.Error("a snapshot of a position that had been passed")
	}
}

const digest = "SELECT count(*) || ' ' || coalesce(md5(string_agg(t::text, ',' ORDER BY slot, id)), '') FROM shop.things t WHERE slot < 10"

// digestAt is what the owner has under all its slots' locks, and where that is.
func (c *cell) digestAt() (sum, incarnation string, lsn cdc.LSN) {
	c.w.t.Helper()
	tx, err := c.db.Super.Begin(c.w.t.Context())
	if err != nil {
		c.w.t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // it only read
	var at string
	_, e1 := tx.Exec(c.w.t.Context(), "SELECT pg_advisory_xact_lock(4401, n) FROM generate_series(0, 9) n")
	e2 := tx.QueryRow(c.w.t.Context(), "SELECT ("+digest+"), pg_current_wal_insert_lsn()::text").Scan(&sum, &at)
	if err := errors.Join(e1, e2, lsn.UnmarshalText([]byte(at))); err != nil {
		c.w.t.Fatal(err)
	}
	return sum, c.w.cells["c2"].status().Incarnation, lsn
}

func (c *cell) digest(snapshot string) (sum string) {
	c.w.t.Helper()
	tx, err := c.db.Super.Begin(c.w.t.Context())
	if err != nil {
		c.w.t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // it only read
	_, e1 := tx.Exec(c.w.t.Context(), "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
	_, e2 := tx.Exec(c.w.t.Context(), "SET TRANSACTION SNAPSHOT '"+snapshot+"'")
	e3 := tx.QueryRow(c.w.t.Context(), digest).Scan(&sum)
	if err := errors.Join(e1, e2, e3); err != nil {
		c.w.t.Fatal(err)
	}
	return sum
}
