package agentapi

import (
	"context"
	"net/http"

	"example.com/cellmart/platform/cellkit/outputcommit"
)

// Applied asks how far the agent's cell is with a source: the answer comes as soon as
// it has passed a place, or after half a second.
func (c *Client) Applied(ctx context.Context, q outputcommit.Question) (outputcommit.Answer, error) {
	var out outputcommit.Answer
	return out, c.json(ctx, http.MethodPost, "/standby/applied", q, &out)
}
