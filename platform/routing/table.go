package routing

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Limits of a table. The first MaxOrdinal private slots are the cells' own, so
// slots of users moved alone start above them.
const (
	MaxOrdinal    = 1023
	FirstUserSlot = Slot(Slots + MaxOrdinal + 1)
	keySize       = 32 // an Ed25519 public key
)

// Global is the zone that is no cell; it may vote but owns no slot.
const Global = "global"

// ErrTable is what every refusal of a table wraps.
var ErrTable = errors.New("not a valid route table")

// PublicKey is one EdDSA key that a cell signs its users' tokens with.
type PublicKey struct {
	ID  string
	Key []byte // 32 bytes
}

// Cell is a cell as the table knows it. Names are stable words, never
// addresses; an ordinal is never given to another cell, not even after this one
// is gone. Weight is for new users: 0 closes the cell to them.
type Cell struct {
	Name    string
	Ordinal int
	Region  string
	Weight  int
	Keys    []PublicKey
}

// Assignment is what the table says about one slot. An empty Standby means that
// no other cell keeps a copy.
type Assignment struct {
	Owner   string
	Standby string
	Epoch   Epoch
}

// Spec is a table in the making. Slots has one entry per hash slot. Private has
// the slots from 16384 up; a cell's own slot may be left out and is then owned
// by the cell at epoch 1. Voters are zones (cells or Global). Overrides has the
// users who were moved alone, each with a private slot of their own, Groups the
// affinity groups that are pinned to a hash slot, by canonical name.
type Spec struct {
	Version   int64
	Cells     []Cell
	Slots     []Assignment
	Private   map[Slot]Assignment
	Voters    []string
	Overrides map[int64]Slot
	Groups    map[string]Slot
}

// row is an assignment with names replaced by their place in Table.names.
// Place 0 is the empty name: nobody.
type row struct {
	owner, standby uint16
	epoch          Epoch
}

// Table is one version of the route, never changed after Build. Looking a slot
// up is two array reads and no allocation, however many cells there are. The
// slots share their different rows, of which a table has few: a new table is
// small, and all processes make one at the same time when it is published.
type Table struct {
	version int64
	names   []string      // 0 is "", then the cells by ordinal
	cells   []Cell        // by ordinal; cells[i] is names[i+1]
	rows    []hashRow     // the different ones, by the first slot that has it
	kind    [Slots]uint16 // by hash slot: its row
	private []privateRow  // by slot
	voters  []string      // by name
	place   map[string]uint16
	owned   [][]uint16 // by place: the hash slots, ascending
	homes
}

type privateRow struct {
	slot Slot
	row
}

// Version counts published tables from 1; 0 is a table of last resort (Spread).
func (t *Table) Version() int64 { return t.version }

// Slot gives what the table says about a slot; false means that no cell has it.
func (t *Table) Slot(s Slot) (Assignment, bool) {
	if uint32(s) < Slots {
		r := &t.rows[t.kind[s]]
		return r.Assignment, r.owner != 0
	}
	r := t.privateRow(s)
	if r.owner == 0 {
		return Assignment{}, false
	}
	return Assignment{Owner: t.names[r.owner], Standby: t.names[r.standby], Epoch: r.epoch}, true
}

// Owner gives the cell that an ID lives in, the shortest way.
func (t *Table) Owner(id int64) (string, bool) {
	r := &t.rows[t.kind[id&SlotMask]]
	return r.Owner, r.owner != 0
}

func (t *Table) privateRow(s Slot) row {
	i, ok := t.findPrivate(s)
	if !ok {
		return row{}
	}
	return t.private[i].row
}

// Cells lists the cells by ordinal. The keys are shared: don't change them.
func (t *Table) Cells() []Cell { return slices.Clone(t.cells) }

// Cell gives the cell of that name.
func (t *Table) Cell(name string) (Cell, bool) {
	p, ok := t.place[name]
	if !ok {
		return Cell{}, false
	}
	return t.cells[p-1], true
}

// CellSlot gives the private slot that belongs to the cell itself.
func (t *Table) CellSlot(name string) (Slot, bool) {
	c, ok := t.Cell(name)
	if !ok {
		return 0, false
	}
	return CellSlot(c.Ordinal), true
}

