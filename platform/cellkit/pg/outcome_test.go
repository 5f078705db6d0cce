package pg_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
)

// The server says why it gave up, but it had committed already: that must not be
// told as "nothing was written".
func TestErrorsAroundCommitAreUnknown(t *testing.T) {
	t.Parallel()
	raise := func(code string) string { return "RAISE EXCEPTION USING ERRCODE = '" + code + "'" }
	for name, sql := range map[string]string{
		"statement timeout":     raise("57014"),
		"out of memory":         raise("53200"),
		"disk error":            raise("58030"),
		"end of the connection": "PERFORM pg_terminate_backend(pg_backend_pid())",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, notes())
			super(t, db, "CREATE OR REPLACE FUNCTION cell.committed() RETURNS void LANGUAGE plpgsql AS $$ BEGIN "+sql+"; END $$")
			told := false
			err := pg.InSlot(t.Context(), db.App, pg.Entry{Slot: 9, Epoch: 1}, func(tx *pg.Tx) error {
				tx.AfterCommit(func() { told = true })
				_, err := tx.Exec(t.Context(), "INSERT INTO notes.notes (slot, id, text) VALUES (9, 1, 'x')")
				return err
			})
			if n := count(t, db); n != 1 {
				t.Fatalf("%d rows: the test must fail after the commit", n)
			}
			if !errors.Is(err, errs.ErrUnknown) || told {
				t.Errorf("InSlot = %v (told %v), want OUTCOME_UNKNOWN: the row is there", err, told)
			}
		})
	}
}

// TestSettingsMadeByHand: only cell.enter enters. What the application's role
// writes into the settings itself opens nothing.
func TestSettingsMadeByHand(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, notes())
	db.Disown(t, 200, 200, "c2")
	const (
		slot   = "SELECT set_config('cell.slot', '200', true), set_config('cell.epoch', '1', true)"
		insert = "INSERT INTO notes.notes (slot, id, text) VALUES (200, 1, 'x')"
	)
	for name, sql := range map[string][]string{
		"without enter":        {"BEGIN", slot, insert},
		"for the session":      {"SET cell.slot = '200'", "SET cell.epoch = '1'", "BEGIN", insert},
		"over the slot":        {"BEGIN", "SELECT cell.enter(100, 1)", slot, insert},
		"over the epoch":       {"BEGIN", "SELECT cell.enter(100, 1)", "SELECT set_config('cell.epoch', '9', true)", "INSERT INTO notes.notes (slot, id, text) VALUES (100, 1, 'x')"},
		"update":               {"BEGIN", slot, "UPDATE notes.notes SET text = 'y' WHERE slot = 200 AND id = 1"},
		"with another's seal":  {"BEGIN", "SELECT cell.enter(100, 1)", "SELECT set_config('x.seal', current_setting('cell.seal'), false)", "COMMIT", "BEGIN", "SELECT set_config('cell.slot', '100', true), set_config('cell.epoch', '1', true), set_config('cell.seal', current_setting('x.seal'), true)", "INSERT INTO notes.notes (slot, id, text) VALUES (100, 1, 'x')"},
		"asking for the seal":  {"SELECT cell.seal('200', '1')"},
		"reading the seal key": {"SELECT * FROM cell.seal_key"},
	} {
		t.Run(name, func(t *testing.T) {
			want := "SL005"
			if name == "asking for the seal" || name == "reading the seal key" {
				want = "42501"
			}
			conn := connect(t, db.DSN)
			var err error
			for _, q := range sql {
				if err == nil {
					_, err = conn.Exec(t.Context(), q)
				}
			}
			if code(err) != want {
				t.Errorf("%v = %v, want %s", sql, err, want)
			}
		})
	}
	if n := count(t, db); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// TestDefinerFunctions lists what runs with the owner's rights at the
// application's word. A trigger function counts: on a table of one's own it
// would write whatever its rows say.
func TestDefinerFunctions(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	rows, err := db.Super.Query(t.Context(), `SELECT proname FROM pg_proc WHERE prosecdef AND pronamespace = 'cell'::regnamespace
		AND has_function_privilege('cellmart_app', oid, 'EXECUTE') ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if want := []string{"ask_again", "committed", "enter", "enter_many", "lease_left_ms", "leave", "require", "see"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("the application may call %v (%v), want %v", got, err, want)
	}
	conn := connect(t, db.DSN)
	_, err = conn.Exec(context.Background(), `CREATE TEMP TABLE mine (slot int, id text, closed_at timestamptz, reply_to text);
		CREATE TRIGGER note AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION cell.note_relay();
		INSERT INTO mine VALUES (5, 'forged', NULL, '')`)
	if code(err) != "42501" {
		t.Errorf("a relay note by a trigger of one's own = %v, want 42501", err)
	}
}
