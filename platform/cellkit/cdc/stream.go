package cdc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	chunkBytes   = 256 << 10 // of a bundle, and of a transaction's chunk; NATS takes 1 MB
	maxInFlight  = 512       // bundles that the stream hasn't acknowledged
	maxBytes     = 16 << 20  // of those
	ackLimit     = 5 * time.Second
	defaultBound = 256 << 20 // of the stream
)

// What a stream is in this session.
const (
	attached int32 = iota
	full           // it takes no more at the moment; the sink counts, and goes on when there is room
	detached       // the sink doesn't count, and is sent nothing
)

// outlet publishes to one sink's stream in one session of the relay. Each bundle
// names the sequence that it must follow, so the stream has them in order and
// whole up to some place, or the session ends.
type outlet struct {
	js       jetstream.JetStream
	stream   jetstream.Stream
	subject  string
	identity Message // zone and incarnation
	bound    int64
	limit    int // bytes of a bundle that is sent

	state atomic.Int32

	mu      sync.Mutex
	seq     uint64 // of the last bundle published
	pos     LSN    // of the last transaction published
	acked   kept   // the last that is acknowledged, with all before it
	flights []flight
	bytes   int
	since   time.Time // full since
	sent    int64     // bytes since the last look for room
	err     error

	enc    encoder
	body   []byte // the bundle that is gathered
	count  int    // its messages
	number int    // where in body that is written
}

// kept is how far a stream is: its sequence, and the position of that bundle.
type kept struct {
	seq uint64
	pos LSN
}

type flight struct {
	ack  jetstream.PubAckFuture
	pos  LSN
	size int
}

// openOutlet makes the stream if it isn't there, and continues it. A full stream
// refuses new bundles rather than to lose old ones; acknowledged ones go.
func openOutlet(ctx context.Context, js jetstream.JetStream, sink string, bound int64, identity Message) (*outlet, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: StreamName(sink), Subjects: []string{subject(sink, identity.Zone)},
		Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage,
		MaxBytes: bound, MaxMsgs: -1, MaxMsgsPerSubject: -1, Replicas: 1, Duplicates: 2 * time.Second,
	})
	if err != nil {
		return nil, 0, fmt.Errorf("stream %s: %w", StreamName(sink), err)
	}
	info, err := s.Info(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("stream %s: %w", StreamName(sink), err)
	}
	o := &outlet{
		js: js, stream: s, subject: subject(sink, identity.Zone), identity: identity, bound: bound,
		limit: pieceOf(bound), seq: info.State.LastSeq,
	}
	return o, info.State.Msgs, nil
}

// pieceOf is how large a bundle may grow before it is sent: it then takes at most
// about a quarter of the stream.
func pieceOf(bound int64) int { return int(min(chunkBytes, bound/8)) }

// begin says where the stream's chain goes on.
func (o *outlet) begin(state int32, pos LSN) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pos, o.acked = pos, kept{o.seq, pos}
	o.state.Store(state)
}

// takes says whether rows go to the stream.
func (o *outlet) takes() bool { return o.state.Load() == attached }

// add gathers a message of the WAL. What the stream has already is left out.
func (o *outlet) add(ctx context.Context, m Message, raw []byte, rows []pending, advance LSN, tick func() error) error {
	o.mu.Lock()
	if !o.takes() || m.Kind == KindTx && m.Commit < o.pos {
		o.mu.Unlock()
		return nil
	}
	if len(m.Rows) > 0 || rows == nil {
		o.start(&m)
		o.body = o.enc.message(o.body, &m)
	} else {
		o.start(&m)
		o.body = binary.AppendUvarint(o.enc.head(o.body, &m), uint64(len(rows)))
		for _, r := range rows {
			var err error
			if o.body, err = o.enc.raw(o.body, r.v, r.op, raw[r.off:]); err != nil {
				o.mu.Unlock()
				return err
			}
		}
	}
	if advance > 0 {
		o.pos = advance
	}
	large := len(o.body) >= o.limit
	o.mu.Unlock()
	if !large {
		return nil
	}
	return o.flush(ctx, tick)
}

// say sends a message that isn't of the WAL, also to a stream that is detached.
func (o *outlet) say(ctx context.Context, m Message) error {
	o.mu.Lock()
	o.start(&m)
	o.body = o.enc.message(o.body, &m)
	o.mu.Unlock()
	return o.flush(ctx, nil)
}

// start completes the message, and begins a bundle if there is none. With mu held.
func (o *outlet) start(m *Message) {
	m.Prev = o.pos
	if m.LSN == 0 {
		m.LSN = o.pos
	}
	if o.count == 0 {
		o.body = append(make([]byte, 0, o.limit/8), bundleMark, bundleVersion)
		o.body = appendText(appendText(o.body, o.identity.Zone), o.identity.Incarnation)
		o.number = len(o.body)
		o.body = append(o.body, 0, 0, 0)
		o.enc = encoder{tables: o.enc.tables[:0]}
	}
	o.count++
}

// flush sends the bundle. It doesn't wait for the acknowledgement, but for room.
// Meanwhile it calls tick each second, for who has a connection to keep alive.
func (o *outlet) flush(ctx context.Context, tick func() error) error {
	for {
		err := o.try()
		if !errors.Is(err, errNoRoom) {
			return err
		}
		if err := o.wait(ctx); err != nil {
			return err
		}
		if tick != nil {
			if err := tick(); err != nil {
				return err
			}
		}
	}
}

