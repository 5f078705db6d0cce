package plan

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit"
)

// given makes a plan from a command line's flags.
func given(t *testing.T, line string) (Input, Report) {
	t.Helper()
	in, err := read(line)
	if err != nil {
		t.Fatalf("plan %s: %v", line, err)
	}
	return in, Make(in)
}

func read(line string) (Input, error) {
	in := Default()
	f := flag.NewFlagSet("plan", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	in.Flags(f)
	if err := f.Parse(strings.Fields(line)); err != nil {
		return in, err
	}
	return in, in.Check()
}

func near(got, want, within float64) bool { return math.Abs(got-want) <= within }

// What others published of 2, 4, 8 and 16 cells. Their cross-cell shares are of a
// ring, whose cells are not quite even; even ones cross a little more.
func TestPublishedFigures(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		cells                         string
		hit, spare, oneLost, ringPair float64
	}{
		{"2", 50, 100, 200, 50}, {"4", 25, 33.3, 133, 74.77}, {"8", 12.5, 14.3, 114, 87.40}, {"16", 6.25, 6.7, 107, 93.68},
	} {
		_, r := given(t, "--cells "+tc.cells)
		if !near(r.Blast.Share, tc.hit, 0.005) || !near(r.Load.Spare, tc.spare, 0.05) || !near(100*r.Load.OneLost/r.Load.Usual, tc.oneLost, 0.5) {
			t.Errorf("%s cells: hit %.2f, spare %.1f, load of survivors %.0f, want %v", tc.cells, r.Blast.Share, r.Load.Spare, 100*r.Load.OneLost/r.Load.Usual, tc)
		}
		if d := r.Cross.Pair - tc.ringPair; d < 0 || d > 0.3 {
			t.Errorf("%s cells: %.2f %% of pairs cross, on a ring %.2f", tc.cells, r.Cross.Pair, tc.ringPair)
		}
	}
	for _, line := range []string{"", "--data 20TiB --link 100MB/s --throttle 1", "--data 20480GiB --link 400MiB/s --throttle 0.25"} {
		if _, r := given(t, line); !near(r.Add.Hours, 58.25, 0.005) || !near(r.Add.DecimalHours, 61.08, 0.005) {
			t.Errorf("plan %s: %.3f hours (%.3f) to add a cell, want 58.25 (61.08)", line, r.Add.Hours, r.Add.DecimalHours)
		}
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		line, verdict          string
		lower, nPlusOne, cells int
	}{
		{"--qps 1", NoCells, 1, 2, 1},
		{"--qps 20000", NoCells, 1, 2, 1},
		{"--qps 20001", Few, 2, 3, 4},
		{"--qps 60000", Few, 3, 4, 4},
		{"--qps 60001", Many, 4, 5, 8},
		{"--qps 140000", Many, 7, 8, 8},
		{"--qps 160000", Many, 8, 9, 9},
		{"--qps 20 --cell-qps 1 --regions 3", Many, 20, 21, 21},
		{"--qps 1 --blast 0.5", Few, 2, 2, 4},
		{"--qps 1 --blast 0.25", Few, 4, 4, 4},
		{"--qps 1 --blast 0.2", Many, 5, 5, 8},
		{"--qps 1 --blast 0.1", Many, 10, 10, 10},
	} {
		_, r := given(t, tc.line)
		if r.Verdict.Verdict != tc.verdict || r.Verdict.Cells != tc.cells || r.Cells.Lower != tc.lower || r.Cells.NPlusOne != tc.nPlusOne {
			t.Errorf("plan %s = %q with %d cells, lower %d, n+1 %d, want %+v", tc.line, r.Verdict.Verdict, r.Verdict.Cells, r.Cells.Lower, r.Cells.NPlusOne, tc)
		}
		if len(r.Verdict.Reason) < 40 {
			t.Errorf("plan %s: reason %q", tc.line, r.Verdict.Reason)
		}
	}
}

