package agentapi

import (
	"context"
	"net/http"

	"example.com/cellmart/platform/routing"
)

// Incoming asks the owner of slots to have Target brought there beside their
// standbys, or with "" to let go of the one that is. Without slots it asks only
// where the owner is. Done again it changes nothing. With Gate, of a target that is
// in sync, no output of the slots leaves from the answer's LSN on before the target
// has it.
type Incoming struct {
	Slots  []routing.Slot `json:"slots"`
	Target string         `json:"target"`
	Gate   bool           `json:"gate,omitempty"`
}

// Here is where a cell's database is. What was committed before the question lies
// before LSN, within that incarnation.
type Here struct {
	Changed      int    `json:"changed"` // slots that the question changed
	Incarnation  string `json:"incarnation"`
	LSN          string `json:"lsn"`
	AppliedRoute int64  `json:"applied_route"` // the table that it has
}

// SetIncoming asks the agent of the slots' owner; needs the operator's key.
func (c *Client) SetIncoming(ctx context.Context, in Incoming) (Here, error) {
	var out Here
	return out, c.json(ctx, http.MethodPost, "/incoming", in, &out)
}
