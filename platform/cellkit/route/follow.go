package route

import (
	"context"
	"fmt"
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
	eager     = 500 * time.Millisecond // between checks while there is no real table
)

// Status says where the held table comes from and when it was last known to be
// the newest.
type Status struct {
	Version int64
	Source  string        // spread, snapshot, redis, agent or push
	Checked bool          // whether it was ever found to be the newest
	Age     time.Duration // since then, if Checked
}

// Follower keeps a holder new. Make one with Open.
type Follower struct {
	o      Options
	holder *routing.Holder
	links  Links
	client *http.Client
	cache  *Cache
	stats  *Stats
	poll   chan struct{} // asks for a check now
	say    chan struct{} // asks for an ack now
	asked  time.Time     // when the agent last answered; of checkLoop alone
	conn   *nats.Conn    // set by Run; nil: none is used

	mu      sync.Mutex
	source  string
	checked time.Time
	told    map[string]string // last logged trouble by part, so that it's logged once
}

// Open fills the holder from the newest sound snapshot and Redis, or with the
// table of last resort, and never fails: a process must start with everything
// else down. It waits for Redis for a moment, for no one else. Run must follow,
// it ends what Open began.
func Open(o Options, holder *routing.Holder) *Follower {
	if o.Interval <= 0 {
		o.Interval = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	f := &Follower{
		o: o, holder: holder, poll: make(chan struct{}, 1), say: make(chan struct{}, 1), told: map[string]string{},
		cache: OpenCache(o.RedisAddr), stats: NewStats(o.Metrics),
		client: &http.Client{Timeout: pollLimit, Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}},
	}
	f.fromSnapshot()
	f.fromCache(context.Background()) // a snapshot may be older
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
	defer f.cache.Close()
	defer f.client.CloseIdleConnections()
	defer parts.Wait()
	nc, err := f.connect()
	if err != nil {
		return err
	}
	f.conn = nc
	if nc != nil {
		if nc != f.o.Conn {
			defer nc.Close()
		}
		unsubscribe, err := f.subscribe(nc)
		if err != nil {
			return err
		}
		defer unsubscribe()
		parts.Go(func() { f.acknowledge(ctx, nc) })
		defer parts.Wait() // before the connection is closed
	}
	if f.o.AgentURL != "" {
		parts.Go(func() { f.pollLinks(ctx) })
	}
	if f.o.AgentURL != "" || f.cache != nil {
		f.checkLoop(ctx)
	}
	<-ctx.Done()
	return nil
}

// acknowledge says which table is held: at each change, with each check, when
// NATS is back, and at the end that nothing is held any more.
func (f *Follower) acknowledge(ctx context.Context, nc *nats.Conn) {
	if f.o.Process == "" {
		<-ctx.Done()
		return
	}
	say := func(gone bool) {
		if nc.IsConnected() { // else it's said when NATS is back
			_ = nc.Publish(SubjectAck, word(f.o.Process, f.holder, gone))
		}
	}
	tick := time.NewTicker(f.o.Interval)
	defer tick.Stop()
	for {
		changed := f.holder.Changed()
		say(false)
		select {
		case <-ctx.Done():
			say(true)
			if nc.IsConnected() {
				_ = nc.FlushTimeout(200 * time.Millisecond) // not heard: the agent sees it fall silent
			}
			return
		case <-changed:
		case <-f.say:
		case <-tick.C:
		}
	}
}

// speak asks for an ack.
func (f *Follower) speak() {
	select {
	case f.say <- struct{}{}:
	default:
	}
}

// connect gives the NATS connection to listen on. It doesn't wait for NATS; after
// each reconnect the agent is asked, since pushes were missed.
func (f *Follower) connect() (*nats.Conn, error) {
	if f.o.Conn != nil || f.o.NATSURL == "" {
		return f.o.Conn, nil
	}
	refresh := func(*nats.Conn) { f.speak(); f.Refresh() }
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
