package console

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/services/agent/agentapi"
)

// begin keeps a job; it's done soon after, also if this process ends now.
func (a *actions) begin(ctx context.Context, j Job) (Job, error) {
	if j.Kind == drill {
		a.drills.mine(j.ID)
	}
	kept, err := a.records.addJob(ctx, j)
	if err == nil {
		a.rouse()
	}
	return kept, err
}

// rouse has the open jobs looked at now.
func (a *actions) rouse() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run does open jobs until ctx ends, also those that another process left.
func (a *actions) run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		if open, err := a.open(ctx); err == nil {
			for _, j := range a.take(open) {
				wg.Go(func() { defer a.release(j.ID); a.finish(ctx, j) })
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		case <-tick.C:
		}
	}
}

func (a *actions) open(ctx context.Context) ([]Job, error) {
	ctx, done := context.WithTimeout(ctx, a.answer)
	defer done()
	return a.records.openJobs(ctx)
}

// take gives the open jobs that are to be begun now, of the oldest first. None is
// begun twice here, and none before an earlier one of the same cell or transfer has ended.
func (a *actions) take(open []Job) []Job {
	a.mu.Lock()
	defer a.mu.Unlock()
	listed, held := map[string]bool{}, map[string]bool{}
	var out []Job
	for _, j := range open {
		listed[j.ID] = true
		free := true
		for _, x := range []string{j.Args.Cell, j.Args.Peer, j.Args.Transfer} {
			free = free && !held[x]
			held[x] = x != ""
		}
		if _, taken := a.taken[j.ID]; free && !taken {
			a.taken[j.ID] = false
			out = append(out, j)
		}
	}
	maps.DeleteFunc(a.taken, func(job string, ended bool) bool { return ended && !listed[job] })
	return out
}

// release notes that a job has ended, and has the next one of its cell looked for.
func (a *actions) release(job string) {
	a.mu.Lock()
	a.taken[job] = true
	a.mu.Unlock()
	a.rouse()
}

// finish does a job and keeps what came of it. At this process's end it stays open.
func (a *actions) finish(ctx context.Context, j Job) {
	limit := a.limit
	if j.Kind == drill {
		limit = drillLimit
	}
	doing, done := context.WithTimeout(ctx, limit)
	detail, err := a.do(doing, j)
	done()
	j.State, j.Detail = agentapi.JobDone, detail
	if err != nil {
		j.State, j.Detail = agentapi.JobFailed, err.Error()
	}
	j.Detail = storable(j.Detail)
	for pause := 100 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 5*time.Second) {
		err := a.end(ctx, j)
		if err == nil {
			return
		}
		a.log.Warn("what came of a job isn't kept yet", "job", j.ID, "state", j.State, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (a *actions) end(ctx context.Context, j Job) error {
	ctx, done := context.WithTimeout(ctx, a.answer)
	defer done()
	return a.records.endJob(ctx, j)
}

// storable is the text without what the database takes for none.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\x00", "")
}

// stale is how old a job may be when it's begun: later it may not be wanted any more.
const stale = 5 * time.Minute

func (a *actions) do(ctx context.Context, j Job) (string, error) {
	if err := a.check(j.Kind, j.Args); err != nil {
		return "", err
	}
	if j.Kind == drill {
		if err := a.drills.enter(j.ID); err != nil {
			return "", err
		}
		defer a.drills.leave()
	}
	if a.now().Sub(j.At) > stale {
		return "", fmt.Errorf("asked too long ago: what waited for more than %s isn't begun", stale)
	}
	switch j.Kind {
	case unplug:
		return "", a.fault(ctx, j.Args.Cell, everyone, agentapi.Fault{CutIn: true, CutOut: true})
	case plug:
		return "", a.fault(ctx, j.Args.Cell, everyone, agentapi.Fault{})
	case delay: // the whole fault is kept at one end
		if err := a.fault(ctx, j.Args.Peer, j.Args.Cell, agentapi.Fault{}); err != nil {
			return "", err
		}
		return "", a.fault(ctx, j.Args.Cell, j.Args.Peer, agentapi.Fault{DelayMS: j.Args.DelayMS})
	case drill:
		return a.drills.run(ctx, j)
	}
	return a.operate(ctx, j)
}

// fault sets a fault and reads it back.
func (a *actions) fault(ctx context.Context, zone, peer string, want agentapi.Fault) error {
	ctx, done := context.WithTimeout(ctx, 5*time.Second)
	defer done()
	if err := a.agents[zone].SetFault(ctx, peer, want); err != nil {
		return err
	}
	s, err := a.agents[zone].Status(ctx)
	if err != nil {
		return err
	}
	if got := s.Faults[peer]; got != want {
		return fmt.Errorf("%s's agent has %+v on the link to %s, not %+v", zone, got, peer, want)
	}
	return nil
}

// operate has a transfer's jobs done by the cells' agents. Their IDs come from the
// job's, so doing it again asks for the same jobs.
func (a *actions) operate(ctx context.Context, j Job) (string, error) {
	jobs, missing, err := a.planJobs(ctx, j.Kind, j.Args.Transfer, j.Reason)
	if err != nil {
		return "", err
	}
	notAsked := ""
	if len(missing) > 0 {
		notAsked = "not asked: " + strings.Join(missing, "; ")
	}
	switch {
	case len(jobs) == 0 && notAsked != "":
		return "", fmt.Errorf("nothing to %s in the cells that answer; %s", j.Kind, notAsked)
	case len(jobs) == 0:
		return "nothing is left to " + j.Kind, nil
	}
	var said []string
	var failed error
	for _, p := range jobs {
		p.ID = "console-" + j.ID + "-" + p.Cell + "-" + strconv.Itoa(int(p.Slot))
		end, err := await(ctx, a.agents[p.Cell], p.TransferJob)
		switch {
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("%s: %w", p.Cell, err))
		case end.State != agentapi.JobDone:
			failed = errors.Join(failed, fmt.Errorf("%s: %s %s", p.Cell, end.State, end.Detail))
		default:
			said = append(said, p.Cell+": "+end.Detail)
		}
	}
	if notAsked != "" {
		said = append(said, notAsked)
	}
	if failed != nil && len(said) > 0 {
		failed = fmt.Errorf("%w; %s", failed, strings.Join(said, "; "))
	}
	return strings.Join(said, "; "), failed
}

// await keeps a job with an agent and asks until it has ended, or ctx has.
func await(ctx context.Context, agent *agentapi.Client, j agentapi.TransferJob) (agentapi.TransferJob, error) {
	kept, err := agent.AskJob(ctx, j)
	for err == nil && kept.State == agentapi.JobOpen {
		select {
		case <-ctx.Done():
			return kept, fmt.Errorf("job %s is still open: %w", kept.ID, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
		now, asked := agent.Job(ctx, kept.ID)
		switch {
		case asked == nil:
			kept = now
		case !errs.IsKind(asked, errs.Unavailable): // else it goes on without us
			err = asked
		}
	}
	return kept, err
}
