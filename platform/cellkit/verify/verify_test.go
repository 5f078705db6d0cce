package verify_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/verify"
)

func TestEqual(t *testing.T) {
	w := newWorld(t)
	w.fill()
	r := w.verify(verify.Ask{})
	if !r.Equal() || r.RowsCompared != 200*9 || r.SlotsCompared != 200 || len(r.Pairs) != 2 || r.AtLSN["c1"] == 0 {
		t.Errorf("got %+v", r)
	}
}

// What a session or a server says about texts of values must not matter.
func TestSettings(t *testing.T) {
	w := newWorld(t)
	for _, db := range []*pgtest.DB{w.c1, w.c2} {
		plant(t, db, `INSERT INTO kinds.things VALUES (5, 3, 1, 1, 'ä', 'c', 'glad', true, 'x', '8d5f2c4e-0000-4000-8000-000000000001', '{"a":  1}', '{"a":  1}',
			7, 1.50, 0.1, 1.0/3, '12.30', '\x00ff', '2026-02-03', '10:11:12.5', '10:11:12+02', '2026-02-03 04:05:06', '2026-07-03 04:05:06+00', '1 mon 2 days 03:04:05.6',
			'[2026-01-01 00:00+00,2026-02-01 00:00+00)', '{a,NULL,"b c"}', '{2026-07-03 04:05:06+00}', '{0.1,1e300,NaN}', '10.0.0.1/8', 'odd')`)
	}
	for _, s := range []string{"timezone = 'Asia/Tokyo'", "datestyle = 'SQL, DMY'", "intervalstyle = 'iso_8601'", "extra_float_digits = 0", "bytea_output = 'escape'"} {
		exec(t, w.c2.Super, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET "+strings.ReplaceAll(s, "'", "''")+"', current_database()); END $$")
	}
	r := w.verify(verify.Ask{})
	if !r.Equal() || r.RowsCompared != 1 {
		t.Errorf("equal rows differ under other settings: %+v", r)
	}
	for _, c := range []string{"a_text = 'a'", "a_code = 'd'", "a_mood = 'sad'", "a_bool = NULL", "a_char = 'y'", "a_uuid = '8d5f2c4e-0000-4000-8000-000000000002'", `a_json = '{"a": 1}'`,
		`a_jsonb = '{"a": 2}'`, "a_int = 8", "a_num = 1.5", "a_real = '0.10000001'", "a_float = '0.33333333333333337'", "a_money = '12.31'", `a_bytes = '\x00fe'`, "a_date = '2026-03-02'",
		"a_time = '10:11:12.500001'", "a_timetz = '10:11:12+03'", "a_ts = '2026-02-03 04:05:06.000001'", "a_tstz = '2026-07-03 04:05:06+01'", "a_span = '31 days'", "a_range = 'empty'",
		`a_list = '{a,"NULL","b c"}'`, "a_times = '{}'", "a_floats = '{0.1,1e300,1}'", "a_net = '10.0.0.1'", `"Odd ""Name" = ''`} {
		name := strings.ReplaceAll(strings.Trim(strings.SplitN(c, " = ", 2)[0], `"`), `""`, `"`)
		tx, err := w.c2.Super.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var was string
		if err := tx.QueryRow(t.Context(), "SELECT "+strings.SplitN(c, " = ", 2)[0]+"::text FROM kinds.things").Scan(&was); err != nil {
			t.Fatal(err)
		}
		_ = tx.Rollback(t.Context())
		exec(t, w.c2.Super, "CREATE TABLE IF NOT EXISTS public.kept AS SELECT * FROM kinds.things")
		plant(t, w.c2, "UPDATE kinds.things SET "+c)
		r := w.verify(verify.Ask{Slots: &[2]int32{0, 10}})
		if len(r.Differences) != 1 || r.Differences[0].Kind != verify.Differs || !slices.Equal(r.Differences[0].Columns, []string{name}) {
			t.Errorf("%s: %+v", c, r.Differences)
		}
		plant(t, w.c2, "DELETE FROM kinds.things; INSERT INTO kinds.things SELECT * FROM public.kept")
	}
}

