package main

import (
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/id"
)

// Every payer pays, and every payee of the flow is paid, none much more than others.
func TestFlow(t *testing.T) {
	t.Parallel()
	f := flow{from: &branch{}, to: &branch{}, payees: 50}
	for n := range bankAccounts {
		f.from.accounts = append(f.from.accounts, account{id: id.ID(n)})
		f.to.accounts = append(f.to.accounts, account{id: id.ID(n)})
	}
	paid, pays := map[id.ID]int{}, map[id.ID]int{}
	for n := range int64(2 * bankAccounts) {
		payer, payee := f.pair(n)
		pays[payer.id]++
		paid[payee.id]++
	}
	if len(pays) != bankAccounts || len(paid) != 50 {
		t.Errorf("%d pay %d", len(pays), len(paid))
	}
	for who, n := range paid {
		if n < 20 || n > 60 {
			t.Errorf("%d is paid %d times", who, n)
		}
	}
}

func TestServerPart(t *testing.T) {
	t.Parallel()
	for title, want := range map[string]string{
		"postgres: cellmart_app cellmart 127.0.0.1(4711) idle":       "cellmart_app",
		"postgres: cellmart_app bench_twophase 127.0.0.1(4711) idle": "baseline",
		"postgres: cellmart_app bench_plain 127.0.0.1(4711) COMMIT":  "baseline",
		"postgres: cellmart_app bench_limit 127.0.0.1(1) idle":       "pgbench",
		"postgres: walwriter":                            "walwriter",
		"postgres: postgres cellmart 127.0.0.1(1) idle":  "", // who looks
		"/usr/lib/postgresql/15/bin/postgres -D /data/x": "",
	} {
		if got := serverPart(strings.Fields(title)); got != want {
			t.Errorf("%s: %q, want %q", title, got, want)
		}
	}
}

func TestParsePgbench(t *testing.T) {
	t.Parallel()
	got, err := parsePgbench("number of transactions actually processed: 1200\nlatency average = 3 ms\ntps = 600.000000 (without initial connection time)\n")
	if err != nil || got.begun != 1200 || got.window != 2*time.Second || got.rate() != 600 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "tps = 600", "number of transactions actually processed: 5", "number of transactions actually processed: 0\ntps = 0"} {
		if _, err := parsePgbench(bad); err == nil {
			t.Errorf("%q has figures", bad)
		}
	}
}

func TestAtLeast(t *testing.T) {
	t.Parallel()
	line := func(ours, base float64) row { return compare("x", "", ours, base, shown, nil, "what") }
	for _, c := range []struct {
		r    row
		goal float64
		ok   bool
		note string
	}{
		{line(7, 10), 0.7, true, "what"},
		{line(6, 10), 0.7, false, "below the goal of 0.7: what"},
		{line(6, 0), 0.7, false, "below the goal of 0.7: what"},
		{line(6, 10), 0, true, "what"},
	} {
		if got := atLeast(c.r, c.goal); *got.OK != c.ok || got.Note != c.note || (c.goal == 0) != (got.Goal == shown) {
			t.Errorf("%+v: %+v", c, got)
		}
	}
	if lo, hi := spread([]float64{1, 6}, []float64{2, 3}); lo != 0.5 || hi != 2 {
		t.Errorf("%v to %v", lo, hi)
	}
}

func TestAwayRows(t *testing.T) {
	t.Parallel()
	window := func(ended, failed int, took time.Duration) payments {
		return payments{ended: ended, failed: failed, begun: ended, window: 10 * time.Second, took: []time.Duration{took}}
	}
	calm := undisturbed{before: window(100, 0, 10*time.Millisecond), during: window(99, 0, 12*time.Millisecond)}
	base := undisturbed{before: window(100, 0, 10*time.Millisecond), during: window(50, 40, time.Second), locked: 9, inDoubt: 16}
	verdicts := func(u undisturbed) (out []bool) {
		for _, r := range awayRows(u, base, 10) {
			out = append(out, *r.OK)
		}
		return out
	}
	slow, few, failed, locked := calm, calm, calm, calm
	slow.during.took = []time.Duration{16 * time.Millisecond}
	few.during.ended, failed.during.failed, locked.locked = 94, 1, 1
	for name, c := range map[string]struct {
		undisturbed
		want []bool
	}{
		"calm": {calm, []bool{true, true, true}}, "slow": {slow, []bool{true, false, true}}, "few": {few, []bool{false, true, true}},
		"failed": {failed, []bool{false, true, true}}, "locked": {locked, []bool{true, true, false}},
	} {
		if d := cmp.Diff(c.want, verdicts(c.undisturbed)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// Each way takes its time, however much is on its way at once, and the order is kept.
func TestDelayed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		c := newSlow(here, 15*time.Millisecond)
		go func() { // it says everything back
			_, _ = io.Copy(there, there)
			_ = there.Close()
		}()
		begun := time.Now()
		for _, word := range []string{"one ", "two ", "three"} {
			if _, err := c.Write([]byte(word)); err != nil {
				t.Fatal(err)
			}
		}
		b := make([]byte, len("one two three"))
		if _, err := io.ReadFull(c, b[:2]); err != nil { // in pieces
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, b[2:]); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); string(b) != "one two three" || took != 30*time.Millisecond {
			t.Errorf("%q after %s", b, took)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("x")); err == nil {
			t.Error("a closed connection takes bytes")
		}
		_ = there.Close()
		synctest.Wait()
	})
}
