package cdc_test

import (
	"context"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/cdc"
)

// S-C05: a transaction that takes longer than the sender's timeout to get through
// does so over one connection, and what is held of it is bounded. The million rows
// are scripts/bench relay's; here they are fewer and larger, and the connection is
// so slow that they take 6 s.
//
// It isn't parallel: the heap is the process's.
func TestScenario_C05_LargeTransactionOutlastsTheTimeout(t *testing.T) {
	const (
		rows, size = 150_000, 800 // of a row as it's sent, about
		timeout    = 5 * time.Second
		bound      = rows * size / 3
	)
	w := newWorld(t)
	c := newCable(t, w.pgAddress())
	w.through, w.settings = c.l.Addr().String(), "wal_sender_timeout=5s"
	w.relay(nil)
	var got, sum, begins, live atomic.Int64
	o := cdc.FollowerOptions{
		Zone: w.db.Cell, Sink: "test", Log: w.log,
		Connect: func() (*nats.Conn, error) { return bus.Connect(w.nats.URL, "sink", w.log) },
		Apply: func(_ context.Context, changes []cdc.Change, p cdc.Position) error {
			for _, c := range changes {
				if c.Kind == cdc.KindBegin {
					begins.Add(1)
				}
				for _, r := range c.Rows {
					got.Add(1)
					sum.Add(int64(len(r.Text("name")) + len(r.Text("id"))))
				}
			}
			if p.State == cdc.Live {
				live.Store(1)
			}
			return nil
		},
	}
	w.run("sink", cdc.NewFollower(o.Quick()).Run)
	wait(t, "the first copy", func() bool { return live.Load() == 1 })

	before := w.sender()
	c.rate.Store(rows * size / 6)
	debug.FreeOSMemory()
	heap, most := inUse(), uint64(0)
	start := time.Now()
	var want int64
	err := pgx.BeginFunc(t.Context(), w.db.Super, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SET LOCAL session_replication_role = replica") // no triggers: they take long
		if err != nil {
			return err
		}
		return tx.QueryRow(t.Context(), `WITH made AS (INSERT INTO shop.things (slot, epoch, rev, id, name) SELECT 7, 1, 1, n, repeat('x', $2) || n
			FROM generate_series(1, $1::int) n RETURNING name, id) SELECT sum(length(name) + length(id::text)) FROM made`, rows, size-100).Scan(&want)
	})
	if err != nil {
		t.Fatal(err)
	}
	written := time.Since(start)
	wait(t, "all rows are there", func() bool {
		most = max(most, inUse())
		return got.Load() >= rows
	})
	took := time.Since(start) - written
	t.Logf("written in %s, through in %s, %d MB of heap more", written, took, int64(most-heap)>>20)
	if n := got.Load(); n != rows || sum.Load() != want {
		t.Errorf("%d rows of %d bytes arrived, want %d of %d", n, sum.Load(), rows, want)
	}
	if after := w.sender(); after != before || before == 0 {
		t.Errorf("walsender %d reads now, and %d did before: it connected again", after, before)
	}
	if begins.Load() != 1 {
		t.Errorf("%d copies, want the first alone", begins.Load())
	}
	if took < timeout {
		t.Errorf("through in %s: that is within the timeout, and proves nothing", took)
	}
	if int64(most)-int64(heap) > bound {
		t.Errorf("%d MB of heap for a transaction of %d MB", int64(most-heap)>>20, int64(rows*size)>>20)
	}
	w.released()
}

// A transaction that is larger than the stream waits there for its sink, which is
// slower than the relay: one session, no copy.
func TestTransactionLargerThanTheStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.small = 1 << 20
	c := newCable(t, strings.TrimPrefix(w.nats.URL, "nats://"))
	w.via = "nats://" + c.l.Addr().String()
	w.relay(nil)
	w.sink()
	w.add(1, 1)
	w.equal()
	before := w.sender()
	c.rate.Store(2 << 20)
	w.write("INSERT INTO shop.things (slot, id, name) SELECT 7, n, repeat('x', 1000) || n FROM generate_series(10, 6000) n")
	w.equal()
	if after := w.sender(); after != before {
		t.Errorf("walsender %d reads now, and %d did before: it connected again", after, before)
	}
	if w.begins != 1 {
		t.Errorf("%d copies, want the first alone", w.begins)
	}
	w.released()
}

// sender is the process that sends the WAL, 0 = none.
func (w *world) sender() (pid int) {
	w.t.Helper()
	err := w.db.Super.QueryRow(w.t.Context(), "SELECT coalesce(max(active_pid), 0) FROM pg_replication_slots WHERE database = current_database() AND NOT temporary").Scan(&pid)
	if err != nil {
		w.t.Fatal(err)
	}
	return pid
}

func inUse() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}
