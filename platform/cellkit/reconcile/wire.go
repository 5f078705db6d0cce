package reconcile

import (
	"context"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// Caller asks a cell's agent, as the operator: a POST to /admin/reconcile/<op>.
type Caller interface {
	Admin(ctx context.Context, method, path string, in, out any) error
}

// The questions to a Reconciler.
const (
	opSpan    = "span"    // with whom to compare, and from when
	opCompare = "compare" // payers' cell: all of this, with one other
	opDigest  = "digest"  // payees' cell: of a scope, by hour or part
	opRows    = "rows"    // payees' cell: of a scope's parts
	opLook    = "look"    // payees' cell: some transfers
)

// question is the body of each of them.
type question struct {
	To    string    `json:"to,omitempty"` // compare: the payees' cell
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`

	Oldest bool `json:"oldest,omitempty"` // span: find it

	Scope *scope  `json:"scope,omitempty"`
	Parts []int32 `json:"parts,omitempty"`
	Refs  []ref   `json:"refs,omitempty"`
}

// scope is whose transfers are meant, from when to when: slots are written as
// Postgres writes an int4multirange.
type scope struct {
	From  string    `json:"from_slots"`
	To    string    `json:"to_slots"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	Open  []id.ID   `json:"open,omitempty"` // left out
	Parts bool      `json:"parts,omitempty"`
}

// group is the sums of one hour, or of one part of it.
type group struct {
	Key      int64  `json:"key"` // hour since 1970, or part
	End      string `json:"end"` // SETTLED or REVERSED
	Currency string `json:"currency"`
	N        int64  `json:"n"`
	Sum      string `json:"sum"`
	Xor      int64  `json:"xor"`
}

// line is a transfer that has ended, on one side.
type line struct {
	ref
	End  string `json:"end"`
	Hash int64  `json:"hash"`
}

// ref says where to look for a transfer.
type ref struct {
	ID   id.ID        `json:"id"`
	From routing.Slot `json:"from_slot"`
	To   routing.Slot `json:"to_slot"`
}

// row is what one side has of a transfer.
type row struct {
	Owned    bool      `json:"owned"` // the slot is this cell's: its word counts
	State    string    `json:"state"` // "" = no row
	Amount   int64     `json:"amount"`
	Currency string    `json:"currency"`
	FromUser id.ID     `json:"from_user,omitzero"`
	ToUser   id.ID     `json:"to_user,omitzero"`
	At       time.Time `json:"at"`
	Asked    bool      `json:"asked,omitempty"` // payer: a message is out for it

	// Which reigns of the payer's and the payee's slot this cell knows.
	FromEpoch routing.Epoch `json:"from_epoch"`
	ToEpoch   routing.Epoch `json:"to_epoch"`
}

// span is what there is to compare.
type span struct {
	Cell   string     `json:"cell"`
	Cells  []string   `json:"cells"`  // that own slots, as far as this cell knows
	Owned  string     `json:"owned"`  // its own slots
	Oldest *time.Time `json:"oldest"` // nil = nothing
	Now    time.Time  `json:"now"`
}

type digests struct {
	Groups []group `json:"groups"`
}

type lines struct {
	Lines []line `json:"lines"`
	More  bool   `json:"more,omitempty"` // than were listed
}

type rows struct {
	Rows []row `json:"rows"` // one for each ref
}
