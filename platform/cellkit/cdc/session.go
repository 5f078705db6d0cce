package cdc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// session relays from what Postgres was told to the first trouble.
type session struct {
	r        *Relay
	js       jetstream.JetStream
	identity Message
	slot     slotState
	units    []string // tables of unit data
	group    *errgroup.Group
	dec      *decoder
	wire     *wire
	commands chan func() // run by the reader between two transactions

	mu      sync.Mutex
	targets []*target
	stored  map[string]LSN // of each sink, as it says
	moved   map[string]time.Time
	beats   []LSN // heartbeats that came and aren't confirmed, ascending
	told    LSN   // the last that is
	read    LSN   // end of the last transaction that was published
}

// errAgain ends a session that is to begin again at once, from what is confirmed.
var errAgain = errors.New("a stream is sent again")

// session relays until ctx ends or something breaks.
func (r *Relay) session(ctx context.Context) error {
	if !r.nc.IsConnected() {
		return nats.ErrDisconnected
	}
	conn, frames, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	sys, err := pglogrepl.IdentifySystem(ctx, conn)
	if err != nil {
		return fmt.Errorf("identify the database: %w", err)
	}
	s := &session{r: r, identity: Message{Zone: r.o.Zone}, commands: make(chan func(), 16), stored: map[string]LSN{}, moved: map[string]time.Time{}}
	if s.identity.Incarnation, err = r.store.identity(ctx, sys); err != nil {
		return err
	}
	if s.units, err = units(ctx, r.o.Pool); err != nil {
		return err
	}
	if s.slot, err = r.openSlot(ctx, conn); err != nil {
		return err
	}
	s.told, s.read = s.slot.confirmed, s.slot.confirmed
	s.js, err = jetstream.New(r.nc, jetstream.WithPublishAsyncMaxPending(16*maxInFlight), jetstream.WithPublishAsyncTimeout(ackLimit))
	if err != nil {
		return err
	}
	defer s.js.CleanupPublisher()
	s.dec = &decoder{
		own: r.o.Zone, units: s.units, known: s.slot.known, bound: pieceOf(r.o.MaxBytes), relations: map[uint32]*relation{}, pos: s.slot.confirmed,
	}
	if err := s.open(ctx); err != nil {
		return err
	}
	s.dec.targets = slices.Clone(s.targets)
	// From 0 the server starts at what it was told last: nothing between is skipped.
	err = pglogrepl.StartReplication(ctx, conn, s.slot.name, 0, pglogrepl.StartReplicationOptions{
		Mode: pglogrepl.LogicalReplication, PluginArgs: pluginArgs(conn),
	})
	if err != nil {
		return err
	}
	frames.stream = true
	s.wire = &wire{conn: conn, frames: frames, confirmed: s.confirmed, told: s.slot.confirmed, moved: func() { r.moving.Store(time.Now().UnixNano()) }}
	r.metrics.running.Set(1)
	r.moving.Store(time.Now().UnixNano())
	s.group, ctx = errgroup.WithContext(ctx)
	s.group.Go(func() error { return s.readWAL(ctx) })
	for _, t := range s.targets {
		s.group.Go(func() error { return s.copyLoop(ctx, t) })
	}
	s.group.Go(func() error { return s.keep(ctx) })
	r.setSession(s)
	defer r.setSession(nil)
	err = s.group.Wait()
	s.remember()
	return err
}

func pluginArgs(conn *pgconn.PgConn) []string {
	args := []string{"proto_version '1'", "publication_names '" + Publication + "'", "messages 'true'"}
	// Before 16 the server can't leave out what came by replication: the decoder does.
	if major, err := strconv.Atoi(digits(conn.ParameterStatus("server_version"))); err == nil && major >= 16 {
		args = append(args, "origin 'none'")
	}
	return args
}

func digits(s string) string {
	for i, c := range s {
		if c < '0' || c > '9' {
			return s[:i]
		}
	}
	return s
}

