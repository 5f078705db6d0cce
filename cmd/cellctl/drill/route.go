package drill

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"example.com/cellmart/cmd/cellctl/load"
	"example.com/cellmart/services/control/controlapi"
)

// ackLimit is how long any process may hold an older table than the published one
// once nothing is in its way.
const ackLimit = 30 * time.Second

// routePush publishes tables while a cell is unplugged and another one's broker
// is down: whoever isn't cut off acknowledges, the cut-off cell is shown as
// behind, and it catches up when it's plugged in.
func routePush(ctx context.Context, r *run) error {
	limit := ackLimit
	if r.Short && r.Sabotage {
		limit = 8 * time.Second
	}
	before, err := r.heldBy(ctx, 0, nil, "", ackLimit)
	if err != nil {
		return err
	}
	if bad := lacking(before, nil, ""); len(bad) > 0 {
		return fmt.Errorf("before anything is cut not everybody holds table %d: %s", before.Version, strings.Join(bad, "; "))
	}
	processes := 0
	for _, z := range before.Zones {
		processes += len(z.Processes)
	}
	r.report.Figures["processes"] = processes
	r.event("%d processes hold table %d", processes, before.Version)

	if r.Sabotage {
		frozen := r.other() + "/gateway"
		r.after(func(ctx context.Context) error { return r.System.Pause(ctx, frozen, false) })
		if err := r.System.Pause(ctx, frozen, true); err != nil {
			return fmt.Errorf("sabotage: %w", err)
		}
		r.event("sabotage: %s is frozen, and takes no table", frozen)
	}
	r.after(func(ctx context.Context) error { return r.System.Plug(ctx, r.Cell) })
	if err := r.System.Unplug(ctx, r.Cell); err != nil {
		return err
	}
	cut := time.Now()
	r.event("%s is unplugged", r.Cell)
	if ok, err := r.push(ctx, before, r.Cell, limit, "others_acked_ms"); err != nil || !ok {
		return err
	}
	if err := r.shown(ctx, cut); err != nil {
		return err
	}

	nats := r.other() + "/nats"
	r.after(func(ctx context.Context) error { return r.System.Start(ctx, nats) })
	if err := r.System.Stop(ctx, nats, true); err != nil {
		return err
	}
	r.event("%s is killed: nothing is pushed there", nats)
	if ok, err := r.push(ctx, before, r.Cell, limit, "without_push_acked_ms"); err != nil || !ok {
		return err
	}
	if err := r.System.Start(ctx, nats); err != nil {
		return err
	}
	r.undo = r.undo[:len(r.undo)-1]
	r.event("%s runs again", nats)

	if err := r.System.Plug(ctx, r.Cell); err != nil {
		return err
	}
	r.event("%s is plugged in again", r.Cell)
	_, err = r.acknowledged(ctx, 0, before, "", limit, "caught_up_ms")
	return err
}

// push publishes the table anew, with nothing changed but its version, and waits
// for those who aren't cut off.
func (r *run) push(ctx context.Context, before controlapi.Acks, but string, limit time.Duration, figure string) (bool, error) {
	now, err := r.Control.Acks(ctx, 0, 0)
	if err != nil {
		return false, err
	}
	p, err := r.Control.Publish(ctx, controlapi.PublishRequest{ExpectVersion: now.Version, Reason: "drill route-push", Changes: &controlapi.Changes{}})
	if err != nil {
		return false, err
	}
	r.event("table %d is published", p.Version)
	return r.acknowledged(ctx, p.Version, before, but, limit, figure)
}

// acknowledged waits until everybody but a cell holds the version, and judges it.
func (r *run) acknowledged(ctx context.Context, version int64, before controlapi.Acks, but string, limit time.Duration, figure string) (bool, error) {
	begun := time.Now()
	now, err := r.heldBy(ctx, version, &before, but, limit)
	if err != nil {
		return false, err
	}
	bad := lacking(now, &before, but)
	for _, b := range bad {
		r.fail("table %d, %s after: %s", now.Version, limit, b)
	}
	if len(bad) == 0 {
		r.report.Figures[figure] = time.Since(begun).Milliseconds()
		who := "everybody"
		if but != "" {
			who += " but " + but
		}
		r.event("%s holds table %d", who, now.Version)
	}
	return len(bad) == 0, nil
}

