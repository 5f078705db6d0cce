package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/control/controlapi"
)

// cellVerb has what is done to one cell as a whole.
func cellVerb(ctx context.Context, c *cli, args []string) error {
	reason := c.flags.String("reason", "", "why, kept with the published table")
	words, err := c.parse(args, 3, 3)
	if err != nil {
		return err
	}
	if words[0] != "weight" {
		return usage("takes weight CELL W, not %q", words[0])
	}
	weight, err := strconv.Atoi(words[2])
	if err != nil || weight < 0 || weight > routing.MaxWeight {
		return usage("a weight is 0 (closed to new users) to %d, not %q", routing.MaxWeight, words[2])
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	if _, ok := f.cells[words[1]]; !ok {
		return usage("there is no cell %q; there are %v", words[1], f.names)
	}
	if *reason == "" {
		*reason = fmt.Sprintf("cell weight %s %d", words[1], weight)
	}
	done, err := weigh(ctx, f.control(), words[1], weight, *reason)
	if err != nil {
		return err
	}
	return c.print(done, func(w io.Writer) {
		fmt.Fprintf(w, "%s takes new users with weight %d (was %d), by table %d\n", done.Cell, done.Weight, done.Was, done.Version)
		if done.Open == 0 {
			fmt.Fprintln(w, "no cell takes new users now: registration answers 503")
		}
	})
}

// weighed is what became of a weight.
type weighed struct {
	Cell    string `json:"cell"`
	Weight  int    `json:"weight"`
	Was     int    `json:"was"`
	Version int64  `json:"route_version"`
	Open    int    `json:"open_cells"` // that take new users
}

// weigh publishes a weight: again when another table comes in between, and not at
// all when it is that already.
func weigh(ctx context.Context, control *controlapi.Client, cell string, weight int, reason string) (weighed, error) {
	for tries := 0; ; tries++ {
		t, _, err := control.Route(ctx, 0, 0)
		if err != nil {
			return weighed{}, err
		}
		if t == nil {
			return weighed{}, controlapi.ErrNone
		}
		is, ok := t.Cell(cell)
		if !ok {
			return weighed{}, usage("table %d has no cell %q", t.Version(), cell)
		}
		out := weighed{Cell: cell, Weight: weight, Was: is.Weight, Version: t.Version()}
		for _, other := range t.Cells() {
			if other.Name != cell && other.Weight > 0 {
				out.Open++
			}
		}
		if weight > 0 {
			out.Open++
		}
		if is.Weight == weight {
			return out, nil
		}
		p, err := control.Publish(ctx, controlapi.PublishRequest{
			ExpectVersion: t.Version(), Reason: reason, Changes: &controlapi.Changes{Weights: map[string]int{cell: weight}},
		})
		if errors.Is(err, controlapi.ErrVersion) && tries < 5 {
			continue
		}
		out.Version = p.Version
		return out, err
	}
}
