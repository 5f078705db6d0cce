// Command cellctl is the operator's tool: it shows and changes what the cells of
// a demo do. It works with any part dead where the thing asked for can: it talks
// to the agents, never to the control plane alone.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"example.com/cellmart/cmd/cellctl/drill"
	"example.com/cellmart/deploy/local"
	"example.com/cellmart/platform/cellkit"
)

// verb is one thing that cellctl does.
type verb struct {
	name, args, doc string
	run             func(ctx context.Context, c *cli, args []string) error
}

func verbs() []verb {
	return []verb{
		{"status", "", "cells, links, messages, as each agent sees them", status},
		{"route", "ID|NUMBER|PHONE", "where an ID, order number or phone lives, and why; which table says so", explainRoute},
		{"cell", "weight CELL W [--reason TEXT]", "share of new users, 0 = closed to them", cellVerb},
		{"standby", "status|spread|set --slots A-B --to CELL|cancel ID [--reason TEXT] [--wait D]", "which cell keeps a copy of which slots, and how far it is", standbyVerb},
		{"unplug", "CELL", "cut all links of a cell, both ways; it goes on inside", unplug},
		{"plug", "CELL", "undo unplug", plug},
		{"link", "A B [--delay D] [--cut one-way|both|none]", "delay or cut the link from A to B", setLink},
		{"ids", "[CELL]", "stock, rate, waits, fallback, bank and budget of IDs, per cell and kind, with age", showIDs},
		{"clock", "CELL --offset D [--postgres]", "set the clock of a cell's processes wrong, or right with 0", setClock},
		{"transfer", "[ID [--retry|--cancel|--reverse] [--reason TEXT] [--wait D]] | --parked", "the story of one transfer, or have something done to it; without ID, those that are stuck, or what is parked of them", transfers},
		{"verify", "[--slots A-B] [--cells C,C] [--repair]", "compare every standby with its owner, row by row where they differ; writing goes on", verifyCopies},
		{"reconcile", "[--cells C,C] [--since D]", "compare both sides of all transfers, pair of cells by pair of cells, while money moves", reconcileMoney},
		{"invariants", "", "check the invariants over all cells", invariants},
		{"load", "[--rate N] [--duration D] [--seed N] [--users N]", "requests on a fixed schedule, measured; invariants meanwhile", runLoad},
		{"drill", strings.Join(drill.Names(false), "|") + " [--cell CELL] [--sabotage[=KIND]] [--short], --list", "break a part under load, with figures of who noticed", runDrill},
		{"sim", "[KEY...] [--users N] [--seed N] [--cells N] [--slots hash|range] [--full]", "compute the figures behind cells, slots and planners", runSim},
		{"plan", "[--qps N] [--cell-qps N] [--data 20TiB] [--link 200MB/s] [--throttle 0.5] [--users N] [--recovery 15m] [--blast 0.25] [--cells N] [--regions N] [--rtt 2ms] [--peers N] [--rollout 30m] [--measured]", "how many cells, if any: load, blast radius, crossings, hours to add one", runPlan},
		{"demo", "up|down|status [--way local|compose] [--cells N]", "what scripts/demo calls", demo},
	}
}

// cli is what all verbs share.
type cli struct {
	out, log io.Writer
	root     string
	json     bool
	flags    *flag.FlagSet
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run gives the exit code: 0 when it did or holds what it says, 1 when not, 2
// with one line on bad input.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		for _, v := range verbs() {
			fmt.Fprintf(stdout, "  cellctl %-60s %s\n", v.name+" "+v.args, v.doc)
		}
		fmt.Fprintln(stdout, "each with -o json; --root DIR names the checkout whose demo is meant (default: this folder)")
		return 0
	}
	for _, v := range verbs() {
		if v.name != args[0] {
			continue
		}
		c := &cli{out: stdout, log: stderr, flags: newFlags()}
		err := v.run(ctx, c, args[1:])
		return exit(stderr, v, err)
	}
	fmt.Fprintf(stderr, "cellctl: no command %q; `cellctl help` lists them\n", args[0])
	return 2
}

func newFlags() *flag.FlagSet { return flag.NewFlagSet("cellctl", flag.ContinueOnError) }

// errFails says that what was asked about does not hold; it was printed already.
var errFails = errors.New("does not hold")

func exit(stderr io.Writer, v verb, err error) int {
	var bad cellkit.Usage
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFails):
		return 1
	case errors.As(err, &bad):
		fmt.Fprintf(stderr, "cellctl %s: %s\n", v.name, strings.ReplaceAll(bad.Error(), "\n", "; "))
		return 2
	case errors.Is(err, local.ErrNoDemo):
		fmt.Fprintf(stderr, "cellctl %s: %v\n", v.name, err)
		return 2
	default:
		fmt.Fprintf(stderr, "cellctl %s: %v\n", v.name, err)
		return 1
	}
}

func usage(format string, args ...any) error { return cellkit.Usage{Err: fmt.Errorf(format, args...)} }

// parse reads flags and words in any order; it wants between min and max words.
func (c *cli) parse(args []string, min, max int) ([]string, error) {
	c.flags.SetOutput(io.Discard)
	output := c.flags.String("o", "text", "text or json")
	c.flags.StringVar(&c.root, "root", ".", "the checkout whose demo is meant")
	var words []string
	for rest := args; ; {
		if err := c.flags.Parse(rest); err != nil {
			return nil, cellkit.Usage{Err: err}
		}
		if c.flags.NArg() == 0 {
			break
		}
		words = append(words, c.flags.Arg(0))
		rest = c.flags.Args()[1:]
	}
	switch *output {
	case "json":
		c.json = true
	case "text":
	default:
		return nil, usage("-o takes text or json, not %q", *output)
	}
	if len(words) < min || len(words) > max {
		return nil, usage("takes %s, got %d; `cellctl help` shows it", count(min, max), len(words))
	}
	return words, nil
}

func count(min, max int) string {
	switch {
	case max == 0:
		return "no words"
	case min == 1 && max == 1:
		return "one word"
	case min == max:
		return fmt.Sprint(min, " words")
	}
	return fmt.Sprintf("%d to %d words", min, max)
}

// print writes v as JSON, or calls text.
func (c *cli) print(v any, text func(w io.Writer)) error {
	if !c.json {
		text(c.out)
		return nil
	}
	e := json.NewEncoder(c.out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
