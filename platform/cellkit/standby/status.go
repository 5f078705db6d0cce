package standby

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/cdc"
)

// Status is how this cell is with one source. Positions and copies are from one
// snapshot of its own database, after the commit: others rely on them (P3.5).
type Status struct {
	Source      string         `json:"source"`
	State       string         `json:"state"`  // live, copying (the whole stream), unknown (a copy must come), stopped (nothing can be applied)
	Reason      string         `json:"reason"` // why it isn't live; "" when it is
	Incarnation string         `json:"incarnation"`
	LSN         cdc.LSN        `json:"lsn"`
	At          string         `json:"at"`            // commit time of the newest change applied, by the source's clock; "" = none
	LagMS       *int64         `json:"lag_ms"`        // how long after its commit the newest was applied, or since when nothing was heard; null = unknown
	LagBytes    *int64         `json:"lag_bytes"`     // of WAL, received and not applied; null = unknown
	AgeMS       int64          `json:"age_ms"`        // since the source was last heard of; -1 = not since the start
	InSyncSlots [][3]int64     `json:"in_sync_slots"` // runs of slots [from, to, epoch], ascending
	InSync      int            `json:"in_sync"`
	Copying     int            `json:"copying"`
	Stopped     int            `json:"stopped"`
	Reasons     map[string]int `json:"reasons"` // slots not in sync, by why

	Rows         int64 `json:"rows"`          // applied since the start
	DroppedOld   int64 `json:"dropped_old"`   // rows of an older epoch, since the start
	DroppedOther int64 `json:"dropped_other"` // rows of slots that this cell doesn't stand by for, since the start
	Copies       int64 `json:"copies"`        // begun since the start
	Gaps         int64 `json:"gaps"`          // changes missing in the stream, since the start
}

// Status tells how this cell is with each source, in the order of their names.
func (a *Applier) Status(ctx context.Context) ([]Status, error) {
	out := map[string]*Status{}
	for zone, s := range a.sources {
		out[zone] = s.status(time.Now())
	}
	err := pgx.BeginTxFunc(ctx, a.o.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := a.positions(ctx, tx, out); err != nil {
			return err
		}
		return a.slots(ctx, tx, out)
	})
	if err != nil {
		return nil, err
	}
	return a.complete(out), nil
}

// complete adds what follows from what the process and its database know, and sorts.
func (a *Applier) complete(out map[string]*Status) []Status {
	for zone, st := range out {
		if s := a.sources[zone]; s != nil {
			s.finish(st)
		}
	}
	list := []Status{}
	for _, zone := range slices.Sorted(maps.Keys(out)) {
		list = append(list, *out[zone])
	}
	return list
}

type reader interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// positions reads the watermarks.
func (a *Applier) positions(ctx context.Context, tx reader, out map[string]*Status) error {
	rows, err := tx.Query(ctx, "SELECT source, incarnation, lsn::text, at, position ->> 'state' FROM cell.watermarks")
	if err != nil {
		return err
	}
	var source, incarnation, lsn, state string
	var at *time.Time
	_, err = pgx.ForEachRow(rows, []any{&source, &incarnation, &lsn, &at, &state}, func() error {
		st := out[source]
		if st == nil {
			return nil // followed before, not now
		}
		if st.Incarnation = incarnation; at != nil {
			st.At = at.UTC().Format(time.RFC3339Nano)
		}
		st.State = cmp.Or(state, "unknown")
		return st.LSN.UnmarshalText([]byte(lsn))
	})
	return err
}

func (a *Applier) slots(ctx context.Context, tx reader, out map[string]*Status) error {
	rows, err := tx.Query(ctx, "SELECT slot, source, epoch, state, CASE WHEN state = 'in_sync' THEN '' ELSE reason END FROM cell.standing_by ORDER BY slot")
	if err != nil {
		return err
	}
	var slot, epoch int64
	var source, state, reason string
	_, err = pgx.ForEachRow(rows, []any{&slot, &source, &epoch, &state, &reason}, func() error {
		st := out[source]
		if st == nil {
			st = &Status{Source: source, State: "unknown", Reason: "this cell isn't followed here", AgeMS: -1, Reasons: map[string]int{}, InSyncSlots: [][3]int64{}}
			out[source] = st
		}
		st.count(slot, epoch, state, reason)
		return nil
	})
	return err
}

