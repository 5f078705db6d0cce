package main

import (
	"context"
	"fmt"
	"io"
	"time"

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
			fmt.Fprintf(w, "%-4s %-9s checked %-7d %.1f s ago: %s\n", r.ID, word, r.Checked, float64(r.AgeMS)/1000, r.What)
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

// outOfPlace says of a cell's database what it has of rows that aren't its own, or
// not any more; nothing when there are none.
func outOfPlace(d *agentapi.Database) []string {
	if d == nil {
		return nil
	}
	age := func(ms int64) time.Duration { return (time.Duration(ms) * time.Millisecond).Round(time.Second) }
	var out []string
	switch l := d.Leftovers; {
	case l == nil:
		out = append(out, "what is left to be cleaned up isn't known")
	case l.Slots > 0:
		out = append(out, fmt.Sprintf("%d rows of %d slots that it let go of wait to be cleaned up, the first for %s", l.Rows, l.Slots, age(l.OldestMS)))
		if l.Held > 0 {
			out = append(out, fmt.Sprintf("%d of these slots were taken by another cell: their rows are kept", l.Held))
		}
	}
	switch m := d.Misplaced; {
	case m == nil:
		out = append(out, "nobody has looked for rows in the wrong place yet")
	case m.Rows > 0:
		out = append(out, fmt.Sprintf("%d rows in the wrong place (%s ago): cellctl invariants names them", m.Rows, age(m.AgeMS)))
	}
	return out
}
