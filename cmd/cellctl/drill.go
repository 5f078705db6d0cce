package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"example.com/cellmart/cmd/cellctl/drill"
	"example.com/cellmart/cmd/cellctl/load"
	"example.com/cellmart/deploy/compose"
	"example.com/cellmart/deploy/local"
	"example.com/cellmart/platform/cellkit/verify"
)

func runDrill(ctx context.Context, c *cli, args []string) error {
	cell := c.flags.String("cell", "", "the cell that is broken (of soak: where its sabotage is); default: "+defaultCells())
	seed := c.flags.Uint64("seed", 1, "of the load")
	var sabotage sabotage
	c.flags.Var(&sabotage, "sabotage", "plant a fault that the drill must find: it fails then; unplug: --sabotage=agent, --sabotage=redis")
	short := c.flags.Bool("short", false, "fewer and shorter windows, for tests of the drill; no verdict on the p99")
	list := c.flags.Bool("list", false, "run none, print the names of those that don't take long")
	words, err := c.parse(args, 0, 1)
	if err != nil {
		return err
	}
	if *list && len(words) == 0 {
		return c.print(drill.Names(true), func(w io.Writer) { fmt.Fprintln(w, strings.Join(drill.Names(true), "\n")) })
	}
	if len(words) != 1 || *list {
		return usage("takes one drill, or --list; there are %s", strings.Join(drill.Names(false), ", "))
	}
	name := words[0]
	if drill.DefaultCell(name) == "" {
		return usage("there is no drill %q; there are %s", name, strings.Join(drill.Names(false), ", "))
	}
	kind, err := sabotage.of(name)
	if err != nil {
		return err
	}
	if *cell == "" {
		*cell = drill.DefaultCell(name)
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	if f.cells[*cell] == nil {
		return usage("there is no cell %q; there are %v", *cell, f.names)
	}
	report, err := drill.Run(ctx, name, drill.Options{
		System: c.breakable(f), IDs: ids{f}, Copies: stores{ids{f}}, Money: money{stores{ids{f}}, c.breakable(f)}, Agents: f.cells, Control: f.control(), Load: f.people(c, load.Options{Seed: *seed}), Cell: *cell, Sabotage: sabotage != "", Kind: kind, Short: *short, Log: c.logf,
	})
	if err != nil {
		return err
	}
	err = c.print(report, func(w io.Writer) { printDrill(w, report) })
	if err == nil && !report.Pass {
		err = errFails
	}
	return err
}

// defaultCells says for the help which cell each drill breaks.
func defaultCells() string {
	var out []string
	for _, name := range drill.Names(false) {
		out = append(out, name+" "+drill.DefaultCell(name))
	}
	return strings.Join(out, ", ")
}

// sabotage is a flag that may have a kind as its value: --sabotage, --sabotage=redis.
type sabotage string

const anyKind = "true" // what package flag gives for a flag without a value

func (s *sabotage) String() string { return string(*s) }

// IsBoolFlag says that it may stand without a value.
func (s *sabotage) IsBoolFlag() bool { return true }

// Set takes every word; what a drill knows is seen when its name is.
func (s *sabotage) Set(v string) error {
	*s = sabotage(v)
	return nil
}

// of gives the kind, "" for the drill's own choice.
func (s sabotage) of(name string) (string, error) {
	kinds := drill.Kinds(name)
	switch {
	case s == "" || s == anyKind:
		return "", nil
	case slices.Contains(kinds, string(s)):
		return string(s), nil
	case kinds == nil:
		return "", usage("drill %s has one sabotage without a name, not %q", name, string(s))
	}
	return "", usage("drill %s has the sabotages %s, not %q", name, strings.Join(kinds, " and "), string(s))
}

func printDrill(w io.Writer, r *drill.Report) {
	for _, name := range slices.Sorted(maps.Keys(r.Figures)) {
		fmt.Fprintf(w, "%-32s %v\n", name, r.Figures[name])
	}
	for _, why := range r.Failed {
		fmt.Fprintln(w, "FAILED:", why)
	}
	fmt.Fprintf(w, "drill %s: %s\n", r.Drill, map[bool]string{true: "passed", false: "FAILED"}[r.Pass])
}

func (c *cli) breakable(f *fleet) drill.System {
	if f.state.Way == compose.Way {
		return &containers{breakable{f}, c.root}
	}
	return &breakable{f}
}

// breakable is the demo as drills break it.
type breakable struct{ *fleet }

// Unplug is the verb.
func (b *breakable) Unplug(ctx context.Context, cell string) error {
	_, err := b.pull(ctx, cell)
	return err
}

// Plug is the verb.
func (b *breakable) Plug(ctx context.Context, cell string) error {
	_, err := b.putBack(ctx, cell)
	return err
}

// Stop ends a process.
func (b *breakable) Stop(ctx context.Context, part string, kill bool) error {
	return b.state.Stop(ctx, part, kill)
}

// Start starts it again.
func (b *breakable) Start(ctx context.Context, part string) error { return b.state.Restart(ctx, part) }

// Pause stops a process with a signal, or sends it on.
func (b *breakable) Pause(_ context.Context, part string, on bool) error {
	return b.state.Pause(part, on)
}

// AddInstance starts a second instance.
func (b *breakable) AddInstance(ctx context.Context, service string) (string, error) {
	p, err := b.state.AddInstance(ctx, service)
	if err != nil {
		return "", err
	}
	return p.Name, nil
}

// RemoveInstance ends it.
func (b *breakable) RemoveInstance(ctx context.Context, name string) error {
	return b.state.Remove(ctx, name)
}

// Share restarts a part of a cell with another cell's address in it.
func (b *breakable) Share(ctx context.Context, what, cell, other string) (func(context.Context) error, error) {
	part, owner, name, of := "/gateway", "/agent", "LINK_ADDR", "AGENT_LINK_ADDR"
	if what == "redis" {
		part, owner, name, of = "/catalog", "/catalog", "REDIS_ADDR", "REDIS_ADDR"
	}
	p, err := b.state.Process(other + owner)
	if err != nil {
		return nil, err
	}
	undo := func(ctx context.Context) error { return b.state.Restart(ctx, cell+part) }
	return undo, b.state.RestartWith(ctx, cell+part, map[string]string{name: p.Env[of]})
}

// Border looks at the processes' sockets.
func (b *breakable) Border(context.Context) (drill.Border, error) {
	seen, err := b.state.Border()
	return drill.Border{Seen: seen.Inside + seen.Between, Foreign: seen.Foreign}, err
}

// Parts measures the processes.
func (b *breakable) Parts(context.Context) ([]drill.Part, error) {
	all, err := b.state.Parts()
	return parts(all), err
}

// stores is the demo as drills about changes and standbys break it.
type stores struct{ ids }

// KeepStore copies a cell's NATS store.
func (s stores) KeepStore(_ context.Context, cell string) error {
	if err := s.local(); err != nil {
		return err
	}
	return s.state.KeepStore(cell + "/nats")
}

// LoseStore deletes it, or puts the copy in its place.
func (s stores) LoseStore(ctx context.Context, cell string, back bool) error {
	if err := s.local(); err != nil {
		return err
	}
	return s.state.LoseStore(ctx, cell+"/nats", back)
}

// DropStoreCopy removes what is left.
func (s stores) DropStoreCopy(ctx context.Context, cell string) error {
	return s.state.DropStoreCopy(ctx, cell+"/nats")
}

// Bound starts an agent again with a bound of its own.
func (s stores) Bound(ctx context.Context, cell string, bytes int64) (func(context.Context) error, error) {
	if err := s.local(); err != nil {
		return nil, err
	}
	undo := func(ctx context.Context) error { return s.state.Restart(ctx, cell+"/agent") }
	return undo, s.state.RestartWith(ctx, cell+"/agent", map[string]string{"AGENT_CDC_MAX_BYTES": fmt.Sprint(bytes)})
}

// Verify is the verb.
func (s stores) Verify(ctx context.Context) (drill.Compared, error) {
	r, err := verify.Run(ctx, s.cells, verify.Ask{})
	out := drill.Compared{Rows: r.RowsCompared}
	for _, d := range r.Differences {
		out.Differences = append(out.Differences, fmt.Sprintf("%s %v of slot %d is %s at %s", d.Table, d.Key, d.Slot, d.Kind, d.Standby))
	}
	if r.NotListed > 0 {
		out.Differences = append(out.Differences, fmt.Sprintf("%d tables of slots differ that aren't listed", r.NotListed))
	}
	for _, n := range r.NotCompared {
		out.Failed = append(out.Failed, fmt.Sprintf("%d slots of %s at %s %s: %s", n.N, n.Owner, n.Standby, n.Table, n.Reason))
	}
	return out, err
}

// money is the demo as the drill bank breaks it.
type money struct {
	stores
	system drill.System
}

// DropStreams deletes what messages to other cells wait in.
func (m money) DropStreams(ctx context.Context, cell string) (int, error) {
	at, err := m.state.Cell(cell)
	if err == nil {
		err = m.local()
	}
	if err != nil {
		return 0, err
	}
	nc, err := nats.Connect(at.NATS)
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, err
	}
	n, names := 0, js.StreamNames(ctx)
	for name := range names.Name() {
		if strings.HasPrefix(name, "XOUT") {
			if err := js.DeleteStream(ctx, name); err != nil {
				return n, err
			}
			n++
		}
	}
	return n, names.Err()
}

