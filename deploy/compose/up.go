package compose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"example.com/cellmart/deploy/local"
)

// Way is how a state made here is marked.
const Way = "compose"

// startLimit is for everything after the images are there.
const startLimit = 6 * time.Minute

// Options of a demo in containers.
type Options struct {
	Root     string // the checkout
	Cells    int    // 2 to 8, default 4
	PortBase int    // the edge's port, default 8080; the others follow as in the local way
	Split    bool   // each service in a container of its own; four cells only
	Seed     bool
	Log      func(format string, args ...any) // progress
	Out      io.Writer                        // what the engine prints when something goes wrong
}

func (o *Options) defaults() error {
	if o.Cells == 0 {
		o.Cells = 4
	}
	if o.Cells < 2 || o.Cells > 8 {
		return usage("--cells takes 2 to 8, not %d", o.Cells)
	}
	if o.Split && o.Cells != 4 {
		return usage("--split has four cells, not %d: compose.split.yaml names them", o.Cells)
	}
	if o.PortBase == 0 {
		o.PortBase = 8080
	}
	if o.PortBase < 1024 || o.PortBase > 65000 {
		return usage("CELLMART_PORT_BASE takes 1024 to 65000, not %d", o.PortBase)
	}
	var err error
	if o.Root, err = filepath.Abs(o.Root); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(o.Root, "compose.yaml")); err != nil {
		return usage("%s has no compose.yaml: it isn't the checkout", o.Root)
	}
	return nil
}

// Up builds the image, starts what doesn't run, and returns when the demo is
// seeded (or answers, without the seed).
func Up(ctx context.Context, o Options) (*local.State, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	if err := Engine(ctx); err != nil {
		return nil, usage("%v", err)
	}
	if err := o.alike(ctx); err != nil {
		return nil, err
	}
	args, err := o.write()
	if err != nil {
		return nil, err
	}
	o.Log("building the image")
	build := append(args, "build", "--quiet")
	if err := show(ctx, o.Out, append([]string{"compose"}, build...)...); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	o.Log("starting containers")
	up := append(args, "up", "--detach", "--remove-orphans")
	if !o.Seed {
		up = append(up, "--scale", "seed=0")
	}
	if err := show(ctx, o.Out, append([]string{"compose", "--progress", "quiet"}, up...)...); err != nil {
		return nil, err
	}
	o.Log("waiting for the seed")
	if err := o.wait(ctx); err != nil {
		return nil, err
	}
	return Find(ctx, o.Root)
}

// alike refuses to change a demo that is up into one of another size.
func (o *Options) alike(ctx context.Context) error {
	s, err := Find(ctx, o.Root)
	if errors.Is(err, local.ErrNoDemo) {
		return nil
	}
	if err == nil && (len(s.Cells) != o.Cells || s.PortBase != o.PortBase) {
		return usage("a demo with %d cells at port %d is up here: scripts/demo down first", len(s.Cells), s.PortBase)
	}
	return err
}

// write makes .demo/ with the variables, and the files if it isn't four cells;
// it gives Compose's own arguments.
func (o *Options) write() ([]string, error) {
	dir := filepath.Join(o.Root, ".demo")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	vars := filepath.Join(dir, "compose.env")
	if err := os.WriteFile(vars, o.variables(), 0o644); err != nil {
		return nil, err
	}
	args := []string{"--project-directory", o.Root, "--env-file", vars}
	if o.Cells == 4 {
		args = append(args, "-f", filepath.Join(o.Root, "compose.yaml"))
		if o.Split {
			args = append(args, "-f", filepath.Join(o.Root, "compose.split.yaml"))
		}
		return args, nil
	}
	parts := filepath.Join(o.Root, "deploy", "compose")
	first, err := os.ReadFile(filepath.Join(parts, "c1.yaml"))
	if err != nil {
		return nil, err
	}
	include := "include:\n  - " + filepath.Join(parts, "global.yaml") + "\n"
	for k := 1; k <= o.Cells; k++ {
		path := filepath.Join(parts, fmt.Sprintf("c%d.yaml", k))
		if k > 4 {
			path = filepath.Join(dir, fmt.Sprintf("c%d.yaml", k))
			text := bytes.ReplaceAll(cellFile(first, k), []byte("file: cell.yaml"), []byte("file: "+filepath.Join(parts, "cell.yaml")))
			if err := os.WriteFile(path, text, 0o644); err != nil {
				return nil, err
			}
		}
		include += "  - " + path + "\n"
	}
	file := filepath.Join(dir, "compose.yaml")
	return append(args, "-f", file), os.WriteFile(file, []byte(include), 0o644)
}

