package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/routing"
)

// weigh publishes weights for new users.
func (w *world) weigh(t *testing.T, weights map[string]int) {
	t.Helper()
	w.publish(t, func(s *routing.Spec) {
		for i := range s.Cells {
			if n, ok := weights[s.Cells[i].Name]; ok {
				s.Cells[i].Weight = n
			}
		}
	})
}

// groupIn finds a group whose slot the cell has.
func (w *world) groupIn(cell string) string {
	for i := 0; ; i++ {
		group := fmt.Sprint("city: ", i)
		if a, _ := w.table.Slot(w.table.GroupSlot(group)); a.Owner == cell {
			return group
		}
	}
}

func TestNewUsersGoWhereTheyAreTaken(t *testing.T) {
	w := newWorld(t, "c1", "c2", "c3")
	c1, c2, c3 := w.cells["c1"], w.cells["c2"], w.cells["c3"]
	n := 0
	register := func(at *cell, group string, opts ...option) answer {
		n++
		body := `{"phone":"+8613800000001","password":"x","name":"n"}`
		if group != "" {
			body = strings.Replace(body, "}", fmt.Sprintf(`,"group":%q}`, group), 1)
		}
		return do(t, at.public, "POST", "/api/v1/users", body, append(opts, with(call.HeaderIdempotencyKey, fmt.Sprint("k", n)))...)
	}
	t.Run("the cell that is asked", func(t *testing.T) {
		register(c1, "").want(t, 200, "", "c1")
		register(c2, "").want(t, 200, "", "c2")
		got := c1.services.calls()[0].Header
		if slot, _ := w.table.CellSlot("c1"); got.Get(call.HeaderSlot) != slot.String() || got.Get(call.HeaderEpoch) != "1" {
			t.Errorf("the service was asked about slot %s epoch %s", got.Get(call.HeaderSlot), got.Get(call.HeaderEpoch))
		}
	})
	t.Run("a wished region, or a cell by its name", func(t *testing.T) {
		w.publish(t, func(s *routing.Spec) {
			for i := range s.Cells {
				s.Cells[i].Region = map[string]string{"c1": "north", "c2": "south", "c3": "south"}[s.Cells[i].Name]
			}
		})
		if a := register(c1, "", with("X-Region", "south")); a.header.Get(call.HeaderCell) == "c1" {
			t.Error("who wishes for the south lives in the north")
		}
		register(c2, "", with("X-Region", "south")).want(t, 200, "", "c2") // the nearest of them
		register(c2, "", with("X-Region", "c3")).want(t, 200, "", "c3")
		register(c2, "", with("X-Region", "moon")).want(t, 200, "", "c2")
	})
	t.Run("a group lives together, however it is written", func(t *testing.T) {
		group := w.groupIn("c3")
		for _, at := range w.cells {
			before := len(c3.services.calls())
			register(at, group).want(t, 200, "", "c3")
			register(at, "  "+strings.ToUpper(strings.ReplaceAll(group, " ", "\t"))).want(t, 200, "", "c3")
			want := fmt.Sprint(w.table.GroupSlot(group), " ", w.table.GroupSlot(group))
			if got := c3.services.slots(before); got != want {
				t.Errorf("asked about slots %q, want %q", got, want)
			}
		}
		w.publish(t, func(s *routing.Spec) { s.Groups[routing.CanonicalGroup(group)] = w.table.SlotsOf("c1")[0] })
		register(c2, group).want(t, 200, "", "c1") // pinned
		register(c2, " ").want(t, 200, "", "c2")
	})
	t.Run("weight 0 takes none, others do", func(t *testing.T) {
		w.weigh(t, map[string]int{"c2": 0})
		before, group := len(c2.services.calls()), w.groupIn("c2")
		for range 10 {
			register(c2, "").want(t, 200, "", "c3") // of the same region
			register(c1, "").want(t, 200, "", "c1")
			register(c1, group).want(t, 200, "", "c1") // the group's cell is closed
			register(c1, "", with("X-Region", "c2")).want(t, 200, "", "c1")
		}
		if n := len(c2.services.calls()) - before; n != 0 {
			t.Errorf("the closed cell was asked for %d new users", n)
		}
		do(t, c1.public, "GET", "/api/v1/me", "", as("user", w.userOf("c2"))).want(t, 200, "", "c2") // the old ones stay
	})
	t.Run("the home knows a newer table: closed meanwhile", func(t *testing.T) {
		defer c3.services.answers(nil)
		c3.services.answers(func(w http.ResponseWriter, _ *http.Request) bool {
			refuse(w, call.Problem{Status: 503, Code: "CELL_CLOSED"})
			return true
		})
		register(c2, "").want(t, 200, "", "c1")
		before := len(c1.services.calls())
		c3.services.answers(func(w http.ResponseWriter, _ *http.Request) bool {
			refuse(w, call.Problem{Status: 503, Code: "OUTCOME_UNKNOWN"})
			return true
		})
		register(c2, "").want(t, 503, "OUTCOME_UNKNOWN", "c2") // maybe there: not twice
		if n := len(c1.services.calls()) - before; n != 0 {
			t.Errorf("%d went on to c1", n)
		}
	})
	t.Run("the group's cell can't be reached", func(t *testing.T) {
		group := w.groupIn("c3")
		setFault(t, c3.border, link.Everyone, link.Fault{CutOut: true, CutIn: true})
		waitFor(t, "c1 knows", func() bool { up, _ := c1.gateway.linkUp("c3"); return !up })
		waitFor(t, "c2 knows", func() bool { up, _ := c2.gateway.linkUp("c3"); return !up })
		register(c1, group).want(t, 200, "", "c1")
		register(c2, group).want(t, 200, "", "c1") // c2 is closed, c3 away
	})
	t.Run("all closed", func(t *testing.T) {
		w.weigh(t, map[string]int{"c1": 0, "c2": 0, "c3": 0})
		a := register(c1, "")
		a.want(t, 503, "CELL_CLOSED", "c1")
		if a.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	})
}

// S-I09: the order of the cells changes nothing, a key goes the same way twice, and
// many keys go everywhere.
func TestScenario_I09_NewHomesDependOnNamesOnly(t *testing.T) {
	spec := routing.Spread([]string{"c1", "c2", "c3", "c4"}).Spec()
	spec.Cells[0].Weight = 0
	tables := make([]*routing.Table, 2)
	for i := range tables {
		var err error
		if tables[i], err = routing.Build(spec); err != nil {
			t.Fatal(err)
		}
		slices.Reverse(spec.Cells)
	}
	first := map[string]int{}
	for i := range 300 {
		key := fmt.Sprint("key", i)
		got := newHomes(tables[0], "c1", "", "", key)
		if d := cmp.Diff(got, newHomes(tables[1], "c1", "", "", key), cmp.AllowUnexported(place{})); d != "" || len(got) != 3 {
			t.Fatalf("%v, then %s", got, d)
		}
		first[got[0].cell]++
	}
	for _, cell := range []string{"c2", "c3", "c4"} {
		if first[cell] < 60 {
			t.Errorf("%s is the first of %d of 300: %v", cell, first[cell], first)
		}
	}
	// Golden vectors: a retry after an update should come to the row of the first try.
	for key, want := range map[string]string{"golden": "c4", "key1": "c4", "key2": "c3"} {
		if got := newHomes(tables[0], "c1", "", "", key); got[0].cell != want {
			t.Errorf("key %s goes to %s, not to %s as ever", key, got[0].cell, want)
		}
	}
}
