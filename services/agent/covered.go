package agent

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

const (
	coverEach  = time.Second
	coverLimit = 2 * time.Second // for an answer
	coverFresh = 5 * time.Second // an older answer is nothing to rely on
	coverLag   = time.Minute     // a standby that is further behind covers nothing
)

// cover knows which of this cell's slots have a standby that is in sync: it asks
// the standbys' agents, each second.
type cover struct {
	cell  string
	table func() *routing.Table // nil before the first one
	here  func(context.Context) (agentapi.Here, error)
	ask   map[string]func(context.Context) (agentapi.Standbys, error)
	now   func() time.Time

	mu      sync.Mutex
	answers map[string]answer
}

// answer is what a standby said, and the state of the own database just before.
type answer struct {
	source agentapi.StandbySource
	found  bool // it knows this cell at all
	here   agentapi.Here
	at     time.Time // zero = it never answered
	err    string    // why it didn't, the last time
}

func newCover(c Config, k *keeper) *cover {
	v := &cover{
		cell: c.Zone, here: k.db.here, now: time.Now,
		ask: map[string]func(context.Context) (agentapi.Standbys, error){}, answers: map[string]answer{},
		table: func() *routing.Table {
			t, _ := k.held()
			return t
		},
	}
	dialer := link.Dialer{Addr: c.LinkAddr}
	for zone := range c.Peers {
		if zone != Global {
			way := &http.Transport{DialContext: dialer.DialContext(zone, "agent"), MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}
			v.ask[zone] = (&agentapi.Client{BaseURL: "http://" + zone, HTTP: &http.Client{Transport: way}}).StandbyLately
		}
	}
	return v
}

