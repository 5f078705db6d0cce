package standby

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/cdc"
)

// holdLimit is how long a source waits for who holds it to say how far it is to go.
const holdLimit = 3 * time.Second

// Hold stops the applying of one source's changes between two commits, so that a
// snapshot can be taken exactly at a position that is known only later: hold here,
// then lock at the owner and read its position, then At. The other sources go on.
type Hold struct {
	s    *source
	use  sync.Mutex    // of conn
	conn *pgx.Conn     // nil once released
	aim  chan struct{} // closed when bound is set
	done chan struct{} // closed when nobody is to wait any more
	once sync.Once
	from cdc.Position // stored when the source was held

	mu          sync.Mutex
	incarnation string
	lsn         cdc.LSN
	result      chan taken
}

type taken struct {
	snapshot string
	err      error
}

// ErrPassed says that a position was asked for that had been passed before the
// source was held.
var ErrPassed = errors.New("the position was passed before the hold")

// Hold stops a source before its next commit. Unless At follows within a few
// seconds it goes on by itself. Release must be called.
func (a *Applier) Hold(ctx context.Context, zone string) (*Hold, error) {
	s := a.sources[zone]
	if s == nil {
		return nil, fmt.Errorf("%s isn't followed here", zone)
	}
	select {
	case s.holding <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	conn, err := connectPlain(ctx, a.o.DSN)
	if err != nil {
		<-s.holding
		return nil, err
	}
	h := &Hold{s: s, conn: conn, aim: make(chan struct{}), done: make(chan struct{}), result: make(chan taken, 1)}
	s.commit.Lock()
	s.gate = h
	s.commit.Unlock()
	at, _, err := readStored(ctx, a.o.Pool, zone) // nothing is committed now
	if err != nil {
		h.Release()
		return nil, err
	}
	h.from = at.Position
	time.AfterFunc(holdLimit, func() {
		select {
		case <-h.aim:
		default:
			h.let()
		}
	})
	return h, nil
}

// At lets the source go on up to a position, and gives a snapshot, exported, of
// the moment when everything up to there is applied and nothing after it. Applying
// goes on meanwhile. The snapshot is there until Release.
func (h *Hold) At(ctx context.Context, incarnation string, lsn cdc.LSN) (snapshot string, err error) {
	h.mu.Lock()
	if h.lsn != 0 {
		h.mu.Unlock()
		return "", errors.New("a hold gives one snapshot")
	}
	h.incarnation, h.lsn = incarnation, lsn
	close(h.aim)
	h.mu.Unlock()
	if h.from.Incarnation == incarnation && h.from.LSN > lsn {
		return "", ErrPassed
	}
	select {
	case r := <-h.result:
		return r.snapshot, r.err
	case <-h.done:
		return "", errors.New("the hold is over: the position wasn't named in time")
	case <-ctx.Done():
		return "", fmt.Errorf("the position wasn't reached: %w", ctx.Err())
	}
}

// Release lets the source go on, and the snapshot go. It may be called twice.
func (h *Hold) Release() {
	h.once.Do(func() {
		h.let()
		h.use.Lock() // the source may be about to take the snapshot that nobody waits for
		defer h.use.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = h.conn.Close(ctx) // the server notices either way
		h.conn = nil
		<-h.s.holding
	})
}

// let opens the gate.
func (h *Hold) let() {
	h.mu.Lock()
	select {
	case <-h.done:
	default:
		close(h.done)
	}
	h.mu.Unlock()
	h.s.commit.Lock()
	if h.s.gate == h {
		h.s.gate = nil
	}
	h.s.commit.Unlock()
}

// held is the hold that is to be minded, or nil.
func (s *source) held() *Hold {
	s.commit.Lock()
	defer s.commit.Unlock()
	return s.gate
}

// bound waits until it's known how far to go; 0 = all the way.
func (h *Hold) bound(ctx context.Context) cdc.LSN {
	if h == nil {
		return 0
	}
	select {
	case <-h.aim:
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.lsn
	case <-h.done:
	case <-ctx.Done():
	}
	return 0
}

// take makes the snapshot, between two commits.
func (s *source) take(ctx context.Context, h *Hold) {
	var r taken
	at := s.session.stored
	h.mu.Lock()
	want := h.incarnation
	h.mu.Unlock()
	switch {
	case at.Incarnation != want:
		r.err = fmt.Errorf("what is applied here is of incarnation %s, not of %s", at.Incarnation, want)
	case at.State != cdc.Live:
		r.err = errors.New("the whole source is being copied")
	default:
		r.snapshot, r.err = h.export(ctx)
	}
	h.result <- r
	s.commit.Lock()
	if s.gate == h {
		s.gate = nil
	}
	s.commit.Unlock()
}

// export begins a transaction and exports its snapshot.
func (h *Hold) export(ctx context.Context) (snapshot string, err error) {
	h.use.Lock()
	defer h.use.Unlock()
	if h.conn == nil {
		return "", errors.New("the hold is over")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := h.conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
		return "", err
	}
	err = h.conn.QueryRow(ctx, "SELECT pg_export_snapshot()").Scan(&snapshot)
	return snapshot, err
}

// connectPlain opens a connection of the applier's role that reads.
func connectPlain(ctx context.Context, dsn string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.ConnectTimeout = 2 * time.Second
	cfg.RuntimeParams["application_name"] = "cellmart-standby"
	cfg.RuntimeParams["timezone"] = "UTC"
	cfg.RuntimeParams["idle_in_transaction_session_timeout"] = "5min"
	return pgx.ConnectConfig(ctx, cfg)
}
