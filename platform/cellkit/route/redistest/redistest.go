// Package redistest starts a real redis-server for a test, on a free loopback
// port, as the demo runs one per cell.
//
//	r := redistest.New(t)   up
//	r.Kill()                gone at once, with what it had
//	r.Start()               empty, at the same address
//
// What can go wrong: without redis-server on the PATH the test fails and says so.
package redistest

import (
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is one redis-server.
type Server struct {
	Addr string

	t   testing.TB
	cmd *exec.Cmd
}

// New starts one; it ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Addr: l.Addr().String(), t: t}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	s.Start()
	return s
}

// Client talks to it as the test.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.Addr, Protocol: 2, DisableIdentity: true})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Start runs it, empty, and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.cmd = exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", s.t.TempDir()) //nolint:gosec // a test's own port
	if err := s.cmd.Start(); err != nil {
		s.t.Fatalf("redis-server: %v (install Redis)", err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); ; <-tick.C {
		if c, err := net.DialTimeout("tcp", s.Addr, time.Second); err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(end) {
			s.t.Fatal("redis-server does not answer")
		}
	}
}

// Kill ends it at once; it may be dead already.
func (s *Server) Kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}
