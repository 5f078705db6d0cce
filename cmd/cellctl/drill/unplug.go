package drill

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"example.com/cellmart/cmd/cellctl/load"
)

// What the litmus demands, and how it's measured.
const (
	survivorsRate = 60.0 // requests per second of those who must not notice: 80 with the broken cell's, of four
	shortRate     = 40.0 // in the short form: tests run on machines that do other things as well
	ratioGoal     = 1.25 // of the medians of the windows' p99
	ratioShort    = 3.0  // in the short form a window's p99 is one or two requests
	firstWhile    = 2 * time.Second
	tolerance     = 0.02 // of a share of requests; a share of users is exact
	calmMost      = time.Minute
)

// span is a part of the load's time.
type span struct{ from, to time.Duration }

func (s span) has(at time.Duration) bool { return s.from <= at && at < s.to }

// spans are the windows of an unplug drill.
type spans struct {
	plugged   []span // nothing is cut, nothing of the last cut is left
	first     []span // the first two seconds after each cut
	unplugged []span // the rest of each cut
}

func within(all []span, at time.Duration) bool {
	for _, s := range all {
		if s.has(at) {
			return true
		}
	}
	return false
}

// plan of the windows: how many of each kind, and how long.
type plan struct {
	rate          float64 // of the survivors
	windows       int
	window        time.Duration
	warm          time.Duration
	leastRequests int
	ratio         float64
}

func unplugPlan(short, sabotage bool) plan {
	switch {
	case short && sabotage: // its errors show in the first window
		return plan{rate: shortRate, windows: 1, window: 3 * time.Second, warm: time.Second, leastRequests: 200, ratio: ratioShort}
	case short:
		return plan{rate: shortRate, windows: 2, window: 3 * time.Second, warm: 2 * time.Second, leastRequests: 500, ratio: ratioShort}
	}
	return plan{rate: survivorsRate, windows: 5, window: 10 * time.Second, warm: 5 * time.Second, leastRequests: 5000, ratio: ratioGoal}
}

func unplug(ctx context.Context, r *run) error {
	p := unplugPlan(r.Short, r.Sabotage)
	if r.Sabotage {
		what := cmp.Or(r.Kind, Kinds("unplug")[0])
		undo, err := r.System.Share(ctx, what, r.other(), r.Cell)
		if err != nil {
			return fmt.Errorf("sabotage: %w", err)
		}
		r.after(undo)
		r.event("sabotage: %s uses %s's %s", r.other(), r.Cell, what)
	}
	n := float64(len(r.homes))
	if err := r.begin(ctx, p.rate*n/(n-1), r.othersDoors(false)); err != nil {
		return err
	}
	if err := r.settled(ctx, p.warm, calmMost); err != nil {
		return err
	}
	r.after(func(ctx context.Context) error { return r.System.Plug(ctx, r.Cell) })
	first, err := r.windows(ctx, p)
	if err != nil {
		return err
	}
	all := []spans{first}
	// A p99 is also the machine's. Nothing else is measured a second time.
	if m := r.slower(r.load.Samples(), first); m.ratio > p.ratio && r.unharmed(r.load.Samples()) && len(r.border.foreign) == 0 {
		r.event("the survivors' p99 went from %.1f to %.1f ms, %.2f times, %.2f is allowed: measured a second time, which decides", load.MS(m.before), load.MS(m.during), m.ratio, p.ratio)
		second, err := r.windows(ctx, p)
		if err != nil {
			return err
		}
		all = append(all, second)
	}
	r.end()
	r.judgeUnplug(r.load.Samples(), all, p)
	r.judgeBorder()
	return nil
}

