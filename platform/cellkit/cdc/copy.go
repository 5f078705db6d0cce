package cdc

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errOtherCopy ends a copy that nobody wants any more.
var errOtherCopy = errors.New("another copy was asked for")

// wish stores that a sink wants a copy. The same id while it is being made
// changes nothing, nor does a question that was still under way when it was made;
// later the sink says that it didn't get it whole.
// A copy of everything takes the place of all that the sink has asked for.
func (s store) wish(ctx context.Context, sink string, a ask) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO cdc.copies (sink, id, state, reason, slots) VALUES ($1, $2, 'asked', $3, $4)
			ON CONFLICT (sink, id) DO UPDATE SET state = 'asked', reason = excluded.reason, asked_at = now(), done_at = NULL
			WHERE copies.state = 'done' AND coalesce(copies.done_at, '-infinity') < now() - interval '5 s'`, sink, a.ID, a.Reason, a.Slots)
		if err != nil {
			return err
		}
		if a.Slots == nil {
			if _, err = tx.Exec(ctx, "UPDATE cdc.copies SET state = 'done' WHERE sink = $1 AND id <> $2 AND state <> 'done'", sink, a.ID); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, "DELETE FROM cdc.copies WHERE sink = $1 AND id <> $2 AND state = 'done' AND asked_at < now() - interval '1 hour'", sink, a.ID)
		return err
	})
}

// wanted gives the copy that is to be made, with id "" when there is none.
func (s store) wanted(ctx context.Context, sink string) (a ask, attempt int, err error) {
	err = s.pool.QueryRow(ctx, `SELECT id, reason, slots, attempt + 1 FROM cdc.copies WHERE sink = $1 AND state <> 'done'
		ORDER BY slots IS NOT NULL, asked_at, id LIMIT 1`, sink).Scan(&a.ID, &a.Reason, &a.Slots, &attempt)
	if errors.Is(err, pgx.ErrNoRows) {
		return ask{}, 0, nil
	}
	return a, attempt, err
}

func (s store) began(ctx context.Context, sink, id string, attempt int) error {
	_, err := s.pool.Exec(ctx, "UPDATE cdc.copies SET state = 'running', attempt = $3, rows = 0 WHERE sink = $1 AND id = $2", sink, id, attempt)
	return err
}

// running says whether a copy is still wanted.
func (s store) running(ctx context.Context, sink, id string) (ok bool, err error) {
	err = s.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM cdc.copies WHERE sink = $1 AND id = $2 AND state = 'running')", sink, id).Scan(&ok)
	return ok, err
}

func (s store) ended(ctx context.Context, sink, id string, rows int64) error {
	_, err := s.pool.Exec(ctx, "UPDATE cdc.copies SET state = 'done', rows = $3, done_at = now() WHERE sink = $1 AND id = $2 AND state = 'running'", sink, id, rows)
	return err
}

// dropped gives up a copy.
func (s store) dropped(ctx context.Context, sink, id string) error {
	_, err := s.pool.Exec(ctx, "UPDATE cdc.copies SET state = 'done', done_at = NULL WHERE sink = $1 AND id = $2", sink, id)
	return err
}

// copyPause is how long a copy that the database refused waits.
const copyPause = 5 * time.Second

// copyLoop makes the copies that a sink asks for, one by one.
func (s *session) copyLoop(ctx context.Context, t *target) error {
	for {
		a, attempt, err := s.r.store.wanted(ctx, t.sink.Name)
		if err != nil {
			return err
		}
		if a.ID == "" {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-t.asked:
			}
			continue
		}
		err = s.copy(ctx, t, a, attempt)
		if errors.Is(err, errDetached) { // it asks again when it comes back
			err = s.r.store.dropped(ctx, t.sink.Name, a.ID)
		}
		var refused *pgconn.PgError
		switch {
		case err == nil || errors.Is(err, errOtherCopy):
		case errors.As(err, &refused) && ctx.Err() == nil: // a table isn't there yet, or a right: not the other sinks' trouble
			s.r.o.Log.Warn("a copy can't be made, it's tried again", "sink", t.sink.Name, "error", err)
			sleep(ctx, copyPause)
		default:
			return fmt.Errorf("copy for %s: %w", t.sink.Name, err)
		}
	}
}

// errDetached ends a copy for a sink that is sent nothing any more.
var errDetached = errors.New("the sink is detached")

// copy sends rows as of one position of the stream: a temporary slot gives both.
// What commits after it comes in the stream beside, and is newer.
func (s *session) copy(ctx context.Context, t *target, a ask, attempt int) error {
	r, sink := s.r, t.sink.Name
	t.copying.Store(true)
	defer t.copying.Store(false)
	if err := r.store.began(ctx, sink, a.ID, attempt); err != nil {
		return err
	}
	if t.out.state.Load() == detached {
		if a.Slots != nil { // what came meanwhile is missing: only a copy of everything makes it whole
			return errDetached
		}
		if err := s.attach(ctx, t); err != nil {
			return err
		}
	}
	c := copyRun{s: s, t: t, ask: a, name: fmt.Sprintf("%s/%d", a.ID, attempt)}
	if err := c.send(ctx, KindBegin, nil); err != nil {
		return err
	}
	start := time.Now()
	snapshot, _, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, snapshot)
	slot, err := pglogrepl.CreateReplicationSlot(ctx, snapshot, s.copySlot(sink), "pgoutput", pglogrepl.CreateReplicationSlotOptions{
		Temporary: true, Mode: pglogrepl.LogicalReplication, SnapshotAction: "EXPORT_SNAPSHOT",
	})
	if err != nil {
		return err
	}
	if err := c.lsn.UnmarshalText([]byte(slot.ConsistentPoint)); err != nil {
		return err
	}
	cfg, err := pgx.ParseConfig(r.o.DSN)
	if err != nil {
		return err
	}
	cfg.RuntimeParams["timezone"] = "UTC"
	cfg.RuntimeParams["application_name"] = "cellmart-cdc-copy"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET TRANSACTION SNAPSHOT '"+slot.SnapshotName+"'"); err != nil {
			return err
		}
		closeConn(ctx, snapshot) // the snapshot is ours now; the temporary slot goes with the connection
		tables := s.tables(t.sink)
		names := slices.Sorted(maps.Keys(tables))
		slices.SortStableFunc(names, func(x, y string) int { // whose the slots are comes first
			return strings.Compare(strings.TrimPrefix(x, slotsTable), strings.TrimPrefix(y, slotsTable))
		})
		for _, table := range names {
			if err := c.table(ctx, tx, table, tables[table]); err != nil {
				return fmt.Errorf("%s: %w", table, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := c.send(ctx, KindEnd, nil); err != nil {
		return err
	}
	if err := t.out.drain(ctx); err != nil {
		return err
	}
	r.metrics.copies.WithLabelValues(sink).Inc()
	r.o.Log.Info("copied for a sink", "sink", sink, "rows", c.rows, "slots", len(a.Slots), "took", time.Since(start).Round(time.Millisecond).String())
	note, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second) // the sink has it: not once more
	defer cancel()
	return r.store.ended(note, sink, a.ID, c.rows)
}

// copySlot names the temporary slot of a sink's copy: the server's own, 63 bytes at most.
func (s *session) copySlot(sink string) string {
	h := fnv.New32a()
	h.Write([]byte(sink))
	return fmt.Sprintf("%.50s_%08x", s.slot.name, h.Sum32())
}

type copyRun struct {
	s    *session
	t    *target
	ask  ask
	name string
	lsn  LSN
	n    int
	rows int64
}

func (c *copyRun) send(ctx context.Context, kind Kind, rows []Row) error {
	if err := c.paced(ctx); err != nil {
		return err
	}
	if kind != KindBegin {
		c.n++
	}
	c.rows += int64(len(rows))
	if err := c.s.r.at("copy-" + string(kind)); err != nil {
		return err
	}
	m := Message{Kind: kind, LSN: c.lsn, Copy: c.name, N: c.n, Slots: c.ask.Slots, At: time.Now(), Rows: rows}
	c.s.r.counted(c.t, m.Kind, len(rows))
	return c.t.out.say(ctx, m)
}

// paced waits until the sink has made room: a copy may be larger than its stream.
func (c *copyRun) paced(ctx context.Context) error {
	for {
		switch c.t.out.state.Load() {
		case detached:
			return errDetached
		case attached:
			room, err := c.t.out.room(ctx)
			if err != nil || room {
				return err
			}
		}
		if sleep(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return ctx.Err()
		}
		if ok, err := c.s.r.store.running(ctx, c.t.sink.Name, c.ask.ID); err == nil && !ok {
			return errOtherCopy
		}
	}
}

// table sends one table's rows. Of unit data a cell sends what it owns, not what
// it stands by for.
func (c *copyRun) table(ctx context.Context, tx pgx.Tx, table string, columns []string) error {
	q := "SELECT *"
	if len(columns) > 0 {
		q = "SELECT " + pgx.Identifier{columns[0]}.Sanitize()
		for _, name := range columns[1:] {
			q += ", " + pgx.Identifier{name}.Sanitize()
		}
	}
	q += " FROM " + quote(table)
	var args []any
	if c.s.unit(table) {
		where := " WHERE slot IN (SELECT slot FROM cell.slots WHERE role = 'owner'"
		if c.t.sink.Cell != "" {
			args = append(args, c.t.sink.Cell)
			where += " AND $1 IN (standby, incoming)"
		}
		if q += where + ")"; c.ask.Slots != nil {
			args = append(args, c.ask.Slots)
			q += fmt.Sprintf(" AND slot = ANY ($%d::int[])", len(args))
		}
	} else if c.ask.Slots != nil {
		return nil
	}
	// The simple protocol gives text, as the WAL's decoder does. Rows come as they are read, not at once.
	rows, err := tx.Query(ctx, q, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var names []string
	for _, f := range rows.FieldDescriptions() {
		names = append(names, strings.Clone(f.Name))
	}
	var batch []Row
	size := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := c.send(ctx, KindCopy, batch)
		batch, size = nil, 0
		return err
	}
	for rows.Next() {
		row := Row{Table: table, Op: Insert, Columns: names, Values: make([]Value, len(names))}
		for i, v := range rows.RawValues() {
			if v == nil {
				row.Values[i].State = Null
				continue
			}
			row.Values[i].Text = string(v)
		}
		batch = append(batch, row)
		if size += row.size(); size >= pieceOf(c.s.r.o.MaxBytes) {
			if err := flush(); err != nil {
				return err
			}
			if ok, err := c.s.r.store.running(ctx, c.t.sink.Name, c.ask.ID); err == nil && !ok {
				return errOtherCopy
			}
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return flush()
}
