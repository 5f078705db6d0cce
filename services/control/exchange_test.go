package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

// cells plays the agents of all cells: owners take incoming cells and the newest
// table, targets have a slot in sync two questions after its owner's word.
type cells struct {
	t   testing.TB
	url string
	now func() *routing.Table

	mu       sync.Mutex
	incoming map[routing.Slot]string
	lsn      map[string]uint64
	copied   map[pair]map[routing.Slot]int // questions since the target heard of it
	heard    map[pair]uint64               // how far the target is with the owner
	told     map[routing.Slot]map[string]bool
	stuck    bool                    // targets don't go on
	writes   bool                    // each question to an owner finds it further on
	slow     bool                    // and a target that is in sync hasn't applied that yet
	gated    map[routing.Slot]string // incoming cells that outputs wait for
	down     string
	born     string // the owners' incarnation
	calls    int
}

func newCells(t testing.TB, now func() *routing.Table) *cells {
	c := &cells{
		t: t, now: now, incoming: map[routing.Slot]string{}, lsn: map[string]uint64{}, copied: map[pair]map[routing.Slot]int{},
		heard: map[pair]uint64{}, told: map[routing.Slot]map[string]bool{}, gated: map[routing.Slot]string{}, born: "a.1",
	}
	h := httptest.NewServer(c)
	t.Cleanup(h.Close)
	c.url = h.URL
	return c
}

func (c *cells) agents(cell string) *agentapi.Client {
	return &agentapi.Client{BaseURL: c.url + "/" + cell, OperatorKey: "operator"}
}

