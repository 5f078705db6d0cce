package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"example.com/cellmart/deploy/local"
)

func demo(ctx context.Context, c *cli, args []string) error {
	cells := c.flags.Int("cells", 4, "how many cells, 2 to 8")
	seed := c.flags.Bool("seed", true, "fill it through the public API")
	words, err := c.parse(args, 0, 1)
	if err != nil {
		return err
	}
	what := "up"
	if len(words) == 1 {
		what = words[0]
	}
	switch what {
	case "up":
		base := 8080
		if v := os.Getenv("CELLMART_PORT_BASE"); v != "" {
			if base, err = strconv.Atoi(v); err != nil {
				return usage("CELLMART_PORT_BASE is %q, not a port", v)
			}
		}
		s, err := local.Up(ctx, local.Options{
			Root: c.root, Cells: *cells, PortBase: base, Seed: *seed,
			Log: func(format string, args ...any) { fmt.Fprintf(c.log, "demo: "+format+"\n", args...) },
		})
		if err != nil {
			return err
		}
		return c.print(s, func(w io.Writer) { printDemo(w, c.root, s) })
	case "down":
		err := local.Down(ctx, c.root)
		if errors.Is(err, local.ErrNoDemo) {
			fmt.Fprintln(c.out, "no demo is up here")
			return nil
		}
		if err == nil {
			fmt.Fprintln(c.out, "the demo is down, nothing is left of it")
		}
		return err
	case "status":
		return demoStatus(c)
	}
	return usage("demo takes up, down or status, not %q", what)
}

func demoStatus(c *cli) error {
	s, err := local.Load(c.root)
	if err != nil {
		return err
	}
	type line struct {
		Name  string `json:"name"`
		PID   int    `json:"pid"`
		Alive bool   `json:"alive"`
	}
	var all []line
	dead := 0
	for i := range s.Processes {
		p := &s.Processes[i]
		l := line{p.Name, p.PID, p.Alive()}
		if !l.Alive {
			dead++
		}
		all = append(all, l)
	}
	err = c.print(all, func(w io.Writer) {
		for _, l := range all {
			if !l.Alive {
				fmt.Fprintf(w, "%s doesn't run (was process %d); scripts/demo starts it again\n", l.Name, l.PID)
			}
		}
		fmt.Fprintf(w, "%d of %d processes run; edge %s\n", len(all)-dead, len(all), s.Edge)
	})
	if err == nil && dead > 0 {
		err = errFails
	}
	return err
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
	fmt.Fprintf(w, `next:
  curl -s %s/api/v1/products?limit=3      # what is for sale, from any cell
  bin/cellctl unplug c3                   # and see that the others go on; plug c3 undoes it
  bin/cellctl invariants                  # money, stock, phones: checked over all cells
`, s.Edge)
}
