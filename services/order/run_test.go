package order

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/call"
)

// freeAddr is a loopback address where nobody listens.
func freeAddr(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// S-W11: with everything down the service starts, answers 503, and ends when told.
func TestColdStartWithEverythingDown(t *testing.T) {
	t.Parallel()
	addr, internal, dead := freeAddr(t), freeAddr(t), freeAddr(t)
	vars := map[string]string{
		"CELL": "c1", "ORDER_ADDR": addr, "ORDER_INTERNAL_ADDR": internal, "PG_DSN": "postgres://cellmart_app@" + dead + "/none",
		"LINK_ADDR": dead, "NATS_URL": "nats://" + dead, "AGENT_URL": "http://" + dead, "CELLS": "c1,c2", "ORDER_NUMBER_KEY": "a key of sixteen bytes",
		"ORDER_CATALOG_URL": "http://" + dead, "ORDER_USER_URL": "http://" + dead,
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, cellkit.Process{Getenv: func(k string) string { return vars[k] }, Log: slog.New(slog.DiscardHandler), Stdout: io.Discard})
	}()
	status := func(url string) int {
		r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		call.Route{Cell: "c1", Slot: 100, Epoch: 1, User: buyer}.SetHeaders(r.Header, "c1")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	limit, tick := time.After(time.Minute), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for status("http://"+internal+"/livez") != 200 || status("http://"+addr+"/api/v1/cart") == 0 {
		select {
		case <-tick.C:
		case err := <-ended:
			t.Fatalf("Run = %v", err)
		case <-limit:
			t.Fatal("not up in a minute")
		}
	}
	for path, want := range map[string]int{"/api/v1/cart": 503, "/api/v1/orders": 503, "/api/v1/orders/XXXX": 404} {
		if got := status("http://" + addr + path); got != want {
			t.Errorf("GET %s = %d, want %d", path, got, want)
		}
	}
	if got := status("http://" + internal + "/readyz"); got != 503 {
		t.Errorf("/readyz = %d, want 503", got)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	err := Run(context.Background(), cellkit.Process{Getenv: func(k string) string {
		return map[string]string{"ORDER_NUMBER_KEY": "short", "ORDER_WAIT": "soon"}[k]
	}})
	var usage cellkit.Usage
	if !errors.As(err, &usage) {
		t.Fatalf("Run = %v, want a usage error", err)
	}
	for _, name := range []string{"ORDER_CELL", "ORDER_PG_DSN", "ORDER_NATS_URL", "ORDER_LINK_ADDR", "ORDER_CATALOG_URL", "ORDER_USER_URL", "ORDER_NUMBER_KEY", "ORDER_WAIT"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%v doesn't name %s", err, name)
		}
	}
	if len(Vars()) < 10 {
		t.Errorf("Vars = %v", Vars())
	}
}
