//go:build e2e

package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"example.com/cellmart/deploy/local"
	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/services/agent/agentapi"
)

// demo is the running system, shared by all tests: they run one after the other.
type system struct {
	*local.State
	root   string
	agents map[string]*agentapi.Client
}

var sys *system

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := around(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

// around starts the demo, runs the tests and ends the demo, whatever happened.
func around(m *testing.M) (code int, err error) {
	root, err := os.MkdirTemp("", "cellmart-e2e-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(root)
	if err := os.Chmod(root, 0o755); err != nil { // Postgres runs as another user
		return 1, err
	}
	build := exec.Command("go", "build", "-o", filepath.Join(root, "bin")+"/", "example.com/cellmart/cmd/cellmart", "example.com/cellmart/cmd/cellctl")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build: %w: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	state, err := up(ctx, root)
	defer func() {
		end, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if code != 0 {
			keepLogs(root)
		}
		if down := local.Down(end, root); down != nil && !errors.Is(down, local.ErrNoDemo) {
			err = errors.Join(err, down)
		}
	}()
	if err != nil {
		return 1, err
	}
	sys = &system{State: state, root: root, agents: map[string]*agentapi.Client{}}
	for _, c := range state.Cells {
		sys.agents[c.Name] = &agentapi.Client{BaseURL: c.Agent, OperatorKey: state.OperatorKey}
	}
	return m.Run(), nil
}

// up looks for a free range of ports a few times.
func up(ctx context.Context, root string) (*local.State, error) {
	for try := 0; ; try++ {
		base := 21000 + 500*rand.IntN(20)
		s, err := local.Up(ctx, local.Options{Root: root, PortBase: base, Seed: true, Log: func(f string, a ...any) {
			fmt.Fprintf(os.Stderr, "e2e: "+f+"\n", a...)
		}})
		var busy cellkit.Usage
		if errors.As(err, &busy) && try < 5 {
			continue
		}
		return s, err
	}
}

// keepLogs copies the processes' logs of a failed run to where CELLMART_E2E_LOGS says.
func keepLogs(root string) {
	to := os.Getenv("CELLMART_E2E_LOGS")
	if to == "" {
		return
	}
	to = filepath.Join(to, time.Now().Format("150405"))
	if err := os.CopyFS(to, os.DirFS(filepath.Join(root, ".demo", "logs"))); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: logs:", err)
	}
}

// outage is how long a part stays stopped.
func outage() time.Duration {
	if os.Getenv("CELLMART_LONG") != "" {
		return time.Minute
	}
	return 20 * time.Second
}
