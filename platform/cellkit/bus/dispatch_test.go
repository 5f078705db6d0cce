package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/bus/bustest"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// spy reads a cell's streams without taking anything out of them.
type spy struct {
	js jetstream.JetStream
	nc *nats.Conn
}

func (c *cell) spy(t testing.TB) spy {
	t.Helper()
	nc, err := nats.Connect(c.nats.URL, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return spy{js, nc}
}

// messages gives what is stored for a cell, by message id.
func (s spy) messages(ctx context.Context, cell string) (map[string]int, error) {
	out := map[string]int{}
	stream, err := s.js.Stream(ctx, bus.Stream(cell))
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return nil, err
	}
	for seq := max(info.State.FirstSeq, 1); seq <= info.State.LastSeq; seq++ {
		raw, err := stream.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var m bus.Message
		if err := json.Unmarshal(raw.Data, &m); err != nil {
			return nil, err
		}
		out[m.ID]++
	}
	return out, nil
}

// stream waits for the stream to a cell.
func (s spy) stream(t testing.TB, cell string) {
	t.Helper()
	waitFor(t, "the stream", func() error { _, err := s.js.Stream(t.Context(), bus.Stream(cell)); return err })
}

// has waits until each of ids is stored for a cell.
func (s spy) has(t testing.TB, cell string, ids ...string) {
	t.Helper()
	waitFor(t, "messages for "+cell, func() error {
		got, err := s.messages(t.Context(), cell)
		for _, id := range ids {
			if got[id] == 0 {
				err = errors.Join(err, fmt.Errorf("no %s", id))
			}
		}
		return err
	})
}

// A row that commits late, below others that were sent long ago, is sent.
func TestScenario_M03_LateCommit(t *testing.T) {
	t.Parallel()
	c1, _ := newCells(t)
	start(t, c1.dispatcher().Run)
	s := c1.spy(t)
	ctx := t.Context()
	late := make([]*pg.Tx, 5)
	for i := range late { // open transactions, each with a row written first
		slot := routing.Slot(10 + i)
		late[i] = c1.open(t, slot)
		if err := bus.Send(ctx, late[i], bus.Request{Service: "toy", Kind: "do.it", Key: fmt.Sprint("early", i), To: half, Body: 1, ReplyService: "toy"}); err != nil {
			t.Fatal(err)
		}
		c1.send(t, slot, half, fmt.Sprint("later", i))
	}
	s.has(t, "c2", "do.it:later0", "do.it:later1", "do.it:later2", "do.it:later3", "do.it:later4")
	for _, i := range []int{3, 0, 4, 1, 2} {
		if err := late[i].Commit(ctx); err != nil {
			t.Fatal(err)
		}
	}
	s.has(t, "c2", "do.it:early0", "do.it:early1", "do.it:early2", "do.it:early3", "do.it:early4")
}

