package agent

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/agent/agentapi"
)

func TestAGatewaysWordIsTaken(t *testing.T) {
	t.Parallel()
	s := &server{cell: "c1", requests: agentapi.NewBook(time.Now())}
	h := s.local(web.Options{Service: "agent", Cell: "c1"})
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c := &agentapi.Client{BaseURL: srv.URL}
	if s.requests.Sums(nil, time.Now()) != nil {
		t.Error("something is known before anybody spoke")
	}
	start := time.Now().UnixNano()
	for n := uint64(1); n <= 3; n++ {
		err := c.Report(t.Context(), agentapi.Word{Process: "gateway@h:1", Start: start, Kinds: map[string]agentapi.Ways{"GET /me": {Local: 3 * n, Forwarded: n}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	got := s.requests.Sums(map[string]agentapi.Ways{"claim.begin": {Messaged: 2, Begun: 2}}, time.Now())
	if got == nil || got.Local != 7 || got.Forwarded != 3 || got.Messaged != 2 {
		t.Errorf("sums are %+v, want 7 local, 3 forwarded, 2 messaged", got)
	}
	for _, body := range []string{`{}`, `{"process":""}`, `x`, `{"process":"p","kinds":{"k":{"local":-1}}}`} {
		r := httptest.NewRequest(http.MethodPost, "/requests", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 400 {
			t.Errorf("%s: %d, want 400", body, w.Code)
		}
	}
}

func TestWhatBeginsIsCountedOnce(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		kind, body string
		want       bool
	}{
		{"claim.begin", `{}`, true},
		{"stock.reserve", `{}`, true},
		{"transfer.credit", `{"kind":"transfer"}`, true},
		{"transfer.credit", `{"kind":"order"}`, false}, // follows from stock.reserve
		{"transfer.credit", `x`, false},
		{"transfer.cancel", `{"kind":"transfer"}`, false},
		{"stock.confirm", `{}`, false},
		{"claim.copy", `{}`, false},
	} {
		if got := begins(bus.Message{Kind: tc.kind, Body: []byte(tc.body)}); got != tc.want {
			t.Errorf("%s %s begins: %v, want %v", tc.kind, tc.body, got, tc.want)
		}
	}
}
