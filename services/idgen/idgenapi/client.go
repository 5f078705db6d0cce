package idgenapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
)

const maxAnswer = 64 << 10

// Client calls idgen across the border. Besides the agents' calls it is the only
// one that may, since no request ever waits for it: given a request's context it
// refuses.
type Client struct {
	Holder string           // for the journal: "c1/order"
	Clock  func() time.Time // default time.Now

	base string
	http *http.Client

	mu   sync.Mutex
	room map[string]room
}

// room is what idgen said with the last lease of a kind.
type room struct {
	left    int64
	holders int
	at      time.Time
}

// NewClient calls idgen at base (http://idgen) through hc, whose transport dials
// by the own agent's link. hc nil is the plain client, for tests and tools.
func NewClient(base string, hc *http.Client) *Client {
	if hc == nil {
		hc = http.DefaultClient
	}
	return &Client{base: strings.TrimSuffix(base, "/"), http: hc}
}

// Lease asks once for a range; it is an id.LeaseFunc. After any error the range,
// if there was one, is forgotten: nobody ever gets it.
func (c *Client) Lease(ctx context.Context, kind string, floor, size int64) (lo, hi int64, err error) {
	now := time.Now()
	if c.Clock != nil {
		now = c.Clock()
	}
	var out Lease
	err = c.call(ctx, http.MethodPost, "/leases", LeaseRequest{Kind: kind, Floor: floor, Size: size, NowMS: now.UnixMilli(), Holder: c.Holder}, &out)
	if err != nil {
		return 0, 0, fmt.Errorf("lease %s: %w", kind, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.room == nil {
		c.room = map[string]room{}
	}
	c.room[kind] = room{out.Left, out.Holders, time.Now()}
	return out.Lo, out.Hi, nil
}

// Room is what is left of a kind's budget by the last lease, grown since as time
// lets it, and among how many it is shared; it is an id.RoomFunc.
func (c *Client) Room(kind string) id.Room {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.room[kind]
	if !ok {
		return id.Room{}
	}
	return id.Room{Left: min(r.left+id.PerMilli*time.Since(r.at).Milliseconds(), id.PerMilli*id.Budget.Milliseconds()), Holders: r.holders}
}

// Status asks how all kinds stand.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var out Status
	err := c.call(ctx, http.MethodGet, "/status", nil, &out)
	return out, err
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	if _, ok := call.RouteFrom(ctx); ok {
		return errs.ErrViolation.Because(fmt.Errorf("a request must not wait for idgen"))
	}
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return errs.ErrUnavailable.Because(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return errs.ErrUnavailable.Because(err)
	}
	if res.StatusCode != http.StatusOK {
		return call.DecodeProblem(res.StatusCode, res.Header, b)
	}
	if err := json.Unmarshal(b, out); err != nil {
		return errs.ErrInternal.Because(fmt.Errorf("answer of idgen: %w", err))
	}
	return nil
}
