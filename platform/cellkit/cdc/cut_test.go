package cdc_test

import (
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/cdc"
)

// cable leads to a server. While it's cut, what the server sends is swallowed;
// broken, all its connections end.
type cable struct {
	cut  atomic.Bool
	rate atomic.Int64 // bytes a second that the server's side gets through, 0 = all
	l    net.Listener

	mu    sync.Mutex
	conns []net.Conn
}

func newCable(t *testing.T, to string) *cable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{l: l}
	t.Cleanup(func() { l.Close(); c.breaks() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			c.mu.Lock()
			c.conns = append(c.conns, in, out)
			c.mu.Unlock()
			go c.pass(out, in, false)
			go c.pass(in, out, true)
		}
	}()
	return c
}

func (c *cable) pass(to, from net.Conn, cuttable bool) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if cuttable && c.cut.Load() {
			continue
		}
		if rate := c.rate.Load(); cuttable && rate > 0 {
			<-time.After(time.Duration(n) * time.Second / time.Duration(rate))
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (c *cable) breaks() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

// A zone is unplugged: messages that the server has sent never arrive, and it
// sends newer ones first when the link is back. No copy is needed for that.
func TestConnectionCutWithMessagesUnderWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := newCable(t, strings.TrimPrefix(w.nats.URL, "nats://"))
	w.via = "nats://" + c.l.Addr().String()
	w.relay(nil)
	f := w.sink()
	w.add(1, 3)
	w.equal()
	c.cut.Store(true)
	w.add(4, 6)
	js := w.js()
	wait(t, "the server has sent what doesn't arrive", func() bool {
		con, err := js.Consumer(t.Context(), cdc.StreamName("test"), "test")
		return err == nil && con.CachedInfo().NumAckPending > 0
	})
	c.breaks()
	c.cut.Store(false)
	w.add(7, 9)
	w.equal()
	if s := f.Status(); s.Gaps != 0 || w.begins != 1 {
		t.Errorf("%d gaps and %d copies after a cut, want 0 and the first", s.Gaps, w.begins)
	}
}
