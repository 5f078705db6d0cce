package cellkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit/env"
)

// Process is what a component gets from the program that runs it.
type Process struct {
	Getenv func(string) string
	Log    *slog.Logger
	Stdout io.Writer
	Args   []string // commands only: the words after the command's name
}

// Component is a service or a one-shot command of the binary.
type Component struct {
	Name string
	Doc  string           // one line
	Vars func() []env.Var // for `help NAME`; may be nil
	Run  func(ctx context.Context, p Process) error
	Once bool // a command: runs alone, gets the remaining arguments
}

// Usage is an error in how a program was called or configured: exit code 2.
type Usage struct{ Err error }

// Error is the text of the mistake.
func (u Usage) Error() string { return u.Err.Error() }

// Unwrap gives the mistake.
func (u Usage) Unwrap() error { return u.Err }

// Main runs the named components until they end or a signal asks them to, and
// gives the exit code: 0, 1 on a failure, 2 with one line on bad input.
func Main(args []string, getenv func(string) string, stdout, stderr io.Writer, components ...Component) int {
	find := func(name string) (Component, bool) {
		i := slices.IndexFunc(components, func(c Component) bool { return c.Name == name })
		if i < 0 {
			return Component{}, false
		}
		return components[i], true
	}
	if len(args) == 0 || args[0] == "help" {
		return help(args, find, stdout, stderr, components)
	}
	level := slog.LevelInfo
	if getenv("LOG_LEVEL") != "" {
		if err := level.UnmarshalText([]byte(getenv("LOG_LEVEL"))); err != nil {
			fmt.Fprintf(stderr, "cellmart: LOG_LEVEL: %v\n", err)
			return 2
		}
	}
	log := slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: level}))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	process := func(name string) Process {
		return Process{Getenv: getenv, Log: log.With("service", name, "cell", getenv("CELL")), Stdout: stdout}
	}

	// Every name is known before anything starts: a mistake starts nothing.
	var chosen []Component
	for i, name := range args {
		c, ok := find(name)
		if !ok {
			fmt.Fprintf(stderr, "cellmart: no service or command %q; `cellmart help` lists them\n", name)
			return 2
		}
		if c.Once {
			if i > 0 {
				fmt.Fprintf(stderr, "cellmart: command %q stands alone\n", name)
				return 2
			}
			p := process(name)
			p.Args = args[1:]
			return exit(stderr, name, c.Run(ctx, p))
		}
		chosen = append(chosen, c)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range chosen {
		group.Go(func() error {
			if err := c.Run(ctx, process(c.Name)); err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
			return nil
		})
	}
	return exit(stderr, strings.Join(args, " "), group.Wait())
}

func exit(stderr io.Writer, name string, err error) int {
	var usage Usage
	switch {
	case err == nil || errors.Is(err, context.Canceled):
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "cellmart %s: %s\n", name, strings.ReplaceAll(usage.Error(), "\n", "; "))
		return 2
	default:
		fmt.Fprintf(stderr, "cellmart %s: %v\n", name, err)
		return 1
	}
}

func help(args []string, find func(string) (Component, bool), stdout, stderr io.Writer, components []Component) int {
	if len(args) < 2 {
		fmt.Fprintln(stdout, "cellmart SERVICE... runs services in one process; cellmart COMMAND runs a command; cellmart help NAME prints its variables")
		for _, c := range components {
			fmt.Fprintf(stdout, "  %-10s %s\n", c.Name, c.Doc)
		}
		return 0
	}
	c, ok := find(args[1])
	if !ok {
		fmt.Fprintf(stderr, "cellmart: no service or command %q\n", args[1])
		return 2
	}
	fmt.Fprintf(stdout, "%s: %s\n", c.Name, c.Doc)
	if c.Vars != nil {
		env.WriteUsage(stdout, c.Vars())
	}
	return 0
}