func (s *Status) count(slot, epoch int64, state, reason string) {
	switch state {
	case inSync:
		s.InSync++
		if n := len(s.InSyncSlots); n > 0 && s.InSyncSlots[n-1][1] == slot-1 && s.InSyncSlots[n-1][2] == epoch {
			s.InSyncSlots[n-1][1] = slot
		} else {
			s.InSyncSlots = append(s.InSyncSlots, [3]int64{slot, slot, epoch})
		}
		return
	case stopped:
		s.Stopped++
	default:
		s.Copying++
	}
	s.Reasons[cmp.Or(reason, "being copied")]++
}

// status is what the process knows without its database.
func (s *source) status(now time.Time) *Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &Status{
		Source: s.zone, State: "unknown", AgeMS: -1, Reasons: map[string]int{}, InSyncSlots: [][3]int64{},
		Rows: s.counts.rows, DroppedOld: s.counts.older, DroppedOther: s.counts.foreign, Copies: s.counts.copies,
	}
	if s.follower == nil {
		st.Reason = "the applier hasn't started"
		return st
	}
	f := s.follower.Status()
	st.Reason, st.Gaps = f.Reason, f.Gaps
	if f.Seen.IsZero() {
		return st
	}
	age := now.Sub(f.Seen)
	st.AgeMS = age.Milliseconds()
	lag := f.Delay
	if age > silent || f.At.IsZero() {
		lag = max(lag, age)
	}
	ms := lag.Milliseconds()
	st.LagMS = &ms
	return st
}

// silent is how long nothing may be heard of a source before that counts as lag:
// its heartbeats are more frequent.
const silent = 15 * time.Second

// finish adds what follows from both.
func (s *source) finish(st *Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trouble != "" {
		st.State, st.Reason = stopped, s.trouble
	}
	if st.State != string(cdc.Live) {
		st.LagMS = nil
		st.Reason = cmp.Or(st.Reason, "nothing is known of this cell")
	}
	if s.follower == nil {
		return
	}
	if got := s.follower.Status().Received; got > 0 && st.State == string(cdc.Live) {
		behind := max(0, int64(got)-int64(st.LSN))
		st.LagBytes = &behind
	}
}

// Lately is Status with the slots as the applier found them at its last look, some
// seconds ago at most: every owner asks each second, and they are thousands of rows.
// Positions are as they are now, and a database that doesn't answer is an error.
func (a *Applier) Lately(ctx context.Context) ([]Status, error) {
	l := a.lately.Load()
	if l == nil || time.Since(l.at) > 6*a.o.look {
		return a.Status(ctx)
	}
	out := map[string]*Status{}
	for zone, s := range a.sources {
		out[zone] = s.status(time.Now())
	}
	for _, was := range l.all {
		st := out[was.Source]
		if st == nil {
			out[was.Source] = &was
			continue
		}
		st.InSyncSlots, st.InSync, st.Copying, st.Stopped, st.Reasons = was.InSyncSlots, was.InSync, was.Copying, was.Stopped, was.Reasons
	}
	if err := a.positions(ctx, a.o.Pool, out); err != nil {
		return nil, err
	}
	return a.complete(out), nil
}

// show brings the gauges to what is, and gives it.
func (a *Applier) show(ctx context.Context) ([]Status, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	at := time.Now()
	all, err := a.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	a.lately.Store(&looked{all, at})
	for _, st := range all {
		lag := math.Inf(1)
		if st.LagMS != nil {
			lag = float64(*st.LagMS) / 1000
		}
		a.metrics.lag.WithLabelValues(st.Source).Set(lag)
		for state, n := range map[string]int{inSync: st.InSync, copying: st.Copying, stopped: st.Stopped} {
			a.metrics.slots.WithLabelValues(st.Source, state).Set(float64(n))
		}
	}
	return all, nil
}
