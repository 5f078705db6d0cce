package compose

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"example.com/cellmart/deploy/local"
)

// Unplug takes a zone off the backbone: the engine disconnects its containers, so
// not a packet passes between it and any other zone, or the edge. Inside, and on
// its published ports, it goes on.
func Unplug(ctx context.Context, s *local.State, zone string) error {
	return each(ctx, s, zone, func(c *container, on bool, network string) error {
		if !on {
			return nil
		}
		_, err := docker(ctx, "network", "disconnect", network, c.ID)
		return err
	})
}

// Plug puts a zone back, by the name that its peers dial; its address may be
// another one.
func Plug(ctx context.Context, s *local.State, zone string) error {
	return each(ctx, s, zone, func(c *container, on bool, network string) error {
		if on {
			return nil
		}
		_, err := docker(ctx, "network", "connect", "--alias", c.service(), network, c.ID)
		return err
	})
}

// Plugged says whether a zone is on the backbone.
func Plugged(ctx context.Context, s *local.State, zone string) (bool, error) {
	plugged := true
	err := each(ctx, s, zone, func(_ *container, on bool, _ string) error {
		plugged = plugged && on
		return nil
	})
	return plugged, err
}

// each calls do for every container of the zone that belongs on the backbone.
func each(ctx context.Context, s *local.State, zone string, do func(c *container, on bool, network string) error) error {
	all, err := containers(ctx, labelProject+"="+s.Project, labelZone+"="+zone, labelPart+"=agent")
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("zone %s has no agent in project %s", zone, s.Project)
	}
	network := s.Project + "_backbone"
	for i := range all {
		names := make([]string, 0, 2)
		for name := range all[i].NetworkSettings.Networks {
			names = append(names, name)
		}
		if err := do(&all[i], slices.Contains(names, network), network); err != nil {
			return err
		}
	}
	return nil
}

// Border looks at the networks of all running containers: how many are as they
// should be, and who is on another zone's, or on the backbone without being an
// agent or the edge.
func Border(ctx context.Context, s *local.State) (seen int, foreign []string, err error) {
	all, err := containers(ctx, labelProject+"="+s.Project)
	if err != nil {
		return 0, nil, err
	}
	seen, foreign = border(s.Project, all)
	return seen, foreign, nil
}

func border(project string, all []container) (seen int, foreign []string) {
	for i := range all {
		c := &all[i]
		if !c.State.Running {
			continue
		}
		zone, _, _ := strings.Cut(c.service(), "-")
		own := map[string]bool{zone: true}
		switch {
		case zone == "edge" || zone == "seed": // people's side
			own = map[string]bool{"people": true, "backbone": zone == "edge"}
		case strings.HasSuffix(c.service(), "-agent"):
			own["backbone"] = true
		}
		for name := range c.NetworkSettings.Networks {
			if own[strings.TrimPrefix(name, project+"_")] {
				seen++
				continue
			}
			foreign = append(foreign, c.service()+" is on the network "+strings.TrimPrefix(name, project+"_"))
		}
	}
	slices.Sort(foreign)
	return seen, foreign
}
