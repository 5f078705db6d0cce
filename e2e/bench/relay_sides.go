package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"example.com/cellmart/platform/cellkit/cdc"
)

// sender is a walsender's process. Its CPU is only known for sure when it has
// ended: pg_recvlogical ends it by itself.
type sender struct {
	b     *relayBench
	slot  string
	pid   int
	ended float64 // CPU of the server's processes that had ended before
}

// sender is called while there is none.
func (b *relayBench) sender(slot string) (*sender, error) {
	st, err := readStat(b.pid)
	return &sender{b: b, slot: slot, ended: st.ended}, err
}

// find waits until the process is there.
func (s *sender) find(ctx context.Context) error {
	return eventually(ctx, func() error {
		return s.b.db.QueryRow(ctx, "SELECT active_pid FROM pg_replication_slots WHERE slot_name LIKE $1 AND active_pid IS NOT NULL", s.slot).Scan(&s.pid)
	})
}

// spent waits until the process is gone, and gives its CPU for a row.
func (s *sender) spent(ctx context.Context) (perRow float64, err error) {
	err = eventually(ctx, func() error {
		if _, err := readStat(s.pid); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("walsender %d is still there: %w", s.pid, err)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	st, err := readStat(s.b.pid)
	return (st.ended - s.ended) * 1e6 / float64(s.b.rows), err
}

// recvlogical has pg_recvlogical read up to a place.
func (b *relayBench) recvlogical(ctx context.Context, end cdc.LSN) (m drained, err error) {
	ctx, cancel := context.WithTimeout(ctx, relayLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.recv, "-d", b.dsn, "--slot", recvSlot, "--start", "--endpos", end.String(), "--no-loop", "-f", "/dev/null",
		"-o", "proto_version=1", "-o", "publication_names="+cdc.Publication, "-o", "messages=true")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	sender, err := b.sender(recvSlot)
	if err != nil {
		return m, err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return m, err
	}
	found := make(chan error, 1)
	go func() { found <- sender.find(ctx) }()
	if err := cmd.Wait(); err != nil {
		return m, fmt.Errorf("pg_recvlogical: %w: %s", err, strings.TrimSpace(said.String()))
	}
	rows := float64(b.rows)
	m.rate = rows / time.Since(start).Seconds()
	m.reader = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds() * 1e6 / rows
	if err := <-found; err != nil {
		return m, err
	}
	m.sender, err = sender.spent(ctx)
	return m, err
}

// run starts the relay, in this process.
func (b *relayBench) run(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	r := cdc.NewRelay(cdc.Options{
		Zone: "c1", Pool: b.pool, DSN: b.dsn, NATSURL: b.d.state.Cells[0].NATS, MaxBytes: 512 << 20, MaxWAL: 64 << 30, Log: b.log,
	})
	go func() {
		defer close(done)
		_ = r.Run(ctx) // its only error is a malformed URL
	}()
	return func() { cancel(); <-done }
}

func ownCPU() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails only on a wrong argument
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// relayed has the relay read up to a place. What it takes to start counts too.
func (b *relayBench) relayed(ctx context.Context, end cdc.LSN) (m drained, err error) {
	nats, err := readStat(b.nats)
	if err != nil {
		return m, err
	}
	sender, err := b.sender(`%\_cdc`)
	if err != nil {
		return m, err
	}
	own, start := ownCPU(), time.Now()
	stop := b.run(ctx)
	at, err := b.wait(ctx, end)
	own = ownCPU() - own
	after, err2 := readStat(b.nats)
	if err = errors.Join(err, err2); err == nil {
		err = sender.find(ctx)
	}
	if err == nil {
		err = b.stored(ctx, end)
	}
	stop()
	if err != nil {
		return m, err
	}
	rows := float64(b.rows)
	m.rate, m.reader, m.stream = rows/at.Sub(start).Seconds(), own*1e6/rows, (after.own-nats.own)*1e6/rows
	m.sender, err = sender.spent(ctx)
	return m, err
}

// wait returns when every stream has acknowledged a message from behind a place,
// with the time that the last of them was seen.
func (b *relayBench) wait(ctx context.Context, end cdc.LSN) (at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, relayLimit)
	defer cancel()
	for _, sink := range b.sinks {
		seen, err := b.waitOne(ctx, sink, end)
		if err != nil {
			return at, fmt.Errorf("%s isn't behind %s: %w", cdc.StreamName(sink), end, err)
		}
		if seen.After(at) {
			at = seen
		}
	}
	return at, nil
}

// waitOne looks into a message only when none came since the last look: that costs
// this process's CPU, which counts as the relay's.
func (b *relayBench) waitOne(ctx context.Context, sink string, end cdc.LSN) (seen time.Time, err error) {
	s, err := b.js.Stream(ctx, cdc.StreamName(sink))
	if err != nil {
		return seen, err
	}
	for last, looked := uint64(0), false; ; {
		info, err := s.Info(ctx)
		if err != nil {
			return seen, err
		}
		if info.State.LastSeq != last {
			last, looked, seen = info.State.LastSeq, false, time.Now()
		} else if !looked {
			m, err := lastOf(ctx, s, last)
			if err != nil || m.Kind == cdc.KindTx && m.LSN > end {
				return seen, err
			}
			looked = true
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return seen, err
		}
	}
}

// lastOf is the last message of a bundle; empty when it isn't there any more.
func lastOf(ctx context.Context, s jetstream.Stream, seq uint64) (m cdc.Message, err error) {
	raw, err := s.GetMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	ms, err := cdc.Decode(raw.Data)
	if err != nil || len(ms) == 0 {
		return m, err
	}
	return ms[len(ms)-1], nil
}

// stored says for each sink that it has everything, empties its stream, and waits
// until Postgres was told.
func (b *relayBench) stored(ctx context.Context, end cdc.LSN) error {
	for _, sink := range b.sinks {
		s, err := b.js.Stream(ctx, cdc.StreamName(sink))
		if err != nil {
			return err
		}
		m, err := lastOf(ctx, s, s.CachedInfo().State.LastSeq)
		if err != nil {
			return err
		}
		body, err := json.Marshal(map[string]any{"incarnation": m.Incarnation, "lsn": m.LSN, "state": cdc.Live})
		if err != nil {
			return err
		}
		if err := b.nc.Publish("cdc.stored."+sink, body); err != nil {
			return err
		}
		if err := s.Purge(ctx, jetstream.WithPurgeKeep(1)); err != nil {
			return err
		}
	}
	return eventually(ctx, func() error {
		var done bool
		err := b.db.QueryRow(ctx, "SELECT confirmed_flush_lsn > $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name LIKE '%\\_cdc' AND database = current_database()", end.String()).Scan(&done)
		if err == nil && !done {
			err = errors.New("nothing is confirmed")
		}
		return err
	})
}

// large has one transaction of a million rows go through, and looks at this
// process's memory meanwhile.
func (b *relayBench) large(ctx context.Context) (r row, err error) {
	short, cancel := context.WithTimeout(ctx, relayLimit)
	defer cancel()
	_, err = b.db.Exec(short, `INSERT INTO orders.cart_items (slot, epoch, rev, user_id, sku, quantity)
		SELECT i % 16384, 1, 1, $1 + i, 16384 + i, 1 + i % 9 FROM generate_series(1, $2::bigint) i`, b.next, relayLarge)
	if err != nil {
		return r, fmt.Errorf("write a large transaction: %w", err)
	}
	b.next += relayLarge
	end, err := b.beat(ctx)
	if err != nil {
		return r, err
	}
	debug.FreeOSMemory()
	heap, rss := memory()
	watch, done := context.WithCancel(ctx)
	peak := make(chan [2]float64)
	go func() {
		var most [2]float64
		for pause(watch, 20*time.Millisecond) == nil {
			h, r := memory()
			most = [2]float64{max(most[0], h), max(most[1], r)}
		}
		peak <- most
	}()
	start := time.Now()
	stop := b.run(ctx)
	at, err := b.wait(ctx, end)
	done()
	most := <-peak
	if err == nil {
		err = b.stored(ctx, end)
	}
	stop()
	if err != nil {
		return r, err
	}
	return compare("relay/memory", "MB", most[0]-heap, relayHeap, "<= 1.0", func(r float64) bool { return r <= 1 },
		fmt.Sprintf("most of the heap in use while one transaction of %d rows goes through, in %.1f s (resident: %.0f MB, before: %.0f); baseline: twice the 16 MB that may be under way to a stream, and 32 MB of buffers",
			relayLarge, at.Sub(start).Seconds(), most[1], rss)), nil
}

// relayHeap is how much heap the relay may have in use, in MB.
const relayHeap = 64

// memory is this process's heap in use and resident memory, in MB.
func memory() (heap, rss float64) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if b, err := os.ReadFile("/proc/self/statm"); err == nil { // Linux
		if f := strings.Fields(string(b)); len(f) > 1 {
			pages, _ := strconv.Atoi(f[1]) // a number
			rss = float64(pages*os.Getpagesize()) / (1 << 20)
		}
	}
	return float64(m.HeapInuse) / (1 << 20), rss
}
