package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/agent/agentapi"
)

// known is what the cells have of one transfer.
type known struct {
	ID    string              `json:"id"`
	Sides []agentapi.Transfer `json:"sides"`
	Not   map[string]string   `json:"not_asked,omitempty"`
}

func transfers(ctx context.Context, c *cli, args []string) error {
	parked := c.flags.Bool("parked", false, "messages about transfers that nobody could handle")
	do := map[string]*bool{
		agentapi.Retry:   c.flags.Bool(agentapi.Retry, false, "ask again now, and handle again what was parked"),
		agentapi.Cancel:  c.flags.Bool(agentapi.Cancel, false, "ask the payee's slot to give it up; it decides"),
		agentapi.Reverse: c.flags.Bool(agentapi.Reverse, false, "give all of the rest back, from the payee's balance, else owed by them"),
	}
	reason := c.flags.String("reason", "", "why, kept with the job")
	wait := c.flags.Duration("wait", 30*time.Second, "how long to wait for the job's end; it goes on without")
	words, err := c.parse(args, 0, 1)
	if err != nil {
		return err
	}
	var what []string
	for name, on := range do {
		if *on {
			what = append(what, name)
		}
	}
	switch {
	case len(what) > 1 || len(what) == 1 && (len(words) == 0 || *parked):
		return usage("takes an ID with one of --retry, --cancel and --reverse")
	case *parked && len(words) > 0:
		return usage("--parked lists them all, without an ID")
	case *reason != "" && len(what) == 0 || len(*reason) > 200:
		return usage("--reason goes with --retry, --cancel or --reverse, and has at most 200 bytes")
	}
	if len(words) == 1 {
		if _, err := id.Parse(words[0]); err != nil {
			return usage("%q is not a transfer's ID", words[0])
		}
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	switch {
	case *parked:
		return parkedTransfers(ctx, c, f)
	case len(words) == 0:
		return stuck(ctx, c, f)
	}
	k := f.transfer(ctx, words[0])
	if len(what) == 1 {
		if *reason == "" {
			*reason = "cellctl transfer --" + what[0]
		}
		return operate(ctx, c, f, k, agentapi.TransferJob{What: what[0], Reason: *reason}, *wait)
	}
	return c.story(k)
}

// transfer asks every cell. Each looks by keys only: the payer's slot is in the ID.
func (f *fleet) transfer(ctx context.Context, text string) known {
	got, failed := ask(f, func(a *agentapi.Client) (agentapi.Transfer, error) { return a.Transfer(ctx, text) })
	out := known{ID: text, Not: map[string]string{}}
	for _, cell := range f.names {
		if t, ok := got[cell]; ok {
			out.Sides = append(out.Sides, t)
		} else if !errs.IsKind(failed[cell], errs.NotFound) {
			out.Not[cell] = failed[cell].Error()
		}
	}
	return out
}

func (k known) nowhere() error {
	if len(k.Not) == 0 {
		return fmt.Errorf("no cell knows a transfer %s", k.ID)
	}
	return fmt.Errorf("no cell that answers knows a transfer %s", k.ID)
}

func (c *cli) story(k known) error {
	err := c.print(k, func(w io.Writer) {
		for _, side := range k.Sides {
			for _, line := range side.Story {
				fmt.Fprintf(w, "%s  %s  %s\n", line.At.Format(time.RFC3339Nano), side.Cell, line.What)
			}
		}
		for cell, why := range k.Not {
			fmt.Fprintf(w, "%s could not be asked: %s\n", cell, why)
		}
	})
	if err == nil && len(k.Sides) == 0 {
		return k.nowhere()
	}
	return err
}

// operate has a job done: the plan is shown, the agents of the cells concerned keep
// it, and it is waited for.
func operate(ctx context.Context, c *cli, f *fleet, k known, job agentapi.TransferJob, wait time.Duration) error {
	if len(k.Sides) == 0 {
		return k.nowhere()
	}
	var parked []agentapi.ParkedTransfer
	if job.What == agentapi.Retry {
		got, _ := ask(f, func(a *agentapi.Client) ([]agentapi.ParkedTransfer, error) { return a.Parked(ctx) })
		for _, cell := range f.names {
			parked = append(parked, got[cell]...)
		}
	}
	todo, err := agentapi.PlanJobs(k.ID, k.Sides, parked, job)
	if err != nil {
		return err
	}
	if len(todo) == 0 {
		return fmt.Errorf("there is nothing to %s of transfer %s in the cells that answer", job.What, k.ID)
	}
	if !c.json {
		for _, p := range todo {
			fmt.Fprintf(c.out, "plan: %s: %s\n", p.Cell, p.Plan)
		}
	}
	holds := true
	for i := range todo {
		p := &todo[i]
		p.ID = "cellctl-" + strings.ToLower(rand.Text())
		p.TransferJob, err = await(ctx, f.cells[p.Cell], p.TransferJob, wait)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Cell, err)
		}
		holds = holds && p.State == agentapi.JobDone
	}
	err = c.print(todo, func(w io.Writer) {
		for _, p := range todo {
			fmt.Fprintf(w, "%s: %s %s\n", p.Cell, p.State, p.Detail)
		}
	})
	if err == nil && !holds {
		return errFails
	}
	return err
}

