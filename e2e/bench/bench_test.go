package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/routing"
)

// fake benches: one that holds, one that misses its goal, one that can't run
// here, one that fails.
func fakes() []bench {
	gives := func(rows []row, err error) func(context.Context, io.Writer) ([]row, error) {
		return func(context.Context, io.Writer) ([]row, error) { return rows, err }
	}
	return []bench{
		{"holds", "", gives([]row{compare("holds", "ms", 1.5, 3000, "<= 1/20", func(r float64) bool { return r <= 1.0/20 }, "what it is")}, nil)},
		{"misses", "", gives([]row{compare("misses", "ms", 2, 1, "<= 1", func(r float64) bool { return r <= 1 }, "")}, nil)},
		{"lacks", "", gives(nil, cellkit.Usage{Err: errors.New("no such program\nand more")})},
		{"fails", "", gives(nil, errors.New("it broke"))},
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args, stdout, stderr string // parts of; "" = none at all for stdout
		code                 int
	}{
		{"holds", "holds  1.5   3000      ms    0.0005  <= 1/20  yes", "", 0},
		{"holds", "holds: what it is", "", 0},
		{"misses", "misses  2     1         ms    2      <= 1  NO", "", 1},
		{"lacks", "lacks  -     -         -     -      shown  can't run", "", 0},
		{"lacks", "lacks: no such program\n", "", 0},
		{"fails", "can't run", "bench: fails: it broke", 1},
		{"", "holds", "", 1},
		{"lacks holds -o json", `"goal": "<= 1/20",`, "", 0},
		{"lacks -o=json", `"ok": null,`, "", 0},
		{"nothing", "", `bench: there is no "nothing": [holds misses lacks fails] [-o text|json]`, 2},
		{"holds -o", "", "bench: -o takes text or json", 2},
		{"holds -o yaml", "", "bench: -o takes text or json", 2},
		{"--fast", "", `bench: there is no "--fast"`, 2},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), fakes(), strings.Fields(tc.args), &stdout, &stderr)
		if code != tc.code || !strings.Contains(stdout.String(), tc.stdout) || !strings.Contains(stderr.String(), tc.stderr) {
			t.Errorf("bench %s = %d, want %d\n%s%s", tc.args, code, tc.code, &stdout, &stderr)
		}
		if code == 2 && (stdout.Len() > 0 || strings.Count(stderr.String(), "\n") != 1) {
			t.Errorf("bench %s: not one line:\n%s%s", tc.args, &stdout, &stderr)
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	var stdout bytes.Buffer
	if code := run(t.Context(), fakes(), []string{"-o", "json", "holds", "lacks"}, &stdout, io.Discard); code != 0 {
		t.Fatalf("code %d", code)
	}
	want := `[
  {
    "name": "holds",
    "ours": 1.5,
    "baseline": 3000,
    "unit": "ms",
    "ratio": 0.0005,
    "goal": "<= 1/20",
    "ok": true,
    "note": "what it is"
  },
  {
    "name": "lacks",
    "ours": null,
    "baseline": null,
    "unit": "",
    "ratio": null,
    "goal": "shown",
    "ok": null,
    "reason": "no such program"
  }
]
`
	if d := cmp.Diff(want, stdout.String()); d != "" {
		t.Error(d)
	}
}

// The lines begin with the bench's name, so that a reader finds them. Not parallel:
// counting allocations wants to be alone.
func TestLookupLines(t *testing.T) {
	rows, err := lookups(t.Context(), 1, 2, 1<<12) // too few for the ratio to mean much
	if err != nil {
		t.Fatal(err)
	}
	line := map[string]row{}
	for _, r := range rows {
		name, part, _ := strings.Cut(r.Name, "/")
		if line[part] = r; name != "route-lookup" || r.Ours == nil || r.Baseline == nil || r.OK == nil {
			t.Errorf("%+v", r)
		}
	}
	for _, part := range []string{"", "flat", "resolver", "groupcache", "hashring", "rendezvous", "swap"} {
		if r := line[part]; r.Ratio == nil || *r.Ours <= 0 || *r.Baseline <= 0 {
			t.Errorf("%q: %+v", part, r)
		}
	}
	for _, part := range []string{"allocs", "resolver-allocs"} {
		if a := line[part]; *a.Ours != 0 || *a.Baseline != 0 || !*a.OK || a.Ratio != nil {
			t.Errorf("%s = %+v", part, a)
		}
	}
	if !*line["swap"].OK || !strings.Contains(line["swap"].Note, " 0 lookups saw a mix") {
		t.Errorf("swap = %+v", line["swap"])
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := lookups(ctx, 1, 1, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of ctx: %v", err)
	}
}

// Who is asked for in the resolver's line was moved, and lives elsewhere than
// the slot says.
func TestMovedTable(t *testing.T) {
	t.Parallel()
	table, err := movedTable()
	if err != nil {
		t.Fatal(err)
	}
	for n := range uint64(overrides) {
		id := movedUser(n)
		plain, _ := table.Owner(id)
		if s, a, ok := table.Home(id); !ok || s != routing.FirstUserSlot+routing.Slot(n) || a.Owner == plain {
			t.Fatalf("Home(%d) = %d, %v, %v, the slot's owner is %s", id, s, a, ok, plain)
		}
	}
}

// Readers who take version and rows from two loads see a mix, and are counted.
func TestUnderSwapsCountsMixes(t *testing.T) {
	t.Parallel()
	base, err := lookupTable(lookupCells)
	if err != nil {
		t.Fatal(err)
	}
	tables := make([]*routing.Table, 5)
	for v := range tables {
		spec := base.Spec()
		spec.Version = int64(v) // rows stay those of version 0
		if tables[v], err = routing.Build(spec); err != nil {
			t.Fatal(err)
		}
	}
	var h routing.Holder
	if _, mixed := underSwaps(tables, func(t *routing.Table) { h.Store(t) }, h.Load); mixed == 0 {
		t.Error("rows of an old table under a new version are no mix")
	}
}

// The ring is the one whose figures are published: 500 virtual nodes, 4 to 5
// cells, a million users: 20.47 % move, and of the four cells the largest has
// 25.25 %, the smallest 24.74 %.
func TestRingIsThePublishedOne(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("two million lookups, seconds under -race")
	}
	const users = 1_000_000
	four, five := newRing(cellNames(4), 500), newRing(cellNames(5), 500)
	moved, share := 0, map[string]float64{}
	for n := range users {
		h := routing.Murmur(fnv1a(fmt.Appendf(nil, "user%d", n)))
		cell := four.find(h)
		share[cell] += 100.0 / users
		if cell != five.find(h) {
			moved++
		}
	}
	var all []float64
	for _, v := range share {
		all = append(all, v)
	}
	got := []float64{100 * float64(moved) / users, slices.Max(all), slices.Min(all)}
	for i, want := range []float64{20.47, 25.25, 24.74} {
		if math.Abs(got[i]-want) > 0.006 {
			t.Errorf("moved, largest, smallest = %.2f, want 20.47 25.25 24.74", got)
			break
		}
	}
}

