// Command bench measures what the design promises, each figure beside a baseline
// of the same run on the same machine; scripts/bench calls it. A line's ratio is
// what to look at: the figures themselves are this machine's.
//
//	route-lookup          ID to cell by the route table | by a ring of 500 virtual nodes a cell
//	                      with users moved alone, under swaps; beside other libraries
//	route-publish         until all processes have it   | one commit, one NATS round trip
//	ids                   an ID, an order number, a lease | an atomic add, other generators, UPDATE ... RETURNING
//	order-placement       CPU of a paid order           | pgbench running the same statements
//	commit-to-searchable  from the answer to the hit    | a row seen by logical replication
//	relay                 rows from the WAL into JetStream | pg_recvlogical, to nowhere
//	apply                 transactions of the stream applied | a subscription between the same two servers
//	commit-to-applied     from the answer to the standby's row, at 500 writes/s | the same
//	transfer-latency      ms until it has ended, held | not held
//	transfer-spread       transfers a CPU-second      | two-phase commit, on the same two Postgres servers
//	transfer-hot          to one account, 30 ms away  | the same
//	transfer-away         one cell gone for 30 s      | the same
//
// All but the first start a demo of their own (deploy/local, two cells; ids for its leases; four for
// route-publish, commit-to-applied, and one for all about transfers) in a folder of its own, and end it whatever happens.
//
//	what                                  then
//	unknown name, bad flag                one line, exit code 2
//	Postgres, Redis, pgbench missing      ok null with the reason, exit code 0
//	pgbench's writes differ from ours     ok null with the reason: order.sql is out of date
//	a goal is missed, a part fails        exit code 1
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"example.com/cellmart/platform/cellkit"
)

// bench gives one or more lines, all of which begin with its name.
type bench struct {
	name, doc string
	run       func(ctx context.Context, log io.Writer) ([]row, error)
}

// benches lists all; those about money share a bank, which its owner ends.
func benches(bank *sharedBank) []bench {
	return []bench{
		{"route-lookup", "ns to find the cell of an ID", routeLookup},
		{"route-publish", "ms until every process of four cells has a new table", routePublish},
		{"ids", "ns to make an ID and an order number; leases a second", idLines},
		{"order-placement", "CPU of an order until it is paid", orderPlacement},
		{"commit-to-searchable", "ms until a committed change is found", commitToSearchable},
		{"relay", "rows a second that get from the WAL into JetStream", relay},
		{"apply", "transactions a second that a standby gets through", apply},
		{"commit-to-applied", "ms until a committed row is at its standby", commitToApplied},
		{"transfer-latency", "ms from a transfer's beginning to its end, at half the peak", bank.with(transferLatency)},
		{"transfer-spread", "transfers a CPU-second between spread accounts of two cells", bank.with(transferSpread)},
		{"transfer-hot", "transfers a second to one account, 30 ms away", bank.with(transferHot)},
		{"transfer-away", "what others notice of a cell that is gone for 30 s", bank.with(transferAway)},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var bank sharedBank
	code := run(ctx, benches(&bank), os.Args[1:], os.Stdout, os.Stderr)
	if err := bank.end(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		code = max(code, 1)
	}
	stop()
	os.Exit(code)
}

// run gives the exit code: 0 when every line holds or can't run here, 1 when one
// doesn't, 2 with one line on bad input.
func run(ctx context.Context, all []bench, args []string, stdout, stderr io.Writer) int {
	chosen, asJSON, err := parse(all, args)
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	code := 0
	rows := []row{} // [] and not null when there are none
	for _, b := range chosen {
		fmt.Fprintf(stderr, "bench: %s: %s\n", b.name, b.doc)
		got, err := b.run(ctx, stderr)
		if err != nil {
			var lacking cellkit.Usage
			if !errors.As(err, &lacking) {
				fmt.Fprintf(stderr, "bench: %s: %v\n", b.name, err)
				code = 1
			}
			got = append(got, row{Name: b.name, Goal: shown, Reason: firstLine(err.Error())})
		}
		rows = append(rows, got...)
	}
	for _, r := range rows {
		if r.OK != nil && !*r.OK {
			code = 1
		}
	}
	if asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false) // goals have "<="
		err = e.Encode(rows)
	} else {
		err = print(stdout, rows)
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return code
}

// parse reads NAME... and -o json|text in any order; no name means all.
func parse(all []bench, args []string) (chosen []bench, asJSON bool, err error) {
	var names []string
	for _, b := range all {
		names = append(names, b.name)
	}
	want := map[string]bool{}
	for i := 0; i < len(args); i++ {
		word, value, joined := strings.Cut(args[i], "=")
		switch {
		case word == "-o":
			if i++; joined {
				i--
			} else if i < len(args) {
				value = args[i]
			}
			if value != "json" && value != "text" {
				return nil, false, errors.New("-o takes text or json")
			}
			asJSON = value == "json"
		case slices.Contains(names, args[i]):
			want[args[i]] = true
		default:
			return nil, false, fmt.Errorf("there is no %q: [%s] [-o text|json]", args[i], strings.Join(names, " "))
		}
	}
	for _, b := range all {
		if len(want) == 0 || want[b.name] {
			chosen = append(chosen, b)
		}
	}
	return chosen, asJSON, nil
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}
