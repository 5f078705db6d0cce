package standby_test

import (
	"fmt"
	"testing"
)

func TestCopyAndStreamBringEveryColumn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	const types = `INSERT INTO shop.types VALUES ($1, 0, 0, $2, 7, true, -3, 9007199254740993, 1.5, 0.1, 12345.6789, $3, 'ab', '\x00ff41', '{"a": [1, null]}',
		'{"b":  2}', '2026-03-04 05:06:07.123456+05', '2026-03-04 05:06:07', '2026-03-04', '1 mon 2 days 03:04:05.5', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
		'{1,NULL,3}', '{"x, y",NULL,"\"q\""}', 'sad', '[1.5,2.5)', '10.0.0.0/8')`
	c1.write(3, 1, types, 3, "copied", long(10000))
	c1.write(3, 1, "INSERT INTO shop.types (slot, key, \"From\") VALUES (3, 'empty', 0)")
	c1.add(3, 1, 1, "before")
	c1.add(11, 1, 1, "of a slot that c2 doesn't keep")
	c2.super("UPDATE cell.slots SET role = 'owner', owner = 'c2' WHERE slot BETWEEN 20 AND 29") // rows of its own stand beside
	for slot := 20; slot < 30; slot++ {
		c2.add(slot, 1, slot, "own")
	}
	c1.relay()
	c2.standby("c1")
	w.synced(c1, c2, w.allTen()...)

	c1.write(4, 1, types, 4, "streamed", long(10000))
	c1.write(4, 1, `UPDATE shop.types SET a_big = 5, a_json = NULL WHERE slot = 4`) // the long text isn't in the WAL again
	c1.write(3, 1, `UPDATE shop.types SET a_text = NULL, a_bytes = '\x' WHERE slot = 3 AND key = 'copied'`)
	c1.write(3, 1, `UPDATE shop.types SET a_text = $1 WHERE slot = 3 AND key = 'empty'`, "' \\ \n \t é 中文 \"")
	for i := range 50 {
		c1.write(3, 1, "UPDATE shop.things SET note = $1 WHERE slot = 3", fmt.Sprint(i))
	}
	w.synced(c1, c2, w.allTen()...)
	if got := c2.text("SELECT length(a_text) FROM shop.types WHERE slot = 4"); got != "10000" {
		t.Errorf("the long text has length %s, want 10000", got)
	}
	if got := c2.text("SELECT count(*) FROM shop.things WHERE slot = 11"); got != "0" {
		t.Errorf("%s rows of a slot that isn't kept here", got)
	}
}

// S-C10: a column is added while the cells run. The sink first: nothing stops. The
// source first: the sink stops, says so, and goes on when it is migrated too.
func TestScenario_C10_AColumnIsAdded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c2")
	c1, c2 := w.cells["c1"], w.cells["c2"]
	c1.relay()
	c1.add(3, 1, 1, "before")
	c2.standby("c1")
	w.synced(c1, c2, w.allTen()...)

	for _, c := range []*cell{c2, c1} {
		c.super("ALTER TABLE shop.things ADD COLUMN colour text")
	}
	c1.write(3, 1, "UPDATE shop.things SET colour = 'red' WHERE slot = 3")
	c1.write(4, 1, "INSERT INTO shop.things (slot, id, name, colour) VALUES (4, 2, 'after', 'blue')")
	w.synced(c1, c2, w.allTen()...)

	c1.super("ALTER TABLE shop.things ADD COLUMN size int")
	c1.write(3, 1, "UPDATE shop.things SET size = 7 WHERE slot = 3")
	const want = "columns size of shop.things aren't known here: this cell must be migrated"
	wait(t, func() string { return fmt.Sprint(c2.status()) }, func() bool { return c2.status().Reason == want && c2.status().State == "stopped" })
	c2.super("ALTER TABLE shop.things ADD COLUMN size int")
	w.synced(c1, c2, w.allTen()...)
	if st := c2.status(); st.State != "live" || st.Gaps != 0 {
		t.Errorf("after the migration: %+v", st)
	}
}