// run asks until ctx ends.
func (v *cover) run(ctx context.Context) error {
	tick := time.NewTicker(coverEach)
	defer tick.Stop()
	for {
		v.once(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// once asks every cell that the table names as standby of a slot of this one.
func (v *cover) once(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, coverLimit)
	defer cancel()
	here, hereErr := v.here(ctx)
	var all sync.WaitGroup
	for zone := range v.standsBy() {
		all.Go(func() {
			var said agentapi.Standbys
			err := hereErr
			if ask := v.ask[zone]; err == nil && ask != nil {
				said, err = ask(ctx)
			} else if err == nil {
				err = link.ErrNoTarget
			}
			v.note(zone, here, said, err)
		})
	}
	all.Wait()
}

func (v *cover) note(zone string, here agentapi.Here, said agentapi.Standbys, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		a := v.answers[zone] // what it said last stays, and grows old
		a.err = err.Error()
		v.answers[zone] = a
		return
	}
	a := answer{here: here, at: v.now()}
	for _, s := range said.Sources {
		if s.Source == v.cell {
			a.source, a.found = s, true
		}
	}
	v.answers[zone] = a
}

// ownSlots lists the slots of this cell.
func ownSlots(t *routing.Table, cell string) []routing.Slot {
	out := t.SlotsOf(cell)
	for _, s := range t.PrivateSlots() {
		if a, _ := t.Slot(s); a.Owner == cell {
			out = append(out, s)
		}
	}
	return out
}

// standsBy counts the own slots by standby; "" = none.
func (v *cover) standsBy() map[string]int {
	out := map[string]int{}
	t := v.table()
	if t == nil {
		return out
	}
	for _, s := range ownSlots(t, v.cell) {
		if a, _ := t.Slot(s); a.Standby != "" {
			out[a.Standby]++
		}
	}
	return out
}

// figures says what is known now; nil before there is a table.
func (v *cover) figures() *agentapi.Cover {
	t := v.table()
	if t == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	now, out, by := v.now(), &agentapi.Cover{Standbys: []agentapi.CoverBy{}}, map[string]*agentapi.CoverBy{}
	for _, s := range ownSlots(t, v.cell) {
		out.Slots++
		a, _ := t.Slot(s)
		if a.Standby == "" {
			out.Uncovered++
			out.None++
			continue
		}
		said := v.answers[a.Standby]
		b := by[a.Standby]
		if b == nil {
			b = said.shown(a.Standby, now)
			by[a.Standby] = b
		}
		b.Slots++
		inSync := said.found && said.source.Incarnation == said.here.Incarnation && said.source.Has(s, a.Epoch)
		lag := said.source.LagMS
		if inSync {
			b.InSync++
		}
		switch {
		// One that can't say how far it is, since it applies nothing: its slots were in sync once.
		case said.at.IsZero() || now.Sub(said.at) > coverFresh || inSync && lag == nil:
			out.Uncovered++
			out.Unknown++
		case !inSync || *lag > coverLag.Milliseconds():
			out.Uncovered++
		}
	}
	for _, b := range by {
		out.Standbys = append(out.Standbys, *b)
	}
	slices.SortFunc(out.Standbys, func(a, b agentapi.CoverBy) int { return cmp.Compare(a.Cell, b.Cell) })
	return out
}

// shown is what of an answer doesn't depend on slots.
func (a answer) shown(cell string, now time.Time) *agentapi.CoverBy {
	b := &agentapi.CoverBy{Cell: cell, Error: a.err}
	if a.at.IsZero() {
		return b
	}
	age := now.Sub(a.at).Milliseconds()
	b.AgeMS = &age
	if !a.found || a.source.Incarnation != a.here.Incarnation {
		return b
	}
	b.LagMS = a.source.LagMS
	end, err1 := pglogrepl.ParseLSN(a.here.LSN)
	has, err2 := pglogrepl.ParseLSN(a.source.LSN)
	if err1 == nil && err2 == nil {
		lag := max(0, int64(end)-int64(has))
		b.LagBytes = &lag
	}
	return b
}

// exportCover shows it; NaN is unknown.
func exportCover(m *obs.Metrics, v *cover) {
	var mu sync.Mutex
	var at time.Time
	var last *agentapi.Cover
	get := func() *agentapi.Cover {
		mu.Lock()
		defer mu.Unlock()
		if v.now().Sub(at) > coverEach/2 { // one count for all gauges of a scrape
			last, at = v.figures(), v.now()
		}
		return last
	}
	show := func(name, help string, value func(*agentapi.Cover) float64) {
		m.GaugeFunc(name, help, func() float64 {
			if c := get(); c != nil {
				return value(c)
			}
			return math.NaN()
		})
	}
	show("cellmart_standby_uncovered_slots", "own slots that aren't known to have a standby in sync", func(c *agentapi.Cover) float64 { return float64(c.Uncovered) })
	show("cellmart_standby_unknown_slots", "of these, slots whose standby's agent didn't answer", func(c *agentapi.Cover) float64 { return float64(c.Unknown) })
	worst := func(of func(agentapi.CoverBy) *int64) func(*agentapi.Cover) float64 {
		return func(c *agentapi.Cover) float64 {
			out := 0.0
			for _, b := range c.Standbys {
				n := of(b)
				if n == nil {
					return math.NaN()
				}
				out = max(out, float64(*n))
			}
			if len(c.Standbys) == 0 {
				return math.NaN()
			}
			return out
		}
	}
	ms := worst(func(b agentapi.CoverBy) *int64 { return b.LagMS })
	age := worst(func(b agentapi.CoverBy) *int64 { return b.AgeMS })
	show("cellmart_standby_worst_lag_seconds", "how far the slowest standby of this cell's slots is behind", func(c *agentapi.Cover) float64 { return ms(c) / 1000 })
	show("cellmart_standby_worst_lag_bytes", "the same in WAL that it has not applied", worst(func(b agentapi.CoverBy) *int64 { return b.LagBytes }))
	show("cellmart_standby_heard_age_seconds", "age of the oldest standby's last answer", func(c *agentapi.Cover) float64 { return age(c) / 1000 })
}
