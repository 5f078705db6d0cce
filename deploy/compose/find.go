package compose

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"example.com/cellmart/deploy/local"
)

// Find reads from the engine the demo that was started from the checkout in root,
// by Up or by `docker compose up`, and writes it to .demo/ as the local way does.
// local.ErrNoDemo when there is none.
func Find(ctx context.Context, root string) (*local.State, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	all, err := containers(ctx, labelFolder+"="+root, labelPart)
	if err != nil {
		return nil, err
	}
	s := &local.State{Way: Way}
	var keys *container
	for i := range all {
		c := &all[i]
		labels := c.Config.Labels
		if s.Project = cmp.Or(s.Project, labels[labelProject]); s.Project != labels[labelProject] {
			return nil, usage("two demos were started from %s: %s and %s; end one: docker compose -p NAME down -v", root, s.Project, labels[labelProject])
		}
		switch zone := labels[labelZone]; labels[labelPart] {
		case "edge":
			s.Edge = c.url("8080")
		case "seed":
			s.Seeded = c.State.Status == "exited" && c.State.ExitCode == 0
		case "console":
			s.Console = c.url("8090")
			if c.State.Running {
				b, err := file(ctx, c.ID, "/keys/console")
				if err != nil {
					return nil, err
				}
				s.Secrets.Console = string(b)
			}
		case "gateway":
			place(s, zone).Gateway = c.url("8080")
		case "agent":
			place(s, zone).Agent = c.url("8103")
			if c.State.Running {
				keys = c
			}
		}
	}
	if len(s.Cells) == 0 || keys == nil {
		return nil, local.ErrNoDemo
	}
	slices.SortFunc(s.Cells, func(a, b local.Cell) int { return cmp.Compare(a.Name, b.Name) }) // c1 to c8
	if _, err := fmt.Sscanf(s.Edge, "http://127.0.0.1:%d", &s.PortBase); err != nil {
		return nil, fmt.Errorf("the edge's port isn't on 127.0.0.1 but %q", s.Edge)
	}
	return s, keep(ctx, root, s, keys)
}

// place is a zone's entry in the state.
func place(s *local.State, zone string) *local.Cell {
	if zone == "global" {
		s.Global.Name = zone
		return &s.Global
	}
	i := slices.IndexFunc(s.Cells, func(c local.Cell) bool { return c.Name == zone })
	if i < 0 {
		i = len(s.Cells)
		s.Cells = append(s.Cells, local.Cell{Name: zone})
	}
	return &s.Cells[i]
}

// keep copies what an operator needs out of an agent's volume, and writes .demo/.
func keep(ctx context.Context, root string, s *local.State, agent *container) error {
	for name, to := range map[string]*string{"operator": &s.OperatorKey, "numbers": &s.Secrets.Numbers} {
		b, err := file(ctx, agent.ID, "/keys/"+name)
		if err != nil {
			return err
		}
		*to = string(b)
	}
	s.Secrets.Operator = s.OperatorKey
	pub, err := file(ctx, agent.ID, "/keys/control.pub")
	if err != nil {
		return err
	}
	dir := filepath.Join(root, ".demo")
	if err := os.MkdirAll(filepath.Join(dir, "pki"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "pki", "control.pub"), pub, 0o644); err != nil {
		return err
	}
	if s.Seeded {
		if err := logins(ctx, s, filepath.Join(dir, "logins.json")); err != nil {
			return err
		}
	}
	return s.Save(root)
}

func logins(ctx context.Context, s *local.State, to string) error {
	edges, err := containers(ctx, labelProject+"="+s.Project, labelPart+"=edge")
	if err != nil || len(edges) == 0 {
		return err
	}
	b, err := file(ctx, edges[0].ID, "/demo/logins.json")
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}

// file reads one file of a container that has no shell to print it.
func file(ctx context.Context, id, path string) ([]byte, error) {
	var complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, "docker", "cp", id+":"+path, "-")
	cmd.Stderr = &complaint
	b, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("docker cp %s: %w: %s", path, err, bytes.TrimSpace(complaint.Bytes()))
	}
	r := tar.NewReader(bytes.NewReader(b))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("docker cp %s: no file came", path)
		}
		if err != nil {
			return nil, fmt.Errorf("docker cp %s: %w", path, err)
		}
		if h.Typeflag == tar.TypeReg {
			return io.ReadAll(r)
		}
	}
}