// PrivateSlots lists the private slots, ascending.
func (t *Table) PrivateSlots() []Slot {
	out := make([]Slot, len(t.private))
	for i, p := range t.private {
		out[i] = p.slot
	}
	return out
}

// Key gives a cell's public token key by the key's ID.
func (t *Table) Key(cell, keyID string) ([]byte, bool) {
	c, ok := t.Cell(cell)
	if !ok {
		return nil, false
	}
	for _, k := range c.Keys {
		if k.ID == keyID {
			return k.Key, true
		}
	}
	return nil, false
}

// Voters lists the zones that are asked for leases.
func (t *Table) Voters() []string { return slices.Clone(t.voters) }

// Spec takes the table apart, to build its successor from.
func (t *Table) Spec() Spec {
	s := Spec{
		Version: t.version, Cells: t.Cells(), Voters: t.Voters(),
		Slots: make([]Assignment, Slots), Private: make(map[Slot]Assignment, len(t.private)),
		Overrides: t.overrides(), Groups: make(map[string]Slot, len(t.groups)),
	}
	maps.Copy(s.Groups, t.groups)
	for i := range s.Slots {
		s.Slots[i], _ = t.Slot(Slot(i))
	}
	for _, p := range t.private {
		s.Private[p.slot], _ = t.Slot(p.slot)
	}
	return s
}

// Build checks a spec and makes the table of it. The order in which cells, keys
// and voters are given doesn't matter. Every error wraps ErrTable.
func Build(spec Spec) (*Table, error) {
	return build(spec, func(t *Table) error { return t.addSlots(spec.Slots) })
}

