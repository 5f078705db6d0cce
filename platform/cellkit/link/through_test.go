package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"example.com/cellmart/platform/cellkit/errs"
)

func TestHTTPGoesThrough(t *testing.T) {
	t.Parallel()
	var conns atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%s %d", r.URL.Path, n)
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	w := newWorld(t, map[string]Target{"gateway": {Addr: srv.Listener.Addr().String(), Allow: []string{"agent.c1"}}}, "c1", "c2")
	c1 := w.zones["c1"]
	client := &http.Client{
		Transport: &http.Transport{DialContext: c1.dialer.DialContext("c2", "gateway")},
		Timeout:   patience,
	}
	t.Cleanup(client.CloseIdleConnections)
	for i := range 10 {
		r, err := client.Post("http://gateway.c2/hello", "text/plain", io.LimitReader(zeros{}, int64(i)*10_000))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if want := fmt.Sprintf("/hello %d", i*10_000); err != nil || string(b) != want {
			t.Fatalf("answer %q (%v), want %q", b, err, want)
		}
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("10 requests took %d connections, want 1: keep-alive must survive the link", n)
	}
	setFault(t, c1, "c2", Fault{CutOut: true})
	waitLink(t, c1, "c2", false)
	_, err := client.Get("http://gateway.c2/hello")
	if e := errs.From(err); !errors.Is(err, ErrLinkDown) || e.Cell != "c2" || e.RetryAfter <= 0 {
		t.Errorf("request over a dead link = %v, want LINK_DOWN in c2 with a time to come back", err)
	}
}

func TestNATSGoesThroughAndComesBack(t *testing.T) {
	t.Parallel()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	go srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(patience) {
		t.Fatal("nats-server isn't ready")
	}
	w := newWorld(t, map[string]Target{"nats": {Addr: srv.Addr().String(), Allow: []string{"agent.c1"}}}, "c1", "c2")
	c1 := w.zones["c1"]
	gone, back := make(chan struct{}, 8), make(chan struct{}, 8)
	conn, err := nats.Connect("nats://c2", nats.SetCustomDialer(c1.dialer.Custom("c2", "nats", 10*time.Second)),
		nats.ReconnectWait(50*time.Millisecond), nats.MaxReconnects(-1),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { gone <- struct{}{} }),
		nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if _, err := conn.Subscribe("double", func(m *nats.Msg) { m.Respond(append(m.Data, m.Data...)) }); err != nil {
		t.Fatal(err)
	}
	request := func() {
		t.Helper()
		m, err := conn.Request("double", []byte("ab"), patience)
		if err != nil || string(m.Data) != "abab" {
			t.Fatalf("request = %v, %v", m, err)
		}
	}
	request()
	setFault(t, c1, "c2", Fault{CutIn: true})
	recv(t, gone, "disconnect")
	setFault(t, c1, "c2", Fault{})
	recv(t, back, "reconnect")
	request()
}

func recv[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
	}
	panic("unreachable")
}

func TestConnectSpeaksHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echoTargets(t), "c1", "c2")
	for _, tc := range []struct {
		head   string
		status int
		code   string
	}{
		{"CONNECT c2/gateway HTTP/1.1\r\nHost: c2\r\n\r\n", 200, ""},
		{"CONNECT c2/nosuch HTTP/1.1\r\nHost: c2\r\n\r\n", 404, "NO_SUCH_TARGET"},
		{"CONNECT c2 HTTP/1.1\r\nHost: c2\r\n\r\n", 400, "BAD_CONNECT"},
		{"GET /c2/gateway HTTP/1.1\r\nHost: c2\r\n\r\n", 400, "BAD_CONNECT"},
		{"CONNECT c2/a%0ab HTTP/1.1\r\nHost: c2\r\n\r\n", 404, "NO_SUCH_TARGET"},
		{"nonsense\r\n\r\n", 400, "BAD_CONNECT"},
	} {
		conn, err := net.Dial("tcp", w.zones["c1"].dialer.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		io.WriteString(conn, tc.head)
		head, err := readHead(conn)
		if err != nil {
			t.Fatal(err)
		}
		var status int
		fmt.Sscanf(string(head), "HTTP/1.1 %d", &status)
		if status != tc.status {
			t.Errorf("%q: %q, want %d", tc.head, head, tc.status)
		}
		if tc.code == "" {
			continue
		}
		if e := errs.From(readProblem(head, conn, "c2")); e.Code != tc.code {
			t.Errorf("%q: code %q, want %q", tc.head, e.Code, tc.code)
		}
	}
	silent := Dialer{Addr: deadAddr(t)}
	_, err := silent.Dial(within(t, patience), "c2", "gateway")
	wantErr(t, err, ErrLinkDown, "c2")
}

