package pg_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/pg/pgtest"
)

// role gives a slot to somebody, as tables do, and leaves this cell the role.
func role(t *testing.T, db *pgtest.DB, slot int, role string) {
	t.Helper()
	set := map[string]string{
		"owner":    "owner = 'c1', standby = 'c2', incoming = NULL",
		"standby":  "owner = 'c2', standby = 'c1', incoming = NULL",
		"incoming": "owner = 'c2', standby = 'c3', incoming = 'c1'",
		"none":     "owner = 'c2', standby = 'c3', incoming = NULL",
	}[role]
	super(t, db, fmt.Sprintf("UPDATE cell.slots SET role = '%s', %s WHERE slot = %d", role, set, slot))
}

func seeds(t *testing.T, db *pgtest.DB, slot, n int) {
	t.Helper()
	super(t, db, fmt.Sprintf("SET session_replication_role = replica; INSERT INTO notes.notes SELECT %d, 1, 1, n, 'x' FROM generate_series(1, %d) n; RESET session_replication_role", slot, n))
}

func left(t *testing.T, db *pgtest.DB) map[int]int {
	t.Helper()
	rows, err := db.Super.Query(t.Context(), "SELECT slot, count(*) FROM notes.notes GROUP BY slot")
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]int{}
	var slot, n int
	if _, err := pgx.ForEachRow(rows, []any{&slot, &n}, func() error { out[slot] = n; return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

func listed(t *testing.T, db *pgtest.DB) map[int]string {
	t.Helper()
	rows, err := db.Super.Query(t.Context(), "SELECT slot, state FROM cell.cleanup")
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]string{}
	var slot int
	var state string
	if _, err := pgx.ForEachRow(rows, []any{&slot, &state}, func() error { out[slot] = state; return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

// applier is a session as the clean-up has it.
func applier(t *testing.T, db *pgtest.DB) *pgx.Conn {
	t.Helper()
	c := connect(t, db.ApplierDSN)
	if _, err := c.Exec(t.Context(), "SET session_replication_role = replica"); err != nil {
		t.Fatal(err)
	}
	return c
}

type cleaner interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func batch(t *testing.T, c cleaner, limit int) (slots, rows int) {
	t.Helper()
	if err := c.QueryRow(t.Context(), "SELECT slots, rows FROM cell.clean_up($1)", limit).Scan(&slots, &rows); err != nil {
		t.Fatal(err)
	}
	return slots, rows
}

// Only what this cell stood by for goes, in batches; nothing of a slot that it is
// something to, that it owned, or whose rows nothing explains.
func TestCleanUpTakesOnlyWhatWasLetGo(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, notes())
	for slot := 1; slot <= 7; slot++ {
		seeds(t, db, slot, 300)
	}
	seeds(t, db, 30000, 300) // a slot without a row
	role(t, db, 2, "standby")
	role(t, db, 3, "incoming")
	role(t, db, 4, "standby")
	role(t, db, 4, "none")
	role(t, db, 5, "incoming")
	role(t, db, 5, "none")
	role(t, db, 6, "none") // out of the owner's hands
	role(t, db, 7, "standby")
	role(t, db, 7, "none")
	role(t, db, 7, "standby") // and back
	if d := cmp.Diff(map[int]string{4: "open", 5: "open", 6: "held"}, listed(t, db)); d != "" {
		t.Fatalf("on the list (-want +got)\n%s", d)
	}
	c := applier(t, db)
	for i, want := range [][2]int{{0, 250}, {0, 250}, {2, 100}, {0, 0}} {
		if slots, rows := batch(t, c, 250); [2]int{slots, rows} != want {
			t.Errorf("batch %d: %d slots done, %d rows, want %v", i, slots, rows, want)
		}
	}
	if d := cmp.Diff(map[int]int{1: 300, 2: 300, 3: 300, 6: 300, 7: 300, 30000: 300}, left(t, db)); d != "" {
		t.Errorf("rows (-want +got)\n%s", d)
	}
	if d := cmp.Diff(map[int]string{6: "held"}, listed(t, db)); d != "" {
		t.Errorf("on the list (-want +got)\n%s", d)
	}
	var slots, held, rows, deleted int
	if err := db.Super.QueryRow(t.Context(), "SELECT slots, held, rows, deleted FROM cell.leftovers()").Scan(&slots, &held, &rows, &deleted); err != nil {
		t.Fatal(err)
	}
	if [4]int{slots, held, rows, deleted} != [4]int{1, 1, 300, 600} {
		t.Errorf("leftovers: %d slots, %d held, %d rows, %d deleted", slots, held, rows, deleted)
	}
}

// Whoever isn't the applier, or asks for more than a batch, gets nothing. A list
// that somebody wrote wrongly opens nothing.
func TestCleanUpIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, notes())
	seeds(t, db, 1, 5)
	seeds(t, db, 2, 5)
	role(t, db, 2, "standby")
	super(t, db, "INSERT INTO cell.cleanup (slot, state) VALUES (1, 'open'), (2, 'open')")
	for _, tc := range []struct{ who, dsn, before, sql, want string }{
		{"the application", db.DSN, "", "SELECT cell.clean_up(10)", "42501"},
		{"the agent", db.AgentDSN, "", "SELECT cell.clean_up(10)", "42501"},
		{"a session that fires triggers", db.ApplierDSN, "", "SELECT cell.clean_up(10)", "SL005"},
		{"a batch too large", db.ApplierDSN, "SET session_replication_role = replica", "SELECT cell.clean_up(1001)", "22023"},
		{"the owner's rows", db.ApplierDSN, "SET session_replication_role = replica; BEGIN; SELECT cell.enter_applier('{1}')", "DELETE FROM notes.notes WHERE slot = 1", "<nil>"},
		{"no entry", db.ApplierDSN, "SET session_replication_role = replica", "DELETE FROM notes.notes WHERE slot = 2", "SL005"},
	} {
		c := connect(t, tc.dsn)
		if tc.before != "" {
			if _, err := c.Exec(t.Context(), tc.before); err != nil {
				t.Fatalf("%s: %v", tc.who, err)
			}
		}
		if tag, err := c.Exec(t.Context(), tc.sql); code(err) != tc.want || tag.RowsAffected() != 0 {
			t.Errorf("%s: %d rows, %v, want %s", tc.who, tag.RowsAffected(), err, tc.want)
		}
	}
	if slots, rows := batch(t, applier(t, db), 1000); slots+rows != 0 {
		t.Errorf("%d slots, %d rows of slots with a role were cleaned up", slots, rows)
	}
	if d := cmp.Diff(map[int]int{1: 5, 2: 5}, left(t, db)); d != "" {
		t.Errorf("rows (-want +got)\n%s", d)
	}
}

// A slot becomes a standby while its rows are being cleaned up: the change waits
// for the batch, and the batch that comes behind it finds a role.
func TestCleanUpAndAChangeOfTheRole(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, notes())
	seeds(t, db, 4, 100)
	role(t, db, 4, "standby")
	role(t, db, 4, "none")
	change := func() chan error {
		done := make(chan error, 1)
		go func() {
			_, err := db.Super.Exec(context.Background(), `SELECT cell.apply_table((SELECT coalesce(max(version), 0) + 1 FROM cell.route), 'x', '{4}', '{c2}', '{c1}', '{2}')`)
			done <- err
		}()
		return done
	}
	tx, err := applier(t, db).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, rows := batch(t, tx, 60); rows != 60 {
		t.Fatalf("%d rows in the first batch", rows)
	}
	done := change()
	waiting(t, db, "apply_table")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if slots, rows := batch(t, applier(t, db), 60); slots+rows != 0 {
		t.Errorf("behind the change: %d slots, %d rows", slots, rows)
	}
	if d := cmp.Diff(map[int]int{4: 40}, left(t, db)); d != "" {
		t.Errorf("rows (-want +got)\n%s", d)
	}

	// And the other way round: the batch waits for the change, having seen the old list.
	role(t, db, 4, "none")
	tx, err = db.Super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // committed below
	if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(4401, 4); UPDATE cell.slots SET role = 'standby', standby = 'c1' WHERE slot = 4"); err != nil {
		t.Fatal(err)
	}
	c, rows := applier(t, db), make(chan int, 1)
	go func() {
		var n int
		if err := c.QueryRow(context.Background(), "SELECT rows FROM cell.clean_up(60)").Scan(&n); err != nil {
			n = -1
		}
		rows <- n
	}()
	waiting(t, db, "clean_up")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := <-rows; n != 0 {
		t.Errorf("%d rows went after the slot had become a standby", n)
	}
	if d := cmp.Diff(map[int]int{4: 40}, left(t, db)); d != "" {
		t.Errorf("rows (-want +got)\n%s", d)
	}
}