// heldBy asks control who holds a version (0 = the newest) until nobody but the
// given cell lacks it, or the limit is over.
func (r *run) heldBy(ctx context.Context, version int64, before *controlapi.Acks, but string, limit time.Duration) (controlapi.Acks, error) {
	for end := time.Now().Add(limit); ; {
		now, err := r.Control.Acks(ctx, version, 0)
		if err != nil || len(lacking(now, before, but)) == 0 || time.Now().After(end) {
			return now, err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return now, err
		}
	}
}

// lacking lists who doesn't hold the version, a cell left out; who was known
// before and isn't any more doesn't either.
func lacking(now controlapi.Acks, before *controlapi.Acks, but string) (out []string) {
	for _, z := range now.Zones {
		if z.Zone == but {
			continue
		}
		heard := map[string]bool{}
		for _, p := range z.Processes {
			heard[p.Process] = true
			if p.Version < now.Version {
				out = append(out, fmt.Sprintf("%s's %s holds table %d, heard %d ms ago", z.Zone, p.Process, p.Version, p.AgeMS))
			}
		}
		if before != nil {
			for _, b := range before.Zones {
				for _, p := range b.Processes {
					if b.Zone == z.Zone && !heard[p.Process] {
						out = append(out, fmt.Sprintf("%s's %s isn't heard of any more", z.Zone, p.Process))
					}
				}
			}
		}
		switch {
		case z.AgeMS == nil:
			out = append(out, z.Zone+" hasn't reported to control")
		case !z.Done && len(out) == 0:
			out = append(out, fmt.Sprintf("%s's agent holds table %d, and has listened for %d ms", z.Zone, z.Version, z.ListeningMS))
		}
	}
	return out
}

// shown judges how the cut-off cell looks: not done, with the age of what is known.
func (r *run) shown(ctx context.Context, cut time.Time) error {
	if err := pause(ctx, 2*time.Second); err != nil {
		return err
	}
	since := time.Since(cut).Milliseconds() // when asked: the answer may take a while
	now, err := r.Control.Acks(ctx, 0, 0)
	if err != nil {
		return err
	}
	for _, z := range now.Zones {
		if z.Zone != r.Cell {
			continue
		}
		if z.AgeMS != nil {
			r.report.Figures["cut_off_age_ms"] = *z.AgeMS
		}
		r.need(!now.Complete && !z.Done, "%s is unplugged and yet said to hold table %d", r.Cell, now.Version)
		if z.AgeMS != nil {
			r.need(*z.AgeMS >= since-1000, "what is known of %s is said to be %d ms old, it was cut off %d ms ago", r.Cell, *z.AgeMS, since)
		}
		r.event("%s is shown as behind", r.Cell)
	}
	return nil
}

// coldStart stops the whole global zone, then a whole cell, and starts the cell
// from nothing but its disks: it serves its users, and others' through its gateway.
func coldStart(ctx context.Context, r *run) error {
	before, after := 5*time.Second, 10*time.Second
	if r.Short {
		before = 3 * time.Second
	}
	var open atomic.Bool // the broken cell's gateway, to everybody
	narrow, all := r.othersDoors(true), make([]int, len(r.homes))
	for i := range all {
		all[i] = i
	}
	if err := r.begin(ctx, r.rate(), func(home int) []int {
		if open.Load() {
			return all
		}
		return narrow(home)
	}); err != nil {
		return err
	}
	if err := pause(ctx, before); err != nil {
		return err
	}
	global := r.load.Now()
	if _, err := r.stopZone(ctx, "global"); err != nil {
		return err
	}
	r.event("the global zone is dead: control, idgen, search, catalog, agent, stores")
	if err := pause(ctx, before); err != nil {
		return err
	}
	dead := r.load.Now()
	parts, err := r.stopZone(ctx, r.Cell)
	if err != nil {
		return err
	}
	r.event("%s is dead too, all of it", r.Cell)
	if err := pause(ctx, 2*time.Second); err != nil {
		return err
	}
	from := time.Now()
	if err := r.startAll(ctx, parts); err != nil {
		return err
	}
	r.undo = r.undo[:len(r.undo)-1]
	r.report.Figures["cold_start_ms"] = time.Since(from).Milliseconds()
	up := r.event("%s was started cold, and is ready", r.Cell)
	if r.Sabotage {
		undo, err := r.System.Share(ctx, "agent", r.Cell, "global")
		r.after(undo)
		if err != nil {
			return fmt.Errorf("sabotage: %w", err)
		}
		up = r.event("sabotage: %s's gateway goes out through the global zone's agent", r.Cell)
	}
	if err := pause(ctx, recovery); err != nil {
		return err
	}
	open.Store(true)
	if err := pause(ctx, after); err != nil {
		return err
	}
	r.event("end")
	r.end()
	r.judgeColdStart(r.load.Samples(), global, dead, up+recovery)
	return nil
}

