package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/obs"
)

// wish is a request body with everything that can be wrong in one.
type wish struct {
	ID     int64  `param:"id" json:"-"`
	Amount int64  `json:"amount"`
	User   id.ID  `json:"user"`
	Note   string `json:"note"`
	Lines  []struct {
		SKU      id.ID `json:"sku"`
		Quantity int32 `json:"quantity"`
	} `json:"lines"`
}

func testServer() *echo.Echo { return testServerOf(time.Minute) }

// testServerOf gives each request that long.
func testServerOf(limit time.Duration) *echo.Echo {
	e := New(Options{Service: "test", Cell: "c1", Timeout: limit, MaxBody: 1000, RouteVersion: func() int64 { return 7 }})
	e.POST("/wish/:id", func(c echo.Context) error {
		var w wish
		if err := c.Bind(&w); err != nil {
			return err
		}
		v, err := PathID(c, "id")
		if err != nil {
			return err
		}
		return c.JSON(http.StatusOK, map[string]any{"path": v, "bound": w.ID, "note": w.Note})
	})
	e.GET("/wrapped", func(echo.Context) error { return fmt.Errorf("look it up: %w", echo.NewHTTPError(404, "secret table")) })
	e.GET("/teapot", func(echo.Context) error { return echo.NewHTTPError(418) })
	e.GET("/gone", func(echo.Context) error { return errs.ErrUnavailable.In("c3").After(1500 * time.Millisecond) })
	e.GET("/unknown", func(echo.Context) error { return errors.New("password=hunter2") })
	e.GET("/panic", func(echo.Context) error { panic("password=hunter2") })
	e.Match([]string{"GET", "POST"}, "/slow", func(c echo.Context) error {
		<-c.Request().Context().Done()
		return fmt.Errorf("query: %w", c.Request().Context().Err())
	})
	e.GET("/misrouted", func(echo.Context) error {
		m := *errs.ErrMisrouted
		m.Owner, m.Epoch = "c2", 9
		return &m
	})
	e.GET("/page", func(c echo.Context) error {
		n, err := QueryInt(c, "limit", 20, 1, 100)
		if err != nil {
			return err
		}
		return c.JSON(200, map[string]int64{"limit": n})
	})
	e.POST("/pay", func(c echo.Context) error {
		if _, err := Actor(c); err != nil {
			return err
		}
		key, err := IdempotencyKey(c)
		if err != nil {
			return err
		}
		return c.String(200, key)
	})
	e.GET("/route", func(c echo.Context) error {
		r, err := RequireRoute(c)
		if err != nil {
			return err
		}
		return c.JSON(200, r)
	}, RouteContext())
	return e
}

// problemOf is what a scenario says about an answer.
type problemOf struct {
	Status      int
	Code, Field string
}

