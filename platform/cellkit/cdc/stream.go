package cdc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	chunkBytes   = 256 << 10 // of one message, about; NATS takes 1 MB
	maxInFlight  = 512       // messages that the stream hasn't acknowledged
	maxBytes     = 16 << 20  // of those
	ackLimit     = 5 * time.Second
	defaultBound = 256 << 20 // of the stream
)

// outlet publishes to one sink's stream in one session of the relay. Each
// message names the sequence that it must follow, so the stream has them in
// order and whole up to some place, or the session ends.
type outlet struct {
	js       jetstream.JetStream
	subject  string
	identity Message // zone and incarnation

	mu        sync.Mutex
	seq       uint64 // of the last message published
	pos       LSN    // of the last transaction published
	confirmed LSN    // of the last that is acknowledged, with all before it
	flights   []flight
	bytes     int
	err       error
}

type flight struct {
	ack  jetstream.PubAckFuture
	lsn  LSN // what is confirmed when it has arrived, 0 = nothing
	size int
}

// openOutlet makes the stream if it isn't there, and continues it. A full stream
// refuses new messages rather than to lose old ones; acknowledged ones go.
func openOutlet(ctx context.Context, js jetstream.JetStream, sink string, bound int64, identity Message, from LSN) (*outlet, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: StreamName(sink), Subjects: []string{subject(sink, identity.Zone)},
		Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage,
		MaxBytes: bound, MaxMsgs: -1, MaxMsgsPerSubject: -1, Replicas: 1, Duplicates: 2 * time.Second,
	})
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", StreamName(sink), err)
	}
	info, err := s.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", StreamName(sink), err)
	}
	return &outlet{
		js: js, subject: subject(sink, identity.Zone), identity: identity,
		seq: info.State.LastSeq, pos: from, confirmed: from,
	}, nil
}

// publish sends a message; advance is the position after it, 0 if it moves none.
// It doesn't wait for the acknowledgement, but for room. Meanwhile it calls tick
// each second, for who has a connection to keep alive.
func (o *outlet) publish(ctx context.Context, m Message, advance LSN, tick func() error) error {
	for {
		err := o.try(m, advance)
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

func (o *outlet) try(m Message, advance LSN) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.collect(); o.err != nil {
		return o.err
	}
	if len(o.flights) >= maxInFlight || o.bytes >= maxBytes {
		return errNoRoom
	}
	m.Zone, m.Incarnation, m.Prev = o.identity.Zone, o.identity.Incarnation, o.pos
	if m.LSN == 0 {
		m.LSN = o.pos
	}
	data := Encode(nil, []Message{m})
	ack, err := o.js.PublishMsgAsync(&nats.Msg{Subject: o.subject, Data: data},
		jetstream.WithExpectLastSequence(o.seq), jetstream.WithRetryAttempts(0))
	if err != nil {
		o.err = fmt.Errorf("publish: %w", err)
		return o.err
	}
	o.seq++
	if advance > 0 {
		o.pos = advance
	}
	o.flights = append(o.flights, flight{ack, advance, len(data)})
	o.bytes += len(data)
	return nil
}

// collect takes what has been acknowledged, in order. With mu held.
func (o *outlet) collect() {
	n := 0
	for _, f := range o.flights {
		select {
		case <-f.ack.Ok():
			o.bytes -= f.size
			o.confirmed = max(o.confirmed, f.lsn)
			n++
			continue
		case err := <-f.ack.Err():
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
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for len(oldest.Ok()) == 0 && len(oldest.Err()) == 0 {
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

// settled gives what may be confirmed, how many messages are in flight, and
// whether one was refused.
func (o *outlet) settled() (confirmed LSN, inFlight int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.collect()
	return o.confirmed, len(o.flights), o.err
}

// drain waits until all that was published is acknowledged.
func (o *outlet) drain(ctx context.Context) error {
	for {
		_, n, err := o.settled()
		if err != nil || n == 0 {
			return err
		}
		if err := o.wait(ctx); err != nil {
			return err
		}
	}
}
