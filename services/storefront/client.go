package storefront

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
)

// maxAnswer bounds what is kept of an answer.
const maxAnswer = 4 << 20

// client asks the API for one visitor. It may be used by several goroutines.
type client struct {
	api       http.Handler
	ctx       context.Context // a client lives as long as its request
	token     string
	requestID string
	region    string

	mu   sync.Mutex
	seen served
}

// served says who answered, for the footer.
type served struct {
	Cell    string
	Version string
	Stale   bool
	own     bool // it was about the visitor, whose home answered
}

// ask is one request to the API.
type ask struct {
	method, path string
	query        url.Values
	key          string // Idempotency-Key
	in           any    // nil: no body
	own          bool   // about the visitor: sent with the token
}

// reply is the answer's head.
type reply struct {
	status int
	header http.Header
}

// get reads what is the visitor's own.
func (c *client) get(path string, query url.Values, out any) error {
	_, err := c.do(ask{method: http.MethodGet, path: path, query: query, own: true}, out)
	return err
}

// look reads what everyone may see.
func (c *client) look(path string, query url.Values, out any) error {
	_, err := c.do(ask{method: http.MethodGet, path: path, query: query}, out)
	return err
}

// briefly reads what everyone may see and a page can do without. Who answers says
// nothing about the page.
func (c *client) briefly(limit time.Duration, path string, query url.Values, out any) error {
	ctx, cancel := context.WithTimeout(c.ctx, limit)
	defer cancel()
	aside := &client{api: c.api, ctx: ctx, requestID: c.requestID, region: c.region}
	return aside.look(path, query, out)
}

// do sends the request and reads a 2xx answer into out (nil: not wanted). Any
// other answer is an *errs.Error.
func (c *client) do(a ask, out any) (reply, error) {
	target := "http://storefront/api/v1" + a.path
	if len(a.query) > 0 {
		target += "?" + a.query.Encode()
	}
	var body []byte
	var err error
	if a.in != nil {
		if body, err = json.Marshal(a.in); err != nil {
			return reply{}, fmt.Errorf("encode the request: %w", err)
		}
	}
	r, err := http.NewRequestWithContext(c.ctx, a.method, target, bytes.NewReader(body))
	if err != nil {
		return reply{}, fmt.Errorf("%w: %w", errNotFound, err)
	}
	if a.in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if a.own && c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	for name, value := range map[string]string{
		call.HeaderRequestID: c.requestID, call.HeaderIdempotencyKey: a.key, "X-Region": c.region,
	} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	w := &recorder{header: http.Header{}}
	if err := w.record(c.api, r); err != nil {
		if a.method == http.MethodGet {
			return reply{}, errs.ErrUnavailable.Because(err)
		}
		return reply{}, errs.ErrUnknown.Because(err)
	}
	c.note(a.own, w)
	got := reply{status: w.status, header: w.header}
	if w.status >= 300 {
		return got, call.DecodeProblem(w.status, w.header, w.body.Bytes())
	}
	if out == nil || w.body.Len() == 0 {
		return got, nil
	}
	if err := json.Unmarshal(w.body.Bytes(), out); err != nil {
		return got, fmt.Errorf("decode the answer of %s %s: %w", a.method, a.path, err)
	}
	return got, nil
}

// note keeps who answered: an answer about the visitor says more than another.
func (c *client) note(own bool, w *recorder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stale := c.seen.Stale || w.header.Get("X-Stale") != ""
	if own || !c.seen.own {
		c.seen = served{Cell: w.header.Get(call.HeaderCell), Version: w.header.Get(call.HeaderRouteVersion), own: own}
	}
	c.seen.Stale = stale
}

func (c *client) served() served {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// recorder keeps an answer of a handler in this process.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

var errTooLong = errors.New("the answer is too long")

// Header gives the answer's headers.
func (w *recorder) Header() http.Header { return w.header }

// WriteHeader keeps the first status.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

// Write keeps the body up to maxAnswer.
func (w *recorder) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.body.Len()+len(b) > maxAnswer {
		return 0, errTooLong
	}
	return w.body.Write(b)
}

// record has the handler answer. A handler that breaks off (http.ErrAbortHandler)
// has given no answer, as it would have by connection.
func (w *recorder) record(h http.Handler, r *http.Request) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s %s broke off: %v", r.Method, r.URL.Path, v)
		}
	}()
	h.ServeHTTP(w, r)
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return nil
}

// together runs reads that don't need each other, and gives their errors in order.
func together(reads ...func() error) []error {
	out := make([]error, len(reads))
	var running sync.WaitGroup
	for i, read := range reads {
		running.Go(func() { out[i] = read() })
	}
	running.Wait()
	return out
}

// segment makes one part of a path of what came from outside.
func segment(s string) string {
	if s == "." || s == ".." {
		return "-" // would walk up
	}
	return strings.ReplaceAll(url.PathEscape(s), "/", "%2F")
}

// code is the API's word for what went wrong, empty for any other error.
func code(err error) string {
	var known *errs.Error
	if errors.As(err, &known) {
		return known.Code
	}
	return ""
}