func TestProblems(t *testing.T) {
	t.Parallel()
	const jsonType = "application/json"
	long := `{"note":"` + strings.Repeat("x", 2000) + `"}`
	for _, tc := range []struct {
		name, method, path, contentType, body string
		want                                  problemOf
	}{
		{"no such path", "GET", "/nowhere", "", "", problemOf{404, "NOT_FOUND", ""}},
		{"no such method", "DELETE", "/page", "", "", problemOf{405, "METHOD_NOT_ALLOWED", ""}},
		{"S-W13 a wrapped 404 stays one", "GET", "/wrapped", "", "", problemOf{404, "NOT_FOUND", ""}},
		{"another status of echo", "GET", "/teapot", "", "", problemOf{418, "IM_A_TEAPOT", ""}},
		{"unknown error", "GET", "/unknown", "", "", problemOf{500, "INTERNAL", ""}},
		{"panic", "GET", "/panic", "", "", problemOf{500, "INTERNAL", ""}},
		{"read out of time", "GET", "/slow", "", "", problemOf{503, "TIMEOUT", ""}},
		{"write out of time", "POST", "/slow", "", "", problemOf{503, "OUTCOME_UNKNOWN", ""}},
		{"no content type", "POST", "/wish/7", "", `{}`, problemOf{415, "UNSUPPORTED_MEDIA_TYPE", ""}},
		{"form", "POST", "/wish/7", "application/x-www-form-urlencoded", `a=1`, problemOf{415, "UNSUPPORTED_MEDIA_TYPE", ""}},
		{"too long", "POST", "/wish/7", jsonType, long, problemOf{413, "BODY_TOO_LARGE", ""}},
		{"empty body", "POST", "/wish/7", jsonType, ``, problemOf{400, "INVALID_JSON", ""}},
		{"array", "POST", "/wish/7", jsonType, `[]`, problemOf{400, "INVALID_JSON", ""}},
		{"null", "POST", "/wish/7", jsonType, `null`, problemOf{400, "INVALID_JSON", ""}},
		{"cut short", "POST", "/wish/7", jsonType, `{"note":"a`, problemOf{400, "INVALID_JSON", ""}},
		{"text after it", "POST", "/wish/7", jsonType, `{} {}`, problemOf{400, "INVALID_JSON", ""}},
		{"garbage after it", "POST", "/wish/7", jsonType, `{"note":"a"}]`, problemOf{400, "INVALID_JSON", ""}},
		{"not UTF-8", "POST", "/wish/7", jsonType, "{\"note\":\"\xff\"}", problemOf{400, "INVALID_JSON", ""}},
		{"NUL", "POST", "/wish/7", jsonType, `{"note":"a\u0000b"}`, problemOf{400, "INVALID_JSON", ""}},
		{"unknown field", "POST", "/wish/7", jsonType, `{"price":1}`, problemOf{400, "UNKNOWN_FIELD", "price"}},
		{"unknown field inside", "POST", "/wish/7", jsonType, `{"lines":[{"quantity":1},{"qty":2}]}`, problemOf{400, "UNKNOWN_FIELD", "lines[1].qty"}},
		{"wrong type", "POST", "/wish/7", jsonType, `{"amount":"12"}`, problemOf{400, "INVALID_FIELD", "amount"}},
		{"fraction", "POST", "/wish/7", jsonType, `{"amount":1.5}`, problemOf{400, "INVALID_FIELD", "amount"}},
		{"over int64", "POST", "/wish/7", jsonType, `{"amount":9223372036854775808}`, problemOf{400, "INVALID_FIELD", "amount"}},
		{"over int32 inside", "POST", "/wish/7", jsonType, `{"lines":[{"quantity":2147483648}]}`, problemOf{400, "INVALID_FIELD", "lines[0].quantity"}},
		{"an ID as a number", "POST", "/wish/7", jsonType, `{"user":12}`, problemOf{400, "INVALID_FIELD", "user"}},
		{"no ID", "POST", "/wish/7", jsonType, `{"lines":[{"sku":"1"},{"sku":"x"}]}`, problemOf{400, "INVALID_FIELD", "lines[1].sku"}},
		{"not a list", "POST", "/wish/7", jsonType, `{"lines":{}}`, problemOf{400, "INVALID_FIELD", "lines"}},
		{"S-W13 a path ID in the body", "POST", "/wish/7", jsonType, `{"id":999}`, problemOf{400, "UNKNOWN_FIELD", "id"}},
		{"malformed path ID", "POST", "/wish/07", jsonType, `{}`, problemOf{404, "NOT_FOUND", ""}},
		{"path ID over int64", "POST", "/wish/9223372036854775808", jsonType, `{}`, problemOf{404, "NOT_FOUND", ""}},
		{"path ID with an escape", "POST", "/wish/7%2f8", jsonType, `{}`, problemOf{404, "NOT_FOUND", ""}},
		{"limit 0", "GET", "/page?limit=0", "", "", problemOf{400, "INVALID_FIELD", "limit"}},
		{"limit too large", "GET", "/page?limit=101", "", "", problemOf{400, "INVALID_FIELD", "limit"}},
		{"limit a word", "GET", "/page?limit=all", "", "", problemOf{400, "INVALID_FIELD", "limit"}},
		{"nobody logged in", "POST", "/pay", "", "", problemOf{401, "UNAUTHENTICATED", ""}},
		{"no route", "GET", "/route", "", "", problemOf{500, "CELL_ROUTING_VIOLATION", ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			req := httptest.NewRequest(tc.method, tc.path, strings.NewReader(tc.body))
			if tc.contentType != "" {
				req.Header.Set("Content-Type", tc.contentType)
			}
			rec := httptest.NewRecorder()
			e := testServer()
			if tc.path == "/slow" {
				e = testServerOf(200 * time.Millisecond)
			}
			e.ServeHTTP(rec, req)
			var p call.Problem
			if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil {
				t.Fatalf("body %q: %v", rec.Body, err)
			}
			if got := (problemOf{rec.Code, p.Code, p.Field}); got != tc.want {
				t.Errorf("%s %s = %+v, want %+v (%s)", tc.method, tc.path, got, tc.want, p.Detail)
			}
			h := rec.Header()
			if h.Get("Content-Type") != call.ProblemType || p.Status != rec.Code || p.RequestID == "" || p.RequestID != h.Get(HeaderRequestID) {
				t.Errorf("answer %v %+v is not a whole problem", h, p)
			}
			if h.Get(HeaderCell) != "c1" || h.Get(HeaderRouteVersion) != "7" {
				t.Errorf("headers %v don't say who served", h)
			}
			if rec.Code == 503 && h.Get("Retry-After") != "1" {
				t.Errorf("503 with Retry-After %q, want 1", h.Get("Retry-After"))
			}
			if strings.Contains(rec.Body.String(), "hunter2") || strings.Contains(rec.Body.String(), "secret") {
				t.Errorf("the answer tells %s", rec.Body)
			}
		})
	}
}

