package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/control/controlapi"
)

func fourCells() controlapi.InitRequest {
	var req controlapi.InitRequest
	for i, name := range []string{"c1", "c2", "c3", "c4"} {
		key := bytes.Repeat([]byte{byte(i + 1)}, 32)
		req.Cells = append(req.Cells, controlapi.Cell{Name: name, Region: "r1", Weight: 1, Keys: []controlapi.Key{{ID: routing.KeyID(key), Key: key}}})
	}
	return req
}

func first(t testing.TB) *routing.Table {
	t.Helper()
	table, err := firstTable(fourCells())
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestFirstTable(t *testing.T) {
	t.Parallel()
	table := first(t)
	if table.Version() != 1 || strings.Join(table.Voters(), " ") != "c1 c2 c3 c4 global" {
		t.Errorf("version %d, voters %v", table.Version(), table.Voters())
	}
	for i, c := range table.Cells() {
		if n := len(table.SlotsOf(c.Name)); n != routing.Slots/4 || c.Ordinal != i+1 {
			t.Errorf("%s: ordinal %d, %d slots", c.Name, c.Ordinal, n)
		}
		s, _ := table.CellSlot(c.Name)
		if a, ok := table.Slot(s); !ok || a != (routing.Assignment{Owner: c.Name, Standby: table.Cells()[(i+1)%4].Name, Epoch: 1}) {
			t.Errorf("cell slot of %s: %v, %v", c.Name, a, ok)
		}
		if _, ok := table.Key(c.Name, routing.KeyID(bytes.Repeat([]byte{byte(i + 1)}, 32))); !ok {
			t.Errorf("no token key of %s", c.Name)
		}
	}
	for name, spoil := range map[string]func(*controlapi.InitRequest){
		"no cells":        func(r *controlapi.InitRequest) { r.Cells = nil },
		"no weight":       func(r *controlapi.InitRequest) { r.Cells = r.Cells[:1]; r.Cells[0].Weight = 0 },
		"a cell twice":    func(r *controlapi.InitRequest) { r.Cells[1].Name = "c1" },
		"an ordinal over": func(r *controlapi.InitRequest) { r.Cells[1].Ordinal = 3 },
		"an address":      func(r *controlapi.InitRequest) { r.Cells[1].Name = "10.0.0.1" },
		"a short key":     func(r *controlapi.InitRequest) { r.Cells[1].Keys[0].Key = []byte{1} },
	} {
		req := fourCells()
		spoil(&req)
		if _, err := firstTable(req); !errs.IsKind(err, errs.Invalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
}

func TestNextTable(t *testing.T) {
	t.Parallel()
	cur := first(t)
	assign := func(from, to routing.Slot, owner string) *controlapi.Changes {
		return &controlapi.Changes{Assign: []controlapi.Assign{{From: from, To: to, Owner: owner}}}
	}
	override := func(all ...controlapi.Override) *controlapi.Changes { return &controlapi.Changes{Overrides: all} }
	next, err := nextTable(cur, controlapi.PublishRequest{Changes: assign(4000, 4200, "c2")})
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[routing.Slot]routing.Assignment{
		3999: {Owner: "c1", Standby: "c4", Epoch: 1}, 4000: {Owner: "c2", Standby: "c4", Epoch: 2}, 4095: {Owner: "c2", Standby: "c4", Epoch: 2},
		4096: {Owner: "c2", Standby: "c3", Epoch: 1}, 4200: {Owner: "c2", Standby: "c3", Epoch: 1},
	} {
		if a, _ := next.Slot(s); a != want {
			t.Errorf("slot %d: %v, want %v", s, a, want)
		}
	}
	closed, err := nextTable(next, controlapi.PublishRequest{Changes: &controlapi.Changes{Weights: map[string]int{"c3": 0}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := routing.PickSlot(closed, "c3", 1); ok || closed.Version() != 3 {
		t.Errorf("version %d: c3 is not closed", closed.Version())
	}
	skip := closed.Spec()
	skip.Version = 9
	jump, err := routing.Build(skip)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		req  controlapi.PublishRequest
		want error
	}{
		"nothing":                        {controlapi.PublishRequest{}, errs.Field("", "")},
		"both":                           {controlapi.PublishRequest{Table: json.RawMessage(cur.Encode()), Changes: assign(1, 1, "c2")}, errs.Field("", "")},
		"no table":                       {controlapi.PublishRequest{Table: json.RawMessage(`{}`)}, errs.Field("", "")},
		"a table that jumps":             {controlapi.PublishRequest{Table: json.RawMessage(jump.Encode())}, controlapi.ErrRefused},
		"an old table":                   {controlapi.PublishRequest{Table: json.RawMessage(cur.Encode())}, controlapi.ErrRefused},
		"an unknown owner":               {controlapi.PublishRequest{Changes: assign(1, 1, "c9")}, errs.Field("", "")},
		"an unknown weight":              {controlapi.PublishRequest{Changes: &controlapi.Changes{Weights: map[string]int{"c9": 1}}}, errs.Field("", "")},
		"a negative weight":              {controlapi.PublishRequest{Changes: &controlapi.Changes{Weights: map[string]int{"c1": -1}}}, errs.Field("", "")},
		"across the border":              {controlapi.PublishRequest{Changes: assign(16380, 16385, "c1")}, errs.Field("", "")},
		"no private slot":                {controlapi.PublishRequest{Changes: assign(17408, 17408, "c1")}, errs.Field("", "")},
		"a standby nowhere":              {controlapi.PublishRequest{Changes: &controlapi.Changes{Standbys: []controlapi.Standby{{From: 17408, To: 1<<31 - 1}}}}, errs.Field("", "")},
		"an unknown standby":             {controlapi.PublishRequest{Changes: &controlapi.Changes{Standbys: []controlapi.Standby{{To: 5, Standby: "c9"}}}}, errs.Field("", "")},
		"its own standby":                {controlapi.PublishRequest{Changes: &controlapi.Changes{Standbys: []controlapi.Standby{{To: 5, Standby: "c1"}}}}, errs.Field("", "")},
		"a user in no slot":              {controlapi.PublishRequest{Changes: override(controlapi.Override{User: 77, Slot: 5, Owner: "c2"})}, errs.Field("", "")},
		"a user in a new slot of nobody": {controlapi.PublishRequest{Changes: override(controlapi.Override{User: 77, Slot: 17408})}, errs.Field("", "")},
		"two users in one slot": {controlapi.PublishRequest{Changes: override(
			controlapi.Override{User: 77, Slot: 17408, Owner: "c2"}, controlapi.Override{User: 78, Slot: 17408})}, errs.Field("", "")},
		"a group without name": {controlapi.PublishRequest{Changes: &controlapi.Changes{Groups: map[string]*routing.Slot{" ": new(routing.Slot)}}}, errs.Field("", "")},
		"a backward range":     {controlapi.PublishRequest{Changes: assign(9, 8, "c1")}, errs.Field("", "")},
		"a slot twice": {controlapi.PublishRequest{Changes: &controlapi.Changes{Assign: []controlapi.Assign{
			{From: 1, To: 2, Owner: "c2"}, {From: 2, To: 3, Owner: "c3"},
		}}}, errs.Field("", "")},
	} {
		if _, err := nextTable(cur, c.req); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestNextTableOfAMovedUser follows a user who is moved alone, moves on, and can
// never be taken out again; and standbys and groups as they come and go.
func TestNextTableOfAMovedUser(t *testing.T) {
	t.Parallel()
	const user, p = 4<<14 | 12, routing.FirstUserSlot
	cur := first(t)
	publish := func(body string) error {
		t.Helper()
		var ch controlapi.Changes
		if err := json.Unmarshal([]byte(body), &ch); err != nil {
			t.Fatal(err)
		}
		next, err := nextTable(cur, controlapi.PublishRequest{Changes: &ch})
		if err == nil {
			cur = next
		}
		return err
	}
	for _, step := range []struct {
		body string
		want error
		home routing.Assignment
	}{
		{`{"standbys":[{"from":0,"to":20,"standby":"c3"}]}`, nil, routing.Assignment{Owner: "c1", Standby: "c3", Epoch: 1}},
		{`{"overrides":[{"user":"65548","slot":17408,"owner":"c2","standby":"c1"}]}`, nil, routing.Assignment{Owner: "c2", Standby: "c1", Epoch: 1}},
		{`{"overrides":[{"user":"65548","slot":17408,"owner":"c3"}]}`, errs.Field("", ""), routing.Assignment{Owner: "c2", Standby: "c1", Epoch: 1}},
		{`{"overrides":[{"user":"65548","slot":17409,"owner":"c3"}]}`, errs.Field("", ""), routing.Assignment{Owner: "c2", Standby: "c1", Epoch: 1}},
		{`{"assign":[{"from":17408,"to":17408,"owner":"c4"}],"standbys":[{"from":17408,"to":17408,"standby":"c2"}]}`, nil, routing.Assignment{Owner: "c4", Standby: "c2", Epoch: 2}},
		{`{"assign":[{"from":17408,"to":17408,"owner":"c1"}],"standbys":[{"from":17408,"to":17408}]}`, nil, routing.Assignment{Owner: "c1", Epoch: 3}},
		{`{"groups":{"City: Berlin":77}}`, nil, routing.Assignment{Owner: "c1", Epoch: 3}},
	} {
		if err := publish(step.body); !errors.Is(err, step.want) {
			t.Fatalf("%s: %v, want %v", step.body, err, step.want)
		}
		if _, a, ok := cur.Home(user); !ok || a != step.home {
			t.Fatalf("after %s the user is at %v, want %v", step.body, a, step.home)
		}
	}
	if s, _, _ := cur.Home(user); s != p {
		t.Errorf("Home = slot %d, want %d", s, p)
	}
	if taken := cur.TakenFrom(12); len(taken) != 1 || taken[0] != p || cur.GroupSlot("city: berlin") != 77 {
		t.Errorf("TakenFrom = %v, group at %d", taken, cur.GroupSlot("city: berlin"))
	}
	if err := publish(`{"groups":{"city: berlin":null}}`); err != nil || cur.GroupSlot("city: berlin") == 77 {
		t.Errorf("the pin stays: %v", err)
	}
	spec := cur.Spec()
	spec.Version++
	spec.Overrides = nil
	back, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nextTable(cur, controlapi.PublishRequest{Table: back.Encode()}); !errors.Is(err, controlapi.ErrRefused) {
		t.Errorf("a table that turns the user back: %v, want %v", err, controlapi.ErrRefused)
	}
}
