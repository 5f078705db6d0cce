package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDelayDoesNotThrottle(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	sink := serve(t, func(c *net.TCPConn) {
		n, _ := io.Copy(io.Discard, c)
		if n == size {
			io.WriteString(c, "all")
		}
	})
	targets := echoTargets(t)
	targets["sink"] = Target{Addr: sink, Allow: []string{"agent.c1"}}
	w := newWorld(t, targets, "c1", "c2")
	const delay = 50 * time.Millisecond
	setFault(t, w.zones["c1"], "c2", Fault{Delay: delay})

	conn := dial(t, w.zones["c1"], "c2", "gateway")
	// A busy machine adds its own: one good round trip in time is enough.
	waitFor(t, "a round trip a little over twice the delay", func() bool {
		start := time.Now()
		if exchange(conn, "ping") != nil { // it may even take the link down for a moment
			waitLink(t, w.zones["c1"], "c2", true)
			conn = dial(t, w.zones["c1"], "c2", "gateway")
			return false
		}
		took := time.Since(start)
		if took < 2*delay {
			t.Errorf("round trip = %v, want over %v", took, 2*delay)
		}
		return took < 3*delay
	})

	goodTry(t, func() error {
		conn := dial(t, w.zones["c1"], "c2", "sink")
		start := time.Now()
		if _, err := io.CopyN(conn, zeros{}, size); err != nil {
			return err
		}
		conn.(*net.TCPConn).CloseWrite()
		if b, err := io.ReadAll(conn); err != nil || string(b) != "all" {
			return fmt.Errorf("sink answered %q, %w", b, err)
		}
		if took := time.Since(start); took > 3*time.Second { // one chunk at a time would take 128 x 50 ms
			return fmt.Errorf("4 MB took %v under a delay of %v", took, delay)
		}
		return nil
	})
	if rtt := w.zones["c1"].border.Status()["c2"].RTT; rtt < 2*delay {
		t.Errorf("prober's RTT = %v, want over %v", rtt, 2*delay)
	}
}

func TestDelayKeepsOrderWhenItChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echoTargets(t), "c1", "c2")
	c1 := w.zones["c1"]
	conn := dial(t, c1, "c2", "gateway")
	want := make([]byte, 0, 26)
	for i := range 26 {
		// Falling: a later byte is due earlier than the one before.
		setFault(t, c1, "c2", Fault{Delay: time.Duration(25-i) * 4 * time.Millisecond})
		want = append(want, byte('a'+i))
		if _, err := conn.Write(want[i:]); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 26)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != string(want) {
		t.Errorf("got %s (%v), want %s", got, err, want)
	}
}

func TestShortCutHoldsBytes(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]Fault{"out": {CutOut: true}, "in": {CutIn: true}, "both": {CutOut: true, CutIn: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, echoTargets(t), "c1", "c2")
			c1 := w.zones["c1"]
			goodTry(t, func() error {
				waitLink(t, c1, "c2", true)
				conn := dial(t, c1, "c2", "gateway")
				say(t, conn, "before")
				setFault(t, c1, "c2", f)
				io.WriteString(conn, "held")
				conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
				_, err := conn.Read(make([]byte, 1))
				setFault(t, c1, "c2", Fault{})
				if !isTimeout(err) {
					return fmt.Errorf("read under a cut = %w, want a timeout", err)
				}
				conn.SetReadDeadline(time.Now().Add(patience))
				b := make([]byte, 4)
				if _, err := io.ReadFull(conn, b); err != nil || string(b) != "held" {
					return fmt.Errorf("after the heal read %q, %w", b, err)
				}
				if err := exchange(conn, "after"); err != nil {
					return err
				}
				if !c1.border.Status()["c2"].Up {
					return errors.New("a cut of 200 ms took the link down")
				}
				return nil
			})
		})
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// What a pulled cable looks like from both sides, whoever's end has the fault
// and whichever direction it cuts.
func TestCutIsSilentThenRefused(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]Fault{"out": {CutOut: true}, "in": {CutIn: true}, "both": {CutOut: true, CutIn: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, echoTargets(t), "c1", "c2", "c3")
			goodTry(t, func() error { return cutAndHeal(t, w, f) })
		})
	}
}

