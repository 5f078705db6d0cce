// Package idgenapi is what others may know of idgen: the kinds, the wire types
// and the client that cellkit's id.Client leases with.
package idgenapi

import (
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

// The kinds of IDs. Their place in Kinds is part of what is stored: append only.
const (
	User     = "user"
	Product  = "product"
	SKU      = "sku"
	Order    = "order"
	Transfer = "transfer"
	Hold     = "hold"
	Address  = "address"
	Deposit  = "deposit"
)

// Kinds lists the kinds; a kind's number is its place, from 1.
func Kinds() []string { return []string{User, Product, SKU, Order, Transfer, Hold, Address, Deposit} }

// What idgen refuses a lease with.
var (
	ErrKind   = errs.New(errs.Invalid, "IDS_UNKNOWN_KIND", "there is no such kind of ID").At("kind")
	ErrPaused = errs.New(errs.Unavailable, "IDGEN_PAUSED", "the ID database restarted or was replaced, leases pause until no old one can overlap")
	ErrBudget = errs.New(errs.Unavailable, "IDGEN_BUDGET", "the budget of this kind is used up for the moment").After(time.Second)
	ErrClock  = errs.New(errs.Unavailable, "IDGEN_CLOCK", "the clocks disagree, no lease can be given").After(5 * time.Second)
)

// LeaseRequest asks for up to Size sequences of a kind, all at or above Floor.
// Numbers are strings in JSON: they pass 2^53.
type LeaseRequest struct {
	Kind   string `json:"kind"`
	Floor  int64  `json:"floor,string"`            // the end of the caller's last lease, 0 = none
	Size   int64  `json:"size,string"`             //
	NowMS  int64  `json:"now_ms,string,omitempty"` // the caller's clock, Unix; 0 = not said
	Holder string `json:"holder,omitempty"`        // who asks, for the journal
}

// Lease is the range [Lo, Hi), and what the next step is made of.
type Lease struct {
	Lo      int64 `json:"lo,string"`
	Hi      int64 `json:"hi,string"`
	Left    int64 `json:"left,string"` // of the budget after this lease
	Holders int   `json:"holders"`     // who leased of this kind within an hour
}

// Status is the answer of GET /status.
type Status struct {
	NowMS       int64        `json:"now_ms,string"` // idgen's clock, Unix
	Incarnation string       `json:"incarnation"`   // of the database, as it is now
	Kinds       []KindStatus `json:"kinds"`
}

// KindStatus is how one kind stands. Of a kind without a row only its name is known.
type KindStatus struct {
	Kind        string  `json:"kind"`
	Hi          int64   `json:"hi,string"`
	BudgetUsed  float64 `json:"budget_used"` // 0..1; above 1 the clock is behind hi
	PausedForMS int64   `json:"paused_for_ms"`
	Changed     bool    `json:"changed"` // incarnation differs, or no row: the next lease starts a pause
	YearsLeft   float64 `json:"years_left"`
}
