package user

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/user/userapi"
)

// groupOf finds a group whose slot the cell has.
func (w *world) groupOf(cell string) string {
	for i := 0; ; i++ {
		group := fmt.Sprint("family ", i)
		if w.owner(w.table.Load().GroupSlot(group)).name == cell {
			return group
		}
	}
}

// registerIn registers somebody of a group and gives their ID.
func (c *cell) registerIn(t *testing.T, op, phone, group string) id.ID {
	t.Helper()
	a := c.ask("POST", "/api/v1/users", fmt.Sprintf(`{"phone":%q,"password":"correct horse","name":"Ann","group":%q}`, phone, group), 0, c.slot(), op)
	switch a.status {
	case 201:
		var s userapi.Session
		a.decode(t, &s)
		return s.User.ID
	case 202:
		var o userapi.Operation
		a.decode(t, &o)
		return o.ID
	}
	t.Fatalf("register in %q: %d %s", group, a.status, a.body)
	return 0
}

// S-I10: a group is one slot, however its name is written.
func TestScenario_I10_AGroupIsOneSlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	w.live()
	c1, group := w.cells["c1"], w.groupOf("c1")
	for i, name := range []string{group, strings.ToUpper(group), "  " + strings.ReplaceAll(group, " ", "\t\n ") + " "} {
		if got, want := c1.registerIn(t, fmt.Sprint("op-", i), w.phoneAt("c1", i), name).Slot(), w.table.Load().GroupSlot(group); got != want {
			t.Errorf("%q lives in slot %d, want %d", name, got, want)
		}
	}
	// The same operation again finds the same user.
	if a, b := c1.registerIn(t, "op-0", w.phoneAt("c1", 0), group), c1.registerIn(t, "op-0", w.phoneAt("c1", 0), group); a != b {
		t.Errorf("a repeated registration made users %s and %s", a, b)
	}
	// A group of another cell's slot came here because that cell couldn't take them.
	slot := c1.registerIn(t, "op-far", w.phoneAt("c1", 9), w.groupOf("c2")).Slot()
	if w.owner(slot) != c1 {
		t.Errorf("slot %d isn't c1's", slot)
	}
	a := c1.ask("POST", "/api/v1/users", fmt.Sprintf(`{"phone":"+8613800000001","password":"correct horse","name":"Ann","group":%q}`, strings.Repeat("g", 65)), 0, c1.slot(), "op-long")
	if a.status != 400 {
		t.Errorf("a group of 65 bytes: %d %s", a.status, a.body)
	}
}

func TestAClosedCellTakesNoNewUsers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	w.live()
	spec := w.table.Load().Spec()
	spec.Version++
	for i := range spec.Cells {
		if spec.Cells[i].Name == "c1" {
			spec.Cells[i].Weight = 0
		}
	}
	closed, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	w.table.Store(closed)
	for _, group := range []string{"", w.groupOf("c1")} {
		body, err := json.Marshal(userapi.RegisterRequest{Phone: w.phoneAt("c1", 0), Password: "correct horse", Name: "Ann", Group: group})
		if err != nil {
			t.Fatal(err)
		}
		a := w.cells["c1"].ask("POST", "/api/v1/users", string(body), 0, w.cells["c1"].slot(), "op")
		if a.status != 503 || !strings.Contains(a.body, "CELL_CLOSED") {
			t.Errorf("group %q: %d %s, want 503 CELL_CLOSED", group, a.status, a.body)
		}
	}
}
