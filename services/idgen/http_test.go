package idgen

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/idgen/idgenapi"
)

func serve(t *testing.T, s *service) string {
	t.Helper()
	server := httptest.NewServer(newServer(s, "global", obs.New("global", "idgen")))
	t.Cleanup(server.Close)
	return server.URL
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t)
	url := serve(t, b.service(t))
	at := strconv.FormatInt(id.SeqAt(b.now), 10)
	end := strconv.FormatInt(id.SeqAt(b.now)+10, 10)
	for _, tc := range []struct {
		name, method, path, body string
		status                   int
		want                     []string
	}{
		{"lease", "POST", "/leases", `{"kind":"order","floor":"0","size":"10"}`, 200, []string{`{"lo":"` + at + `","hi":"` + end + `","left":"5999990","holders":1}`}},
		{"lease with all fields", "POST", "/leases", `{"kind":"order","floor":"0","size":"10","now_ms":"` + strconv.FormatInt(b.now.UnixMilli(), 10) + `","holder":"c1/order"}`, 200, []string{`"lo":"` + end}},
		{"unknown kind", "POST", "/leases", `{"kind":"cat","floor":"0","size":"10"}`, 400, []string{`"IDS_UNKNOWN_KIND"`, `"field":"kind"`}},
		{"no size", "POST", "/leases", `{"kind":"order","floor":"0"}`, 400, []string{`"field":"size"`}},
		{"too much", "POST", "/leases", `{"kind":"order","floor":"0","size":"1000001"}`, 400, []string{`"field":"size"`}},
		{"negative floor", "POST", "/leases", `{"kind":"order","floor":"-1","size":"10"}`, 400, []string{`"field":"floor"`}},
		{"floor past int64", "POST", "/leases", `{"kind":"order","floor":"99999999999999999999","size":"10"}`, 400, []string{`"field":"floor"`}},
		{"a number, not a string", "POST", "/leases", `{"kind":"order","floor":0,"size":"10"}`, 400, []string{`"status":400`}},
		{"unknown field", "POST", "/leases", `{"kind":"order","floor":"0","size":"10","x":1}`, 400, []string{`"status":400`}},
		{"behind the caller's floor", "POST", "/leases", `{"kind":"order","floor":"281474976710655","size":"10"}`, 503, []string{`"IDGEN_CLOCK"`, `"retry_after":5`}},
		{"a caller a day behind", "POST", "/leases", `{"kind":"order","floor":"0","size":"10","now_ms":"1"}`, 503, []string{`"IDGEN_CLOCK"`}},
		{"status", "GET", "/status", "", 200, []string{`"kind":"order","hi":"`, `"incarnation":"`}},
		{"not so", "GET", "/leases", "", 405, nil},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tc.method, url+tc.path, strings.NewReader(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != tc.status {
			t.Errorf("%s: status %d, want %d: %s", tc.name, res.StatusCode, tc.status, body)
		}
		for _, want := range tc.want {
			if !strings.Contains(string(body), want) {
				t.Errorf("%s: %s, want %s in it", tc.name, body, want)
			}
		}
	}
}

// The client, from id.Client through HTTP down to the database, and back with
// errors that still compare.
func TestClientOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.now = time.Now()
	api := idgenapi.NewClient(serve(t, b.service(t))+"/", nil)
	api.Holder = "c1/order"
	c := id.NewClient(id.Options{Lease: api.Lease, Kinds: idgenapi.Kinds()})
	go func() { _ = c.Run(t.Context()) }()
	var last id.ID
	for _, kind := range idgenapi.Kinds() {
		if err := c.Wait(t.Context(), kind); err != nil {
			t.Fatal(err)
		}
		i, err := c.Next(kind, 16383)
		if err != nil || i.Slot() != 16383 || i.Seq() != id.SeqAt(b.now) {
			t.Errorf("%s: %d, %v", kind, i, err)
		}
		last = i
	}
	lo, hi, err := api.Lease(t.Context(), idgenapi.Order, last.Seq()+50_000, 10)
	if err != nil || lo != last.Seq()+50_000 || hi != lo+10 {
		t.Errorf("Lease above a floor = [%d, %d), %v", lo, hi, err)
	}
	var holder string
	if err := b.Super.QueryRow(t.Context(), "SELECT holder FROM idgen.journal WHERE lo = $1", lo).Scan(&holder); err != nil || holder != "c1/order" {
		t.Errorf("the journal names %q, %v", holder, err)
	}
	if st, err := api.Status(t.Context()); err != nil || len(st.Kinds) != len(idgenapi.Kinds()) {
		t.Errorf("Status = %+v, %v", st, err)
	}
	b.super(t, "UPDATE idgen.kinds SET incarnation = 'old'")
	_, _, err = api.Lease(t.Context(), idgenapi.Order, 0, 10)
	if !errors.Is(err, idgenapi.ErrPaused) || errs.From(err).RetryAfter != Pause {
		t.Errorf("Lease in a pause: %v", err)
	}
	if _, _, err := api.Lease(call.WithRoute(t.Context(), call.Route{Cell: "c1"}), idgenapi.Order, 0, 10); !errors.Is(err, errs.ErrViolation) {
		t.Errorf("Lease on a request's path: %v, want ErrViolation", err)
	}
	if _, _, err := idgenapi.NewClient("http://127.0.0.1:1", nil).Lease(t.Context(), idgenapi.Order, 0, 10); !errs.IsKind(err, errs.Unavailable) {
		t.Errorf("Lease with idgen away: %v, want Unavailable", err)
	}
}

func TestWithoutDatabase(t *testing.T) {
	t.Parallel()
	pool, err := pg.OpenGlobal(t.Context(), "postgres://nobody@127.0.0.1:1/none", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	api := idgenapi.NewClient(serve(t, newService(&store{pool: pool}, slog.New(slog.DiscardHandler))), nil)
	if _, _, err := api.Lease(t.Context(), idgenapi.Order, 0, 10); !errs.IsKind(err, errs.Unavailable) {
		t.Errorf("Lease without a database: %v, want Unavailable", err)
	}
	if _, err := api.Status(t.Context()); !errs.IsKind(err, errs.Unavailable) {
		t.Errorf("Status without a database: %v, want Unavailable", err)
	}
}
