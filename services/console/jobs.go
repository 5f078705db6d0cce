package console

import (
	"context"
	"errors"
	"fmt"
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
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
	return kept, err
}

// run does open jobs until ctx ends, also those that another process left.
func (a *actions) run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		open, err := a.records.openJobs(ctx)
		if err == nil {
			for _, j := range open {
				if a.take(j.ID) {
					wg.Go(func() { defer a.release(j.ID); a.finish(ctx, j) })
				}
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

func (a *actions) take(job string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy[job] {
		return false
	}
	a.busy[job] = true
	return true
}

func (a *actions) release(job string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.busy, job)
}

// finish does a job and keeps what came of it. At this process's end it stays open.
func (a *actions) finish(ctx context.Context, j Job) {
	limit := a.limit
	if j.Kind == drill {
		limit = drillLimit
	}
	doing, done := context.WithTimeout(ctx, limit)
	defer done()
	detail, err := a.do(doing, j)
	if ctx.Err() != nil {
		return
	}
	j.State, j.Detail = agentapi.JobDone, detail
	if err != nil {
		j.State, j.Detail = agentapi.JobFailed, err.Error()
	}
	// An error leaves it open: it's done again, and told then.
	_ = a.records.endJob(ctx, j)
}

func (a *actions) do(ctx context.Context, j Job) (string, error) {
	if err := a.check(j.Kind, j.Args); err != nil {
		return "", err
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
		return a.drills.do(ctx, j)
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
	if len(jobs) == 0 {
		if len(missing) > 0 {
			return "", fmt.Errorf("nothing to %s in the cells that answer; not asked: %s", j.Kind, strings.Join(missing, "; "))
		}
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
