package cdc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Change is a message to apply. Copy is the generation that its rows are of: when
// a copy has ended, rows of the zone that carry another are not there any more.
// After is the position with it, for who doesn't store all changes at once.
type Change struct {
	Message
	Copy  string
	After Position
}

// FollowerOptions are what a sink's follower of one zone needs.
type FollowerOptions struct {
	Zone, Sink string
	Connect    func() (*nats.Conn, error) // to the zone's NATS; called once
	Position   Position                   // as stored
	Gather     time.Duration              // how long changes may wait for more, 0 = 20 ms; no longer than Hold
	Hold       time.Duration              // how long heartbeats alone may wait to be stored, 0 = 12 s

	// Apply stores changes and the position in one commit. It is called once at a
	// time, in order, and again with the same when it fails.
	Apply func(ctx context.Context, changes []Change, p Position) error
	Log   *slog.Logger
	times times
}

// times of a follower; tests shorten them.
type times struct {
	gather time.Duration // for more, after the first message
	take   int           // messages of the chain that are stored at once
	hold   time.Duration // for heartbeats, before they are stored
	silent time.Duration // without a message, before the consumer is made again
	ask    time.Duration // between two questions for what doesn't come
	giveUp time.Duration // of what is missing and isn't sent again: then a copy
	stall  time.Duration // without a message of the copy that has begun, before it's asked for again
}

const (
	gatherMax  = 64      // messages of NATS that are asked for ahead, each up to 256 kB
	gatherSize = 2 << 20 // bytes of them that are stored at once
	ackWait    = 2 * time.Minute
	readAhead  = 8 // bundles that are read while what came before them is stored
)

// Follower follows one zone's changes for ever.
type Follower struct {
	o       FollowerOptions
	asking  string // id of the copy that is waited for
	askedAt time.Time
	copyAt  time.Time // when something of a copy came, or it was asked for again
	hole    hole
	unread  LSN // newest that was seen and dropped while a copy must come
	wake    chan struct{}
	behind  bool // a batch is being stored

	mu     sync.Mutex
	status Status
	wish   wish
}

// wish is a copy of some slots that is wanted. None when ID is "".
type wish struct {
	ask
	at time.Time // when that was last said
}

// hole is what is missing in the stream: it is asked for, and until it comes
// nothing after it is taken.
type hole struct {
	why          string // "" = nothing is missing
	since, asked time.Time
	gone         bool // it can't be sent again
}

// Status is what a follower knows of its zone.
type Status struct {
	State   State
	Reason  string        // why a copy is needed
	Seen    time.Time     // when that was last heard of; zero = not since the start
	At      time.Time     // the commit time of the newest that was applied
	Delay   time.Duration // how long after its commit that was
	Changes int64         // rows applied
	Gaps    int64
	// Received is the newest position that was seen, 0 = none since the start.
	Received LSN
}

// NewFollower makes a follower.
func NewFollower(o FollowerOptions) *Follower {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.times == (times{}) {
		o.times = times{gather: 20 * time.Millisecond, take: 8000, hold: 12 * time.Second, silent: time.Minute, ask: 20 * time.Second, giveUp: 30 * time.Second, stall: time.Minute}
	}
	if o.Hold > 0 {
		o.times.hold = o.Hold
	}
	if o.Gather > 0 {
		o.times.gather = o.Gather
	}
	o.Log = o.Log.With("source", o.Zone)
	return &Follower{o: o, status: Status{State: o.Position.State}, wake: make(chan struct{}, 1)}
}

// Status tells how it is.
func (f *Follower) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	nc, err := f.o.Connect()
	if err != nil {
		return err
	}
	defer nc.Close()
	pos, pause, said := f.o.Position, time.Duration(0), ""
	for ctx.Err() == nil {
		start := time.Now()
		pos, err = f.session(ctx, nc, pos)
		if ctx.Err() != nil {
			break
		}
		if time.Since(start) > time.Minute {
			pause, said = 0, ""
		}
		if err != nil && err.Error() != said { // once for each reason
			said = err.Error()
			f.o.Log.Info("following again", "error", err)
		}
		pause = min(max(2*pause, 200*time.Millisecond), 5*time.Second)
		sleep(ctx, pause)
	}
	return nil
}

