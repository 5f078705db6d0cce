package standby

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/cdc"
)

// source is one other cell whose changes are applied, by one goroutine.
type source struct {
	a        *Applier
	zone     string
	log      *slog.Logger
	follower *cdc.Follower

	session *session
	reached cdc.Position // of the last commit; zero = none since the start
	ending  bool         // copies have ended whose place the stream hasn't passed; unknown after a start: true

	holding chan struct{} // one hold at a time

	commit sync.Mutex // held while a batch is applied
	gate   *Hold      // under commit

	mu       sync.Mutex
	counts   counts
	trouble  string // why the last batch couldn't be applied
	copyAt   time.Time
	copyOpen bool // a copy of some slots has begun and not ended
	asked    bool
	askedAt  time.Time
	applied  chan struct{} // see news
}

const stalled = 30 * time.Second // of a copy without a message, before it's asked for again

// apply is called by the follower: changes in order, and again the same when it
// fails. What the database has from an earlier try isn't applied twice.
func (s *source) apply(ctx context.Context, changes []cdc.Change, p cdc.Position) error {
	err := s.pieces(ctx, changes, p)
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.trouble
	s.trouble = ""
	if err != nil {
		s.trouble = err.Error()
		s.close()
	}
	if s.trouble != was {
		s.a.change()
	}
	return err
}

func (s *source) pieces(ctx context.Context, changes []cdc.Change, p cdc.Position) error {
	if s.session == nil || s.session.conn.IsClosed() {
		s.close()
		if err := s.open(ctx); err != nil {
			return err
		}
		if err := s.wentBack(ctx); err != nil {
			return err
		}
		s.ending = true
		changes = s.session.stored.rest(changes, p)
	}
	for first := true; first || len(changes) > 0; {
		h := s.held()
		bound := h.bound(ctx) // waits while it isn't known how far to go
		if n := cut(changes, bound); n > 0 || len(changes) == 0 {
			after := p
			if n < len(changes) {
				after = changes[n-1].After
			}
			done, err := s.piece(ctx, changes[:n], after, h)
			if err != nil {
				return err
			}
			if !done {
				continue // a hold came in between, or ended
			}
			first, changes = false, changes[n:]
		}
		if bound > 0 && (len(changes) > 0 && beyond(changes[0], bound) || s.session.stored.LSN >= bound) {
			s.take(ctx, h)
		}
	}
	return nil
}

// wentBack looks, after a new connection, whether the database has what was
// committed. One that was restored meanwhile lacks what lies between, and the
// follower won't bring it again: all slots of this source are copied.
func (s *source) wentBack(ctx context.Context) error {
	if have := s.session.stored; s.reached.LSN == 0 || have.Incarnation == s.reached.Incarnation && have.LSN >= s.reached.LSN {
		return nil
	}
	s.log.Error("this cell's database went back, its copies are made anew", "was", s.reached.LSN.String(), "is", s.session.stored.LSN.String())
	defer s.a.change()
	_, err := s.session.conn.Exec(ctx, `UPDATE cell.standby_slots SET state = 'stopped', reason = 'this database went back', tries = 0, since = clock_timestamp()
		WHERE source = $1`, s.zone)
	return err
}

// piece applies what is one commit. It does nothing when a hold was set that the
// caller didn't know of.
func (s *source) piece(ctx context.Context, changes []cdc.Change, after cdc.Position, h *Hold) (bool, error) {
	s.commit.Lock()
	defer s.commit.Unlock()
	if s.gate != h {
		return false, nil
	}
	b := &batch{session: s.session, s: s, changes: changes, after: after}
	err := b.run(ctx)
	if slotTrouble(err) && !s.session.conn.IsClosed() {
		s.log.Info("a batch is applied row by row", "error", err)
		if _, err := s.session.conn.Exec(ctx, "ROLLBACK"); err != nil {
			return false, err
		}
		b = &batch{session: s.session, s: s, changes: changes, after: after, careful: true}
		err = b.run(ctx)
	}
	if err != nil {
		return false, err
	}
	s.reached = b.next.Position
	s.ending = b.ended || s.ending && after.State != cdc.Live
	s.note(b)
	return true, nil
}