// await keeps a job and asks how it stands until it has ended, or the time is over.
func await(ctx context.Context, a *agentapi.Client, j agentapi.TransferJob, wait time.Duration) (agentapi.TransferJob, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+30*time.Second)
	defer cancel()
	kept, err := a.AskJob(ctx, j)
	end := time.After(wait)
	for err == nil && kept.State == agentapi.JobOpen {
		select {
		case <-end:
			return kept, nil
		case <-ctx.Done():
			return kept, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
		var now agentapi.TransferJob
		if now, err = a.Job(ctx, kept.ID); errs.IsKind(err, errs.Unavailable) {
			err = nil // it goes on without us
			continue
		}
		kept = now
	}
	return kept, err
}

func parkedTransfers(ctx context.Context, c *cli, f *fleet) error {
	got, failed := ask(f, func(a *agentapi.Client) ([]agentapi.ParkedTransfer, error) { return a.Parked(ctx) })
	all := []agentapi.ParkedTransfer{}
	for _, cell := range f.names {
		all = append(all, got[cell]...)
	}
	slices.SortStableFunc(all, func(a, b agentapi.ParkedTransfer) int { return int(b.AgeMS - a.AgeMS) })
	err := c.print(all, func(w io.Writer) {
		tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		fmt.Fprintln(tw, "TRANSFER\tCELL\tSLOT\tFROM SLOT\tMESSAGE\tAGE\tREASON")
		for _, p := range all {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Transfer, p.Cell, p.Slot, p.From, p.Kind, ago(p.AgeMS), p.Reason)
		}
		tw.Flush()
		unasked(w, failed)
	})
	if err == nil && len(failed) > 0 {
		err = errFails
	}
	return err
}

func unasked(w io.Writer, failed map[string]error) {
	for cell, err := range failed {
		fmt.Fprintf(w, "%s could not be asked: %v\n", cell, err)
	}
}

func stuck(ctx context.Context, c *cli, f *fleet) error {
	got, failed := ask(f, func(a *agentapi.Client) ([]agentapi.StuckTransfer, error) { return a.Stuck(ctx) })
	all := []agentapi.StuckTransfer{}
	for _, cell := range f.names {
		all = append(all, got[cell]...)
	}
	slices.SortStableFunc(all, func(a, b agentapi.StuckTransfer) int { return int(b.AgeMS - a.AgeMS) })
	err := c.print(all, func(w io.Writer) { printStuck(w, all); unasked(w, failed) })
	if err == nil && len(failed) > 0 {
		err = errFails
	}
	return err
}

func printStuck(w io.Writer, all []agentapi.StuckTransfer) {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "ID\tCELL\tKIND\tTO\tSTATE\tAMOUNT\tAGE\tATTEMPTS\tLAST ANSWER")
	for _, t := range all {
		answer := "none"
		if t.Parked != "" {
			answer = fmt.Sprintf("%s, parked: %s", t.Answer, t.Parked)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\tslot %s\t%s\t%d %s\t%s\t%d\t%s\n", t.ID, t.Cell, t.Kind, t.ToSlot, t.State, t.Amount, t.Currency,
			(time.Duration(t.AgeMS) * time.Millisecond).Round(time.Second), t.Attempts, answer)
	}
	tw.Flush()
}
