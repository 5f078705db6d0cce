package drill

import (
	"context"
	"fmt"
	"slices"
	"time"

	"example.com/cellmart/cmd/cellctl/load"
)

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
