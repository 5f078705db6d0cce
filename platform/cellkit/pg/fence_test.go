package pg_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
)

func notes() pg.Migrations {
	return pg.Migrations{Schema: "notes", FS: fstest.MapFS{"0001_notes.sql": {Data: []byte(`-- +goose Up
CREATE TABLE notes.notes (slot int NOT NULL, epoch bigint NOT NULL, rev bigint NOT NULL, id bigint NOT NULL, text text NOT NULL,
  PRIMARY KEY (slot, id));
SELECT cell.unit_table('notes.notes');
`)}}}
}

func code(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code
	}
	return fmt.Sprint(err)
}

// TestFence tries, with plain SQL as the application's role, everything that
// must not be written, each refused with its own SQLSTATE.
func TestFence(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, notes())
	db.Disown(t, 200, 200, "c2")
	db.Own(t, 201, 201) // epoch 2 now
	super(t, db, "UPDATE cell.slots SET state = 'draining' WHERE slot = 202")
	super(t, db, "UPDATE cell.slots SET state = 'given', given_to = 'c2' WHERE slot = 203")
	super(t, db, "INSERT INTO cell.forwards VALUES (100, 42, 16400, 'c3')")
	const insert = "INSERT INTO notes.notes (slot, id, text) VALUES (100, 1, 'x')"
	cases := []struct {
		name, begin string
		sql         []string
		want        string
	}{
		{"writes the slot entered", "BEGIN", []string{"SELECT cell.enter(100, 1)", insert, "SELECT cell.leave()"}, ""},
		{"slot of another owner", "BEGIN", []string{"SELECT cell.enter(200, 1)"}, "SL001"},
		{"slot nobody knows", "BEGIN", []string{"SELECT cell.enter(20000, 1)"}, "SL001"},
		{"old epoch", "BEGIN", []string{"SELECT cell.enter(201, 1)"}, "SL002"},
		{"newer epoch", "BEGIN", []string{"SELECT cell.enter(201, 3)"}, "SL002"},
		{"draining", "BEGIN", []string{"SELECT cell.enter(202, 1)"}, "SL003"},
		{"given away", "BEGIN", []string{"SELECT cell.enter(203, 1)"}, "SL003"},
		{"insert without enter", "BEGIN", []string{insert}, "SL005"},
		{"update without enter that matches nothing", "BEGIN", []string{"UPDATE notes.notes SET text = 'y' WHERE slot = 100 AND id = 999"}, "SL005"},
		{"upsert without enter", "BEGIN", []string{insert + " ON CONFLICT (slot, id) DO UPDATE SET text = 'z'"}, "SL005"},
		{"delete", "BEGIN", []string{"SELECT cell.enter(100, 1)", "DELETE FROM notes.notes"}, "42501"},
		{"truncate", "BEGIN", []string{"TRUNCATE notes.notes"}, "42501"},
		{"second slot entered", "BEGIN", []string{"SELECT cell.enter(100, 1)", "SELECT cell.enter(101, 1)"}, "SL006"},
		{"insert into a second slot", "BEGIN", []string{"SELECT cell.enter(101, 1)", insert}, "SL006"},
		{"update in a second slot", "BEGIN", []string{"SELECT cell.enter(101, 1)", "UPDATE notes.notes SET text = 'y' WHERE slot = 50 AND id = 5"}, "SL006"},
		{"row lock in a second slot", "BEGIN", []string{"SELECT cell.enter(101, 1)", "SELECT * FROM notes.notes WHERE slot = 50 AND id = 5 FOR UPDATE"}, "SL006"},
		{"row moved to another slot", "BEGIN", []string{"SELECT cell.enter(50, 1)", "UPDATE notes.notes SET slot = 101 WHERE slot = 50 AND id = 5"}, "SL006"},
		{"repeatable read", "BEGIN ISOLATION LEVEL REPEATABLE READ", []string{"SELECT cell.enter(100, 1)"}, "SL007"},
		{"serializable", "BEGIN ISOLATION LEVEL SERIALIZABLE", []string{"SELECT cell.enter(100, 1)"}, "SL007"},
		{"user moved alone", "BEGIN", []string{"SELECT cell.enter(100, 1, 42)"}, "SL008"},
		{"leave without enter", "BEGIN", []string{"SELECT cell.leave()"}, "SL005"},
		{"writes the ownership itself", "BEGIN", []string{"UPDATE cell.slots SET owner = 'c1'"}, "42501"},
		{"writes the lease", "BEGIN", []string{"SELECT cell.set_lease('infinity')"}, "42501"},
		{"reads the host's files", "BEGIN", []string{"SELECT pg_read_file('/etc/passwd')"}, "42501"},
	}
	ctx := t.Context()
	seed(t, db, 50, 5)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			conn, err := pgx.Connect(ctx, db.DSN)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(ctx)
			_, err = conn.Exec(ctx, c.begin)
			for _, q := range c.sql {
				if err == nil {
					_, err = conn.Exec(ctx, q)
				}
			}
			if got := code(err); got != c.want && !(err == nil && c.want == "") {
				t.Errorf("%v = %s, want %q", c.sql, got, c.want)
			}
		})
	}
	t.Run("the setting ends with the transaction", func(t *testing.T) {
		conn, _ := pgx.Connect(ctx, db.DSN)
		defer conn.Close(ctx)
		_, _ = conn.Exec(ctx, "BEGIN; SELECT cell.enter(100, 1); COMMIT")
		if _, err := conn.Exec(ctx, insert); code(err) != "SL005" {
			t.Errorf("insert after the transaction = %v, want SL005", err)
		}
	})
	t.Run("epoch and rev are the trigger's", func(t *testing.T) {
		var epoch, rev int
		err := pg.InSlot(ctx, db.App, pg.Entry{Slot: 50, Epoch: 1}, func(tx *pg.Tx) error {
			return tx.QueryRow(ctx, "UPDATE notes.notes SET epoch = 77, rev = 77 WHERE slot = 50 AND id = 5 RETURNING epoch, rev").Scan(&epoch, &rev)
		})
		if err != nil || epoch != 1 || rev != 2 {
			t.Errorf("epoch %d rev %d (%v), want 1, 2", epoch, rev, err)
		}
	})
}