// judgeColdStart: from a time on the cell's users are served as ever, also what
// needs new IDs, and nobody else has had an error at any time. What the dead
// global zone does itself, which is searching, nobody gets.
func (r *run) judgeColdStart(all []load.Sample, global, dead, up time.Duration) {
	others, errors, failed := 0, 0, 0
	var examples []string // the load quotes first errors, which are of searches
	note := func(x load.Sample) {
		if len(examples) < 3 {
			examples = append(examples, fmt.Sprintf("%s of %s at %s: status %d", x.Kind, r.homes[x.Home], x.At.Round(time.Millisecond), x.Status))
		}
	}
	served, refused := map[load.Kind]int{}, map[load.Kind]int{}
	for _, x := range all {
		switch {
		case x.Kind == load.Search && x.End() >= global:
		case x.Home != r.broken || x.End() < dead: // while the cell lives its users are like all others
			others++
			if !x.OK {
				errors++
				note(x)
			}
		case x.At >= up && x.OK:
			served[x.Kind]++
		case x.At >= up:
			refused[x.Kind]++
			failed++
			note(x)
		}
	}
	f := r.report.Figures
	f["others_requests"], f["others_errors"] = others, errors
	f["failed_after_start"] = failed
	for _, k := range load.Kinds(false) {
		f["served_"+k.String()], f["refused_"+k.String()] = served[k], refused[k]
		r.need(served[k] > 0, "%s's users were served no %s after its cold start", r.Cell, k)
	}
	r.need(errors == 0, "%d of %d requests of others failed: %s", errors, others, strings.Join(examples, "; "))
	r.need(failed == 0, "%d requests of %s's users failed after its cold start: %s", failed, r.Cell, strings.Join(examples, "; "))
}

// stopZone kills all parts of a zone, its agent first, so that the others see the
// links go; Postgres is asked, as its children must end too. It gives the parts in
// the order in which they start, and remembers to start them.
func (r *run) stopZone(ctx context.Context, zone string) ([]string, error) {
	all, err := r.System.Parts(ctx)
	if err != nil {
		return nil, err
	}
	var parts []string
	for _, p := range all {
		rest, ok := strings.CutPrefix(p.Name, zone)
		if ok && rest != "" && (rest[0] == '/' || rest[0] == '-') {
			parts = append(parts, zone+"/"+rest[1:])
		}
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("%s has no parts", zone)
	}
	slices.SortStableFunc(parts, func(a, b string) int { return startOrder(a) - startOrder(b) })
	r.after(func(ctx context.Context) error { return r.startAll(ctx, parts) })
	stop := slices.Clone(parts)
	slices.SortStableFunc(stop, func(a, b string) int { return stopOrder(a) - stopOrder(b) })
	for _, p := range stop {
		if err := r.System.Stop(ctx, p, !strings.HasSuffix(p, "postgres")); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

func startOrder(part string) int {
	for i, store := range []string{"postgres", "redis", "nats", "agent"} {
		if strings.HasSuffix(part, store) {
			return i
		}
	}
	return 9
}

func stopOrder(part string) int {
	if strings.HasSuffix(part, "/agent") {
		return -1
	}
	return -startOrder(part) + 20
}

func (r *run) startAll(ctx context.Context, parts []string) error {
	for _, p := range parts {
		if err := r.System.Start(ctx, p); err != nil {
			return err
		}
	}
	return nil
}