// The stream's memory of message ids may be wrong in every way: only the inbox
// decides.
func TestScenario_M04_StreamDedupeIsNotReliedOn(t *testing.T) {
	t.Parallel()
	t.Run("it takes a new message for a duplicate", func(t *testing.T) {
		t.Parallel()
		c1, _ := newCells(t)
		s := c1.spy(t)
		stop := start(t, c1.dispatcher().Run)
		s.stream(t, "c2")
		// The id that the reply's first attempt will have is in its memory, the message isn't.
		_, err := s.js.Publish(t.Context(), bus.Subject("c2", "other", "x"), []byte(`{"id":"bogus"}`), jetstream.WithMsgID("1/"+bus.ReplyID(half, "do.it:a")+"/1.1"))
		if err != nil {
			t.Fatal(err)
		}
		want(t, c1.consumer().Deliver(t.Context(), request(half, 1, "a")), bus.Handled)
		s.has(t, "c2", bus.ReplyID(half, "do.it:a"))
		stop()
	})
	t.Run("it lets one in twice", func(t *testing.T) {
		t.Parallel()
		c1, c2 := newCells(t)
		start(t, c1.dispatcher().Run)
		start(t, c2.dispatcher().Run)
		start(t, c2.consumer().Run)
		for range 5 {
			c1.publish(t, "c2", bus.Encode(request(1, half, "a")))
		}
		waitFor(t, "all five", func() error {
			if got, err := c1.spy(t).messages(t.Context(), "c2"); err != nil || len(got) > 0 {
				return fmt.Errorf("left: %v, %v", got, err)
			}
			return once(t, c2.db, "8192 do a")
		})
	})
	t.Run("a reply is lost and asked for again", func(t *testing.T) {
		t.Parallel()
		c1, c2 := newCells(t)
		start(t, c2.dispatcher().Run)
		con := c2.consumer()
		s := c2.spy(t)
		want(t, con.Deliver(t.Context(), request(1, half, "a")), bus.Handled)
		id := bus.ReplyID(1, "do.it:a")
		for range 3 { // faster than any window forgets
			s.has(t, "c1", id)
			waitFor(t, "the note's end", func() error { return settled(t, c2) })
			stream, err := s.js.Stream(t.Context(), bus.Stream("c1"))
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Purge(t.Context()); err != nil { // lost on its way
				t.Fatal(err)
			}
			want(t, con.Deliver(t.Context(), request(1, half, "a")), bus.Duplicate)
		}
		s.has(t, "c1", id)
		_ = c1
	})
}