// windows measures once: plugged and unplugged in turn.
func (r *run) windows(ctx context.Context, p plan) (s spans, err error) {
	for w := range p.windows {
		from := r.event("window %d of %d, plugged", w+1, p.windows)
		if err := pause(ctx, p.window); err != nil {
			return s, err
		}
		cut := r.load.Now()
		s.plugged = append(s.plugged, span{from, cut})
		if err := r.look(ctx, "plugged"); err != nil { // between two windows: it costs time too
			return s, err
		}
		cut = r.load.Now()
		if err := r.System.Unplug(ctx, r.Cell); err != nil {
			return s, err
		}
		r.event("%s is unplugged", r.Cell)
		s.first = append(s.first, span{cut, cut + firstWhile})
		if err := pause(ctx, firstWhile+p.window); err != nil {
			return s, err
		}
		plug := r.load.Now()
		s.unplugged = append(s.unplugged, span{cut + firstWhile, plug})
		if err := r.look(ctx, "unplugged"); err != nil {
			return s, err
		}
		if err := r.System.Plug(ctx, r.Cell); err != nil {
			return s, err
		}
		r.event("%s is plugged in again", r.Cell)
		if err := r.settled(ctx, firstWhile, calmMost); err != nil {
			return s, err
		}
	}
	return s, nil
}

// looks are what was seen at the border, plugged and unplugged.
type looks struct {
	times, seen int
	foreign     map[string][]string // when each was seen
}

// look is for dependencies that no figure shows: a cache that is asked for 50 ms
// at most, and rarely when it's away, may well be another cell's.
func (r *run) look(ctx context.Context, when string) error {
	b, err := r.System.Border(ctx)
	if err != nil {
		return fmt.Errorf("looking at the border: %w", err)
	}
	r.border.add(b, when)
	return nil
}

func (l *looks) add(b Border, when string) {
	if l.foreign == nil {
		l.foreign = map[string][]string{}
	}
	l.times++
	l.seen += b.Seen
	for _, f := range b.Foreign {
		if !slices.Contains(l.foreign[f], when) {
			l.foreign[f] = append(l.foreign[f], when)
		}
	}
}

func (r *run) judgeBorder() {
	f := r.report.Figures
	f["border_looks"], f["border_seen"], f["border_foreign"] = r.border.times, r.border.seen, len(r.border.foreign)
	r.need(r.border.times > 0 && r.border.seen > 0, "not one connection was seen: nothing was looked at")
	for _, what := range slices.Sorted(maps.Keys(r.border.foreign)) {
		r.fail("past the border, %s: %s", strings.Join(r.border.foreign[what], " and "), what)
	}
}

// slow is what a cut does to the survivors' p99: medians of the windows', and their
// ratio.
type slow struct {
	before, during time.Duration
	ratio          float64
}

func (r *run) slower(all []load.Sample, s spans) (m slow) {
	p99 := func(in []span) time.Duration {
		var each []time.Duration
		for _, w := range in {
			each = append(each, load.Percentile(load.Took(all, func(x load.Sample) bool { return x.Home != r.broken && w.has(x.At) }), 99))
		}
		return load.Median(each)
	}
	m.before, m.during = p99(s.plugged), p99(s.unplugged)
	if m.before > 0 {
		m.ratio = float64(m.during) / float64(m.before)
	}
	return m
}

// unharmed says that no survivor has had an error so far.
func (r *run) unharmed(all []load.Sample) bool {
	_, errors, _ := r.survivors(all)
	return errors == 0
}