func TestProblemCarriesWhereToAsk(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]call.Problem{
		"/misrouted": {Status: 421, Title: "Misdirected Request", Code: "MISROUTED", Owner: "c2", Epoch: 9},
		"/gone":      {Status: 503, Title: "Service Unavailable", Code: "UNAVAILABLE", Cell: "c3", RetryAfter: 2},
	} {
		rec := httptest.NewRecorder()
		testServer().ServeHTTP(rec, httptest.NewRequest("GET", path, nil))
		var got call.Problem
		if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		got.Type, got.Detail, got.RequestID = "", "", ""
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("GET %s (-want +got):\n%s", path, diff)
		}
	}
}

func TestMethodNotAllowedNamesTheOthers(t *testing.T) {
	t.Parallel()
	rec := httptest.NewRecorder()
	testServer().ServeHTTP(rec, httptest.NewRequest("DELETE", "/page", nil))
	if allow := rec.Header().Get("Allow"); !strings.Contains(allow, "GET") {
		t.Errorf("Allow = %q, want GET in it", allow)
	}
}

func TestBindKeepsPathAndText(t *testing.T) {
	t.Parallel()
	req := httptest.NewRequest("POST", "/wish/7", strings.NewReader(`{"note":"about \\u0000"}`))
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	rec := httptest.NewRecorder()
	testServer().ServeHTTP(rec, req)
	if want := `{"bound":0,"note":"about \\u0000","path":"7"}` + "\n"; rec.Code != 200 || rec.Body.String() != want {
		t.Errorf("answer %d %s, want 200 %s", rec.Code, rec.Body, want)
	}
}

// The body is refused while it's read, too, when no length was announced.
func TestChunkedBodyTooLong(t *testing.T) {
	t.Parallel()
	req := httptest.NewRequest("POST", "/wish/7", io.MultiReader(strings.NewReader(`{"note":"`), strings.NewReader(strings.Repeat("x", 2000))))
	req.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	testServer().ServeHTTP(rec, req)
	if rec.Code != 413 {
		t.Errorf("status %d, want 413", rec.Code)
	}
}

// A client that never ends its body must not hold a handler.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(testServer())
	defer server.Close()
	r, w := io.Pipe()
	defer w.Close()
	go w.Write([]byte(`{"note":`))
	req, _ := http.NewRequestWithContext(t.Context(), "POST", server.URL+"/wish/7", r)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 408 && res.StatusCode != 503 {
		t.Errorf("status %d, want 408 or 503", res.StatusCode)
	}
}

