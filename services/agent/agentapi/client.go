package agentapi

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// Client calls one agent. The zero HTTP works on the own machine.
type Client struct {
	BaseURL     string
	HTTP        *http.Client
	Key         ed25519.PublicKey // control's, for Route
	OperatorKey string            // for the admin calls
}

// Route gives the agent's table if it's newer than after, else nil.
func (c *Client) Route(ctx context.Context, after int64) (*routing.Table, []byte, error) {
	b, err := c.do(ctx, http.MethodGet, fmt.Sprintf("/route?after=%d", after), nil)
	if err != nil || len(b) == 0 {
		return nil, nil, err
	}
	t, err := routing.Open(c.Key, b)
	return t, b, err
}

// Status asks how the zone is.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var out Status
	return out, c.json(ctx, http.MethodGet, "/admin/status", nil, &out)
}

// SetFault sets or, with the zero Fault, lifts a fault on the link to a peer.
func (c *Client) SetFault(ctx context.Context, peer string, f Fault) error {
	return c.json(ctx, http.MethodPut, "/admin/faults/"+url.PathEscape(peer), f, nil)
}

// IDs asks how the zone stands with its IDs.
func (c *Client) IDs(ctx context.Context) (id.CellFigures, error) {
	var out id.CellFigures
	return out, c.json(ctx, http.MethodGet, "/admin/ids", nil, &out)
}

// SetClock sets the clock of the zone's processes wrong by d, or right with 0.
func (c *Client) SetClock(ctx context.Context, d time.Duration) error {
	return c.json(ctx, http.MethodPut, "/admin/clock", Clock{OffsetMS: d.Milliseconds()}, nil)
}

// Facts reads one part of what the invariants are checked from.
func (c *Client) Facts(ctx context.Context, part string) (Facts, error) {
	var out Facts
	return out, c.json(ctx, http.MethodGet, "/admin/facts/"+part, nil, &out)
}

// Transfer gives what this cell has of a transfer.
func (c *Client) Transfer(ctx context.Context, id string) (Transfer, error) {
	var out Transfer
	return out, c.json(ctx, http.MethodGet, "/admin/transfers/"+url.PathEscape(id), nil, &out)
}

// Stuck lists transfers of this cell that have not ended, oldest first.
func (c *Client) Stuck(ctx context.Context) ([]StuckTransfer, error) {
	var out struct {
		Items []StuckTransfer `json:"items"`
	}
	return out.Items, c.json(ctx, http.MethodGet, "/admin/transfers", nil, &out)
}

func (c *Client) json(ctx context.Context, method, path string, in, out any) error {
	b, err := c.do(ctx, method, path, in)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(b, out); err != nil {
		return errs.ErrUnavailable.Because(fmt.Errorf("answer of the agent: %w", err))
	}
	return nil
}

func (c *Client) do(ctx context.Context, method, path string, in any) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var body io.Reader = http.NoBody
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.BaseURL+path, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.OperatorKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.OperatorKey)
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, errs.ErrUnavailable.Because(fmt.Errorf("ask the agent: %w", err))
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, errs.ErrUnavailable.Because(err)
	}
	if resp.StatusCode >= 300 {
		return nil, call.DecodeProblem(resp.StatusCode, resp.Header, b)
	}
	return b, nil
}
