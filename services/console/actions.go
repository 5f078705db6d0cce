package console

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

// What can be done.
const (
	unplug = "unplug"
	plug   = "plug"
	delay  = "delay"
	retry  = agentapi.Retry
	cancel = agentapi.Cancel
	drill  = "drill"
)

var actionKinds = []string{unplug, plug, delay, retry, cancel, drill}

// everyone is all of a zone's peers.
const everyone = "*"

// Args is what an action is done to.
type Args struct {
	Cell     string `json:"cell,omitempty"`
	Peer     string `json:"peer,omitempty"`
	DelayMS  int64  `json:"delay_ms,omitempty"`
	Transfer string `json:"transfer,omitempty"`
	Drill    string `json:"drill,omitempty"`
}

// Subject is what the job is done to.
func (j Job) Subject() string { return subject(j.Kind, j.Args) }

// subject is what has to be typed before something is done to it.
func subject(kind string, a Args) string {
	switch kind {
	case delay:
		return a.Cell + "-" + a.Peer
	case retry, cancel:
		return a.Transfer
	case drill:
		return a.Drill + "-" + a.Cell
	}
	return a.Cell
}

// Step is a thing that will be done: a line of the pages' text, or said by the planner.
type Step struct {
	Key  string
	Args []any
	Text string
}

// Say is the step in that language.
func (s Step) Say(l *Lang) string {
	if s.Key == "" {
		return s.Text
	}
	return l.T(s.Key, s.Args...)
}

// Plan is what would be done; nothing was begun.
type Plan struct {
	Kind    string
	Args    Args
	Steps   []Step
	Missing []string // cells that didn't answer, and why
	Line    string   // the equal cellctl line
	Confirm string   // what has to be typed
}

// actions does what operators ask for.
type actions struct {
	agents  map[string]*agentapi.Client
	cells   []string
	records records
	links   bool          // the agents can be reached without their links, so faults can be lifted again
	ask     time.Duration // limit of a plan's questions
	limit   time.Duration // of a job, but a drill
	answer  time.Duration // limit of a question to the records
	drills  drills
	log     *slog.Logger
	now     func() time.Time

	wake  chan struct{}
	mu    sync.Mutex
	taken map[string]bool // jobs that were begun here; true = ended, but a list of open ones may still have it
}

func newActions(agents map[string]*agentapi.Client, cells []string, r records, links bool) *actions {
	return &actions{
		agents: agents, cells: cells, records: r, links: links, ask: 2 * time.Second, limit: 40 * time.Second, answer: 2 * time.Second,
		log: slog.New(slog.DiscardHandler), now: time.Now, wake: make(chan struct{}, 1), taken: map[string]bool{},
	}
}

// line is what does the same without a console.
func line(kind string, a Args, reason string) string {
	switch kind {
	case delay:
		return fmt.Sprintf("bin/cellctl link --delay=%s %s %s", time.Duration(a.DelayMS)*time.Millisecond, a.Cell, a.Peer)
	case retry, cancel:
		return fmt.Sprintf("bin/cellctl transfer --%s --reason=%s %s", kind, quoted(reason), a.Transfer)
	case drill:
		return fmt.Sprintf("bin/cellctl drill --short --cell=%s %s", a.Cell, a.Drill)
	}
	return "bin/cellctl " + kind + " " + a.Cell
}

// quoted is a word for a shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// notHere is the code of what can be done, but not by this console.
const notHere = "NOT_FROM_HERE"

func elsewhere(field, kind string, a Args) error {
	e := errs.Field(field, "can't be done from here: use %s", line(kind, a, ""))
	e.Code = notHere
	return e
}

// check says what is wrong with what was asked for.
func (a *actions) check(kind string, args Args) error {
	known := func(zone string) bool { return a.agents[zone] != nil }
	switch kind {
	case unplug, plug:
		if !slices.Contains(a.cells, args.Cell) {
			return errs.Field("cell", "there is no such cell")
		}
	case delay:
		switch {
		case !known(args.Cell):
			return errs.Field("cell", "there is no such zone")
		case !known(args.Peer) || args.Peer == args.Cell:
			return errs.Field("peer", "is not another zone")
		case args.DelayMS < 0 || args.DelayMS > time.Minute.Milliseconds():
			return errs.Field("delay", "is 0 to 60000 ms")
		}
	case retry, cancel:
		if _, err := id.Parse(args.Transfer); err != nil {
			return errs.Field("transfer", "is not a transfer's ID")
		}
		return nil
	case drill:
		switch {
		case !validDrill(args.Drill):
			return errs.Field("drill", "there is no such drill")
		case !slices.Contains(a.cells, args.Cell):
			return errs.Field("cell", "there is no such cell")
		case a.drills.cellctl == "":
			return elsewhere("drill", kind, args)
		}
		return nil
	default:
		return errs.ErrNotFound
	}
	if !a.links {
		return elsewhere("cell", kind, args) // the console reaches it over the same link
	}
	return nil
}

