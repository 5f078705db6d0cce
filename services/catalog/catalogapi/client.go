package catalogapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/id"
)

// MaxSKUs is how many SKUs one call may ask for.
const MaxSKUs = 200

// Client asks the own cell's copy. Calls need a route in their context.
type Client struct{ call *call.Client }

// NewClient calls the copy of the given cell at base (http://host:port).
func NewClient(cell, base string) *Client {
	return &Client{call.New(call.Options{Service: "catalog", Cell: cell, TargetCell: cell, BaseURL: base, Timeout: time.Second})}
}

// Close ends the idle connections.
func (c *Client) Close() { c.call.Close() }

// SKUs says what the copy has of up to MaxSKUs SKUs, in no order; those it doesn't
// have are missing.
func (c *Client) SKUs(ctx context.Context, ids []id.ID) ([]SKU, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	texts := make([]string, len(ids))
	for i, v := range ids {
		texts[i] = v.String()
	}
	var out SKUList
	err := c.call.JSON(ctx, http.MethodGet, "/internal/skus?ids="+strings.Join(texts, ","), nil, &out)
	return out.Items, err
}

// FeedClient follows the writer; no request waits for it.
type FeedClient struct{ call *call.Client }

// NewFeedClient follows the writer at base through rt, which dials by the own
// agent's link.
func NewFeedClient(cell, zone, base string, rt http.RoundTripper) *FeedClient {
	return &FeedClient{call.New(call.Options{
		Service: "catalog-writer", Cell: cell, TargetCell: zone, BaseURL: base, Transport: rt,
		Timeout: MaxWait + 5*time.Second, Background: true,
	})}
}

// Close ends the idle connections.
func (c *FeedClient) Close() { c.call.Close() }

// Feed asks for what changed after a version of a history ("" = any), and waits
// for a change for up to wait.
func (c *FeedClient) Feed(ctx context.Context, history string, after int64, wait time.Duration) (Feed, error) {
	var out Feed
	path := fmt.Sprintf("/feed?history=%s&after=%d&limit=%d&wait=%s", url.QueryEscape(history), after, MaxFeed, wait)
	err := c.call.JSON(ctx, http.MethodGet, path, nil, &out)
	return out, err
}
