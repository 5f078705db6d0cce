package agent

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/web"
)

// Over a link the console may read, with the key, and nobody may touch a fault: who
// cut the link that he came over couldn't mend it.
func TestConsoleOverALink(t *testing.T) {
	t.Parallel()
	h := httptest.NewServer((&server{cell: "c1", operator: "secret"}).peer(web.Options{Service: "agent", Cell: "c1"}))
	t.Cleanup(h.Close)
	ask := func(method, path, key string) int {
		req, err := http.NewRequestWithContext(t.Context(), method, h.URL+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	for _, path := range []string{"/admin/status", "/admin/ids", "/admin/facts/local", "/admin/transfers", "/admin/transfers/parked", "/admin/transfers/77", "/admin/transfers/jobs/x"} {
		if got := ask(http.MethodGet, path, "wrong"); got != http.StatusUnauthorized {
			t.Errorf("%s with a wrong key: %d", path, got)
		}
	}
	if got := ask(http.MethodGet, "/admin/facts/local", "secret"); got != http.StatusNotFound { // a zone without a database
		t.Errorf("with the key: %d", got)
	}
	for _, path := range []string{"/admin/faults/*", "/admin/clock"} {
		if got := ask(http.MethodPut, path, "secret"); got != http.StatusNotFound && got != http.StatusMethodNotAllowed {
			t.Errorf("%s over a link: %d", path, got)
		}
	}
}
