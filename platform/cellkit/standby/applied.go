package standby

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/cdc"
)

// Applied is how far this cell is with a source, and which of some slots are in sync,
// out of one snapshot of its own database.
type Applied struct {
	Incarnation string // of the source's database; "" = nothing was ever applied
	LSN         cdc.LSN
	InSync      map[int]int64 // epochs by slot
}

// lookEach is how often the database is asked although nothing was applied here:
// another process may apply.
const lookEach = 100 * time.Millisecond

// Applied answers when this cell has applied a source up to a place, or when ctx
// ends: with what there is then. It answers at once when one of the slots isn't in
// sync.
func (a *Applier) Applied(ctx context.Context, source string, lsn cdc.LSN, slots []int) (Applied, error) {
	s := a.sources[source]
	if s == nil {
		return Applied{}, fmt.Errorf("%s isn't followed here", source)
	}
	news := s.news()
	out, err := a.applied(ctx, source, slots)
	for err == nil && out.LSN < lsn && len(out.InSync) == len(slots) {
		t := time.NewTimer(lookEach)
		select {
		case <-ctx.Done():
		case <-news:
		case <-t.C:
		}
		t.Stop()
		if ctx.Err() != nil {
			return out, nil // as it was a moment ago
		}
		news = s.news()
		next, err := a.applied(ctx, source, slots)
		if err != nil && ctx.Err() != nil {
			return out, nil
		}
		if err != nil {
			return next, err
		}
		out = next
	}
	return out, err
}

// applied is one look, in one statement.
func (a *Applier) applied(ctx context.Context, source string, slots []int) (Applied, error) {
	out := Applied{InSync: map[int]int64{}}
	var lsn *string
	var in []int32
	var epochs []int64
	err := a.o.Pool.QueryRow(ctx, `SELECT w.incarnation, w.lsn::text, s.slots, s.epochs
		FROM (SELECT coalesce(array_agg(v.slot), '{}') AS slots, coalesce(array_agg(v.epoch), '{}') AS epochs
			FROM cell.standing_by v WHERE v.slot = ANY ($2) AND v.source = $1 AND v.state = 'in_sync') s
		JOIN cell.watermarks w ON w.source = $1 AND w.position ->> 'state' = 'live'`, source, slots).Scan(&out.Incarnation, &lsn, &in, &epochs)
	if errors.Is(err, pgx.ErrNoRows) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	for i, slot := range in {
		out.InSync[int(slot)] = epochs[i]
	}
	return out, out.LSN.UnmarshalText([]byte(*lsn))
}

// news is closed when something of the source was applied.
func (s *source) news() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.applied == nil {
		s.applied = make(chan struct{})
	}
	return s.applied
}

// tellApplied tells who waits. With mu held.
func (s *source) tellApplied() {
	if s.applied != nil {
		close(s.applied)
		s.applied = nil
	}
}