// note counts what was committed.
func (s *source) note(b *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tellApplied()
	s.counts.rows += b.counts.rows
	s.counts.older += b.counts.older
	s.counts.foreign += b.counts.foreign
	s.counts.copies += b.counts.copies
	for _, c := range b.changes {
		if c.Kind != cdc.KindTx {
			s.copyAt = time.Now()
		}
		if c.Kind == cdc.KindBegin {
			s.asked = false
		}
	}
	s.copyOpen = b.next.SlotCopy != "" && !b.next.Ended
	if b.touched {
		s.a.change()
	}
	m := s.a.metrics
	m.rows.WithLabelValues(s.zone).Add(float64(b.counts.rows))
	m.dropped.WithLabelValues(s.zone, "epoch").Add(float64(b.counts.older))
	m.dropped.WithLabelValues(s.zone, "slot").Add(float64(b.counts.foreign))
	m.copies.WithLabelValues(s.zone).Add(float64(b.counts.copies))
	for reason, n := range b.stopped {
		m.stops.WithLabelValues(s.zone).Add(float64(n))
		s.log.Warn("slots are not followed any more, a copy is needed", "slots", n, "reason", reason)
	}
}

func (s *source) gapReason() string {
	if s.follower == nil {
		return "changes are missing"
	}
	if r := s.follower.Status().Reason; r != "" {
		return r
	}
	return "changes are missing"
}

// rest leaves out what the database has: a commit whose answer was lost is given
// again.
func (st stored) rest(changes []cdc.Change, p cdc.Position) []cdc.Change {
	if st.State == cdc.Unknown || st.Incarnation != p.Incarnation || st.Copy != p.Copy {
		return changes
	}
	return slices.DeleteFunc(slices.Clone(changes), func(c cdc.Change) bool {
		if c.Kind != cdc.KindTx {
			return false
		}
		if c.Chunks > 0 {
			return c.LSN <= st.LSN
		}
		return c.Message.Commit < st.LSN || c.Message.Commit == st.Commit && c.Chunk <= st.Chunk
	})
}

// cut says how many changes are the next commit: none beyond bound, and a
// transaction that has begun in an earlier batch by itself.
func cut(changes []cdc.Change, bound cdc.LSN) int {
	for i, c := range changes {
		if beyond(c, bound) {
			return i
		}
		if c.Kind == cdc.KindTx && c.Chunks > 1 && !slices.ContainsFunc(changes[:i], func(o cdc.Change) bool {
			return o.Kind == cdc.KindTx && o.Message.Commit == c.Message.Commit && o.Chunk == 1
		}) {
			return max(i, 1)
		}
	}
	return len(changes)
}

func beyond(c cdc.Change, bound cdc.LSN) bool {
	return bound > 0 && c.Kind == cdc.KindTx && c.LSN > bound
}

// wish asks for a copy of the slots that want one, if none is being made.
func (s *source) wish(ctx context.Context) error {
	s.mu.Lock()
	f, busy := s.follower, s.copyOpen && time.Since(s.copyAt) < stalled || s.asked && time.Since(s.askedAt) < 5*time.Second
	s.mu.Unlock()
	if busy || f == nil || f.Status().State != cdc.Live { // if it isn't live, the whole stream is copied first
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	rows, err := s.a.o.Pool.Query(ctx, `
		SELECT s.slot, coalesce(nullif(p.reason, ''), 'not copied yet')
		FROM cell.slots s LEFT JOIN cell.standby_slots p ON p.slot = s.slot
		WHERE s.role IN ('standby', 'incoming') AND s.owner = $1
		  AND (p.slot IS NULL OR p.epoch < s.epoch OR p.epoch = s.epoch AND p.source <> s.owner
		    OR p.state = 'stopped' AND p.epoch = s.epoch AND (p.tries = 0 OR p.since < clock_timestamp() - least(power(2, least(p.tries, 8)), 120) * interval '0.5 s')
		    OR p.state = 'copying' AND p.copy_end IS NULL AND p.since < clock_timestamp() - $2::interval)
		ORDER BY s.slot`, s.zone, stalled)
	if err != nil {
		return err
	}
	var slots []int32
	var slot int32
	var reason string
	if _, err := pgx.ForEachRow(rows, []any{&slot, &reason}, func() error {
		slots = append(slots, slot)
		return nil
	}); err != nil {
		return err
	}
	s.mu.Lock()
	s.asked, s.askedAt = len(slots) > 0, time.Now()
	s.mu.Unlock()
	if len(slots) == 0 {
		return nil
	}
	s.log.Info("slots want a copy", "slots", len(slots), "reason", reason)
	f.AskCopy(slots, reason)
	return nil
}
