package call

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/errs"
)

func routed(ctx context.Context) context.Context {
	return WithRoute(ctx, Route{Cell: "c1", Slot: 77, Epoch: 3, User: 1234})
}

// countingServer answers with h and counts the requests that arrive.
func countingServer(t *testing.T, h http.HandlerFunc) (url string, seen *atomic.Int32) {
	seen = new(atomic.Int32)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Add(1)
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, seen
}

func TestRefusedBeforeItIsSent(t *testing.T) {
	t.Parallel()
	url, seen := countingServer(t, func(http.ResponseWriter, *http.Request) {})
	other := WithRoute(t.Context(), Route{Cell: "c2", Slot: 77, Epoch: 3})
	for _, tc := range []struct {
		name string
		ctx  context.Context
		o    Options
	}{
		{"no route", t.Context(), Options{Cell: "c1", TargetCell: "c1"}},
		{"to another cell", routed(t.Context()), Options{Cell: "c1", TargetCell: "c2"}},
		{"to the global zone", routed(t.Context()), Options{Cell: "c1", TargetCell: "global"}},
		{"target not said", routed(t.Context()), Options{Cell: "c1"}},
		{"a route of another cell", other, Options{Cell: "c1", TargetCell: "c1"}},
		{"a request waits for the control plane", routed(t.Context()), Options{Cell: "c1", TargetCell: "global", Background: true}},
	} {
		tc.o.Service, tc.o.BaseURL = "stock", url
		if err := New(tc.o).JSON(tc.ctx, "GET", "/", nil, nil); !errors.Is(err, errs.ErrViolation) {
			t.Errorf("%s: %v, want CELL_ROUTING_VIOLATION", tc.name, err)
		}
	}
	if seen.Load() != 0 {
		t.Errorf("%d refused calls were sent", seen.Load())
	}
	background := New(Options{Service: "idgen", Cell: "c1", TargetCell: "global", BaseURL: url, Background: true})
	if err := background.JSON(t.Context(), "POST", "/", nil, nil); err != nil {
		t.Errorf("background call = %v, want nil", err)
	}
}

func TestSendsRouteAndDecodes(t *testing.T) {
	t.Parallel()
	var got http.Header
	var body string
	url, _ := countingServer(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got, body = r.Header.Clone(), r.Method+" "+r.URL.String()+" "+string(b)
		w.Header().Set(HeaderReplayed, "true")
		w.WriteHeader(202)
		io.WriteString(w, `{"n":5,"later":true}`)
	})
	c := New(Options{Service: "stock", Cell: "c1", TargetCell: "c1", BaseURL: url + "/"})
	defer c.Close()
	var out struct {
		N int `json:"n"`
	}
	var status int
	var answer http.Header
	ctx := WithRequestID(routed(t.Context()), "r-1")
	err := c.JSON(ctx, "POST", "/holds?x=1", map[string]int{"q": 2}, &out, IdempotencyKey("k"), Status(&status), AnswerHeader(&answer))
	if err != nil || out.N != 5 || status != 202 || answer.Get(HeaderReplayed) != "true" {
		t.Fatalf("JSON = %v, out %+v, status %d, headers %v", err, out, status, answer)
	}
	if want := `POST /holds?x=1 {"q":2}`; body != want {
		t.Errorf("sent %s, want %s", body, want)
	}
	for name, want := range map[string]string{HeaderUser: "1234", HeaderSlot: "77", HeaderEpoch: "3", HeaderFrom: "c1", HeaderRequestID: "r-1", HeaderIdempotencyKey: "k", "Content-Type": "application/json"} {
		if got.Get(name) != want {
			t.Errorf("%s = %q, want %q", name, got.Get(name), want)
		}
	}
	r, ok, err := RouteFromHeaders(got, "c1")
	if want := (Route{Cell: "c1", Slot: 77, Epoch: 3, User: 1234}); err != nil || !ok || r != want {
		t.Errorf("RouteFromHeaders = %+v, %v, %v, want %+v", r, ok, err, want)
	}
}

