package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/agent/agentapi"
)

func transfers(ctx context.Context, c *cli, args []string) error {
	words, err := c.parse(args, 0, 1)
	if err != nil {
		return err
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	if len(words) == 0 {
		return stuck(ctx, c, f)
	}
	if _, err := id.Parse(words[0]); err != nil {
		return usage("%q is not a transfer's ID", words[0])
	}
	got, failed := ask(f, func(a *agentapi.Client) (agentapi.Transfer, error) { return a.Transfer(ctx, words[0]) })
	out := struct {
		ID    string              `json:"id"`
		Sides []agentapi.Transfer `json:"sides"`
		Not   map[string]string   `json:"not_asked,omitempty"`
	}{ID: words[0], Not: map[string]string{}}
	for _, cell := range f.names {
		if t, ok := got[cell]; ok {
			out.Sides = append(out.Sides, t)
		} else if !errs.IsKind(failed[cell], errs.NotFound) {
			out.Not[cell] = failed[cell].Error()
		}
	}
	err = c.print(out, func(w io.Writer) {
		for _, side := range out.Sides {
			for _, line := range side.Story {
				fmt.Fprintf(w, "%s  %s  %s\n", line.At.Format(time.RFC3339Nano), side.Cell, line.What)
			}
		}
		for cell, why := range out.Not {
			fmt.Fprintf(w, "%s could not be asked: %s\n", cell, why)
		}
	})
	if err == nil && len(out.Sides) == 0 {
		if len(out.Not) == 0 {
			return fmt.Errorf("no cell knows a transfer %s", words[0])
		}
		return fmt.Errorf("no cell that answers knows a transfer %s", words[0])
	}
	return err
}

func stuck(ctx context.Context, c *cli, f *fleet) error {
	got, failed := ask(f, func(a *agentapi.Client) ([]agentapi.StuckTransfer, error) { return a.Stuck(ctx) })
	var all []agentapi.StuckTransfer
	for _, cell := range f.names {
		all = append(all, got[cell]...)
	}
	slices.SortStableFunc(all, func(a, b agentapi.StuckTransfer) int { return int(b.AgeMS - a.AgeMS) })
	err := c.print(all, func(w io.Writer) {
		tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		fmt.Fprintln(tw, "ID\tCELL\tTO\tSTATE\tAMOUNT\tAGE\tATTEMPTS")
		for _, t := range all {
			fmt.Fprintf(tw, "%s\t%s\tslot %s\t%s\t%d %s\t%s\t%d\n", t.ID, t.Cell, t.ToSlot, t.State, t.Amount, t.Currency,
				(time.Duration(t.AgeMS) * time.Millisecond).Round(time.Second), t.Attempts)
		}
		tw.Flush()
		for cell, err := range failed {
			fmt.Fprintf(w, "%s could not be asked: %v\n", cell, err)
		}
	})
	if err == nil && len(failed) > 0 {
		err = errFails
	}
	return err
}
