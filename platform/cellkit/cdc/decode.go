package cdc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"
)

// slotsTable says where a slot's changes go. It is itself sent to whom it concerns.
const slotsTable = "cell.slots"

// relation is a table as the WAL's reader was told, and who takes what of it.
type relation struct {
	table   string
	columns []string
	key     []bool
	slot    int // the column's place, -1 = none
	unit    bool
	whole   *view // for standbys
	listed  []*view
	// Of cell.slots: where its other columns are.
	standby, incoming, role int
}

// view is what a target takes of a table.
type view struct {
	to      *target // nil = it depends on the row's slot
	table   string
	columns []string
	place   []int    // in the tuple, of each of columns
	keys    []string // the same of the key, for a delete
	inKey   []int
}

// row is one that waits for its transaction's end: a tuple in decoder.raw.
type pending struct {
	v   *view
	op  Op
	off int
}

// target is a sink in this session.
type target struct {
	sink Sink
	out  *outlet

	// Of the open transaction:
	rows    []pending
	touched bool
	chunk   int
	resync  string

	asked   chan struct{} // a copy
	copying atomic.Bool   // one is being made

	messages, counted prometheus.Counter // transactions, and their rows
}

// decoder makes messages of pgoutput's, for every sink at once. It holds at most
// a chunk of rows.
type decoder struct {
	own     string // zone
	units   []string
	targets []*target
	byCell  []*target // by the slot map's numbers; nil = not a sink
	known   *known
	bound   int // of rows held

	relations map[uint32]*relation
	pos       LSN // end of the last transaction

	open    bool   // inside a transaction
	foreign bool   // it came from another database by replication: an echo
	beat    bool   // it is a heartbeat
	hold    string // standbys that are to hear of it, whatever is in it
	learned bool   // it changed what is known
	commit  LSN
	at      time.Time
	raw     []byte // the tuples of its rows
	touched []*target
}

var pgEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

var errFormat = errors.New("pgoutput sent something that can't be read")

// emit publishes a message; rows are in raw. advance is the position after it, 0 if it moves none.
type emit func(t *target, m Message, raw []byte, rows []pending, advance LSN) error

// decode takes one message of pgoutput.
func (d *decoder) decode(data []byte, send emit) error {
	if len(data) < 2 {
		return errFormat
	}
	body := data[1:]
	switch data[0] {
	case 'B':
		if len(body) < 20 {
			return errFormat
		}
		d.open, d.foreign, d.beat, d.hold, d.learned = true, false, false, "", false
		d.commit = LSN(binary.BigEndian.Uint64(body))
		d.at = pgEpoch.Add(time.Duration(int64(binary.BigEndian.Uint64(body[8:]))) * time.Microsecond)
	case 'O':
		d.foreign = true
	case 'I', 'U', 'D':
		return d.change(Op(data[:1]), body, send)
	case 'C':
		if len(body) < 25 {
			return errFormat
		}
		return d.end(LSN(binary.BigEndian.Uint64(body[9:])), send)
	case 'M':
		d.beat = d.beat || len(body) > 9 && bytes.HasPrefix(body[9:], beatPrefix)
		if text, ok := bytes.CutPrefix(body[min(9, len(body)):], holdPrefix); ok && len(text) >= 4 {
			d.hold += string(text[4:]) + ","
		}
	case 'R', 'T':
		msg, err := pglogrepl.Parse(data)
		if err != nil {
			return err
		}
		switch m := msg.(type) {
		case *pglogrepl.RelationMessage:
			return d.relation(m, send)
		case *pglogrepl.TruncateMessage:
			d.truncated(m)
		}
	case 'Y':
	default:
		return fmt.Errorf("pgoutput sent a message %q, which isn't expected", data[:1])
	}
	return nil
}

