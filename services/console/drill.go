package console

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// drillNames are the drills that leave the global zone, and so the console, alone.
var drillNames = []string{"unplug", "db-down", "instance"}

const (
	drillLimit = 12 * time.Minute // a drill ends itself after ten
	drillMends = 70 * time.Second // it undoes what it broke within a minute after it was interrupted
	drillSays  = 4000             // bytes of its report that are kept
)

// drills runs them with the operator's tool, one at a time: they need people who shop,
// which a service can't be.
type drills struct {
	cellctl, root string // "" = none can be run from here

	mu    sync.Mutex
	runs  bool
	begun map[string]bool // jobs of this process
}

func validDrill(name string) bool { return slices.Contains(drillNames, name) }

// mine notes that a job was asked for here.
func (d *drills) mine(job string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.begun == nil {
		d.begun = map[string]bool{}
	}
	d.begun[job] = true
}

// enter takes the one place. A drill that another process left open isn't begun again:
// it mended what it broke, or was killed, and then a person has to look.
func (d *drills) enter(job string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !d.begun[job]:
		return errors.New("the console was stopped during the drill: see whether something is still unplugged or down")
	case d.runs:
		return errors.New("another drill is on")
	}
	d.runs = true
	return nil
}

func (d *drills) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.runs = false
}

// do runs a drill and gives its report. At the end of ctx the drill is interrupted,
// and has time to mend.
func (d *drills) do(ctx context.Context, j Job) (string, error) {
	if err := d.enter(j.ID); err != nil {
		return "", err
	}
	defer d.leave()
	cmd := exec.CommandContext(ctx, d.cellctl, "drill", "--root="+d.root, "--short", "--cell="+j.Args.Cell, j.Args.Drill)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = drillMends
	out, err := cmd.CombinedOutput()
	said := strings.ToValidUTF8(strings.TrimSpace(string(out[max(0, len(out)-drillSays):])), "")
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, said)
	}
	return said, nil
}
