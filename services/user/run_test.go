package user

import (
	"bufio"
	"context"
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

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/bus/bustest"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/user/userapi"
)

func freeAddr(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// start runs the service until the test ends, and fails the test when it doesn't
// end then.
func start(t *testing.T, vars map[string]string) (addr, internal string) {
	t.Helper()
	dir := t.TempDir()
	if err := link.WritePKI(dir, []string{"c1", "global"}); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{
		"CELL": "c1", "USER_ADDR": freeAddr(t), "USER_INTERNAL_ADDR": freeAddr(t), "LINK_ADDR": freeAddr(t),
		"PG_DSN": "postgres://cellmart_app@" + freeAddr(t) + "/none", "NATS_URL": "nats://" + freeAddr(t), "AGENT_URL": "http://" + freeAddr(t),
		"ROUTE_DIR": dir, "CELLS": "c1", "USER_CLAIM_KEY": "a secret of all cells", "USER_TOKEN_KEY": filepath.Join(dir, "token.c1.key"),
	}
	for k, v := range vars {
		all[k] = v
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, cellkit.Process{Getenv: func(k string) string { return all[k] }, Log: slog.New(slog.DiscardHandler), Stdout: io.Discard})
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run = %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("Run did not end in a minute")
		}
	})
	addr, internal = "http://"+all["USER_ADDR"], "http://"+all["USER_INTERNAL_ADDR"]
	waitFor(t, func() bool { return get(internal+"/livez") == http.StatusOK })
	return addr, internal
}

func get(url string) int {
	res, err := http.Get(url)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	return res.StatusCode
}

func post(t testing.TB, url, body, key string) (int, string) {
	t.Helper()
	req, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(web.HeaderSlot, routing.CellSlot(1).String())
	req.Header.Set(web.HeaderEpoch, "1")
	if key != "" {
		req.Header.Set(web.HeaderIdempotencyKey, key)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

// S-W11: a start with nothing else there is no crash; it serves 503 and waits.
func TestScenario_W11_ColdStart(t *testing.T) {
	t.Parallel()
	addr, internal := start(t, nil)
	for path, body := range map[string]string{
		"/users": `{"phone":"+8613800000001","password":"correct horse","name":"Ann"}`, "/sessions": `{"phone":"+8613800000001","password":"correct horse"}`,
	} {
		if status, answer := post(t, addr+api+path, body, "k"); status != http.StatusServiceUnavailable || !strings.Contains(answer, "UNAVAILABLE") {
			t.Errorf("POST %s = %d %s, want 503", path, status, answer)
		}
	}
	if status := get(internal + "/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("readyz = %d", status)
	}
}

// The whole wiring on a real database and NATS, with the agent's parts beside.
func TestRunRegisters(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, Migrations())
	natsURL := bustest.Server(t)
	table := &routing.Holder{}
	table.Store(routing.Spread([]string{"c1"}))
	pool, err := pgxpool.New(t.Context(), db.AgentDSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	dispatcher := bus.NewDispatcher(bus.DispatcherOptions{Cell: "c1", Pool: pool, NATSURL: natsURL, Table: table, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- dispatcher.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })

	addr, internal := start(t, map[string]string{"PG_DSN": db.DSN, "NATS_URL": natsURL, "LINK_ADDR": fakeBorder(t, fakeIdgen(t))})
	waitFor(t, func() bool { return get(internal+"/readyz") == http.StatusOK })
	body := `{"phone":"+8613800000001","password":"correct horse","name":"Ann"}`
	waitFor(t, func() bool { // IDs and streams are on their way
		status, answer := post(t, addr+"/api/v1/users", body, "op-1")
		if status != http.StatusCreated && status != http.StatusAccepted && status != http.StatusServiceUnavailable {
			t.Fatalf("register = %d %s", status, answer)
		}
		return status == http.StatusCreated
	})
	// In good weather the answer is the user, not an operation.
	status, answer := post(t, addr+"/api/v1/users", strings.Replace(body, "0001", "0002", 1), "op-2")
	var s userapi.Session
	if err := json.Unmarshal([]byte(answer), &s); err != nil || status != http.StatusCreated || s.User.ID == 0 || s.Token == "" {
		t.Errorf("second = %d %s", status, answer)
	}
}

// fakeIdgen leases ranges that follow each other.
func fakeIdgen(t testing.TB) string {
	t.Helper()
	lo := make(chan int64, 1)
	lo <- time.Since(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)).Milliseconds() * 100
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var in struct {
			Size  int64 `json:"size,string"`
			Floor int64 `json:"floor,string"`
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		at := max(<-lo, in.Floor)
		lo <- at + in.Size
		fmt.Fprintf(rw, `{"lo":"%d","hi":"%d"}`, at, at+in.Size)
	}))
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// fakeBorder is an agent's CONNECT listener that leads to one target.
func fakeBorder(t testing.TB, target string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				req, err := http.ReadRequest(r)
				if err != nil || req.Method != http.MethodConnect {
					return
				}
				far, err := net.Dial("tcp", target)
				if err != nil {
					return
				}
				defer far.Close()
				fmt.Fprint(conn, "HTTP/1.1 200 OK\r\n\r\n")
				go func() { _, _ = io.Copy(far, r) }() // ends with the connection
				_, _ = io.Copy(conn, far)
			}()
		}
	}()
	return ln.Addr().String()
}

func TestConfigMistakes(t *testing.T) {
	t.Parallel()
	good := map[string]string{"CELL": "c1", "LINK_ADDR": "127.0.0.1:1", "PG_DSN": "postgres://x", "USER_CLAIM_KEY": "0123456789abcdef",
		"USER_TOKEN_KEY": "/nowhere", "NATS_URL": "nats://127.0.0.1:1"}
	for name, change := range map[string][2]string{
		"no cell": {"CELL", ""}, "a cell's name": {"CELL", "C 1"}, "no link": {"LINK_ADDR", ""}, "no database": {"PG_DSN", ""}, "no NATS": {"NATS_URL", ""},
		"no key": {"USER_CLAIM_KEY", ""}, "a short key": {"USER_CLAIM_KEY", "short"}, "no token key": {"USER_TOKEN_KEY", ""},
		"no hashes": {"USER_HASHES_AT_ONCE", "0"}, "a duration": {"USER_SWEEP", "0s"}, "a missing file": {"USER_TOKEN_KEY", "/nowhere/else"},
	} {
		getenv := func(k string) string {
			if k == change[0] {
				return change[1]
			}
			return good[k]
		}
		err := Run(t.Context(), cellkit.Process{Getenv: getenv, Log: slog.New(slog.DiscardHandler), Stdout: io.Discard})
		var usage cellkit.Usage
		if !errors.As(err, &usage) || strings.Contains(err.Error(), "short key") {
			t.Errorf("%s: %v, want a usage error", name, err)
		}
	}
	for _, v := range Vars() {
		if v.Doc == "" || !strings.HasPrefix(v.Name, "USER_") {
			t.Errorf("variable %+v", v)
		}
	}
}
