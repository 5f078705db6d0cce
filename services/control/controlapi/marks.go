package controlapi

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"example.com/cellmart/platform/routing"
)

// Mark says that outputs of a slot have left although its standby may not have them:
// until the mark is lifted nobody may be promoted on the copy.
type Mark struct {
	Slot        routing.Slot  `json:"slot"`
	Epoch       routing.Epoch `json:"epoch"`       // of the owner
	Incarnation string        `json:"incarnation"` // of its database
	Token       int64         `json:"token"`       // grows from mark to mark within that: a lift names the newest that it lifts
	Since       time.Time     `json:"since"`
}

// MarkChange is an owner's word on its slots: these are uncovered, those are not any
// more. Said again it changes nothing.
type MarkChange struct {
	Cell string `json:"cell"`
	Set  []Mark `json:"set,omitempty"`
	Lift []Mark `json:"lift,omitempty"`
}

// Marked is a mark as control keeps it.
type Marked struct {
	Mark
	Cell  string `json:"cell"`
	AgeMS int64  `json:"age_ms"` // since control was told, by its database's clock
	// Over: the slot has another owner since, or a higher epoch, so it says nothing any more.
	Over bool `json:"over"`
}

// Marks is the answer of GET /marks: nobody may be promoted for these slots, unless
// the mark is over.
type Marks struct {
	Marks []Marked `json:"marks"` // by slot
}

// SetMarks sets and lifts marks; only an agent does.
func (c *Client) SetMarks(ctx context.Context, m MarkChange) error {
	_, _, err := c.do(ctx, 0, http.MethodPost, "/marks", m)
	return err
}

// Marks lists the marks of one cell's slots; "" = all.
func (c *Client) Marks(ctx context.Context, cell string) (Marks, error) {
	var out Marks
	return out, c.json(ctx, http.MethodGet, "/marks?cell="+url.QueryEscape(cell), nil, &out)
}