// What is to be sent is the owner's note: it goes with the slot, and is made again
// when the slot comes back without having been a standby.
func TestNotesGoWithTheSlot(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	super(t, db, `SET session_replication_role = replica;
		INSERT INTO cell.outbox (slot, epoch, rev, id, to_slot, service, kind, key, body, reply_service, reply_to, closed_at) VALUES
		(5, 1, 1, 'open', 6, 's', 'k', '1', '{}', 's', '', NULL), (5, 1, 1, 'closed', 6, 's', 'k', '2', '{}', 's', '', now()), (5, 1, 1, 're', 6, 's', 'k', '3', '{}', '', 'x', NULL);
		RESET session_replication_role; INSERT INTO cell.relay (slot, id) VALUES (5, 'open'), (5, 're'), (6, 'other')`)
	notes := func() string {
		t.Helper()
		var s string
		if err := db.Super.QueryRow(t.Context(), "SELECT coalesce(string_agg(slot || ' ' || id, ', ' ORDER BY slot, id), '') FROM cell.relay").Scan(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, step := range []struct{ role, want string }{
		{"standby", "6 other"}, {"owner", "5 open, 6 other"}, {"none", "6 other"}, {"owner", "5 open, 6 other"},
	} {
		role(t, db, 5, step.role)
		if got := notes(); got != step.want {
			t.Errorf("slot 5 as %s: notes %q, want %q", step.role, got, step.want)
		}
	}
}
