package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"example.com/cellmart/deploy/compose"
	"example.com/cellmart/deploy/local"
)

func demo(ctx context.Context, c *cli, args []string) error {
	o := demoOptions{way: c.flags.String("way", "", "local or compose; empty = compose where an engine answers")}
	o.cells = c.flags.Int("cells", 4, "how many cells, 2 to 8")
	o.seed = c.flags.Bool("seed", true, "fill it through the public API")
	o.split = c.flags.Bool("split", false, "compose: each service in a container of its own")
	seconds := c.flags.Int("seconds", 60, "status: how long to measure CPU; 0 = not at all")
	words, err := c.parse(args, 0, 1)
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"", local.Way, compose.Way}, *o.way) {
		return usage("--way takes local or compose, not %q", *o.way)
	}
	what := "up"
	if len(words) == 1 {
		what = words[0]
	}
	switch what {
	case "up":
		return demoUp(ctx, c, o)
	case "down":
		return demoDown(ctx, c, *o.way)
	case "status":
		if *seconds < 0 || *seconds > 3600 {
			return usage("--seconds takes 0 to 3600, not %d", *seconds)
		}
		return demoStatus(ctx, c, *o.way, time.Duration(*seconds)*time.Second)
	}
	return usage("demo takes up, down or status, not %q", what)
}

type demoOptions struct {
	way         *string
	cells       *int
	seed, split *bool
}

func demoUp(ctx context.Context, c *cli, o demoOptions) error {
	base := 8080
	if v := os.Getenv("CELLMART_PORT_BASE"); v != "" {
		var err error
		if base, err = strconv.Atoi(v); err != nil {
			return usage("CELLMART_PORT_BASE is %q, not a port", v)
		}
	}
	up, err := c.state(ctx)
	if err != nil && !errors.Is(err, local.ErrNoDemo) {
		return err
	}
	way, why := choose(ctx, *o.way, up, compose.Engine)
	first := sync.OnceFunc(func() { fmt.Fprintf(c.log, "demo: %s (%s)\n", way, why) }) // not before bad input was told
	log := func(format string, args ...any) {
		first()
		fmt.Fprintf(c.log, "demo: "+format+"\n", args...)
	}
	var s *local.State
	if way == compose.Way {
		if up != nil && up.Way != way {
			return usage("a demo of local processes is up here: scripts/demo down first")
		}
		s, err = compose.Up(ctx, compose.Options{Root: c.root, Cells: *o.cells, PortBase: base, Split: *o.split, Seed: *o.seed, Out: c.log, Log: log})
	} else {
		s, err = local.Up(ctx, local.Options{Root: c.root, Cells: *o.cells, PortBase: base, Seed: *o.seed, Mode: os.Getenv("CELLMART_GATEWAY_MODE"), Log: log})
	}
	if err != nil {
		return err
	}
	return c.print(s, func(w io.Writer) { printDemo(w, c.root, s) })
}

// choose gives the way to run, and the reason.
func choose(ctx context.Context, asked string, up *local.State, engine func(context.Context) error) (way, why string) {
	if asked != "" {
		return asked, "as asked"
	}
	if up != nil {
		return up.Way, "which is up here"
	}
	if err := engine(ctx); err != nil {
		return local.Way, "processes of this machine: " + err.Error()
	}
	return compose.Way, "a Docker engine answers; --local runs it without"
}

func demoDown(ctx context.Context, c *cli, way string) error {
	s, err := c.found(ctx, way)
	if err == nil {
		if s.Way == compose.Way {
			err = compose.Down(ctx, c.root)
		} else {
			err = local.Down(ctx, c.root)
		}
	}
	if errors.Is(err, local.ErrNoDemo) {
		fmt.Fprintln(c.out, "no demo is up here")
		return nil
	}
	if err == nil {
		fmt.Fprintln(c.out, "the demo is down, nothing is left of it")
	}
	return err
}

// found is the demo that is up, which must be of the way that was asked for.
func (c *cli) found(ctx context.Context, way string) (*local.State, error) {
	s, err := c.state(ctx)
	if err == nil && way != "" && s.Way != way {
		return nil, usage("the demo that is up here is %s, not %s", s.Way, way)
	}
	return s, err
}

// login is one account that the seed made.
type login struct {
	Role     string `json:"role"`
	Name     string `json:"name"`
	Phone    string `json:"phone"`
	Password string `json:"password"`
	Cell     string `json:"cell"`
}

func printDemo(w io.Writer, root string, s *local.State) {
	fmt.Fprintf(w, "edge        %s\n", s.Edge)
	if s.Console != "" {
		fmt.Fprintf(w, "console     %s  name operator  password %s\n", s.Console, s.Secrets.Console)
	}
	for _, c := range s.Cells {
		fmt.Fprintf(w, "gateway %s  %s\n", c.Name, c.Gateway)
	}
	var logins []login
	if b, err := os.ReadFile(filepath.Join(root, ".demo", "logins.json")); err == nil {
		_ = json.Unmarshal(b, &logins) // not seeded: nothing to show
	}
	for _, l := range logins {
		if l.Role == "shopper" {
			fmt.Fprintf(w, "login       phone %s  password %s  (%s, home %s)\n", l.Phone, l.Password, l.Name, l.Cell)
		}
	}
	unplugged := s.Cells[min(2, len(s.Cells)-1)].Name
	fmt.Fprintf(w, `next:
  open %s in a browser   # the shop, served by any cell; log in with a phone from above
  bin/cellctl unplug %s                   # and see that the others go on; plug %[2]s undoes it
  bin/cellctl invariants                  # money, stock, phones: checked over all cells
`, s.Edge, unplugged)
}