func TestStat(t *testing.T) {
	t.Parallel()
	line := "77 (post) gres: (x) S 12 77 77 0 -1 4194560 500 0 0 0 150 50 300 100 20 0 1 0 99999 1 2\n"
	got, err := parseStat(line)
	if err != nil || got != (stat{parent: 12, own: 2, ended: 4}) {
		t.Errorf("parseStat = %+v, %v", got, err)
	}
	for _, bad := range []string{"", "77 (x) S 1", "no stat", strings.Replace(line, "150", "many", 1)} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("parseStat(%q) has no error", bad)
		}
	}
	if _, err := readStat(1 << 30); err == nil {
		t.Error("a process that isn't there has no error")
	}
}

func TestSpent(t *testing.T) {
	t.Parallel()
	after := spent{"gateway": 3, "order": 5, "postgres cellmart_app": 8, "postgres cellmart_agent": 2, "agent": 1}
	d := after.since(spent{"gateway": 1, "order": 1, "postgres cellmart_app": 2})
	if got := d.sum(narrow...); got != 2+4+6 {
		t.Errorf("narrow = %v of %v", got, d)
	}
	if got := d.sum(wide...); got != 2+4+6+2+1 {
		t.Errorf("wide = %v of %v", got, d)
	}
	if got := parts([]spent{{"order": 1, "nats": 9}, {"order": 3}, {"order": 2}}, narrow); got != "order 2.00" {
		t.Errorf("parts = %q", got)
	}
}

func TestDiffer(t *testing.T) {
	t.Parallel()
	ours := writes{"cell.outbox": {6, 9}, "orders.lines": {1, 1.02}}
	if got := differ(ours, writes{"cell.outbox": {6, 9}, "orders.lines": {1, 1}, "cell.parked": {0, 0}}); got != "" {
		t.Errorf("the same writes differ: %s", got)
	}
	got := differ(ours, writes{"cell.outbox": {6, 8}, "orders.lines": {1, 1}})
	if got != "order.sql is out of date: cell.outbox has 9.00 writes per order, pgbench makes 8.00" {
		t.Errorf("differ = %s", got)
	}
}

// Every variable of the script is set: by pgbench, or by a "-- var" line.
func TestScriptsVariables(t *testing.T) {
	t.Parallel()
	flags := defines(orderSQL)
	if len(flags) == 0 || len(flags)%2 != 0 {
		t.Fatalf("flags %q", flags)
	}
	known := []string{"client_id", "stock_free", "stock_held", "stock_sold"}
	for i := 1; i < len(flags); i += 2 {
		name, value, _ := strings.Cut(flags[i], "=")
		if value == "" {
			t.Errorf("%s has no value", name)
		}
		known = append(known, name)
	}
	for line := range strings.Lines(orderSQL) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == `\set` {
			known = append(known, f[1])
		}
	}
	for line := range strings.Lines(orderSQL) {
		if strings.HasPrefix(line, "--") {
			continue
		}
		for i, rest := range strings.Split(strings.ReplaceAll(line, "::", " "), ":") {
			end := strings.IndexFunc(rest, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') })
			if name := rest[:max(0, end)]; i > 0 && name != "" && !slices.Contains(known, name) {
				t.Errorf("nobody sets %q: %s", name, line)
			}
		}
	}
}
