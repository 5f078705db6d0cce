package standby

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"example.com/cellmart/platform/cellkit/cdc"
)

// edit is a row's change, read.
type edit struct {
	*layout
	row        cdc.Row
	slot       int
	epoch, rev int64
	base       int64 // the rev that it was made from, of a row that leaves out what was large and unchanged; else 0
	copied     bool
	name       string // of the row: table and key
}

// layout is where things are in the rows of one table and set of columns.
type layout struct {
	t                *table
	id               string
	columns          []string // those that are written, and where they are
	use              []int
	key              []int
	slot, epoch, rev int // -1 = not there
}

// layouts finds a row's layout; rows of one message share their columns.
type layouts struct {
	tables map[string]*table
	known  map[layoutKey]*layout
}

type layoutKey struct {
	table string
	first *string
	n     int
}

func (ls *layouts) of(r cdc.Row) (*layout, error) {
	if len(r.Columns) == 0 {
		return nil, fmt.Errorf("a row of %s without columns", r.Table)
	}
	k := layoutKey{r.Table, &r.Columns[0], len(r.Columns)}
	if l := ls.known[k]; l != nil {
		return l, nil
	}
	t := ls.tables[r.Table]
	if t == nil {
		return nil, unknownError{r.Table, nil}
	}
	if u := t.unknown(r.Columns); len(u) > 0 {
		return nil, unknownError{r.Table, u}
	}
	l := &layout{
		t: t, id: r.Table + "\x00" + strings.Join(r.Columns, "\x00"),
		slot: slices.Index(r.Columns, "slot"), epoch: slices.Index(r.Columns, "epoch"), rev: slices.Index(r.Columns, "rev"),
	}
	for i, c := range r.Columns {
		if t.types[c] != "" {
			l.columns, l.use = append(l.columns, c), append(l.use, i)
		}
	}
	for _, c := range t.key {
		i := slices.Index(r.Columns, c)
		if i < 0 {
			return nil, fmt.Errorf("a row of %s without its key's %s", r.Table, c)
		}
		l.key = append(l.key, i)
	}
	if len(ls.known) > 4096 {
		clear(ls.known)
	}
	ls.known[k] = l
	return l, nil
}

// unknownError is what stops a source: this cell must be migrated first.
type unknownError struct {
	table   string
	columns []string
}

// Error implements error.
func (e unknownError) Error() string {
	if len(e.columns) == 0 {
		return "table " + e.table + " isn't known here: this cell must be migrated"
	}
	return "columns " + strings.Join(e.columns, ", ") + " of " + e.table + " aren't known here: this cell must be migrated"
}

func (ls *layouts) edit(r cdc.Row, copied bool) (*edit, error) {
	l, err := ls.of(r)
	if err != nil {
		return nil, err
	}
	if len(r.Values) != len(r.Columns) {
		return nil, fmt.Errorf("a row of %s has %d values for %d columns", r.Table, len(r.Values), len(r.Columns))
	}
	e := &edit{layout: l, row: r, copied: copied}
	if e.slot, err = strconv.Atoi(r.Values[l.slot].Text); err != nil {
		return nil, fmt.Errorf("slot of a row of %s: %w", r.Table, err)
	}
	var key strings.Builder
	key.WriteString(r.Table)
	for _, i := range l.key {
		key.WriteByte(0)
		key.WriteString(r.Values[i].Text)
	}
	e.name = key.String()
	if r.Op == cdc.Delete {
		return e, nil
	}
	if l.epoch < 0 || l.rev < 0 {
		return nil, fmt.Errorf("a row of %s without epoch or rev", r.Table)
	}
	if e.epoch, err = strconv.ParseInt(r.Values[l.epoch].Text, 10, 64); err != nil {
		return nil, fmt.Errorf("epoch of a row of %s: %w", r.Table, err)
	}
	if e.rev, err = strconv.ParseInt(r.Values[l.rev].Text, 10, 64); err != nil {
		return nil, fmt.Errorf("rev of a row of %s: %w", r.Table, err)
	}
	if slices.ContainsFunc(r.Values, func(v cdc.Value) bool { return v.State == cdc.Same }) {
		e.base = e.rev - 1
	}
	return e, nil
}

// newer says whether e is a later version than o.
func (e *edit) newer(o *edit) bool {
	return e.epoch > o.epoch || e.epoch == o.epoch && e.rev > o.rev
}

// over gives e, with what it leaves out taken from the version just before it.
func (e *edit) over(o *edit) *edit {
	merged := *e
	merged.base, merged.copied = o.base, o.copied && e.copied
	merged.row.Values = slices.Clone(e.row.Values)
	for i, v := range merged.row.Values {
		if v.State == cdc.Same {
			merged.row.Values[i] = o.row.Values[i]
		}
	}
	return &merged
}

// round is changes that can be applied at once: one per row.
type round struct {
	at    map[string]int
	edits []*edit
}

// add takes a change, or says that the round must be applied first.
func (r *round) add(e *edit) bool {
	if r.at == nil {
		r.at = map[string]int{}
	}
	i, ok := r.at[e.name]
	if !ok {
		r.at[e.name] = len(r.edits)
		r.edits = append(r.edits, e)
		return true
	}
	have := r.edits[i]
	switch {
	case e.newer(have) && e.base == 0:
		r.edits[i] = e
	case e.newer(have) && e.base == have.rev && e.id == have.id:
		r.edits[i] = e.over(have)
	case !e.newer(have) && have.base == 0: // of a copy, older than what the stream had
	default:
		return false
	}
	return true
}

// arrays gives the columns of whole rows as binary text[] values.
func arrays(edits []*edit, columns []int) [][]byte {
	out := make([][]byte, len(columns))
	for i, c := range columns {
		size := 20
		for _, e := range edits {
			size += 4 + len(e.row.Values[c].Text)
		}
		b := make([]byte, 0, size)
		b = binary.BigEndian.AppendUint32(b, 1) // dimensions
		b = binary.BigEndian.AppendUint32(b, 1) // may hold NULL
		b = binary.BigEndian.AppendUint32(b, 25)
		b = binary.BigEndian.AppendUint32(b, uint32(len(edits)))
		b = binary.BigEndian.AppendUint32(b, 1)
		for _, e := range edits {
			v := e.row.Values[c]
			if v.State == cdc.Null {
				b = binary.BigEndian.AppendUint32(b, 0xffffffff)
				continue
			}
			b = binary.BigEndian.AppendUint32(b, uint32(len(v.Text)))
			b = append(b, v.Text...)
		}
		out[i] = b
	}
	return out
}
