package call

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

// maxAnswer bounds what is read of an answer, so that a wrong server can't fill
// the memory.
const maxAnswer = 8 << 20

// Options say whom a client calls and as whom.
type Options struct {
	Service    string            // the called service, for errors
	Cell       string            // the own cell
	TargetCell string            // the called service's cell; anything but Cell is refused
	BaseURL    string            // http://host:port
	Timeout    time.Duration     // per call, default 2 s; shorter when the caller has less left
	Transport  http.RoundTripper // default: a pool of its own

	// Background is for calls that no request waits for (ID leases, route
	// tables, agents among themselves). They need no route and may go to
	// another zone; a context with a route is refused.
	Background bool
}

// Client calls one service. It's safe for concurrent use.
type Client struct {
	o    Options
	http *http.Client
}

// New makes a client; nothing is connected yet.
func New(o Options) *Client {
	if o.Timeout <= 0 {
		o.Timeout = 2 * time.Second
	}
	if o.Transport == nil {
		o.Transport = &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 500 * time.Millisecond}).DialContext,
			MaxIdleConnsPerHost: 64,
			IdleConnTimeout:     time.Minute,
		}
	}
	o.BaseURL = strings.TrimSuffix(o.BaseURL, "/")
	return &Client{o: o, http: &http.Client{
		Transport: o.Transport,
		// An answer from elsewhere would be an answer without our route.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close ends the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Option changes one call.
type Option func(*exchange)

// exchange is one call: what to send more, and where the answer's parts go.
type exchange struct {
	header http.Header
	status *int
	answer *http.Header
}

// Header adds a request header.
func Header(name, value string) Option {
	return func(x *exchange) { x.header.Set(name, value) }
}

// IdempotencyKey sends the key under which a repeated call has one effect.
func IdempotencyKey(key string) Option { return Header(HeaderIdempotencyKey, key) }

// Status stores the answer's status, to tell 200, 201 and 202 apart.
func Status(status *int) Option { return func(x *exchange) { x.status = status } }

// AnswerHeader stores the answer's headers.
func AnswerHeader(h *http.Header) Option { return func(x *exchange) { x.answer = h } }

// JSON sends in (nil = no body) and decodes a 2xx answer into out (nil = not
// wanted). Any other answer comes back as an *errs.Error. A GET is tried once
// more when the connection fails; nothing else is ever sent twice.
func (c *Client) JSON(ctx context.Context, method, path string, in, out any, opts ...Option) error {
	route, err := c.guard(ctx)
	if err != nil {
		return err
	}
	x := exchange{header: http.Header{}}
	if !c.o.Background {
		route.SetHeaders(x.header, c.o.Cell)
	} else {
		x.header.Set(HeaderFrom, c.o.Cell)
	}
	if rid := RequestID(ctx); rid != "" {
		x.header.Set(HeaderRequestID, rid)
	}
	x.header.Set("Accept", "application/json")
	for _, opt := range opts {
		opt(&x)
	}
	var body []byte
	if in != nil {
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("encode the request to %s: %w", c.o.Service, err)
		}
		x.header.Set("Content-Type", "application/json")
	}

	limit := c.limit(ctx)
	if limit <= 0 {
		return errs.ErrUnavailable.Because(fmt.Errorf("call %s: no time left", c.o.Service))
	}
	inner, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	safe := method == http.MethodGet || method == http.MethodHead
	err = c.exchange(inner, method, path, body, out, x)
	var lost *lostError
	if safe && errors.As(err, &lost) && inner.Err() == nil {
		err = c.exchange(inner, method, path, body, out, x)
	}
	return c.explain(ctx, safe, err)
}

// guard refuses what would couple cells or put the control plane on a request's
// path.
func (c *Client) guard(ctx context.Context) (Route, error) {
	route, ok := RouteFrom(ctx)
	switch {
	case c.o.Background && ok:
		return route, violation("a request must not wait for %s in %s", c.o.Service, c.o.TargetCell)
	case c.o.Background:
		return route, nil
	case c.o.TargetCell != c.o.Cell:
		return route, violation("%s called in cell %q from cell %q", c.o.Service, c.o.TargetCell, c.o.Cell)
	case !ok:
		return route, violation("%s called without a route", c.o.Service)
	case route.Cell != c.o.Cell:
		return route, violation("%s called in cell %q for a route of cell %q", c.o.Service, c.o.Cell, route.Cell)
	}
	return route, nil
}

// limit leaves the caller a tenth of its time, at most 100 ms, to answer.
func (c *Client) limit(ctx context.Context) time.Duration {
	limit := c.o.Timeout
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		limit = min(limit, left-min(left/10, 100*time.Millisecond))
	}
	return limit
}

// lostError is a failure of the connection: no answer, or half of one.
type lostError struct{ err error }

func (l *lostError) Error() string { return l.err.Error() }
func (l *lostError) Unwrap() error { return l.err }

func (c *Client) exchange(ctx context.Context, method, path string, body []byte, out any, x exchange) error {
	req, err := http.NewRequestWithContext(ctx, method, c.o.BaseURL+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("call %s: %w", c.o.Service, err)
	}
	req.Header = x.header
	res, err := c.http.Do(req)
	if err != nil {
		return &lostError{err}
	}
	defer res.Body.Close()
	if x.status != nil {
		*x.status = res.StatusCode
	}
	if x.answer != nil {
		*x.answer = res.Header
	}
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return &lostError{err}
	}
	if res.StatusCode >= 300 {
		return DecodeProblem(res.StatusCode, res.Header, answer)
	}
	if len(answer) > maxAnswer {
		return fmt.Errorf("call %s: the answer is over %d bytes", c.o.Service, maxAnswer)
	}
	if out == nil || len(answer) == 0 {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("decode the answer of %s: %w", c.o.Service, err)
	}
	return nil
}

// explain says what a lost connection means to the caller: only a dial that
// failed, or a read, surely had no effect.
func (c *Client) explain(ctx context.Context, safe bool, err error) error {
	var lost *lostError
	if !errors.As(err, &lost) {
		return err
	}
	var known *errs.Error // the link's own words: LINK_DOWN and which cell
	if errors.As(lost.err, &known) {
		return known
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("call %s: %w", c.o.Service, context.Canceled)
	}
	cause := fmt.Errorf("call %s: %w", c.o.Service, lost.err)
	var op *net.OpError
	if safe || errors.As(lost.err, &op) && op.Op == "dial" {
		return errs.ErrUnavailable.In(c.o.TargetCell).Because(cause)
	}
	return errs.ErrUnknown.In(c.o.TargetCell).Because(cause)
}
