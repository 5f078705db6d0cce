package agentapi

import (
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// The parts of the facts. Check reads them in an order that makes a difference
// certain: what must come first is read last.
const (
	PartLocal  = "local"  // what one database says of itself
	PartSource = "source" // transfers, orders, claims: what starts things
	PartDest   = "destination"
)

// Facts is one part of what one cell has, from one snapshot.
type Facts struct {
	Cell      string           `json:"cell"`
	Owned     []SlotRange      `json:"owned"`
	Checked   map[string]int64 `json:"checked,omitempty"` // rows looked at, by invariant
	Found     []Found          `json:"found,omitempty"`
	Leftovers *Leftovers       `json:"leftovers,omitempty"`

	Reconciled []Reconciled `json:"reconciled,omitempty"` // with the local part, as are the books
	Books      []LedgerLook `json:"books,omitempty"`

	Transfers []TransferFact `json:"transfers,omitempty"`
	Orders    []OrderFact    `json:"orders,omitempty"`
	Claims    []ClaimFact    `json:"claims,omitempty"`
	Credits   []CreditFact   `json:"credits,omitempty"`
	Holds     []HoldFact     `json:"holds,omitempty"`
	Users     []UserFact     `json:"users,omitempty"`
}

// SlotRange is slots From to To that the cell owns, actively, at one epoch.
type SlotRange struct {
	From  routing.Slot  `json:"from"`
	To    routing.Slot  `json:"to"`
	Epoch routing.Epoch `json:"epoch"`
}

// Found is a violation that one database shows by itself.
type Found struct {
	ID   string `json:"id"` // I3
	Text string `json:"text"`
}

// Leftovers are rows of slots that the cell has let go of and hasn't cleaned up yet.
// Held are slots that another cell took from it: their rows stay until somebody has
// looked at them.
type Leftovers struct {
	Slots    int   `json:"slots"`
	Held     int   `json:"held"`
	Rows     int64 `json:"rows"`
	OldestMS int64 `json:"oldest_ms"`
	Deleted  int64 `json:"deleted"` // ever
}

// TransferFact is a source's row.
type TransferFact struct {
	ID       id.ID        `json:"id"`
	State    string       `json:"state"`
	ToSlot   routing.Slot `json:"to_slot"`
	To       id.ID        `json:"to"`
	Amount   int64        `json:"amount"`
	Currency string       `json:"currency"`
}

// CreditFact is a destination's row.
type CreditFact struct {
	ID       id.ID        `json:"id"` // the transfer's
	FromSlot routing.Slot `json:"from_slot"`
	State    string       `json:"state"`
	To       id.ID        `json:"to"`
	Amount   int64        `json:"amount"`
	Currency string       `json:"currency"`
}

// OrderFact is an order with the holds that it knows of.
type OrderFact struct {
	ID    id.ID       `json:"id"`
	State string      `json:"state"`
	Holds []OrderHold `json:"holds"`
}

// OrderHold is a seller's part of an order, as the buyer's home knows it.
type OrderHold struct {
	ID    id.ID        `json:"id"`
	Slot  routing.Slot `json:"slot"`
	State string       `json:"state"`
	Units int64        `json:"units"`
}

// HoldFact is a hold at the seller's home.
type HoldFact struct {
	ID        id.ID        `json:"id"`
	Order     id.ID        `json:"order"`
	BuyerSlot routing.Slot `json:"buyer_slot"`
	State     string       `json:"state"`
	Units     int64        `json:"units"`
}

// ClaimFact is a phone's claim at the phone's home.
type ClaimFact struct {
	Phone    string       `json:"phone"` // keyed hash, hex
	State    string       `json:"state"`
	User     id.ID        `json:"user"`
	UserSlot routing.Slot `json:"user_slot"`
}

// UserFact is a user who exists.
type UserFact struct {
	ID    id.ID        `json:"id"`
	Phone string       `json:"phone"`      // keyed hash, hex
	Claim routing.Slot `json:"claim_slot"` // the phone's home
}

// Result is what is said of one invariant. OK is nil while it isn't known.
type Result struct {
	ID         string   `json:"id"`
	What       string   `json:"what"`
	OK         *bool    `json:"ok"`
	Checked    int64    `json:"checked"`
	Violations []string `json:"violations"`
	Missing    []string `json:"missing,omitempty"` // cells that could not be read, and why
	Notes      []string `json:"notes,omitempty"`   // what is no violation, and worth knowing
	AgeMS      int64    `json:"age_ms"`
}
