package bus

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const batchSize = 64 // messages asked for in one pull

// errSilent is the watchdog's finding.
var errSilent = errors.New("the consumer is silent with messages pending")

// source is one cell's stream for this cell, as far as one service pulls it.
type source struct {
	c    *Consumer
	cell string
	nc   *nats.Conn
	js   jetstream.JetStream
	log  *slog.Logger
	wg   sync.WaitGroup
	last time.Time // of the last message, or of the consumer's making
}

// run makes the durable consumer and pulls, again and again: a stream, consumer
// or server that went away is the normal case, not an error.
func (s *source) run(ctx context.Context) {
	defer s.wg.Wait()
	var pause time.Duration
	var said string
	for ctx.Err() == nil {
		cons, err := s.ensure(ctx)
		if err == nil {
			pause = 0
			err = s.pull(ctx, cons)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil && err.Error() != said { // once for each reason, not at each try
			said = err.Error()
			s.log.Info("pulling again", "error", err)
		}
		pause = min(max(2*pause, 100*time.Millisecond), 2*time.Second)
		wait(ctx, pause)
	}
}

// ensure makes the consumer or brings it up to date. MaxAckPending has no
// bound: messages that wait for their delayed second try count as pending, and
// must not keep the others out (S-M11); the batch and the workers bound what is
// in work. Who it has gone from, with its server, makes it again: what isn't
// acknowledged comes once more.
func (s *source) ensure(ctx context.Context) (jetstream.Consumer, error) {
	if !s.nc.IsConnected() {
		return nil, nats.ErrDisconnected
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s.last = time.Now()
	cons, err := s.js.CreateOrUpdateConsumer(ctx, Stream(s.c.o.Cell), jetstream.ConsumerConfig{
		Durable:       s.c.o.Service,
		FilterSubject: Subject(s.c.o.Cell, s.c.o.Service, ">"),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       s.c.timing.ackWait,
		MaxDeliver:    -1,
		MaxAckPending: -1,
		MemoryStorage: true, // a file for each would be written anew all the time
	})
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeConsumerCreate { // one is there that can't become this one
		err = errors.Join(err, s.js.DeleteConsumer(ctx, Stream(s.c.o.Cell), s.c.o.Service))
	}
	return cons, err
}

// pull handles what comes until something is wrong with the consumer.
func (s *source) pull(ctx context.Context, cons jetstream.Consumer) error {
	for ctx.Err() == nil {
		if !s.c.canWrite(ctx) { // else everything is fetched only to be given back
			wait(ctx, 250*time.Millisecond)
			continue
		}
		err := s.fetch(ctx, cons)
		if err != nil {
			return err
		}
		if err := s.watch(ctx, cons); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (s *source) fetch(ctx context.Context, cons jetstream.Consumer) error {
	fctx, cancel := context.WithTimeout(ctx, s.c.timing.pull)
	defer cancel()
	batch, err := cons.Fetch(batchSize, jetstream.FetchContext(fctx), jetstream.FetchHeartbeat(s.c.timing.heartbeat))
	if err != nil {
		return err
	}
	for msg := range batch.Messages() {
		s.last = time.Now()
		s.start(ctx, msg)
	}
	err = batch.Error()
	if errors.Is(err, nats.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, jetstream.ErrNoMessages) {
		return nil
	}
	return err
}

// start gives a message to those who handle its kind together, or to a worker,
// waiting for a free one. At most half of them work on second and further tries: the
// server gives those out first, and many that fail must not keep new messages
// waiting (S-M11).
func (s *source) start(ctx context.Context, msg jetstream.Msg) {
	it := item{s: s, msg: msg, n: deliveries(msg), came: time.Now(), done: ctx.Done()}
	if it.m, it.err = decode(msg.Data(), s.c.o.Service); it.err == nil {
		if q := s.c.queue(it); q != nil {
			s.wg.Add(1) // until the batch has told what became of it
			select {
			case q <- it:
			case <-ctx.Done():
				s.wg.Done()
				_ = msg.Nak() // for another instance, at once
			}
			return
		}
	}
	if it.n > 1 {
		select {
		case s.c.retries <- struct{}{}:
		default:
			_ = msg.NakWithDelay(s.delay(it.n)) // if that is lost, it comes after AckWait
			return
		}
	}
	s.wg.Add(1)
	if !s.alone(ctx, it) {
		_ = msg.Nak()
	}
}

// alone has a worker handle one message that s.wg counts, and whose retry, if it is
// one, is counted too. false: ctx ended before one was free.
func (s *source) alone(ctx context.Context, it item) bool {
	release := func() {
		if it.n > 1 {
			<-s.c.retries
		}
		s.wg.Done()
	}
	select {
	case s.c.work <- struct{}{}:
		go func() {
			defer func() { <-s.c.work; release() }()
			s.handle(context.WithoutCancel(ctx), it) // bounded by the transaction's own limit
		}()
		return true
	case <-ctx.Done():
		release()
		return false
	}
}

// watch looks, when nothing has come for a while, whether something should have
// (nats-server#5839), and then makes the consumer again. What isn't acknowledged
// comes again from the stream.
func (s *source) watch(ctx context.Context, cons jetstream.Consumer) error {
	quiet := time.Since(s.last)
	if quiet < s.c.timing.silent {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	info, err := cons.Info(ctx)
	if err != nil {
		return err
	}
	overdue := quiet > 2*(s.c.timing.ackWait+s.c.timing.nakLast) // what is pending should have come again by now
	if info.NumPending == 0 && (info.NumAckPending == 0 || !overdue) {
		return nil
	}
	s.log.Warn("consumer is silent, making it again", "pending", info.NumPending, "ack_pending", info.NumAckPending)
	s.c.metrics.rebuilt.WithLabelValues(s.cell).Inc()
	if err := s.js.DeleteConsumer(ctx, Stream(s.c.o.Cell), s.c.o.Service); err != nil {
		return err
	}
	return errSilent
}

// handle does one message, and tells the server what became of it.
func (s *source) handle(ctx context.Context, it item) {
	var res Result
	if it.err != nil {
		res = s.c.parkMalformed(ctx, it.msg.Subject(), it.msg.Data(), it.err)
	} else {
		res = s.c.Deliver(ctx, it.m)
	}
	s.tell(ctx, it, res)
}

// tell tells the server what became of a message.
func (s *source) tell(ctx context.Context, it item, res Result) {
	s.c.metrics.received.WithLabelValues(s.cell).Inc()
	if res.Outcome == Elsewhere {
		res = s.c.forward(ctx, it.m, res.Owner)
	}
	if s.c.at("ack") != nil {
		return
	}
	if res.Outcome == Again && it.err == nil && it.n >= tries(it.m) {
		s.c.dropped(it.m)
		res.Outcome = Dropped
	}
	var err error
	if res.Outcome == Again {
		s.log.Info("message waits for another try", "id", it.m.ID, "kind", it.m.Kind, "tries", it.n, "error", res.Err)
		err = it.msg.NakWithDelay(s.delay(it.n))
	} else {
		err = it.msg.Ack()
	}
	if err != nil { // it comes once more
		s.log.Debug("ack", "id", it.m.ID, "error", err)
	}
}

// tries is how often one copy of a message is tried. Its source sends another
// until it is answered, so copies that can't be handled must go, or they would
// pile up; the later ones come half a minute apart and need less patience.
func tries(m Message) int { return max(2, 6-m.Attempt) }

// delay grows from 0.1 s to 15 s.
func (s *source) delay(n int) time.Duration {
	return min(s.c.timing.nakFirst<<min(2*(n-1), 20), s.c.timing.nakLast)
}

// deliveries counts how often the server has given this message out.
func deliveries(msg jetstream.Msg) int {
	if md, err := msg.Metadata(); err == nil {
		return int(min(md.NumDelivered, 1<<20))
	}
	return 1
}

// canWrite says whether the own database takes writes at the moment.
func (c *Consumer) canWrite(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var ok bool
	err := c.o.Pool.QueryRow(ctx, "SELECT cell.lease_left_ms() > 3000").Scan(&ok)
	return err == nil && ok
}

// wait is a pause that ends with ctx.
func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
