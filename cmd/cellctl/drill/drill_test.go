package drill

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/cellmart/cmd/cellctl/load"
)

const ms = time.Millisecond

// ideal is what a drill of 4 cells should see: from second 0 to 10 plugged, cut at
// 10, unplugged from 12 to 22, each home 20 requests a second, the third cell's
// requests that need a home refused while it is cut.
func ideal() ([]load.Sample, spans) {
	s := spans{
		plugged:   []span{{0, 10 * time.Second}},
		first:     []span{{10 * time.Second, 12 * time.Second}},
		unplugged: []span{{12 * time.Second, 22 * time.Second}},
	}
	mix := []load.Kind{load.Browse, load.Cart, load.Order, load.Transfer, load.Deposit, load.Lists}
	var all []load.Sample
	for n := range 22 * 20 {
		at := time.Duration(n) * 50 * ms
		for home := range 4 {
			x := load.Sample{At: at, Took: 10 * ms, Kind: mix[n%len(mix)], Home: home, User: n % 5, Status: 200, OK: true}
			if home == 2 && at >= 10*time.Second && x.Kind.OfUser() {
				x.OK, x.Status = false, 503
			}
			all = append(all, x)
		}
	}
	return all, s
}

func judged(all []load.Sample, s ...spans) *Report {
	r := &run{
		Options: Options{Cell: "c3"}, homes: []string{"c1", "c2", "c3", "c4"}, broken: 2, load: &load.Load{},
		report: &Report{Figures: map[string]any{}},
	}
	r.judgeUnplug(all, s, plan{leastRequests: 1000, ratio: ratioGoal})
	return r.report
}

func TestLitmus(t *testing.T) {
	t.Parallel()
	all, s := ideal()
	r := judged(all, s)
	if len(r.Failed) > 0 {
		t.Errorf("the ideal fails: %v", r.Failed)
	}
	for name, want := range map[string]any{
		"survivors_requests": 1320, "survivors_errors": 0, "survivors_p99_before_ms": 10.0, "survivors_p99_during_ms": 10.0,
		"survivors_p99_ratio": 1.0, "survivors_p99_first_2s_ms": 10.0, "victims_requests": 240, "victims_served": 40, "victims_refused": 200,
		"victims_users_share": 0.25, "victims_requests_share": 0.25, "cell_requests_share": 0.25,
	} {
		if got := r.Figures[name]; got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
}

// Each judgement can fail, and says which.
func TestLitmusFails(t *testing.T) {
	t.Parallel()
	at := func(home int, from, to time.Duration, change func(*load.Sample)) func([]load.Sample) {
		return func(all []load.Sample) {
			for i := range all {
				if x := &all[i]; x.Home == home && x.At >= from && x.At < to {
					change(x)
				}
			}
		}
	}
	broken := func(x *load.Sample) { x.OK, x.Status = false, 503 }
	for name, tc := range map[string]struct {
		change func([]load.Sample)
		words  string
	}{
		"a survivor's error between the windows": {at(0, 11*time.Second, 11*time.Second+50*ms, broken), "1 of 1320 survivors"},
		"a survivor slower":                      {at(1, 12*time.Second, 22*time.Second, func(x *load.Sample) { x.Took = 13 * ms }), "1.30 times"},
		"a victim's error while plugged":         {at(2, time.Second, time.Second+50*ms, broken), "while it was plugged in"},
		"nobody hurt":                            {at(2, 0, time.Minute, func(x *load.Sample) { x.OK = true }), "nothing was unplugged"},
		"half of the victims' requests served": {func(all []load.Sample) {
			for i := range all {
				all[i].OK = all[i].OK || i%8 < 4
			}
		}, "requests that need a home"},
		"no deposits": {func(all []load.Sample) {
			for i := range all {
				if all[i].Kind == load.Deposit {
					all[i].Kind = load.Lists
				}
			}
		}, "deposit"},
	} {
		all, s := ideal()
		tc.change(all)
		if failed := strings.Join(judged(all, s).Failed, "\n"); !strings.Contains(failed, tc.words) {
			t.Errorf("%s: failed %q, want %q in it", name, failed, tc.words)
		}
	}
	all, s := ideal()
	if failed := strings.Join(judged(all[:100], s).Failed, "\n"); !strings.Contains(failed, "are needed") {
		t.Errorf("too few requests: %q", failed)
	}
}

// Windows count as their median: one window with the machine's noise in it says
// nothing.
func TestMedianOfWindows(t *testing.T) {
	t.Parallel()
	all, s := ideal()
	s.unplugged = []span{{12 * time.Second, 15 * time.Second}, {15 * time.Second, 18 * time.Second}, {18 * time.Second, 22 * time.Second}}
	for i := range all {
		if s.unplugged[1].has(all[i].At) && all[i].Home == 0 {
			all[i].Took = time.Second
		}
	}
	if r := judged(all, s); r.Figures["survivors_p99_ratio"] != 1.0 {
		t.Errorf("ratio %v with one noisy window of three, want 1", r.Figures["survivors_p99_ratio"])
	}
}

// Of two measurements the second one's p99 decides, the first one's is shown, and
// errors of either count.
func TestMeasuredTwice(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		slow []int // measurements in which the cut slows a survivor
		fail string
	}{
		"noise in the first": {[]int{0}, ""},
		"slower in both":     {[]int{0, 1}, "1.30 times; 1.25 is allowed"},
	} {
		all, s := ideal()
		s.unplugged = []span{{12 * time.Second, 17 * time.Second}}
		both := []spans{s, {plugged: s.plugged, unplugged: []span{{17 * time.Second, 22 * time.Second}}}}
		for i := range all {
			for _, n := range tc.slow {
				if all[i].Home == 1 && within(both[n].unplugged, all[i].At) {
					all[i].Took = 13 * ms
				}
			}
		}
		r := judged(all, both...)
		if got := strings.Join(r.Failed, "\n"); (got == "") != (tc.fail == "") || !strings.Contains(got, tc.fail) {
			t.Errorf("%s: failed %q, want %q in it", name, got, tc.fail)
		}
		if r.Figures["survivors_p99_ratio_first_measured"] != 1.3 {
			t.Errorf("%s: the first is not shown: %v", name, r.Figures)
		}
		all[12*4*20].OK = false // of the first cell, at second 12
		if got := strings.Join(judged(all, both...).Failed, "\n"); !strings.Contains(got, "1 of 1320 survivors' requests failed") {
			t.Errorf("%s: an error in the first measurement: failed %q", name, got)
		}
	}
}

