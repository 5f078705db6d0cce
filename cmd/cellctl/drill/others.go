package drill

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"example.com/cellmart/cmd/cellctl/load"
)

const (
	othersRate = 60.0 // requests per second of everybody
	// recovery is what a cell's users may still be refused for after its database
	// is there again: connections are made anew with a backoff of at most 2 s.
	recovery = 10 * time.Second
)

func (r *run) rate() float64 {
	if r.Short {
		return shortRate
	}
	return othersRate
}

// dbDown stops a cell's Postgres under load: only its users are refused, and with
// 503; it recovers by itself.
func dbDown(ctx context.Context, r *run) error {
	before, outage, after := 10*time.Second, 20*time.Second, 20*time.Second
	if r.Short {
		before, outage, after = 3*time.Second, 5*time.Second, recovery+time.Second
	}
	if r.Short && r.Sabotage {
		after = time.Second
	}
	parts := []string{r.Cell + "/postgres"}
	if r.Sabotage {
		parts = append(parts, r.other()+"/postgres")
		r.event("sabotage: %s stops with %s", parts[1], parts[0])
	}
	if err := r.begin(ctx, r.rate(), r.othersDoors(true)); err != nil {
		return err
	}
	if err := pause(ctx, before); err != nil {
		return err
	}
	down := r.load.Now()
	start := func(ctx context.Context) error {
		for _, part := range parts {
			if err := r.System.Start(ctx, part); err != nil {
				return err
			}
		}
		return nil
	}
	r.after(start)
	for _, part := range parts {
		if err := r.System.Stop(ctx, part, false); err != nil {
			return err
		}
	}
	r.event("%s is stopped", parts[0])
	if err := pause(ctx, outage); err != nil {
		return err
	}
	if err := start(ctx); err != nil {
		return err
	}
	r.undo = r.undo[:len(r.undo)-1]
	up := r.event("%s was started and is ready", parts[0])
	if err := pause(ctx, after); err != nil {
		return err
	}
	r.end()
	r.judgeDown(r.load.Samples(), down, up)
	return nil
}

func (r *run) judgeDown(all []load.Sample, down, up time.Duration) {
	others, errors, missing := r.survivors(all)
	requests, served, refused, wrong, late := 0, 0, 0, 0, 0
	hurt, last := map[int]bool{}, time.Duration(0)
	for _, x := range all {
		if x.Home != r.broken {
			continue
		}
		if !x.OK {
			last = max(last, x.End())
			if x.At >= up+recovery {
				late++
			}
		}
		if x.At < down || x.At >= up {
			if !x.OK && x.End() < down {
				wrong++
			}
			continue
		}
		requests++
		switch {
		case x.OK:
			served++
		case x.Status == http.StatusServiceUnavailable:
			refused++
			hurt[x.User] = true
		default:
			wrong++
		}
	}
	p99 := func(during bool) float64 {
		return load.MS(load.Percentile(load.Took(all, func(x load.Sample) bool {
			return x.Home != r.broken && (during && x.At >= down && x.At < up || !during && x.At < down)
		}), 99))
	}
	f := r.report.Figures
	f["others_requests"], f["others_errors"] = others, errors
	f["others_p99_before_ms"], f["others_p99_during_ms"] = p99(false), p99(true)
	f["victims_requests"], f["victims_served"], f["victims_refused"], f["victims_other_errors"] = requests, served, refused, wrong
	f["recovered_ms"] = max(0, (last - up).Milliseconds())
	r.need(errors == 0, "%d of %d requests of others failed%s", errors, others, r.examples(false))
	r.need(len(missing) == 0, "others had no request of the kinds %v", missing)
	r.need(refused > 0, "not one request of %s's users was refused: nothing was stopped", r.Cell)
	r.need(wrong == 0, "%d requests of %s's users failed with something else than 503, or before the stop%s", wrong, r.Cell, r.examples(true))
	r.need(late == 0, "%d requests of %s's users failed later than %s after the database was ready", late, r.Cell, recovery)
}

// instance kills one of two instances of a cell's order service, in turn: nobody
// gets an error.
func instance(ctx context.Context, r *run) error {
	rounds, calm := 4, 5*time.Second
	if r.Short {
		rounds, calm = 2, 3*time.Second
	}
	if r.Short && r.Sabotage {
		rounds = 1
	}
	service := r.Cell + "/order"
	names := []string{service}
	if r.Sabotage {
		r.event("sabotage: no second instance of %s is started", service)
	} else {
		second, err := r.System.AddInstance(ctx, service)
		if err != nil {
			return err
		}
		r.after(func(ctx context.Context) error { return r.System.RemoveInstance(ctx, second) })
		r.event("%s is a second instance of %s", second, service)
		names = append(names, second)
	}
	if err := r.begin(ctx, r.rate(), nil); err != nil {
		return err
	}
	if err := pause(ctx, calm); err != nil {
		return err
	}
	var dead []span
	for n := range rounds {
		victim := names[n%len(names)]
		at := r.load.Now()
		r.after(func(ctx context.Context) error { return r.System.Start(ctx, victim) })
		if err := r.System.Stop(ctx, victim, true); err != nil {
			return err
		}
		r.event("%s is killed", victim)
		if err := pause(ctx, calm); err != nil {
			return err
		}
		if err := r.System.Start(ctx, victim); err != nil {
			return err
		}
		r.undo = r.undo[:len(r.undo)-1]
		dead = append(dead, span{at, r.event("%s runs again", victim)})
		if err := pause(ctx, calm); err != nil { // so that gateways have it in again, before the other one goes
			return err
		}
	}
	r.end()
	r.judgeInstance(r.load.Samples(), dead)
	return nil
}