func TestLease(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := pgtest.New(t, notes())
	entry := pg.Entry{Slot: 7, Epoch: 1}
	write := func(during string) error {
		return pg.InSlot(ctx, db.App, entry, func(tx *pg.Tx) error {
			if during != "" {
				super(t, db, during)
			}
			_, err := tx.Exec(ctx, "INSERT INTO notes.notes (slot, id, text) VALUES (7, (SELECT count(*) FROM notes.notes), 'x')")
			return err
		})
	}
	if err := write(""); err != nil {
		t.Fatalf("lease without end: %v", err)
	}
	for _, c := range []struct{ name, sql string }{
		{"over", "SELECT cell.set_lease(0)"},
		{"inside the margin", "SELECT cell.set_lease(cell.boot_ms() + 2900)"},
		{"of another postmaster", "SELECT cell.set_lease('infinity'); UPDATE cell.lease SET postmaster = postmaster - interval '1 s'"},
		{"of another boot", "SELECT cell.set_lease(cell.boot_ms() + 60000); UPDATE cell.lease SET boot_id = 'other'"},
		{"missing", "DELETE FROM cell.lease"},
	} {
		super(t, db, c.sql)
		if err := write(""); !errors.Is(err, errs.ErrLeaseOver) {
			t.Errorf("%s: write = %v, want LEASE_OVER", c.name, err)
		}
		err := pg.See(ctx, db.App, 7, func(_ pgx.Tx, stale bool) error {
			if over := c.name != "inside the margin"; stale != over {
				t.Errorf("%s: stale = %v, want %v", c.name, stale, over)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: see = %v", c.name, err)
		}
	}
	super(t, db, "SELECT cell.set_lease(cell.boot_ms() + 60000)")
	if err := write(""); err != nil {
		t.Errorf("a minute left: %v", err)
	}
	// The lease ends while the transaction is open: refused with the COMMIT, nothing written.
	before := count(t, db)
	if err := write("SELECT cell.set_lease(0)"); !errors.Is(err, errs.ErrLeaseOver) {
		t.Errorf("ended inside: %v, want LEASE_OVER", err)
	}
	if after := count(t, db); after != before {
		t.Errorf("rows %d -> %d: a write passed the end of the lease", before, after)
	}
	// It ends between leave and the check after COMMIT: the row is there, but nobody is told so.
	super(t, db, "SELECT cell.set_lease('infinity')")
	super(t, db, "CREATE FUNCTION cell.end_it() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN DELETE FROM cell.lease; RETURN NULL; END $$")
	super(t, db, "CREATE CONSTRAINT TRIGGER end_it AFTER INSERT ON notes.notes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION cell.end_it()")
	if err := write(""); !errors.Is(err, errs.ErrUnknown) {
		t.Errorf("ended around the commit: %v, want OUTCOME_UNKNOWN", err)
	}
	if after := count(t, db); after != before+1 {
		t.Errorf("rows %d -> %d, want the one whose outcome is unknown", before, after)
	}
}

// S-F01, S-F05: the owner changes only when nobody is inside the slot, and who
// waited for that sees the new owner, not the one of an older snapshot.
func TestOwnerChangeWaitsForWriters(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := pgtest.New(t, notes())
	inside, release := make(chan bool), make(chan bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		err := pg.InSlot(ctx, db.App, pg.Entry{Slot: 9, Epoch: 1}, func(tx *pg.Tx) error {
			inside <- true
			<-release
			_, err := tx.Exec(ctx, "INSERT INTO notes.notes (slot, id, text) VALUES (9, 1, 'before')")
			return err
		})
		if err != nil {
			t.Errorf("the writer that was inside: %v", err)
		}
	})
	<-inside
	wg.Go(func() {
		agent, err := pgx.Connect(ctx, db.AgentDSN)
		if err != nil {
			t.Error(err)
			return
		}
		defer agent.Close(ctx)
		var n int
		err = agent.QueryRow(ctx, "SELECT cell.apply_table(2, 'x', '{9}', '{c2}', '{\"\"}', '{2}')").Scan(&n)
		if err != nil || n != 1 {
			t.Errorf("apply_table = %d, %v", n, err)
		}
		var rows int
		_ = agent.QueryRow(ctx, "SELECT count(*) FROM notes.notes WHERE slot = 9").Scan(&rows)
		if rows != 1 {
			t.Errorf("at the change of owner %d rows, want the writer's 1", rows)
		}
	})
	waiting(t, db, "apply_table")
	late := make(chan error, 1)
	go func() {
		late <- pg.InSlot(ctx, db.App, pg.Entry{Slot: 9, Epoch: 1}, func(tx *pg.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO notes.notes (slot, id, text) VALUES (9, 2, 'late')")
			return err
		})
	}()
	waiting(t, db, "cell.enter(9")
	close(release)
	err := <-late
	wg.Wait()
	if e := errs.From(err); e.Kind != errs.Misrouted || e.Owner != "c2" || e.Epoch != 2 {
		t.Errorf("the late writer = %v (owner %q epoch %d), want 421 with c2, 2", err, e.Owner, e.Epoch)
	}
}

func TestApplyTable(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx := t.Context()
	agent := connect(t, db.AgentDSN)
	apply := func(version, slot int, owner string, epoch int) (n int) {
		t.Helper()
		err := agent.QueryRow(ctx, "SELECT cell.apply_table($1, 'x', ARRAY[$2::int], ARRAY[$3], '{\"\"}', ARRAY[$4::bigint])", version, slot, owner, epoch).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	steps := []struct {
		version, slot int
		owner         string
		epoch, want   int
		why           string
	}{
		{5, 1, "c2", 1, 0, "an equal epoch never changes an owner"},
		{4, 1, "c2", 2, 0, "an older table is not applied"},
		{5, 1, "c2", 2, 0, "nor one of the same version"},
		{6, 1, "c2", 2, 1, "a newer epoch is"},
		{7, 1, "c1", 1, 0, "an older epoch isn't"},
		{8, 17000, "c1", 1, 1, "a new private slot is added"},
	}
	for _, s := range steps {
		if n := apply(s.version, s.slot, s.owner, s.epoch); n != s.want {
			t.Errorf("version %d slot %d to %s at %d changed %d, want %d: %s", s.version, s.slot, s.owner, s.epoch, n, s.want, s.why)
		}
	}
	super(t, db, "UPDATE cell.slots SET state = 'given', given_to = 'c3' WHERE slot = 3")
	if n := apply(9, 3, "c1", 2); n != 0 {
		t.Error("given counts as epoch + 1: a table with that epoch changed it")
	}
	if n := apply(10, 3, "c3", 3); n != 1 {
		t.Error("a table above given was not applied")
	}
}

func TestForeignDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.NewCell(t, "c3", 3)
	pool, err := pg.Open(t.Context(), db.DSN, "c2", discard())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	err = pg.InSlot(t.Context(), pool, pg.Entry{Slot: 1, Epoch: 1}, func(*pg.Tx) error { return nil })
	if !errors.Is(err, errs.ErrUnavailable) || !strings.Contains(err.Error(), "belongs to c3, not to c2") {
		t.Errorf("c2's service on c3's database = %v", err)
	}
	if err := pg.SetIdentity(t.Context(), db.SuperDSN, "c2", 2); err == nil {
		t.Error("the identity of a database was changed")
	}
}

func TestUnitTableRules(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, ddl := range map[string]string{
		"no rev":         "CREATE TABLE t1 (slot int NOT NULL, epoch bigint NOT NULL, id bigint, PRIMARY KEY (slot, id))",
		"no primary key": "CREATE TABLE t1 (slot int NOT NULL, epoch bigint NOT NULL, rev bigint NOT NULL)",
		"key by id":      "CREATE TABLE t1 (slot int NOT NULL, epoch bigint NOT NULL, rev bigint NOT NULL, id bigint PRIMARY KEY)",
		"other unique":   "CREATE TABLE t1 (slot int NOT NULL, epoch bigint NOT NULL, rev bigint NOT NULL, id bigint UNIQUE, PRIMARY KEY (slot, id))",
		"serial":         "CREATE TABLE t1 (slot int NOT NULL, epoch bigint NOT NULL, rev bigint NOT NULL, id bigserial, PRIMARY KEY (slot, id))",
		"identity":       "CREATE TABLE t1 (slot int NOT NULL, epoch bigint NOT NULL, rev bigint NOT NULL, id bigint GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (slot, id))",
	} {
		_, err := db.Super.Exec(t.Context(), "BEGIN; "+ddl+"; SELECT cell.unit_table('t1'); COMMIT")
		if code(err) != "P0001" {
			t.Errorf("%s: unit_table = %v, want a refusal", name, err)
		}
	}
}

func TestInSlotRetriesDeadlocks(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := pgtest.New(t, notes())
	seed(t, db, 4, 1)
	seed(t, db, 4, 2)
	if err := pg.Setup(ctx, db.SuperDSN, "", nil); err != nil { // pgtest's databases may be older than it
		t.Fatal(err)
	}
	var limit string
	if err := connect(t, db.DSN).QueryRow(ctx, "SHOW deadlock_timeout").Scan(&limit); err != nil || limit != "200ms" {
		t.Errorf("a deadlock is looked for after %s (%v), want 200ms: a tenth of a transaction's time", limit, err)
	}
	db.App.Reset() // so that the writers' connections have it too
	var wg sync.WaitGroup
	both := make(chan bool)
	for i := range 2 {
		wg.Go(func() {
			first := true
			err := pg.InSlot(ctx, db.App, pg.Entry{Slot: 4, Epoch: 1}, func(tx *pg.Tx) error {
				for n := range 2 {
					if _, err := tx.Exec(ctx, "UPDATE notes.notes SET text = 'w' WHERE slot = 4 AND id = $1", 1+(i+n)%2); err != nil {
						return err
					}
					if n == 0 && first { // each holds one row before either wants the second
						first = false
						select {
						case both <- true:
						case <-both:
						}
					}
				}
				return nil
			})
			if err != nil {
				t.Errorf("writer %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

func TestIdempotency(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := pgtest.New(t)
	entry := pg.Entry{Slot: 11, Epoch: 1, User: 11}
	key := pg.Key{Actor: 11, Route: "POST /x", Key: "k1", Hash: []byte{1}}
	claim := func(k pg.Key, keep *pg.Record) (rec *pg.Record, err error) {
		err = pg.InSlot(ctx, db.App, entry, func(tx *pg.Tx) error {
			if rec, err = pg.Claim(ctx, tx, k); err != nil || rec != nil || keep == nil {
				return err
			}
			return pg.Keep(ctx, tx, k, *keep)
		})
		return rec, err
	}
	if rec, err := claim(key, &pg.Record{Ref: "order:1"}); rec != nil || err != nil {
		t.Fatalf("first = %v, %v", rec, err)
	}
	if rec, err := claim(key, nil); err != nil || rec == nil || rec.Ref != "order:1" || rec.Status != 0 {
		t.Errorf("undecided = %+v, %v", rec, err)
	}
	other := key
	other.Hash = []byte{2}
	if _, err := claim(other, nil); !errors.Is(err, pg.ErrKeyReused) {
		t.Errorf("other body = %v, want IDEMPOTENCY_KEY_REUSED", err)
	}
	for status, want := range map[int]int{201: 201} {
		err := pg.InSlot(ctx, db.App, entry, func(tx *pg.Tx) error {
			for _, s := range []int{status, 422} { // the first answer counts
				got, err := pg.Decide(ctx, tx, 11, "POST /x", "k1", pg.Record{Status: s, Body: []byte("{}")})
				if err != nil || got.Status != want {
					return fmt.Errorf("decide %d = %+v, %w", s, got, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	err := pg.InSlot(ctx, db.App, entry, func(tx *pg.Tx) error {
		if _, err := pg.Claim(ctx, tx, pg.Key{Actor: 11, Route: "r", Key: "busy", Hash: []byte{1}}); err != nil {
			return err
		}
		if _, err := claim(pg.Key{Actor: 11, Route: "r", Key: "busy", Hash: []byte{1}}, nil); !errors.Is(err, pg.ErrKeyInFlight) {
			return fmt.Errorf("in flight = %w", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func super(t *testing.T, db *pgtest.DB, sql string) {
	t.Helper()
	if _, err := db.Super.Exec(context.Background(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func seed(t *testing.T, db *pgtest.DB, slot, id int) {
	t.Helper()
	err := pg.InSlot(t.Context(), db.App, pg.Entry{Slot: 0, Epoch: 1}, func(*pg.Tx) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	super(t, db, fmt.Sprintf("SET session_replication_role = replica; INSERT INTO notes.notes VALUES (%d, 1, 1, %d, 'seed'); RESET session_replication_role", slot, id))
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func count(t *testing.T, db *pgtest.DB) (n int) {
	t.Helper()
	if err := db.Super.QueryRow(t.Context(), "SELECT count(*) FROM notes.notes").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// waiting returns once a statement that contains text waits for a lock.
func waiting(t *testing.T, db *pgtest.DB, text string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		var n int
		err := db.Super.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() AND position($1 IN query) > 0 AND pid <> pg_backend_pid()", text).Scan(&n)
		if err == nil && n > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing waits in %q (%v)", text, err)
		}
	}
}
