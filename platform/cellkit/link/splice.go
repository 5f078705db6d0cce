package link

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// Limits of what one direction of one stream holds back. Past them its sender
// isn't read any more, and TCP's own window stops it.
const (
	heldCut   = 64 << 10
	heldDelay = 1 << 20 // room for 20 MB/s at 50 ms
	chunkCost = 64      // bookkeeping of a chunk, so that tiny ones are bounded too
	readSize  = 32 << 10
)

var errStopped = errors.New("stream stopped")

// splice carries bytes between near, a connection inside this zone, and far,
// the stream to the peer, until both directions have ended by themselves or
// one breaks; then both ends are closed. A broken stream is reset, not closed:
// what was cut off must not look like an end. track is told how to break it.
func splice(near, far net.Conn, w *wire, track func(abort func()) (release func())) {
	stop := make(chan struct{})
	var once sync.Once
	abort := func() {
		once.Do(func() {
			close(stop)
			reset(near)
			reset(far)
		})
	}
	release := track(abort)
	defer release()
	out := newPipe(far, near, stop, abort, w.out)
	in := newPipe(near, far, stop, abort, w.in)
	var wg sync.WaitGroup
	wg.Go(out.run)
	wg.Go(in.run)
	wg.Wait()
	near.Close()
	far.Close()
}

// pipe is one direction of one stream. As long as its gates are clear it
// copies; the first fault it meets starts a second goroutine with a queue,
// which then stays for the stream's life: order is kept without a hand-over
// back.
type pipe struct {
	dst     io.Writer
	src     io.Reader
	gates   []*gate // in a row
	stop    <-chan struct{}
	abort   func()
	queue   *queue
	drained chan struct{} // nil while copying; closed when drain has ended
}

func newPipe(dst io.Writer, src io.Reader, stop <-chan struct{}, abort func(), gates ...*gate) *pipe {
	return &pipe{dst: dst, src: src, gates: gates, stop: stop, abort: abort, queue: newQueue()}
}

func (p *pipe) run() {
	if err := p.read(); err != nil {
		p.abort()
	}
	p.wait()
}

// wait returns when the queue's goroutine has ended, if there is one.
func (p *pipe) wait() {
	if p.drained != nil {
		<-p.drained
	}
}

// read ends with nil after the source's end was passed on or queued.
func (p *pipe) read() error {
	buf := make([]byte, readSize)
	for {
		n, err := p.src.Read(buf)
		if n > 0 {
			if err := p.carry(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			if p.direct() {
				return closeWrite(p.dst)
			}
			return p.push(chunk{end: true})
		case err != nil:
			return err
		}
	}
}

func (p *pipe) carry(b []byte) error {
	if p.direct() {
		_, err := p.dst.Write(b)
		return err
	}
	return p.push(chunk{bytes: slices.Clone(b)})
}

// direct says whether to copy; the first no is for ever.
func (p *pipe) direct() bool {
	if p.drained != nil {
		return false
	}
	for _, g := range p.gates {
		if !g.clear() {
			p.drained = make(chan struct{})
			go p.drain()
			return false
		}
	}
	return true
}

func (p *pipe) push(c chunk) error {
	limit := heldCut
	var delay time.Duration
	for _, g := range p.gates {
		delay += g.delay()
	}
	if delay > 0 {
		limit = heldDelay
	}
	c.due = time.Now().Add(delay)
	if !p.queue.push(c, limit, p.stop) {
		return errStopped
	}
	return nil
}

// drain writes what is queued when it's due. A fresh delay doesn't change what
// is queued already.
func (p *pipe) drain() {
	defer close(p.drained)
	for {
		c, ok := p.queue.pop(p.stop)
		if !ok || !sleepUntil(c.due, p.stop) {
			return
		}
		for _, g := range p.gates {
			if !g.hold(p.stop) {
				return
			}
		}
		if c.end {
			if closeWrite(p.dst) != nil {
				p.abort()
			}
			return
		}
		if _, err := p.dst.Write(c.bytes); err != nil {
			p.abort()
			return
		}
		p.queue.release(c)
	}
}

// chunk is a piece of a stream, or its end.
type chunk struct {
	bytes []byte
	due   time.Time
	end   bool
}

// queue is a bounded FIFO for one pusher and one popper.
type queue struct {
	mu     sync.Mutex
	chunks []chunk
	size   int // of what isn't released yet
	filled chan struct{}
	room   chan struct{}
}

func newQueue() *queue {
	return &queue{filled: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

func (q *queue) push(c chunk, limit int, stop <-chan struct{}) bool {
	for {
		q.mu.Lock()
		if q.size < limit {
			q.size += len(c.bytes) + chunkCost
			q.chunks = append(q.chunks, c)
			q.mu.Unlock()
			signal(q.filled)
			return true
		}
		q.mu.Unlock()
		select {
		case <-q.room:
		case <-stop:
			return false
		}
	}
}

func (q *queue) pop(stop <-chan struct{}) (chunk, bool) {
	for {
		q.mu.Lock()
		if len(q.chunks) > 0 {
			c := q.chunks[0]
			q.chunks[0] = chunk{}
			q.chunks = q.chunks[1:]
			q.mu.Unlock()
			return c, true
		}
		q.mu.Unlock()
		select {
		case <-q.filled:
		case <-stop:
			return chunk{}, false
		}
	}
}

// release gives a popped chunk's room back once it's written.
func (q *queue) release(c chunk) {
	q.mu.Lock()
	q.size -= len(c.bytes) + chunkCost
	q.mu.Unlock()
	signal(q.room)
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// closeWrite ends one direction, or all of a connection that can't do that.
func closeWrite(w io.Writer) error {
	switch c := w.(type) {
	case interface{ CloseWrite() error }:
		return c.CloseWrite()
	case io.Closer:
		return c.Close()
	}
	return nil
}

// reset closes without an orderly end and without waiting for anything.
func reset(c net.Conn) {
	if s, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = s.NetConn() // tls.Conn.Close would try to say goodbye first
	}
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.Close()
}
