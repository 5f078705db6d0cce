package compose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"example.com/cellmart/deploy/local"
)

// readyLimit bounds how long a container may take to be ready after a start.
const readyLimit = 90 * time.Second

// part finds the container of a part as the local way names it, c1/postgres.
// Where a cell's services share one container, c1/order isn't a part.
func part(ctx context.Context, s *local.State, name string) (*container, error) {
	service := strings.Replace(name, "/", "-", 1)
	all, err := containers(ctx, labelProject+"="+s.Project, labelService+"="+service)
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, usage("%s is not a container of its own here; scripts/demo --compose --split gives each service one", name)
	}
	return &all[0], nil
}

// Stop ends a part, with kill without asking it. The engine doesn't start it again.
func Stop(ctx context.Context, s *local.State, name string, kill bool) error {
	c, err := part(ctx, s, name)
	if err != nil {
		return err
	}
	verb := "stop"
	if kill {
		verb = "kill"
	}
	_, err = docker(ctx, verb, c.ID)
	return err
}

// Start starts a part again and waits until its own health check holds.
func Start(ctx context.Context, s *local.State, name string) error {
	c, err := part(ctx, s, name)
	if err != nil {
		return err
	}
	if _, err := docker(ctx, "start", c.ID); err != nil {
		return err
	}
	return c.ready(ctx)
}

// Pause freezes a part as it is, or lets it go on.
func Pause(ctx context.Context, s *local.State, name string, on bool) error {
	c, err := part(ctx, s, name)
	if err != nil {
		return err
	}
	verb := "unpause"
	if on {
		verb = "pause"
	}
	_, err = docker(ctx, verb, c.ID)
	return err
}

// ready runs the container's health check until it holds: the engine's own would
// take a minute.
func (c *container) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for {
		_, err := docker(ctx, append([]string{"exec", c.ID}, c.Config.Healthcheck.Test[1:]...)...)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", c.service(), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// AddInstance starts the second instance that compose.split.yaml has for a
// cell's order service, and gives its name.
func AddInstance(ctx context.Context, s *local.State, name string) (string, error) {
	c, err := part(ctx, s, name)
	if err != nil {
		return "", err
	}
	second := c.service() + "-2"
	if err := c.compose(ctx, "--profile", "spare", "up", "--detach", "--no-deps", "--no-recreate", second); err != nil {
		return "", err
	}
	added, err := part(ctx, s, name+"-2")
	if err != nil {
		return "", err
	}
	return name + "-2", added.ready(ctx)
}

// RemoveInstance ends what AddInstance started.
func RemoveInstance(ctx context.Context, s *local.State, name string) error {
	c, err := part(ctx, s, name)
	if err != nil {
		return err
	}
	_, err = docker(ctx, "rm", "--force", c.ID)
	return err
}

// Share plants a shared dependency: a cell's gateway goes out through another
// cell's agent, on that cell's network. undo gives it back its own.
func Share(ctx context.Context, s *local.State, root, cell, other string) (undo func(context.Context) error, err error) {
	c, err := part(ctx, s, cell+"/gateway")
	if err != nil {
		return nil, err
	}
	if root, err = filepath.Abs(root); err != nil {
		return nil, err
	}
	file := filepath.Join(root, ".demo", "shared.yaml")
	text := fmt.Sprintf("services: {%s: {environment: {LINK_ADDR: \"%s-agent:8105\"}, networks: {%s: {}}}}\n", c.service(), other, other)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	again := func(ctx context.Context, files ...string) error {
		if err := c.compose(ctx, append(files, "up", "--detach", "--no-deps", c.service())...); err != nil {
			return err
		}
		made, err := part(ctx, s, cell+"/gateway")
		if err != nil {
			return err
		}
		return made.ready(ctx)
	}
	return func(ctx context.Context) error { return again(ctx) }, again(ctx, "-f", file)
}

// ShareRedis plants another: a cell's Redis stops, and another cell's takes its
// place on the cell's network.
func ShareRedis(ctx context.Context, s *local.State, cell, other string) (undo func(context.Context) error, err error) {
	theirs, err := part(ctx, s, other+"/redis")
	if err != nil {
		return nil, err
	}
	network := s.Project + "_" + cell
	undo = func(ctx context.Context) error {
		_, err := docker(ctx, "network", "disconnect", network, theirs.ID)
		return errors.Join(err, Start(ctx, s, cell+"/redis"))
	}
	if err := Stop(ctx, s, cell+"/redis", false); err != nil {
		return nil, err
	}
	if _, err := docker(ctx, "network", "connect", "--alias", "redis", network, theirs.ID); err != nil {
		return nil, errors.Join(err, Start(ctx, s, cell+"/redis"))
	}
	return undo, nil
}

// compose runs Compose with the files and variables that this container was
// started with, and more.
func (c *container) compose(ctx context.Context, more ...string) error {
	labels := c.Config.Labels
	args := []string{"compose", "--progress", "quiet", "-p", labels[labelProject], "--project-directory", labels[labelFolder]}
	if vars := labels[labelVariables]; vars != "" {
		args = append(args, "--env-file", vars)
	}
	for file := range strings.SplitSeq(cmp.Or(labels[labelFiles], filepath.Join(labels[labelFolder], "compose.yaml")), ",") {
		args = append(args, "-f", file)
	}
	_, err := docker(ctx, append(args, more...)...)
	return err
}
