package standby_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/standby"
)

// hand gives c2's applier changes of c1 by hand: as the follower does, without a
// stream.
type hand struct {
	*cell
	a   *standby.Applier
	lsn cdc.LSN
	pos cdc.Position
}

var thingColumns = []string{"slot", "epoch", "rev", "id", "name", "note"}

func newHand(t *testing.T) *hand {
	t.Helper()
	w := newWorld(t, "c2")
	c2 := w.cells["c2"]
	h := &hand{cell: c2, a: c2.applierOf("c1"), lsn: 1000, pos: cdc.Position{State: cdc.Live, Incarnation: "one", LSN: 1000}}
	t.Cleanup(func() { h.a.Close("c1") })
	return h
}

func sent(values ...any) []cdc.Value {
	var out []cdc.Value
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			out = append(out, cdc.Value{State: cdc.Null})
		case cdc.ValueState:
			out = append(out, cdc.Value{State: v})
		default:
			out = append(out, cdc.Value{Text: fmt.Sprint(v)})
		}
	}
	return out
}

// thing is a row of shop.things: slot, epoch, rev, id, name, note.
func thing(values ...any) cdc.Row {
	return cdc.Row{Table: "shop.things", Op: cdc.Update, Columns: thingColumns, Values: sent(values...)}
}

func slotRow(slot, epoch int, owner string, standby, incoming any) cdc.Row {
	return cdc.Row{Table: "cell.slots", Op: cdc.Update, Columns: []string{"slot", "epoch", "owner", "standby", "role", "state", "given_to", "incoming"},
		Values: sent(slot, epoch, owner, standby, "owner", "active", nil, incoming)}
}

// tx is a transaction of the source.
func (h *hand) tx(rows ...cdc.Row) cdc.Change {
	h.lsn += 10
	h.pos.LSN = h.lsn
	return cdc.Change{Message: cdc.Message{Kind: cdc.KindTx, Incarnation: "one", LSN: h.lsn, Prev: h.lsn - 10, Commit: h.lsn - 5, Chunk: 1, Chunks: 1, Rows: rows}, After: h.pos}
}

// copied are the messages of a copy of slots.
func (h *hand) copied(name string, slots []int32, messages ...[]cdc.Row) []cdc.Change {
	m := cdc.Message{Kind: cdc.KindBegin, Incarnation: "one", Copy: name, Slots: slots, Prev: h.lsn}
	out := []cdc.Change{{Message: m, After: h.pos}}
	for i, rows := range messages {
		m.Kind, m.N, m.LSN, m.Rows = cdc.KindCopy, i+1, h.lsn+1, rows
		out = append(out, cdc.Change{Message: m, After: h.pos})
	}
	m.Kind, m.N, m.Rows = cdc.KindEnd, len(messages)+1, nil
	return append(out, cdc.Change{Message: m, After: h.pos})
}

func (h *hand) try(changes ...cdc.Change) error {
	return h.a.Apply(context.Background(), "c1", changes, h.pos)
}

func (h *hand) give(changes ...cdc.Change) {
	h.w.t.Helper()
	if err := h.try(changes...); err != nil {
		h.w.t.Fatal(err)
	}
}

// ready brings slots 0 to 9 in sync, empty, at epoch 1.
func (h *hand) ready() {
	h.w.t.Helper()
	var rows []cdc.Row
	var slots []int32
	for s := range 10 {
		rows, slots = append(rows, slotRow(s, 1, "c1", "c2", nil)), append(slots, int32(s))
	}
	h.give(h.copied("first/1", slots, rows)...)
	h.give(h.tx())
	h.state("0-9 in_sync")
}

// state compares what is said of the copies: runs of slots, state, reason.
func (h *hand) state(want ...string) {
	h.w.t.Helper()
	if got := h.states(); !slices.Equal(got, want) {
		h.w.t.Errorf("copies:\n got %q\nwant %q", got, want)
	}
}

func (h *hand) states() []string {
	var got []string
	from := 0
	last := ""
	for slot := range 11 {
		now := "end"
		if slot < 10 {
			now = strings.TrimSpace(h.text("SELECT state || ' ' || reason FROM cell.standing_by WHERE slot = $1", slot))
		}
		if now != last && slot > 0 {
			run := fmt.Sprint(from)
			if slot-1 > from {
				run += fmt.Sprintf("-%d", slot-1)
			}
			got, from = append(got, run+" "+last), slot
		}
		last = now
	}
	return got
}

func (h *hand) things(want ...string) {
	h.w.t.Helper()
	if got := h.rows("shop.things"); !slices.Equal(got, want) {
		h.w.t.Errorf("rows:\n got %q\nwant %q", got, want)
	}
}