func TestStatusJSON(t *testing.T) {
	t.Parallel()
	in := Status{Up: true, Since: time.Now().Add(-2 * time.Hour), RTT: 1500 * time.Microsecond, Age: 120 * time.Millisecond}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out Status
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	if d := out.Since.Sub(in.Since).Abs(); d > time.Minute || out.Up != in.Up || out.RTT != in.RTT || out.Age != in.Age {
		t.Errorf("%s came back as %+v, want %+v", b, out, in)
	}
	b, _ = json.Marshal(Status{Age: -1, Reason: "not probed yet"})
	if want := `{"up":false,"since_ms":-1,"rtt_ms":0,"age_ms":-1,"reason":"not probed yet"}`; string(b) != want {
		t.Errorf("unknown link = %s, want %s", b, want)
	}
}

// The other agent dies, is stopped, or comes back at the same address.
func TestPeerDiesAndComesBack(t *testing.T) {
	t.Parallel()
	targets := echoTargets(t)
	w := newWorld(t, targets, "c1", "c2")
	c1, c2 := w.zones["c1"], w.zones["c2"]
	conn := dial(t, c1, "c2", "gateway")
	say(t, conn, "x")
	before := c1.border.Status()["c2"]
	if !before.Up || before.Since.IsZero() || before.RTT <= 0 || before.Age < 0 || before.Reason != "" {
		t.Errorf("status of a good link = %+v", before)
	}
	c2.stop()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("stream outlived the peer's agent")
	}
	waitLink(t, c1, "c2", false)
	_, err := c1.dialer.Dial(within(t, patience), "c2", "gateway")
	wantErr(t, err, ErrLinkDown, "c2")
	after := c1.border.Status()["c2"]
	if after.Reason == "" || !after.Since.After(before.Since) {
		t.Errorf("status of a dead link = %+v, want a reason and a later Since", after)
	}
	l, err := net.Listen("tcp", c2.addr)
	if err != nil {
		t.Fatal(err)
	}
	w.start(t, "c2", l, map[string]string{"c1": c1.addr}, targets)
	waitLink(t, c1, "c2", true)
	say(t, dial(t, c1, "c2", "gateway"), "back")
}

func TestNeverProbedIsNotUp(t *testing.T) {
	t.Parallel()
	pki := t.TempDir()
	if err := WritePKI(pki, []string{"c1"}); err != nil {
		t.Fatal(err)
	}
	conf, err := LoadTLS(pki + "/edge")
	if err != nil {
		t.Fatal(err)
	}
	p := NewPeer(PeerConfig{Zone: "c1", Addr: deadAddr(t), TLS: conf})
	if s := p.Status(); s.Up || s.Age >= 0 || s.Reason == "" {
		t.Errorf("status = %+v, want unknown", s)
	}
	_, err = p.Dial(context.Background(), "gateway")
	wantErr(t, err, ErrLinkDown, "c1")
	if n := p.Stats().Refused[LinkDown]; n != 1 {
		t.Errorf("refused %d, want 1", n)
	}
	runPeer(t, p)
	waitFor(t, "the reason is known", func() bool { return p.Status().Reason != "not probed yet" })
	if s := p.Status(); s.Up || !s.Since.IsZero() {
		t.Errorf("status = %+v, want never up", s)
	}
}

// A prober that was itself stopped doesn't blame the link.
func TestLateProberGetsGrace(t *testing.T) {
	t.Parallel()
	calls := make(chan struct{}, 4)
	p := newPeer(PeerConfig{Zone: "c2", OnChange: func() { calls <- struct{}{} }, TLS: mustTLS(t)}, newWire(), &counters{})
	p.answer(time.Millisecond)
	recv(t, calls, "change to up")
	p.mu.Lock()
	p.due = time.Now().Add(-time.Second) // the timer fires far too late
	p.mu.Unlock()
	p.expire()
	if !p.Status().Up {
		t.Fatal("down at once, want a grace to read what waits")
	}
	recv(t, calls, "change to down")
	if s := p.Status(); s.Up || s.Reason != "no answer for 750ms" {
		t.Errorf("status after the grace = %+v, want down", s)
	}
}

// A dial that finishes after its link went down and came up again belongs to
// the link that is gone.
func TestStreamOfAnEarlierTermIsNotHeld(t *testing.T) {
	t.Parallel()
	p := newPeer(PeerConfig{Zone: "c2", TLS: mustTLS(t)}, newWire(), &counters{})
	p.answer(time.Millisecond)
	term := p.term
	ended := 0
	release, ok := p.hold(term, func() { ended++ })
	if !ok {
		t.Fatal("a stream of this term isn't held")
	}
	p.setDown("test")
	release()
	if ended != 1 {
		t.Errorf("stream ended %d times, want once", ended)
	}
	p.answer(time.Millisecond)
	if _, ok := p.hold(term, func() {}); ok {
		t.Error("a stream of an earlier term is held")
	}
	p.setDown("test")
	if open := p.Stats().Open; open != 0 || len(p.held) != 0 {
		t.Errorf("open = %d, held = %d, want none", open, len(p.held))
	}
}
