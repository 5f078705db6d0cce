package cdc

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/pg"
)

// Publication is the name of what the relay decodes.
const Publication = "cellmart_cdc"

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema cdc: the relay's own state.
func Migrations() pg.Migrations { return pg.Sub("cdc", files) }

// Tables are what a sink takes: columns by table (schema.table). No columns
// means all. What isn't listed never leaves the database.
type Tables map[string][]string

// Publish brings the publication to these tables and, in a cell, to all unit data
// and where the slots are; and lets the agent read them. It is a part of
// migrating, as the role that owns the tables. A slot decodes with the publication
// as it was at that place of the WAL, so this comes before the relay's first start.
func Publish(ctx context.Context, dsn string, tables Tables) error {
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return pg.Error(err)
	}
	defer c.Close(context.WithoutCancel(ctx))
	return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		all, err := units(ctx, tx)
		if err != nil {
			return err
		}
		if len(all) > 0 {
			all = append(all, slotsTable)
		}
		all = append(all, slices.Collect(maps.Keys(tables))...)
		slices.Sort(all)
		all = slices.Compact(all)
		var names []string
		for _, t := range all {
			names = append(names, quote(t))
		}
		var have bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1)", Publication).Scan(&have); err != nil {
			return err
		}
		q := "CREATE PUBLICATION " + Publication + " FOR TABLE "
		if have {
			var same bool
			err := tx.QueryRow(ctx, `SELECT coalesce(array_agg(schemaname || '.' || tablename ORDER BY (schemaname || '.' || tablename) COLLATE "C"), '{}') = $2::text[]
				FROM pg_publication_tables WHERE pubname = $1`, Publication, all).Scan(&same)
			if err != nil || same {
				return err
			}
			q = "ALTER PUBLICATION " + Publication + " SET TABLE "
		}
		if _, err := tx.Exec(ctx, q+strings.Join(names, ", ")); err != nil {
			return fmt.Errorf("publication: %w", err)
		}
		_, err = tx.Exec(ctx, "GRANT SELECT ON "+strings.Join(names, ", ")+" TO "+pg.RoleAgent)
		return err
	})
}

// units are the tables of unit data; none where there is no cell.
func units(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (names []string, err error) {
	var cell bool
	if err := q.QueryRow(ctx, "SELECT to_regclass('cell.unit_tables') IS NOT NULL").Scan(&cell); err != nil || !cell {
		return nil, err
	}
	err = q.QueryRow(ctx, "SELECT coalesce(array_agg(name ORDER BY name), '{}') FROM cell.unit_tables").Scan(&names)
	return names, err
}

// quote makes an identifier of schema.table.
func quote(table string) string { return pgx.Identifier(strings.SplitN(table, ".", 2)).Sanitize() }

// errNoPublication says that the database isn't migrated yet.
var errNoPublication = errors.New("the database has no publication " + Publication + " yet: cellmart migrate makes it")

// slotState is the row cdc.slot, and what the server says of the slot.
type slotState struct {
	name      string
	state     string // making, made, lost
	declared  bool
	reason    string
	losses    int
	confirmed LSN
	known     *known // at that position
}

// store is the relay's own state in the database.
type store struct{ pool *pgxpool.Pool }

// look gives the row, and makes it before anything is made on the server.
func (s store) look(ctx context.Context) (st slotState, err error) {
	var published bool
	err = s.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1)", Publication).Scan(&published)
	if err != nil {
		return st, err
	}
	if !published {
		return st, errNoPublication
	}
	// A slot's name is the server's, not the database's: several databases may share one.
	_, err = s.pool.Exec(ctx, "INSERT INTO cdc.slot (name, state) VALUES (left(current_database(), 58) || '_cdc', 'making') ON CONFLICT DO NOTHING")
	if err != nil {
		return st, err
	}
	err = s.pool.QueryRow(ctx, "SELECT name, state, declared, reason, losses FROM cdc.slot").
		Scan(&st.name, &st.state, &st.declared, &st.reason, &st.losses)
	return st, err
}

// onServer says whether the slot exists and can be read on, and from where.
func (s store) onServer(ctx context.Context, name string) (exists, usable bool, confirmed LSN, err error) {
	var text *string
	err = s.pool.QueryRow(ctx, `SELECT coalesce(wal_status, '') <> 'lost', confirmed_flush_lsn::text
		FROM pg_replication_slots WHERE slot_name = $1 AND database = current_database()`, name).Scan(&usable, &text)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, false, 0, nil
	}
	if err != nil || text == nil {
		return err == nil, false, 0, err
	}
	return true, usable, confirmed, confirmed.UnmarshalText([]byte(*text))
}

func (s store) set(ctx context.Context, state string) error {
	_, err := s.pool.Exec(ctx, "UPDATE cdc.slot SET state = $1, changed_at = now()", state)
	return err
}

func (s store) lost(ctx context.Context, reason string) error {
	_, err := s.pool.Exec(ctx, "UPDATE cdc.slot SET state = 'lost', declared = false, reason = $1, losses = losses + 1, changed_at = now()", reason)
	return err
}

