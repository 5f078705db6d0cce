package drill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"example.com/cellmart/cmd/cellctl/drill/bank"
	"example.com/cellmart/cmd/cellctl/load"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

// System is the running demo, as far as drills break it. Names are those of the
// demo's processes: c2/postgres, c1/order.
type System interface {
	// Unplug and Plug do what the verbs of cellctl do.
	Unplug(ctx context.Context, cell string) error
	Plug(ctx context.Context, cell string) error
	// Stop ends a part, with kill without asking it; Start starts it again and
	// waits until it's ready.
	Stop(ctx context.Context, part string, kill bool) error
	Start(ctx context.Context, part string) error
	// Pause freezes a part as it is, or lets it go on.
	Pause(ctx context.Context, part string, on bool) error
	// AddInstance starts a second instance of a service, and waits until it's
	// ready; RemoveInstance ends it. Which of the two is stopped later is told
	// by the name that AddInstance gives.
	AddInstance(ctx context.Context, service string) (string, error)
	RemoveInstance(ctx context.Context, name string) error
	// Share makes a cell depend on another one past the border: its gateway goes
	// out through that cell's agent, or its cache is in that cell's Redis.
	Share(ctx context.Context, what, cell, other string) (undo func(context.Context) error, err error)
	// Border looks at what is connected to what.
	Border(ctx context.Context) (Border, error)
	// Parts measures every process or container.
	Parts(ctx context.Context) ([]Part, error)
}

// Part is a process or container at one moment.
type Part struct {
	Name          string
	Alive         bool
	Started       string // another word when it was started again
	Memory, Limit int64  // bytes
}

// Border is what a look at all parts' connections saw: local, the sockets of each
// process; in containers, the networks that each is on.
type Border struct {
	Seen    int      // that are as they should be
	Foreign []string // of a part to another zone, past the border
}

// Options of a drill.
type Options struct {
	System   System
	IDs      IDSystem
	Copies   CopySystem
	Money    MoneySystem
	Agents   map[string]*agentapi.Client
	Control  *controlapi.Client
	Load     load.Options // Cells and Edge are needed, the rest is the drill's
	Cell     string       // that is broken
	Sabotage bool
	Kind     string // of sabotage; "" is the drill's first
	Short    bool   // fewer and shorter windows, for tests of the drill itself
	Log      func(format string, args ...any)
}

// Report is what a drill answers.
type Report struct {
	Drill    string         `json:"drill"`
	Pass     bool           `json:"pass"`
	Timeline []Event        `json:"timeline"`
	Figures  map[string]any `json:"figures"`
	Failed   []string       `json:"failed"`
}

// Event is one thing that was done or seen, since the load's start.
type Event struct {
	MS   int64  `json:"t_ms"`
	What string `json:"what"`
}

// kind is a drill: everything that depends on which one it is.
type kind struct {
	name  string
	cell  string   // that it breaks by default
	plant []string // sabotages that have a name, the default first; none where there is only one
	long  bool     // not among those that are run when none is named
	limit time.Duration
	do    func(context.Context, *run) error
}

// usualLimit is against what hangs: a drill takes one to three minutes.
const usualLimit = 10 * time.Minute

// kinds are all the drills; what the command line, its help and scripts/drills
// know of them comes from here.
func kinds() []kind {
	return []kind{
		{name: "unplug", cell: "c3", plant: []string{"agent", "redis"}, do: unplug},
		{name: "db-down", cell: "c2", do: dbDown},
		{name: "instance", cell: "c1", do: instance},
		{name: "soak", cell: "c1", long: true, limit: soakFor + usualLimit, do: soak},
		{name: "route-push", cell: "c3", do: routePush},
		{name: "idgen-restore", cell: "c1", do: idgenRestore},
		{name: "control-down-cold-start", cell: "c2", do: coldStart},
		{name: "idgen-down", cell: "c1", do: idgenDown},
		{name: "clock-back", cell: "c2", do: clockBack},
		{name: "cdc-slot-lost", cell: "c1", do: cdcSlotLost},
		{name: "nats-lost", cell: "c2", do: natsLost},
		{name: "standby-away", cell: "c3", do: standbyAway},
		{name: "bank", cell: "c1", plant: []string{bank.Early, bank.Twice}, do: bankDrill},
	}
}

func find(name string) (kind, bool) {
	for _, k := range kinds() {
		if k.name == name {
			k.limit = cmp.Or(k.limit, usualLimit)
			return k, true
		}
	}
	return kind{}, false
}

// Names lists the drills; usual leaves out those that take long.
func Names(usual bool) (out []string) {
	for _, k := range kinds() {
		if !usual || !k.long {
			out = append(out, k.name)
		}
	}
	return out
}

// DefaultCell is the cell that a drill breaks unless told; "" for no such drill.
func DefaultCell(name string) string {
	k, _ := find(name)
	return k.cell
}

// Kinds of sabotage that a drill knows by name, the default first; none where it
// has only one.
func Kinds(name string) []string {
	k, _ := find(name)
	return k.plant
}

