// Package controlapi is what others may know of control: its wire types and a
// client, for agents, the set-up and cellctl.
package controlapi

import (
	"encoding/json"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
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
	ErrZone     = errs.New(errs.Unprocessable, "ROUTE_ZONE_UNKNOWN", "the route table has no such zone")
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
	Weights   map[string]int           `json:"weights,omitempty"` // for new users, by cell; 0 closes it to them
	Assign    []Assign                 `json:"assign,omitempty"`
	Standbys  []Standby                `json:"standbys,omitempty"` // after Assign, so both may name a slot
	Overrides []Override               `json:"overrides,omitempty"`
	Groups    map[string]*routing.Slot `json:"groups,omitempty"` // affinity groups pinned to a hash slot; null takes the pin out
}

// Standby makes a cell the standby of slots From to To (both included); "" = none.
type Standby struct {
	From    routing.Slot `json:"from"`
	To      routing.Slot `json:"to"`
	Standby string       `json:"standby"`
}

// Override says that a user was moved alone into a private slot. If the table
// doesn't know the slot, it's added with Owner and Standby at epoch 1; if it does,
// both are left empty, and changed with Assign and Standbys. An override is never
// taken back.
type Override struct {
	User    id.ID        `json:"user"`
	Slot    routing.Slot `json:"slot"` // routing.FirstUserSlot or above
	Owner   string       `json:"owner,omitempty"`
	Standby string       `json:"standby,omitempty"`
}

// Assign gives slots From to To (both included; all hash slots, or all private
// slots that are there) to Owner; the epoch of those that had another grows by
// one. It moves no rows: whoever assigns has moved them.
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

// Ack is what a zone's agent knows of one process: which table it holds.
type Ack struct {
	Process  string `json:"process"`
	Version  int64  `json:"version"`
	BehindMS *int64 `json:"behind_ms"` // how long it's known to hold an older one than its agent; null = it doesn't
	AgeMS    int64  `json:"age_ms"`    // since it last said so
}

// ZoneAcks is an agent's report: the table that it holds itself, and its processes.
type ZoneAcks struct {
	Zone        string `json:"zone"`
	Version     int64  `json:"version"`
	ListeningMS int64  `json:"listening_ms"` // how long the agent has listened to its processes
	Processes   []Ack  `json:"processes"`
}

// ZoneState is a report as control keeps it. AgeMS null: that zone has not
// reported since control started, and nothing is known of it.
type ZoneState struct {
	ZoneAcks
	AgeMS *int64 `json:"age_ms"`
	Done  bool   `json:"done"` // the agent and all its processes hold the version asked for
}

// Acks is the answer of GET /route/acks?version=V&wait=10s; without a version the
// newest is asked for. Complete: every zone of the table is done.
type Acks struct {
	Version  int64       `json:"version"`
	Complete bool        `json:"complete"`
	Zones    []ZoneState `json:"zones"` // by name
}

// Settled is how long an agent must have listened before its list counts as
// whole: each process speaks at least each 5 s.
const Settled = 6 * time.Second

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
