package controlapi

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/routing"
)

const maxAnswer = 8 << 20

// Client calls control. The zero values of HTTP and Timeout work. It refuses to
// be used for a user's request: control is never on a request's path.
type Client struct {
	BaseURL     string            // http://host:port; over a link the host is only a name; an operator's is AGENT/admin/control
	HTTP        *http.Client      // over a link: a transport that dials through the own agent
	Key         ed25519.PublicKey // control's, for Route
	OperatorKey string            // for Init and Publish, and for everything by way of an agent
	Timeout     time.Duration     // beyond the asked wait, default 5 s
}

// Route fetches the newest table and checks it. Unless one newer than after is
// there it waits for up to wait (at most MaxWait), and then gives nil and no
// error. The bytes are the signed form, to be stored and pushed as they are.
func (c *Client) Route(ctx context.Context, after int64, wait time.Duration) (*routing.Table, []byte, error) {
	path := fmt.Sprintf("/route?after=%d&wait=%s", after, min(wait, MaxWait))
	status, b, err := c.do(ctx, wait, http.MethodGet, path, nil)
	if err != nil || status == http.StatusNoContent {
		return nil, nil, err
	}
	t, err := routing.Open(c.Key, b)
	if err != nil {
		return nil, nil, fmt.Errorf("table from control: %w", err)
	}
	return t, b, nil
}

// Versions lists the stored tables, newest first.
func (c *Client) Versions(ctx context.Context) (Versions, error) {
	var out Versions
	return out, c.json(ctx, http.MethodGet, "/route/versions", nil, &out)
}

// Report tells control what an agent knows of its zone.
func (c *Client) Report(ctx context.Context, z ZoneAcks) error {
	_, _, err := c.do(ctx, 0, http.MethodPost, "/route/acks", z)
	return err
}

// Acks asks who holds the version, 0 = the newest, and waits for up to wait until
// all do.
func (c *Client) Acks(ctx context.Context, version int64, wait time.Duration) (Acks, error) {
	var out Acks
	_, b, err := c.do(ctx, wait, http.MethodGet, fmt.Sprintf("/route/acks?version=%d&wait=%s", version, min(wait, MaxWait)), nil)
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return out, errs.ErrUnavailable.Because(fmt.Errorf("answer of control: %w", err))
	}
	return out, nil
}

// Init publishes version 1, or finds that it's there.
func (c *Client) Init(ctx context.Context, req InitRequest) (Published, error) {
	var out Published
	return out, c.json(ctx, http.MethodPost, "/route/init", req, &out)
}

// Publish publishes the version after the expected one; errors.Is(err,
// ErrVersion) when that isn't the newest any more.
func (c *Client) Publish(ctx context.Context, req PublishRequest) (Published, error) {
	var out Published
	return out, c.json(ctx, http.MethodPost, "/route/publish", req, &out)
}

func (c *Client) json(ctx context.Context, method, path string, in, out any) error {
	_, b, err := c.do(ctx, 0, method, path, in)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, out); err != nil {
		return errs.ErrUnavailable.Because(fmt.Errorf("answer of control: %w", err))
	}
	return nil
}

func (c *Client) do(ctx context.Context, wait time.Duration, method, path string, in any) (int, []byte, error) {
	if _, ok := call.RouteFrom(ctx); ok {
		return 0, nil, errs.ErrViolation.Because(errors.New("a request must not wait for control"))
	}
	var body io.Reader = http.NoBody
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return 0, nil, err
		}
		body = bytes.NewReader(b)
	}
	timeout := c.Timeout
	if timeout <= 0 {
		timeout = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout+min(wait, MaxWait))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.BaseURL+path, body)
	if err != nil {
		return 0, nil, err
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
		return 0, nil, errs.ErrUnavailable.Because(fmt.Errorf("ask control: %w", err))
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return 0, nil, errs.ErrUnavailable.Because(fmt.Errorf("answer of control: %w", err))
	}
	if resp.StatusCode >= 300 {
		return 0, nil, call.DecodeProblem(resp.StatusCode, resp.Header, b)
	}
	return resp.StatusCode, b, nil
}
