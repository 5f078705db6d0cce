package cdc

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
)

// Sink is somebody who takes changes.
type Sink struct {
	Name   string
	Tables Tables // what it takes, whatever the slot
	Cell   string // takes all unit data of the slots that this cell stands by for
}

// SinkStatus is what the relay knows of a sink, as of its last look.
type SinkStatus struct {
	Sink   string    `json:"sink"`
	State  string    `json:"state"` // attached, or detached: it must copy
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	Stored *LSN      `json:"stored,omitempty"` // what it has said that it stored
}

// fullLimit is how long a sink that stores nothing may have a full stream.
const fullLimit = 10 * time.Second

// Sinks tells how the sinks are.
func (r *Relay) Sinks(ctx context.Context) ([]SinkStatus, error) {
	rows, err := r.o.Pool.Query(ctx, "SELECT sink, state, reason, since, stored::text FROM cdc.sinks ORDER BY sink")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (st SinkStatus, err error) {
		var stored *string
		if err := row.Scan(&st.Sink, &st.State, &st.Reason, &st.Since, &stored); err != nil || stored == nil {
			return st, err
		}
		st.Stored = new(LSN)
		return st, st.Stored.UnmarshalText([]byte(*stored))
	})
}

func (s *session) unit(table string) bool {
	return table == slotsTable || slices.Contains(s.units, table)
}

// tables are what is copied for a sink.
func (s *session) tables(k Sink) Tables {
	if k.Cell == "" {
		return k.Tables
	}
	all := Tables{slotsTable: nil}
	for _, name := range s.units {
		all[name] = nil
	}
	return all
}

// wanted are the sinks that there should be: the settled ones, and every cell
// that may stand by, or that the slot map names.
func (r *Relay) wanted(m *slotMap) []Sink {
	all := slices.Clone(r.o.Sinks)
	var cells []string
	if r.o.Peers != nil {
		cells = r.o.Peers()
	}
	if m != nil {
		cells = append(cells, m.cells...)
	}
	slices.Sort(cells)
	for _, c := range slices.Compact(cells) {
		if c != "" && c != r.o.Zone {
			all = append(all, Sink{Name: StandbySink(c), Cell: c})
		}
	}
	return all
}

// open brings up all sinks' streams, before the reader runs. After a loss none of
// them has what is needed to go on.
func (s *session) open(ctx context.Context) error {
	if !s.slot.declared {
		_, err := s.r.o.Pool.Exec(ctx, "UPDATE cdc.sinks SET state = 'detached', reason = $1, since = now()", s.slot.reason)
		if err != nil {
			return err
		}
	}
	for _, k := range s.r.wanted(s.slot.known.slots) {
		if _, err := s.bring(ctx, k); err != nil {
			return err
		}
	}
	if s.slot.declared {
		return nil
	}
	return s.r.store.told(ctx)
}

// bring opens a sink's stream. A detached sink finds there why it is.
func (s *session) bring(ctx context.Context, k Sink) (*target, error) {
	var state, reason string
	err := s.r.o.Pool.QueryRow(ctx, `WITH made AS (INSERT INTO cdc.sinks (sink, state, reason)
			VALUES ($1, 'detached', 'it never asked for a copy') ON CONFLICT DO NOTHING RETURNING state, reason)
		SELECT state, reason FROM made UNION ALL SELECT state, reason FROM cdc.sinks WHERE sink = $1 LIMIT 1`, k.Name).Scan(&state, &reason)
	if err != nil {
		return nil, err
	}
	out, inside, err := openOutlet(ctx, s.js, k.Name, s.r.o.MaxBytes, s.identity)
	if err != nil {
		return nil, err
	}
	m := s.r.metrics
	t := &target{
		sink: k, out: out, asked: make(chan struct{}, 1),
		messages: m.messages.WithLabelValues(k.Name, string(KindTx)), counted: m.rows.WithLabelValues(k.Name, string(KindTx)),
	}
	if state == "attached" {
		pos := s.slot.confirmed
		if was, ok := s.r.kept[k.Name]; ok && was.seq == out.seq && s.r.keptOf == s.identity.Incarnation {
			pos = max(pos, was.pos) // the stream is as we left it: nothing comes twice
		}
		out.begin(attached, pos)
	} else {
		out.begin(detached, s.slot.confirmed)
		if inside == 0 || !s.slot.declared {
			if err := out.declare(ctx, reason); err != nil {
				return nil, err
			}
		}
	}
	s.mu.Lock()
	s.targets = append(s.targets, t)
	s.stored[k.Name], s.moved[k.Name] = s.slot.confirmed, time.Now()
	s.mu.Unlock()
	return t, nil
}

