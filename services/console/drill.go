package console

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	begun map[string]bool // jobs that were asked for here and not entered yet
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
	here := d.begun[job]
	delete(d.begun, job)
	switch {
	case !here:
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

// run has a drill done and gives its report. At the end of ctx the drill is interrupted,
// and has time to mend.
func (d *drills) run(ctx context.Context, j Job) (string, error) {
	// No pipe: its reader ends with this process, and cellctl by SIGPIPE, before it mended.
	report, err := os.CreateTemp("", "cellmart-drill-")
	if err != nil {
		return "", err
	}
	defer os.Remove(report.Name())
	defer report.Close() //nolint:errcheck // the child writes it, it is only read here
	cmd := exec.CommandContext(ctx, d.cellctl, "drill", "--root="+d.root, "--short", "--cell="+j.Args.Cell, j.Args.Drill)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = drillMends
	cmd.Stdout, cmd.Stderr = report, report
	ran := cmd.Run()
	said, err := lastOf(report)
	if err := errors.Join(ran, err); err != nil {
		return "", fmt.Errorf("%w: %s", err, said)
	}
	return said, nil
}

// lastOf is the end of a report.
func lastOf(f *os.File) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-drillSays), drillSays))
	return strings.TrimSpace(string(b)), err
}
