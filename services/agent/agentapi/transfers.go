package agentapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// Listed is how many transfers a list for operators has at most: the oldest ones.
const Listed = 200

// StuckTransfer is a transfer that has not ended.
type StuckTransfer struct {
	ID       id.ID           `json:"id"`
	Cell     string          `json:"cell"`
	Kind     string          `json:"kind"`
	ToSlot   routing.Slot    `json:"to_slot"`
	State    string          `json:"state"`
	Amount   int64           `json:"amount"`
	Currency string          `json:"currency"`
	AgeMS    int64           `json:"age_ms"`
	Attempts int             `json:"attempts"`              // of the message that is open
	Answer   json.RawMessage `json:"last_answer,omitempty"` // that could not be acted on
	Parked   string          `json:"parked,omitempty"`      // why not
}

// ParkedTransfer is a message about a transfer that nobody could handle: it waits
// for a person.
type ParkedTransfer struct {
	Cell     string          `json:"cell"`
	Slot     routing.Slot    `json:"slot"`
	From     routing.Slot    `json:"from_slot"`
	Transfer string          `json:"transfer"`
	Kind     string          `json:"kind"` // transfer.credit, transfer.cancel, transfer.answer
	Reason   string          `json:"reason"`
	AgeMS    int64           `json:"age_ms"`
	Message  json.RawMessage `json:"message"`
}

// What an operator can have done to a transfer. Nothing of it moves money by
// itself: Retry and Cancel ask, Reverse begins a transfer back.
const (
	Retry   = "retry"
	Cancel  = "cancel"
	Reverse = "reverse"
)

// ValidTask says whether that can be done to a transfer.
func ValidTask(what string) bool { return what == Retry || what == Cancel || what == Reverse }

// ValidJobID says whether a job can be called that.
func ValidJobID(id string) bool { return regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`).MatchString(id) }

// The states of a job.
const (
	JobOpen   = "OPEN"
	JobDone   = "DONE"
	JobFailed = "FAILED"
)

// TransferJob is what an operator wants done to a transfer in one of its two slots,
// and what came of it. The same ID again is the same job.
type TransferJob struct {
	ID        string       `json:"id"`
	Transfer  id.ID        `json:"transfer"`
	Slot      routing.Slot `json:"slot"`
	What      string       `json:"what"`
	Reason    string       `json:"reason"`
	State     string       `json:"state,omitempty"`
	Detail    string       `json:"detail,omitempty"`
	CreatedAt time.Time    `json:"created_at,omitzero"`
	EndedAt   *time.Time   `json:"ended_at,omitempty"`
}

// Parked lists what is parked of transfers in this cell, oldest first.
func (c *Client) Parked(ctx context.Context) ([]ParkedTransfer, error) {
	var out struct {
		Items []ParkedTransfer `json:"items"`
	}
	return out.Items, c.json(ctx, http.MethodGet, "/admin/transfers/parked", nil, &out)
}

// AskJob has something done to a transfer; Job says how it stands.
func (c *Client) AskJob(ctx context.Context, j TransferJob) (TransferJob, error) {
	var out TransferJob
	return out, c.json(ctx, http.MethodPost, "/admin/transfers/"+j.Transfer.String()+"/jobs", j, &out)
}

// Job reads a job of this cell.
func (c *Client) Job(ctx context.Context, job string) (TransferJob, error) {
	var out TransferJob
	return out, c.json(ctx, http.MethodGet, "/admin/transfers/jobs/"+url.PathEscape(job), nil, &out)
}
