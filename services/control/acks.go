package control

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/control/controlapi"
)

// acks keeps what the agents report of their zones, in memory: after a restart
// nothing is known until they report again, which they do each 5 s.
type acks struct {
	mu      sync.Mutex
	zones   map[string]report
	changed chan struct{} // closed by the next report
}

type report struct {
	controlapi.ZoneAcks
	at time.Time
}

func newAcks() *acks { return &acks{zones: map[string]report{}, changed: make(chan struct{})} }

// take keeps a zone's report instead of its last one.
func (a *acks) take(z controlapi.ZoneAcks) {
	slices.SortFunc(z.Processes, func(x, y controlapi.Ack) int { return cmp.Compare(x.Process, y.Process) })
	a.mu.Lock()
	defer a.mu.Unlock()
	a.zones[z.Zone] = report{z, time.Now()}
	close(a.changed)
	a.changed = make(chan struct{})
}

// wait gives the state once all zones of the table are done, or ctx ends.
func (a *acks) wait(ctx context.Context, t *routing.Table, version int64) controlapi.Acks {
	for {
		out, changed := a.state(t, version)
		if out.Complete {
			return out
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return out
		}
	}
}

// state says who holds at least the version, and gets the next change's channel.
func (a *acks) state(t *routing.Table, version int64) (controlapi.Acks, <-chan struct{}) {
	names := []string{routing.Global}
	for _, c := range t.Cells() {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	a.mu.Lock()
	defer a.mu.Unlock()
	out := controlapi.Acks{Version: version, Complete: true}
	for _, name := range names {
		r, ok := a.zones[name]
		z := controlapi.ZoneState{ZoneAcks: controlapi.ZoneAcks{Zone: name}}
		if ok {
			z = r.state(version)
		}
		out.Complete = out.Complete && z.Done
		out.Zones = append(out.Zones, z)
	}
	return out, a.changed
}

// state is the report as it looks now: everything in it is older by its age.
func (r report) state(version int64) controlapi.ZoneState {
	age := time.Since(r.at).Milliseconds()
	z := controlapi.ZoneState{ZoneAcks: r.ZoneAcks, AgeMS: &age}
	z.Processes = slices.Clone(r.Processes)
	z.ListeningMS += age
	z.Done = r.Version >= version && z.ListeningMS >= controlapi.Settled.Milliseconds()
	for i := range z.Processes {
		p := &z.Processes[i]
		p.AgeMS += age
		if p.BehindMS != nil {
			behind := *p.BehindMS + age
			p.BehindMS = &behind
		}
		z.Done = z.Done && p.Version >= version
	}
	return z
}