// Run runs one drill by name. An error means that it couldn't be carried out.
func Run(ctx context.Context, name string, o Options) (*Report, error) {
	k, ok := find(name)
	if !ok {
		return nil, fmt.Errorf("there is no drill %q", name)
	}
	r := &run{Options: o, begun: time.Now(), report: &Report{Drill: name, Timeline: []Event{}, Figures: map[string]any{}, Failed: []string{}}}
	for i, c := range o.Load.Cells {
		r.homes = append(r.homes, c.Name)
		if c.Name == o.Cell {
			r.broken = i
		}
	}
	ctx, cancel := context.WithTimeout(ctx, k.limit)
	defer cancel()
	err := k.do(ctx, r)
	if mended := r.mend(ctx); mended != nil {
		err = errors.Join(err, fmt.Errorf("mending: %w", mended))
	}
	if err != nil {
		return nil, err
	}
	if !o.Sabotage { // what a planted fault does to rows is not the question
		r.rest(ctx)
	}
	if r.load != nil {
		r.report.Figures["sent_late_ms"] = r.load.Late().Milliseconds()
	}
	r.report.Pass = len(r.report.Failed) == 0
	return r.report, nil
}

// run is a drill on its way.
type run struct {
	Options
	report *Report
	begun  time.Time
	homes  []string
	broken int // index of Cell
	border looks
	load   *load.Load
	stop   context.CancelFunc
	going  sync.WaitGroup
	undo   []func(context.Context) error
}

// begin prepares and starts the load.
func (r *run) begin(ctx context.Context, rate float64, doors func(home int) []int) error {
	o := r.Load
	o.Rate, o.Users, o.Doors, o.Log = rate, 10, doors, r.Log
	if r.Short {
		o.Users = 4
	}
	var err error
	if r.load, err = load.Prepare(ctx, o); err != nil {
		return err
	}
	// A demo that has only just come up is busy with its standbys' first copies; and what
	// the preparation left to do (messages, search's copies) isn't the drill's.
	if err := r.copied(ctx, 2*time.Minute); err != nil {
		return err
	}
	if err := r.settled(ctx, time.Second, 30*time.Second); err != nil {
		return err
	}
	inner, stop := context.WithCancel(ctx)
	r.stop = stop
	r.going.Go(func() { r.load.Run(inner) })
	r.event("load: %.0f requests a second", rate)
	return nil
}

// end stops the load and waits for what is unanswered.
func (r *run) end() {
	if r.stop != nil {
		r.stop()
		r.going.Wait()
		r.stop = nil
	}
}

// after remembers how to mend what was broken.
func (r *run) after(undo func(context.Context) error) { r.undo = append(r.undo, undo) }

// mend undoes everything, last things first, also when ctx is over.
func (r *run) mend(ctx context.Context) error {
	r.end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var all []error
	for i := len(r.undo) - 1; i >= 0; i-- {
		all = append(all, r.undo[i](ctx))
	}
	return errors.Join(all...)
}

// rest checks the invariants once nothing is under way.
func (r *run) rest(ctx context.Context) {
	r.Log("waiting until all messages have their answer")
	bad := load.AtRest(ctx, r.Agents, 100*time.Second)
	r.report.Figures["invariants_ok"] = len(bad) == 0
	for _, b := range bad {
		r.fail("invariants: %s", b)
	}
}

func (r *run) event(format string, args ...any) time.Duration {
	at := time.Since(r.begun) // a drill without load counts from its start
	if r.load != nil {
		at = r.load.Now()
	}
	what := fmt.Sprintf(format, args...)
	r.report.Timeline = append(r.report.Timeline, Event{at.Milliseconds(), what})
	r.Log("%6.1f s  %s", at.Seconds(), what)
	return at
}

func (r *run) fail(format string, args ...any) {
	// What a drill finds by itself the look at its end may find again.
	if why := fmt.Sprintf(format, args...); !slices.Contains(r.report.Failed, why) {
		r.report.Failed = append(r.report.Failed, why)
	}
}

// need is a judgement: when it doesn't hold, the drill has failed.
func (r *run) need(holds bool, format string, args ...any) {
	if !holds {
		r.fail(format, args...)
	}
}

// other is a cell that isn't the broken one.
func (r *run) other() string {
	if r.broken == 0 {
		return r.homes[1]
	}
	return r.homes[0]
}

// othersDoors keeps everybody but the broken cell's own users out of that cell's
// gateway; stay says that those users go through it too.
func (r *run) othersDoors(stay bool) func(home int) []int {
	return func(home int) []int {
		var out []int
		for i := range r.homes {
			if i != r.broken || stay && home == r.broken {
				out = append(out, i)
			}
		}
		return out
	}
}

// settled waits until the cells have caught up, at least least and at most most:
// no open message is old, and no link is down.
func (r *run) settled(ctx context.Context, least, most time.Duration) error {
	if err := pause(ctx, least); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, most-least)
	defer cancel()
	for {
		calm := true
		for _, a := range r.Agents {
			s, err := a.Status(limited)
			if err != nil || s.Database == nil || s.Database.OldestOpenMS > 2000 {
				calm = false
				break
			}
			for _, l := range s.Links {
				calm = calm && l.Up
			}
		}
		if calm || pause(limited, 250*time.Millisecond) != nil {
			return ctx.Err()
		}
	}
}

// copied waits, at most that long, until every slot that is to have a standby has it
// in sync.
func (r *run) copied(ctx context.Context, most time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for said := false; ; said = true {
		left := 0
		for _, a := range r.Agents {
			if s, err := a.Status(limited); err == nil && s.Cover != nil {
				left += s.Cover.Uncovered - s.Cover.None
			}
		}
		if left > 0 && !said {
			r.Log("waiting until the standbys of %d slots are in sync", left)
		}
		if left == 0 || pause(limited, time.Second) != nil {
			return ctx.Err()
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
