package cdc

import (
	"fmt"
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
)

// Message is what a stream carries.
type Message struct {
	Kind        Kind   `json:"kind"`
	Zone        string `json:"zone"`
	Incarnation string `json:"incarnation"` // of the database; positions of two can't be compared
	// LSN is the transaction's end; of a chunk that isn't the last, its commit
	// record; of a copy's rows, the place that they were read at.
	LSN  LSN `json:"lsn"`
	Prev LSN `json:"prev"` // the position before, on this stream
	// Commit is the commit record's place, the same in each chunk of a transaction.
	Commit LSN       `json:"commit,omitempty"`
	Chunk  int       `json:"chunk,omitempty"`  // from 1
	Chunks int       `json:"chunks,omitempty"` // how many; 0 before the last
	At     time.Time `json:"at"`               // of the commit, by the database's clock
	Copy   string    `json:"copy,omitempty"`   // which copy, with its attempt
	N      int       `json:"n,omitempty"`      // of the copy's messages, from 1
	Reason string    `json:"reason,omitempty"`
	Rows   []Row     `json:"rows,omitempty"`
}

// Op is what happened to a row.
type Op string

// What can happen to a row. An update that changes the key is a delete and an insert.
const (
	Insert Op = "I"
	Update Op = "U"
	Delete Op = "D"
)

// Row is a changed row. Values are in the database's text form, nil is NULL. Of
// an update, large values that it left alone are missing. Of a delete there is
// the key only.
type Row struct {
	Table  string             `json:"t"`
	Op     Op                 `json:"op"`
	Values map[string]*string `json:"v"`
}

// Text gives a value, "" when it is NULL or missing.
func (r Row) Text(column string) string {
	if v := r.Values[column]; v != nil {
		return *v
	}
	return ""
}

// size is about what the row takes in a message.
func (r Row) size() int {
	n := 24 + len(r.Table)
	for k, v := range r.Values {
		n += len(k) + 8
		if v != nil {
			n += len(*v)
		}
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
	ID     string `json:"id"`
	Reason string `json:"reason"`
}