// plan says what would be done.
func (a *actions) plan(ctx context.Context, kind string, args Args) (Plan, error) {
	if err := a.check(kind, args); err != nil {
		return Plan{}, err
	}
	p := Plan{Kind: kind, Args: args, Line: line(kind, args, "..."), Confirm: subject(kind, args)}
	switch kind {
	case unplug, plug:
		p.Steps = []Step{{Key: "step." + kind, Args: []any{args.Cell}}}
	case delay:
		p.Steps = []Step{{Key: "step.lift", Args: []any{args.Peer, args.Cell}}, {Key: "step.delay", Args: []any{args.Cell, args.Peer, args.DelayMS}}}
	case drill:
		p.Steps = []Step{{Key: "step.drill", Args: []any{args.Drill, args.Cell}}}
	default:
		jobs, missing, err := a.planJobs(ctx, kind, args.Transfer, "")
		if err != nil {
			return Plan{}, err
		}
		for _, j := range jobs {
			p.Steps = append(p.Steps, Step{Text: j.Cell + ": " + j.Plan})
		}
		p.Missing = missing
	}
	return p, nil
}

// planJobs asks all cells what they have of a transfer, and says which of them
// didn't answer, and why.
func (a *actions) planJobs(ctx context.Context, what, transfer, reason string) ([]agentapi.PlannedJob, []string, error) {
	asking, done := context.WithTimeout(ctx, a.ask)
	defer done()
	var wg sync.WaitGroup
	var got map[string][]agentapi.ParkedTransfer
	var failed map[string]error
	if what == retry {
		wg.Go(func() {
			got, failed = each(a.agents, a.cells, func(c *agentapi.Client) ([]agentapi.ParkedTransfer, error) { return c.Parked(asking) })
		})
	}
	k := a.story(ctx, transfer)
	wg.Wait()
	var parked []agentapi.ParkedTransfer
	for _, cell := range a.cells {
		parked = append(parked, got[cell]...)
		said := slices.ContainsFunc(k.Missing, func(m string) bool { return strings.HasPrefix(m, cell+": ") })
		if err := failed[cell]; err != nil && !said {
			k.Missing = append(k.Missing, cell+": "+err.Error())
		}
	}
	jobs, err := agentapi.PlanJobs(transfer, k.Sides, parked, agentapi.TransferJob{What: what, Reason: reason})
	return jobs, k.Missing, err
}

// Story is what the cells have of one transfer.
type Story struct {
	ID      string
	Sides   []agentapi.Transfer
	Missing []string // cells that didn't answer, and why
}

func (a *actions) story(ctx context.Context, transfer string) Story {
	ctx, done := context.WithTimeout(ctx, a.ask)
	defer done()
	got, failed := each(a.agents, a.cells, func(c *agentapi.Client) (agentapi.Transfer, error) { return c.Transfer(ctx, transfer) })
	out := Story{ID: transfer}
	for _, cell := range a.cells {
		if t, ok := got[cell]; ok {
			out.Sides = append(out.Sides, t)
		} else if err := failed[cell]; !errs.IsKind(err, errs.NotFound) {
			out.Missing = append(out.Missing, cell+": "+err.Error())
		}
	}
	return out
}

// each asks all cells at the same time.
func each[T any](agents map[string]*agentapi.Client, cells []string, ask func(*agentapi.Client) (T, error)) (map[string]T, map[string]error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	got, failed := map[string]T{}, map[string]error{}
	for _, cell := range cells {
		wg.Go(func() {
			v, err := ask(agents[cell])
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[cell] = err
				return
			}
			got[cell] = v
		})
	}
	wg.Wait()
	return got, failed
}

// zones lists what a link can lead to.
func (a *actions) zones() []string { return append(slices.Clone(a.cells), routing.Global) }
