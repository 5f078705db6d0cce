package link

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

// zone is a zone of a test: an agent's border with targets of its own.
type zone struct {
	name   string
	addr   string // of its border
	border *Border
	dialer Dialer
	stop   func() // returns when Run has
}

// world is a PKI and some zones that are each other's peers.
type world struct {
	pki   string
	zones map[string]*zone
}

// newWorld starts agents for the names, each with the targets, and waits for
// all links.
func newWorld(t *testing.T, targets map[string]Target, names ...string) *world {
	t.Helper()
	w := &world{pki: t.TempDir(), zones: map[string]*zone{}}
	if err := WritePKI(w.pki, names); err != nil {
		t.Fatal(err)
	}
	listeners := map[string]net.Listener{}
	peers := map[string]string{}
	for _, name := range names {
		listeners[name] = listen(t)
		peers[name] = listeners[name].Addr().String()
	}
	for _, name := range names {
		w.start(t, name, listeners[name], peers, targets)
	}
	for _, name := range names {
		waitFor(t, name+" has all links up", func() bool {
			for _, s := range w.zones[name].border.Status() {
				if !s.Up {
					return false
				}
			}
			return true
		})
	}
	return w
}

func (w *world) start(t *testing.T, name string, l net.Listener, peers map[string]string, targets map[string]Target) {
	t.Helper()
	conf, err := LoadTLS(filepath.Join(w.pki, AgentName(name)))
	if err != nil {
		t.Fatal(err)
	}
	others := map[string]string{}
	for p, addr := range peers {
		if p != name {
			others[p] = addr
		}
	}
	local := listen(t)
	b, err := New(Config{
		Zone: name, Border: l, Local: local, TLS: conf, Peers: others, Targets: targets,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { b.Run(ctx) })
	z := &zone{name: name, addr: l.Addr().String(), border: b, dialer: Dialer{Addr: local.Addr().String()}}
	z.stop = func() { cancel(); wg.Wait() }
	w.zones[name] = z
	t.Cleanup(z.stop)
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// serve starts a TCP server; its connections are closed after handle.
func serve(t testing.TB, handle func(*net.TCPConn)) (addr string) {
	t.Helper()
	l := listen(t)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer context.AfterFunc(ctx, func() { conn.Close() })()
				defer conn.Close()
				handle(conn.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { l.Close(); cancel(); wg.Wait() })
	return l.Addr().String()
}

// echoServer sends back what it gets, then ends as its client did.
func echoServer(t testing.TB) string {
	return serve(t, func(c *net.TCPConn) { io.Copy(c, c); c.CloseWrite() })
}

// patience is for what must happen at all: only a failure takes that long, however
// busy the machine is.
const patience = time.Minute

// goodTry is for what must happen in time: a busy machine adds its own, so one try
// of five that gives nil is enough.
func goodTry(t testing.TB, try func() error) {
	t.Helper()
	var err error
	for range 5 {
		if err = try(); err == nil || t.Failed() {
			return
		}
	}
	t.Error(err)
}

func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	end := time.After(patience)
	for !cond() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// dial opens a stream that must open; reads and writes on it end in a minute.
func dial(t testing.TB, from *zone, to, target string) net.Conn {
	t.Helper()
	conn, err := from.dialer.Dial(within(t, patience), to, target)
	if err != nil {
		t.Fatalf("dial %s -> %s/%s: %v", from.name, to, target, err)
	}
	conn.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { conn.Close() })
	return conn
}

// say sends text and wants the same back.
func say(t testing.TB, conn net.Conn, text string) {
	t.Helper()
	if err := exchange(conn, text); err != nil {
		t.Fatal(err)
	}
}

func exchange(conn net.Conn, text string) error {
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	b := make([]byte, len(text))
	if _, err := io.ReadFull(conn, b); err != nil {
		return err
	}
	if string(b) != text {
		return errors.New("got " + string(b) + ", want " + text)
	}
	return nil
}

// wantErr checks an error's code and the zone it names.
func wantErr(t testing.TB, err error, want *errs.Error, zone string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("err = %v, want %s in %s", err, want.Code, zone)
	}
	if cell := errs.From(err).Cell; cell != zone {
		t.Fatalf("err = %v names cell %q, want %q", err, cell, zone)
	}
}

func setFault(t testing.TB, z *zone, peer string, f Fault) {
	t.Helper()
	if err := z.border.SetFault(peer, f); err != nil {
		t.Fatal(err)
	}
}

func waitLink(t testing.TB, z *zone, peer string, up bool) {
	t.Helper()
	what := map[bool]string{true: " is up", false: " is down"}[up]
	waitFor(t, z.name+"'s link to "+peer+what, func() bool { return z.border.Status()[peer].Up == up })
}