// cutAndHeal gives what was too slow, which a busy machine may be to blame for.
func cutAndHeal(t *testing.T, w *world, f Fault) (late error) {
	c1, c2, c3 := w.zones["c1"], w.zones["c2"], w.zones["c3"]
	ours, theirs := dial(t, c1, "c2", "gateway"), dial(t, c2, "c1", "gateway")
	say(t, ours, "x")
	say(t, theirs, "x")
	bystander := dial(t, c1, "c3", "gateway")

	setFault(t, c1, "c2", f)
	cut := time.Now()
	// Silent: a dial with less patience than the prober ends by its own deadline.
	_, err := c1.dialer.Dial(within(t, 200*time.Millisecond), "c2", "gateway")
	wantErr(t, err, ErrLinkDown, "c2")
	if !errors.Is(err, context.DeadlineExceeded) {
		late = fmt.Errorf("dial into a cut link not yet known = %w, want its own deadline", err)
	}
	// One with more patience is refused when it's known.
	for _, d := range []struct {
		from *zone
		to   string
	}{{c1, "c2"}, {c2, "c1"}} {
		_, err := d.from.dialer.Dial(within(t, patience), d.to, "gateway")
		wantErr(t, err, ErrLinkDown, d.to)
		if took := time.Since(cut); took > 2*time.Second { // the rest is this machine's noise
			late = errors.Join(late, fmt.Errorf("%s knew after %v, want within a second", d.from.name, took))
		}
		start := time.Now()
		_, err = d.from.dialer.Dial(within(t, patience), d.to, "gateway")
		wantErr(t, err, ErrLinkDown, d.to)
		if took := time.Since(start); took > 500*time.Millisecond {
			late = errors.Join(late, fmt.Errorf("refusal on a link known to be down took %v", took))
		}
	}
	for name, conn := range map[string]net.Conn{"ours": ours, "theirs": theirs} {
		conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) || isTimeout(err) {
			t.Errorf("stream %s after the link went down: %v, want a reset", name, err)
		}
	}
	if err := exchange(bystander, "another link"); err != nil {
		late = errors.Join(late, err)
	}
	if _, err := c3.dialer.Dial(within(t, patience), "c2", "gateway"); !errors.Is(err, ErrRefused) {
		late = errors.Join(late, fmt.Errorf("c3 -> c2 = %w, want an answer of c2 (c3 isn't on the list)", err))
	}

	setFault(t, c1, "c2", Fault{})
	waitLink(t, c1, "c2", true)
	waitLink(t, c2, "c1", true)
	say(t, dial(t, c1, "c2", "gateway"), "healed")
	say(t, dial(t, c2, "c1", "gateway"), "healed")
	return late
}

func TestUnplugCutsEveryone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echoTargets(t), "c1", "c2", "c3")
	c1, c2, c3 := w.zones["c1"], w.zones["c2"], w.zones["c3"]
	conf, err := LoadTLS(filepath.Join(w.pki, EdgeName))
	if err != nil {
		t.Fatal(err)
	}
	edge := NewPeer(PeerConfig{Zone: "c3", Addr: c3.addr, TLS: conf})
	runPeer(t, edge)
	waitFor(t, "edge sees c3", func() bool { return edge.Status().Up })
	conn, err := edge.Dial(t.Context(), "gateway")
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(patience))
	say(t, conn, "edge")

	setFault(t, c3, Everyone, Fault{CutIn: true, CutOut: true})
	setFault(t, c3, "c1", Fault{Delay: time.Millisecond}) // a fault of one link doesn't plug it in
	if diff := cmp.Diff(map[string]Fault{Everyone: {CutIn: true, CutOut: true}, "c1": {Delay: time.Millisecond}}, c3.border.Faults()); diff != "" {
		t.Error(diff)
	}
	waitFor(t, "edge sees c3 down", func() bool { return !edge.Status().Up })
	waitLink(t, c1, "c3", false)
	waitLink(t, c2, "c3", false)
	waitLink(t, c3, "c1", false)
	waitLink(t, c3, "c2", false)
	if _, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the edge's stream after its link went down: %v, want it closed", err)
	}
	_, err = edge.Dial(t.Context(), "gateway")
	wantErr(t, err, ErrLinkDown, "c3")
	say(t, dial(t, c1, "c2", "gateway"), "the others go on")
	say(t, dial(t, c3, "c3", "gateway"), "and so does the inside")

	setFault(t, c3, Everyone, Fault{})
	waitFor(t, "edge sees c3 up", func() bool { return edge.Status().Up })
	waitLink(t, c1, "c3", true)
	waitLink(t, c3, "c1", true)
	conn, err = edge.Dial(t.Context(), "gateway")
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(patience))
	say(t, conn, "edge again")
	conn.Close()
	if open := edge.Stats().Open; open != 0 {
		t.Errorf("edge's open streams = %d, want 0", open)
	}
}

func TestCutHoldsBoundedMemory(t *testing.T) {
	t.Parallel()
	// Straight at the pipe: sockets would hide what it holds itself.
	near, writer := net.Pipe()
	far, reader := net.Pipe()
	w := newWire()
	w.out.set(true, 0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		splice(near, far, w, func(func()) func() { return func() {} })
	}()
	writer.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	held := 0
	for {
		n, err := writer.Write(make([]byte, 10))
		held += n
		if err != nil {
			break
		}
	}
	if held == 0 || held > heldCut+readSize {
		t.Errorf("held %d bytes under a cut, want some, at most about %d", held, heldCut)
	}
	w.out.set(false, 0)
	writer.Close()
	if n, err := io.Copy(io.Discard, reader); err != nil || int(n) != held {
		t.Errorf("after the heal %d bytes came (%v), want %d", n, err, held)
	}
	reader.Close()
	<-done
}

func TestSetFaultChecks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echoTargets(t), "c1", "c2")
	b := w.zones["c1"].border
	for _, tc := range []struct {
		peer string
		f    Fault
		ok   bool
	}{
		{"c2", Fault{Delay: time.Second}, true},
		{EdgeName, Fault{CutIn: true}, true},
		{Everyone, Fault{}, true},
		{"c9", Fault{}, false},
		{"c1", Fault{CutIn: true, CutOut: true}, false},
		{unknownPeer, Fault{}, false},
		{"c2", Fault{Delay: -1}, false},
		{"c2", Fault{Delay: time.Hour}, false},
	} {
		if err := b.SetFault(tc.peer, tc.f); (err == nil) != tc.ok {
			t.Errorf("SetFault(%q, %+v) = %v, want ok %v", tc.peer, tc.f, err, tc.ok)
		}
	}
}