// readWAL takes the WAL's messages until ctx ends or something breaks.
func (s *session) readWAL(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.wire.conn.Conn().SetReadDeadline(time.Now()) })
	defer stop()
	tick := func() error { return s.wire.settle(ctx) }
	send := func(t *target, m Message, raw []byte, rows []pending, advance LSN) error {
		if !t.out.takes() {
			return nil
		}
		if err := s.r.at("publish"); err != nil {
			return err
		}
		s.r.counted(t, m.Kind, len(rows))
		if err := t.out.add(ctx, m, raw, rows, advance, tick); err != nil || m.Kind != KindTx || m.Chunks > 0 {
			return err
		}
		return t.out.paced(ctx, func() error {
			s.wire.moved() // it's us who keep the server waiting
			return tick()
		})
	}
	idle := func() (bool, error) { return s.idle(ctx, tick) }
	for {
		data, err := s.wire.receive(ctx, idle)
		if err != nil {
			return err
		}
		before := s.dec.pos
		if err := s.dec.decode(data, send); err != nil {
			return err
		}
		if s.dec.pos == before {
			continue
		}
		if err := s.passed(ctx); err != nil {
			return err
		}
		if err := s.r.at("published"); err != nil {
			return err
		}
	}
}

// passed notes a transaction's end, after all of it was given to the streams.
func (s *session) passed(ctx context.Context) error {
	d := s.dec
	if d.learned {
		if err := s.r.at("map"); err != nil {
			return err
		}
		if err := s.r.store.know(ctx, d.pos, d.known); err != nil {
			return fmt.Errorf("store the slot map: %w", err)
		}
		d.learned = false
	}
	if d.beat {
		s.mu.Lock()
		s.beats = append(s.beats, d.pos)
		s.read = d.pos
		s.mu.Unlock()
	}
	return nil
}

// idle sends what is gathered, and does what waits for a pause.
func (s *session) idle(ctx context.Context, tick func() error) (brief bool, err error) {
	for _, t := range s.dec.targets {
		if err := t.out.flush(ctx, tick); err != nil {
			return false, err
		}
		n, err := t.out.settled()
		if err != nil {
			return false, err
		}
		brief = brief || n > 0
	}
	if !s.dec.open {
		s.mu.Lock()
		s.read = s.dec.pos
		s.mu.Unlock()
		for len(s.commands) > 0 {
			(<-s.commands)()
		}
	}
	return brief, tick()
}

// do has the reader do something between two transactions.
func (s *session) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case s.commands <- func() { f(); close(done) }:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// confirmed is the last heartbeat that every sink has stored which counts.
func (s *session) confirmed() LSN {
	s.mu.Lock()
	defer s.mu.Unlock()
	least := LSN(1<<64 - 1)
	for _, t := range s.targets {
		if t.out.state.Load() != detached {
			least = min(least, s.stored[t.sink.Name])
		}
	}
	n := 0
	for n < len(s.beats) && s.beats[n] <= least {
		s.told = s.beats[n]
		n++
	}
	s.beats = s.beats[n:]
	return s.told
}

// keep writes heartbeats, looks after the sinks, and ends the session when
// nothing comes through.
func (s *session) keep(ctx context.Context) error {
	r := s.r
	for {
		if sleep(ctx, r.o.Beat); ctx.Err() != nil {
			return ctx.Err()
		}
		// A large transaction keeps heartbeats waiting, but not the server's own progress.
		if still := time.Since(time.Unix(0, r.moving.Load())); still > r.o.silent {
			return errors.New("the slot is silent: nothing came through for " + still.Round(time.Second).String())
		}
		look, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := r.store.beat(look)
		if err == nil {
			err = s.retained(look)
		}
		if err == nil {
			err = r.store.forget(look, s.slot.name)
		}
		cancel()
		if err != nil && ctx.Err() == nil {
			r.o.Log.Info("heartbeat", "error", err)
		}
		if err := s.tend(ctx); err != nil {
			return err
		}
	}
}

// retained looks how much WAL is kept for the sinks, and says when that is much.
func (s *session) retained(ctx context.Context) error {
	r := s.r
	bytes, err := r.store.retained(ctx, s.slot.name)
	if err != nil {
		return err
	}
	limit, err := r.maxWAL(ctx)
	if err != nil {
		return err
	}
	share := bytes / float64(limit)
	r.metrics.wal.Set(bytes)
	r.metrics.walShare.Set(share)
	level := 0
	switch {
	case share >= 0.8:
		level = 80
	case share >= 0.5:
		level = 50
	}
	if level > r.alarm {
		r.o.Log.Warn("WAL is kept for sinks that haven't stored it", "percent", level, "bytes", int64(bytes), "limit", limit)
	}
	r.alarm = level
	return nil
}