// remember keeps how far each stream is, for the next session.
func (s *session) remember() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s.r.keptOf = s.identity.Incarnation
	clear(s.r.kept)
	for _, t := range s.targets {
		err := t.out.drain(ctx)
		t.out.mu.Lock()
		if err == nil && !s.r.resending(t.sink.Name) {
			s.r.kept[t.sink.Name] = t.out.acked
		}
		t.out.mu.Unlock()
	}
}

// attach lets a sink count again, from a place between two transactions.
func (s *session) attach(ctx context.Context, t *target) error {
	_, err := s.r.o.Pool.Exec(ctx, "UPDATE cdc.sinks SET state = 'attached', reason = '', since = now(), stored = NULL WHERE sink = $1", t.sink.Name)
	if err != nil {
		return err
	}
	if err := s.r.at("attach"); err != nil {
		return err
	}
	s.r.o.Log.Info("a sink is attached", "sink", t.sink.Name)
	if err := t.out.drain(ctx); err != nil {
		return err
	}
	return s.do(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stored[t.sink.Name], s.moved[t.sink.Name] = s.dec.pos, time.Now()
		t.out.begin(attached, s.dec.pos)
	})
}

// detach stops a sink that keeps too much, alone: the others go on.
func (s *session) detach(ctx context.Context, t *target, reason string) error {
	s.r.o.Log.Error("a sink is detached, it must copy again", "sink", t.sink.Name, "reason", reason)
	_, err := s.r.o.Pool.Exec(ctx, "UPDATE cdc.sinks SET state = 'detached', reason = $2, since = now() WHERE sink = $1", t.sink.Name, reason)
	if err != nil {
		return err
	}
	s.r.metrics.detached.WithLabelValues(t.sink.Name).Inc()
	return t.out.cut(ctx, reason)
}

