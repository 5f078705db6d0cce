package main

import (
	"context"
	"path/filepath"

	"example.com/cellmart/cmd/cellctl/explain"
	"example.com/cellmart/deploy/local"
	"example.com/cellmart/platform/cellkit/id"
)

func explainRoute(ctx context.Context, c *cli, args []string) error {
	words, err := c.parse(args, 1, 1)
	if err != nil {
		return err
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	numbers, err := id.NewNumbers([]byte(f.state.Secrets.Numbers))
	if err != nil {
		return err
	}
	in, err := explain.Parse(words[0], numbers)
	if err != nil {
		return err
	}
	d, err := explain.Decide(in, f.tables().Ask(ctx))
	if err != nil {
		return err
	}
	return c.print(d, d.Write)
}

// tables is where a route table may be found: in containers Redis and snapshots
// are out of reach.
func (f *fleet) tables() explain.Sources {
	s := explain.Sources{Key: f.key, Control: f.control(), Agents: f.cells}
	if f.state.Way != local.Way {
		return s
	}
	s.Redis, s.Snapshots = map[string]string{}, map[string]string{}
	for _, name := range f.names {
		s.Snapshots[name] = filepath.Join(f.state.Data, name, "route")
	}
	for _, p := range f.state.Processes {
		if p.Env["REDIS_ADDR"] != "" {
			s.Redis[p.Zone] = p.Env["REDIS_ADDR"]
		}
	}
	return s
}