var errNoRoom = errors.New("too many messages in flight")

func (o *outlet) try() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.collect(); o.err != nil {
		return o.err
	}
	if o.state.Load() == full {
		o.body, o.count = nil, 0
	}
	if o.count == 0 {
		return nil
	}
	if len(o.flights) >= maxInFlight || o.bytes >= maxBytes {
		return errNoRoom
	}
	for i := range 3 { // a varint of a fixed length
		o.body[o.number+i] = byte(o.count>>(7*i))&0x7f | 0x80
	}
	o.body[o.number+2] &= 0x7f
	ack, err := o.js.PublishMsgAsync(&nats.Msg{Subject: o.subject, Data: o.body},
		jetstream.WithExpectLastSequence(o.seq), jetstream.WithRetryAttempts(0))
	if err != nil {
		o.err = fmt.Errorf("publish: %w", err)
		return o.err
	}
	o.seq++
	o.flights = append(o.flights, flight{ack, o.pos, len(o.body)})
	o.bytes += len(o.body)
	o.sent += int64(len(o.body))
	o.body, o.count = nil, 0
	return nil
}

// collect takes what has been acknowledged, in order. With mu held.
func (o *outlet) collect() {
	n := 0
	for _, f := range o.flights {
		select {
		case <-f.ack.Ok():
			o.bytes -= f.size
			o.acked = kept{o.acked.seq + 1, max(o.acked.pos, f.pos)}
			n++
			continue
		case err := <-f.ack.Err():
			var api *jetstream.APIError
			if errors.As(err, &api) && strings.Contains(api.Description, "maximum") {
				// What is behind it names a sequence that doesn't come, and is refused too.
				o.state.CompareAndSwap(attached, full)
				o.since, o.flights, o.bytes, o.body, o.count = time.Now(), nil, 0, nil, 0
				o.seq = o.acked.seq
				return
			}
			o.err = fmt.Errorf("publish: %w", err)
		default:
		}
		break
	}
	if o.flights = o.flights[n:]; len(o.flights) == 0 {
		o.flights = nil
	}
}

// wait returns when the oldest message is settled, or after a second.
func (o *outlet) wait(ctx context.Context) error {
	o.mu.Lock()
	if len(o.flights) == 0 {
		o.mu.Unlock()
		return nil
	}
	oldest := o.flights[0].ack
	o.mu.Unlock()
	// Ok and Err give their value once, and collect wants it: only look whether it's there.
	t := time.NewTimer(time.Second)
	defer t.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for len(oldest.Ok()) == 0 && len(oldest.Err()) == 0 && o.waits(oldest) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			return nil
		case <-tick.C:
		}
	}
	return nil
}

// waits says whether a bundle is still the oldest: another goroutine may have
// collected it.
func (o *outlet) waits(oldest jetstream.PubAckFuture) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.flights) > 0 && o.flights[0].ack == oldest
}

// settled says how many bundles are in flight, and whether one was refused.
func (o *outlet) settled() (inFlight int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.collect()
	return len(o.flights), o.err
}

// drain waits until all that was published is acknowledged.
func (o *outlet) drain(ctx context.Context) error {
	for {
		n, err := o.settled()
		if err != nil || n == 0 {
			return err
		}
		if err := o.wait(ctx); err != nil {
			return err
		}
	}
}

// room says whether the stream could take much more.
func (o *outlet) room(ctx context.Context) (bool, error) {
	n, err := o.held(ctx)
	return n < o.bound/2, err
}

// held is how many bytes are in the stream.
func (o *outlet) held(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	info, err := o.stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	return int64(info.State.Bytes), nil
}

// paced waits inside a large transaction until the stream has room, as long as
// its sink takes something. Were it to fill up, the transaction would begin again,
// and one that is larger than the stream would for ever.
func (o *outlet) paced(ctx context.Context, alive func() error) error {
	o.mu.Lock()
	sent := o.sent
	o.mu.Unlock()
	if sent < o.bound/4 {
		return nil
	}
	for least, since := int64(-1), time.Now(); o.takes(); {
		inFlight, err := o.settled()
		if err != nil {
			return err
		}
		if inFlight == 0 {
			n, err := o.held(ctx)
			switch {
			case err != nil:
				return err
			case n < o.bound/2:
				o.mu.Lock()
				o.sent = 0
				o.mu.Unlock()
				return nil
			case least < 0 || n < least:
				least, since = n, time.Now()
			case time.Since(since) > fullLimit: // the others have waited enough
				o.mu.Lock()
				if o.state.CompareAndSwap(attached, full) {
					o.since, o.body, o.count = since, nil, 0
				}
				o.mu.Unlock()
				return nil
			}
		}
		if err := alive(); err != nil {
			return err
		}
		if sleep(ctx, 5*time.Millisecond); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// cut detaches the stream: what is in it goes, and the sink finds the reason there.
func (o *outlet) cut(ctx context.Context, reason string) error {
	o.mu.Lock()
	o.state.Store(detached)
	o.body, o.count = nil, 0
	o.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, ackLimit)
	defer cancel()
	if err := o.drain(ctx); err != nil {
		return err
	}
	if err := o.stream.Purge(ctx); err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	return o.declare(ctx, reason)
}

// declare says that what comes after isn't the continuation.
func (o *outlet) declare(ctx context.Context, reason string) error {
	if err := o.say(ctx, Message{Kind: KindResync, Reason: reason, At: time.Now()}); err != nil {
		return err
	}
	return o.drain(ctx)
}