func TestErrorsCrossTheHop(t *testing.T) {
	t.Parallel()
	outOfStock := errs.New(errs.Unprocessable, "OUT_OF_STOCK", "not enough").At("lines[0]")
	misrouted := *errs.ErrMisrouted
	misrouted.Owner, misrouted.Epoch = "c2", 9
	tooLong := errs.New(errs.Invalid, "BODY_TOO_LARGE", "too long")
	tooLong.Status = 413
	for _, want := range []*errs.Error{outOfStock, &misrouted, tooLong, errs.ErrInternal, errs.ErrUnavailable.In("c3").After(5 * time.Second)} {
		url, seen := countingServer(t, func(w http.ResponseWriter, _ *http.Request) {
			p := NewProblem(want, "r-1")
			w.Header().Set("Content-Type", ProblemType)
			w.WriteHeader(p.Status)
			_ = json.NewEncoder(w).Encode(p)
		})
		err := New(Options{Cell: "c1", TargetCell: "c1", BaseURL: url}).JSON(routed(t.Context()), "GET", "/", nil, nil)
		if !errors.Is(err, want) {
			t.Errorf("error = %v, want %v", err, want)
		}
		if diff := cmp.Diff(*want, *errs.From(err), cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".cause" }, cmp.Ignore())); diff != "" {
			t.Errorf("%s (-sent +got):\n%s", want.Code, diff)
		}
		if seen.Load() != 1 {
			t.Errorf("%s: sent %d times, an answer isn't a lost connection", want.Code, seen.Load())
		}
	}
}

func TestForeignAnswers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status     int
		kind, body string
		want       *errs.Error
	}{
		{502, "text/html", "<h1>Bad Gateway</h1>", errs.ErrUnavailable},
		{404, "text/plain", "404 page not found", errs.ErrInternal},
		{302, "text/plain", "", errs.ErrInternal},
		{400, ProblemType, "{", errs.ErrInternal},
		{200, "application/json", "{", errs.ErrInternal},
		{200, "application/json", `{"n":"x"}`, errs.ErrInternal},
	} {
		url, _ := countingServer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", tc.kind)
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(tc.status)
			io.WriteString(w, tc.body)
		})
		var out struct{ N int }
		err := New(Options{Cell: "c1", TargetCell: "c1", BaseURL: url}).JSON(routed(t.Context()), "GET", "/", nil, &out)
		if e := errs.From(err); err == nil || e.Code != tc.want.Code || strings.Contains(e.Message, "page") {
			t.Errorf("answer %d %q = %v, want %s", tc.status, tc.body, err, tc.want.Code)
		}
	}
}

// hangUp breaks the connection instead of answering.
func hangUp(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		conn.Close()
	}
}