// Each class that a copy can be wrong in is named.
func TestPlanted(t *testing.T) {
	w := newWorld(t)
	w.fill()
	plant(t, w.c2, "DELETE FROM kinds.things WHERE slot = 3 AND id = 3002")
	plant(t, w.c2, "INSERT INTO kinds.words (slot, epoch, rev, who, word) VALUES (4, 3, 2, 7, 'more')")
	plant(t, w.c2, "INSERT INTO kinds.words (slot, epoch, rev, who, word) VALUES (4, 2, 2, 7, 'lost')")
	plant(t, w.c3, "UPDATE kinds.things SET a_float = a_float + 1e-9, a_text = NULL WHERE slot = 150 AND id = 150001")
	plant(t, w.c3, "UPDATE kinds.sums SET total = total + 1, epoch = 1, rev = 12 WHERE slot = 199")
	plant(t, w.c3, "INSERT INTO kinds.sums (slot, epoch, rev, total) VALUES (7, 3, 1, 7)")
	plant(t, w.c3, "INSERT INTO kinds.sums (slot, epoch, rev, total) VALUES (5000, 1, 1, 7)")
	r := w.verify(verify.Ask{})
	want := []verify.Difference{
		{Kind: verify.Missing, Slot: 3, Table: "kinds.things", Key: map[string]string{"id": "3002"}, Owner: "c1", Standby: "c2", At: &verify.Version{Epoch: 3, Rev: 1}, Rows: [2]int64{5, 4}},
		{Kind: verify.Tail, Slot: 4, Table: "kinds.words", Key: map[string]string{"who": "7", "word": "lost"}, Owner: "c1", Standby: "c2", There: &verify.Version{Epoch: 2, Rev: 2}, Rows: [2]int64{3, 5}},
		{Kind: verify.Extra, Slot: 4, Table: "kinds.words", Key: map[string]string{"who": "7", "word": "more"}, Owner: "c1", Standby: "c2", There: &verify.Version{Epoch: 3, Rev: 2}, Rows: [2]int64{3, 5}},
		{Kind: verify.Stray, Slot: 7, Table: "kinds.sums", Key: map[string]string{}, Standby: "c3", There: &verify.Version{Epoch: 3, Rev: 1}, Rows: [2]int64{0, 1}},
		{Kind: verify.Differs, Slot: 150, Table: "kinds.things", Key: map[string]string{"id": "150001"}, Owner: "c1", Standby: "c3", Columns: []string{"a_float", "a_text"},
			At: &verify.Version{Epoch: 3, Rev: 1}, There: &verify.Version{Epoch: 3, Rev: 1}, Rows: [2]int64{5, 5}},
		{Kind: verify.Differs, Slot: 199, Table: "kinds.sums", Key: map[string]string{}, Owner: "c1", Standby: "c3", Columns: []string{"epoch", "rev", "total"},
			At: &verify.Version{Epoch: 2, Rev: 9}, There: &verify.Version{Epoch: 1, Rev: 12}, Rows: [2]int64{1, 1}},
		{Kind: verify.Stray, Slot: 5000, Table: "kinds.sums", Key: map[string]string{}, Standby: "c3", There: &verify.Version{Epoch: 1, Rev: 1}, Rows: [2]int64{0, 1}},
	}
	if d := cmp.Diff(want, r.Differences); d != "" {
		t.Error(d)
	}
	if r.Equal() || r.NotListed != 0 || len(r.NotCompared) != 0 {
		t.Errorf("got %+v", r)
	}
	if r := w.verify(verify.Ask{Slots: &[2]int32{10, 60}}); !r.Equal() || r.SlotsCompared != 51 {
		t.Errorf("slots without a difference: %+v", r)
	}
}

// A slot of many rows is compared page by page, and keys are ordered alike whatever
// a database's order of texts is.
func TestPages(t *testing.T) {
	w := newWorld(t)
	for _, db := range []*pgtest.DB{w.c1, w.c2} {
		plant(t, db, `INSERT INTO kinds.words (slot, epoch, rev, who, word)
			SELECT 9, 3, 1, n % 3, CASE n % 4 WHEN 0 THEN 'a-' WHEN 1 THEN 'B ' WHEN 2 THEN 'ä' ELSE '"\,{' END || n FROM generate_series(1, 2600) n`)
	}
	// The standby misses a whole page in the middle, has one more at each end, and one of another text in between.
	plant(t, w.c2, `DELETE FROM kinds.words WHERE (who, word) IN (SELECT who, word FROM kinds.words WHERE who = 1 ORDER BY word COLLATE "C" LIMIT 40)`)
	plant(t, w.c2, `INSERT INTO kinds.words (slot, epoch, rev, who, word) VALUES (9, 3, 1, -1, ''), (9, 3, 1, 5, 'zz'), (9, 3, 1, 1, 'a-17')`)
	plant(t, w.c2, `UPDATE kinds.words SET n = 4 WHERE word = 'B 2597'`)
	r := w.verify(verify.Ask{})
	n := map[verify.Kind]int{}
	for _, d := range r.Differences {
		n[d.Kind]++
	}
	if d := cmp.Diff(map[verify.Kind]int{verify.Missing: 40, verify.Extra: 3, verify.Differs: 1}, n); d != "" || r.NotListed != 0 {
		t.Errorf("%s\n%d not listed", d, r.NotListed)
	}
	// More than a page only at the standby, and only at the owner.
	plant(t, w.c1, "DELETE FROM kinds.words")
	r = w.verify(verify.Ask{List: 5})
	if len(r.Differences) != 100 || r.NotListed != 1 || r.Equal() {
		t.Errorf("%d listed, %d not", len(r.Differences), r.NotListed)
	}
}

