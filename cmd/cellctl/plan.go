package main

import (
	"context"
	"io"

	"example.com/cellmart/cmd/cellctl/plan"
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
