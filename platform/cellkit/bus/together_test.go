package bus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/routing"
)

// ask gives n requests from slot 1 to slots 2, 3, 4 ...
func ask(prefix string, n int) (list []bus.Message) {
	for i := range n {
		list = append(list, request(1, routing.Slot(2+i), fmt.Sprint(prefix, i)))
	}
	return list
}

// outcomes gives what became of each, by its place.
func outcomes(list []bus.Result) (out []bus.Outcome) {
	for _, r := range list {
		out = append(out, r.Outcome)
	}
	return out
}

func all(n int, o bus.Outcome) []bus.Outcome { return slices.Repeat([]bus.Outcome{o}, n) }

// Handled together leaves what handled alone does: inbox, effect, reply, and its
// epoch in each row.
func TestTogetherIsAsAlone(t *testing.T) {
	t.Parallel()
	rows := func(c *cell) (out []string) {
		for _, table := range []string{"cell.inbox", "cell.outbox", "toy.effects"} {
			list, err := c.db.Super.Query(t.Context(), `SELECT (to_jsonb(x) - '{handled_at,created_at,closed_at,rev}'::text[])::text FROM `+table+` x ORDER BY 1`)
			if err != nil {
				t.Fatal(err)
			}
			got, err := pgx.CollectRows(list, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, got...)
		}
		return out
	}
	var worlds [2][]string
	for i := range worlds {
		c := alone(t)
		c.db.Own(t, 3, 3) // at epoch 2
		c.table.Store(moved(t, 3, "c1"))
		con := c.consumer()
		deliver := func(list []bus.Message) {
			t.Helper()
			if i == 0 {
				for _, m := range list {
					want(t, con.Deliver(t.Context(), m), bus.Handled)
				}
			} else if got := outcomes(con.DeliverMany(t.Context(), list)); !slices.Equal(got, all(len(list), bus.Handled)) {
				t.Fatalf("outcomes = %v, want all handled", got)
			}
		}
		deliver(ask("k", 5))
		var replies []bus.Message
		for n := range 5 {
			key := fmt.Sprint("r", n)
			c.send(t, routing.Slot(10+n), 1, key)
			replies = append(replies, bus.Message{ID: bus.ReplyID(routing.Slot(10+n), "do.it:"+key), Kind: "done.it", Key: key, Service: "toy",
				From: 1, To: routing.Slot(10 + n), ReplyTo: "do.it:" + key, Body: []byte(`{}`)})
		}
		deliver(replies)
		worlds[i] = rows(c)
	}
	if !slices.Equal(worlds[0], worlds[1]) {
		t.Errorf("alone:\n%s\ntogether:\n%s", strings.Join(worlds[0], "\n"), strings.Join(worlds[1], "\n"))
	}
	if n := len(worlds[1]); n != 25 { // 5 in the inbox, 10 in the outbox, 10 effects
		t.Errorf("%d rows: the messages did nothing", n)
	}
}