// Whatever is asked, the plan is the least that does it.
func TestPlanIsTheLeastThatHolds(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		in := Default()
		in.QPS, in.CellQPS = 1+rnd.Float64()*1e6, 1+rnd.Float64()*50_000
		in.Users, in.Recovery = 1000+rnd.Int64N(1e9), time.Duration(1+rnd.Int64N(int64(24*time.Hour)))
		in.Blast, in.Regions, in.Peers = 0.02+0.98*rnd.Float64(), 1+rnd.IntN(4), 1+rnd.IntN(6)
		in.Rollout = time.Minute + time.Duration(rnd.Int64N(int64(2*time.Hour)))
		if in.Check() != nil {
			continue // more cells than a table holds
		}
		r := Make(in)
		c := r.Cells
		carries := func(n int) bool { return in.QPS <= float64(n)*in.CellQPS }
		failed := func(what string) { t.Errorf("seed %d: %s\n%+v\n%+v", seed, what, in, r) }
		switch {
		case !carries(c.Capacity) || c.Capacity > 1 && carries(c.Capacity-1):
			failed("capacity isn't the least that carries")
		case c.Lower < c.Capacity || 1/float64(c.Lower) > in.Blast*1.000001:
			failed("the lower bound doesn't hold what was asked")
		case c.Lower > c.Capacity && 1/float64(c.Lower-1) <= in.Blast:
			failed("the lower bound isn't the least")
		case r.Load.OneLost > 100 || r.Blast.Share > 100*in.Blast*1.000001 || c.Serving < c.NPlusOne:
			failed("what is served doesn't hold")
		case c.UpperBlast != 10 || time.Duration(c.UpperOperations)*in.Rollout > workday || time.Duration(c.UpperOperations+1)*in.Rollout <= workday:
			failed("upper bounds")
		case c.Serving > c.Upper && len(r.Warnings) == 0:
			failed("above the upper bound without a word")
		case !near(r.Blast.UserMinutes*float64(c.Serving), r.Blast.OneUserMinutes, 1e-6*r.Blast.OneUserMinutes):
			failed("user minutes")
		}
		sum, gray, most, least := 0, 0, 0, math.MaxInt
		for _, g := range c.Layout {
			sum, gray, most, least = sum+g.Cells, gray+g.Gray, max(most, g.Cells), min(least, g.Cells)
		}
		if sum != c.Serving || gray != 1 || most-least > 1 || len(c.Layout) != in.Regions || c.Total != sum+1 {
			failed("layout")
		}
		// By brute force: the fewest cells that a lost region leaves enough of.
		safe := 0
		for n := in.Regions; in.Regions > 1 && safe == 0; n++ {
			if largest := int(math.Ceil(float64(n) / float64(in.Regions))); carries(n - largest) {
				safe = n
			}
		}
		if (c.RegionSafe == nil) != (safe == 0) || safe > 0 && *c.RegionSafe != safe {
			failed("cells that survive a region")
		}
	}
}

// The cross-cell shares against draws of users and their peers.
func TestCrossSharesAgainstDraws(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(42, 0))
	const draws = 200_000
	for _, cells := range []int{2, 4, 5, 16} {
		in := Default()
		in.Cells, in.Peers = cells, 3
		pairs, some := 0, 0
		for range draws {
			home, crossed := rnd.IntN(cells), 0
			for range in.Peers {
				if rnd.IntN(cells) != home {
					crossed++
				}
			}
			pairs += crossed
			if crossed > 0 {
				some++
			}
		}
		r := Make(in)
		if got := 100 * float64(pairs) / float64(3*draws); !near(r.Cross.Pair, got, 0.5) || !near(r.Cross.Pair+r.Cross.ClosedLoop, 100, 1e-9) {
			t.Errorf("%d cells: pair %.2f %%, drawn %.2f", cells, r.Cross.Pair, got)
		}
		if got := 100 * float64(some) / draws; !near(r.Cross.Any, got, 0.5) {
			t.Errorf("%d cells: any of three %.2f %%, drawn %.2f", cells, r.Cross.Any, got)
		}
		if !near(r.RoundTrip.SerialMS, 3*r.RoundTrip.OnePeerMS, 1e-9) || !near(r.RoundTrip.OnePeerMS, r.Cross.Pair/100*2, 1e-9) {
			t.Errorf("%d cells: round trips %+v", cells, r.RoundTrip)
		}
	}
}