// tend looks after the sinks: new ones, those that are full, and those that keep too much.
func (s *session) tend(ctx context.Context) error {
	if err := s.newcomers(ctx); err != nil {
		return err
	}
	limit, err := s.r.maxWAL(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	targets, read := slices.Clone(s.targets), s.read
	s.mu.Unlock()
	for _, t := range targets {
		name := t.sink.Name
		s.mu.Lock()
		stored, moved := s.stored[name], s.moved[name]
		s.mu.Unlock()
		state := t.out.state.Load()
		s.r.metrics.attached.WithLabelValues(name).Set(map[bool]float64{true: 1}[state != detached])
		if state == detached {
			continue
		}
		behind := max(0, int64(read)-int64(stored))
		s.r.metrics.behind.WithLabelValues(name).Set(float64(behind))
		_, _ = s.r.o.Pool.Exec(ctx, "UPDATE cdc.sinks SET stored = $2::text::pg_lsn WHERE sink = $1", name, stored.String()) // only shown
		if behind > limit*8/10 {
			err = s.detach(ctx, t, fmt.Sprintf("it hasn't stored the last %d bytes of the WAL", behind))
		} else if state == full {
			t.out.mu.Lock()
			since := t.out.since
			t.out.mu.Unlock()
			if moved.After(since) {
				since = moved
			}
			room, err := t.out.room(ctx)
			if err != nil {
				return err
			}
			if room && behind <= limit/2 && copiesBeside(targets, t) {
				continue
			}
			if room {
				return errAgain
			}
			if time.Since(since) > fullLimit {
				err = s.detach(ctx, t, "its stream is full, and it stores nothing")
			}
			if err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copiesBeside says that another sink takes a copy, which would begin anew with the
// session: a slow sink must not keep it from ending.
func copiesBeside(targets []*target, t *target) bool {
	return slices.ContainsFunc(targets, func(o *target) bool {
		return o != t && o.copying.Load() && o.out.state.Load() == attached
	})
}

// newcomers brings up sinks that weren't there when the session began.
func (s *session) newcomers(ctx context.Context) error {
	var named *slotMap
	look, cancel := context.WithTimeout(ctx, s.r.o.Beat)
	defer cancel()
	if err := s.do(look, func() { named = &slotMap{cells: slices.Clone(s.dec.known.slots.cells)} }); err != nil {
		return ctx.Err() // nil: inside a large transaction, later
	}
	for _, k := range s.r.wanted(named) {
		if slices.ContainsFunc(s.targets, func(t *target) bool { return t.sink.Name == k.Name }) {
			continue
		}
		t, err := s.bring(ctx, k)
		if err != nil {
			return err
		}
		if t.out.takes() { // it counted before, and has missed what was read since the start
			return errAgain
		}
		err = s.do(ctx, func() {
			s.dec.targets = append(s.dec.targets, t)
			s.dec.byCell = nil
		})
		if err != nil {
			return err
		}
		s.group.Go(func() error { return s.copyLoop(ctx, t) })
	}
	return nil
}

// hear takes what sinks say and ask.
func (r *Relay) hear(ctx context.Context) error {
	for prefix, f := range map[string]func(context.Context, string, *nats.Msg){
		askSubject(""): r.askedCopy, storedSubject(""): r.heardStored, resendSubject(""): r.askedAgain,
	} {
		if _, err := r.nc.Subscribe(prefix+"*", func(m *nats.Msg) { f(ctx, strings.TrimPrefix(m.Subject, prefix), m) }); err != nil {
			return fmt.Errorf("subscribe to %s*: %w", prefix, err)
		}
	}
	return nil
}

// find gives the session's sink of a name.
func (r *Relay) find(sink string) (*session, *target) {
	r.mu.Lock()
	s := r.now
	r.mu.Unlock()
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.targets {
		if t.sink.Name == sink {
			return s, t
		}
	}
	return s, nil
}

// soon is find, for a sink that asks: a session tells its streams of a loss before
// it can be found, so one who asks at once is early.
func (r *Relay) soon(ctx context.Context, sink string) *target {
	for end := time.Now().Add(answerLimit / 2); ; {
		if _, t := r.find(sink); t != nil || time.Now().After(end) {
			return t
		}
		if sleep(ctx, 10*time.Millisecond); ctx.Err() != nil {
			return nil
		}
	}
}

// askedCopy stores a sink's wish for a copy.
func (r *Relay) askedCopy(ctx context.Context, sink string, m *nats.Msg) {
	var a ask
	t := r.soon(ctx, sink)
	if t == nil || json.Unmarshal(m.Data, &a) != nil || a.ID == "" {
		return // nobody of ours, or not yet: it asks again
	}
	look, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := r.store.wish(look, sink, a); err != nil {
		r.o.Log.Warn("a sink asks for a copy", "sink", sink, "error", err)
		return
	}
	select {
	case t.asked <- struct{}{}:
	default:
	}
	_ = m.Respond([]byte(`{"ok":true}`)) // lost: it asks again, with the same id
}

// heardStored notes what a sink has stored.
func (r *Relay) heardStored(_ context.Context, sink string, m *nats.Msg) {
	var p report
	s, t := r.find(sink)
	if t == nil || json.Unmarshal(m.Data, &p) != nil || p.Incarnation != "" && p.Incarnation != s.identity.Incarnation || p.Incarnation == "" && p.State != Unknown {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.LSN > s.stored[sink] {
		s.stored[sink], s.moved[sink] = p.LSN, time.Now()
	}
}

// askedAgain begins the session again from what is confirmed, if that is enough.
func (r *Relay) askedAgain(_ context.Context, sink string, m *nats.Msg) {
	var p report
	s, t := r.find(sink)
	if t == nil || json.Unmarshal(m.Data, &p) != nil {
		return
	}
	a := answer{Reason: "the WAL from there on is gone"}
	s.mu.Lock()
	if p.Incarnation == s.identity.Incarnation && p.LSN >= s.told && t.out.state.Load() != detached {
		a = answer{OK: true}
		s.stored[sink] = min(s.stored[sink], p.LSN)
	}
	s.mu.Unlock()
	if a.OK {
		r.resend(sink)
		r.o.Log.Info("a sink is sent again what it misses", "sink", sink, "after", p.LSN.String())
	}
	if body, err := json.Marshal(a); err == nil {
		_ = m.Respond(body)
	}
}
