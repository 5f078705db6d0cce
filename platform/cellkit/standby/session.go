package standby

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
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
	if err := takeOrigin(ctx, c, origin); err != nil {
		return fmt.Errorf("origin %s: %w", origin, err)
	}
	return nil
}

// originWait is how long who had an origin before may take to let go of it.
const originWait = 10 * time.Second

// takeOrigin makes the session the origin's. The one before has it until the server
// has noticed that its connection is closed.
func takeOrigin(ctx context.Context, c *pgx.Conn, origin string) error {
	ctx, cancel := context.WithTimeout(ctx, originWait)
	defer cancel()
	for {
		_, err := c.Exec(ctx, "SELECT pg_replication_origin_session_setup($1)", origin)
		var pe *pgconn.PgError
		if !errors.As(err, &pe) || pe.Code != "55006" {
			return err
		}
		if pause(ctx, 20*time.Millisecond); ctx.Err() != nil {
			return err // who has it
		}
	}
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

// table is a unit table as it is in this database.
type table struct {
	name    string // schema.table
	quoted  string
	types   map[string]string // by column; "" = generated, never written
	key     []string
	slot    int // place of slot in key
	sql     map[string]string
	deletes string // of slots' rows below an epoch
}

// slotsTable is the one table that isn't unit data and is followed.
const slotsTable = "cell.slots"

// readTables asks the database for its unit tables. Sinks are migrated before
// sources (S-C10), so a column that isn't here stops the source's changes.
func readTables(ctx context.Context, c *pgx.Conn) (map[string]*table, error) {
	rows, err := c.Query(ctx, `
		SELECT u.name, a.attname, CASE WHEN a.attgenerated = '' THEN format_type(a.atttypid, a.atttypmod) ELSE '' END, coalesce(array_position(i.indkey::int2[], a.attnum), -1)
		FROM cell.unit_tables u
		JOIN pg_attribute a ON a.attrelid = u.name::regclass AND a.attnum > 0 AND NOT a.attisdropped
		JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
		ORDER BY u.name, 4`)
	if err != nil {
		return nil, err
	}
	out := map[string]*table{}
	var name, column, typ string
	var at int
	_, err = pgx.ForEachRow(rows, []any{&name, &column, &typ, &at}, func() error {
		t := out[name]
		if t == nil {
			t = &table{name: name, quoted: pgx.Identifier(strings.SplitN(name, ".", 2)).Sanitize(), types: map[string]string{}, sql: map[string]string{}}
			out[name] = t
		}
		t.types[column] = typ
		if at >= 0 { // ordered by it
			if column == "slot" {
				t.slot = len(t.key)
			}
			t.key = append(t.key, column)
		}
		return nil
	})
	for _, t := range out {
		t.deletes = "DELETE FROM " + t.quoted + " WHERE slot = ANY ($1) AND epoch < $2"
	}
	return out, err
}

// unknown names the columns that this table hasn't.
func (t *table) unknown(columns []string) []string {
	var out []string
	for _, c := range columns {
		if _, ok := t.types[c]; !ok {
			out = append(out, c)
		}
	}
	return out
}

// upsert writes whole rows, each column an array of texts: the larger (epoch, rev)
// wins, and the same once more changes nothing.
func (t *table) upsert(columns []string) string {
	id := "+" + strings.Join(columns, ",")
	if q, ok := t.sql[id]; ok {
		return q
	}
	var names, casts, args, sets []string
	for i, c := range columns {
		n := quote(c)
		names = append(names, n)
		casts = append(casts, "u.c"+strconv.Itoa(i+1)+"::"+t.types[c])
		args = append(args, "$"+strconv.Itoa(i+1)+"::text[]")
		if !slices.Contains(t.key, c) {
			sets = append(sets, n+" = excluded."+n)
		}
	}
	q := fmt.Sprintf("INSERT INTO %s AS t (%s) SELECT %s FROM unnest(%s) AS u(%s) ON CONFLICT (%s) DO UPDATE SET %s WHERE (excluded.epoch, excluded.rev) > (t.epoch, t.rev)",
		t.quoted, strings.Join(names, ", "), strings.Join(casts, ", "), strings.Join(args, ", "), numbered(len(columns)), quoteAll(t.key), strings.Join(sets, ", "))
	t.sql[id] = q
	return q
}

// patch writes a row of which some large values weren't sent: over a version that
// isn't older than the one it was made from, so what is missing is as it was. The
// key's values come first, then that version's rev, epoch and rev, then the columns.
func (t *table) patch(columns []string) string {
	id := "~" + strings.Join(columns, ",")
	if q, ok := t.sql[id]; ok {
		return q
	}
	k := len(t.key)
	var sets []string
	for i, c := range columns {
		sets = append(sets, fmt.Sprintf("%s = ($%d::text)::%s", quote(c), k+4+i, t.types[c]))
	}
	q := fmt.Sprintf("UPDATE %s t SET %s WHERE %s AND t.rev >= $%d AND (t.epoch, t.rev) < ($%d::bigint, $%d::bigint)",
		t.quoted, strings.Join(sets, ", "), t.byKey(), k+1, k+2, k+3)
	t.sql[id] = q
	return q
}

// find reads a row's version by its key; remove deletes it.
func (t *table) find() string   { return "SELECT epoch, rev FROM " + t.quoted + " t WHERE " + t.byKey() }
func (t *table) remove() string { return "DELETE FROM " + t.quoted + " t WHERE " + t.byKey() }

func (t *table) byKey() string {
	var where []string
	for i, c := range t.key {
		where = append(where, fmt.Sprintf("t.%s = ($%d::text)::%s", quote(c), i+1, t.types[c]))
	}
	return strings.Join(where, " AND ")
}

func numbered(n int) string {
	var out []string
	for i := range n {
		out = append(out, "c"+strconv.Itoa(i+1))
	}
	return strings.Join(out, ", ")
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

func quoteAll(names []string) string {
	var out []string
	for _, n := range names {
		out = append(out, quote(n))
	}
	return strings.Join(out, ", ")
}