// cellFile is the file of cell k, made from the first cell's.
func cellFile(first []byte, k int) []byte {
	return []byte(strings.NewReplacer(
		"c1", fmt.Sprintf("c%d", k), "C1", fmt.Sprintf("C%d", k), `ORDINAL: "1"`, fmt.Sprintf(`ORDINAL: "%d"`, k),
		":-8214", fmt.Sprintf(":-%d", 8184+30*k), ":-8101", fmt.Sprintf(":-%d", 8100+k),
		"# Cell c1. The other cells' files are this one with another name and number (compose_test.go compares them).",
		fmt.Sprintf("# Cell c%d: c1.yaml with another name and number (compose_test.go compares them).", k),
	).Replace(string(first)))
}

// variables are what the files leave open: the ports, and lists of all cells.
func (o *Options) variables() []byte {
	var b bytes.Buffer
	set := func(name string, value any) { fmt.Fprintf(&b, "%s=%v\n", name, value) }
	set("CELLMART_PORT_BASE", o.PortBase)
	set("CELLMART_PORT_CONSOLE", o.PortBase+10)
	set("CELLMART_PORT_GLOBAL_AGENT", o.PortBase+104)
	var names, peers, first, regions, entrances, public []string
	for k := 1; k <= o.Cells; k++ {
		set(fmt.Sprintf("CELLMART_PORT_C%d", k), o.PortBase+20+k)
		set(fmt.Sprintf("CELLMART_PORT_C%d_AGENT", k), o.PortBase+104+30*k)
		name, region := fmt.Sprintf("c%d", k), local.Region(k)
		names = append(names, name)
		peers = append(peers, fmt.Sprintf("%s=%s-agent:8104", name, name))
		first = append(first, fmt.Sprintf("%s:%s:100", name, region))
		regions = append(regions, name+"="+region)
		public = append(public, fmt.Sprintf("%s=http://127.0.0.1:%d", name, o.PortBase+20+k))
		entrances = append(entrances, name+"=http://edge:8080")
	}
	list := func(all []string) string { return strings.Join(all, ",") }
	set("CELLMART_CELLS", list(names))
	set("CELLMART_BORDERS", list(peers))
	set("CELLMART_PEERS", list(append(peers, "global=global-agent:8104")))
	set("CELLMART_INIT", list(first))
	set("CELLMART_REGIONS", list(regions))
	set("CELLMART_ENTRANCES", list(entrances))
	set("CELLMART_PUBLIC", list(public))
	return b.Bytes()
}

var errNotYet = errors.New("not yet")

// wait returns when the seed has ended, or without one when every gateway answers.
func (o *Options) wait(ctx context.Context) error {
	for {
		err := o.started(ctx)
		if !errors.Is(err, errNotYet) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not up within %s: %w", startLimit, err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (o *Options) started(ctx context.Context) error {
	part := "gateway"
	if o.Seed {
		part = "seed"
	}
	all, err := containers(ctx, labelFolder+"="+o.Root, labelPart+"="+part)
	if err != nil {
		return err
	}
	for i := range all {
		c := &all[i]
		switch {
		case o.Seed && c.State.Status == "exited" && c.State.ExitCode != 0:
			var last bytes.Buffer
			_ = show(ctx, &last, "logs", "--tail", "3", c.ID) // the exit code says enough
			return fmt.Errorf("the seed failed with exit code %d: %s", c.State.ExitCode, bytes.TrimSpace(last.Bytes()))
		case o.Seed && c.State.Status != "exited":
			return errNotYet
		case !o.Seed && !answers(ctx, c.url("8080")+"/api/v1/categories"):
			return errNotYet
		}
	}
	return nil
}

func answers(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// Down removes the demo of this checkout with its volumes and networks, and .demo/.
func Down(ctx context.Context, root string) error {
	s, err := project(ctx, root)
	if err != nil {
		return err
	}
	if err := show(ctx, io.Discard, "compose", "-p", s, "down", "--volumes", "--remove-orphans", "--timeout", "10"); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(root, ".demo"))
}

// project is the name under which Compose runs this checkout.
func project(ctx context.Context, root string) (string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	all, err := containers(ctx, labelFolder+"="+root, labelPart)
	if err != nil {
		return "", err
	}
	if len(all) == 0 {
		return "", local.ErrNoDemo
	}
	return all[0].Config.Labels[labelProject], nil
}