// judgeUnplug makes the figures and says what doesn't hold. Of several measurements
// the last one's p99 decides; everything else is of all of them.
func (r *run) judgeUnplug(all []load.Sample, measured []spans, p plan) {
	survivors, errors, missing := r.survivors(all)
	f := r.report.Figures
	var s spans
	for _, m := range measured {
		s = spans{append(s.plugged, m.plugged...), append(s.first, m.first...), append(s.unplugged, m.unplugged...)}
	}
	m := r.slower(all, measured[len(measured)-1])
	if len(measured) > 1 {
		f["survivors_p99_ratio_first_measured"] = round(r.slower(all, measured[0]).ratio)
	}
	first := load.Percentile(load.Took(all, func(x load.Sample) bool { return x.Home != r.broken && within(s.first, x.At) }), 99)
	v := r.victims(all, s)
	f["survivors_requests"], f["survivors_errors"] = survivors, errors
	f["survivors_p99_before_ms"], f["survivors_p99_during_ms"] = load.MS(m.before), load.MS(m.during)
	f["survivors_p99_ratio"], f["survivors_p99_first_2s_ms"] = round(m.ratio), load.MS(first)
	f["victims_requests"], f["victims_served"], f["victims_refused"] = v.requests, v.served, v.refused
	f["victims_users_share"], f["victims_requests_share"], f["cell_share"], f["cell_requests_share"] = round(v.users), round(v.hurt), round(v.want), round(v.asked)
	f["victims_errors_plugged"] = v.wronged
	r.need(survivors >= p.leastRequests, "only %d survivors' requests, %d are needed", survivors, p.leastRequests)
	r.need(errors == 0, "%d of %d survivors' requests failed%s", errors, survivors, r.examples(false))
	r.need(len(missing) == 0, "survivors had no request of the kinds %v", missing)
	r.need(m.before > 0 && m.ratio <= p.ratio, "the survivors' p99 went from %.1f to %.1f ms, %.2f times; %.2f is allowed", load.MS(m.before), load.MS(m.during), m.ratio, p.ratio)
	r.need(v.refused > 0, "not one request of %s's users was refused: nothing was unplugged", r.Cell)
	r.need(v.users == v.want, "%.4f of the users were hurt, %s has %.4f of them", v.users, r.Cell, v.want)
	r.need(v.hurt >= v.asked-tolerance && v.hurt <= v.asked+tolerance,
		"%.4f of the requests that need a home were hurt, %s has %.4f of them (tolerance %g)", v.hurt, r.Cell, v.asked, tolerance)
	r.need(v.wronged == 0, "%d requests of %s's users failed while it was plugged in%s", v.wronged, r.Cell, r.examples(true))
}

// survivors counts the requests of everybody else, over the whole drill.
func (r *run) survivors(all []load.Sample) (requests, errors int, missing []string) {
	seen := map[string]bool{}
	for _, x := range all {
		if x.Home == r.broken {
			continue
		}
		requests++
		seen[x.Kind.String()] = true
		if !x.OK {
			errors++
		}
	}
	for _, k := range load.Kinds(r.load.Searches()) {
		if !seen[k.String()] {
			missing = append(missing, k.String())
		}
	}
	return requests, errors, missing
}

// victims is what happened to the broken cell's users while it was broken.
type victims struct {
	requests, served, refused int
	users                     float64 // hurt, of all users
	hurt                      float64 // of all requests that need a home, once the cut is known
	asked                     float64 // the cell's share of those requests: a window has no whole rounds
	want                      float64 // the cell's share of users
	wronged                   int     // failed with the cell plugged in
}

func (r *run) victims(all []load.Sample, s spans) victims {
	type who struct{ home, user int }
	users, hurt := map[who]bool{}, map[who]bool{}
	asked, own, refused := 0, 0, 0
	v := victims{want: 1 / float64(len(r.homes))} // every home has as many users
	for _, x := range all {
		id := who{x.Home, x.User}
		users[id] = true
		down := within(s.unplugged, x.At)
		cut := down || within(s.first, x.At)
		if cut && !x.OK {
			hurt[id] = true
		}
		if down && x.Kind.OfUser() {
			asked++
			if x.Home == r.broken {
				own++
			}
			if !x.OK {
				refused++
			}
		}
		if x.Home != r.broken {
			continue
		}
		switch {
		case cut && x.OK:
			v.requests, v.served = v.requests+1, v.served+1
		case cut:
			v.requests, v.refused = v.requests+1, v.refused+1
		case !x.OK && within(s.plugged, x.At) && within(s.plugged, x.End()): // whole, before the next cut
			v.wronged++
		}
	}
	if len(users) > 0 {
		v.users = float64(len(hurt)) / float64(len(users))
	}
	if asked > 0 {
		v.hurt, v.asked = float64(refused)/float64(asked), float64(own)/float64(asked)
	}
	return v
}
