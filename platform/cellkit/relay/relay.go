package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"time"

	"example.com/cellmart/platform/cellkit/call"
)

// Why an exchange was ended from this side.
var (
	ErrSlow = errors.New("no answer in time")
	ErrOpen = errors.New("the place does not answer health calls")
)

// internalPrefix marks the headers that only count between gateway and services.
const internalPrefix = "X-Cellmart-"

// hopByHop headers end at each connection (RFC 9110, 7.6.1). Expect is answered
// by this side's server.
var hopByHop = [...]string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect",
}

// Request is a request that can be sent more than once.
type Request struct {
	Method string
	Path   string // escaped, with the query
	Host   string // that people asked for; empty is the place's own
	Header http.Header
	Body   []byte
}

// Read takes a request over, body and all; its size must be bounded already.
// Headers that belong to the connection are left out, and so is every
// X-Cellmart header: who sends one on purpose sets it anew.
func Read(r *http.Request) (Request, error) {
	q := Request{Method: r.Method, Path: r.URL.RequestURI(), Host: r.Host, Header: strip(r.Header)}
	if r.Body != nil && r.Body != http.NoBody {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return q, fmt.Errorf("read the body: %w", err)
		}
		q.Body = body
	}
	return q, nil
}

// strip copies what is end to end and public.
func strip(from http.Header) http.Header {
	to := from.Clone()
	for _, field := range from.Values("Connection") {
		for name := range strings.SplitSeq(field, ",") {
			to.Del(textproto.TrimString(name))
		}
	}
	for _, name := range hopByHop {
		to.Del(name)
	}
	for name := range to {
		if len(name) >= len(internalPrefix) && strings.EqualFold(name[:len(internalPrefix)], internalPrefix) {
			delete(to, name)
		}
	}
	return to
}

// Safe says that the request only reads.
func (q Request) Safe() bool { return q.Method == http.MethodGet || q.Method == http.MethodHead }

// Repeatable says that sending it twice does no more than sending it once: by
// its method (RFC 9110, 9.2.2; PUT and DELETE here set or end a thing, and the
// one PUT that adds needs a key), or by its key.
func (q Request) Repeatable() bool {
	return q.Safe() || q.Method == http.MethodPut || q.Method == http.MethodDelete || q.Header.Get(call.HeaderIdempotencyKey) != ""
}

// Lost is an exchange without an answer.
type Lost struct {
	Sent bool // the request, or a part of it, may have arrived
	Err  error
}

// Error is the cause's text.
func (l *Lost) Error() string { return l.Err.Error() }

// Unwrap gives the cause.
func (l *Lost) Unwrap() error { return l.Err }

// Send sends the request to base (http://host:port) and waits for the head of
// the answer, at most limit. Every error is a *Lost. The answer's body ends with
// ctx and must be closed.
func Send(ctx context.Context, rt http.RoundTripper, base string, q Request, limit time.Duration) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var sent atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }}
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), q.Method, base+q.Path, bytes.NewReader(q.Body))
	if err != nil {
		cancel(nil)
		return nil, &Lost{Err: err}
	}
	r.Host = q.Host
	if q.Header != nil {
		r.Header = q.Header.Clone() // the transport may look at it after this returns
	}
	timer := time.AfterFunc(limit, func() { cancel(ErrSlow) })
	res, err := rt.RoundTrip(r)
	if !timer.Stop() && err == nil {
		res.Body.Close()
		err = ErrSlow
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return nil, &Lost{Sent: sent.Load(), Err: err}
	}
	OnClose(res, func() { cancel(nil) })
	return res, nil
}

// OnClose calls done after the answer's body is closed.
func OnClose(res *http.Response, done func()) { res.Body = &body{ReadCloser: res.Body, done: done} }

type body struct {
	io.ReadCloser
	done func()
}

// Close ends the exchange.
func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.done()
	return err
}

// Answer passes the answer on and closes it. Once it has written the head an
// error can only break the client's connection.
func Answer(w http.ResponseWriter, res *http.Response) error {
	defer res.Body.Close()
	h := w.Header()
	for name, values := range strip(res.Header) {
		h[name] = values
	}
	w.WriteHeader(res.StatusCode)
	var to io.Writer = w
	if IsStream(res) {
		to = flusher{w, http.NewResponseController(w)}
	}
	if _, err := io.Copy(to, res.Body); err != nil {
		return fmt.Errorf("pass the answer on: %w", err)
	}
	return nil
}

// IsStream says that the answer comes bit by bit (server-sent events): it's never
// held, and each bit is passed on at once.
func IsStream(res *http.Response) bool {
	return strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream")
}

// flusher passes on at once what is written.
type flusher struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

// Write writes to the client's connection.
func (f flusher) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err != nil {
		return n, err
	}
	return n, f.rc.Flush()
}

// Hold reads the answer's body into memory, up to max bytes, so that it can be
// looked at or thrown away before anything is passed on. A longer body stays
// readable as a whole. An error is a *Lost.
func Hold(res *http.Response, max int64) ([]byte, error) {
	start, err := io.ReadAll(io.LimitReader(res.Body, max))
	if err != nil {
		res.Body.Close()
		return nil, &Lost{Sent: true, Err: fmt.Errorf("read the answer: %w", err)}
	}
	rest := res.Body
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), rest), rest}
	return start, nil
}

// NewTransport makes a pool of kept connections. connect bounds each dial, also
// one that goes on after its request has given up.
func NewTransport(dial func(ctx context.Context, network, addr string) (net.Conn, error), connect time.Duration) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, connect)
			defer cancel()
			return dial(ctx, network, addr)
		},
		MaxIdleConns:        512,
		MaxIdleConnsPerHost: 128,
		IdleConnTimeout:     time.Minute, // below the servers' own, so that this side closes first
		DisableCompression:  true,        // bytes are passed on as they are
	}
}

// Probe makes the health call of a breaker: GET /livez, answered 200. Each call
// has a connection of its own pool, so that users' requests can't hold it up.
func Probe(dial func(ctx context.Context, network, addr string) (net.Conn, error), base string) func(context.Context) error {
	rt := NewTransport(dial, time.Second)
	rt.MaxIdleConnsPerHost = 1
	return func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/livez", nil)
		if err != nil {
			return err
		}
		res, err := rt.RoundTrip(r)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		// Read to the end, so that the connection is kept.
		if _, err := io.Copy(io.Discard, io.LimitReader(res.Body, 4<<10)); err != nil {
			return err
		}
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("GET /livez: status %d", res.StatusCode)
		}
		return nil
	}
}
