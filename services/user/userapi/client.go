package userapi

import (
	"context"
	"net/http"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/id"
)

// Client asks the user service of the own cell.
type Client struct{ c *call.Client }

// NewClient wraps a client that has the service's address.
func NewClient(c *call.Client) *Client { return &Client{c: c} }

// Lookup gives the user that has a phone, in whatever cell; errs.ErrNotFound.
func (c *Client) Lookup(ctx context.Context, phone string) (id.ID, error) {
	var out LookupAnswer
	err := c.c.JSON(ctx, http.MethodPost, "/internal/lookup", LookupRequest{Phone: phone}, &out)
	return out.UserID, err
}

// User gives a user of this cell; errs.ErrNotFound.
func (c *Client) User(ctx context.Context, user id.ID) (User, error) {
	var out User
	err := c.c.JSON(ctx, http.MethodGet, "/internal/users/"+user.String(), nil, &out)
	return out, err
}

// Address gives one of a user's addresses; errs.ErrNotFound.
func (c *Client) Address(ctx context.Context, user, address id.ID) (Address, error) {
	var out Address
	err := c.c.JSON(ctx, http.MethodGet, "/internal/users/"+user.String()+"/addresses/"+address.String(), nil, &out)
	return out, err
}