// The time to send a body ends with the body: if its deadline stayed, it would
// break the connection under a handler that works on.
func TestConnectionSurvivesTheBodysDeadline(t *testing.T) {
	t.Parallel()
	e := testServerOf(200 * time.Millisecond)
	e.POST("/work", func(c echo.Context) error {
		if err := Bind(c, &wish{}); err != nil {
			return err
		}
		ctx := c.Request().Context()
		<-ctx.Done() // as long as the body's deadline
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return errors.New("the connection was given up")
		}
		return c.NoContent(204)
	})
	server := httptest.NewServer(e)
	defer server.Close()
	for i := range 3 {
		reused := false
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "POST", server.URL+"/work", strings.NewReader(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 204 || reused != (i > 0) {
			t.Fatalf("request %d: status %d, connection used again: %v", i, res.StatusCode, reused)
		}
	}
}

func TestHalfAnAnswerBreaksTheConnection(t *testing.T) {
	t.Parallel()
	e := testServer()
	e.GET("/half", func(c echo.Context) error {
		c.Response().WriteHeader(200)
		_, _ = c.Response().Write([]byte("[1,"))
		c.Response().Flush()
		return errors.New("the rest is lost")
	})
	server := httptest.NewServer(e)
	defer server.Close()
	res, err := http.Get(server.URL + "/half")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("half an answer was read without an error")
	}
}

func TestHeadersOfAProxiedAnswerWin(t *testing.T) {
	t.Parallel()
	e := testServer()
	e.GET("/proxied", func(c echo.Context) error {
		c.Response().Header().Add(HeaderCell, "c3")
		c.Response().Header().Add(HeaderRouteVersion, "9")
		return c.NoContent(200)
	})
	rec := httptest.NewRecorder()
	e.ServeHTTP(rec, httptest.NewRequest("GET", "/proxied", nil))
	if diff := cmp.Diff([]string{"c3"}, rec.Header().Values(HeaderCell)); diff != "" {
		t.Error(diff)
	}
	if got := rec.Header().Get(HeaderRouteVersion); got != "9" {
		t.Errorf("route version %s, want 9", got)
	}
}

func TestRouteContext(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name                    string
		slot, epoch, user, from string
		want                    int
	}{
		{"whole", "77", "3", "1234", "c1", 200},
		{"private slot, nobody", "16385", "1", "", "c1", 200},
		{"slot of words", "home", "3", "", "", 500},
		{"negative slot", "-1", "3", "", "", 500},
		{"no epoch", "77", "", "", "", 500},
		{"epoch 0", "77", "0", "", "", 500},
		{"user of words", "77", "3", "bob", "", 500},
		{"another cell calls", "77", "3", "1234", "c2", 500},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := httptest.NewRequest("GET", "/route", nil)
			for name, value := range map[string]string{HeaderSlot: tc.slot, HeaderEpoch: tc.epoch, HeaderUser: tc.user, HeaderFrom: tc.from} {
				if value != "" {
					req.Header.Set(name, value)
				}
			}
			rec := httptest.NewRecorder()
			testServer().ServeHTTP(rec, req)
			if rec.Code != tc.want {
				t.Errorf("status %d, want %d: %s", rec.Code, tc.want, rec.Body)
			}
		})
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int{"": 400, "a b": 400, "ä": 400, strings.Repeat("k", 129): 400, strings.Repeat("k", 128): 200, "k-1": 200} {
		req := httptest.NewRequest("POST", "/pay", nil)
		req.Header.Set(HeaderUser, "1234")
		req.Header.Set(HeaderIdempotencyKey, key)
		rec := httptest.NewRecorder()
		testServer().ServeHTTP(rec, req)
		if rec.Code != want {
			t.Errorf("key %q: status %d, want %d", key, rec.Code, want)
		}
	}
}

func TestRequestID(t *testing.T) {
	t.Parallel()
	for given, keep := range map[string]bool{"abc-1_2.Z": true, "": false, "a b": false, "a\"b": false, strings.Repeat("a", 65): false} {
		if got := requestID(given); (got == given) != keep || got == "" {
			t.Errorf("requestID(%q) = %q, keep it: %v", given, got, keep)
		}
	}
}

