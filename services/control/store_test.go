package control

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/control/controlapi"
)

func testKey() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)) }

// appDSN is the database as the application's role, which control runs as.
func appDSN(t testing.TB, db *pgtest.DB) string {
	t.Helper()
	u, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(pg.RoleApp)
	return u.String()
}

func open(t testing.TB, dsn string, step func(string) error) *service {
	t.Helper()
	pool, err := pg.OpenGlobal(context.Background(), dsn, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return newService(&store{pool: pool, step: step}, testKey(), slog.New(slog.NewTextHandler(t.Output(), nil)))
}

func weight(expect int64, w int) controlapi.PublishRequest {
	return controlapi.PublishRequest{ExpectVersion: expect, Reason: "test", Changes: &controlapi.Changes{Weights: map[string]int{"c1": w}}}
}

// steps of publish, in order; the version is stored from "committed" on.
var steps = []string{"locked", "signed", "inserted", "committed"}

// TestPublisher is not a test of its own: it's the process that TestScenario_R01
// starts and that kills itself in the middle of publishing.
func TestPublisher(t *testing.T) {
	dsn, at := os.Getenv("CONTROL_TEST_DSN"), os.Getenv("CONTROL_TEST_DIE_AT")
	if dsn == "" {
		t.Skip("runs only as a child of TestScenario_R01_KilledWhilePublishing")
	}
	s := open(t, dsn, func(step string) error {
		if step == at {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return nil
	})
	ctx := t.Context()
	if err := s.refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if s.holder.Load() == nil {
		_, err := s.initialize(ctx, fourCells())
		t.Fatal("still alive", err)
	}
	_, err := s.publish(ctx, weight(s.holder.Version(), int(s.holder.Version())))
	t.Fatal("still alive", err)
}

// TestScenario_R01_KilledWhilePublishing: control is killed at every step of the
// first and of a later publish. What is stored is always a whole table, the next
// publish works at once, and versions only grow.
func TestScenario_R01_KilledWhilePublishing(t *testing.T) {
	t.Parallel()
	db := pgtest.NewGlobal(t, Migrations())
	dsn := appDSN(t, db)
	stored := int64(0)
	die := func(step string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPublisher$")
		cmd.Env = append(os.Environ(), "CONTROL_TEST_DSN="+dsn, "CONTROL_TEST_DIE_AT="+step)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("step %s: the publisher was not killed: %v\n%s", step, err, out)
		}
		if step == "committed" {
			stored++
		}
		after := open(t, dsn, nil) // control starts again
		if err := after.refresh(t.Context()); err != nil {
			t.Fatalf("step %s: %v", step, err)
		}
		if got := max(0, after.holder.Version()); got != stored {
			t.Fatalf("killed at %q: version %d is stored, want %d", step, got, stored)
		}
	}
	for _, step := range steps { // of init; the last one stores version 1
		die(step)
	}
	for _, step := range steps {
		die(step)
		s := open(t, dsn, nil)
		p, err := s.publish(t.Context(), weight(stored, 9))
		if stored++; err != nil || p.Version != stored || s.holder.Version() != stored {
			t.Fatalf("publish after a kill at %q: %+v, %v, want version %d", step, p, err, stored)
		}
		if _, err := s.publish(t.Context(), weight(stored-1, 8)); !errors.Is(err, controlapi.ErrVersion) {
			t.Fatalf("publish on a stale version: %v, want a conflict", err)
		}
	}
	wholeHistory(t, db.Super, stored)
}

// wholeHistory checks that versions 1 to last are there, each the valid
// successor of the one before.
func wholeHistory(t testing.TB, pool *pgxpool.Pool, last int64) {
	t.Helper()
	rows, err := pool.Query(context.Background(), "SELECT version, signed FROM control.route_versions ORDER BY version")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var before *routing.Table
	n := int64(0)
	for rows.Next() {
		var version int64
		var b []byte
		if err := rows.Scan(&version, &b); err != nil {
			t.Fatal(err)
		}
		table, err := routing.Open(testKey().Public().(ed25519.PublicKey), b)
		if n++; err != nil || version != n || table.Version() != n {
			t.Fatalf("row %d holds version %d: %v", n, version, err)
		}
		if before != nil {
			if err := before.CheckNext(table); err != nil {
				t.Fatal(err)
			}
		}
		before = table
	}
	if rows.Err() != nil || n != last {
		t.Fatalf("%d versions, want %d (%v)", n, last, rows.Err())
	}
}

// TestPublishIsCompareAndSwap: of many that publish on the same version exactly
// one wins, over several instances of control.
func TestPublishIsCompareAndSwap(t *testing.T) {
	t.Parallel()
	db := pgtest.NewGlobal(t, Migrations())
	instances := []*service{open(t, appDSN(t, db), nil), open(t, appDSN(t, db), nil)}
	if p, err := instances[0].initialize(t.Context(), fourCells()); err != nil || !p.Created || p.Version != 1 {
		t.Fatalf("init = %+v, %v", p, err)
	}
	const rounds, writers = 5, 6
	for v := int64(1); v <= rounds; v++ {
		var won, conflicts atomic.Int32
		var all sync.WaitGroup
		for w := range writers {
			all.Go(func() {
				_, err := instances[w%2].publish(t.Context(), weight(v, w))
				switch {
				case err == nil:
					won.Add(1)
				case errors.Is(err, controlapi.ErrVersion):
					conflicts.Add(1)
				default:
					t.Errorf("publish: %v", err)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 || conflicts.Load() != writers-1 {
			t.Fatalf("round %d: %d won, %d conflicts", v, won.Load(), conflicts.Load())
		}
	}
	wholeHistory(t, db.Super, rounds+1)
	for i, s := range instances {
		if err := s.refresh(t.Context()); err != nil || s.holder.Version() != rounds+1 {
			t.Errorf("instance %d holds version %d, %v", i, s.holder.Version(), err)
		}
	}
}

// TestHistoryCantBeChanged: control's own role may neither change, delete nor
// replace what was published, nor leave a gap.
func TestHistoryCantBeChanged(t *testing.T) {
	t.Parallel()
	db := pgtest.NewGlobal(t, Migrations())
	s := open(t, appDSN(t, db), nil)
	if _, err := s.initialize(t.Context(), fourCells()); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"UPDATE control.route_versions SET version = 7",
		"DELETE FROM control.route_versions",
		"TRUNCATE control.route_versions",
		"INSERT INTO control.route_versions (version, signed, reason) VALUES (1, '', '')",
	} {
		if _, err := s.store.pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s: allowed", sql)
		}
	}
	err := s.store.publish(t.Context(), "gap", func([]byte) (int64, []byte, error) { return 3, []byte("x"), nil })
	if !errors.Is(err, controlapi.ErrVersion) {
		t.Errorf("version 3 after 1: %v, want a conflict", err)
	}
}

func TestInitTwice(t *testing.T) {
	t.Parallel()
	db := pgtest.NewGlobal(t, Migrations())
	s := open(t, appDSN(t, db), nil)
	if _, err := s.publish(t.Context(), weight(0, 1)); !errors.Is(err, controlapi.ErrNone) {
		t.Errorf("publish before init: %v", err)
	}
	if _, err := s.initialize(t.Context(), fourCells()); err != nil {
		t.Fatal(err)
	}
	if p, err := s.initialize(t.Context(), fourCells()); err != nil || p.Created || p.Version != 1 {
		t.Errorf("init again = %+v, %v", p, err)
	}
	other := fourCells()
	other.Cells = other.Cells[:3]
	if _, err := s.initialize(t.Context(), other); !errors.Is(err, controlapi.ErrExists) {
		t.Errorf("init with other cells: %v, want a conflict", err)
	}
}

// TestWrongKey: a table that another key signed is not handed out, nor built on.
func TestWrongKey(t *testing.T) {
	t.Parallel()
	db := pgtest.NewGlobal(t, Migrations())
	s := open(t, appDSN(t, db), nil)
	if _, err := s.initialize(t.Context(), fourCells()); err != nil {
		t.Fatal(err)
	}
	other := open(t, appDSN(t, db), nil)
	other.key = ed25519.NewKeyFromSeed([]byte(fmt.Sprintf("%032d", 7)))
	if err := other.refresh(t.Context()); !errors.Is(err, routing.ErrSignature) || other.holder.Load() != nil {
		t.Errorf("refresh = %v", err)
	}
	if _, err := other.publish(t.Context(), weight(1, 1)); !errors.Is(err, routing.ErrSignature) {
		t.Errorf("publish = %v", err)
	}
}

// TestAnotherInstancePublishes: who watches hands out what others stored.
func TestAnotherInstancePublishes(t *testing.T) {
	t.Parallel()
	db := pgtest.NewGlobal(t, Migrations())
	a, b := open(t, appDSN(t, db), nil), open(t, appDSN(t, db), nil)
	req := fourCells()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.watch(ctx, &req) }()
	table, err := waitTable(b, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.publish(t.Context(), weight(table.Version(), 3)); err != nil {
		t.Fatal(err)
	}
	if table, err = waitTable(b, 1); err != nil || table.Version() != 2 {
		t.Errorf("instance b: %v, %v", table, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("watch = %v", err)
	}
}

func waitTable(s *service, after int64) (*routing.Table, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b, err := s.route(ctx, after)
	if err != nil {
		return nil, err
	}
	return routing.Open(s.public(), b)
}
