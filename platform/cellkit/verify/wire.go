package verify

import (
	"context"

	"example.com/cellmart/platform/cellkit/cdc"
)

// Caller asks a cell's agent, as the operator: a POST to /admin/verify/<op>.
type Caller interface {
	Admin(ctx context.Context, method, path string, in, out any) error
}

// The questions to a Server. A snapshot goes by the id that its first question
// named.
const (
	opSlots   = "slots"   // what the cell owns and stands by for, and its tables
	opHold    = "hold"    // standby: stop before the next commit of a source
	opLock    = "lock"    // owner: snapshot and position under the slots' locks
	opAt      = "at"      // standby: snapshot at a position
	opDigest  = "digest"  // of some tables, by slot
	opRows    = "rows"    // of a slot's table, by key
	opColumns = "columns" // of a row
	opClose   = "close"
	opStrays  = "strays" // rows of slots that are nobody's here
	opRecopy  = "recopy" // standby: copy slots anew
)

// question is the body of each of them.
type question struct {
	ID          string   `json:"id,omitempty"`
	Source      string   `json:"source,omitempty"`
	Incarnation string   `json:"incarnation,omitempty"`
	LSN         cdc.LSN  `json:"lsn"`
	Slots       []int32  `json:"slots,omitempty"`
	Tables      []string `json:"tables,omitempty"`
	Table       string   `json:"table,omitempty"`
	Slot        int32    `json:"slot,omitempty"`
	After       []string `json:"after,omitempty"` // key; nil = from the start
	Upto        []string `json:"upto,omitempty"`  // key; nil = to the end
	Key         []string `json:"key,omitempty"`
	Limit       int      `json:"limit,omitempty"`
	Reason      string   `json:"reason,omitempty"`
}

// cellSlots is what a cell knows of its slots.
type cellSlots struct {
	Cell   string      `json:"cell"`
	Tables []table     `json:"tables"`
	Slots  []slotState `json:"slots"`
}

type table struct {
	Name    string   `json:"name"`
	Columns []string `json:"columns"` // with types, by name
	Key     []string `json:"key"`     // after slot
}

// slotState is a row of cell.slots, with the state of the copy.
type slotState struct {
	Slot     int32  `json:"slot"`
	Epoch    int64  `json:"epoch"`
	Role     string `json:"role"`
	Given    bool   `json:"given,omitempty"`
	Owner    string `json:"owner"`
	Standby  string `json:"standby,omitempty"`
	Incoming string `json:"incoming,omitempty"`
	Copy     string `json:"copy,omitempty"` // in_sync, copying, stopped
	Reason   string `json:"reason,omitempty"`
}

// snapshot is the answer of the owner (opLock), and of the standby (opAt).
type snapshot struct {
	Busy        bool        `json:"busy,omitempty"` // the locks weren't got: there is no snapshot
	Incarnation string      `json:"incarnation,omitempty"`
	LSN         cdc.LSN     `json:"lsn"`
	LockMS      float64     `json:"lock_ms"`
	Tries       int         `json:"tries"`
	Slots       []slotState `json:"slots"` // those asked for that are in cell.slots
}

type slotDigest struct {
	Table string `json:"table"`
	Slot  int32  `json:"slot"`
	N     int64  `json:"n"`
	Sum   string `json:"sum"`
	Xor   int64  `json:"xor"`
}

type row struct {
	Key   []string `json:"key"`
	Epoch int64    `json:"epoch"`
	Rev   int64    `json:"rev"`
	Hash  int64    `json:"hash"`
}

type stray struct {
	Table string `json:"table"`
	Slot  int32  `json:"slot"`
	N     int64  `json:"n"`
	Left  bool   `json:"left,omitempty"` // the clean-up knows of it
	Rows  []row  `json:"rows,omitempty"`
}

// cell is a Caller with its questions.
type cell struct {
	name string
	c    Caller
}

func (c cell) ask(ctx context.Context, op string, q question, out any) error {
	return c.c.Admin(ctx, "POST", "/verify/"+op, q, out)
}