// One bad message of a batch stops no other.
func TestScenario_M05_OneBadPublish(t *testing.T) {
	t.Parallel()
	c1, _ := newCells(t)
	ctx := t.Context()
	bad := []bus.Request{
		{Service: "no such subject *", Kind: "do.it", Key: "subject", To: half, Body: 1},
		{Service: "toy", Kind: "do.it", Key: "nowhere", To: 20000, Body: 1},
		{Service: "toy", Kind: "do.it", Key: "too-large", To: half, Body: strings.Repeat("x", 2<<20)},
	}
	err := pg.InSlot(ctx, c1.db.App, pg.Entry{Slot: 1, Epoch: 1}, func(tx *pg.Tx) error {
		for _, r := range bad {
			r.ReplyService = "toy"
			if err := bus.Send(ctx, tx, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	c1.send(t, 1, half, "z")
	c1.send(t, 1, 2, "y")
	start(t, c1.dispatcher().Run)
	s := c1.spy(t)
	s.has(t, "c2", "do.it:z")
	s.has(t, "c1", "do.it:y")
	waitFor(t, "the bad ones' second attempt", func() error {
		for _, r := range bustest.Due(t, c1.db.Super) {
			if r.Attempt < 2 {
				return fmt.Errorf("%s is at attempt %d", r.ID, r.Attempt)
			}
		}
		return nil
	})
	if n := len(bustest.Due(t, c1.db.Super)); n != 5 {
		t.Errorf("%d notes, want all 5 requests still open", n)
	}
}

// What changed while a batch was in flight keeps its change.
func TestScenario_M07_UpdatesNameTheStateTheySaw(t *testing.T) {
	t.Parallel()
	c1, _ := newCells(t)
	s := c1.spy(t)
	stop := start(t, c1.dispatcher().Run)
	s.stream(t, "c2")
	stop()
	d := c1.dispatcher()
	ctx := t.Context()
	con := c1.consumer()
	want(t, con.Deliver(ctx, request(half, 5, "reply")), bus.Handled)
	var did atomic.Bool
	d.FailAt(func(step string) error {
		if step != "published" || !did.CompareAndSwap(false, true) {
			return nil
		}
		// The request is answered and closed, and the reply asked for once more, before the batch is settled.
		err := pg.InSlot(ctx, c1.db.App, pg.Entry{Slot: 1, Epoch: 1}, func(tx *pg.Tx) error { return bus.Close(ctx, tx, "do.it", "a") })
		if res := con.Deliver(ctx, request(half, 5, "reply")); res.Outcome != bus.Duplicate {
			err = errors.Join(err, res.Err)
		}
		return err
	})
	c1.send(t, 1, half, "a")
	start(t, d.Run)
	s.has(t, "c2", "do.it:a")
	waitFor(t, "the reply twice", func() error {
		got, err := s.messages(ctx, "c2")
		if id := bus.ReplyID(half, "do.it:reply"); got[id] < 2 {
			return errors.Join(err, fmt.Errorf("sent %d times", got[id]))
		}
		return errors.Join(err, settled(t, c1))
	})
	for _, r := range bustest.Outbox(t, c1.db.Super, 1) {
		if !r.Closed || r.Due {
			t.Errorf("request %s: closed %v, due %v, want closed and not due again", r.ID, r.Closed, r.Due)
		}
	}
}

func TestScenario_O09_NothingLeavesBeforeCommit(t *testing.T) {
	t.Parallel()
	c1, _ := newCells(t)
	start(t, c1.dispatcher().Run)
	s := c1.spy(t)
	ctx := t.Context()
	for _, tt := range []struct {
		key string
		end func(*pg.Tx, context.Context) error
	}{
		{"kept", func(tx *pg.Tx, ctx context.Context) error { return tx.Commit(ctx) }},
		{"undone", func(tx *pg.Tx, ctx context.Context) error { return tx.Rollback(ctx) }},
	} {
		tx := c1.open(t, 1)
		if err := bus.Send(ctx, tx, bus.Request{Service: "toy", Kind: "do.it", Key: tt.key, To: half, Body: 1, ReplyService: "toy"}); err != nil {
			t.Fatal(err)
		}
		if err := s.nc.Publish(bus.PokeSubject, nil); err != nil {
			t.Fatal(err)
		}
		c1.send(t, 2, half, "beside-"+tt.key) // sent while the other is open
		s.has(t, "c2", "do.it:beside-"+tt.key)
		if got, err := s.messages(ctx, "c2"); err != nil || got["do.it:"+tt.key] > 0 {
			t.Errorf("before COMMIT: stored %v, %v", got, err)
		}
		if err := tt.end(tx, ctx); err != nil {
			t.Fatal(err)
		}
	}
	s.has(t, "c2", "do.it:kept")
	c1.send(t, 1, half, "after")
	s.has(t, "c2", "do.it:after")
	if got, err := s.messages(ctx, "c2"); err != nil || got["do.it:undone"] > 0 {
		t.Errorf("after the rollback: stored %v, %v", got, err)
	}
}

// Committed and not published, for whatever reason: sent after the restart.
func TestScenario_O14_CommitWithoutPublish(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"", "claimed", "published"} {
		t.Run("died "+step, func(t *testing.T) {
			t.Parallel()
			c1, _ := newCells(t)
			s := c1.spy(t)
			c1.send(t, 1, half, "a")
			if step != "" {
				d := c1.dispatcher()
				died := make(chan bool, 100)
				d.FailAt(func(at string) error {
					if at == step {
						died <- true
						return errCrash
					}
					return nil
				})
				stop := start(t, d.Run)
				<-died
				stop()
			}
			start(t, c1.dispatcher().Run)
			s.has(t, "c2", "do.it:a")
			waitFor(t, "the second attempt", func() error { // it is open, so it goes out again
				if got, err := s.messages(t.Context(), "c2"); err != nil || got["do.it:a"] < 2 {
					return fmt.Errorf("stored %v, %v", got, err)
				}
				return nil
			})
		})
	}
}

// Two agents for one cell share the work.
func TestTwoDispatchers(t *testing.T) {
	t.Parallel()
	c1, _ := newCells(t)
	const n = 600
	_, err := c1.db.Super.Exec(t.Context(), `BEGIN; SELECT cell.enter(1, 1); INSERT INTO cell.outbox (slot, id, to_slot, service, kind, key, body, reply_to)
		SELECT 1, 'm' || i, 9000, 'toy', 'done.it', i::text, '{}', 'x' FROM generate_series(1, 600) i; COMMIT`)
	if err != nil {
		t.Fatal(err)
	}
	// A second copy is no fault by itself: what isn't settled within 2 s of its claim is due again. A claim of what isn't due is one.
	exec(t, c1, `CREATE TABLE public.early (id text, attempt int, left_ms float8);
		CREATE FUNCTION public.early() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
			INSERT INTO public.early VALUES (old.id, new.attempts, 1000 * extract(epoch FROM old.due - clock_timestamp())); RETURN NULL; END $$;
		CREATE TRIGGER early AFTER UPDATE ON cell.relay FOR EACH ROW WHEN (new.attempts > old.attempts AND old.due > clock_timestamp())
			EXECUTE FUNCTION public.early()`)
	for range 2 {
		start(t, c1.dispatcher().Run)
	}
	waitFor(t, "all sent", func() error { return settled(t, c1) })
	got, err := c1.spy(t).messages(t.Context(), "c2")
	if err != nil || len(got) != n {
		t.Errorf("%d messages stored (%v), want %d", len(got), err, n)
	}
	if n := count(t, c1.db, "public.early"); n != 0 {
		t.Errorf("%d notes were claimed while the other dispatcher had them", n)
	}
}

// When a note leaves, and when it doesn't.
func TestWhatLeaves(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, before, after string // SQL; nothing leaves between
	}{
		{"slot of another owner", "UPDATE cell.slots SET role = 'none' WHERE slot = 1", "UPDATE cell.slots SET role = 'owner' WHERE slot = 1"},
		{"draining slot", "UPDATE cell.slots SET state = 'draining' WHERE slot = 1", "UPDATE cell.slots SET state = 'active' WHERE slot = 1"},
		{"lease over", "SELECT cell.set_lease(0)", "SELECT cell.set_lease('infinity')"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c1, _ := newCells(t)
			c1.send(t, 1, half, "a")
			exec(t, c1, tt.before)
			stop := start(t, c1.dispatcher().Run)
			s := c1.spy(t)
			s.stream(t, "c2")
			if tt.name != "lease over" {
				exec(t, c1, "BEGIN; SELECT cell.enter(3, 1); INSERT INTO cell.outbox (slot, id, to_slot, service, kind, key, body, reply_to) VALUES (3, 'other', 9000, 'toy', 'x', 'x', '{}', 'x'); COMMIT")
				s.has(t, "c2", "other")
			}
			if got, err := s.messages(t.Context(), "c2"); err != nil || got["do.it:a"] > 0 {
				t.Errorf("stored %v, %v, want nothing of slot 1", got, err)
			}
			exec(t, c1, tt.after)
			s.has(t, "c2", "do.it:a")
			stop()
		})
	}
	t.Run("clock of the database jumped", func(t *testing.T) {
		t.Parallel()
		c1, _ := newCells(t)
		c1.send(t, 1, half, "a")
		exec(t, c1, "UPDATE cell.relay SET due = now() + interval '3 days'") // made before the clock was set back
		start(t, c1.dispatcher().Run)
		c1.spy(t).has(t, "c2", "do.it:a")
	})
}

// A full stream refuses, and its messages stay due; others are sent.
func TestFullStream(t *testing.T) {
	t.Parallel()
	c1, _ := newCells(t)
	d := bus.NewDispatcher(bus.DispatcherOptions{Cell: "c1", Pool: c1.agent, NATSURL: c1.nats.URL, Table: c1.table, MaxBytes: 20_000})
	start(t, d.Run)
	s := c1.spy(t)
	s.stream(t, "c2")
	var err error
	for err == nil {
		_, err = s.js.Publish(t.Context(), bus.Subject("c2", "other", "x"), []byte(`{"id":"`+strings.Repeat("x", 100)+`"}`))
	}
	c1.send(t, 1, half, "full")
	c1.send(t, 1, 2, "other")
	s.has(t, "c1", "do.it:other")
	// What has no room waits as long as what has no answer: thousands of them, tried each second, would hold up the others.
	// (Looked at a while after the claim, which the answer to the publish may have changed.)
	waitFor(t, "an attempt that leaves time", func() error {
		var attempts int
		var wait float64
		err := c1.db.Super.QueryRow(t.Context(), "SELECT attempts, extract(epoch FROM due - clock_timestamp())::float8 FROM cell.relay WHERE id = 'do.it:full'").Scan(&attempts, &wait)
		if err == nil && (attempts < 2 || wait < 1.5 || wait > min(float64(int(1)<<attempts), 30)-0.5) {
			err = fmt.Errorf("attempt %d, the next in %v s", attempts, wait)
		}
		return err
	})
	stream, err := s.js.Stream(t.Context(), bus.Stream("c2"))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.has(t, "c2", "do.it:full")
}

func exec(t testing.TB, c *cell, sql string) {
	t.Helper()
	if _, err := c.db.Super.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Each request is counted once, whether it leaves the cell or not, and however
// often it is sent; replies aren't.
func TestRequestsAreCountedOnce(t *testing.T) {
	t.Parallel()
	c1, _ := newCells(t)
	d := c1.counting(func(m bus.Message) bool { return m.Key != "follows" })
	start(t, d.Run)
	c1.send(t, 1, 2, "own")
	c1.send(t, 1, half, "begins")
	c1.send(t, 1, half, "follows")
	want(t, c1.consumer().Deliver(t.Context(), request(half, 1, "asked")), bus.Handled) // so a reply goes out
	c1.spy(t).has(t, "c2", bus.ReplyID(half, "do.it:asked"))
	s := c1.spy(t)
	waitFor(t, "a second attempt of what stays in c1", func() error {
		got, err := s.messages(t.Context(), "c1")
		if err == nil && got["do.it:own"] < 2 {
			err = fmt.Errorf("sent %d times", got["do.it:own"])
		}
		return err
	})
	if got, want := d.Asked()["do.it"], (bus.Asked{Local: 1, Messaged: 2, Begun: 1}); got != want || len(d.Asked()) != 1 {
		t.Errorf("counted %+v, want %+v of one kind", d.Asked(), want)
	}
	if n := c1.metric(t, "cellmart_bus_asked_total", `kind="do.it"`, `way="messaged"`); n != 2 {
		t.Errorf("the series says %v, want 2", n)
	}
}

// A table with the same cells changes no stream: NATS would write each one's
// configuration to the disk, at the moment at which all take the table. (That
// every new cell gets one is in the consumer's test.)
func TestStreamsAreMadeForNewCellsOnly(t *testing.T) {
	t.Parallel()
	c1, _ := newCells(t)
	s := c1.spy(t)
	asked, err := s.nc.SubscribeSync("$JS.API.STREAM.UPDATE.*")
	if err := errors.Join(err, s.nc.Flush()); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	start(t, c1.dispatcher().Run)
	s.stream(t, "c2")
	updates := func() (c1, c2 int) {
		for {
			m, err := asked.NextMsg(time.Millisecond)
			switch {
			case err != nil:
				return c1, c2
			case strings.HasSuffix(m.Subject, "."+bus.Stream("c1")):
				c1++
			default:
				c2++
			}
		}
	}
	waitFor(t, "both streams are asked for", func() error {
		if a, b := updates(); a+b > 0 {
			return errors.New("still asking")
		}
		return nil
	})
	for v := range int64(20) {
		c1.table.Store(tableOf(t, v+2, nil))
		c1.send(t, 1, half, fmt.Sprint("v", v)) // the dispatcher runs meanwhile
		s.has(t, "c2", fmt.Sprint("do.it:v", v))
	}
	looks := 4 + int(time.Since(begun)/(10*time.Second)) // and the one each 10 s; a slow server is asked again
	if a, b := updates(); a > looks || b > looks {
		t.Errorf("20 tables with the same cells bring streams up %d and %d times, want at most %d", a, b, looks)
	}
}