func (s store) told(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, "UPDATE cdc.slot SET declared = true, changed_at = now()")
	return err
}

// beat writes a heartbeat: a transaction that the relay must see.
func (s store) beat(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, "SELECT pg_logical_emit_message(true, 'cellmart.beat', '')")
	return err
}

// retained is how much WAL the slot keeps.
func (s store) retained(ctx context.Context, name string) (bytes float64, err error) {
	err = s.pool.QueryRow(ctx, `SELECT coalesce(pg_current_wal_lsn() - restart_lsn, 0)::float8
		FROM pg_replication_slots WHERE slot_name = $1`, name).Scan(&bytes)
	return bytes, err
}

// identity names the database's incarnation: a restored or promoted one has
// another timeline, another database another name.
func (s store) identity(ctx context.Context, sys pglogrepl.IdentifySystemResult) (string, error) {
	name := sys.SystemID
	var cell bool
	if err := s.pool.QueryRow(ctx, "SELECT to_regclass('cell.identity') IS NOT NULL").Scan(&cell); err != nil {
		return "", err
	}
	if cell {
		if err := s.pool.QueryRow(ctx, "SELECT incarnation::text FROM cell.identity").Scan(&name); err != nil {
			return "", err
		}
	}
	return name + "." + strconv.Itoa(int(sys.Timeline)), nil
}

// openSlot gives the slot to read from. It is made where it never was; where it
// is gone that is stored before a new one is made.
func (r *Relay) openSlot(ctx context.Context, conn *pgconn.PgConn) (st slotState, err error) {
	if st, err = r.store.look(ctx); err != nil {
		return st, err
	}
	exists, usable, confirmed, err := r.store.onServer(ctx, st.name)
	if err != nil {
		return st, err
	}
	reason := ""
	switch {
	case st.state != "made":
	case !exists:
		reason = "the replication slot is gone"
	case !usable:
		reason = "the replication slot has lost its WAL"
	default:
		st.confirmed = confirmed
		if st.known, err = r.store.knownAt(ctx, confirmed); err != nil || st.known != nil {
			return st, err
		}
		reason = "where the slots' changes go isn't known for the replication slot's position"
	}
	if reason != "" {
		if err := r.store.lost(ctx, reason); err != nil {
			return st, err
		}
		r.metrics.losses.Inc()
		r.o.Log.Error("changes were lost, the sinks must copy again", "slot", st.name, "reason", reason)
	}
	if err := r.at("slot-recorded"); err != nil {
		return st, err
	}
	// Made and not noted, or lost: in neither case has it anything that was promised to somebody. A slot
	// that is held by an earlier relay's connection can't be dropped: the next try can.
	if exists {
		if err := pglogrepl.DropReplicationSlot(ctx, conn, st.name, pglogrepl.DropReplicationSlotOptions{}); err != nil {
			return st, fmt.Errorf("drop the slot: %w", err)
		}
	}
	if err := r.store.set(ctx, "making"); err != nil {
		return st, err
	}
	if err := r.makeSlot(ctx, conn, st.name); err != nil {
		return st, fmt.Errorf("make the slot: %w", err)
	}
	if err := r.store.set(ctx, "made"); err != nil {
		return st, err
	}
	r.o.Log.Info("made the replication slot", "slot", st.name)
	if st, err = r.store.look(ctx); err != nil {
		return st, err
	}
	if _, _, st.confirmed, err = r.store.onServer(ctx, st.name); err != nil {
		return st, err
	}
	if st.known, err = r.store.knownAt(ctx, st.confirmed); err == nil && st.known == nil {
		err = errors.New("the new slot's map isn't there")
	}
	return st, err
}

// makeSlot makes the slot, which waits for all transactions that run at the
// moment, and stores the slot map as of its first position.
func (r *Relay) makeSlot(ctx context.Context, conn *pgconn.PgConn, name string) error {
	slot, err := pglogrepl.CreateReplicationSlot(ctx, conn, name, "pgoutput", pglogrepl.CreateReplicationSlotOptions{
		Mode: pglogrepl.LogicalReplication, SnapshotAction: "EXPORT_SNAPSHOT",
	})
	if err != nil {
		return err
	}
	if err := r.at("slot-made"); err != nil {
		return err
	}
	var at LSN
	if err := at.UnmarshalText([]byte(slot.ConsistentPoint)); err != nil {
		return err
	}
	k := &known{columns: map[string][]string{}}
	err = pgx.BeginTxFunc(ctx, r.o.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET TRANSACTION SNAPSHOT '"+slot.SnapshotName+"'"); err != nil {
			return err
		}
		if k.slots, err = readSlots(ctx, tx); err != nil {
			return err
		}
		return readColumns(ctx, tx, k.columns)
	})
	if err != nil {
		return err
	}
	if _, err := r.o.Pool.Exec(ctx, "DELETE FROM cdc.maps"); err != nil { // of a slot that is gone
		return err
	}
	return r.store.know(ctx, at, k)
}
