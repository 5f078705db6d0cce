package verify_test

import (
	"context"
	"embed"
	"encoding/json"
	"io/fs"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/verify"
)

//go:embed testdata/migrations/*.sql
var files embed.FS

func kinds(t *testing.T) pg.Migrations {
	t.Helper()
	sub, err := fs.Sub(files, "testdata/migrations")
	if err != nil {
		t.Fatal(err)
	}
	return pg.Migrations{Schema: "kinds", FS: sub}
}

// local asks a Server without a network in between.
type local struct {
	s      *verify.Server
	before func(op string) // nil = nothing
}

func (l local) Admin(ctx context.Context, _, path string, in, out any) error {
	op := strings.TrimPrefix(path, "/verify/")
	if l.before != nil {
		l.before(op)
	}
	b, err := json.Marshal(in)
	if err != nil {
		return err
	}
	got, err := l.s.Answer(ctx, op, b)
	// It waits 2 s for a connection; this machine may stand still for longer.
	for try := 0; try < 10 && err != nil && strings.Contains(err.Error(), "failed to connect"); try++ {
		got, err = l.s.Answer(ctx, op, b)
	}
	if err != nil || out == nil {
		return err
	}
	if b, err = json.Marshal(got); err != nil {
		return err
	}
	return json.Unmarshal(b, out)
}

// still is the standby of an owner that writes nothing: it is at every position.
type still struct{ conn *pgx.Conn }

func (s still) At(ctx context.Context, _ string, _ cdc.LSN) (name string, err error) {
	if _, err := s.conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
		return "", err
	}
	return name, s.conn.QueryRow(ctx, "SELECT pg_export_snapshot()").Scan(&name)
}

func (s still) Release() { _ = s.conn.Close(context.Background()) }

func holdStill(dsn string) func(context.Context, string) (verify.Held, error) {
	return func(ctx context.Context, _ string) (verify.Held, error) {
		c, err := pgx.Connect(ctx, dsn)
		return still{c}, err
	}
}

// world is c1, which owns slots 0 to 199, and c2 and c3, which stand by for 0 to
// 99 and 100 to 199.
type world struct {
	t          *testing.T
	c1, c2, c3 *pgtest.DB
	servers    map[string]*verify.Server
	cells      map[string]local
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, servers: map[string]*verify.Server{}, cells: map[string]local{}}
	for i, db := range []**pgtest.DB{&w.c1, &w.c2, &w.c3} {
		name := []string{"c1", "c2", "c3"}[i]
		*db = pgtest.NewCell(t, name, i+1, kinds(t))
		// Only 200 slots here.
		exec(t, (*db).Super, "DELETE FROM cell.slots WHERE slot > 199")
		exec(t, (*db).Super, `UPDATE cell.slots SET epoch = 3, owner = 'c1', standby = CASE WHEN slot < 100 THEN 'c2' ELSE 'c3' END,
			role = CASE WHEN $1 = 'c1' THEN 'owner' WHEN (slot < 100) = ($1 = 'c2') THEN 'standby' ELSE 'none' END`, name)
		exec(t, (*db).Super, "DELETE FROM cell.cleanup") // they were never really owned
		exec(t, (*db).Super, `INSERT INTO cell.standby_slots (slot, source, epoch, state) SELECT slot, 'c1', 3, 'in_sync' FROM cell.slots WHERE role = 'standby'`)
		s := verify.NewServer(verify.Options{Cell: name, DSN: (*db).AgentDSN, Hold: holdStill((*db).SuperDSN)})
		t.Cleanup(s.Close)
		w.servers[name], w.cells[name] = s, local{s: s}
	}
	return w
}

// fill gives each cell the rows that it is to have.
func (w *world) fill() {
	w.t.Helper()
	for db, slots := range map[*pgtest.DB]string{w.c1: "0, 199", w.c2: "0, 99", w.c3: "100, 199"} {
		plant(w.t, db, `INSERT INTO kinds.things (slot, epoch, rev, id, a_text, a_float, a_tstz)
			SELECT s, 3, 1, s * 1000 + n, 'row ' || n, n / 3.0, '2026-01-01 10:00+00'::timestamptz + n * interval '1 second'
			FROM generate_series(`+slots+`) s, generate_series(1, 5) n`)
		plant(w.t, db, `INSERT INTO kinds.words (slot, epoch, rev, who, word) SELECT s, 3, 1, 7, 'w' || n
			FROM generate_series(`+slots+`) s, generate_series(1, 3) n`)
		plant(w.t, db, `INSERT INTO kinds.sums (slot, epoch, rev, total) SELECT s, 2, 9, s FROM generate_series(`+slots+`) s`)
	}
}

func (w *world) verify(a verify.Ask) verify.Report {
	w.t.Helper()
	r, err := verify.Run(w.t.Context(), w.cells, a)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func plant(t *testing.T, db *pgtest.DB, sql string) {
	t.Helper()
	exec(t, db.Super, "SET session_replication_role = replica; "+sql+"; RESET session_replication_role")
}

func exec(t *testing.T, p *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := p.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
