package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"example.com/cellmart/cmd/cellctl/plan"
	"example.com/cellmart/cmd/cellctl/sim"
	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/services/agent/agentapi"
)

func runPlan(ctx context.Context, c *cli, args []string) error {
	in := plan.Default()
	in.Flags(c.flags)
	measured := c.flags.Bool("measured", false, "with the closed-loop share of the demo that is up")
	if _, err := c.parse(args, 0, 0); err != nil {
		return err
	}
	if *measured {
		f, err := c.fleet(ctx)
		if err != nil {
			return err
		}
		if in.Measured, err = f.counted(ctx); err != nil {
			return err
		}
	}
	if err := in.Check(); err != nil {
		return err
	}
	r := plan.Make(in)
	return c.print(r, func(w io.Writer) { r.Write(w, in) })
}

// counted adds up what all cells have counted. One that is silent has its users
// too: without it there is no share.
func (f *fleet) counted(ctx context.Context) (*plan.Measured, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	got, failed := ask(f, func(a *agentapi.Client) (agentapi.Status, error) { return a.Status(ctx) })
	m := &plan.Measured{Cells: len(f.names)}
	for _, name := range f.names {
		if err := failed[name]; err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		r := got[name].Requests
		if r == nil {
			return nil, fmt.Errorf("%s: its agent has heard no counts yet", name)
		}
		m.Local, m.Forwarded, m.Messaged = m.Local+r.Local, m.Forwarded+r.Forwarded, m.Messaged+r.Messaged
		m.AgeMS = max(m.AgeMS, r.AgeMS)
	}
	return m, nil
}

// runSim needs no demo: it computes the figures that the choice of cells, slots
// and planner rests on.
func runSim(ctx context.Context, c *cli, args []string) error {
	in := sim.Defaults()
	c.flags.IntVar(&in.Users, "users", in.Users, "how many, user0 and on")
	c.flags.Int64Var(&in.Seed, "seed", in.Seed, "of all that is drawn; another takes other users, keys and ids too")
	c.flags.IntVar(&in.Cells, "cells", in.Cells, "to start from")
	c.flags.StringVar(&in.Slots, "slots", in.Slots, "hash or range: how a user number becomes a slot")
	c.flags.BoolVar(&in.Full, "full", false, "[skew] with 200 million ids and three seeds")
	keys, err := c.parse(args, 0, len(sim.Keys()))
	if err != nil {
		return err
	}
	in.Keys = keys
	if err := in.Check(); err != nil {
		return cellkit.Usage{Err: err}
	}
	r, err := sim.Run(ctx, in)
	if err != nil {
		return err
	}
	return c.print(r, r.Text)
}