// FlushRedis empties a Redis; a container's has nothing on a disk, so a start does it.
func (m money) FlushRedis(ctx context.Context, cell string) error {
	if m.local() != nil {
		if err := m.system.Stop(ctx, cell+"/redis", true); err != nil {
			return err
		}
		return m.system.Start(ctx, cell+"/redis")
	}
	p, err := m.state.Process(cell + "/user")
	if err != nil {
		return err
	}
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", p.Env["REDIS_ADDR"])
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "FLUSHALL\r\n"); err != nil {
		return err
	}
	said := make([]byte, 5)
	if _, err := io.ReadFull(c, said); err != nil {
		return err
	}
	if string(said) != "+OK\r\n" {
		return fmt.Errorf("redis said %q", said)
	}
	return nil
}

// HoldNothing starts an agent again without output commit.
func (m money) HoldNothing(ctx context.Context, cell string) (func(context.Context) error, error) {
	if err := m.local(); err != nil {
		return nil, err
	}
	undo := func(ctx context.Context) error { return m.state.Restart(ctx, cell+"/agent") }
	return undo, m.state.RestartWith(ctx, cell+"/agent", map[string]string{"AGENT_OUTPUT_COMMIT": "off"})
}

func parts(all []local.Part) (out []drill.Part) {
	for _, p := range all {
		out = append(out, drill.Part(p))
	}
	return out
}

