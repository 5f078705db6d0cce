package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"example.com/cellmart/deploy/compose"
	"example.com/cellmart/deploy/local"
	"example.com/cellmart/services/agent/agentapi"
)

// linkChange is what unplug, plug and link answer: what the agent says after.
type linkChange struct {
	Cell  string         `json:"cell"`
	Peer  string         `json:"peer"` // * = everyone
	Fault agentapi.Fault `json:"fault"`
}

const everyone = "*"

func unplug(ctx context.Context, c *cli, args []string) error {
	return plugged(ctx, c, args, (*fleet).pull, "unplugged: nothing comes in or out, it goes on inside")
}

func plug(ctx context.Context, c *cli, args []string) error {
	return plugged(ctx, c, args, (*fleet).putBack, "plugged: its links come up within a second")
}

func plugged(ctx context.Context, c *cli, args []string, do func(*fleet, context.Context, string) (linkChange, error), say string) error {
	words, err := c.parse(args, 1, 1)
	if err != nil {
		return err
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	done, err := do(f, ctx, words[0])
	if err != nil {
		return err
	}
	return c.print(done, func(w io.Writer) { fmt.Fprintln(w, words[0], say) })
}

// pull takes a zone off the others: in containers the engine takes it off the
// backbone, else its agent holds every byte. The verb and the drills do it alike.
func (f *fleet) pull(ctx context.Context, zone string) (linkChange, error) {
	cut := agentapi.Fault{CutIn: true, CutOut: true}
	if f.state.Way == compose.Way {
		return f.backbone(ctx, zone, compose.Unplug, cut)
	}
	return f.fault(ctx, zone, everyone, cut)
}

// putBack undoes pull.
func (f *fleet) putBack(ctx context.Context, zone string) (linkChange, error) {
	if f.state.Way == compose.Way {
		return f.backbone(ctx, zone, compose.Plug, agentapi.Fault{})
	}
	return f.fault(ctx, zone, everyone, agentapi.Fault{})
}

// backbone has the engine do it, and asks the engine whether it is so.
func (f *fleet) backbone(ctx context.Context, zone string, do func(context.Context, *local.State, string) error, want agentapi.Fault) (linkChange, error) {
	if _, err := f.zone(zone); err != nil {
		return linkChange{}, err
	}
	if err := do(ctx, f.state, zone); err != nil {
		return linkChange{}, err
	}
	on, err := compose.Plugged(ctx, f.state, zone)
	if err != nil {
		return linkChange{}, err
	}
	if on == want.CutIn {
		return linkChange{}, fmt.Errorf("the engine has %s on the backbone: %v", zone, on)
	}
	return linkChange{zone, everyone, want}, nil
}

// fault sets a fault and reads it back.
func (f *fleet) fault(ctx context.Context, cell, peer string, want agentapi.Fault) (linkChange, error) {
	a, err := f.zone(cell)
	if err != nil {
		return linkChange{}, err
	}
	if err := a.SetFault(ctx, peer, want); err != nil {
		return linkChange{}, err
	}
	s, err := a.Status(ctx)
	if err != nil {
		return linkChange{}, err
	}
	if got := s.Faults[peer]; got != want {
		return linkChange{}, fmt.Errorf("%s's agent has %+v on the link to %s, not %+v", cell, got, peer, want)
	}
	return linkChange{cell, peer, want}, nil
}

func setLink(ctx context.Context, c *cli, args []string) error {
	delay := c.flags.Duration("delay", 0, "added to each direction")
	cut := c.flags.String("cut", "none", "one-way (A to B), both or none")
	words, err := c.parse(args, 2, 2)
	if err != nil {
		return err
	}
	if *delay < 0 || *delay > time.Minute {
		return usage("--delay takes 0 to 1m, not %s", *delay)
	}
	fault := agentapi.Fault{DelayMS: delay.Milliseconds()}
	switch *cut {
	case "none":
	case "one-way":
		fault.CutOut = true
	case "both":
		fault.CutOut, fault.CutIn = true, true
	default:
		return usage("--cut takes one-way, both or none, not %q", *cut)
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	for _, zone := range words {
		if _, err := f.zone(zone); err != nil {
			return err
		}
	}
	if words[0] == words[1] {
		return usage("a link has two ends: %s and %s are the same", words[0], words[1])
	}
	// The whole fault is kept at A's end; what was set from B's end before is lifted.
	if _, err := f.fault(ctx, words[1], words[0], agentapi.Fault{}); err != nil {
		return err
	}
	done, err := f.fault(ctx, words[0], words[1], fault)
	if err != nil {
		return err
	}
	return c.print(done, func(w io.Writer) {
		fmt.Fprintf(w, "link %s to %s: delay %s, cut %s\n", words[0], words[1], *delay, *cut)
	})
}