// status gives the applier's word on c1.
func (h *hand) status() standby.Status {
	h.w.t.Helper()
	all, err := h.a.Status(h.w.t.Context())
	if err != nil || len(all) != 1 {
		h.w.t.Fatal(all, err)
	}
	return all[0]
}

func TestLaterVersionsWinAndBatchesCanComeAgain(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	h.ready()
	batch := []cdc.Change{
		h.tx(thing(1, 1, 1, 7, "a", "x")), h.tx(thing(1, 1, 2, 7, "a", "y"), thing(2, 1, 1, 8, "b", nil)), h.tx(thing(1, 1, 3, 7, "c", "z")),
		h.tx(thing(1, 1, 2, 7, "a", "old")), // it can't come so, and must do no harm
	}
	want := []string{"(1,1,3,7,c,z)", "(2,1,1,8,b,)"}
	h.give(batch...)
	h.things(want...)
	h.give(batch...)
	h.a.Close("c1") // as after a commit whose answer was lost
	h.give(batch...)
	h.things(want...)
	if st := h.status(); st.State != "live" || st.LSN != h.lsn || st.InSync != 10 || len(st.InSyncSlots) != 1 || st.InSyncSlots[0] != [3]int64{0, 9, 1} {
		t.Errorf("status %+v, want live at %s with one run of slots", st, h.lsn)
	}
}

func TestLargeValuesThatWereNotSentStay(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	h.ready()
	h.give(h.tx(thing(1, 1, 1, 7, "a", "large")))
	h.give(h.tx(thing(1, 1, 2, 7, "b", cdc.Same)), h.tx(thing(1, 1, 3, 7, "c", cdc.Same)))
	h.things("(1,1,3,7,c,large)")
	h.give(h.tx(thing(1, 1, 4, 7, "d", "larger")), h.tx(thing(1, 1, 5, 7, "e", cdc.Same)))
	h.things("(1,1,5,7,e,larger)")
	h.state("0-9 in_sync")
	h.give(h.tx(thing(1, 1, 8, 7, "f", cdc.Same)), h.tx(thing(2, 1, 1, 9, "other", nil)))
	h.state("0 in_sync", "1 stopped a change of shop.things is of a version that isn't here", "2-9 in_sync")
	h.things("(1,1,5,7,e,larger)", "(2,1,1,9,other,)")
}

// While a slot is copied, a change may come before the version that it's made from.
func TestLargeValuesWaitForTheCopy(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	h.ready()
	c := h.copied("second/1", []int32{1}, []cdc.Row{slotRow(1, 1, "c1", "c2", nil)}, []cdc.Row{thing(1, 1, 7, 7, "g", "large"), thing(1, 1, 1, 8, "stale", "s")})
	h.give(c[0])
	h.give(h.tx(thing(1, 1, 8, 7, "h", cdc.Same)), h.tx(thing(1, 1, 9, 7, "i", cdc.Same), thing(1, 1, 2, 8, "fresh", "f")))
	h.state("0 in_sync", "1 copying", "2-9 in_sync")
	h.give(c[1:3]...)
	h.give(h.tx(thing(1, 1, 10, 7, "j", cdc.Same)))
	h.give(c[3])
	h.give(h.tx())
	h.things("(1,1,10,7,j,large)", "(1,1,2,8,fresh,f)")
	h.state("0-9 in_sync")
	if n := h.text("SELECT count(*) FROM cell.standby_pending"); n != "0" {
		t.Errorf("%s changes are left waiting", n)
	}
}

func TestEpochs(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	h.ready()
	h.give(h.tx(thing(1, 1, 1, 7, "a", nil)))
	// The source knows the next epoch before this cell's table.
	h.give(h.tx(thing(1, 2, 2, 7, "b", nil), thing(2, 1, 1, 8, "other", nil)))
	h.state("0 in_sync", "1 stopped the source is at epoch 2 already, this cell's table at 1", "2-9 in_sync")
	h.things("(1,1,1,7,a,)", "(2,1,1,8,other,)")
	// Then its row of the slot: a new epoch is a new copy, and rows of before go.
	h.give(h.tx(slotRow(1, 2, "c1", "c2", nil)))
	h.state("0 in_sync", "1 stopped the source is at epoch 2 already, this cell's table at 1", "2-9 in_sync")
	h.give(h.copied("second/1", []int32{1}, []cdc.Row{slotRow(1, 2, "c1", "c2", nil), thing(1, 1, 1, 9, "from before", nil)})...)
	h.give(h.tx(thing(1, 2, 2, 9, "now", nil), thing(1, 1, 5, 9, "late", nil)))
	h.state("0-9 in_sync")
	h.things("(1,2,2,9,now,)", "(2,1,1,8,other,)")
	if st := h.status(); st.DroppedOld != 1 {
		t.Errorf("%d rows of an older epoch were dropped, want 1", st.DroppedOld)
	}
}

