package cdc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// errOtherCopy ends a copy that nobody wants any more.
var errOtherCopy = errors.New("another copy was asked for")

// wish stores that a sink wants a copy. The same id while it is being made
// changes nothing; after it was made, the sink says that it didn't get it whole.
func (s store) wish(ctx context.Context, sink string, a ask) error {
	_, err := s.pool.Exec(ctx, `INSERT INTO cdc.copies (sink, id, state, reason) VALUES ($1, $2, 'asked', $3)
		ON CONFLICT (sink) DO UPDATE SET id = excluded.id, state = 'asked', reason = excluded.reason, asked_at = now(), done_at = NULL
		WHERE copies.id <> excluded.id OR copies.state = 'done'`, sink, a.ID, a.Reason)
	return err
}

// wanted gives the copy that is to be made, "" when there is none.
func (s store) wanted(ctx context.Context, sink string) (id string, attempt int, err error) {
	err = s.pool.QueryRow(ctx, "SELECT id, attempt + 1 FROM cdc.copies WHERE sink = $1 AND state <> 'done'", sink).Scan(&id, &attempt)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", 0, nil
	}
	return id, attempt, err
}

func (s store) began(ctx context.Context, sink, id string, attempt int) error {
	_, err := s.pool.Exec(ctx, "UPDATE cdc.copies SET state = 'running', attempt = $3, rows = 0 WHERE sink = $1 AND id = $2", sink, id, attempt)
	return err
}

func (s store) ended(ctx context.Context, sink, id string, rows int64) error {
	_, err := s.pool.Exec(ctx, "UPDATE cdc.copies SET state = 'done', rows = $3, done_at = now() WHERE sink = $1 AND id = $2 AND state = 'running'", sink, id, rows)
	return err
}

// copyLoop makes the copies that are asked for.
func (r *Relay) copyLoop(ctx context.Context, out *outlet) error {
	for {
		id, attempt, err := r.store.wanted(ctx, r.o.Sink)
		if err != nil {
			return err
		}
		if id == "" {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-r.asked:
			}
			continue
		}
		if err := r.copy(ctx, out, id, attempt); err != nil && !errors.Is(err, errOtherCopy) {
			return fmt.Errorf("copy: %w", err)
		}
	}
}

// copy sends all rows, as of one position of the stream: a temporary slot gives
// both. What commits after it comes in the stream beside, and is newer.
func (r *Relay) copy(ctx context.Context, out *outlet, id string, attempt int) error {
	if err := r.store.began(ctx, r.o.Sink, id, attempt); err != nil {
		return err
	}
	c := copyRun{r: r, out: out, id: id, name: fmt.Sprintf("%s/%d", id, attempt)}
	if err := c.send(ctx, KindBegin, nil); err != nil {
		return err
	}
	start := time.Now()
	snapshot, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, snapshot)
	name, err := r.store.look(ctx)
	if err != nil {
		return err
	}
	slot, err := pglogrepl.CreateReplicationSlot(ctx, snapshot, name.name+"_copy", "pgoutput", pglogrepl.CreateReplicationSlotOptions{
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
		for _, table := range slices.Sorted(maps.Keys(r.o.Tables)) {
			if err := c.table(ctx, tx, table, r.o.Tables[table]); err != nil {
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
	if err := out.drain(ctx); err != nil {
		return err
	}
	r.metrics.copies.Inc()
	r.o.Log.Info("copied for a sink", "sink", r.o.Sink, "rows", c.rows, "took", time.Since(start).Round(time.Millisecond).String())
	note, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second) // the sink has it: not once more
	defer cancel()
	return r.store.ended(note, r.o.Sink, id, c.rows)
}

type copyRun struct {
	r    *Relay
	out  *outlet
	id   string
	name string
	lsn  LSN
	n    int
	rows int64
}

func (c *copyRun) send(ctx context.Context, kind Kind, rows []Row) error {
	if kind != KindBegin {
		c.n++
	}
	c.rows += int64(len(rows))
	if err := c.r.at("copy-" + string(kind)); err != nil {
		return err
	}
	return c.r.send(ctx, c.out, Message{Kind: kind, LSN: c.lsn, Copy: c.name, N: c.n, At: time.Now(), Rows: rows}, 0, nil)
}

// table sends one table's rows. Of unit data a cell sends what it owns, not what
// it stands by for.
func (c *copyRun) table(ctx context.Context, tx pgx.Tx, table string, columns []string) error {
	var unit bool
	if err := tx.QueryRow(ctx, "SELECT to_regclass('cell.unit_tables') IS NOT NULL").Scan(&unit); err != nil {
		return err
	}
	if unit {
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM cell.unit_tables WHERE name = $1)", table).Scan(&unit); err != nil {
			return err
		}
	}
	q := "SELECT *"
	if len(columns) > 0 {
		q = "SELECT " + pgx.Identifier{columns[0]}.Sanitize()
		for _, name := range columns[1:] {
			q += ", " + pgx.Identifier{name}.Sanitize()
		}
	}
	q += " FROM " + quote(table)
	if unit {
		q += " WHERE slot IN (SELECT slot FROM cell.slots WHERE role = 'owner')"
	}
	// The simple protocol gives text, as the WAL's decoder does. Rows come as they are read, not at once.
	rows, err := tx.Query(ctx, q, pgx.QueryExecModeSimpleProtocol)
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
		if size += row.size(); size >= chunkBytes {
			if err := flush(); err != nil {
				return err
			}
			if id, _, err := c.r.store.wanted(ctx, c.r.o.Sink); err == nil && id != "" && id != c.id {
				return errOtherCopy
			}
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return flush()
}