// How many of a window's requests need a home is chance: what counts is that the
// cut-off cell's were refused, and no others.
func TestUnevenWindow(t *testing.T) {
	t.Parallel()
	all, s := ideal()
	for i := range all {
		if x := &all[i]; x.Home == 2 && x.At >= 12*time.Second && i%12 < 8 { // most of its requests need none
			x.Kind, x.OK, x.Status = load.Browse, true, 200
		}
	}
	r := judged(all, s)
	if share := r.Figures["victims_requests_share"].(float64); len(r.Failed) > 0 || share > 0.2 || share != r.Figures["cell_requests_share"] {
		t.Errorf("share %v, failed %v", share, r.Failed)
	}
}

func TestDatabaseDown(t *testing.T) {
	t.Parallel()
	judge := func(change func(*load.Sample)) string {
		all, _ := ideal() // refused from second 10 on
		for i := range all {
			if all[i].At >= 20*time.Second {
				all[i].OK, all[i].Status = true, 200
			}
			change(&all[i])
		}
		r := &run{Options: Options{Cell: "c3"}, homes: []string{"c1", "c2", "c3", "c4"}, broken: 2, load: &load.Load{}, report: &Report{Figures: map[string]any{}}}
		r.judgeDown(all, 10*time.Second, 11*time.Second)
		return strings.Join(r.report.Failed, "\n")
	}
	if failed := judge(func(*load.Sample) {}); failed != "" {
		t.Errorf("the ideal fails: %s", failed)
	}
	for name, tc := range map[string]struct {
		change func(*load.Sample)
		words  string
	}{
		"another cell's user": {func(x *load.Sample) {
			if x.Home == 1 && x.At == 10*time.Second {
				x.OK = false
			}
		}, "1 of 1320 requests of others"},
		"500 instead of 503": {func(x *load.Sample) {
			if x.Status == 503 {
				x.Status = 500
			}
		}, "something else than 503"},
		"no recovery": {func(x *load.Sample) {
			if x.Home == 2 && x.At >= 21*time.Second {
				x.OK = false
			}
		}, "after the database was ready"},
		"nobody hurt": {func(x *load.Sample) { x.OK = true }, "nothing was stopped"},
	} {
		if failed := judge(tc.change); !strings.Contains(failed, tc.words) {
			t.Errorf("%s: failed %q, want %q in it", name, failed, tc.words)
		}
	}
}

