package agentapi

import "context"

// Admin asks an admin route: a comparison has its questions in package verify.
func (c *Client) Admin(ctx context.Context, method, path string, in, out any) error {
	return c.json(ctx, method, "/admin"+path, in, out)
}
