// Package controlapi is what others may know of control: its wire types and a
// client, for agents, the set-up and cellctl.
package controlapi

import (
	"encoding/json"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/routing"
)

// MaxWait is the longest long poll of GET /route.
const MaxWait = 25 * time.Second

// What control refuses.
var (
	ErrVersion  = errs.New(errs.Conflict, "ROUTE_VERSION_CONFLICT", "another table was published meanwhile")
	ErrExists   = errs.New(errs.Conflict, "ROUTE_EXISTS", "there is a route table already, with other cells")
	ErrRefused  = errs.New(errs.Unprocessable, "ROUTE_TABLE_REFUSED", "that table can't follow the current one")
	ErrNone     = errs.New(errs.Unavailable, "ROUTE_NOT_READY", "there is no route table yet").After(time.Second)
	ErrOperator = errs.New(errs.Unauthenticated, "OPERATOR_KEY_WRONG", "this needs the operator's key")
)

// Key is a public key that a cell signs tokens with.
type Key struct {
	ID  string `json:"id"`
	Key []byte `json:"key"` // base64
}

// Cell is a cell of the first table. Without an ordinal it gets its place in
// the list, from 1.
type Cell struct {
	Name    string `json:"name"`
	Ordinal int    `json:"ordinal,omitempty"`
	Region  string `json:"region"`
	Weight  int    `json:"weight"`
	Keys    []Key  `json:"keys"`
}

// InitRequest asks for version 1. Asked again it changes nothing.
type InitRequest struct {
	Cells []Cell `json:"cells"`
}

// PublishRequest asks for version ExpectVersion + 1: either a whole table (as
// routing.Table.Encode writes it) or changes to the current one.
type PublishRequest struct {
	ExpectVersion int64           `json:"expect_version"`
	Reason        string          `json:"reason"`
	Table         json.RawMessage `json:"table,omitempty"`
	Changes       *Changes        `json:"changes,omitempty"`
}

// Changes are applied to the current table, and nothing else of it changes.
type Changes struct {
	Weights map[string]int `json:"weights,omitempty"` // for new users, by cell
	Assign  []Assign       `json:"assign,omitempty"`
}

// Assign gives slots From to To (both included) to Owner; the epoch of those that
// had another grows by one. It moves no rows: whoever assigns has moved them.
type Assign struct {
	From  routing.Slot `json:"from"`
	To    routing.Slot `json:"to"`
	Owner string       `json:"owner"`
}

// Published is the answer to a write: the version that counts now.
type Published struct {
	Version int64 `json:"version"`
	Created bool  `json:"created"` // false: init found a table and left it
}

// Version describes a stored table.
type Version struct {
	Version   int64     `json:"version"`
	Reason    string    `json:"reason"`
	CreatedAt time.Time `json:"created_at"`
	AgeMS     int64     `json:"age_ms"` // on the database's clock
	Bytes     int       `json:"bytes"`
}

// Versions is the answer of GET /route/versions, newest first.
type Versions struct {
	Versions []Version `json:"versions"`
}