func TestPromotionEndsTheApplying(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	h.ready()
	h.super("BEGIN; SET LOCAL session_replication_role = replica; INSERT INTO cell.outbox (slot, epoch, rev, id, to_slot, service, kind, key, body, reply_service) VALUES (1, 1, 1, 'open', 3, 's', 'k', 'x', '{}', 's'); COMMIT")
	h.give(h.tx(thing(1, 1, 1, 7, "a", nil)))
	at := h.lsn
	h.super("SELECT cell.promote(1, 2)")
	h.give(h.tx(thing(1, 1, 2, 7, "lost", nil), thing(2, 1, 1, 8, "other", nil)), h.tx(slotRow(1, 1, "c1", "c2", nil)))
	h.things("(1,1,1,7,a,)", "(2,1,1,8,other,)")
	h.state("0 in_sync", "1 NULL", "2-9 in_sync")
	if got, want := h.text("SELECT format('%s %s %s %s', source, state, incarnation, lsn) FROM cell.promotions WHERE slot = 1 AND epoch = 2"), "c1 in_sync one "+at.String(); got != want {
		t.Errorf("the promotion was at %q, want %q", got, want)
	}
	if got := h.text("SELECT string_agg(id, ',') FROM cell.relay WHERE slot = 1"); got != "open" {
		t.Errorf("noted to be sent again: %s, want the open request", got)
	}
	if got := h.text("SELECT role || epoch FROM cell.slots WHERE slot = 1"); got != "owner2" {
		t.Errorf("the slot is %s, want owner2", got)
	}
	if st := h.status(); st.DroppedOther != 1 {
		t.Errorf("%d rows of a slot owned here were dropped, want 1", st.DroppedOther)
	}
}

func TestOneSlotThatCannotBeAppliedStopsAlone(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	h.ready()
	h.give(h.tx(thing(1, 1, 1, 7, "a", nil)))
	h.give(h.tx(thing(1, 1, 1, 8, "a", nil)), h.tx(thing(2, 1, 1, 8, "other", nil))) // name is unique in a slot
	got := h.states()
	if len(got) != 3 || !strings.HasPrefix(got[1], "1 stopped a row of shop.things can't be applied: ERROR: duplicate key") {
		t.Errorf("copies are %q, want slot 1 stopped", got)
	}
	h.things("(1,1,1,7,a,)", "(2,1,1,8,other,)")
	// Its next copy replaces what is here, larger or not.
	h.give(h.copied("second/1", []int32{1}, []cdc.Row{slotRow(1, 1, "c1", "c2", nil), thing(1, 1, 1, 8, "a", nil)})...)
	h.give(h.tx())
	h.state("0-9 in_sync")
	h.things("(1,1,1,8,a,)", "(2,1,1,8,other,)")
	// Two rows that exchange a unique value in one batch do so in their order.
	h.give(h.tx(thing(1, 1, 2, 8, "z", nil)), h.tx(thing(1, 1, 1, 5, "a", nil)), h.tx(thing(1, 1, 3, 8, "y", nil)))
	h.state("0-9 in_sync")
	h.things("(1,1,1,5,a,)", "(1,1,3,8,y,)", "(2,1,1,8,other,)")
}

func TestCopiesThatDoNotCover(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	all := []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	h.state("0-9 copying not copied yet")
	h.give(h.copied("first/1", all, []cdc.Row{slotRow(0, 1, "c1", "c2", nil), slotRow(1, 1, "c1", "c3", nil), slotRow(2, 2, "c1", "c3", nil)})...)
	h.state("0 copying", "1-2 NULL", "3-9 stopped the owner doesn't count this cell as the slot's standby yet")
	h.give(h.tx())
	if got := h.states()[0]; got != "0 in_sync" {
		t.Errorf("slot 0 is %q, want in sync", got)
	}
	// A hole in a copy: nothing of it counts.
	c := h.copied("second/1", []int32{3, 4}, []cdc.Row{slotRow(3, 1, "c1", "c2", nil)}, []cdc.Row{slotRow(4, 1, "c1", "c2", nil)})
	h.give(c[0], c[1])
	h.give(c[3], h.tx())
	if got := h.states()[2]; got != "3-4 stopped message 3 of the copy comes after 1" {
		t.Errorf("after a hole the copies are %q", got)
	}
	// Twice the same is once.
	c = h.copied("third/1", []int32{3}, []cdc.Row{slotRow(3, 1, "c1", "c2", nil), thing(3, 1, 1, 5, "x", nil)})
	h.give(c[0], c[1], c[0], c[1], c[2], c[2], h.tx())
	if got := h.states()[2]; got != "3 in_sync" {
		t.Errorf("slot 3 is %q, want in sync", got)
	}
	h.give(h.tx(cdc.Row{Table: "shop.things", Op: cdc.Delete, Columns: []string{"slot", "id"}, Values: sent(3, 5)}))
	h.things()
	// A gap: nothing can be relied on.
	h.pos.State = cdc.Unknown
	h.give()
	if got := h.text("SELECT count(*) FROM cell.standing_by WHERE state = 'in_sync'"); got != "0" {
		t.Errorf("%s copies are in sync after a gap", got)
	}
}