func TestOneLogLineAndOneCountPerRequest(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	m := obs.New("c1", "test")
	e := New(Options{Log: slog.New(slog.NewJSONHandler(&out, nil)), Metrics: m, Quiet: []string{"/often", "/panic"}})
	e.GET("/often", func(c echo.Context) error { return c.NoContent(http.StatusNoContent) })
	e.GET("/o/:id", func(echo.Context) error { return fmt.Errorf("read order: %w", errs.ErrNotFound) }, RouteContext())
	e.GET("/panic", func(echo.Context) error { panic("boom") })
	req := httptest.NewRequest("GET", "/o/5", nil)
	req.Header.Set(HeaderSlot, "77")
	req.Header.Set(HeaderEpoch, "1")
	e.ServeHTTP(httptest.NewRecorder(), req)
	e.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/often", nil)) // no line
	e.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/panic", nil)) // what goes wrong has one
	e.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("BREW", "/no/such/path", nil))

	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d log lines, want 3:\n%s", len(lines), out.String())
	}
	for _, want := range []string{`"level":"INFO"`, `"route":"/o/:id"`, `"status":404`, `"slot":77`, `"code":"NOT_FOUND"`, `"request_id":"`} {
		if !strings.Contains(lines[0], want) {
			t.Errorf("line %s has no %s", lines[0], want)
		}
	}
	for _, want := range []string{`"level":"ERROR"`, "boom", "web_test.go"} {
		if !strings.Contains(lines[1], want) {
			t.Errorf("line %s has no %s", lines[1], want)
		}
	}
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`cellmart_http_requests_total{cell="c1",class="4xx",method="GET",route="/o/:id",service="test"} 1`,
		`cellmart_http_requests_total{cell="c1",class="5xx",method="GET",route="/panic",service="test"} 1`,
		`cellmart_http_requests_total{cell="c1",class="4xx",method="other",route="unmatched",service="test"} 1`,
	} {
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("metrics have no %s", want)
		}
	}
}

func TestCursor(t *testing.T) {
	t.Parallel()
	type pos struct {
		At  int64  `json:"at"`
		Num string `json:"n"`
	}
	key, want := []byte("k"), pos{12, "x"}
	s := EncodeCursor(key, want)
	var got pos
	if err := DecodeCursor(key, s, &got); err != nil || got != want {
		t.Fatalf("DecodeCursor = %+v, %v, want %+v", got, err, want)
	}
	refuse := func(key []byte, s string) {
		t.Helper()
		err := DecodeCursor(key, s, &pos{})
		if e := errs.From(err); !errors.Is(err, ErrInvalidCursor) || e.Field != "cursor" || e.HTTPStatus() != 400 {
			t.Errorf("DecodeCursor(%q) = %v, want INVALID_CURSOR", s, err)
		}
	}
	for i := range s { // each single character changed
		b := []byte(s)
		b[i] = map[bool]byte{true: 'A', false: 'B'}[b[i] != 'A']
		refuse(key, string(b))
	}
	for _, bad := range []string{"", "x", s[:len(s)-1], s + "A", s + "=", "%", strings.Repeat("A", 2000)} {
		refuse(key, bad)
	}
	refuse([]byte("other"), s)
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"amount":1,"lines":[{"sku":"1"}]}`))
	f.Add([]byte(`{"lines":[{"qty":null}],"user":[]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var w wish
		if err := decode(raw, &w); err != nil && errs.From(err).Kind != errs.Invalid {
			t.Errorf("decode(%q) = %v, want an Invalid error", raw, err)
		}
	})
}

func TestServeReturnsAfterTheLastHandler(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	e := New(Options{})
	e.GET("/", func(c echo.Context) error { return c.NoContent(204) })
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, "127.0.0.1:0", e, time.Second) }()
	stop()
	if err := <-done; err != nil {
		t.Errorf("Serve = %v, want nil", err)
	}
}
