package verify

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/errs"
)

// Held is an applier that waits before its next commit of a source.
type Held interface {
	// At gives an exported snapshot of the moment when everything up to the
	// position is applied and nothing after it; it's good until Release.
	At(ctx context.Context, incarnation string, lsn cdc.LSN) (snapshot string, err error)
	Release()
}

// Options of a cell's side.
type Options struct {
	Cell string
	DSN  string // the cell's database, as the agent's role
	Log  *slog.Logger

	// Of the applier; nil where this cell keeps no copies.
	Hold   func(ctx context.Context, source string) (Held, error)
	Recopy func(ctx context.Context, source string, slots []int32, reason string) error
}

const (
	mostOpen = 8           // snapshots at a time: each is a connection
	idle     = time.Minute // without a question, then a snapshot is closed
	pageMost = 1000
	slotMost = 4096 // slots in one question
)

// Server answers for one cell.
type Server struct {
	o    Options
	mu   sync.Mutex
	open map[string]*session
}

// session is a hold, a snapshot, or both.
type session struct {
	mu     sync.Mutex // one question at a time
	held   Held
	conn   *pgx.Conn
	closed bool
	end    *time.Timer
}

// NewServer makes one; nothing connects before the first question.
func NewServer(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{o: o, open: map[string]*session{}}
}

// Close ends all snapshots.
func (s *Server) Close() {
	s.mu.Lock()
	var all []string
	for id := range s.open {
		all = append(all, id)
	}
	s.mu.Unlock()
	for _, id := range all {
		s.close(id)
	}
}

// Answer answers a question whose body is JSON.
func (s *Server) Answer(ctx context.Context, op string, body []byte) (any, error) {
	var q question
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, errs.Field("body", "isn't JSON of a question: %v", err)
	}
	if len(q.Slots) > slotMost {
		return nil, errs.Field("slots", "are more than %d", slotMost)
	}
	out, err := s.answer(ctx, op, q)
	var known *errs.Error
	if err != nil && !errors.As(err, &known) {
		err = errs.ErrUnavailable.Msgf("%s: %s: %v", s.o.Cell, op, err) // the operator is to know why
	}
	return out, err
}

func (s *Server) answer(ctx context.Context, op string, q question) (any, error) {
	switch op {
	case opSlots:
		return s.slots(ctx)
	case opStrays:
		return s.strays(ctx)
	case opRecopy:
		if s.o.Recopy == nil {
			return nil, errNoApplier
		}
		return struct{}{}, s.o.Recopy(ctx, q.Source, q.Slots, q.Reason)
	case opClose:
		s.close(q.ID)
		return struct{}{}, nil
	}
	if q.ID == "" || len(q.ID) > 100 {
		return nil, errs.Field("id", "is missing, or too long")
	}
	ss, err := s.session(q.ID, op == opHold || op == opLock)
	if err != nil {
		return nil, err
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.closed {
		return nil, errGone
	}
	switch op {
	case opHold:
		return struct{}{}, s.hold(ctx, ss, q)
	case opLock:
		return s.lock(ctx, ss, q)
	case opAt:
		return s.at(ctx, ss, q)
	}
	if ss.conn == nil {
		return nil, errGone
	}
	switch op {
	case opDigest:
		return digest(ctx, ss.conn, q)
	case opRows:
		return rows(ctx, ss.conn, q)
	case opColumns:
		return columns(ctx, ss.conn, q)
	}
	return nil, errs.ErrNotFound
}

var (
	errGone      = errs.ErrNotFound.Msgf("that snapshot is closed")
	errNoApplier = errors.New("this cell keeps no copies")
)

// session finds one, or makes it.
func (s *Server) session(id string, create bool) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss := s.open[id]
	switch {
	case ss != nil:
		ss.end.Reset(idle)
	case !create:
		return nil, errGone
	case len(s.open) >= mostOpen:
		return nil, errs.ErrUnavailable.Msgf("%s has %d snapshots open already", s.o.Cell, len(s.open))
	default:
		ss = &session{end: time.AfterFunc(idle, func() { s.close(id) })}
		s.open[id] = ss
	}
	return ss, nil
}

func (s *Server) close(id string) {
	s.mu.Lock()
	ss := s.open[id]
	delete(s.open, id)
	s.mu.Unlock()
	if ss == nil {
		return
	}
	ss.end.Stop()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.closed = true
	ss.release()
	if ss.conn != nil {
		closeConn(ss.conn)
	}
}

func (ss *session) release() {
	if ss.held != nil {
		ss.held.Release()
		ss.held = nil
	}
}

// connect opens a connection of its own: a snapshot outlives what the pool's
// connections may.
func (s *Server) connect(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(s.o.DSN)
	if err != nil {
		return nil, err
	}
	cfg.ConnectTimeout = 2 * time.Second
	rt := cfg.RuntimeParams
	rt["application_name"] = "cellmart-verify"
	rt["statement_timeout"] = "20s"
	rt["idle_in_transaction_session_timeout"] = "90s"
	rt["default_transaction_isolation"] = "read committed"
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if _, err := c.Exec(ctx, "SELECT cell.require($1)", s.o.Cell); err != nil {
		closeConn(c)
		return nil, err
	}
	return c, nil
}

func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx) // the server notices either way
}

// hold stops the applier; At must follow soon, or it goes on by itself.
func (s *Server) hold(ctx context.Context, ss *session, q question) error {
	if s.o.Hold == nil {
		return errNoApplier
	}
	if ss.held != nil || ss.conn != nil {
		return errs.Field("id", "is in use")
	}
	// Connected before, since everything waits from here on.
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	held, err := s.o.Hold(ctx, q.Source)
	if err != nil {
		closeConn(c)
		return err
	}
	ss.held, ss.conn = held, c
	return nil
}

// at takes the snapshot that the applier made.
func (s *Server) at(ctx context.Context, ss *session, q question) (snapshot, error) {
	if ss.held == nil {
		return snapshot{}, errGone
	}
	defer ss.release()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	name, err := ss.held.At(ctx, q.Incarnation, q.LSN)
	if err != nil {
		return snapshot{}, err
	}
	var quoted string
	if err := ss.conn.QueryRow(ctx, "SELECT quote_literal($1::text)", name).Scan(&quoted); err != nil {
		return snapshot{}, err
	}
	if _, err := ss.conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
		return snapshot{}, err
	}
	if _, err := ss.conn.Exec(ctx, "SET TRANSACTION SNAPSHOT "+quoted); err != nil {
		return snapshot{}, err
	}
	out := snapshot{Incarnation: q.Incarnation, LSN: q.LSN}
	out.Slots, err = states(ctx, ss.conn, q.Slots)
	return out, err
}