// What can't be compared is named, and is no success.
func TestNotCompared(t *testing.T) {
	w := newWorld(t)
	if r := w.verify(verify.Ask{}); r.Equal() || r.RowsCompared != 0 {
		t.Errorf("nothing compared is equal: %+v", r)
	}
	w.fill()
	exec(t, w.c1.Super, "UPDATE cell.slots SET standby = NULL WHERE slot = 5")
	exec(t, w.c2.Super, "UPDATE cell.standby_slots SET state = 'stopped', reason = 'a reason' WHERE slot IN (1, 2)")
	exec(t, w.c2.Super, "UPDATE cell.slots SET epoch = 2 WHERE slot = 10")
	exec(t, w.c3.Super, "UPDATE cell.slots SET role = 'none' WHERE slot = 100")
	exec(t, w.c3.Super, "ALTER TABLE kinds.sums ADD COLUMN more int")
	check := func(want ...string) {
		t.Helper()
		r := w.verify(verify.Ask{})
		var got []string
		for _, n := range r.NotCompared {
			got = append(got, fmt.Sprintf("%s -> %s: %s: %s", n.Owner, n.Standby, verify.Runs(n.Slots), n.Reason))
		}
		slices.Sort(got)
		if d := cmp.Diff(want, got); d != "" || r.Equal() || len(r.Differences) != 0 {
			t.Errorf("%s\ndifferences %+v", d, r.Differences)
		}
	}
	check("c1 -> : 5: uncovered: no cell stands by for these slots",
		"c1 -> c2: 1-2: not in sync: stopped, a reason",
		"c1 -> c2: 10: c2 has it at another epoch",
		"c1 -> c3: 100-199: its columns aren't the same in both cells",
		"c1 -> c3: 100: c3 doesn't stand by for it yet")

	exec(t, w.c1.Super, "UPDATE cell.slots SET standby = 'c2' WHERE slot = 5")
	exec(t, w.c3.Super, "ALTER TABLE kinds.sums DROP COLUMN more")
	exec(t, w.c3.Super, "UPDATE cell.slots SET role = 'standby' WHERE slot = 100")
	exec(t, w.c3.Super, "INSERT INTO cell.standby_slots (slot, source, epoch, state) VALUES (100, 'c1', 3, 'in_sync')")
	w.cells["c2"] = local{s: verify.NewServer(verify.Options{Cell: "c2", DSN: w.c2.AgentDSN})}
	check("c1 -> c2: 0-99: UNAVAILABLE: c2: hold: this cell keeps no copies")
	w.cells["c2"] = local{s: verify.NewServer(verify.Options{Cell: "c2", DSN: w.c3.AgentDSN})}
	check(`c1 -> c2: 0-99: the standby can't be asked`,
		`c2 -> : : c2 can't be asked: UNAVAILABLE: c2: slots: ERROR: this database belongs to c3, not to c2 (SQLSTATE SL010)`)
	delete(w.cells, "c2")
	check(`c1 -> c2: 0-99: the standby can't be asked`)
}

// What the clean-up knows of is no difference.
func TestLeft(t *testing.T) {
	w := newWorld(t)
	w.fill()
	exec(t, w.c1.Super, "UPDATE cell.slots SET standby = 'c3' WHERE slot = 8")
	exec(t, w.c2.Super, "UPDATE cell.slots SET standby = 'c3', role = 'none' WHERE slot = 8")
	exec(t, w.c3.Super, "UPDATE cell.slots SET standby = 'c3', role = 'standby' WHERE slot = 8")
	exec(t, w.c3.Super, "INSERT INTO cell.standby_slots (slot, source, epoch, state) VALUES (8, 'c1', 3, 'in_sync')")
	plant(t, w.c3, `INSERT INTO kinds.things (slot, epoch, rev, id, a_text, a_float, a_tstz) SELECT 8, 3, 1, 8000 + n, 'row ' || n, n / 3.0,
		'2026-01-01 10:00+00'::timestamptz + n * interval '1 second' FROM generate_series(1, 5) n`)
	plant(t, w.c3, "INSERT INTO kinds.words (slot, epoch, rev, who, word) SELECT 8, 3, 1, 7, 'w' || n FROM generate_series(1, 3) n")
	plant(t, w.c3, "INSERT INTO kinds.sums (slot, epoch, rev, total) VALUES (8, 2, 9, 8)")
	r := w.verify(verify.Ask{})
	if d := cmp.Diff([]verify.Left{{Cell: "c2", Slots: 1, Rows: 9}}, r.Left); d != "" || !r.Equal() {
		t.Errorf("%s\n%+v", d, r)
	}
}
