package cdc

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
)

// LSN is a place in the WAL of one incarnation of a database.
type LSN uint64

// String is Postgres's way to write it.
func (l LSN) String() string { return pglogrepl.LSN(l).String() }

// MarshalText writes it as Postgres does.
func (l LSN) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (l *LSN) UnmarshalText(b []byte) error {
	v, err := pglogrepl.ParseLSN(string(b))
	if err != nil {
		return fmt.Errorf("position %q: %w", b, err)
	}
	*l = LSN(v)
	return nil
}

// Kind says what a message is.
type Kind string

// The kinds. Only Tx moves the position.
const (
	KindTx     Kind = "tx"     // a transaction, or a chunk of one; without rows a heartbeat
	KindResync Kind = "resync" // changes were lost: what comes after is not the continuation
	KindBegin  Kind = "begin"  // a copy begins
	KindCopy   Kind = "copy"   // rows of a copy
	KindEnd    Kind = "end"    // the copy is whole
	KindSchema Kind = "schema" // a table's columns are others from here on: its one row names them
)

// Message is one step of a stream's chain. The stream carries bundles of them
// (Encode).
type Message struct {
	Kind        Kind
	Zone        string
	Incarnation string // of the database; positions of two can't be compared
	// LSN is the transaction's end; of a chunk that isn't the last, its commit
	// record; of a copy's rows, the place that they were read at.
	LSN  LSN
	Prev LSN // the position before, on this stream
	// Commit is the commit record's place, the same in each chunk of a transaction.
	Commit LSN
	Chunk  int       // from 1
	Chunks int       // how many; 0 before the last
	At     time.Time // of the commit, by the database's clock
	Copy   string    // which copy, with its attempt
	N      int       // of the copy's messages, from 1
	Slots  []int32   // what a copy is of; nil = all that the sink takes
	Reason string
	Rows   []Row
}

// Op is what happened to a row.
type Op string

// What can happen to a row. An update that changes the key is a delete and an insert.
const (
	Insert Op = "I"
	Update Op = "U"
	Delete Op = "D"
)

// Row is a changed row. Columns and Values have the same length; Columns is shared
// by the rows of a table, so don't change it. Of a delete there is the key only.
type Row struct {
	Table   string
	Op      Op
	Columns []string
	Values  []Value
}

// Value is one column's value, in the database's text form.
type Value struct {
	Text  string // "" unless it was sent
	State ValueState
}

// ValueState says what is known of a value.
type ValueState byte

// The states of a value.
const (
	Sent ValueState = iota
	Null
	Same // large, and left alone by the update: not sent
)

// Value gives a column's value; false = the row hasn't that column.
func (r Row) Value(column string) (Value, bool) {
	i := slices.Index(r.Columns, column)
	if i < 0 || i >= len(r.Values) {
		return Value{}, false
	}
	return r.Values[i], true
}

// Text gives a value, "" when it is NULL or missing.
func (r Row) Text(column string) string {
	v, _ := r.Value(column)
	return v.Text
}

// size is about what the row takes in a message.
func (r Row) size() int {
	n := 8
	for _, v := range r.Values {
		n += 2 + len(v.Text)
	}
	return n
}

// StreamName is the stream of a sink's changes, in each zone's NATS.
func StreamName(sink string) string { return "CDC_" + sink }

// subject is where a zone's changes for a sink are published.
func subject(sink, zone string) string { return "cdc." + sink + "." + zone }

// askSubject is where a sink asks for a copy, in the zone's NATS.
func askSubject(sink string) string { return "cdc.copy." + sink }

// ask is the body of such a question. The same id asks for the same copy.
type ask struct {
	ID     string  `json:"id"`
	Reason string  `json:"reason"`
	Slots  []int32 `json:"slots,omitempty"` // nil = all that the sink takes
}

// StandbySink is the sink of a cell that stands by for others.
func StandbySink(cell string) string { return "standby_" + cell }

// A heartbeat is the relay's own, for every stream. A hold is a place in the WAL that
// somebody waits for standbys to pass: it goes to those that it names (c2,c3).
var (
	beatPrefix = []byte("cellmart.beat\x00")
	holdPrefix = []byte("cellmart.hold\x00")
)

// holds says whether a list of cells has one.
func holds(list, cell string) bool {
	for name := range strings.SplitSeq(list, ",") {
		if name == cell && name != "" {
			return true
		}
	}
	return false
}
