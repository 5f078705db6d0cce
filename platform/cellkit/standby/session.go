package standby

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/cellmart/platform/cellkit/cdc"
)

// session is the connection that one source's changes are written by. The server
// lets an origin have one at a time.
type session struct {
	conn    *pgx.Conn
	layouts *layouts
	stored  stored
	begun   bool // a position is stored
}

// stored is the watermark's position: the follower's, and the copy of some slots
// that runs beside it.
type stored struct {
	cdc.Position
	SlotCopy  string `json:"slot_copy,omitempty"`
	SlotCopyN int    `json:"slot_copy_n,omitempty"`
	Ended     bool   `json:"slot_copy_ended,omitempty"`
}

// Connect opens a connection as the applier's role: no triggers, synchronous
// commit, and an origin, so that what is written isn't told on as this cell's own
// change. The name is the origin's; a server's databases have theirs apart.
func Connect(ctx context.Context, dsn, cell, name string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.ConnectTimeout = 2 * time.Second
	for k, v := range map[string]string{
		"application_name": "cellmart-applier", "timezone": "UTC", "datestyle": "ISO, MDY", "intervalstyle": "postgres",
		"synchronous_commit": "on", "default_transaction_isolation": "read committed", "statement_timeout": "0",
		"idle_in_transaction_session_timeout": "30s",
		// A batch is hundreds of rows by their keys: no table is ever worth a scan, whatever its statistics say.
		"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off",
	} {
		cfg.RuntimeParams[k] = v
	}
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := prepareSession(ctx, c, cell, name); err != nil {
		return nil, errors.Join(err, c.Close(context.WithoutCancel(ctx)))
	}
	return c, nil
}

func prepareSession(ctx context.Context, c *pgx.Conn, cell, name string) error {
	if _, err := c.Exec(ctx, "SELECT cell.require($1)", cell); err != nil {
		return err
	}
	if _, err := c.Exec(ctx, "SET session_replication_role = replica"); err != nil {
		return fmt.Errorf("the applier's role may not switch triggers off (cellmart migrate grants it): %w", err)
	}
	var origin string
	if err := c.QueryRow(ctx, "SELECT 'cellmart_' || $1::text || '@' || current_database()", name).Scan(&origin); err != nil {
		return err
	}
	var have *uint32
	if err := c.QueryRow(ctx, "SELECT pg_replication_origin_oid($1)", origin).Scan(&have); err != nil {
		return err
	}
	if have == nil {
		if _, err := c.Exec(ctx, "SELECT pg_replication_origin_create($1)", origin); err != nil {
			return err
		}
	}
	if _, err := c.Exec(ctx, "SELECT pg_replication_origin_session_setup($1)", origin); err != nil {
		return fmt.Errorf("origin %s: %w", origin, err)
	}
	return nil
}

func (s *source) open(ctx context.Context) error {
	if s.session != nil && !s.session.conn.IsClosed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := Connect(ctx, s.a.o.DSN, s.a.o.Cell, s.zone)
	if err != nil {
		return err
	}
	next := &session{conn: conn}
	tables, err := readTables(ctx, conn)
	if err == nil {
		next.layouts = &layouts{tables: tables, known: map[layoutKey]*layout{}}
		next.stored, next.begun, err = readStored(ctx, conn, s.zone)
	}
	if err != nil {
		return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
	}
	s.session = next
	return nil
}

// close ends the connection: the next batch begins with what is stored.
func (s *source) close() {
	if s.session == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.session.conn.Close(ctx) // the server notices either way
	s.session = nil
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func readStored(ctx context.Context, c querier, source string) (st stored, have bool, err error) {
	var body []byte
	err = c.QueryRow(ctx, "SELECT position FROM cell.watermarks WHERE source = $1", source).Scan(&body)
	if errors.Is(err, pgx.ErrNoRows) {
		return st, false, nil
	}
	if err != nil {
		return st, false, err
	}
	return st, true, json.Unmarshal(body, &st)
}

// store writes the watermark; with the rows, or alone.
func (s *session) store(ctx context.Context, source string, st stored, at time.Time) error {
	body, err := json.Marshal(st)
	if err != nil {
		return err
	}
	var commit *time.Time
	if !at.IsZero() {
		commit = &at
	}
	_, err = s.conn.Exec(ctx, `INSERT INTO cell.watermarks AS w (source, position, incarnation, lsn, at)
		VALUES ($1, $2, $3, $4::text::pg_lsn, $5)
		ON CONFLICT (source) DO UPDATE SET position = excluded.position, incarnation = excluded.incarnation, lsn = excluded.lsn,
			at = coalesce(excluded.at, w.at), updated_at = clock_timestamp()`,
		source, body, st.Incarnation, st.LSN.String(), commit)
	return err
}

// bulk runs a statement whose parameters are all binary text arrays.
func (s *session) bulk(ctx context.Context, sql string, args [][]byte) error {
	sd, err := s.conn.Prepare(ctx, sql, sql)
	if err != nil {
		return err
	}
	return s.conn.PgConn().ExecPrepared(ctx, sd.Name, args, []int16{1}, nil).Read().Err
}

// slotTrouble says whether a row's content is what went wrong, so that one slot
// is to blame, and not the connection or the server.
func slotTrouble(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && (pe.Code[:2] == "22" || pe.Code[:2] == "23")
}
