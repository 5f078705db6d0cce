package controlapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/routing"
)

// What control refuses of an exchange of standbys.
var (
	ErrExchangeOpen = errs.New(errs.Conflict, "EXCHANGE_OPEN", "another exchange of standbys has some of these slots")
	ErrNoExchange   = errs.New(errs.NotFound, "EXCHANGE_UNKNOWN", "there is no such exchange of standbys")
)

// ExchangeRequest asks that slots get other standbys, without a gap: the new one is
// brought there beside the old one, which goes when the table says so. Spread
// plans all slots anew, evenly over the cells.
type ExchangeRequest struct {
	Reason   string    `json:"reason"`
	Spread   bool      `json:"spread,omitempty"`
	Standbys []Standby `json:"standbys,omitempty"`
}

// The states of a part of an exchange.
const (
	Planned    = "PLANNED"
	Copying    = "COPYING"
	Switched   = "SWITCHED"
	Done       = "DONE"
	Cancelling = "CANCELLING"
	Cancelled  = "CANCELLED"
)

// ExchangePart is all slots of an exchange that one cell owns and another one is
// to stand by for.
type ExchangePart struct {
	Part     int               `json:"part"`
	Owner    string            `json:"owner"`
	Target   string            `json:"target"`
	Slots    int               `json:"slots"`
	Ranges   [][2]routing.Slot `json:"ranges"`
	State    string            `json:"state"`
	Version  int64             `json:"version,omitempty"` // of the table that names the target
	Detail   string            `json:"detail,omitempty"`  // what it waits for, or why it ended
	StateMS  int64             `json:"state_ms"`          // since it came to this state
	LookedMS *int64            `json:"looked_ms"`         // age of the detail; null = not looked at yet
}

// Ended says that nothing more becomes of it.
func (p ExchangePart) Ended() bool { return p.State == Done || p.State == Cancelled }

// Exchange is a stored job. ID 0: everything was as asked for, and nothing is stored.
type Exchange struct {
	ID        int64          `json:"id"`
	Reason    string         `json:"reason"`
	CreatedAt time.Time      `json:"created_at"`
	AgeMS     int64          `json:"age_ms"`
	Parts     []ExchangePart `json:"parts"`
}

// Ended says that all its parts have.
func (x Exchange) Ended() bool {
	for _, p := range x.Parts {
		if !p.Ended() {
			return false
		}
	}
	return true
}

// Exchanges is the answer of GET /exchanges, newest first.
type Exchanges struct {
	Exchanges []Exchange `json:"exchanges"`
}

// Exchange begins one; it goes on by itself.
func (c *Client) Exchange(ctx context.Context, req ExchangeRequest) (Exchange, error) {
	var out Exchange
	return out, c.json(ctx, http.MethodPost, "/exchanges", req, &out)
}

// Exchanges lists the newest ones, and all that have not ended.
func (c *Client) Exchanges(ctx context.Context) (Exchanges, error) {
	var out Exchanges
	return out, c.json(ctx, http.MethodGet, "/exchanges", nil, &out)
}

// CancelExchange gives up what isn't switched yet: the standbys stay as they are.
func (c *Client) CancelExchange(ctx context.Context, id int64) (Exchange, error) {
	var out Exchange
	return out, c.json(ctx, http.MethodPost, fmt.Sprintf("/exchanges/%d/cancel", id), struct{}{}, &out)
}
