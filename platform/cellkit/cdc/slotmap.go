package cdc

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// slotMap says which cells a slot's changes go to, as of a place in the WAL: it
// is changed by what is decoded, never by what a table says later.
type slotMap struct {
	cells []string // by number; 0 is nobody
	slots map[int32]pair
}

// pair is a slot's standby, and the cell that becomes it; and whether the slot is
// owned here: of others nothing is told.
type pair struct {
	standby, incoming uint16
	owned             bool
}

func newSlotMap() *slotMap { return &slotMap{cells: []string{""}, slots: map[int32]pair{}} }

func (m *slotMap) cell(name string) uint16 {
	if i := slices.Index(m.cells, name); i >= 0 {
		return uint16(i)
	}
	m.cells = append(m.cells, name)
	return uint16(len(m.cells) - 1)
}

// set changes a slot, and gives what it was.
func (m *slotMap) set(slot int32, standby, incoming string, owned bool) (was, is pair) {
	was = m.slots[slot]
	is = pair{m.cell(standby), m.cell(incoming), owned}
	if is == (pair{}) {
		delete(m.slots, slot)
	} else {
		m.slots[slot] = is
	}
	return was, is
}

// slotMapVersion is of encode's form; a map of another one is as good as none.
const slotMapVersion = 2

// encode writes the map: 0, the version, names, then runs of slots that go to the
// same cells.
func (m *slotMap) encode() []byte {
	b := binary.AppendUvarint([]byte{0, slotMapVersion}, uint64(len(m.cells)))
	for _, name := range m.cells {
		b = appendText(b, name)
	}
	all := slices.Sorted(maps.Keys(m.slots))
	for i := 0; i < len(all); {
		n, p := 1, m.slots[all[i]]
		for i+n < len(all) && all[i+n] == all[i]+int32(n) && m.slots[all[i+n]] == p {
			n++
		}
		owned := 0
		if p.owned {
			owned = 1
		}
		for _, v := range []int{int(all[i]), n, int(p.standby), int(p.incoming), owned} {
			b = binary.AppendUvarint(b, uint64(v))
		}
		i += n
	}
	return b
}

func decodeSlotMap(b []byte) (*slotMap, error) {
	d := decoding{in: string(b)}
	m := &slotMap{slots: map[int32]pair{}}
	if d.byte() != 0 || d.byte() != slotMapVersion {
		return nil, errors.New("the stored slot map is of another version")
	}
	for range d.count(1) {
		m.cells = append(m.cells, d.text())
	}
	for d.in != "" {
		from, n, standby, incoming, owned := d.number(), d.number(), d.number(), d.number(), d.number()
		if d.bad || n > 1<<24 || standby >= len(m.cells) || incoming >= len(m.cells) {
			return nil, errors.New("the stored slot map can't be read")
		}
		for i := range n {
			m.slots[int32(from+i)] = pair{uint16(standby), uint16(incoming), owned == 1}
		}
	}
	if d.bad || len(m.cells) == 0 || m.cells[0] != "" {
		return nil, errors.New("the stored slot map can't be read")
	}
	return m, nil
}

// known is what was decoded up to a position and is needed to go on from there.
type known struct {
	slots   *slotMap
	columns map[string][]string // of each table that came
}

// knownAt gives what is stored for a position of the WAL; nil = nothing is.
func (s store) knownAt(ctx context.Context, at LSN) (*known, error) {
	k := &known{}
	var b []byte
	err := s.pool.QueryRow(ctx, "SELECT slots, columns FROM cdc.maps WHERE lsn <= $1::text::pg_lsn ORDER BY lsn DESC LIMIT 1", at.String()).Scan(&b, &k.columns)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if k.slots, err = decodeSlotMap(b); err != nil {
		return nil, nil // of another version: as good as none, so the loss is declared
	}
	return k, nil
}

// know stores it, before anything behind it is confirmed.
func (s store) know(ctx context.Context, at LSN, k *known) error {
	_, err := s.pool.Exec(ctx, `INSERT INTO cdc.maps (lsn, slots, columns) VALUES ($1::text::pg_lsn, $2, $3)
		ON CONFLICT (lsn) DO UPDATE SET slots = excluded.slots, columns = excluded.columns, at = now()`, at.String(), k.slots.encode(), k.columns)
	return err
}

// forget drops what no restart of the server can need any more.
func (s store) forget(ctx context.Context, slot string) error {
	_, err := s.pool.Exec(ctx, `DELETE FROM cdc.maps WHERE lsn < (SELECT max(m.lsn) FROM cdc.maps m
		WHERE m.lsn <= (SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = $1))`, slot)
	return err
}

// readSlots reads cell.slots in tx; a zone without one has an empty map.
func readSlots(ctx context.Context, tx pgx.Tx) (*slotMap, error) {
	m := newSlotMap()
	var cell bool
	if err := tx.QueryRow(ctx, "SELECT to_regclass('cell.slots') IS NOT NULL").Scan(&cell); err != nil || !cell {
		return m, err
	}
	rows, err := tx.Query(ctx, "SELECT slot, coalesce(standby, ''), coalesce(incoming, ''), role = 'owner' FROM cell.slots")
	if err != nil {
		return nil, err
	}
	var slot int32
	var standby, incoming string
	var owned bool
	_, err = pgx.ForEachRow(rows, []any{&slot, &standby, &incoming, &owned}, func() error {
		m.set(slot, standby, incoming, owned)
		return nil
	})
	return m, err
}

// readColumns reads what the published tables' rows have.
func readColumns(ctx context.Context, tx pgx.Tx, columns map[string][]string) error {
	rows, err := tx.Query(ctx, `SELECT p.schemaname || '.' || p.tablename, array_agg(a.attname::text ORDER BY a.attnum)
		FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE p.pubname = $1 AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' GROUP BY 1`, Publication)
	if err != nil {
		return err
	}
	var table string
	var names []string
	_, err = pgx.ForEachRow(rows, []any{&table, &names}, func() error {
		columns[table] = slices.Clone(names)
		return nil
	})
	return err
}

func slotNumber(text []byte) (int32, error) {
	n, err := strconv.ParseInt(string(text), 10, 32)
	return int32(n), err
}