// Whatever leads past the border fails the drill, by name, with when it was seen;
// so does a look that sees nothing.
func TestBorder(t *testing.T) {
	t.Parallel()
	const where = "c1/catalog is connected to 127.0.0.1:302 of c3/redis"
	for name, tc := range map[string]struct {
		plugged, unplugged Border
		want               string
	}{
		"as it should be": {Border{Seen: 9}, Border{Seen: 9}, ""},
		"always":          {Border{9, []string{where}}, Border{9, []string{where}}, "past the border, plugged and unplugged: " + where},
		"only unplugged":  {Border{Seen: 9}, Border{9, []string{where}}, "past the border, unplugged: " + where},
		"nothing seen":    {Border{}, Border{}, "not one connection was seen: nothing was looked at"},
	} {
		r := &run{report: &Report{Figures: map[string]any{}}}
		for range 2 {
			r.border.add(tc.plugged, "plugged")
			r.border.add(tc.unplugged, "unplugged")
		}
		r.judgeBorder()
		if got := strings.Join(r.report.Failed, "\n"); got != tc.want {
			t.Errorf("%s: failed %q, want %q", name, got, tc.want)
		}
	}
}

// A soak fails on an error, a part that ended, a part over its limit, and memory
// that grows; each is named.
func TestSoak(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(all []load.Sample, seen [][]Part)
		want   string
	}{
		"as it should be": {func([]load.Sample, [][]Part) {}, ""},
		"an error":        {func(all []load.Sample, _ [][]Part) { all[0].OK = false }, "1 of 1 requests failed"},
		"a restart": {func(_ []load.Sample, seen [][]Part) {
			for i := 5; i < 8; i++ {
				seen[i][1].Started = "again"
			}
		}, "c1/redis ended or was started again"},
		"an end":         {func(_ []load.Sample, seen [][]Part) { seen[7][0].Alive = false }, "c1/order ended or was started again"},
		"over its limit": {func(_ []load.Sample, seen [][]Part) { seen[3][1].Memory = 129 << 20 }, "c1/redis has 129 MB, its limit is 128"},
		"a leak": {func(_ []load.Sample, seen [][]Part) {
			for i := range seen {
				seen[i][0].Memory = int64(10+10*i) << 20
			}
		}, "memory grew 2.00 times between the second and the last quarter, 1.25 is allowed"},
		"nothing measured": {func(_ []load.Sample, seen [][]Part) { seen[0][0].Memory, seen[0][1].Memory = 0, 0 }, "nothing ran, or no memory was measured"},
	} {
		all := []load.Sample{{OK: true, Took: ms}}
		var seen [][]Part
		for range 8 {
			seen = append(seen, []Part{{"c1/order", true, "1", 50 << 20, 192 << 20}, {"c1/redis", true, "2", 5 << 20, 128 << 20}})
		}
		tc.change(all, seen)
		r := &run{load: &load.Load{}, report: &Report{Figures: map[string]any{}}}
		r.judgeSoak(all, seen)
		if got := strings.Join(r.report.Failed, "\n"); got != tc.want {
			t.Errorf("%s: failed %q, want %q", name, got, tc.want)
		}
	}
}

// What was broken is mended in reverse, whatever fails, also when time is up.
func TestMend(t *testing.T) {
	t.Parallel()
	var order []int
	r := &run{}
	for i := range 3 {
		r.after(func(ctx context.Context) error {
			order = append(order, i)
			if ctx.Err() != nil {
				t.Error("mending with a context that is over")
			}
			if i == 2 {
				return errors.New("stuck")
			}
			return nil
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.mend(ctx); err == nil || len(order) != 3 || order[0] != 2 || order[2] != 0 {
		t.Errorf("mended %v, %v", order, err)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	all, usual := Names(false), Names(true)
	if len(all) != len(kinds()) || len(usual) != len(all)-1 || slices.Contains(usual, "soak") {
		t.Errorf("drills %v, usual %v", all, usual)
	}
	for _, k := range kinds() {
		if k.cell == "" || k.do == nil {
			t.Errorf("%s has no cell, or does nothing", k.name)
		}
	}
	for name, cell := range map[string]string{"unplug": "c3", "db-down": "c2", "instance": "c1", "route-push": "c3", "control-down-cold-start": "c2", "book": ""} {
		if got := DefaultCell(name); got != cell {
			t.Errorf("%s breaks %q, want %q", name, got, cell)
		}
	}
}
