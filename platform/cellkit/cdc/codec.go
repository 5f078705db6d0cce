package cdc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A bundle is what one message of the stream carries: some messages of the chain,
// in order. Numbers are varints, texts have their length before them.
//
//	bundle  = 0xC1 version zone incarnation n {message}
//	message = flags kind lsn prev at [chunk] [copy] [reason] n {row}
//	chunk   = commit chunk chunks        copy = name n (slots + 1) {slot}
//	row     = op table [definition] {value}
//	value   = 0 NULL | 1 left alone | length + 2, text
//
// table counts from 0 in the order of first use; the first use defines it: name,
// number of columns, columns. A row has a value for each.
const (
	bundleMark    = 0xC1
	bundleVersion = 1

	flagChunk  = 1 << 0 // not the whole transaction
	flagCopy   = 1 << 1
	flagReason = 1 << 2
)

var errBundle = errors.New("not a bundle of changes")

var kinds = [...]Kind{KindTx, KindResync, KindBegin, KindCopy, KindEnd, KindSchema}

var ops = [...]Op{Insert, Update, Delete}

// Encode appends messages of one zone and incarnation as a bundle. Times lose what
// is below a microsecond.
func Encode(dst []byte, ms []Message) []byte {
	var zone, incarnation string
	if len(ms) > 0 {
		zone, incarnation = ms[0].Zone, ms[0].Incarnation
	}
	dst = append(dst, bundleMark, bundleVersion)
	dst = appendText(appendText(dst, zone), incarnation)
	dst = binary.AppendUvarint(dst, uint64(len(ms)))
	e := encoder{}
	for i := range ms {
		dst = e.message(dst, &ms[i])
	}
	return dst
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

type encoder struct{ tables []Row }

func (e *encoder) message(dst []byte, m *Message) []byte {
	dst = binary.AppendUvarint(e.head(dst, m), uint64(len(m.Rows)))
	for i := range m.Rows {
		dst = e.row(dst, &m.Rows[i])
	}
	return dst
}

// head writes a message up to the number of its rows.
func (e *encoder) head(dst []byte, m *Message) []byte {
	var flags byte
	if m.Kind == KindTx && (m.Chunk != 1 || m.Chunks != 1) || m.Kind != KindTx && m.Chunk+m.Chunks+int(m.Commit) != 0 {
		flags |= flagChunk
	}
	if m.Copy != "" || m.N != 0 || m.Slots != nil {
		flags |= flagCopy
	}
	if m.Reason != "" {
		flags |= flagReason
	}
	dst = append(dst, flags, byte(slices.Index(kinds[:], m.Kind)))
	dst = binary.AppendUvarint(dst, uint64(m.LSN))
	dst = binary.AppendUvarint(dst, uint64(m.Prev))
	var at int64
	if !m.At.IsZero() {
		at = m.At.UnixMicro()
	}
	dst = binary.AppendVarint(dst, at)
	if m.Kind == KindTx || flags&flagChunk != 0 {
		dst = binary.AppendUvarint(dst, uint64(m.Commit))
	}
	if flags&flagChunk != 0 {
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, uint64(m.Chunk)), uint64(m.Chunks))
	}
	if flags&flagCopy != 0 {
		dst = binary.AppendUvarint(appendText(dst, m.Copy), uint64(m.N))
		if m.Slots == nil {
			dst = append(dst, 0)
		} else {
			dst = binary.AppendUvarint(dst, uint64(len(m.Slots))+1)
			for _, s := range m.Slots {
				dst = binary.AppendUvarint(dst, uint64(uint32(s)))
			}
		}
	}
	if flags&flagReason != 0 {
		dst = appendText(dst, m.Reason)
	}
	return dst
}

func (e *encoder) row(dst []byte, r *Row) []byte {
	dst = append(dst, byte(slices.Index(ops[:], r.Op)))
	dst = e.use(dst, r.Table, r.Columns)
	for i := range r.Columns {
		v := Value{State: Null}
		if i < len(r.Values) {
			v = r.Values[i]
		}
		switch v.State {
		case Null:
			dst = append(dst, 0)
		case Same:
			dst = append(dst, 1)
		default:
			dst = append(binary.AppendUvarint(dst, uint64(len(v.Text))+2), v.Text...)
		}
	}
	return dst
}

// use names a row's table, and defines it at its first use.
func (e *encoder) use(dst []byte, table string, columns []string) []byte {
	for n, t := range e.tables {
		if t.Table == table && sameColumns(t.Columns, columns) {
			return binary.AppendUvarint(dst, uint64(n))
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(e.tables)))
	e.tables = append(e.tables, Row{Table: table, Columns: columns})
	dst = binary.AppendUvarint(appendText(dst, table), uint64(len(columns)))
	for _, c := range columns {
		dst = appendText(dst, c)
	}
	return dst
}

