package control

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/control/controlapi"
)

// serve starts control's HTTP over a new database, with no watcher.
func serve(t testing.TB, operator string) (*service, *controlapi.Client) {
	t.Helper()
	db := pgtest.NewGlobal(t, Migrations())
	s := open(t, appDSN(t, db), nil)
	e := web.New(web.Options{Service: "control", Cell: "global", MaxBody: maxBody, Timeout: 30 * time.Second, RouteVersion: s.holder.Version})
	ctx, stop := context.WithCancel(context.Background())
	x := newExchanger(s, newCells(t, s.holder.Load).agents, s.log)
	(&server{service: s, exchange: x, operator: operator, stop: ctx}).routes(e)
	h := httptest.NewServer(e)
	t.Cleanup(func() { stop(); h.Close() })
	return s, &controlapi.Client{BaseURL: h.URL, Key: s.public(), OperatorKey: "operator"}
}

func TestClient(t *testing.T) {
	t.Parallel()
	_, c := serve(t, "operator")
	ctx := t.Context()
	if _, _, err := c.Route(ctx, 0, 0); !errors.Is(err, controlapi.ErrNone) {
		t.Errorf("Route before init: %v, want %v", err, controlapi.ErrNone)
	}
	p, err := c.Init(ctx, fourCells())
	if err != nil || p != (controlapi.Published{Version: 1, Created: true}) {
		t.Fatalf("Init = %+v, %v", p, err)
	}
	if p, err := c.Init(ctx, fourCells()); err != nil || p != (controlapi.Published{Version: 1}) {
		t.Errorf("Init again = %+v, %v", p, err)
	}
	table, signed, err := c.Route(ctx, 0, 0)
	if err != nil || table.Version() != 1 {
		t.Fatalf("Route = %v, %v", table, err)
	}
	if again, err := routing.Open(c.Key, signed); err != nil || !bytes.Equal(again.Encode(), table.Encode()) {
		t.Errorf("signed bytes: %v", err)
	}
	if table, _, err := c.Route(ctx, 1, 20*time.Millisecond); table != nil || err != nil {
		t.Errorf("Route after the newest = %v, %v, want nothing", table, err)
	}

	got := make(chan int64, 1)
	go func() {
		table, _, err := c.Route(ctx, 1, controlapi.MaxWait)
		if err != nil {
			t.Errorf("long poll: %v", err)
			close(got)
			return
		}
		got <- table.Version()
	}()
	spec := table.Spec()
	spec.Version, spec.Cells[2].Weight = 2, 0
	next, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := c.Publish(ctx, controlapi.PublishRequest{ExpectVersion: 1, Reason: "close c3", Table: next.Encode()}); err != nil || p.Version != 2 {
		t.Fatalf("Publish = %+v, %v", p, err)
	}
	if v := <-got; v != 2 {
		t.Errorf("long poll gave version %d, want 2", v)
	}
	var e *errs.Error
	if _, err := c.Publish(ctx, weight(1, 5)); !errors.Is(err, controlapi.ErrVersion) || !errors.As(err, &e) || !strings.Contains(e.Message, "current version is 2") {
		t.Errorf("Publish on a stale version: %v", err)
	}
	list, err := c.Versions(ctx)
	if err != nil || len(list.Versions) != 2 || list.Versions[0].Version != 2 || list.Versions[0].Reason != "close c3" ||
		list.Versions[0].AgeMS < 0 || list.Versions[0].AgeMS > 60_000 || list.Versions[1].Bytes != len(signed) {
		t.Errorf("Versions = %+v, %v", list, err)
	}

	onPath := call.WithRoute(ctx, call.Route{Cell: "c1", Slot: 1, Epoch: 1})
	if _, _, err := c.Route(onPath, 0, 0); !errors.Is(err, errs.ErrViolation) {
		t.Errorf("on a request's path: %v, want a violation", err)
	}
	forged := *c
	forged.Key = ed25519.NewKeyFromSeed([]byte(fmt.Sprintf("%032d", 7))).Public().(ed25519.PublicKey)
	if _, _, err := forged.Route(ctx, 0, 0); !errors.Is(err, routing.ErrSignature) {
		t.Errorf("another key: %v", err)
	}
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	s, c := serve(t, "operator")
	_, closed := serve(t, "")
	if _, err := s.initialize(t.Context(), fourCells()); err != nil {
		t.Fatal(err)
	}
	initBody, err := json.Marshal(fourCells())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name, method, path, key, body string
		base                          string
		status                        int
		code                          string
	}{
		{name: "newest", method: "GET", path: "/route", status: 200},
		{name: "nothing newer", method: "GET", path: "/route?after=1", status: 204},
		{name: "a version to come", method: "GET", path: "/route?after=99", status: 204},
		{name: "after is no number", method: "GET", path: "/route?after=x", status: 400, code: "INVALID_FIELD"},
		{name: "after is negative", method: "GET", path: "/route?after=-1", status: 400, code: "INVALID_FIELD"},
		{name: "wait is no duration", method: "GET", path: "/route?wait=5", status: 400, code: "INVALID_FIELD"},
		{name: "wait is negative", method: "GET", path: "/route?after=1&wait=-5s", status: 400, code: "INVALID_FIELD"},
		{name: "list", method: "GET", path: "/route/versions", status: 200},
		{name: "acks", method: "GET", path: "/route/acks", status: 200},
		{name: "acks of no version", method: "GET", path: "/route/acks?version=x", status: 400, code: "INVALID_FIELD"},
		{name: "acks, wait is no duration", method: "GET", path: "/route/acks?wait=5", status: 400, code: "INVALID_FIELD"},
		{name: "a report of nobody", method: "POST", path: "/route/acks", body: "{}", status: 422, code: "ROUTE_ZONE_UNKNOWN"},
		{name: "unknown path", method: "GET", path: "/routes", status: 404, code: "NOT_FOUND"},
		{name: "init without key", method: "POST", path: "/route/init", body: "{}", status: 401, code: "OPERATOR_KEY_WRONG"},
		{name: "init with a wrong key", method: "POST", path: "/route/init", key: "operato", body: "{}", status: 401, code: "OPERATOR_KEY_WRONG"},
		{name: "nobody may write", method: "POST", path: "/route/init", base: closed.BaseURL, body: "{}", key: "", status: 401, code: "OPERATOR_KEY_WRONG"},
		{name: "init again", method: "POST", path: "/route/init", key: "operator", body: string(initBody), status: 200},
		{name: "init with other cells", method: "POST", path: "/route/init", key: "operator", body: `{"cells":[{"name":"c1","region":"r1","weight":1,"keys":[]}]}`, status: 409, code: "ROUTE_EXISTS"},
		{name: "no reason", method: "POST", path: "/route/publish", key: "operator", body: `{"expect_version":1,"changes":{}}`, status: 400, code: "INVALID_FIELD"},
		{name: "unknown field", method: "POST", path: "/route/publish", key: "operator", body: `{"expect":1}`, status: 400, code: "UNKNOWN_FIELD"},
		{name: "stale version", method: "POST", path: "/route/publish", key: "operator", body: `{"expect_version":0,"reason":"r","changes":{}}`, status: 409, code: "ROUTE_VERSION_CONFLICT"},
		{name: "nothing to publish", method: "POST", path: "/route/publish", key: "operator", body: `{"expect_version":1,"reason":"r"}`, status: 400, code: "INVALID_FIELD"},
		{name: "a table that doesn't follow", method: "POST", path: "/route/publish", key: "operator", body: `{"expect_version":1,"reason":"r","table":` + string(first(t).Encode()) + `}`, status: 422, code: "ROUTE_TABLE_REFUSED"},
		{name: "exchanges", method: "GET", path: "/exchanges", status: 200},
		{name: "exchange without key", method: "POST", path: "/exchanges", body: "{}", status: 401, code: "OPERATOR_KEY_WRONG"},
		{name: "exchange for no reason", method: "POST", path: "/exchanges", key: "operator", body: `{"spread":true}`, status: 400, code: "INVALID_FIELD"},
		{name: "exchange of nothing", method: "POST", path: "/exchanges", key: "operator", body: `{"reason":"r"}`, status: 400, code: "INVALID_FIELD"},
		{name: "all is spread", method: "POST", path: "/exchanges", key: "operator", body: `{"reason":"r","spread":true}`, status: 200},
		{name: "exchange", method: "POST", path: "/exchanges", key: "operator", body: `{"reason":"r","standbys":[{"from":1,"to":9,"standby":"c4"}]}`, status: 201},
		{name: "again", method: "POST", path: "/exchanges", key: "operator", body: `{"reason":"r","standbys":[{"from":9,"to":9,"standby":"c3"}]}`, status: 409, code: "EXCHANGE_OPEN"},
		{name: "cancel without key", method: "POST", path: "/exchanges/1/cancel", body: "{}", status: 401, code: "OPERATOR_KEY_WRONG"},
		{name: "cancel", method: "POST", path: "/exchanges/1/cancel", key: "operator", body: "{}", status: 200},
		{name: "cancel what isn't", method: "POST", path: "/exchanges/7/cancel", key: "operator", body: "{}", status: 404, code: "EXCHANGE_UNKNOWN"},
		{name: "cancel what can't be", method: "POST", path: "/exchanges/x/cancel", key: "operator", body: "{}", status: 404, code: "EXCHANGE_UNKNOWN"},
		{name: "publish", method: "POST", path: "/route/publish", key: "operator", body: `{"expect_version":1,"reason":"r","changes":{"weights":{"c2":0}}}`, status: 201},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.base == "" {
				x.base = c.BaseURL
			}
			req, err := http.NewRequestWithContext(t.Context(), x.method, x.base+x.path, strings.NewReader(x.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+x.key)
			req.Header.Set("Content-Type", "application/json")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != x.status || x.code != "" && !strings.Contains(string(b), `"code":"`+x.code+`"`) {
				t.Errorf("status %d %.300s, want %d %s", resp.StatusCode, b, x.status, x.code)
			}
		})
	}
}

