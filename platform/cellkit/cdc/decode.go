package cdc

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"
)

// relation is a table as the WAL's reader was told, and what of it is taken.
type relation struct {
	table   string
	wanted  bool
	columns []string // those that are taken
	keys    []string // of them, the key
	place   []int    // in the tuple, of each of columns
	inKey   []bool   // of each of columns
}

// decoder makes messages of pgoutput's. It holds at most one chunk of rows.
type decoder struct {
	tables    Tables
	relations map[uint32]relation

	open    bool // inside a transaction
	foreign bool // it came from another database by replication: an echo
	commit  LSN
	at      time.Time
	rows    []Row
	size    int
	chunk   int
	resync  string // why the sink must copy again
}

func newDecoder(tables Tables) *decoder {
	return &decoder{tables: tables, relations: map[uint32]relation{}}
}

// decode takes one message of pgoutput. It calls emit with what is to be
// published: chunks of a transaction as they fill, and its last at the commit.
// A transaction without rows for the sink is published only as heartbeat.
func (d *decoder) decode(data []byte, emit func(m Message, end LSN) error) error {
	msg, err := pglogrepl.Parse(data)
	if err != nil {
		return err
	}
	switch m := msg.(type) {
	case *pglogrepl.BeginMessage:
		*d = decoder{tables: d.tables, relations: d.relations, open: true, commit: LSN(m.FinalLSN), at: m.CommitTime}
	case *pglogrepl.OriginMessage:
		d.foreign = true
	case *pglogrepl.RelationMessage:
		d.relations[m.RelationID] = d.relation(m)
	case *pglogrepl.InsertMessage:
		return d.change(m.RelationID, nil, m.Tuple, Insert, emit)
	case *pglogrepl.UpdateMessage:
		return d.change(m.RelationID, m.OldTuple, m.NewTuple, Update, emit)
	case *pglogrepl.DeleteMessage:
		return d.change(m.RelationID, m.OldTuple, nil, Delete, emit)
	case *pglogrepl.TruncateMessage:
		for _, id := range m.RelationIDs {
			if r := d.relations[id]; r.wanted {
				d.resync = r.table + " was truncated"
			}
		}
	case *pglogrepl.CommitMessage:
		return d.end(LSN(m.TransactionEndLSN), emit)
	case *pglogrepl.LogicalDecodingMessage, *pglogrepl.TypeMessage:
		// A heartbeat's transaction is seen at its commit.
	default:
		return fmt.Errorf("pgoutput sent a %s, which isn't expected", msg.Type())
	}
	return nil
}

func (d *decoder) relation(m *pglogrepl.RelationMessage) relation {
	r := relation{table: m.Namespace + "." + m.RelationName}
	list, ok := d.tables[r.table]
	r.wanted = ok
	for i, c := range m.Columns {
		key := c.Flags&1 == 1
		if !ok || !key && len(list) > 0 && !slices.Contains(list, c.Name) {
			continue
		}
		r.columns, r.place, r.inKey = append(r.columns, c.Name), append(r.place, i), append(r.inKey, key)
		if key {
			r.keys = append(r.keys, c.Name)
		}
	}
	return r
}

func (d *decoder) change(id uint32, old, tuple *pglogrepl.TupleData, op Op, emit func(Message, LSN) error) error {
	r, ok := d.relations[id]
	if !ok || !d.open {
		return errors.New("pgoutput sent a row before its table or transaction")
	}
	if !r.wanted || d.foreign {
		return nil
	}
	// With the default identity the old tuple is there only when the key has changed.
	if old != nil {
		d.add(Row{Table: r.table, Op: Delete, Columns: r.keys, Values: r.values(old, true)})
		if op == Update {
			op = Insert
		}
	}
	if tuple != nil {
		d.add(Row{Table: r.table, Op: op, Columns: r.columns, Values: r.values(tuple, false)})
	}
	if d.size < chunkBytes {
		return nil
	}
	d.chunk++
	m := Message{Kind: KindTx, LSN: d.commit, Commit: d.commit, Chunk: d.chunk, At: d.at, Rows: d.rows}
	d.rows, d.size = nil, 0
	return emit(m, 0)
}

func (d *decoder) add(r Row) {
	d.rows = append(d.rows, r)
	d.size += r.size()
}

// values reads a tuple; keyOnly when the rest of it has no values.
func (r relation) values(t *pglogrepl.TupleData, keyOnly bool) []Value {
	out := make([]Value, 0, len(r.columns))
	for i, n := range r.place {
		if keyOnly && !r.inKey[i] {
			continue
		}
		v := Value{State: Null}
		if n < len(t.Columns) {
			switch c := t.Columns[n]; c.DataType {
			case pglogrepl.TupleDataTypeNull:
			case pglogrepl.TupleDataTypeToast:
				v.State = Same
			default:
				v = Value{Text: string(c.Data)}
			}
		}
		out = append(out, v)
	}
	return out
}

func (d *decoder) end(end LSN, emit func(Message, LSN) error) error {
	d.open = false
	if d.resync != "" {
		if err := emit(Message{Kind: KindResync, Reason: d.resync, At: d.at}, 0); err != nil {
			return err
		}
	}
	d.chunk++
	return emit(Message{Kind: KindTx, LSN: end, Commit: d.commit, Chunk: d.chunk, Chunks: d.chunk, At: d.at, Rows: d.rows}, end)
}
