package verify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// How long the locks may be waited for, and with them all writers of the slots
// that are held already. It's below the time after which the server looks for
// deadlocks (200 ms): nobody is ever aborted because of this.
const (
	lockWait  = 40 * time.Millisecond
	lockTries = 5
)

// lock takes the owner's snapshot, with its position.
func (s *Server) lock(ctx context.Context, ss *session, q question) (snapshot, error) {
	if ss.conn == nil {
		c, err := s.connect(ctx)
		if err != nil {
			return snapshot{}, err
		}
		ss.conn = c
	}
	// Once without a slot: what a new connection must load first isn't loaded under the locks.
	if _, err := lockOnce(ctx, ss.conn, nil); err != nil {
		return snapshot{}, err
	}
	for try := 1; ; try++ {
		if _, err := ss.conn.Exec(ctx, "ROLLBACK"); err != nil {
			return snapshot{}, err
		}
		out, err := lockOnce(ctx, ss.conn, q.Slots)
		var pe *pgconn.PgError
		busy := errors.As(err, &pe) && pe.Code == "55P03"
		if err != nil && !busy {
			return snapshot{}, err
		}
		out.Tries = try
		if busy {
			out.Busy = true
			if try < lockTries {
				pause(ctx, 20*time.Millisecond+rand.N(80*time.Millisecond))
				continue
			}
			return out, nil
		}
		if err := s.beat(ctx); err != nil {
			s.o.Log.Info("heartbeat", "error", err) // the next one comes in seconds
		}
		out.Slots, err = states(ctx, ss.conn, q.Slots)
		return out, err
	}
}

// lockOnce sends the locks and the snapshot that ends them in one go: they are held
// as long as the server takes for it, whatever happens to this process.
func lockOnce(ctx context.Context, c *pgx.Conn, slots []int32) (snapshot, error) {
	p := c.PgConn().StartPipeline(ctx)
	text := func(s string) []byte { return []byte(s) }
	p.SendQueryParams("SELECT extract(epoch FROM cell.lock_slots($1::int[], $2::int))::text", [][]byte{
		text(array(slots)), text(strconv.FormatInt(lockWait.Milliseconds(), 10)),
	}, nil, nil, nil)
	p.SendPipelineSync()
	p.SendQueryParams("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", nil, nil, nil, nil)
	// The snapshot is this statement's; locks aren't let go of before it has one.
	// The incarnation is named as the change stream names it: with the timeline.
	p.SendQueryParams(`SELECT i.incarnation || '.' || ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int, pg_current_wal_insert_lsn()::text, extract(epoch FROM clock_timestamp())::text, pg_advisory_unlock_all()::text
		FROM cell.identity i`, nil, nil, nil, nil)
	// Without a row above they'd be held still.
	p.SendQueryParams("SELECT pg_advisory_unlock_all()::text", nil, nil, nil, nil)
	if err := p.Sync(); err != nil {
		return snapshot{}, errors.Join(err, p.Close())
	}
	var got [][]string
	var first error
	for {
		r, err := p.GetResults()
		if err != nil {
			if first == nil {
				first = err
			}
			var pe *pgconn.PgError
			if !errors.As(err, &pe) {
				break // the connection
			}
			continue
		}
		if r == nil {
			break
		}
		rr, ok := r.(*pgconn.ResultReader)
		if !ok {
			continue
		}
		res := rr.Read()
		if res.Err != nil && first == nil {
			first = res.Err
		}
		for _, line := range res.Rows {
			var row []string
			for _, v := range line {
				row = append(row, string(v))
			}
			got = append(got, row)
		}
	}
	if err := p.Close(); err != nil && first == nil {
		first = err
	}
	if first != nil {
		return snapshot{}, first
	}
	if len(got) != 3 || len(got[1]) != 4 {
		return snapshot{}, fmt.Errorf("the database has no identity: %d answers", len(got))
	}
	out := snapshot{Incarnation: got[1][0]}
	if err := out.LSN.UnmarshalText([]byte(got[1][1])); err != nil {
		return snapshot{}, err
	}
	began, err1 := strconv.ParseFloat(got[0][0], 64)
	ended, err2 := strconv.ParseFloat(got[1][2], 64)
	out.LockMS = float64(int64((ended-began)*1e5)) / 100
	return out, errors.Join(err1, err2)
}

func array(slots []int32) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, s := range slots {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(s)))
	}
	b.WriteByte('}')
	return b.String()
}

// beat writes what the change stream takes for a heartbeat: a standby of an idle
// owner gets past the position at once.
func (s *Server) beat(ctx context.Context) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(c)
	_, err = c.Exec(ctx, "SELECT pg_logical_emit_message(true, 'cellmart.beat', '')")
	return err
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
