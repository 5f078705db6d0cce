package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"example.com/cellmart/deploy/local"
	"example.com/cellmart/platform/cellkit"
)

// demo is a running system of some cells, made for one bench.
type demo struct {
	root, binary string
	state        *local.State
}

// withDemo starts one in a folder of its own, and ends it whatever happens.
func withDemo(ctx context.Context, log io.Writer, do func(demo) ([]row, error)) ([]row, error) {
	return withCells(ctx, log, 2, do)
}

// withCells is the same with so many cells.
func withCells(ctx context.Context, log io.Writer, cells int, do func(demo) ([]row, error)) (_ []row, err error) {
	root, err := os.MkdirTemp("", "cellmart-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(root)                      //nolint:errcheck // what is left is in the system's folder for that
	if err := os.Chmod(root, 0o755); err != nil { // Postgres runs as another user
		return nil, err
	}
	d := demo{root: root, binary: filepath.Join(root, "bin", "cellmart")}
	build := exec.CommandContext(ctx, "go", "build", "-o", d.binary, "example.com/cellmart/cmd/cellmart")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build: %w: %s", err, out)
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if down := local.Down(end, root); down != nil && !errors.Is(down, local.ErrNoDemo) {
			err = errors.Join(err, down)
		}
	}()
	if d.state, err = up(ctx, root, cells, log); err != nil {
		return nil, err
	}
	return do(d)
}

// up takes CELLMART_PORT_BASE, or looks for a free range of ports a few times.
func up(ctx context.Context, root string, cells int, log io.Writer) (*local.State, error) {
	fixed, err := 0, error(nil)
	if v := os.Getenv("CELLMART_PORT_BASE"); v != "" {
		if fixed, err = strconv.Atoi(v); err != nil {
			return nil, cellkit.Usage{Err: fmt.Errorf("CELLMART_PORT_BASE is %q, not a port", v)}
		}
	}
	for try := 0; ; try++ {
		base := fixed
		if fixed == 0 {
			base = 21000 + 500*rand.IntN(20)
		}
		s, err := local.Up(ctx, local.Options{Root: root, Cells: cells, PortBase: base, Log: func(f string, a ...any) {
			fmt.Fprintf(log, "bench: demo: "+f+"\n", a...)
		}})
		var busy cellkit.Usage
		if errors.As(err, &busy) && fixed == 0 && try < 5 && strings.Contains(err.Error(), "is taken") {
			continue
		}
		return s, err
	}
}
