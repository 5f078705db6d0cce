package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit/errs"
)

func echoTargets(t testing.TB) map[string]Target {
	return map[string]Target{
		"gateway": {Addr: echoServer(t), Allow: []string{"agent.c1", "agent.c2", EdgeName}},
	}
}

func TestStreamGoesThrough(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echoTargets(t), "c1", "c2")
	c1, c2 := w.zones["c1"], w.zones["c2"]
	say(t, dial(t, c1, "c2", "gateway"), "to the other zone")
	say(t, dial(t, c2, "c1", "gateway"), "and back")
	say(t, dial(t, c1, "c1", "gateway"), "and at home, without the border")
	if got := c2.border.Stats()["c1"]; got.BytesIn == 0 || got.BytesOut == 0 || got.Accepted == 0 || got.Dialed != 1 {
		t.Errorf("c2's stats of c1 = %+v, want bytes both ways, streams accepted, 1 dialed", got)
	}
}

// A target may have several instances: whoever runs is reached, here and there.
func TestTargetOfTwoInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(t, map[string]Target{
		"two":  {Addr: deadAddr(t) + "|" + echoServer(t), Allow: []string{"agent.c2"}},
		"none": {Addr: deadAddr(t) + "|" + deadAddr(t), Allow: []string{"agent.c2"}},
	}, "c1", "c2")
	for range 8 { // begun with either
		say(t, dial(t, w.zones["c2"], "c1", "two"), "to the other zone")
		say(t, dial(t, w.zones["c2"], "c2", "two"), "at home")
	}
	_, err := w.zones["c2"].dialer.Dial(within(t, patience), "c1", "none")
	wantErr(t, err, ErrTargetDown, "c1")
}

func TestWhoMayOpenWhat(t *testing.T) {
	t.Parallel()
	echo := echoServer(t)
	w := newWorld(t, map[string]Target{
		"nats":    {Addr: echo, Allow: []string{"agent.c2"}},
		"gateway": {Addr: echo, Allow: []string{"agent.c2", EdgeName}},
		"dead":    {Addr: deadAddr(t), Allow: []string{"agent.c2"}},
	}, "c1", "c2", "c3")
	c1 := w.zones["c1"]
	for _, tc := range []struct {
		from, zone, target string
		want               *errs.Error
	}{
		{"c2", "c1", "nats", nil},
		{"c3", "c1", "nats", ErrRefused}, // same CA, not on the list
		{"c3", "c1", "nosuch", ErrNoTarget},
		{"c2", "c1", "dead", ErrTargetDown},
		{"c2", "c2", "dead", ErrTargetDown},
		{"c2", "c9", "nats", ErrNoTarget},
		{"c2", "c1", "_probe2", ErrNoTarget},
	} {
		conn, err := w.zones[tc.from].dialer.Dial(within(t, patience), tc.zone, tc.target)
		if tc.want == nil {
			if err != nil {
				t.Errorf("%s -> %s/%s: %v", tc.from, tc.zone, tc.target, err)
			} else {
				conn.Close()
			}
			continue
		}
		wantErr(t, err, tc.want, tc.zone)
	}
	edge, err := LoadTLS(filepath.Join(w.pki, EdgeName))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := DialBorder(within(t, patience), c1.addr, edge, "c1", "gateway")
	if err != nil {
		t.Fatalf("edge -> gateway: %v", err)
	}
	say(t, conn, "hello")
	conn.Close()
	_, err = DialBorder(within(t, patience), c1.addr, edge, "c1", "nats")
	wantErr(t, err, ErrRefused, "c1")
	// The address of c1 answered as somebody else.
	_, err = DialBorder(within(t, patience), c1.addr, edge, "c2", "gateway")
	wantErr(t, err, ErrRefused, "c2")
	s := c1.border.Stats()
	if s["c3"].Refused[NotAllowed] != 1 || s[EdgeName].Refused[NotAllowed] != 1 || s["c3"].Refused[NoTarget] != 1 || s["c2"].Refused[TargetDown] != 1 {
		t.Errorf("refusals = %+v", s)
	}
}

// deadAddr is an address where nobody listens.
func deadAddr(t testing.TB) string {
	l := listen(t)
	l.Close()
	return l.Addr().String()
}

func TestCertificatesOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echoTargets(t), "c1", "c2")
	c1 := w.zones["c1"]
	good, err := LoadTLS(filepath.Join(w.pki, "agent.c2"))
	if err != nil {
		t.Fatal(err)
	}
	foreign := t.TempDir()
	if err := WritePKI(foreign, []string{"c2"}); err != nil {
		t.Fatal(err)
	}
	other, err := LoadTLS(filepath.Join(foreign, "agent.c2"))
	if err != nil {
		t.Fatal(err)
	}
	wrongCA := other.Clone()
	wrongCA.RootCAs = good.RootCAs // it trusts us, we don't trust it
	noCert := good.Clone()
	noCert.Certificates = nil
	old := good.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	untrusting := good.Clone()
	untrusting.RootCAs = x509.NewCertPool()
	for name, conf := range map[string]*tls.Config{"wrong CA": wrongCA, "no certificate": noCert, "TLS 1.2": old, "unknown server": untrusting} {
		t.Run(name, func(t *testing.T) {
			for range 20 { // the refusal races with our first bytes
				_, err := DialBorder(within(t, patience), c1.addr, conf, "c1", "gateway")
				wantErr(t, err, ErrRefused, "c1")
			}
		})
	}
	waitFor(t, "80 handshakes counted", func() bool {
		return c1.border.Stats()[unknownPeer].Refused[Handshake] == 80
	})
}

func TestRedialResumesSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echoTargets(t), "c1", "c2")
	edge, err := LoadTLS(filepath.Join(w.pki, EdgeName))
	if err != nil {
		t.Fatal(err)
	}
	p := NewPeer(PeerConfig{Zone: "c1", Addr: w.zones["c1"].addr, TLS: edge})
	runPeer(t, p)
	waitFor(t, "edge's link up", func() bool { return p.Status().Up })
	conn, err := p.Dial(t.Context(), "gateway")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if !conn.(*stream).ConnectionState().DidResume {
		t.Error("second connection made a whole handshake, want a resumed session")
	}
	say(t, conn, "resumed, and still known by name")
}

func runPeer(t *testing.T, p *Peer) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { p.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func TestHalfCloseGoesBothWays(t *testing.T) {
	t.Parallel()
	for _, delay := range []time.Duration{0, 20 * time.Millisecond} {
		t.Run(delay.String(), func(t *testing.T) {
			t.Parallel()
			// Answers only after the client's end, then ends itself.
			sum := serve(t, func(c *net.TCPConn) {
				n, err := io.Copy(io.Discard, c)
				fmt.Fprintf(c, "%d %v", n, err)
				c.CloseWrite()
			})
			// Ends first, then wants to read on.
			got := make(chan string, 1)
			first := serve(t, func(c *net.TCPConn) {
				io.WriteString(c, "bye")
				c.CloseWrite()
				b, _ := io.ReadAll(c)
				got <- string(b)
			})
			allow := []string{"agent.c1"}
			w := newWorld(t, map[string]Target{"sum": {sum, allow}, "first": {first, allow}}, "c1", "c2")
			setFault(t, w.zones["c1"], "c2", Fault{Delay: delay})
			conn := dial(t, w.zones["c1"], "c2", "sum")
			conn.Write(make([]byte, 100_000))
			conn.(*net.TCPConn).CloseWrite()
			b, err := io.ReadAll(conn)
			if err != nil || string(b) != "100000 <nil>" {
				t.Errorf("after our end the server said %q (%v), want 100000", b, err)
			}
			conn = dial(t, w.zones["c1"], "c2", "first")
			b, err = io.ReadAll(conn)
			if err != nil || string(b) != "bye" {
				t.Errorf("read %q (%v), want bye", b, err)
			}
			io.WriteString(conn, "still here")
			conn.(*net.TCPConn).CloseWrite()
			if s := <-got; s != "still here" {
				t.Errorf("server got %q after its end, want still here", s)
			}
			waitFor(t, "streams are over", func() bool { return w.zones["c1"].border.Stats()["c2"].Open == 0 })
		})
	}
}

func TestManyStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echoTargets(t), "c1", "c2")
	conns := make([]net.Conn, 200)
	var opening errgroup.Group
	opening.SetLimit(8) // both agents and all clients share this process's CPUs
	for i := range conns {
		opening.Go(func() (err error) {
			conns[i], err = w.zones["c1"].dialer.Dial(t.Context(), "c2", "gateway")
			return err
		})
	}
	if err := opening.Wait(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "200 open streams", func() bool { return w.zones["c1"].border.Stats()["c2"].Open == 200 }) // each is counted after its answer
	var talking errgroup.Group
	for i, conn := range conns {
		talking.Go(func() error {
			defer conn.Close()
			for j := range 10 {
				if err := exchange(conn, strings.Repeat(fmt.Sprintf("%d/%d ", i, j), 50)); err != nil {
					return fmt.Errorf("stream %d: %w", i, err)
				}
			}
			return nil
		})
	}
	if err := talking.Wait(); err != nil {
		t.Error(err)
	}
	waitFor(t, "all streams are over", func() bool {
		return w.zones["c1"].border.Stats()["c2"].Open == 0 && w.zones["c2"].border.Stats()["c1"].Open == 0
	})
}