func (c *cells) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	_, cell, _ := strings.Cut(r.URL.Path, "/")
	cell, what, _ := strings.Cut(cell, "/")
	if cell == c.down || r.Header.Get("Authorization") != "Bearer operator" {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	var out any
	switch what {
	case "incoming":
		out = c.own(cell, r.Body)
	case "standby":
		out = c.standBy(cell)
	case "standby/applied":
		out = c.applied(cell, r.Body)
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (c *cells) own(cell string, body io.Reader) agentapi.Here {
	var in agentapi.Incoming
	if err := json.NewDecoder(body).Decode(&in); err != nil {
		c.t.Error(err)
	}
	table, out := c.now(), agentapi.Here{Incarnation: c.born}
	for s, to := range c.incoming { // the owner takes the table
		if a, _ := table.Slot(s); a.Standby == to {
			delete(c.incoming, s)
		}
	}
	for _, s := range in.Slots {
		a, _ := table.Slot(s)
		if a.Owner != cell {
			c.t.Errorf("%s was asked for slot %d of %s", cell, s, a.Owner)
		}
		if want := in.Target; want != a.Standby && c.incoming[s] != want {
			out.Changed++
			delete(c.gated, s)
			if c.incoming[s] = want; want == "" {
				delete(c.incoming, s)
			} else {
				delete(c.copied[pair{cell, want}], s)
			}
		}
	}
	for _, s := range in.Slots {
		if in.Gate && out.Changed == 0 {
			c.gated[s] = in.Target
		}
	}
	c.lsn[cell] += uint64(out.Changed)
	if c.writes {
		c.lsn[cell]++
	}
	out.LSN, out.AppliedRoute = fmt.Sprintf("0/%X", c.lsn[cell]), table.Version()
	return out
}

func (c *cells) applied(cell string, body io.Reader) agentapi.Answer {
	var q agentapi.Question
	if err := json.NewDecoder(body).Decode(&q); err != nil {
		c.t.Error(err)
	}
	p := pair{q.Source, cell}
	for _, s := range q.Slots {
		if c.gated[s] != cell {
			c.t.Errorf("%s is asked whether it has passed slot %d, and outputs don't wait for it", cell, s)
		}
	}
	if !c.stuck && !c.slow {
		c.heard[p] = c.lsn[q.Source]
	}
	out := agentapi.Answer{Incarnation: c.born, LSN: int64(c.heard[p]), InSync: map[routing.Slot]routing.Epoch{}}
	for _, s := range q.Slots {
		if c.copied[p][s] >= 2 {
			a, _ := c.now().Slot(s)
			out.InSync[s] = a.Epoch
		}
	}
	return out
}

func (c *cells) standBy(cell string) agentapi.Standbys {
	out := agentapi.Standbys{Cell: cell}
	for _, owner := range []string{"c1", "c2", "c3", "c4"} {
		p := pair{owner, cell}
		if !c.stuck {
			c.heard[p] = c.lsn[owner]
		}
		if c.copied[p] == nil {
			c.copied[p] = map[routing.Slot]int{}
		}
		src := agentapi.StandbySource{Source: owner, Incarnation: c.born, LSN: fmt.Sprintf("0/%X", c.heard[p])}
		for _, s := range hashSlots() {
			if c.incoming[s] == cell && !c.stuck {
				if a, _ := c.now().Slot(s); a.Owner == owner {
					c.copied[p][s]++
				}
			}
			if c.copied[p][s] >= 2 {
				a, _ := c.now().Slot(s)
				src.InSyncSlots = append(src.InSyncSlots, [3]int64{int64(s), int64(s), int64(a.Epoch)})
				if c.told[s] == nil {
					c.told[s] = map[string]bool{}
				}
				c.told[s][cell] = true
			}
		}
		out.Sources = append(out.Sources, src)
	}
	return out
}

// exchangeBench is control with a first table in which slots 0 to 99 are c1's and
// c2 stands by for them, and cells.
type exchangeBench struct {
	*exchanger
	cells *cells
	db    *pgtest.DB
}

func newExchangeBench(t *testing.T) *exchangeBench {
	t.Helper()
	db := pgtest.NewGlobal(t, Migrations())
	s := open(t, appDSN(t, db), nil)
	if _, err := s.initialize(t.Context(), fourCells()); err != nil {
		t.Fatal(err)
	}
	c := newCells(t, func() *routing.Table { return s.holder.Load() })
	return &exchangeBench{exchanger: newExchanger(s, c.agents, s.log), cells: c, db: db}
}

func set(from, to routing.Slot, standby string) controlapi.ExchangeRequest {
	return controlapi.ExchangeRequest{Reason: "test", Standbys: []controlapi.Standby{{From: from, To: to, Standby: standby}}}
}

func (b *exchangeBench) start(t *testing.T, req controlapi.ExchangeRequest) controlapi.Exchange {
	t.Helper()
	out, err := b.begin(t.Context(), req)
	if err != nil || out.ID == 0 {
		t.Fatalf("begin: %+v, %v", out, err)
	}
	return out
}

// rounds carries on n times and gives the state of the exchange's parts then.
func (b *exchangeBench) rounds(t *testing.T, id int64, n int) string {
	t.Helper()
	for range n {
		if err := b.once(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.one(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, p := range out.Parts {
		states = append(states, strings.TrimRight(fmt.Sprintf("%s>%s %d %s: %s", p.Owner, p.Target, p.Slots, p.State, p.Detail), ": "))
	}
	return strings.Join(states, "; ")
}

func (b *exchangeBench) standby(s routing.Slot) string {
	a, _ := b.service.holder.Load().Slot(s)
	return a.Standby
}

func TestExchange(t *testing.T) {
	t.Parallel()
	b := newExchangeBench(t)
	if was := b.standby(7); was != "c2" {
		t.Fatalf("slot 7 stands by at %s", was)
	}
	id := b.start(t, set(0, 99, "c4")).ID
	for i, want := range []string{
		"c1>c4 100 COPYING: c4 has yet to hear of it",
		"c1>c4 100 COPYING: c4 has 0 of 100 slots in sync",
		"c1>c4 100 SWITCHED",
		"c1>c4 100 DONE",
	} {
		if i < 3 && b.standby(7) != "c2" {
			t.Errorf("before round %d the table names %s", i, b.standby(7))
		}
		if got := b.rounds(t, id, 1); got != want {
			t.Errorf("round %d: %s, want %s", i, got, want)
		}
	}
	if b.standby(0) != "c4" || b.standby(99) != "c4" || b.standby(100) != "c2" || len(b.cells.incoming) != 0 {
		t.Errorf("then %s, %s, %s; incoming %v", b.standby(0), b.standby(99), b.standby(100), b.cells.incoming)
	}
	if a, _ := b.service.holder.Load().Slot(7); a.Epoch != 1 || a.Owner != "c1" || b.service.holder.Version() != 2 {
		t.Errorf("slot 7 %+v, version %d", a, b.service.holder.Version())
	}
	before := b.cells.calls
	b.rounds(t, id, 2)
	if out, err := b.begin(t.Context(), set(0, 99, "c4")); err != nil || out.ID != 0 || b.cells.calls != before {
		t.Errorf("asked for what is: %+v, %v, %d calls", out, err, b.cells.calls-before)
	}
}

// What left the owner before it heard that the target is in sync may not be there:
// the table names the target when it has passed what the owner says after that.
func TestExchangeWaitsForWhatLeftBefore(t *testing.T) {
	t.Parallel()
	b := newExchangeBench(t)
	b.cells.mu.Lock()
	b.cells.writes, b.cells.slow = true, true
	b.cells.mu.Unlock()
	x, err := b.begin(t.Context(), set(0, 99, "c4"))
	if err != nil {
		t.Fatal(err)
	}
	got := b.rounds(t, x.ID, 6)
	if !strings.Contains(got, "COPYING") || !strings.Contains(got, "where that was when it was in sync") || b.standby(7) != "c2" {
		t.Errorf("with a target that is in sync and behind: %s, standby %s", got, b.standby(7))
	}
	b.cells.mu.Lock()
	b.cells.slow = false
	b.cells.mu.Unlock()
	if got := b.rounds(t, x.ID, 2); b.standby(7) != "c4" {
		t.Errorf("with a target that has passed it: %s, standby %s", got, b.standby(7))
	}
}

// A target that was the standby before still says "in sync" of its old copy: it
// counts only when it has applied the owner's newer word.
func TestExchangeBackWaitsForTheNewCopy(t *testing.T) {
	t.Parallel()
	b := newExchangeBench(t)
	b.rounds(t, b.start(t, set(0, 9, "c4")).ID, 5)
	b.rounds(t, b.start(t, set(0, 9, "c3")).ID, 5)
	if b.standby(7) != "c3" {
		t.Fatal(b.standby(7))
	}
	b.cells.stuck = true // c4 gets no news of c1, and has it all in sync as it was
	b.cells.copied[pair{"c1", "c4"}] = map[routing.Slot]int{}
	id := b.start(t, set(0, 9, "c4")).ID
	b.rounds(t, id, 1)
	for s := range routing.Slot(10) {
		b.cells.copied[pair{"c1", "c4"}][s] = 2
	}
	if got := b.rounds(t, id, 3); !strings.Contains(got, "COPYING: c4 is at 0/A of c1, not at 0/1E yet") || b.standby(7) != "c3" {
		t.Errorf("with the old copy: %s, standby %s", got, b.standby(7))
	}
	b.cells.stuck = false
	if got := b.rounds(t, id, 3); got != "c1>c4 10 DONE" {
		t.Error(got)
	}
}

// What the others don't answer is said, and asked again; a database of the owner
// that is another one begins again; what has another owner meanwhile is left out.
func TestExchangeMeetsTrouble(t *testing.T) {
	t.Parallel()
	b := newExchangeBench(t)
	b.cells.down = "c1"
	id := b.start(t, set(0, 99, "c4")).ID
	if got := b.rounds(t, id, 2); !strings.HasPrefix(got, "c1>c4 100 PLANNED: c1: ") {
		t.Error(got)
	}
	b.cells.down = "c4"
	if got := b.rounds(t, id, 2); !strings.HasPrefix(got, "c1>c4 100 COPYING: c4: ") {
		t.Error(got)
	}
	b.cells.down = ""
	b.rounds(t, id, 1)
	b.cells.born, b.cells.incoming, b.cells.copied = "b.1", map[routing.Slot]string{}, map[pair]map[routing.Slot]int{} // restored from before
	if got := b.rounds(t, id, 1); got != "c1>c4 100 COPYING: c4 has yet to hear of it" {
		t.Error(got)
	}
	if _, err := b.service.publish(t.Context(), controlapi.PublishRequest{ExpectVersion: 1, Reason: "a move", Changes: &controlapi.Changes{
		Assign: []controlapi.Assign{{From: 50, To: 60, Owner: "c3"}},
	}}); err != nil {
		t.Fatal(err)
	}
	if got := b.rounds(t, id, 4); got != "c1>c4 89 DONE" {
		t.Error(got)
	}
	if b.standby(50) != "c2" || b.standby(49) != "c4" {
		t.Errorf("slot 50 stands by at %s, 49 at %s", b.standby(50), b.standby(49))
	}
	id = b.start(t, set(0, 9, "c2")).ID
	if _, err := b.service.publish(t.Context(), controlapi.PublishRequest{ExpectVersion: 3, Reason: "a move", Changes: &controlapi.Changes{
		Assign: []controlapi.Assign{{From: 0, To: 9, Owner: "c3"}},
	}}); err != nil {
		t.Fatal(err)
	}
	if got := b.rounds(t, id, 1); got != "c1>c2 10 CANCELLED: the slots have another owner" {
		t.Error(got)
	}
}

func TestExchangeIsCancelled(t *testing.T) {
	t.Parallel()
	b := newExchangeBench(t)
	id := b.start(t, set(0, 99, "c4")).ID
	b.rounds(t, id, 1)
	if _, err := b.begin(t.Context(), set(99, 120, "c3")); !errors.Is(err, controlapi.ErrExchangeOpen) {
		t.Errorf("a second one of slot 99: %v", err)
	}
	was, _ := b.service.holder.Load().Slot(99)
	if _, err := b.begin(t.Context(), set(99, 99, was.Standby)); !errors.Is(err, controlapi.ErrExchangeOpen) {
		t.Errorf("as the table has it, while an exchange is about to change it: %v", err)
	}
	// It comes between the last look and the table: nothing is switched.
	b.service.store.step = func(step string) error {
		if step == "in sync" {
			_, err := b.cancel(t.Context(), id)
			return err
		}
		return nil
	}
	if got := b.rounds(t, id, 2); got != "c1>c4 100 CANCELLING: cancelled by an operator" || b.service.holder.Version() != 1 {
		t.Errorf("%s, version %d", got, b.service.holder.Version())
	}
	if got := b.rounds(t, id, 1); got != "c1>c4 100 CANCELLED: cancelled by an operator" || len(b.cells.incoming) != 0 {
		t.Errorf("%s, incoming %v", got, b.cells.incoming)
	}
	if _, err := b.cancel(t.Context(), id); err != nil { // nothing is left to cancel
		t.Error(err)
	}
	if _, err := b.cancel(t.Context(), 99); !errors.Is(err, controlapi.ErrNoExchange) {
		t.Errorf("an unknown one: %v", err)
	}
	// It comes between the owner's answer and the note of it.
	b.service.store.step = func(string) error { return nil }
	id = b.start(t, set(99, 120, "c3")).ID
	b.service.store.step = func(step string) error {
		_, err := b.cancel(t.Context(), id)
		return err
	}
	if got := b.rounds(t, id, 1); got != "c1>c3 22 CANCELLING: cancelled by an operator" {
		t.Error(got)
	}
	if got := b.rounds(t, id, 1); got != "c1>c3 22 CANCELLED: cancelled by an operator" || len(b.cells.incoming) != 0 {
		t.Errorf("%s, incoming %v", got, b.cells.incoming)
	}
}

func TestExchangeIsPlanned(t *testing.T) {
	t.Parallel()
	cur := first(t)
	none := cur.Spec()
	for i := range none.Slots {
		none.Slots[i].Standby = ""
	}
	for s, a := range none.Private {
		a.Standby = ""
		none.Private[s] = a
	}
	bare, err := routing.Build(none) // as a demo from before has it
	if err != nil {
		t.Fatal(err)
	}
	parts, err := planParts(bare, controlapi.ExchangeRequest{Spread: true})
	if err != nil || len(parts) != 12 {
		t.Fatalf("%d parts, %v", len(parts), err)
	}
	n := 0
	for _, p := range parts {
		n += len(p.slots)
	}
	if n != routing.Slots+4 {
		t.Errorf("%d slots are planned, want all", n)
	}
	if parts, err := planParts(cur, controlapi.ExchangeRequest{Spread: true}); err != nil || len(parts) != 0 {
		t.Errorf("what is spread: %v, %v", parts, err)
	}
	cellSlot, _ := cur.CellSlot("c1")
	if parts, err := planParts(cur, set(cellSlot, cellSlot, "c4")); err != nil || len(parts) != 1 || parts[0].slots[0] != int32(cellSlot) {
		t.Errorf("a cell slot: %v, %v", parts, err)
	}
	for name, req := range map[string]controlapi.ExchangeRequest{
		"nothing": {}, "both": {Spread: true, Standbys: set(1, 2, "c3").Standbys}, "its own": set(1, 2, "c1"), "a strange cell": set(1, 2, "c9"),
		"no cell": set(1, 2, ""), "backward": set(2, 1, "c3"), "no such slot": set(17500, 17500, "c3"),
	} {
		if _, err := planParts(cur, req); !errs.IsKind(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestExchangerChild is not a test of its own: it's the process that is killed.
func TestExchangerChild(t *testing.T) {
	dsn, url := os.Getenv("EXCHANGE_TEST_DSN"), os.Getenv("EXCHANGE_TEST_CELLS")
	if dsn == "" {
		t.Skip("runs only as a child of TestScenario_R01_KilledWhileExchanging")
	}
	name, nth, _ := strings.Cut(os.Getenv("EXCHANGE_TEST_DIE_AT"), "/")
	left, err := strconv.Atoi(nth)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex // owners are asked side by side
	s := open(t, dsn, func(step string) error {
		mu.Lock()
		defer mu.Unlock()
		if step == name {
			left--
		}
		if step == name && left == 0 {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return nil
	})
	x := newExchanger(s, func(cell string) *agentapi.Client {
		return &agentapi.Client{BaseURL: url + "/" + cell, OperatorKey: "operator"}
	}, slog.New(slog.DiscardHandler))
	for {
		if err := x.once(t.Context()); err != nil {
			t.Fatal(err)
		}
		if open, err := s.store.openParts(t.Context()); err != nil || len(open) == 0 {
			return
		}
	}
}

// TestScenario_R01_KilledWhileExchanging: control is killed at each step of an
// exchange of all standbys, again and again; it goes on from its rows, no slot's
// standby is named before it's in sync, and in the end each has the right one.
func TestScenario_R01_KilledWhileExchanging(t *testing.T) {
	t.Parallel()
	b := newExchangeBench(t)
	b.cells.now = func() *routing.Table {
		signed, err := b.service.store.newest(context.Background(), 0)
		if err != nil {
			t.Error(err)
		}
		table, err := routing.Open(b.service.public(), signed)
		if err != nil {
			t.Error(err)
		}
		return table
	}
	req := set(0, 30, "c3")
	req.Standbys = append(req.Standbys, controlapi.Standby{From: 4096, To: 4120, Standby: "c1"}, controlapi.Standby{From: 12288, To: 12290, Standby: "c3"})
	b.start(t, req)
	run := func(at string) (killed bool) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestExchangerChild$")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.Env = append(os.Environ(), "EXCHANGE_TEST_DSN="+appDSN(t, b.db), "EXCHANGE_TEST_CELLS="+b.cells.url, "EXCHANGE_TEST_DIE_AT="+at)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
			return true
		}
		if err != nil {
			t.Fatalf("%s: %v\n%s", at, err, out)
		}
		return false
	}
	// An owner has set it, and nobody knows; ...; the table is stored; its owner has it.
	for _, at := range []string{"asked/1", "asked/3", "asked/4", "in sync/1", "locked/1", "signed/1", "inserted/1", "committed/1", "asked/1"} {
		if !run(at) {
			t.Fatalf("ended before %s", at)
		}
		b.checkNamed(t, "killed at "+at)
	}
	if run("never/1") {
		t.Fatal("killed")
	}
	if diff := cmp.Diff([]string{"DONE", "DONE", "DONE"}, b.states(t)); diff != "" {
		t.Error(diff)
	}
	last := b.cells.now()
	for s, want := range map[routing.Slot]string{0: "c3", 30: "c3", 31: "c2", 4096: "c1", 4120: "c1", 12288: "c3"} {
		if a, _ := last.Slot(s); a.Standby != want {
			t.Errorf("slot %d stands by at %s, want %s", s, a.Standby, want)
		}
	}
	for s := range b.cells.told {
		if a, _ := last.Slot(s); !b.cells.told[s][a.Standby] {
			t.Errorf("slot %d: %s never said that it's in sync", s, a.Standby)
		}
	}
	if len(b.cells.incoming) != 0 {
		t.Errorf("still incoming: %v", b.cells.incoming)
	}
	wholeHistory(t, b.db.Super, last.Version())
}

// checkNamed says that a part is switched if, and only if, the newest table names
// its target.
func (b *exchangeBench) checkNamed(t *testing.T, when string) {
	t.Helper()
	all, err := b.service.store.exchanges(t.Context(), 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all[0].Parts {
		a, _ := b.cells.now().Slot(p.Ranges[0][0])
		if is := p.State == controlapi.Switched || p.State == controlapi.Done; is != (a.Standby == p.Target) {
			t.Errorf("%s: the part to %s is %s, the table names %s", when, p.Target, p.State, a.Standby)
		}
	}
}

func (b *exchangeBench) states(t *testing.T) []string {
	t.Helper()
	all, err := b.service.store.exchanges(t.Context(), 0, 1)
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	var out []string
	for _, p := range all[0].Parts {
		out = append(out, p.State)
	}
	return out
}
