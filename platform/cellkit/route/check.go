package route

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"example.com/cellmart/platform/routing"
)

// always is how often the agent is asked although Redis says that nothing is
// newer: Redis and the pushes would have to be wrong for so long, both at once.
const always = 30 * time.Second

// checkLoop checks the version each interval, and at once when asked to.
func (f *Follower) checkLoop(ctx context.Context) {
	agent := true // at the start nobody knows what Redis is worth
	for {
		err := f.check(ctx, agent)
		if ctx.Err() != nil {
			return
		}
		f.tell("agent", err)
		wait := f.o.Interval
		if f.holder.Version() < 1 {
			wait = min(eager, wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-f.poll:
			agent = true // somebody knows that the held table is old, or pushes were missed
		case <-time.After(wait):
			agent = time.Since(f.asked) > always
		}
	}
}

// check finds out whether a newer table is there: at Redis, else, or when the
// agent is to be asked too, at the agent.
func (f *Follower) check(ctx context.Context, agent bool) error {
	f.stats.probe(f.holder)
	had := f.holder.Version()
	known := f.fromCache(ctx)
	var err error
	if f.o.AgentURL != "" && (agent || !known || f.deaf()) {
		if err = f.fromAgent(ctx); err == nil {
			f.asked, known = time.Now(), true
		}
	}
	if known {
		f.mu.Lock()
		f.checked = time.Now()
		f.mu.Unlock()
		f.stats.read(level1, hitIf(f.holder.Version() == had), 0)
	}
	return err
}

// deaf says that no push can come and no ack can go: the agent hears which table
// is held by being asked.
func (f *Follower) deaf() bool { return f.conn != nil && !f.conn.IsConnected() }

// fromCache reads the second level. True means that Redis has the held table or
// has brought a newer one; whatever else it has, the agent knows better.
func (f *Follower) fromCache(ctx context.Context) bool {
	if f.cache == nil || len(f.o.Key) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 2*cacheLimit)
	defer cancel()
	begun, had := time.Now(), f.holder.Version()
	said, err := f.cache.Version(ctx)
	if err == nil && said > had {
		var signed []byte
		if signed, err = f.cache.Signed(ctx); err == nil && signed != nil {
			err = f.take(signed, "redis")
		}
	}
	took := time.Since(begun)
	if ctx.Err() != nil && err == nil {
		err = ctx.Err()
	}
	f.tell("redis", err)
	now := f.holder.Version()
	switch {
	case err != nil:
		f.stats.read(level2, fail, took)
	case now > had:
		f.stats.read(level2, hit, took)
		return true
	case said == now && now > 0:
		f.stats.read(level2, miss, took)
		return true
	default: // nothing, or older: flushed, evicted, rolled back
		f.stats.read(level2, miss, took)
		if said > 0 && said < had {
			f.stats.Refuse("redis", nil)
		}
	}
	return false
}

// fromAgent asks the agent for a newer table, and says which is held.
func (f *Follower) fromAgent(ctx context.Context) error {
	begun, had := time.Now(), f.holder.Version()
	b, err := f.get(ctx, fmt.Sprintf("/route?after=%d&process=%s", max(0, had), url.QueryEscape(f.o.Process)))
	if err == nil && b != nil {
		err = f.take(b, "agent")
	}
	result := hitIf(f.holder.Version() > had)
	if err != nil {
		result = fail
	}
	f.stats.read(level3, result, time.Since(begun))
	return err
}

// get asks the agent; nil bytes mean 204.
func (f *Follower) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.o.AgentURL+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusNoContent:
		return nil, nil
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("GET %s: status %d", path, resp.StatusCode)
	}
	return b, nil
}

// take opens a signed table and stores it. One that isn't newer is no error: the
// same table comes over several ways, and a late push may be overtaken.
func (f *Follower) take(signed []byte, source string) error {
	if len(f.o.Key) == 0 {
		return errors.New("a route table came, but ROUTE_KEY is not set to check it")
	}
	t, err := routing.Open(f.o.Key, signed)
	if err != nil {
		f.stats.Refuse(source, err)
		return err
	}
	if f.store(t, source) {
		f.o.Log.Info("route table", "version", t.Version(), "source", source)
	} else if t.Version() < f.holder.Version() {
		f.stats.Refuse(source, nil)
	}
	return nil
}

func (f *Follower) store(t *routing.Table, source string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.holder.Store(t) {
		return false
	}
	f.source = source
	f.stats.Took(source)
	return true
}