func TestSlowReaderHoldsItsWriterOnly(t *testing.T) {
	t.Parallel()
	for _, f := range []Fault{{}, {Delay: 5 * time.Millisecond}} {
		t.Run(f.Delay.String(), func(t *testing.T) {
			t.Parallel()
			read := make(chan struct{})
			slow := serve(t, func(c *net.TCPConn) {
				<-read
				n, _ := io.Copy(io.Discard, c)
				fmt.Fprint(c, n)
			})
			targets := echoTargets(t)
			targets["slow"] = Target{Addr: slow, Allow: []string{"agent.c1"}}
			w := newWorld(t, targets, "c1", "c2")
			c1 := w.zones["c1"]
			setFault(t, c1, "c2", f)
			conn := dial(t, c1, "c2", "slow")
			conn.SetWriteDeadline(time.Now().Add(700 * time.Millisecond))
			sent, err := io.Copy(conn, io.LimitReader(zeros{}, 1<<30))
			if err == nil {
				t.Fatal("a gigabyte was taken from a writer whose reader doesn't read")
			}
			if sent > 64<<20 {
				t.Errorf("%d MB held for a reader that doesn't read", sent>>20)
			}
			say(t, dial(t, c1, "c2", "gateway"), "others go on")
			close(read)
			conn.(*net.TCPConn).CloseWrite()
			b, err := io.ReadAll(conn)
			if want := fmt.Sprint(sent); err != nil || string(b) != want {
				t.Errorf("reader got %s bytes in the end (%v), want %s", b, err, want)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestRunLeavesNothing(t *testing.T) {
	// Not parallel: it looks at all goroutines.
	func() {
		w := newWorld(t, echoTargets(t), "c1", "c2")
		c1, c2 := w.zones["c1"], w.zones["c2"]
		say(t, dial(t, c1, "c2", "gateway"), "an open stream")
		setFault(t, c2, "c1", Fault{Delay: time.Millisecond})
		delayed := dial(t, c1, "c2", "gateway")
		say(t, delayed, "a delayed one")
		setFault(t, c2, "c1", Fault{CutIn: true, CutOut: true})
		io.WriteString(delayed, "held")
		idle, err := net.Dial("tcp", c1.dialer.Addr) // never says what it wants
		if err != nil {
			t.Fatal(err)
		}
		defer idle.Close()
		silent, err := net.Dial("tcp", c1.addr) // never shakes hands
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		c1.stop()
		c2.stop()
		if _, err := c1.dialer.Dial(within(t, patience), "c2", "gateway"); err == nil {
			t.Error("dial went through after Run's end")
		}
	}()
	// What closes a connection when ctx ends may be a moment behind; nothing
	// else, so the limit is for a busy machine.
	buf := make([]byte, 1<<20)
	waitFor(t, "no goroutine of the two borders is left", func() bool {
		stacks := string(buf[:runtime.Stack(buf, true)])
		for _, name := range []string{".(*pipe).", ".(*Peer).", ".(*Border).", "link.splice(", "link.echo("} {
			if strings.Contains(stacks, name) {
				return false
			}
		}
		return true
	})
}
