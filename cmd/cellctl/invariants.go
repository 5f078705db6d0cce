package main

import (
	"context"
	"fmt"
	"io"

	"example.com/cellmart/services/agent/agentapi"
)

func invariants(ctx context.Context, c *cli, args []string) error {
	if _, err := c.parse(args, 0, 0); err != nil {
		return err
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	results := agentapi.Check(ctx, f.cells)
	holds := true
	for _, r := range results {
		holds = holds && r.OK != nil && *r.OK
	}
	err = c.print(results, func(w io.Writer) {
		for _, r := range results {
			word := "unknown"
			if r.OK != nil {
				word = map[bool]string{true: "ok", false: "VIOLATED"}[*r.OK]
			}
			fmt.Fprintf(w, "%-4s %-9s checked %-7d %s\n", r.ID, word, r.Checked, r.What)
			for _, v := range r.Violations {
				fmt.Fprintln(w, "       ", v)
			}
			for _, n := range r.Notes {
				fmt.Fprintln(w, "     note:", n)
			}
		}
		if len(results) > 0 {
			for _, m := range results[0].Missing {
				fmt.Fprintln(w, "not read:", m)
			}
		}
	})
	if err == nil && !holds {
		err = errFails
	}
	return err
}
