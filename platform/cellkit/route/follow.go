package route

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"example.com/cellmart/platform/routing"
)

const (
	maxBody   = 8 << 20                // a table of 1,023 cells with every slot its own run is 0.5 MB
	pollLimit = 2 * time.Second        // for one question to the agent, which is local
	eager     = 500 * time.Millisecond // between polls while there is no real table
)

// Status says where the held table comes from and when it was last known to be
// the newest.
type Status struct {
	Version int64
	Source  string        // spread, snapshot, agent or push
	Checked bool          // whether the agent was ever reached
	Age     time.Duration // since the agent last answered, if Checked
}

// Follower keeps a holder new. Make one with Open.
type Follower struct {
	o      Options
	holder *routing.Holder
	links  Links
	client *http.Client
	poll   chan struct{} // asks for a poll now

	mu      sync.Mutex
	source  string
	checked time.Time
	told    map[string]string // last logged trouble by part, so that it's logged once
}

// Open fills the holder from the newest sound snapshot, or with the table of
// last resort, and never fails: a process must start with everything else down.
func Open(o Options, holder *routing.Holder) *Follower {
	if o.Interval <= 0 {
		o.Interval = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	f := &Follower{
		o: o, holder: holder, poll: make(chan struct{}, 1), told: map[string]string{},
		client: &http.Client{Timeout: pollLimit, Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}},
	}
	f.fromSnapshot()
	if f.store(routing.Spread(o.Cells), "spread") {
		o.Log.Warn("no route table yet: slots are spread over the configured cells", "cells", o.Cells)
	}
	return f
}

// Follow is Open and Run in one.
func Follow(ctx context.Context, o Options, holder *routing.Holder) error {
	return Open(o, holder).Run(ctx)
}

// Links is the state of the own zone's links.
func (f *Follower) Links() *Links { return &f.links }

// Refresh asks the agent now, for who was just told (421) that the held table is
// old. It doesn't wait and doesn't pile up.
func (f *Follower) Refresh() {
	select {
	case f.poll <- struct{}{}:
	default:
	}
}

// Status has the state of the held table.
func (f *Follower) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Status{Version: f.holder.Version(), Source: f.source, Checked: !f.checked.IsZero()}
	if s.Checked {
		s.Age = time.Since(f.checked)
	}
	return s
}

// Run follows until ctx ends and then returns nil; whatever is late or restarts
// is tried again for ever.
func (f *Follower) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	defer parts.Wait()
	defer f.client.CloseIdleConnections()
	nc, err := f.connect()
	if err != nil {
		return err
	}
	if nc != nil {
		if nc != f.o.Conn {
			defer nc.Close()
		}
		unsubscribe, err := f.subscribe(nc)
		if err != nil {
			return err
		}
		defer unsubscribe()
	}
	if f.o.AgentURL == "" {
		<-ctx.Done()
		return nil
	}
	parts.Go(func() { f.pollTable(ctx) })
	f.pollLinks(ctx)
	return nil
}

// connect gives the NATS connection to listen on. It doesn't wait for NATS; after
// each reconnect the agent is asked, since pushes were missed.
func (f *Follower) connect() (*nats.Conn, error) {
	if f.o.Conn != nil || f.o.NATSURL == "" {
		return f.o.Conn, nil
	}
	refresh := func(*nats.Conn) { f.Refresh() }
	nc, err := nats.Connect(f.o.NATSURL, nats.Name("route"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(eager), nats.ConnectHandler(refresh), nats.ReconnectHandler(refresh))
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	return nc, nil
}

func (f *Follower) subscribe(nc *nats.Conn) (func(), error) {
	table, err := nc.Subscribe(SubjectTable, func(m *nats.Msg) {
		f.tell("push", f.take(m.Data, "push"))
	})
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	links, err := nc.Subscribe(SubjectLinks, func(m *nats.Msg) {
		f.tell("links", f.links.Update(m.Data))
	})
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	return func() {
		// An error means that the connection is closed, and the subscription with it.
		_ = table.Unsubscribe()
		_ = links.Unsubscribe()
	}, nil
}

func (f *Follower) fromSnapshot() {
	if f.o.Dir == "" || len(f.o.Key) == 0 {
		return
	}
	s := ReadSnapshot(f.o.Dir, f.o.Key)
	for _, err := range s.Skipped {
		f.o.Log.Warn("route snapshot skipped", "error", err)
	}
	if f.store(s.Table, "snapshot") {
		f.o.Log.Info("route table from snapshot", "version", s.Table.Version())
	}
}

func (f *Follower) pollTable(ctx context.Context) {
	for {
		err := f.pollOnce(ctx)
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
		case <-time.After(wait):
		}
	}
}

func (f *Follower) pollOnce(ctx context.Context) error {
	b, err := f.get(ctx, fmt.Sprintf("/route?after=%d", max(0, f.holder.Version())))
	if err != nil {
		return err
	}
	if b != nil {
		if err := f.take(b, "agent"); err != nil {
			return err
		}
	}
	f.mu.Lock()
	f.checked = time.Now()
	f.mu.Unlock()
	return nil
}

// pollLinks asks for the link states when NATS hasn't brought any lately.
func (f *Follower) pollLinks(ctx context.Context) {
	tick := time.NewTicker(linkAge / 3)
	defer tick.Stop()
	for {
		if f.links.old() {
			b, err := f.get(ctx, "/links")
			if err == nil && b != nil {
				err = f.links.Update(b)
			}
			if ctx.Err() == nil {
				f.tell("links", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
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
// same table comes over both ways, and a late push may be overtaken.
func (f *Follower) take(signed []byte, source string) error {
	if len(f.o.Key) == 0 {
		return errors.New("a route table came, but ROUTE_KEY is not set to check it")
	}
	t, err := routing.Open(f.o.Key, signed)
	if err != nil {
		return err
	}
	if f.store(t, source) {
		f.o.Log.Info("route table", "version", t.Version(), "source", source)
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
	return true
}

// tell logs a part's trouble when it begins, changes or ends.
func (f *Follower) tell(part string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	f.mu.Lock()
	before := f.told[part]
	f.told[part] = text
	f.mu.Unlock()
	switch {
	case text == before:
	case text == "":
		f.o.Log.Info("route source is back", "from", part)
	default:
		f.o.Log.Warn("route source", "from", part, "error", text)
	}
}
