package main

import (
	"context"
	"io"

	"example.com/cellmart/cmd/cellctl/plan"
	"example.com/cellmart/cmd/cellctl/sim"
	"example.com/cellmart/platform/cellkit"
)

func runPlan(_ context.Context, c *cli, args []string) error {
	in := plan.Default()
	in.Flags(c.flags)
	if _, err := c.parse(args, 0, 0); err != nil {
		return err
	}
	if err := in.Check(); err != nil {
		return err
	}
	r := plan.Make(in)
	return c.print(r, func(w io.Writer) { r.Write(w, in) })
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
