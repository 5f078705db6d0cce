package control

import (
	"fmt"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/control/controlapi"
)

// firstTable makes version 1: slots in exact shares by weight, every slot at
// epoch 1, each with a standby in another cell, voters control and all cells.
func firstTable(req controlapi.InitRequest) (*routing.Table, error) {
	spec := routing.Spec{Version: 1, Slots: make([]routing.Assignment, routing.Slots), Voters: []string{routing.Global}}
	shares := make([]routing.Share, 0, len(req.Cells))
	for i, c := range req.Cells {
		cell := routing.Cell{Name: c.Name, Ordinal: c.Ordinal, Region: c.Region, Weight: c.Weight}
		if cell.Ordinal == 0 {
			cell.Ordinal = i + 1
		}
		for _, k := range c.Keys {
			cell.Keys = append(cell.Keys, routing.PublicKey(k))
		}
		spec.Cells = append(spec.Cells, cell)
		spec.Voters = append(spec.Voters, c.Name)
		shares = append(shares, routing.Share{Cell: c.Name, Weight: c.Weight})
	}
	plan, err := routing.Balanced(nil, shares)
	if err != nil {
		return nil, errs.Field("cells", "%v", err)
	}
	for i, owner := range plan.Owners {
		spec.Slots[i] = routing.Assignment{Owner: owner, Epoch: 1}
	}
	spread(&spec)
	t, err := routing.Build(spec)
	if err != nil {
		return nil, errs.Field("cells", "%v", err)
	}
	return t, nil
}

// sameCells says whether a table has exactly the cells that an init asks for,
// by name and place; what may have changed since (weights, keys) isn't compared.
func sameCells(t *routing.Table, req controlapi.InitRequest) bool {
	if len(req.Cells) != len(t.Cells()) {
		return false
	}
	for i, c := range req.Cells {
		want := c.Ordinal
		if want == 0 {
			want = i + 1
		}
		if have, ok := t.Cell(c.Name); !ok || have.Ordinal != want {
			return false
		}
	}
	return true
}

// nextTable makes the successor that a publish asks for.
func nextTable(cur *routing.Table, req controlapi.PublishRequest) (*routing.Table, error) {
	if (req.Table == nil) == (req.Changes == nil) {
		return nil, errs.Field("table", "give either a table or changes")
	}
	var next *routing.Table
	var err error
	if req.Table != nil {
		if next, err = routing.Decode(req.Table); err != nil {
			return nil, errs.Field("table", "%v", err)
		}
	} else if next, err = changed(cur, *req.Changes); err != nil {
		return nil, err
	}
	if err := cur.CheckNext(next); err != nil {
		return nil, controlapi.ErrRefused.Msgf("%v", err)
	}
	return next, nil
}

func changed(cur *routing.Table, ch controlapi.Changes) (*routing.Table, error) {
	spec := cur.Spec()
	spec.Version++
	for name := range ch.Weights {
		if _, ok := cur.Cell(name); !ok {
			return nil, errs.Field("changes.weights", "there is no cell %q", name)
		}
	}
	for i := range spec.Cells {
		if w, ok := ch.Weights[spec.Cells[i].Name]; ok {
			spec.Cells[i].Weight = w
		}
	}
	for i, a := range ch.Assign {
		if err := assign(cur, &spec, fmt.Sprintf("changes.assign[%d]", i), a); err != nil {
			return nil, err
		}
	}
	for i, b := range ch.Standbys {
		field := fmt.Sprintf("changes.standbys[%d]", i)
		if err := eachSlot(&spec, field, b.From, b.To, func(_ routing.Slot, row *routing.Assignment) error {
			row.Standby = b.Standby
			return nil
		}); err != nil {
			return nil, err
		}
	}
	for i, o := range ch.Overrides {
		field := fmt.Sprintf("changes.overrides[%d]", i)
		_, there := spec.Private[o.Slot]
		switch was, moved := spec.Overrides[int64(o.User)]; {
		case moved && was != o.Slot:
			return nil, errs.Field(field, "user %s is in private slot %d already", o.User, was)
		case there && o.Owner+o.Standby != "":
			return nil, errs.Field(field, "private slot %d is there already, its owner is changed with assign", o.Slot)
		case !there:
			spec.Private[o.Slot] = routing.Assignment{Owner: o.Owner, Standby: o.Standby, Epoch: 1}
		}
		spec.Overrides[int64(o.User)] = o.Slot
	}
	for name, slot := range ch.Groups {
		if name = routing.CanonicalGroup(name); slot == nil {
			delete(spec.Groups, name)
		} else {
			spec.Groups[name] = *slot
		}
	}
	next, err := routing.Build(spec)
	if err != nil {
		return nil, errs.Field("changes", "%v", err)
	}
	return next, nil
}

// assign gives slots to another owner.
func assign(cur *routing.Table, spec *routing.Spec, field string, a controlapi.Assign) error {
	return eachSlot(spec, field, a.From, a.To, func(s routing.Slot, row *routing.Assignment) error {
		was, _ := cur.Slot(s)
		if row.Owner == a.Owner {
			return nil
		} else if *row != was {
			return errs.Field(field, "slot %d is assigned twice", s)
		}
		row.Owner = a.Owner
		row.Epoch++
		if was.Standby == a.Owner {
			row.Standby = was.Owner // as in a move: the old owner keeps a copy
		}
		return nil
	})
}

// eachSlot changes the rows of a range: hash slots, or private slots that exist.
func eachSlot(spec *routing.Spec, field string, from, to routing.Slot, change func(routing.Slot, *routing.Assignment) error) error {
	if from < 0 || to < from || from.Private() != to.Private() {
		return errs.Field(field, "slots %d to %d are no range of hash slots or of private slots", from, to)
	}
	for s := from; ; s++ {
		if !s.Private() {
			if err := change(s, &spec.Slots[s]); err != nil {
				return err
			}
		} else {
			row, ok := spec.Private[s]
			if !ok {
				return errs.Field(field, "there is no private slot %d", s)
			}
			if err := change(s, &row); err != nil {
				return err
			}
			spec.Private[s] = row
		}
		if s == to { // not in the head of the loop: To may be the last number
			return nil
		}
	}
}
