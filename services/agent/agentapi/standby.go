package agentapi

import (
	"context"
	"net/http"
	"slices"

	"example.com/cellmart/platform/routing"
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
	Source       string         `json:"source"`
	State        string         `json:"state"`  // live, copying (the whole source), unknown (a copy must come), stopped (nothing can be applied)
	Reason       string         `json:"reason"` // why it isn't live, or what is missing
	Incarnation  string         `json:"incarnation"`
	LSN          string         `json:"lsn"`
	At           string         `json:"at"`        // commit time of the newest change applied; "" = none
	LagMS        *int64         `json:"lag_ms"`    // null = unknown
	LagBytes     *int64         `json:"lag_bytes"` // received and not applied; null = unknown
	AgeMS        int64          `json:"age_ms"`    // since the source was last heard of; -1 = not since the start
	InSync       int            `json:"in_sync"`   // slots, as are the next two
	Copying      int            `json:"copying"`
	Stopped      int            `json:"stopped"`
	InSyncSlots  [][3]int64     `json:"in_sync_slots"` // runs of slots, ascending: from, to, epoch
	DroppedOld   int64          `json:"dropped_old"`   // changes of an older epoch, since the agent's start, as are the next
	DroppedOther int64          `json:"dropped_other"` // changes of slots that it doesn't stand by for
	Rows         int64          `json:"rows"`          // applied
	Gaps         int64          `json:"gaps"`          // holes in the stream
	Copies       int64          `json:"copies"`        // begun
	Reasons      map[string]int `json:"reasons,omitempty"`
}

// Has says that a slot is in sync at that epoch.
func (s StandbySource) Has(slot routing.Slot, epoch routing.Epoch) bool {
	i, found := slices.BinarySearchFunc(s.InSyncSlots, int64(slot), func(run [3]int64, n int64) int {
		switch {
		case run[1] < n:
			return -1
		case run[0] > n:
			return 1
		}
		return 0
	})
	return found && s.InSyncSlots[i][2] == int64(epoch)
}

// StandbyLately is Standby with slots as they were some seconds ago at most: it costs
// the agent one small read, and is to be shown, not to be decided by.
func (c *Client) StandbyLately(ctx context.Context) (Standbys, error) {
	var out Standbys
	return out, c.json(ctx, http.MethodGet, "/standby?lately=1", nil, &out)
}

// Standby asks how far the agent's cell is with its copies.
func (c *Client) Standby(ctx context.Context) (Standbys, error) {
	var out Standbys
	return out, c.json(ctx, http.MethodGet, "/standby", nil, &out)
}