// session pulls until something is wrong. The consumer is made anew each time,
// from the first message that isn't acknowledged: one that was there already
// would give newer ones first, and later those that it has given before.
func (f *Follower) session(ctx context.Context, nc *nats.Conn, pos Position) (Position, error) {
	if !nc.IsConnected() {
		return pos, nats.ErrDisconnected
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return pos, err
	}
	// What was under way when a connection broke is given again only after
	// ackWait, long after what is newer. So with the connection the session ends.
	back := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(back)
	before := nc.Stats().Reconnects
	it, err := f.consume(ctx, js)
	if err != nil {
		return pos, err
	}
	defer it.Stop()
	msgs := make(chan bundle, readAhead)
	failed := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer it.Stop()
	defer cancel()
	reading.Go(func() {
		for {
			m, err := it.Next()
			if err == nil && nc.Stats().Reconnects != before {
				err = nats.ErrConnectionReconnecting
			}
			if err != nil {
				failed <- err
				return
			}
			select {
			case msgs <- read(m):
			case <-ctx.Done():
				return
			}
		}
	})
	return f.pull(ctx, nc, pos, msgs, failed, back)
}

func (f *Follower) consume(ctx context.Context, js jetstream.JetStream) (jetstream.MessagesContext, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	name := StreamName(f.o.Sink)
	if err := js.DeleteConsumer(ctx, name, f.o.Sink); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil, fmt.Errorf("stream %s: %w", name, err) // or there is no stream yet: the relay makes it
	}
	c, err := js.CreateConsumer(ctx, name, jetstream.ConsumerConfig{
		Durable: f.o.Sink, DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: ackWait, MaxDeliver: -1, MaxAckPending: -1,
		MemoryStorage: true, // it is made anew in each session
	})
	if err != nil {
		return nil, err
	}
	return c.Messages(jetstream.PullMaxMessages(gatherMax), jetstream.PullExpiry(30*time.Second), jetstream.PullHeartbeat(10*time.Second))
}

// pull gathers messages and applies them. Heartbeats alone are stored seldom:
// until then they stay in the stream. While one full batch is stored, the next is
// gathered; whatever isn't full is waited for.
func (f *Follower) pull(ctx context.Context, nc *nats.Conn, pos Position, msgs <-chan bundle, failed <-chan error, back <-chan nats.Status) (reached Position, err error) {
	b := batch{pos: pos}
	due := time.NewTimer(0) // when to store, or to look whether to ask
	defer due.Stop()
	last := time.Now()
	var storing chan error // of the batch before this one, nil = it is stored
	var before batch
	ended := func(err error) error {
		if storing, f.behind = nil, false; err != nil {
			return err
		}
		f.note(&before)
		f.report(nc, before.pos)
		pos = before.pos
		return nil
	}
	stored := func() error {
		if storing == nil {
			return nil
		}
		return ended(<-storing)
	}
	defer func() {
		if err := stored(); err == nil {
			reached = pos
		}
	}()
	store := func() error {
		if err := stored(); err != nil {
			return err
		}
		before, b = b, batch{pos: b.pos}
		c := make(chan error, 1)
		storing, f.behind = c, true
		go func() { c <- f.store(ctx, &before) }()
		return nil
	}
	for {
		whole := false
		select {
		case <-ctx.Done():
			return pos, ctx.Err() // what isn't stored isn't acknowledged, and comes again
		case err := <-failed:
			return pos, err
		case <-back: // to a server that may have lost the consumer: it would be silent
			return pos, nats.ErrConnectionReconnecting
		case m := <-msgs:
			last = time.Now()
			wait := f.take(&b, m)
			whole = b.size >= gatherSize || b.taken >= f.o.times.take
			if !whole && !b.begun(wait) {
				due.Reset(b.left())
				continue
			}
		case err := <-storing:
			if err := ended(err); err != nil {
				return pos, err
			}
			continue
		case <-due.C:
		case <-f.wake:
		}
		if len(b.msgs) > 0 {
			if err := store(); err != nil {
				return pos, err
			}
		}
		if whole && f.hole.why == "" && b.pos.State == Live {
			due.Reset(f.o.times.gather)
			continue
		}
		if err := stored(); err != nil {
			return pos, err
		}
		if f.hole.why != "" && f.resend(nc, pos) {
			b.lose(pos, f.hole.why)
			f.hole = hole{}
			if err := errors.Join(store(), stored()); err != nil {
				return pos, err
			}
		}
		if time.Since(last) > f.o.times.silent {
			return pos, errors.New("no message for " + f.o.times.silent.String())
		}
		f.ask(nc, pos)
		next := f.o.times.silent
		if pos.State == Unknown || f.hole.why != "" || f.wishing() {
			next = time.Second
		}
		due.Reset(next)
	}
}

// bundle is a message of NATS, and what is in it.
type bundle struct {
	msg jetstream.Msg
	ms  []Message
	bad bool
}

