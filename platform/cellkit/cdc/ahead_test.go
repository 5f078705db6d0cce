package cdc_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/cdc"
)

// While a full batch is stored the next one is gathered: one is stored at a time,
// in order, again with the same when that failed, and nothing tells of changes
// that aren't stored.
func TestGatheringGoesOnWhileABatchIsStored(t *testing.T) {
	t.Parallel()
	const rows, full = 1250, 500
	w := newWorld(t)
	w.relay(nil)
	w.sink()
	w.equal()
	w.halt("sink")
	conn, err := w.db.Super.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), "SET session_replication_role = replica; SET synchronous_commit = off"); err != nil { // no triggers: they take long
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `DO $$ BEGIN FOR n IN 1 .. 1250 LOOP
		INSERT INTO shop.things (slot, epoch, rev, id, name) VALUES (7, 1, 1, n, 'thing ' || n); COMMIT; END LOOP; END $$`); err != nil {
		t.Fatal(err)
	}
	var end cdc.LSN
	var text string
	if err := conn.QueryRow(t.Context(), "SELECT pg_current_wal_lsn()::text").Scan(&text); err != nil {
		t.Fatal(err)
	}
	if err := end.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	s, err := w.js().Stream(t.Context(), cdc.StreamName("test"))
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "all is in the stream", func() bool {
		m, err := s.GetLastMsgForSubject(t.Context(), "cdc.test."+w.db.Cell)
		if err != nil {
			return false
		}
		ms, err := cdc.Decode(m.Data)
		return err == nil && len(ms) > 0 && ms[len(ms)-1].LSN >= end
	})

	var f *cdc.Follower
	var storing, calls atomic.Int64
	var reached cdc.LSN
	var failed []cdc.Change
	release := make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	defer let()
	o := cdc.FollowerOptions{
		Zone: w.db.Cell, Sink: "test", Position: w.pos, Log: w.log,
		Connect: func() (*nats.Conn, error) { return bus.Connect(w.nats.URL, "sink", w.log) },
		Apply: func(ctx context.Context, changes []cdc.Change, p cdc.Position) error {
			if storing.Add(1) != 1 {
				t.Error("two batches are stored at a time")
			}
			defer storing.Add(-1)
			if len(changes) < full/2 { // messages without changes count, too
				reached = max(reached, p.LSN)
				return w.apply(ctx, changes, p)
			}
			n := calls.Add(1)
			if n == 1 { // nothing of this one is stored
				failed = changes
				return errors.New("as told")
			}
			if n == 2 && (len(changes) != len(failed) || changes[0].LSN != failed[0].LSN) {
				t.Errorf("after an error %d changes from %s are stored, not the same %d from %s again", len(changes), changes[0].LSN, len(failed), failed[0].LSN)
			}
			if changes[0].LSN <= reached {
				t.Errorf("changes from %s come after %s", changes[0].LSN, reached)
			}
			if n == 2 {
				select {
				case <-release:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			reached = p.LSN
			return w.apply(ctx, changes, p)
		},
	}
	f = cdc.NewFollower(o.Quick().Gathering(2*time.Second, full))
	w.run("sink", f.Run)
	wait(t, "the batch comes again", func() bool { return calls.Load() >= 2 })
	first := failed[len(failed)-1].LSN
	wait(t, "the next batch is gathered", func() bool { return f.Status().Received > first })
	if s := f.Status(); s.Changes != 0 || s.At.After(failed[0].At) {
		t.Errorf("nothing is stored, and the follower tells of %d changes, the newest of %s", s.Changes, s.At)
	}
	let()
	w.equal()
	if calls.Load() < 2 {
		t.Errorf("%d full batches, and one that failed", calls.Load()-1)
	}
	wait(t, func() string { return fmt.Sprintf("%+v", f.Status()) }, func() bool { return f.Status().Changes == rows })
}

// What ends the session while a full batch is stored waits for it, and goes on after it.
func TestConnectionEndsWhileABatchIsStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.relay(nil)
	w.sink()
	w.equal()
	w.halt("sink")
	w.add(1, 50)
	release := make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	defer let()
	var calls, storing atomic.Int64
	var conn atomic.Pointer[nats.Conn]
	var at cdc.LSN
	o := cdc.FollowerOptions{
		Zone: w.db.Cell, Sink: "test", Position: w.pos, Log: w.log,
		Connect: func() (*nats.Conn, error) {
			nc, err := bus.Connect(w.nats.URL, "sink", w.log)
			conn.Store(nc)
			return nc, err
		},
		Apply: func(ctx context.Context, changes []cdc.Change, p cdc.Position) error {
			if storing.Add(1) != 1 {
				t.Error("two batches are stored at a time")
			}
			defer storing.Add(-1)
			if len(changes) > 0 && calls.Add(1) == 1 {
				<-release
			}
			if p.LSN < at {
				t.Errorf("%s is stored after %s", p.LSN, at)
			}
			at = p.LSN
			return w.apply(ctx, changes, p)
		},
	}
	w.run("sink", cdc.NewFollower(o.Quick().Gathering(50*time.Millisecond, 1)).Run) // each bundle is a full batch
	wait(t, "a batch is being stored", func() bool { return calls.Load() == 1 })
	nc := conn.Load()
	if err := nc.ForceReconnect(); err != nil {
		t.Error(err)
	}
	wait(t, "the connection is back", func() bool { return nc.Stats().Reconnects > 0 && nc.IsConnected() })
	w.add(51, 60)
	s, err := w.js().Stream(t.Context(), cdc.StreamName("test"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "more has come", func() bool { // who doesn't wait has begun again by then
		next, err := s.Info(t.Context())
		return err == nil && next.State.LastSeq >= info.State.LastSeq+3
	})
	let()
	w.equal()
}