func TestMeasuredShare(t *testing.T) {
	t.Parallel()
	in := Default()
	in.Measured = &Measured{Cells: 4, Local: 700, Forwarded: 200, Messaged: 100}
	for cells, want := range map[int]float64{4: 30, 2: 30 * (1.0 / 2) / (3.0 / 4), 8: 30 * (7.0 / 8) / (3.0 / 4)} {
		in.Cells = cells
		if r := Make(in); !near(r.Cross.Pair, want, 1e-9) || r.Cross.Source != "measured" || !near(r.Cross.ClosedLoop, 100-want, 1e-9) {
			t.Errorf("%d cells: %+v, want %.2f %%", cells, r.Cross, want)
		}
	}
	in.Measured, in.Cells = &Measured{Cells: 2, Forwarded: 10}, 8
	if r := Make(in); r.Cross.Pair != 100 {
		t.Errorf("nothing stays, %.2f %% cross", r.Cross.Pair)
	}
	for _, m := range []Measured{{Cells: 4}, {Cells: 1, Local: 5}, {}} {
		in.Measured = &m
		var bad cellkit.Usage
		if err := in.Check(); !errors.As(err, &bad) {
			t.Errorf("%+v: %v, want Usage", m, err)
		}
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ line, want string }{
		{"--cells 3 --regions 3", "3 cells don't carry the load with one lost (125 %): 4 would"},
		{"--cells 2", "2 cells don't carry the load with one lost (250 %): 4 would"},
		{"--cells 2 --blast 0.25", "a lost cell hits 50.0 % of the users"},
		{"--cells 8 --rollout 2h", "can't be rolled out one after the other"},
		{"--cells 11", "above 10 cells"},
		{"--regions 1", "a lost region loses all"},
		{"--cells 4 --regions 2", "6 cells would"},
	} {
		_, r := given(t, tc.line)
		got := strings.Join(r.Warnings, "\n")
		if !strings.Contains(got, tc.want) {
			t.Errorf("plan %s warns %q, want %q", tc.line, got, tc.want)
		}
	}
	if _, r := given(t, "--cells 6"); len(r.Warnings) != 0 {
		t.Errorf("six cells for what three carry: %q", r.Warnings)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"qps", "cell-qps", "throttle", "users", "recovery", "blast", "rollout", "regions", "rtt", "peers", "cells", "data", "link"} {
		unit := map[string]string{"recovery": "s", "rollout": "s", "rtt": "s", "data": "TiB", "link": "MB/s"}[name]
		for _, v := range []string{"0" + unit, "-1" + unit, "some", ""} {
			if _, err := read("--" + name + "=" + v); err == nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("plan --%s=%s: %v, want one line", name, v, err)
			}
		}
	}
	for _, line := range []string{
		"--cells 1", "--cells 2.5", "--cells 1023", "--qps NaN", "--qps Inf", "--qps 1e30", "--cell-qps 1e-300", "--throttle 1.1", "--blast 1.5", "--blast 0.0001",
		"--regions 5", "--regions 5000000", "--users 3", "--rollout 9h", "--data 20XB", "--data 20MB/s", "--link 200MB", "--nosuch 1", "--recovery 15",
		"--data 9999999PiB", "--peers 99999999999999999999",
	} {
		if _, err := read(line); err == nil {
			t.Errorf("plan %s is taken", line)
		}
	}
	if _, err := read("--cells 1022"); err != nil {
		t.Errorf("1022 and a gray one: %v", err)
	}
}

func TestUnits(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in   string
		want Bytes
		out  string
	}{
		{"20TiB", 20 << 40, "20 TiB"}, {"20TB", 20 << 40, "20 TiB"}, {"1.5gib", 3 << 29, "1.5 GiB"}, {"1.5G", 3 << 29, "1.5 GiB"}, {"1e3MB", 1000 << 20, "1000 MiB"},
		{"4096", 4096, "4 KiB"}, {"7B", 7, "7 B"}, {"2PiB", 2 << 50, "2 PiB"}, {"1024PiB", 1 << 60, "1024 PiB"}, {"3kb", 3 << 10, "3 KiB"},
	} {
		if got, err := ParseBytes(tc.in); err != nil || got != tc.want || got.String() != tc.out {
			t.Errorf("ParseBytes(%q) = %v (%s), %v, want %s", tc.in, float64(got), got, err, tc.out)
		}
	}
	for _, bad := range []string{"", "TiB", "0TiB", "-1TiB", "1 TiB", "1iB", "1i", "1EiB", "1025PiB", "1.2.3GB", "0x10MB", "1_000MB", "NaNGB", "InfGB", "+1GB", "5TiBs", "1e400", "1KKB"} {
		if got, err := ParseBytes(bad); err == nil {
			t.Errorf("ParseBytes(%q) = %s", bad, got)
		}
	}
	for _, bad := range []string{"200MB", "MB/s", "200MB/h", "200MB/s/s"} {
		if got, err := ParseRate(bad); err == nil {
			t.Errorf("ParseRate(%q) = %s", bad, got)
		}
	}
}

// FuzzParseBytes: what is taken is a positive amount, and its text is read back
// as the same to the two digits shown.
func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"20TiB", "200MB", "1.5g", "-1B", "1e9", "0x1p4B", "9.99PiB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := ParseBytes(s)
		if err != nil {
			return
		}
		if !(b > 0) || b > largest {
			t.Fatalf("ParseBytes(%q) = %v", s, float64(b))
		}
		if again, err := ParseBytes(strings.ReplaceAll(b.String(), " ", "")); b >= 1 && (err != nil || !near(float64(again/b), 1, 0.01)) {
			t.Fatalf("%q reads as %v, again as %v, %v", s, b, again, err)
		}
	})
}

func TestWriteSaysItAll(t *testing.T) {
	t.Parallel()
	in, _ := given(t, "--qps 120000 --regions 3")
	in.Measured = &Measured{Cells: 4, Local: 900, Forwarded: 60, Messaged: 40, AgeMS: 2100}
	var out bytes.Buffer
	Make(in).Write(&out, in)
	for _, want := range []string{"6 at least, 7 with one to lose, 10 at most", "r3: 2 + 1 gray", "85.7 % with one lost, which takes 14.3 % spare", "of requests, one of 3 at least",
		"closed loop 90.00 % in 4 cells: 900 local, 60 forwarded, 40 messaged, 2s ago", "58.25 h", "verdict", "8 and more:", "9 cells would"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