// containers is the same where the parts are containers.
type containers struct {
	breakable
	root string
}

// Stop ends a container.
func (b *containers) Stop(ctx context.Context, part string, kill bool) error {
	return compose.Stop(ctx, b.state, part, kill)
}

// Start starts it again.
func (b *containers) Start(ctx context.Context, part string) error {
	return compose.Start(ctx, b.state, part)
}

// Pause freezes a container, or lets it go on.
func (b *containers) Pause(ctx context.Context, part string, on bool) error {
	return compose.Pause(ctx, b.state, part, on)
}

// AddInstance starts a second container of a service.
func (b *containers) AddInstance(ctx context.Context, service string) (string, error) {
	return compose.AddInstance(ctx, b.state, service)
}

// RemoveInstance removes it.
func (b *containers) RemoveInstance(ctx context.Context, name string) error {
	return compose.RemoveInstance(ctx, b.state, name)
}

// Share makes a cell's gateway anew on another cell's network, or puts that cell's
// Redis in the place of its own.
func (b *containers) Share(ctx context.Context, what, cell, other string) (func(context.Context) error, error) {
	if what == "redis" {
		return compose.ShareRedis(ctx, b.state, cell, other)
	}
	return compose.Share(ctx, b.state, b.root, cell, other)
}

// Border looks at the containers' networks.
func (b *containers) Border(ctx context.Context) (drill.Border, error) {
	seen, foreign, err := compose.Border(ctx, b.state)
	return drill.Border{Seen: seen, Foreign: foreign}, err
}

// Parts measures the containers.
func (b *containers) Parts(ctx context.Context) ([]drill.Part, error) {
	all, err := compose.Memory(ctx, b.state)
	return parts(all), err
}
