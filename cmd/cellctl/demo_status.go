package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"example.com/cellmart/deploy/compose"
	"example.com/cellmart/deploy/local"
)

// demoState is what `demo status` answers.
type demoState struct {
	Way   string       `json:"way"`
	Edge  string       `json:"edge"`
	Parts []demoPart   `json:"parts"`           // processes, or containers
	Usage *local.Usage `json:"usage,omitempty"` // absent when it wasn't measured
}

type demoPart struct {
	Name     string `json:"name"`
	PID      int    `json:"pid,omitempty"`      // local
	Restarts int    `json:"restarts,omitempty"` // compose: by the engine, after it ended by itself
	Alive    bool   `json:"alive"`
}

func demoStatus(ctx context.Context, c *cli, way string, over time.Duration) error {
	s, err := c.found(ctx, way)
	if err != nil {
		return err
	}
	out := demoState{Way: s.Way, Edge: s.Edge}
	measure := s.Usage
	if s.Way == compose.Way {
		if s, err = compose.Find(ctx, c.root); err != nil { // ports and keys as they are now
			return err
		}
		parts, err := compose.Parts(ctx, s)
		if err != nil {
			return err
		}
		for _, p := range parts {
			out.Parts = append(out.Parts, demoPart{Name: p.Name, Restarts: p.Restarts, Alive: p.Alive})
		}
		measure = func(ctx context.Context, d time.Duration) (local.Usage, error) { return compose.Usage(ctx, parts, d) }
	} else {
		for i := range s.Processes {
			p := &s.Processes[i]
			out.Parts = append(out.Parts, demoPart{Name: p.Name, PID: p.PID, Alive: p.Alive()})
		}
	}
	if over > 0 {
		if !c.json {
			fmt.Fprintf(c.log, "demo: measuring for %s\n", over)
		}
		u, err := measure(ctx, over)
		if err != nil {
			return err
		}
		out.Usage = &u
	}
	dead := 0
	for _, p := range out.Parts {
		if !p.Alive {
			dead++
		}
	}
	err = c.print(out, func(w io.Writer) { printDemoStatus(w, out, dead) })
	if err == nil && dead > 0 {
		err = errFails
	}
	return err
}

func printDemoStatus(w io.Writer, s demoState, dead int) {
	what := "processes"
	if s.Way == compose.Way {
		what = "containers"
	}
	for _, p := range s.Parts {
		if !p.Alive {
			fmt.Fprintf(w, "%s doesn't run; scripts/demo starts it again\n", p.Name)
		}
		if p.Restarts > 0 {
			fmt.Fprintf(w, "%s ended by itself and was started again %d times\n", p.Name, p.Restarts)
		}
	}
	fmt.Fprintf(w, "%d of %d %s run; edge %s\n", len(s.Parts)-dead, len(s.Parts), what, s.Edge)
	if u := s.Usage; u != nil {
		if u.Cores != nil {
			fmt.Fprintf(w, "CPU     %.2f cores, mean over %.0f s (%.1f %% of two cores)\n", *u.Cores, u.Seconds, *u.Cores/2*100)
		}
		if u.PSS != nil {
			fmt.Fprintf(w, "memory  %.0f MB, sum of PSS\n", float64(*u.PSS)/1e6)
		}
		if u.Note != "" {
			fmt.Fprintln(w, u.Note)
		}
	}
}
