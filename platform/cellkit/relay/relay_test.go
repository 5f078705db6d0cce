package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReadLeavesOutWhatIsNotForOthers(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest("POST", "/a%2Fb?q=1", strings.NewReader("body"))
	for name, value := range map[string]string{
		"Connection": "close, X-Mine", "X-Mine": "1", "Te": "trailers", "Expect": "100-continue", "Upgrade": "h2c",
		"X-Cellmart-User": "7", "x-cellmart-anything": "8", "X-Cell": "kept", "Authorization": "kept",
	} {
		r.Header[name] = []string{value} // as given, canonical or not
	}
	q, err := Read(r)
	if err != nil {
		t.Fatal(err)
	}
	want := Request{Method: "POST", Path: "/a%2Fb?q=1", Host: "example.com", Header: http.Header{"X-Cell": {"kept"}, "Authorization": {"kept"}}, Body: []byte("body")}
	if diff := cmp.Diff(want, q); diff != "" {
		t.Errorf("Read (-want +got):\n%s", diff)
	}
	if len(r.Header) != 9 {
		t.Error("Read changed the request's own headers")
	}
}

func TestRepeatable(t *testing.T) {
	t.Parallel()
	key := http.Header{"Idempotency-Key": {"k"}}
	for _, tc := range []struct {
		q    Request
		want bool
	}{
		{Request{Method: "GET"}, true}, {Request{Method: "HEAD"}, true}, {Request{Method: "POST"}, false},
		{Request{Method: "PUT"}, true}, {Request{Method: "DELETE"}, true}, {Request{Method: "PATCH"}, false}, {Request{Method: "POST", Header: key}, true},
	} {
		if got := tc.q.Repeatable(); got != tc.want {
			t.Errorf("%s with %v repeatable: %v, want %v", tc.q.Method, tc.q.Header, got, tc.want)
		}
	}
}

func TestSendSaysWhatMayHaveArrived(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/break":
			panic(http.ErrAbortHandler)
		case "/slow":
			_, _ = io.Copy(io.Discard, r.Body) // a server sees its client leave only then
			<-r.Context().Done()
		}
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(server.Close)
	refused := "http://" + deadAddr(t)
	rt := NewTransport((&net.Dialer{}).DialContext, time.Minute)
	t.Cleanup(rt.CloseIdleConnections)
	gone, leave := context.WithCancelCause(t.Context())
	leave(ErrOpen)
	for _, tc := range []struct {
		name, base, path string
		ctx              context.Context
		sent             bool
		err              error
	}{
		{"refused", refused, "/", t.Context(), false, nil},
		{"broken", server.URL, "/break", t.Context(), true, nil},
		{"slow", server.URL, "/slow", t.Context(), true, ErrSlow},
		{"ended before", server.URL, "/", gone, false, ErrOpen},
	} {
		limit := time.Minute
		if tc.err == ErrSlow {
			limit = 200 * time.Millisecond
		}
		_, err := Send(tc.ctx, rt, tc.base, Request{Method: "POST", Path: tc.path, Body: []byte("x")}, limit)
		var lost *Lost
		for ; tc.err == ErrSlow && limit < 10*time.Second && errors.As(err, &lost) && !lost.Sent; limit *= 2 { // a busy machine wasn't done with connecting
			_, err = Send(tc.ctx, rt, tc.base, Request{Method: "POST", Path: tc.path, Body: []byte("x")}, limit)
		}
		if !errors.As(err, &lost) || lost.Sent != tc.sent || tc.err != nil && !errors.Is(err, tc.err) {
			t.Errorf("%s: %v (%+v), want sent %v, %v", tc.name, err, lost, tc.sent, tc.err)
		}
	}
	res, err := Send(t.Context(), rt, server.URL, Request{Method: "POST", Path: "/", Body: []byte("echo")}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	if err := Answer(rec, res); err != nil || rec.Body.String() != "echo" {
		t.Errorf("answer %q, %v", rec.Body, err)
	}
}

func deadAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestHoldKeepsTheWholeAnswer(t *testing.T) {
	t.Parallel()
	for _, max := range []int64{2, 5, 100} {
		res := &http.Response{Body: io.NopCloser(strings.NewReader("12345"))}
		if _, err := Hold(res, max); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(res.Body); err != nil || !bytes.Equal(b, []byte("12345")) {
			t.Errorf("after Hold(%d): %q, %v", max, b, err)
		}
	}
	broken := &http.Response{Body: io.NopCloser(io.MultiReader(strings.NewReader("1"), brokenReader{}))}
	var lost *Lost
	if _, err := Hold(broken, 10); !errors.As(err, &lost) || !lost.Sent {
		t.Errorf("half an answer = %v, want Lost", err)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

// health is a place whose health calls are told what to do.
type health struct{ mode atomic.Int32 }

const (
	well int32 = iota
	refusing
	silent
)

func (h *health) probe(ctx context.Context) error {
	switch h.mode.Load() {
	case refusing:
		return errors.New("refused")
	case silent:
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		mode  int32
		least time.Duration
		most  time.Duration
	}{
		{"refusing: three errors in a row", refusing, 0, 750 * time.Millisecond},
		{"silent: within a second of the last success", silent, 650 * time.Millisecond, time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &health{}
				turns := make(chan bool, 8)
				b := NewBreaker(BreakerOptions{Probe: h.probe, OnChange: func(open bool, _ error) { turns <- open }})
				ctx, stop := context.WithCancel(t.Context())
				go b.Run(ctx)
				time.Sleep(10 * time.Second) // synctest's time: nobody waits
				if open, _ := b.Open(); open || b.Doubtful() {
					t.Fatal("a place that is well is doubted")
				}
				h.mode.Store(tc.mode)
				inner, leave, ok := b.Enter(t.Context())
				if !ok {
					t.Fatal("closed, but nobody may enter")
				}
				cut := time.Now()
				<-inner.Done()
				leave()
				if took := time.Since(cut); took < tc.least || took > tc.most || !errors.Is(context.Cause(inner), ErrOpen) {
					t.Errorf("who was inside waited %v (%v), want %v to %v", took, context.Cause(inner), tc.least, tc.most)
				}
				if _, _, ok := b.Enter(t.Context()); ok {
					t.Error("open, but one may enter")
				}
				b.Worked()
				if open, why := b.Open(); !open || why == nil {
					t.Errorf("open %v (%v): only a health call closes it", open, why)
				}
				h.mode.Store(well)
				time.Sleep(1500 * time.Millisecond)
				if inner, leave, ok := b.Enter(t.Context()); !ok || inner.Err() != nil {
					t.Error("well again, but nobody may enter")
				} else {
					leave()
				}
				if len(turns) != 2 || !<-turns || <-turns {
					t.Error("not told once that it opened, and once that it closed")
				}
				stop()
			})
		})
	}
}

// Users' answers keep a breaker closed when health calls are slow, and their
// errors open it without waiting for one.
func TestBreakerCountsUsers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &health{}
		h.mode.Store(silent)
		b := NewBreaker(BreakerOptions{Probe: h.probe})
		ctx, stop := context.WithCancel(t.Context())
		go b.Run(ctx)
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			b.Worked()
		}
		if open, why := b.Open(); open {
			t.Errorf("opened (%v) while users were answered", why)
		}
		h.mode.Store(refusing) // an error is not silence, whatever users see
		for range 20 {
			time.Sleep(100 * time.Millisecond)
			b.Worked()
		}
		if open, _ := b.Open(); !open {
			t.Error("closed while health calls are answered with errors")
		}
		stop()
		b = NewBreaker(BreakerOptions{})
		b.Failed(errors.New("1"))
		if !b.Doubtful() {
			t.Error("no doubt after an error")
		}
		b.Failed(errors.New("2"))
		b.Worked()
		b.Failed(errors.New("1"))
		b.Failed(errors.New("2"))
		if open, _ := b.Open(); open {
			t.Error("errors in a row are counted over a success")
		}
		b.Failed(errors.New("3"))
		if open, _ := b.Open(); !open {
			t.Error("closed after three errors in a row")
		}
	})
}
