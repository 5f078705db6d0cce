package inventory

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
		"CELL": "c1", "INVENTORY_ADDR": addr, "INVENTORY_INTERNAL_ADDR": internal, "PG_DSN": "postgres://cellmart_app@" + dead + "/none",
		"LINK_ADDR": dead, "NATS_URL": "nats://" + dead, "AGENT_URL": "http://" + dead, "CELLS": "c1,c2",
		"INVENTORY_CATALOG_URL": "http://" + dead,
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
		call.Route{Cell: "c1", Slot: sellerSlot, Epoch: 1, User: seller}.SetHeaders(r.Header, "c1")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	limit, tick := time.After(time.Minute), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for status("http://"+internal+"/livez") != 200 || status("http://"+addr+"/api/v1/seller/stock") == 0 {
		select {
		case <-tick.C:
		case err := <-ended:
			t.Fatalf("Run = %v", err)
		case <-limit:
			t.Fatal("not up in a minute")
		}
	}
	for path, want := range map[string]int{"/api/v1/seller/stock": 503, "/api/v1/nothing": 404} {
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
		return map[string]string{"INVENTORY_HOLD_TTL": "soon"}[k]
	}})
	var usage cellkit.Usage
	if !errors.As(err, &usage) {
		t.Fatalf("Run = %v, want a usage error", err)
	}
	for _, name := range []string{"INVENTORY_CELL", "INVENTORY_PG_DSN", "INVENTORY_NATS_URL", "INVENTORY_LINK_ADDR", "INVENTORY_HOLD_TTL"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%v doesn't name %s", err, name)
		}
	}
	if len(Vars()) < 10 {
		t.Errorf("Vars = %v", Vars())
	}
}