func (d *decoder) relation(m *pglogrepl.RelationMessage, send emit) error {
	r := &relation{table: m.Namespace + "." + m.RelationName, slot: -1, standby: -1, incoming: -1, role: -1}
	for i, c := range m.Columns {
		r.columns = append(r.columns, c.Name)
		r.key = append(r.key, c.Flags&1 == 1)
		switch c.Name {
		case "slot":
			r.slot = i
		case "standby":
			r.standby = i
		case "incoming":
			r.incoming = i
		case "role":
			r.role = i
		}
	}
	r.unit = r.slot >= 0 && (slices.Contains(d.units, r.table) || r.table == slotsTable)
	r.whole = r.view(nil, nil)
	for _, t := range d.targets {
		if columns, ok := t.sink.Tables[r.table]; ok {
			r.listed = append(r.listed, r.view(t, columns))
		}
	}
	d.relations[m.RelationID] = r
	before, ok := d.known.columns[r.table]
	if ok && slices.Equal(before, r.columns) {
		return nil
	}
	d.known.columns[r.table] = r.columns
	d.learned = true
	if !ok {
		return nil
	}
	row := Row{Table: r.table, Op: Update, Columns: r.columns, Values: make([]Value, len(r.columns))}
	for i := range row.Values {
		row.Values[i].State = Same
	}
	for _, t := range d.targets {
		if _, listed := t.sink.Tables[r.table]; !listed && (t.sink.Cell == "" || !r.unit) {
			continue
		}
		if err := send(t, Message{Kind: KindSchema, At: d.at, Rows: []Row{row}}, nil, nil, 0); err != nil {
			return err
		}
	}
	return nil
}

// view chooses columns; none listed means all, and the key is always there.
func (r *relation) view(t *target, list []string) *view {
	v := &view{to: t, table: r.table}
	for i, name := range r.columns {
		if r.key[i] {
			v.keys, v.inKey = append(v.keys, name), append(v.inKey, i)
		}
		if r.key[i] || len(list) == 0 || slices.Contains(list, name) {
			v.columns, v.place = append(v.columns, name), append(v.place, i)
		}
	}
	return v
}

func (d *decoder) truncated(m *pglogrepl.TruncateMessage) {
	for _, id := range m.RelationIDs {
		r := d.relations[id]
		if r == nil {
			continue
		}
		for _, v := range r.listed {
			d.touch(v.to).resync = r.table + " was truncated"
		}
		for _, t := range d.targets {
			if r.unit && t.sink.Cell != "" {
				d.touch(t).resync = r.table + " was truncated"
			}
		}
	}
}

func (d *decoder) touch(t *target) *target {
	if !t.touched {
		t.touched = true
		d.touched = append(d.touched, t)
	}
	return t
}

// change takes a row. With the default identity the old tuple is there only when
// the key has changed, or the row is gone.
func (d *decoder) change(op Op, body []byte, send emit) error {
	if len(body) < 5 {
		return errFormat
	}
	r := d.relations[binary.BigEndian.Uint32(body)]
	if r == nil || !d.open {
		return errors.New("pgoutput sent a row before its table or transaction")
	}
	if d.foreign {
		return nil
	}
	kind, tuple := body[4], body[5:]
	if kind != 'N' {
		n, err := tupleEnd(tuple)
		if err != nil {
			return err
		}
		if err := d.row(r, Delete, tuple[:n]); err != nil {
			return err
		}
		if op == Delete {
			return d.full(send)
		}
		if tuple = tuple[n:]; len(tuple) < 1 || tuple[0] != 'N' {
			return errFormat
		}
		op, tuple = Insert, tuple[1:]
	}
	if err := d.row(r, op, tuple); err != nil {
		return err
	}
	return d.full(send)
}

