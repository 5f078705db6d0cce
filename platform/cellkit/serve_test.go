package cellkit

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// started serves h and gives its address, how to end it and what it returned.
func started(t *testing.T, h http.HandlerFunc, drain time.Duration) (url string, stop func(), done <-chan error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan error, 1)
	go func() { end <- ServeListener(ctx, ln, h, drain) }()
	t.Cleanup(cancel)
	return "http://" + ln.Addr().String(), cancel, end
}

func TestServeFinishesWhatRuns(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	var finished atomic.Bool
	url, stop, done := started(t, func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-release
		if r.Context().Err() != nil {
			t.Error("a request within the drain was cancelled")
		}
		io.WriteString(w, "whole")
		finished.Store(true)
	}, time.Minute)
	answer := make(chan string, 1)
	go func() {
		res, err := http.Get(url)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		answer <- string(b)
	}()
	<-entered
	stop()
	select {
	case err := <-done:
		t.Fatalf("returned %v while a handler runs", err)
	case <-time.After(50 * time.Millisecond): // nothing to wait for: it must not happen
	}
	close(release)
	if err := <-done; err != nil || !finished.Load() {
		t.Errorf("Serve = %v, handler finished: %v", err, finished.Load())
	}
	if got := <-answer; got != "whole" {
		t.Errorf("answer %q, want whole", got)
	}
	if _, err := http.Get(url); err == nil {
		t.Error("accepted after its end")
	}
}

func TestServeCutsWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	var finished atomic.Bool
	url, stop, done := started(t, func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
		<-time.After(30 * time.Millisecond) // it still rolls back
		finished.Store(true)
	}, 100*time.Millisecond)
	go http.Post(url, "text/plain", strings.NewReader("unread: the server can't see the client leave"))
	<-entered
	stop()
	if err := <-done; err == nil || !finished.Load() {
		t.Errorf("Serve = %v, handler finished: %v, want an error after the handler", err, finished.Load())
	}
}

func TestServeAddressInUse(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var usage Usage
	if err := Serve(t.Context(), ln.Addr().String(), http.NotFoundHandler(), 0); !errors.As(err, &usage) {
		t.Errorf("Serve = %v, want a Usage error", err)
	}
}

func TestServeListenerThatFails(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if err := ServeListener(t.Context(), ln, http.NotFoundHandler(), 0); err == nil {
		t.Error("Serve on a closed listener = nil")
	}
}