// moved is a table in which one slot is at epoch 2 of an owner.
func moved(t *testing.T, slot routing.Slot, owner string) *routing.Table {
	t.Helper()
	s := routing.Spec{Version: 2, Slots: make([]routing.Assignment, routing.Slots),
		Cells: []routing.Cell{{Name: "c1", Ordinal: 1, Weight: 1}, {Name: "c2", Ordinal: 2, Weight: 1}}}
	for i := range s.Slots {
		s.Slots[i] = routing.Assignment{Owner: "c1", Epoch: 1}
	}
	s.Slots[slot] = routing.Assignment{Owner: owner, Epoch: 2}
	table, err := routing.Build(s)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// What isn't the usual case is left out, and the others are handled.
func TestTogetherLeavesOut(t *testing.T) {
	t.Parallel()
	c := alone(t)
	con := c.consumer()
	list := ask("k", 8)
	list[0].Key, list[0].ID = "alone", "do.it:alone" // the handler doesn't take it
	list[1] = list[2]                                // the same twice
	want(t, con.Deliver(t.Context(), list[3]), bus.Handled)
	parked := list[4]
	if err := pg.InSlot(t.Context(), c.db.App, pg.Entry{Slot: parked.To, Epoch: 1}, func(tx *pg.Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO cell.parked (slot, from_slot, id, digest, reason, message) VALUES ($1, $2, $3, 'x', 'x', '{}')`, parked.To, parked.From, parked.ID)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	c.db.Disown(t, list[5].To, list[5].To, "c2") // the table doesn't know yet
	busy, err := c.db.Super.Begin(t.Context())   // list[6]'s slot changes hands at this moment
	if err == nil {
		_, err = busy.Exec(t.Context(), "SELECT pg_advisory_xact_lock(4401, $1)", list[6].To)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Rollback(context.Background())
	got := outcomes(con.DeliverMany(t.Context(), list))
	if want := []bus.Outcome{"", bus.Handled, "", "", "", "", "", bus.Handled}; !slices.Equal(got, want) {
		t.Errorf("outcomes = %q, want %q", got, want)
	}
	if err := once(t, c.db, "4 do k2", "5 do k3", "9 do k7"); err != nil {
		t.Error(err)
	}
}

// A message that fails in the middle leaves no trace of any of them.
func TestTogetherIsUndone(t *testing.T) {
	t.Parallel()
	c := alone(t)
	con := c.consumer()
	list := ask("k", 5)
	list[2].Key, list[2].ID = "late", "do.it:late"
	if got := outcomes(con.DeliverMany(t.Context(), list)); !slices.Equal(got, all(5, "")) {
		t.Errorf("outcomes = %q, want none", got)
	}
	for _, table := range []string{"toy.effects", "cell.inbox", "cell.outbox", "cell.relay"} {
		if n := count(t, c.db, table); n != 0 {
			t.Errorf("%d rows in %s", n, table)
		}
	}
}

// A handler that waits for what doesn't come ends with the transaction's limit, and
// the slots are free again.
func TestTogetherHasALimit(t *testing.T) {
	t.Parallel()
	c := alone(t)
	con := c.consumer()
	con.HandleMany("do.it", func(ctx context.Context, _ *pg.Many, list []bus.Message) ([]bus.Reply, bus.Effect, error) {
		<-ctx.Done()
		return nil, nil, ctx.Err()
	})
	if got := outcomes(con.DeliverMany(context.Background(), ask("k", 3))); !slices.Equal(got, all(3, "")) {
		t.Errorf("outcomes = %q, want none", got)
	}
	for _, m := range ask("k", 3) {
		want(t, con.Deliver(t.Context(), m), bus.Handled)
	}
}

// One row that somebody holds is waited for shortly: the others aren't its hostages.
func TestTogetherWaitsShortly(t *testing.T) {
	t.Parallel()
	c := alone(t)
	con := c.consumer()
	list := ask("k", 3)
	if err := pg.InSlot(t.Context(), c.db.App, pg.Entry{Slot: 3, Epoch: 1}, func(tx *pg.Tx) error { return effect(t.Context(), tx, "do k1") }); err != nil {
		t.Fatal(err)
	}
	holder := c.open(t, 3)
	if _, err := holder.Exec(t.Context(), "UPDATE toy.effects SET times = 1 WHERE slot = 3"); err != nil {
		t.Fatal(err)
	}
	if got := outcomes(con.DeliverMany(t.Context(), list)); !slices.Equal(got, all(3, "")) {
		t.Errorf("outcomes = %q, want none", got)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := outcomes(con.DeliverMany(t.Context(), list)); !slices.Equal(got, all(3, bus.Handled)) {
		t.Errorf("outcomes = %q, want all", got)
	}
}

// S-M01 for several: broken off at its commit, nothing is done, and the rerun does
// it once. A commit of unknown outcome is found by the inbox.
func TestScenario_M01_TogetherCrash(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"error", "connection killed"} {
		c := alone(t)
		con := c.consumer()
		list := ask("k", 4)
		crashed := false
		con.FailAt(func(step string) error {
			if step != "commit" || crashed {
				return nil
			}
			crashed = true
			if how == "error" {
				return errCrash
			}
			kill(t, c.db)
			return nil
		})
		if got := outcomes(con.DeliverMany(t.Context(), list)); !crashed || !slices.Equal(got, all(4, "")) {
			t.Errorf("%s: outcomes = %q, want none (crashed %v)", how, got, crashed)
		}
		if n := count(t, c.db, "toy.effects"); n != 0 {
			t.Errorf("%s: %d effects", how, n)
		}
		if got := outcomes(con.DeliverMany(t.Context(), list)); !slices.Equal(got, all(4, bus.Handled)) {
			t.Errorf("%s: outcomes of the rerun = %q", how, got)
		}
		if err := once(t, c.db, "2 do k0", "3 do k1", "4 do k2", "5 do k3"); err != nil {
			t.Error(err)
		}
	}
	c := alone(t)
	con := c.consumer()
	_, err := c.db.Super.Exec(t.Context(), `CREATE FUNCTION cell.end_it() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN DELETE FROM cell.lease; RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER end_it AFTER INSERT ON toy.effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION cell.end_it()`)
	if err != nil {
		t.Fatal(err)
	}
	list := ask("k", 3)
	if got := outcomes(con.DeliverMany(t.Context(), list)); !slices.Equal(got, all(3, "")) {
		t.Errorf("unknown outcome: %q, want none: the inbox decides", got)
	}
	if _, err := c.db.Super.Exec(t.Context(), "SELECT cell.set_lease('infinity')"); err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		want(t, con.Deliver(t.Context(), m), bus.Duplicate)
	}
}

// The same messages in two transactions at once, and each alone as well: every
// effect is done once.
func TestTogetherAtOnce(t *testing.T) {
	t.Parallel()
	c := alone(t)
	con := c.consumer()
	list := ask("k", 40)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			mine := slices.Clone(list)
			if i%2 == 1 {
				slices.Reverse(mine)
			}
			for part := range slices.Chunk(mine, 13) {
				for j, r := range con.DeliverMany(t.Context(), part) {
					for r.Outcome == "" || r.Outcome == bus.Again {
						r = con.Deliver(t.Context(), part[j])
					}
				}
			}
		})
	}
	wg.Wait()
	var all []string
	for i, m := range list {
		all = append(all, fmt.Sprintf("%d do k%d", m.To, i))
	}
	if err := once(t, c.db, all...); err != nil {
		t.Error(err)
	}
	if n := count(t, c.db, "cell.outbox"); n != len(list) {
		t.Errorf("%d replies, want %d", n, len(list))
	}
}

// Over NATS: what waits is handled together, in far fewer transactions than messages,
// and what fails there is handled alone.
func TestWaitingMessagesAreHandledTogether(t *testing.T) {
	t.Parallel()
	c1, c2 := newCells(t)
	var done1, done2 []string
	for i := range 300 {
		key := fmt.Sprint("k", i)
		if i%100 == 50 {
			key = fmt.Sprint("alone", i)
		}
		if i%100 == 70 {
			key = fmt.Sprint("late", i)
		}
		from, to := routing.Slot(i%7), routing.Slot(half+i%11)
		c1.send(t, from, to, key)
		done1, done2 = append(done1, fmt.Sprintf("%d done %s", from, key)), append(done2, fmt.Sprintf("%d do %s", to, key))
	}
	start(t, c1.dispatcher().Run)
	waitFor(t, "the stream to have them", func() error {
		if n := c1.metric(t, "cellmart_bus_sent_total", `destination="c2"`); n < 300 {
			return fmt.Errorf("%.0f are sent", n)
		}
		return nil
	})
	start(t, c2.dispatcher().Run)
	start(t, c2.consumer().Run)
	start(t, c1.consumer().Run)
	waitFor(t, "every effect at both ends", func() error { return errors.Join(once(t, c2.db, done2...), once(t, c1.db, done1...)) })
	waitFor(t, "nothing to wait for anything", func() error { return settled(t, c1, c2) })
	if n := c2.metric(t, "cellmart_bus_batches_total", `kind="do.it"`); n < 1 || n > 150 {
		t.Errorf("%.0f transactions of several messages for 300", n)
	}
}

// TestFenceOfMany tries, with plain SQL as the application's role, what a transaction
// of many slots must not write.
func TestFenceOfMany(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, toy())
	db.Disown(t, 200, 200, "c2")
	db.Own(t, 201, 201) // epoch 2 now
	ctx := t.Context()
	const insert = "INSERT INTO toy.effects (slot, what) SELECT * FROM unnest($1::int[], $2::text[])"
	try := func(begin string, slots []int, epochs []int, sql string, args ...any) (entered []int, err error) {
		conn, err := pgx.Connect(ctx, db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		if _, err = conn.Exec(ctx, begin); err != nil {
			t.Fatal(err)
		}
		if err = conn.QueryRow(ctx, "SELECT cell.enter_many($1, $2)", slots, epochs).Scan(&entered); err == nil && sql != "" {
			_, err = conn.Exec(ctx, sql, args...)
		}
		if err == nil {
			_, err = conn.Exec(ctx, "SELECT cell.leave(); COMMIT; SELECT cell.committed()")
		}
		return entered, err
	}
	entered, err := try("BEGIN", []int{201, 7, 200, 20000, 100, 101}, []int{2, 1, 1, 1, 2, 1}, insert, []int{7, 101, 201}, []string{"a", "b", "c"})
	slices.Sort(entered)
	if err != nil || !slices.Equal(entered, []int{7, 101, 201}) {
		t.Errorf("entered %v (%v), want 7, 101, 201: not another's, no unknown one, no other epoch", entered, err)
	}
	var epochs []int
	if err := db.Super.QueryRow(ctx, "SELECT array_agg(epoch ORDER BY slot) FROM toy.effects").Scan(&epochs); err != nil || !slices.Equal(epochs, []int{1, 1, 2}) {
		t.Errorf("epochs %v (%v), want each slot's own", epochs, err)
	}
	for name, c := range map[string]struct {
		begin, sql string
		args       []any
		want       string
	}{
		"insert into a slot not entered": {"BEGIN", insert, []any{[]int{7, 8}, []string{"x", "y"}}, "SL006"},
		"update in a slot not entered":   {"BEGIN", "UPDATE toy.effects SET times = 2 WHERE slot = ANY ($1)", []any{[]int{7, 101}}, "SL006"},
		"row lock in a slot not entered": {"BEGIN", "SELECT FROM toy.effects WHERE slot = ANY ($1) FOR UPDATE", []any{[]int{101}}, "SL006"},
		"a slot entered beside them":     {"BEGIN", "SELECT cell.enter(9, 1)", nil, "SL006"},
		"them entered twice":             {"BEGIN", "SELECT cell.enter_many('{9}', '{1}')", nil, "SL006"},
		"one more written to the list":   {"BEGIN", "DO $$ BEGIN PERFORM set_config('cell.epoch', ',7:1,8:1,', true); INSERT INTO toy.effects (slot, what) VALUES (8, 'z'); END $$", nil, "SL005"},
		"another epoch written to it":    {"BEGIN", "DO $$ BEGIN PERFORM set_config('cell.epoch', ',7:9,', true); INSERT INTO toy.effects (slot, what) VALUES (7, 'z'); END $$", nil, "SL005"},
		"repeatable read":                {"BEGIN ISOLATION LEVEL REPEATABLE READ", "", nil, "SL007"},
		"deletes":                        {"BEGIN", "DELETE FROM toy.effects", nil, "42501"},
		"nothing but the slots entered":  {"BEGIN", insert, []any{[]int{7}, []string{"fine"}}, ""},
	} {
		_, err := try(c.begin, []int{7}, []int{1}, c.sql, c.args...)
		if got := sqlState(err); got != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	for during, want := range map[string]string{ // leave looks once more, whatever came in between
		"SELECT cell.set_lease('infinity')":                                            "",
		"SELECT cell.set_lease(0)":                                                     "SL004",
		"UPDATE cell.slots SET state = 'given', given_to = 'c2' WHERE slot = 101":      "SL003",
		"UPDATE cell.slots SET epoch = 5 WHERE slot = 101":                             "SL002",
		"UPDATE cell.slots SET owner = 'c2', role = 'none' WHERE slot = 101":           "SL001",
		"UPDATE cell.slots SET state = 'draining', epoch = 1 WHERE slot IN (100, 101)": "SL003",
		"UPDATE cell.slots SET state = 'draining', epoch = 1 WHERE slot IN (102, 103)": "",
	} {
		if _, err := db.Super.Exec(ctx, "SELECT cell.set_lease('infinity'); UPDATE cell.slots SET owner = 'c1', role = 'owner', state = 'active', given_to = NULL, epoch = 1 WHERE slot < 110"); err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.Connect(ctx, db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(ctx, "BEGIN; SELECT cell.enter_many('{7, 101}', '{1, 1}')"); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Super.Exec(ctx, during); err != nil {
			t.Fatal(err)
		}
		if _, err = conn.Exec(ctx, "SELECT cell.leave()"); sqlState(err) != want {
			t.Errorf("leave after %s = %v, want %q", during, err, want)
		}
		conn.Close(ctx)
	}
	if _, err := db.Super.Exec(ctx, "SELECT cell.set_lease(cell.boot_ms() + 2900)"); err != nil {
		t.Fatal(err)
	}
	if _, err := try("BEGIN", []int{7}, []int{1}, ""); sqlState(err) != "SL004" {
		t.Errorf("inside the lease's margin: %v, want SL004", err)
	}
	if err := pg.InSlots(ctx, db.App, map[routing.Slot]routing.Epoch{7: 1}, func(context.Context, *pg.Many) error { return nil }); !errors.Is(err, errs.ErrLeaseOver) {
		t.Errorf("InSlots = %v, want LEASE_OVER", err)
	}
}

// What the fence itself reads, tables of one row, costs what it costs: with a plan
// that seems enormous Postgres would compile it (JIT) at each execution, and keep it.
func TestFencesPlansStaySmall(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tx, err := db.Super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT cell.enter_many('{7}', '{1}')"); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"cell.seal_key", "cell.lease", "cell.identity"} {
		var plan []struct {
			Plan struct {
				Cost float64 `json:"Total Cost"`
			}
		}
		if err := tx.QueryRow(t.Context(), "EXPLAIN (FORMAT json) SELECT * FROM "+table).Scan(&plan); err != nil {
			t.Fatal(err)
		}
		if c := plan[0].Plan.Cost; c <= 0 || c > 1000 {
			t.Errorf("%s: cost %g", table, c)
		}
	}
}

// sqlState is an error's SQLSTATE, "" without an error.
func sqlState(err error) string {
	var pe *pgconn.PgError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &pe):
		return pe.Code
	}
	return err.Error()
}
