package agentapi

import (
	"context"
	"net/http"
)

// Standbys is how far a cell is with what it keeps copies of, out of its own
// database, after the commit.
type Standbys struct {
	Cell    string          `json:"cell"`
	Sources []StandbySource `json:"sources"` // by name; one that isn't there was never applied
}

// StandbySource is how far it is with one cell. Everything of the source up to LSN,
// within its incarnation, is there for the slots that are in sync.
type StandbySource struct {
	Source      string         `json:"source"`
	State       string         `json:"state"`
	Incarnation string         `json:"incarnation"`
	LSN         string         `json:"lsn"`
	LagMS       *int64         `json:"lag_ms"`    // null = unknown
	LagBytes    *int64         `json:"lag_bytes"` // null = unknown
	AgeMS       int64          `json:"age_ms"`    // of these figures
	InSync      int            `json:"in_sync"`   // slots, as are the next two
	Copying     int            `json:"copying"`
	Stopped     int            `json:"stopped"`
	InSyncSlots [][3]int64     `json:"in_sync_slots"` // runs of slots, ascending: from, to, epoch
	DroppedOld  int64          `json:"dropped_old"`   // changes of an older epoch
	Copies      int64          `json:"copies"`        // asked for
	Reasons     map[string]int `json:"reasons,omitempty"`
}

// Standby asks how far the agent's cell is with its copies.
func (c *Client) Standby(ctx context.Context) (Standbys, error) {
	var out Standbys
	return out, c.json(ctx, http.MethodGet, "/standby", nil, &out)
}
