package agentapi

import (
	"context"
	"net/http"

	"example.com/cellmart/platform/routing"
)

// Question asks a standby's agent how far it is with an owner's changes: at once if
// it has passed LSN, or if one of the slots isn't in sync there; else as soon as it
// has, and after half a second anyway.
type Question struct {
	Source string         `json:"source"`
	LSN    int64          `json:"lsn"`
	Slots  []routing.Slot `json:"slots"`
}

// Answer is out of one snapshot of the standby's own database.
type Answer struct {
	Incarnation string                         `json:"incarnation"` // of the source's database; "" = nothing was ever applied
	LSN         int64                          `json:"lsn"`         // everything of the source up to there is applied
	InSync      map[routing.Slot]routing.Epoch `json:"in_sync"`     // of the slots that were asked for
}

// Applied asks the agent of a standby.
func (c *Client) Applied(ctx context.Context, q Question) (Answer, error) {
	var out Answer
	return out, c.json(ctx, http.MethodPost, "/standby/applied", q, &out)
}

// OutputCommit is the outputs that wait for standbys, and the slots whose outputs
// didn't. Counts are since the agent's start.
type OutputCommit struct {
	Mode      string            `json:"mode"` // timed, strict, off
	Held      int               `json:"held"`
	OldestMS  int64             `json:"oldest_ms"` // of what is held
	Released  map[string]uint64 `json:"released"`  // by how: covered, timed, uncovered, unmarked, alone
	Uncovered *Uncovered        `json:"uncovered"` // null = not read yet, or off
}

// Uncovered is the own slots that are marked: their outputs don't wait, and nobody may
// be promoted on their copies.
type Uncovered struct {
	Slots    int               `json:"slots"`
	Untold   int               `json:"untold"` // of which control doesn't know
	OldestMS int64             `json:"oldest_ms"`
	Ranges   [][2]routing.Slot `json:"ranges"` // the first of them
	AgeMS    int64             `json:"age_ms"` // since that was read
}
