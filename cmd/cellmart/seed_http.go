package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
)

const (
	apiPrefix     = "/api/v1"
	seedRequest   = 10 * time.Second // one request
	seedMaxAnswer = 1 << 20
)

func newSeedHTTP(parallel int) *http.Client {
	return &http.Client{
		Timeout:   seedRequest,
		Transport: &http.Transport{MaxIdleConnsPerHost: parallel, IdleConnTimeout: time.Minute},
	}
}

// request is one call of the public API.
type request struct {
	method, path, key string
	in, out           any
	once              bool // not to be repeated: it has no key
}

// answer is what is of use of an answer beside its body.
type answer struct {
	status         int
	replayed       bool
	cell, location string
}

// send asks the account's gateway, as the account, and goes on asking while the
// system says that it can't now: services start in any order.
func (s *seeder) send(ctx context.Context, a *account, r request) (answer, error) {
	var body []byte
	if r.in != nil {
		var err error
		if body, err = json.Marshal(r.in); err != nil {
			return answer{}, err
		}
	}
	var last error
	for try := 0; ; try++ {
		ans, err := s.exchange(ctx, a, r, body)
		wait, again := later(err, try)
		if !again || r.once {
			return ans, err
		}
		if ctx.Err() == nil {
			last = err
		}
		if err := pause(ctx, wait); err != nil {
			return ans, fmt.Errorf("%w; last: %w", err, last)
		}
	}
}

// later says whether, and after what time, a request is worth repeating.
func later(err error, try int) (time.Duration, bool) {
	const least, most = 100 * time.Millisecond, 3 * time.Second
	wait := min(least<<min(try, 5), most)
	var known *errs.Error
	switch {
	case err == nil:
		return 0, false
	case !errors.As(err, &known):
		return wait, true // no connection, or it broke
	case known.Kind == errs.Misrouted: // the table is newer than what the cell's database has been told
		return wait, true
	case known.Kind == errs.Unavailable || known.Kind == errs.Exhausted || known.Code == "IDEMPOTENCY_KEY_IN_FLIGHT":
		if try > 0 || known.Kind == errs.Exhausted {
			wait = max(wait, min(known.RetryAfter, most))
		}
		return wait, true
	}
	return 0, false
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *seeder) exchange(ctx context.Context, a *account, r request, body []byte) (ans answer, err error) {
	req, err := http.NewRequestWithContext(ctx, r.method, a.at.url+apiPrefix+r.path, bytes.NewReader(body))
	if err != nil {
		return ans, errs.ErrInternal.Because(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("X-Region", a.at.cell) // a wish, which the edge understands and gateways ignore
	if r.key != "" {
		req.Header.Set(call.HeaderIdempotencyKey, r.key)
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	res, err := s.http.Do(req)
	if err != nil {
		return ans, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, seedMaxAnswer))
	if err != nil {
		return ans, err
	}
	if res.StatusCode >= 300 {
		return ans, call.DecodeProblem(res.StatusCode, res.Header, b)
	}
	ans = answer{
		status: res.StatusCode, replayed: res.Header.Get(call.HeaderReplayed) == "true",
		cell: res.Header.Get(call.HeaderCell), location: res.Header.Get("Location"),
	}
	if r.out != nil {
		if err := json.Unmarshal(b, r.out); err != nil {
			return ans, errs.ErrInternal.Because(fmt.Errorf("%s %s: %w", r.method, r.path, err))
		}
	}
	return ans, nil
}
