package main

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// delayed dials connections on which every byte takes so long, each way; order is
// kept and throughput isn't throttled, as on the cells' links (link.Fault).
func delayed(d time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return newSlow(c, d), nil
	}
}

// slow is a connection to somewhere far away.
type slow struct {
	net.Conn
	out, in *lane
	once    sync.Once
}

// parcel is bytes on their way, or the end.
type parcel struct {
	due  time.Time
	data []byte
	err  error
}

// lane is one direction. What is on its way has no bound: the client waits for its
// answers anyway.
type lane struct {
	parcels chan parcel
	rest    []byte // of the parcel that is being read
	err     error
	ended   chan struct{}
}

func newLane() *lane { return &lane{parcels: make(chan parcel, 1024), ended: make(chan struct{})} }

func newSlow(c net.Conn, d time.Duration) *slow {
	s := &slow{Conn: c, out: newLane(), in: newLane()}
	go func() { // from there
		for {
			b := make([]byte, 16<<10)
			n, err := c.Read(b)
			select {
			case s.in.parcels <- parcel{time.Now().Add(d), b[:n], err}:
			case <-s.in.ended:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	go func() { // to there
		for {
			select {
			case p := <-s.out.parcels:
				time.Sleep(time.Until(p.due.Add(d)))
				if _, err := c.Write(p.data); err != nil {
					return
				}
			case <-s.out.ended:
				return
			}
		}
	}()
	return s
}

// Read implements net.Conn.
func (s *slow) Read(b []byte) (int, error) {
	if len(s.in.rest) == 0 {
		if s.in.err != nil {
			return 0, s.in.err
		}
		select {
		case p := <-s.in.parcels:
			time.Sleep(time.Until(p.due))
			s.in.rest, s.in.err = p.data, p.err
		case <-s.in.ended:
			return 0, io.ErrClosedPipe
		}
		if len(s.in.rest) == 0 {
			return 0, s.in.err
		}
	}
	n := copy(b, s.in.rest)
	s.in.rest = s.in.rest[n:]
	return n, nil
}

// Write implements net.Conn.
func (s *slow) Write(b []byte) (int, error) {
	select {
	case <-s.out.ended:
		return 0, io.ErrClosedPipe
	default:
	}
	select {
	case s.out.parcels <- parcel{due: time.Now(), data: append([]byte(nil), b...)}:
		return len(b), nil
	case <-s.out.ended:
		return 0, io.ErrClosedPipe
	}
}

// Close implements net.Conn. What is on its way is lost.
func (s *slow) Close() error {
	s.once.Do(func() { close(s.out.ended); close(s.in.ended) })
	return s.Conn.Close()
}