func TestChunksOfATransactionComeTogether(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	h.ready()
	whole := h.tx()
	chunk := func(n, of int, rows ...cdc.Row) cdc.Change {
		c := whole
		c.Chunk, c.Chunks, c.Rows = n, of, rows
		c.After.LSN = whole.LSN
		if of == 0 {
			c.LSN = c.Message.Commit
			c.After.LSN, c.After.Commit, c.After.Chunk = whole.Prev, c.Message.Commit, n
		}
		return c
	}
	one, two := chunk(1, 0, thing(1, 1, 1, 1, "a", nil)), chunk(2, 0, thing(2, 1, 1, 2, "b", nil), thing(1, 1, 2, 1, "a2", nil))
	three := chunk(3, 3, thing(1, 1, 1, 3, "c", nil))
	for _, batches := range [][][]cdc.Change{{{one}, {two}, {three}}, {{one, two}, {one, two, three}}, {{one}, {one, two}, {two, three}}} {
		h.super("BEGIN; SET LOCAL session_replication_role = replica; DELETE FROM shop.things; UPDATE cell.watermarks SET position = position || $${\"lsn\": \"0/3E8\"}$$; COMMIT")
		h.a.Restart("c1")
		for i, b := range batches {
			h.pos = b[len(b)-1].After
			h.give(b...)
			if i < len(batches)-1 {
				h.things()
			}
		}
		h.things("(1,1,1,3,c,)", "(1,1,2,1,a2,)", "(2,1,1,2,b,)")
		if n := h.text("SELECT count(*) FROM cell.standby_chunks"); n != "0" {
			t.Errorf("%s chunks are left", n)
		}
	}
}

func TestUnknownColumnStopsUntilTheMigration(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	h.ready()
	row := thing(1, 1, 1, 7, "a", nil, "new")
	row.Columns = append(slices.Clone(thingColumns), "colour")
	c := h.tx(thing(2, 1, 1, 8, "b", nil), row)
	const want = "columns colour of shop.things aren't known here: this cell must be migrated"
	if err := h.try(c); err == nil || err.Error() != want {
		t.Fatalf("applied with %v, want %q", err, want)
	}
	if st := h.status(); st.State != "stopped" || st.Reason != want {
		t.Errorf("status %s %q, want it stopped", st.State, st.Reason)
	}
	h.things()
	h.super("ALTER TABLE shop.things ADD COLUMN colour text, ADD COLUMN size int NOT NULL DEFAULT 3") // the sink is first, and may know more
	h.give(c)
	h.things("(1,1,1,7,a,,new,3)", "(2,1,1,8,b,,,3)")
	h.state("0-9 in_sync")
}

// A connection that was closed has the origin until the server has noticed: the
// next one waits for that.
func TestTheNextSessionWaitsForTheOrigin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c2")
	c2 := w.cells["c2"]
	before, err := standby.Connect(t.Context(), c2.db.ApplierDSN, "c2", "c1")
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close(context.Background()) //nolint:errcheck // closed below
	done := make(chan error, 1)
	go func() {
		next, err := standby.Connect(t.Context(), c2.db.ApplierDSN, "c2", "c1")
		if err == nil {
			err = next.Close(context.Background())
		}
		done <- err
	}()
	const asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%origin_session_setup%' AND application_name = 'cellmart-applier'"
	wait(t, func() string { return "the next session never asks for the origin" }, func() bool {
		return c2.text(asked) == "2" || len(done) > 0
	})
	if err := before.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the next session: %v", err)
	}
}

// This cell's database is restored while the agent lives: what lies between the
// backup and the follower's position doesn't come again.
func TestOwnDatabaseWentBack(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	h.ready()
	h.give(h.tx(thing(1, 1, 1, 1, "a", nil)))
	h.a.Close("c1") // a connection that broke alone costs nothing
	h.give(h.tx(thing(1, 1, 1, 2, "b", nil)))
	h.state("0-9 in_sync")
	h.super(`BEGIN; SET LOCAL session_replication_role = replica; DELETE FROM shop.things;
		UPDATE cell.watermarks SET position = position || '{"lsn": "0/1"}'; COMMIT`)
	h.a.Close("c1")
	h.give(h.tx(thing(1, 1, 1, 3, "c", nil)))
	h.state("0-9 stopped this database went back")
	h.things()
}