// TestRun starts the whole component as the demo does: version 1 comes from its
// settings, long polls don't hold up its end, and without a database it serves 503.
func TestRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := link.WritePKI(dir, []string{"c1", "c2", "global"}); err != nil {
		t.Fatal(err)
	}
	pub, err := link.LoadPublicKey(filepath.Join(dir, "control.pub"))
	if err != nil {
		t.Fatal(err)
	}
	db := pgtest.NewGlobal(t, Migrations())
	for _, x := range []struct {
		name, dsn string
		want      error
	}{{"database", appDSN(t, db), nil}, {"no database", "postgres://nobody@127.0.0.1:1/x", controlapi.ErrNone}} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			addr := freeAddr(t)
			vars := map[string]string{
				"CONTROL_ADDR": addr, "PG_DSN": x.dsn, "CONTROL_PKI_DIR": dir,
				"CONTROL_INIT": "c1:east:1,c2:west:3", "CONTROL_OPERATOR_KEY": "k",
			}
			ctx, stop := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() {
				done <- Run(ctx, cellkit.Process{Getenv: func(n string) string { return vars[n] }, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Stdout: io.Discard})
			}()
			c := &controlapi.Client{BaseURL: "http://" + addr, Key: pub}
			var table *routing.Table
			end := time.Now().Add(time.Minute)
			for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
				var err error
				table, _, err = c.Route(ctx, 0, time.Second)
				if err == nil && table != nil || x.want != nil && errors.Is(err, x.want) {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("Route: %v, want %v", err, x.want)
				}
			}
			if x.want == nil {
				owned := len(table.SlotsOf("c2"))
				cell, _ := table.Cell("c2")
				if table.Version() != 1 || owned != routing.Slots*3/4 || cell.Region != "west" || len(cell.Keys) != 1 {
					t.Errorf("version %d, c2 %+v owns %d", table.Version(), cell, owned)
				}
				polling := make(chan struct{})
				go func() {
					defer close(polling)
					c.Route(context.Background(), 1, controlapi.MaxWait)
				}()
				defer func() { <-polling }()
			}
			stop()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("Run = %v", err)
				}
			case <-time.After(time.Minute):
				t.Error("Run does not end")
			}
		})
	}
}

func TestRunRefusesWrongSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := link.WritePKI(dir, []string{"c1", "global"}); err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string][2]string{
		"no folder":      {"CONTROL_PKI_DIR", ""},
		"no key there":   {"CONTROL_PKI_DIR", t.TempDir()},
		"not a spec":     {"CONTROL_INIT", "c1:1"},
		"no weight":      {"CONTROL_INIT", "c1:east:x"},
		"no token key":   {"CONTROL_INIT", "c9:east:1"},
		"a path as cell": {"CONTROL_INIT", "../c1:east:1"},
		"closed cells":   {"CONTROL_INIT", "c1:east:0"},
		"no DSN":         {"PG_DSN", "postgres://%zz"},
	} {
		vars := map[string]string{"PG_DSN": "postgres://x@127.0.0.1:1/x", "CONTROL_PKI_DIR": dir, "CONTROL_ADDR": "127.0.0.1:0"}
		vars[set[0]] = set[1]
		err := Run(t.Context(), cellkit.Process{Getenv: func(n string) string { return vars[n] }, Log: slog.New(slog.DiscardHandler)})
		var usage cellkit.Usage
		if !errors.As(err, &usage) {
			t.Errorf("%s: %v, want a usage error", name, err)
		}
	}
	if vars := Vars(); len(vars) < 5 {
		t.Errorf("Vars = %v", vars)
	}
}

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