func (r *run) judgeInstance(all []load.Sample, dead []span) {
	errors, while, ofService := 0, 0, 0
	for _, x := range all {
		if !x.OK {
			errors++
		}
		if within(dead, x.At) {
			while++
			if x.Home == r.broken && (x.Kind == load.Order || x.Kind == load.Cart) {
				ofService++
			}
		}
	}
	p99 := func(killed bool) float64 {
		return load.MS(load.Percentile(load.Took(all, func(x load.Sample) bool { return x.Home == r.broken && within(dead, x.At) == killed }), 99))
	}
	f := r.report.Figures
	f["requests"], f["errors"], f["kills"] = len(all), errors, len(dead)
	f["requests_while_dead"], f["requests_of_service_while_dead"] = while, ofService
	f["cell_p99_with_two_ms"], f["cell_p99_with_one_ms"] = p99(false), p99(true)
	r.need(errors == 0, "%d of %d requests failed%s", errors, len(all), r.examples(false)+r.examples(true))
	r.need(ofService > 0, "no request for %s's order service while an instance was dead: nothing was tried", r.Cell)
}

// examples quotes the first errors of the broken cell's users, or of the others.
func (r *run) examples(broken bool) string {
	var out []string
	for home := range r.homes {
		if (home == r.broken) == broken {
			out = append(out, r.load.Errors(home)...)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return fmt.Sprintf(": %s", strings.Join(out[:min(3, len(out))], "; "))
}

const (
	soakFor = 10 * time.Minute
	// growth is how much more memory than in the second quarter all parts together
	// may use in the last one: caches, pools and databases have filled by then.
	growth = 1.25
)

// soak is the usual load for long, at the memory that is stated: nothing ends,
// nothing fails, and no part needs more and more.
func soak(ctx context.Context, r *run) error {
	last, every := soakFor, 15*time.Second
	if r.Short {
		last, every = 12*time.Second, 2*time.Second
	}
	if err := r.begin(ctx, r.rate(), nil); err != nil {
		return err
	}
	var seen [][]Part
	killed := !r.Sabotage
	for end := r.load.Now() + last; ; {
		parts, err := r.System.Parts(ctx)
		if err != nil {
			return fmt.Errorf("measuring: %w", err)
		}
		seen = append(seen, parts)
		if killed && r.load.Now() >= end { // a look may take longer than the rest
			break
		}
		if !killed && r.load.Now() >= end-last/2 {
			killed = true
			if err := r.killRedis(ctx); err != nil {
				return err
			}
		}
		if err := pause(ctx, min(every, end-r.load.Now())); err != nil {
			return err
		}
	}
	r.event("end")
	r.end()
	r.judgeSoak(r.load.Samples(), seen)
	return nil
}

func (r *run) killRedis(ctx context.Context) error {
	redis := r.Cell + "/redis"
	r.after(func(ctx context.Context) error { return r.System.Start(ctx, redis) })
	if err := r.System.Stop(ctx, redis, true); err != nil {
		return fmt.Errorf("sabotage: %w", err)
	}
	if err := r.System.Start(ctx, redis); err != nil {
		return fmt.Errorf("sabotage: %w", err)
	}
	r.undo = r.undo[:len(r.undo)-1]
	r.event("sabotage: %s was killed and started again", redis)
	return nil
}

// judgeSoak has the load's samples, and the parts as they were seen in turn.
func (r *run) judgeSoak(all []load.Sample, seen [][]Part) {
	errors := 0
	for _, x := range all {
		if !x.OK {
			errors++
		}
	}
	restarts, most, fullest := 0, 0.0, ""
	first, total := map[string]string{}, make([]float64, len(seen))
	for i, parts := range seen {
		for _, p := range parts {
			if _, known := first[p.Name]; !known && i == 0 {
				first[p.Name] = p.Started
			}
			if !p.Alive || p.Started != first[p.Name] {
				restarts++
				r.fail("%s ended or was started again", p.Name)
				first[p.Name] = p.Started // is said once
			}
			total[i] += float64(p.Memory)
			if share := float64(p.Memory) / float64(max(1, p.Limit)); share > most {
				most, fullest = share, p.Name
			}
			r.need(p.Memory <= p.Limit, "%s has %d MB, its limit is %d", p.Name, p.Memory>>20, p.Limit>>20)
		}
		r.need(len(parts) == len(seen[0]), "%d parts were there at first, %d at look %d", len(seen[0]), len(parts), i+1)
	}
	quarter := len(total) / 4
	mean := func(part []float64) (sum float64) {
		for _, x := range part {
			sum += x / float64(len(part))
		}
		return sum
	}
	grown := 0.0
	if early := mean(total[quarter : 2*quarter]); early > 0 {
		grown = mean(total[len(total)-quarter:]) / early
	}
	f := r.report.Figures
	f["requests"], f["errors"], f["restarts"], f["parts"], f["looks"] = len(all), errors, restarts, len(first), len(seen)
	f["p99_ms"] = load.MS(load.Percentile(load.Took(all, func(load.Sample) bool { return true }), 99))
	f["memory_most_mb"], f["memory_growth"] = round(slices.Max(total)/(1<<20)), round(grown)
	f["fullest"], f["fullest_share"] = fullest, round(most)
	r.need(errors == 0, "%d of %d requests failed%s", errors, len(all), r.examples(false)+r.examples(true))
	r.need(len(first) > 0 && len(all) > 0 && slices.Min(total) > 0, "nothing ran, or no memory was measured")
	r.need(r.Short || grown > 0 && grown <= growth, "memory grew %.2f times between the second and the last quarter, %.2f is allowed", grown, growth)
}

func round(x float64) float64 { return math.Round(x*10000) / 10000 }
