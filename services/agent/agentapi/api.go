// Package agentapi is what others may know of an agent: wire types and a client
// for peers, cellctl and tests.
package agentapi

import (
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// What an agent refuses.
var (
	ErrOperator = errs.New(errs.Unauthenticated, "OPERATOR_KEY_WRONG", "this needs the operator's key")
	ErrNoTable  = errs.New(errs.Unavailable, "ROUTE_NOT_READY", "there is no route table yet")
)

// Link is the state of the link to one zone, ages in milliseconds, -1 = never.
type Link struct {
	Up      bool    `json:"up"`
	SinceMS int64   `json:"since_ms"`
	RTTMS   float64 `json:"rtt_ms"`
	AgeMS   int64   `json:"age_ms"`
	Reason  string  `json:"reason,omitempty"`
}

// Fault is what is done to a link on purpose. Peer "*" is all of them.
type Fault struct {
	DelayMS int64 `json:"delay_ms"`
	CutOut  bool  `json:"cut_out"`
	CutIn   bool  `json:"cut_in"`
}

// Process is what the agent knows of the table that one process of its zone
// holds. A process that is silent stays listed with its age for 10 minutes; one
// that never spoke isn't known, so a list counts when the agent has listened for
// longer than the 5 s between two words.
type Process struct {
	Process  string `json:"process"`
	Version  int64  `json:"version"`
	BehindMS *int64 `json:"behind_ms"` // how long it's known to hold an older one than the agent; null = it doesn't
	AgeMS    int64  `json:"age_ms"`    // since it last said so
}

// Status is a zone as its agent sees it. Database is nil where it can't be asked
// (or there is none), with the reason in DatabaseError.
type Status struct {
	Cell          string           `json:"cell"`
	RouteVersion  int64            `json:"route_version"`
	AppliedRoute  int64            `json:"applied_route"`
	ControlAgeMS  int64            `json:"control_age_ms"` // since control answered; -1 = never
	Route         []Process        `json:"route"`          // who holds which table, by name
	ListeningMS   int64            `json:"listening_ms"`
	Links         map[string]Link  `json:"links"`
	Faults        map[string]Fault `json:"faults"`
	ClockOffsetMS int64            `json:"clock_offset_ms"`
	Requests      *Requests        `json:"requests"` // null = no gateway was heard
	Cover         *Cover           `json:"cover"`    // standbys of the own slots; null = no table yet, or no cell
	Sinks         []Sink           `json:"sinks"`    // of the zone's changes, by name; null = not known, or none are told

	// Commit is the outputs that wait for standbys, and the slots that are marked
	// uncovered; null = no cell.
	Commit *OutputCommit `json:"output_commit"`

	Reconciled    []Reconciled `json:"reconciled"` // transfers to each cell, both sides compared; null = no cell
	Books         []LedgerLook `json:"books"`      // the last look at the own ledger
	Database      *Database    `json:"database"`
	DatabaseError string       `json:"database_error,omitempty"`
}

// Clock is how far the clock of a zone's processes is set wrong.
type Clock struct {
	OffsetMS int64 `json:"offset_ms"`
}

// Offset is the same as a duration.
func (c Clock) Offset() time.Duration { return time.Duration(c.OffsetMS) * time.Millisecond }

// Database is what status shows of the cell's database.
type Database struct {
	LeaseLeftMS  int64 `json:"lease_left_ms"` // -1 = never ends
	Owned        int   `json:"slots_owned"`
	Due          int   `json:"messages_due"`
	Open         int   `json:"messages_open"`
	OldestOpenMS int64 `json:"oldest_open_ms"`
	Parked       int   `json:"parked"`
	Stuck        int   `json:"transfers_stuck"` // not ended after 30 s

	Leftovers *Leftovers `json:"leftovers"` // null = could not be counted
	Misplaced *Misplaced `json:"misplaced"` // null = nobody has looked yet
}

// Misplaced is how many rows were in the wrong place (I2), and how long ago.
type Misplaced struct {
	Rows  int64 `json:"rows"`
	AgeMS int64 `json:"age_ms"`
}

// Transfer is what one cell has of a transfer: the source's side, the
// destination's, or both.
type Transfer struct {
	Cell   string `json:"cell"`
	Source *Side  `json:"source"`
	Dest   *Side  `json:"destination"`
	Story  []Line `json:"story"` // oldest first
}

// Side is a row of the source or the destination.
type Side struct {
	Slot     routing.Slot `json:"slot"`
	State    string       `json:"state"`
	From     id.ID        `json:"from_user"`
	To       id.ID        `json:"to_user"`
	Amount   int64        `json:"amount"` // minor units
	Currency string       `json:"currency"`
	Reason   string       `json:"reason,omitempty"`
}

// Line is one thing that happened to a transfer, at the cell's clock.
type Line struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
}