// build takes the hash slots from a function instead of the spec.
func build(spec Spec, addSlots func(*Table) error) (*Table, error) {
	t := &Table{version: spec.Version, names: []string{""}, place: make(map[string]uint16, len(spec.Cells))}
	if spec.Version < 0 {
		return nil, fmt.Errorf("%w: version %d", ErrTable, spec.Version)
	}
	if err := t.addCells(spec.Cells); err != nil {
		return nil, err
	}
	if err := addSlots(t); err != nil {
		return nil, err
	}
	t.listOwned()
	if err := t.addPrivate(spec.Private); err != nil {
		return nil, err
	}
	if err := t.addHomes(spec.Overrides, spec.Groups); err != nil {
		return nil, err
	}
	if err := t.addVoters(spec.Voters); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Table) addCells(cells []Cell) error {
	if len(cells) == 0 {
		return fmt.Errorf("%w: no cells", ErrTable)
	}
	t.cells = slices.Clone(cells)
	slices.SortFunc(t.cells, func(a, b Cell) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	for i := range t.cells {
		c := &t.cells[i]
		switch {
		case !ValidName(c.Name):
			return fmt.Errorf("%w: %q can't be a cell's name", ErrTable, c.Name)
		case c.Ordinal < 1 || c.Ordinal > MaxOrdinal:
			return fmt.Errorf("%w: cell %s has ordinal %d", ErrTable, c.Name, c.Ordinal)
		case i > 0 && t.cells[i-1].Ordinal == c.Ordinal:
			return fmt.Errorf("%w: cells %s and %s share ordinal %d", ErrTable, t.cells[i-1].Name, c.Name, c.Ordinal)
		case c.Region != "" && !validWord(c.Region):
			return fmt.Errorf("%w: cell %s has region %q", ErrTable, c.Name, c.Region)
		case c.Weight < 0 || c.Weight > MaxWeight:
			return fmt.Errorf("%w: cell %s has weight %d", ErrTable, c.Name, c.Weight)
		}
		if _, twice := t.place[c.Name]; twice {
			return fmt.Errorf("%w: cell %s is there twice", ErrTable, c.Name)
		}
		if err := checkKeys(c); err != nil {
			return err
		}
		t.names = append(t.names, c.Name)
		t.place[c.Name] = uint16(i + 1)
	}
	return nil
}

func checkKeys(c *Cell) error {
	c.Keys = slices.Clone(c.Keys)
	slices.SortFunc(c.Keys, func(a, b PublicKey) int { return cmp.Compare(a.ID, b.ID) })
	for i, k := range c.Keys {
		if len(k.Key) != keySize || !validWord(k.ID) {
			return fmt.Errorf("%w: cell %s has a key %q of %d bytes", ErrTable, c.Name, k.ID, len(k.Key))
		}
		if i > 0 && c.Keys[i-1].ID == k.ID {
			return fmt.Errorf("%w: cell %s has key %s twice", ErrTable, c.Name, k.ID)
		}
		c.Keys[i].Key = slices.Clone(k.Key)
	}
	return nil
}

func (t *Table) row(s Slot, a Assignment) (row, error) {
	r := row{owner: t.place[a.Owner], standby: t.place[a.Standby], epoch: a.Epoch}
	switch {
	case r.owner == 0:
		return row{}, fmt.Errorf("%w: slot %d is owned by %q", ErrTable, s, a.Owner)
	case r.standby == 0 && a.Standby != "":
		return row{}, fmt.Errorf("%w: slot %d has standby %q", ErrTable, s, a.Standby)
	case r.standby == r.owner:
		return row{}, fmt.Errorf("%w: slot %d has its owner as standby", ErrTable, s)
	case a.Epoch < 1:
		return row{}, fmt.Errorf("%w: slot %d has epoch %d", ErrTable, s, a.Epoch)
	}
	return r, nil
}

func (t *Table) addPrivate(private map[Slot]Assignment) error {
	t.private = make([]privateRow, 0, len(private)+len(t.cells))
	for s, a := range private {
		if !s.Private() {
			return fmt.Errorf("%w: slot %d is no private slot", ErrTable, s)
		}
		if s < FirstUserSlot && !slices.ContainsFunc(t.cells, func(c Cell) bool { return CellSlot(c.Ordinal) == s }) {
			return fmt.Errorf("%w: slot %d belongs to no cell", ErrTable, s)
		}
		r, err := t.row(s, a)
		if err != nil {
			return err
		}
		t.private = append(t.private, privateRow{s, r})
	}
	for _, c := range t.cells {
		if _, given := private[CellSlot(c.Ordinal)]; !given {
			t.private = append(t.private, privateRow{CellSlot(c.Ordinal), row{owner: t.place[c.Name], epoch: 1}})
		}
	}
	slices.SortFunc(t.private, func(a, b privateRow) int { return cmp.Compare(a.slot, b.slot) })
	return nil
}

func (t *Table) addVoters(voters []string) error {
	t.voters = slices.Clone(voters)
	slices.Sort(t.voters)
	for i, v := range t.voters {
		if _, ok := t.place[v]; !ok && v != Global {
			return fmt.Errorf("%w: voter %q is no zone", ErrTable, v)
		}
		if i > 0 && t.voters[i-1] == v {
			return fmt.Errorf("%w: voter %q is there twice", ErrTable, v)
		}
	}
	return nil
}

// CheckNext says whether next may be published after t: the version is one
// higher, no cell, ordinal or private slot is lost or given to another, no moved
// user is turned back, and epochs only grow, by one where the owner changes.
func (t *Table) CheckNext(next *Table) error {
	if next.version != t.version+1 {
		return fmt.Errorf("%w: version %d after %d", ErrTable, next.version, t.version)
	}
	for _, c := range t.cells {
		n, ok := next.Cell(c.Name)
		if !ok || n.Ordinal != c.Ordinal {
			return fmt.Errorf("%w: cell %s (ordinal %d) is lost or renumbered", ErrTable, c.Name, c.Ordinal)
		}
	}
	check := func(s Slot) error {
		old, _ := t.Slot(s)
		now, ok := next.Slot(s)
		want := old.Epoch
		if now.Owner != old.Owner {
			want++
		}
		if !ok || now.Epoch != want {
			return fmt.Errorf("%w: slot %d goes from %s epoch %d to %q epoch %d", ErrTable, s, old.Owner, old.Epoch, now.Owner, now.Epoch)
		}
		return nil
	}
	for i := range Slot(Slots) {
		if err := check(i); err != nil {
			return err
		}
	}
	for _, p := range t.private {
		if err := check(p.slot); err != nil {
			return err
		}
	}
	return t.checkOverrides(next)
}