// row notes a tuple for those who take it.
func (d *decoder) row(r *relation, op Op, tuple []byte) error {
	off := -1
	note := func(t *target, v *view) {
		if t == nil || !t.out.takes() {
			return
		}
		if off < 0 {
			off = len(d.raw)
			d.raw = append(d.raw, tuple...)
		}
		t.rows = append(d.touch(t).rows, pending{v, op, off})
	}
	if !r.unit {
		for _, v := range r.listed {
			note(v.to, v)
		}
		return nil
	}
	text, err := column(tuple, r.slot)
	if err != nil {
		return err
	}
	slot, err := slotNumber(text)
	if err != nil {
		return fmt.Errorf("%s: slot %q: %w", r.table, text, err)
	}
	if r.table != slotsTable {
		p := d.known.slots.slots[slot]
		if !p.owned { // a copy that somebody put right by hand, or cleaned up
			return nil
		}
		for _, v := range r.listed {
			note(v.to, v)
		}
		note(d.cell(p.standby), r.whole)
		if p.incoming != p.standby {
			note(d.cell(p.incoming), r.whole)
		}
		return nil
	}
	was, is, err := d.slot(r, slot, op, tuple)
	if err != nil {
		return err
	}
	told := [...]uint16{was.standby, was.incoming, is.standby, is.incoming}
	for i, c := range told {
		if c != 0 && !slices.Contains(told[:i], c) {
			note(d.cell(c), r.whole)
		}
	}
	return nil
}

// slot takes a row of cell.slots into the map.
func (d *decoder) slot(r *relation, slot int32, op Op, tuple []byte) (was, is pair, err error) {
	var v [3]string
	for i, place := range []int{r.standby, r.incoming, r.role} {
		if op == Delete || place < 0 {
			continue
		}
		text, err := column(tuple, place)
		if err != nil {
			return was, is, err
		}
		v[i] = string(text)
	}
	was, is = d.known.slots.set(slot, v[0], v[1], v[2] == "owner")
	d.learned = d.learned || was != is
	return was, is, nil
}

// cell gives the sink of a cell by its number in the slot map.
func (d *decoder) cell(n uint16) *target {
	if n == 0 {
		return nil
	}
	for int(n) >= len(d.byCell) {
		name := d.known.slots.cells[len(d.byCell)]
		var t *target
		if i := slices.IndexFunc(d.targets, func(t *target) bool { return t.sink.Cell != "" && t.sink.Cell == name }); i >= 0 && name != d.own {
			t = d.targets[i]
		}
		d.byCell = append(d.byCell, t)
	}
	return d.byCell[n]
}

// full sends chunks of the open transaction when enough is held.
func (d *decoder) full(send emit) error {
	if len(d.raw) < d.bound {
		return nil
	}
	for _, t := range d.touched {
		if len(t.rows) == 0 {
			continue
		}
		t.chunk++
		if err := send(t, Message{Kind: KindTx, LSN: d.commit, Commit: d.commit, Chunk: t.chunk, At: d.at}, d.raw, t.rows, 0); err != nil {
			return err
		}
		t.rows = t.rows[:0]
	}
	d.raw = d.raw[:0]
	return nil
}

func (d *decoder) end(end LSN, send emit) error {
	d.open = false
	for _, t := range d.touched {
		if t.resync != "" {
			if err := send(t, Message{Kind: KindResync, Reason: t.resync, At: d.at}, nil, nil, 0); err != nil {
				return err
			}
		}
		t.chunk++
		m := Message{Kind: KindTx, LSN: end, Commit: d.commit, Chunk: t.chunk, Chunks: t.chunk, At: d.at}
		if err := send(t, m, d.raw, t.rows, end); err != nil {
			return err
		}
		t.rows, t.chunk, t.resync, t.touched = t.rows[:0], 0, "", d.beat || d.hold != "" // these reach those that had nothing
	}
	if d.beat || d.hold != "" {
		for _, t := range d.targets {
			if !t.touched && (d.beat || holds(d.hold, t.sink.Cell)) {
				if err := send(t, Message{Kind: KindTx, LSN: end, Commit: d.commit, Chunk: 1, Chunks: 1, At: d.at}, nil, nil, end); err != nil {
					return err
				}
			}
			t.touched = false
		}
	}
	d.touched, d.raw, d.pos = d.touched[:0], d.raw[:0], end
	return nil
}