func TestLostConnections(t *testing.T) {
	t.Parallel()
	t.Run("a GET is sent twice", func(t *testing.T) {
		url, seen := countingServer(t, hangUp)
		err := New(Options{Cell: "c1", TargetCell: "c1", BaseURL: url}).JSON(routed(t.Context()), "GET", "/", nil, nil)
		if !errors.Is(err, errs.ErrUnavailable) || seen.Load() != 2 {
			t.Errorf("error %v after %d requests, want UNAVAILABLE after 2", err, seen.Load())
		}
	})
	t.Run("a GET succeeds the second time", func(t *testing.T) {
		var n atomic.Int32
		url, _ := countingServer(t, func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1) == 1 {
				hangUp(w, r)
			}
		})
		if err := New(Options{Cell: "c1", TargetCell: "c1", BaseURL: url}).JSON(routed(t.Context()), "GET", "/", nil, nil); err != nil {
			t.Errorf("error %v, want nil", err)
		}
	})
	t.Run("a POST is sent once and may have had its effect", func(t *testing.T) {
		url, seen := countingServer(t, hangUp)
		err := New(Options{Cell: "c1", TargetCell: "c1", BaseURL: url}).JSON(routed(t.Context()), "POST", "/", struct{}{}, nil)
		if !errors.Is(err, errs.ErrUnknown) || seen.Load() != 1 {
			t.Errorf("error %v after %d requests, want OUTCOME_UNKNOWN after 1", err, seen.Load())
		}
	})
	t.Run("a POST that found nobody had none", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		url := "http://" + ln.Addr().String()
		ln.Close()
		err = New(Options{Cell: "c1", TargetCell: "c1", BaseURL: url}).JSON(routed(t.Context()), "POST", "/", struct{}{}, nil)
		if !errors.Is(err, errs.ErrUnavailable) {
			t.Errorf("error %v, want UNAVAILABLE", err)
		}
	})
	t.Run("the link's own words pass", func(t *testing.T) {
		down := errs.New(errs.Unavailable, "LINK_DOWN", "the link is down").In("global")
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, down }}
		c := New(Options{Cell: "c1", TargetCell: "global", BaseURL: "http://idgen", Transport: transport, Background: true})
		err := c.JSON(t.Context(), "POST", "/", struct{}{}, nil)
		if e := errs.From(err); e.Code != "LINK_DOWN" || e.Cell != "global" {
			t.Errorf("error %v, want LINK_DOWN in global", err)
		}
	})
}

func TestTime(t *testing.T) {
	t.Parallel()
	url, _ := countingServer(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server sees the client leave
		<-r.Context().Done()
	})
	c := New(Options{Service: "stock", Cell: "c1", TargetCell: "c1", BaseURL: url, Timeout: 30 * time.Millisecond})
	if err := c.JSON(routed(t.Context()), "GET", "/", nil, nil); !errors.Is(err, errs.ErrUnavailable) {
		t.Errorf("own limit: %v, want UNAVAILABLE", err)
	}
	// A busy machine may use up the time before anything is sent, or what is left of it at the end: one good try is enough.
	inTime := func(name string, try func(limit time.Duration) error) {
		t.Helper()
		var err error
		for limit := 50 * time.Millisecond; limit < 10*time.Second; limit *= 2 {
			if err = try(limit); err == nil {
				return
			}
		}
		t.Errorf("%s: %v", name, err)
	}
	inTime("own limit of a write", func(limit time.Duration) error {
		c := New(Options{Service: "stock", Cell: "c1", TargetCell: "c1", BaseURL: url, Timeout: limit})
		if err := c.JSON(routed(t.Context()), "PUT", "/", struct{}{}, nil); !errors.Is(err, errs.ErrUnknown) {
			return fmt.Errorf("%w, want OUTCOME_UNKNOWN", err)
		}
		return nil
	})
	slow := New(Options{Cell: "c1", TargetCell: "c1", BaseURL: url, Timeout: time.Minute})
	inTime("the caller's limit", func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(routed(t.Context()), limit)
		defer cancel()
		if err := slow.JSON(ctx, "GET", "/", nil, nil); !errors.Is(err, errs.ErrUnavailable) {
			return fmt.Errorf("%w, want UNAVAILABLE", err)
		}
		if ctx.Err() != nil {
			return errors.New("the call left its caller no time to answer")
		}
		return nil
	})
	gone, leave := context.WithCancel(routed(t.Context()))
	leave()
	if err := slow.JSON(gone, "GET", "/", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller left: %v, want canceled", err)
	}
	past, end := context.WithDeadline(routed(t.Context()), time.Now().Add(-time.Second))
	defer end()
	if err := slow.JSON(past, "POST", "/", nil, nil); !errors.Is(err, errs.ErrUnavailable) {
		t.Errorf("no time left: %v, want UNAVAILABLE: nothing was sent", err)
	}
}