// raw writes a row of what pgoutput sent, without making values of it.
func (e *encoder) raw(dst []byte, v *view, op Op, tuple []byte) ([]byte, error) {
	columns, place := v.columns, v.place
	if op == Delete {
		columns, place = v.keys, v.inKey
	}
	dst = append(dst, byte(slices.Index(ops[:], op)))
	dst = e.use(dst, v.table, columns)
	i, at := 0, 2
	for _, n := range place {
		for ; i < n; i++ {
			_, next, err := field(tuple, at)
			if err != nil {
				return dst, err
			}
			at = next
		}
		text, next, err := field(tuple, at)
		switch {
		case err != nil:
			return dst, err
		case text != nil:
			dst = append(binary.AppendUvarint(dst, uint64(len(text))+2), text...)
		case tuple[at] == 'u':
			dst = append(dst, 1)
		default:
			dst = append(dst, 0)
		}
		i, at = i+1, next
	}
	return dst, nil
}

func sameColumns(a, b []string) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// Decode reads a bundle. The rows of a table share their columns. The error says
// that it isn't a bundle, or not a whole one.
func Decode(b []byte) ([]Message, error) {
	d := decoding{in: string(b)}
	if d.byte() != bundleMark || d.byte() != bundleVersion {
		return nil, errBundle
	}
	zone, incarnation := d.text(), d.text()
	n := d.count(5)
	ms := make([]Message, 0, n)
	for range n {
		m := d.message()
		m.Zone, m.Incarnation = zone, incarnation
		if ms = append(ms, m); d.bad {
			break
		}
	}
	if d.bad || d.in != "" {
		return nil, fmt.Errorf("%w: %d bytes of it", errBundle, len(b))
	}
	return ms, nil
}

// decoding is a bundle that is being read. Once bad, it gives nothing more.
type decoding struct {
	in     string
	bad    bool
	tables []Row
}

func (d *decoding) fail() { d.in, d.bad = "", true }

func (d *decoding) byte() byte {
	if d.in == "" {
		d.fail()
		return 0
	}
	c := d.in[0]
	d.in = d.in[1:]
	return c
}

func (d *decoding) uvarint() uint64 {
	var v uint64
	for shift := 0; shift < 64; shift += 7 {
		c := d.byte()
		if v |= uint64(c&0x7f) << shift; c < 0x80 {
			return v
		}
	}
	d.fail()
	return 0
}

func (d *decoding) varint() int64 {
	u := d.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// count is a number of things that take at least size bytes each.
func (d *decoding) count(size int) int {
	n := d.uvarint()
	if n > uint64(len(d.in)/size) {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoding) number() int {
	n := d.uvarint()
	if n > 1<<31-1 {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoding) take(n int) string {
	if n > len(d.in) {
		d.fail()
		return ""
	}
	s := d.in[:n]
	d.in = d.in[n:]
	return s
}

func (d *decoding) text() string { return d.take(d.count(1)) }

func (d *decoding) message() (m Message) {
	flags, kind := d.byte(), int(d.byte())
	if kind >= len(kinds) {
		d.fail()
		return m
	}
	m.Kind, m.LSN, m.Prev = kinds[kind], LSN(d.uvarint()), LSN(d.uvarint())
	if at := d.varint(); at != 0 {
		m.At = time.UnixMicro(at).UTC()
	}
	if m.Kind == KindTx || flags&flagChunk != 0 {
		m.Commit = LSN(d.uvarint())
	}
	if m.Kind == KindTx {
		m.Chunk, m.Chunks = 1, 1
	}
	if flags&flagChunk != 0 {
		m.Chunk, m.Chunks = d.number(), d.number()
	}
	if flags&flagCopy != 0 {
		m.Copy, m.N = d.text(), d.number()
		if n := d.count(1); n > 0 {
			m.Slots = make([]int32, n-1)
			for i := range m.Slots {
				m.Slots[i] = int32(d.number())
			}
		}
	}
	if flags&flagReason != 0 {
		m.Reason = d.text()
	}
	if n := d.count(2); n > 0 {
		m.Rows = make([]Row, n)
		for i := range m.Rows {
			if m.Rows[i] = d.row(); d.bad {
				break
			}
		}
	}
	return m
}

func (d *decoding) row() (r Row) {
	op, n := int(d.byte()), d.number()
	if op >= len(ops) || n > len(d.tables) {
		d.fail()
		return r
	}
	if n == len(d.tables) {
		t := Row{Table: strings.Clone(d.text()), Columns: make([]string, d.count(1))}
		for i := range t.Columns {
			t.Columns[i] = strings.Clone(d.text()) // who keeps a name doesn't keep the bundle
		}
		d.tables = append(d.tables, t)
	}
	r = d.tables[n]
	if len(r.Columns) > len(d.in) {
		d.fail()
		return r
	}
	r.Op, r.Values = ops[op], make([]Value, len(r.Columns))
	for i := range r.Values {
		switch n := d.uvarint(); n {
		case 0:
			r.Values[i].State = Null
		case 1:
			r.Values[i].State = Same
		default:
			if n-2 > uint64(len(d.in)) {
				d.fail()
				return r
			}
			r.Values[i].Text = d.take(int(n - 2))
		}
	}
	return r
}