func read(msg jetstream.Msg) bundle {
	ms, err := Decode(msg.Data())
	return bundle{msg, ms, err != nil}
}

// batch is what was taken and not stored.
type batch struct {
	pos     Position
	msgs    []jetstream.Msg
	taken   int // messages of the chain
	changes []Change
	size    int
	until   time.Time // when it is to be stored
	newest  time.Time
	rows    int64
	gaps    int64
	reason  string
	moved   bool
}

// begun sets when the batch is stored, and says whether that is now.
func (b *batch) begun(wait time.Duration) bool {
	if until := time.Now().Add(wait); b.until.IsZero() || until.Before(b.until) {
		b.until = until
	}
	return b.left() <= 0
}

func (b *batch) left() time.Duration { return time.Until(b.until) }

// take adds a bundle to the batch, and says how long it may wait.
func (f *Follower) take(b *batch, next bundle) time.Duration {
	b.msgs = append(b.msgs, next.msg)
	b.size += len(next.msg.Data())
	ms := next.ms
	if next.bad {
		ms = []Message{{Kind: "malformed", Incarnation: b.pos.Incarnation}}
	}
	if n := len(ms); n > 0 && ms[n-1].Kind == KindTx {
		f.received(ms[n-1].LSN)
	}
	b.taken += len(ms)
	wait := f.o.times.hold
	for _, m := range ms {
		wait = min(wait, f.step(b, m))
	}
	return wait
}

// step adds one message of the chain to the batch.
func (f *Follower) step(b *batch, m Message) time.Duration {
	if m.Kind == KindBegin || m.Kind == KindCopy {
		f.copyAt = time.Now()
	}
	next, v, why := advance(b.pos, m)
	switch v {
	case skip: // nothing to store: it must only not take the room of what is new, in a stream that is full
		if b.pos.State == Unknown && m.Kind == KindTx {
			f.unread = max(f.unread, m.LSN)
		}
		return f.o.times.gather
	case missing: // it isn't taken, and comes again after what is missing
		if f.hole.why == "" {
			f.o.Log.Warn("something is missing, it's asked for again", "reason", why)
			f.hole = hole{why: why, since: time.Now()}
			b.gaps++
		}
		return 0
	case gap:
		f.o.Log.Warn("something is missing, a copy is needed", "reason", why)
		b.gaps++
		b.lose(next, why)
		f.hole = hole{}
		return 0
	case pass:
		if m.Kind == KindBegin {
			f.wished(m.Copy)
		}
		b.rows += int64(len(m.Rows))
		b.changes, b.moved = append(b.changes, Change{Message: m, Copy: next.Copy, After: next}), true
		return f.o.times.gather
	}
	if m.Kind == KindTx && f.hole.why != "" {
		f.o.Log.Info("what was missing has come", "reason", f.hole.why)
		f.hole = hole{}
	}
	b.pos, b.moved = next, true
	if m.Kind == KindTx && m.Chunks > 0 {
		b.newest = m.At
	}
	if m.Kind == KindBegin {
		f.asking = ""
	}
	if m.Kind == KindTx && len(m.Rows) == 0 {
		if len(b.changes) == 0 && !f.behind { // nothing before it waits to be stored
			f.mu.Lock()
			f.status.know(b.newest)
			f.mu.Unlock()
		}
		return f.o.times.hold
	}
	b.rows += int64(len(m.Rows))
	b.changes = append(b.changes, Change{Message: m, Copy: next.Copy, After: next})
	return f.o.times.gather
}

// store applies the batch until that works, then acknowledges it.
func (f *Follower) store(ctx context.Context, b *batch) error {
	for pause := 200 * time.Millisecond; b.moved; pause = min(2*pause, 10*time.Second) {
		err := f.o.Apply(ctx, b.changes, b.pos)
		if err == nil {
			break
		}
		f.o.Log.Error("changes can't be stored", "changes", len(b.changes), "error", err)
		sleep(ctx, pause)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	for _, m := range b.msgs {
		_ = m.Ack() // lost: it comes again, and is dropped
	}
	return nil
}

// note tells what was stored.
func (f *Follower) note(b *batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &f.status
	s.State = b.pos.State
	s.Changes += b.rows
	s.Gaps += b.gaps
	if b.reason != "" {
		s.Reason = b.reason
	}
	if s.State == Live {
		s.Reason = f.hole.why
	}
	if b.newest.After(s.At) {
		s.know(b.newest)
	}
}

// know notes that everything up to a commit is applied.
func (s *Status) know(commit time.Time) {
	s.Seen = time.Now()
	if !commit.IsZero() {
		s.At, s.Delay = commit, max(0, time.Since(commit))
	}
}
