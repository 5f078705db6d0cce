package idgen

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/services/idgen/idgenapi"
)

// bench is a service on a database of its own, as the application's role, with
// a clock that stands still, or runs.
type bench struct {
	*pgtest.DB
	now  time.Time
	runs bool
	off  time.Duration // of the clock that runs
	app  string
}

func setup(t testing.TB) *bench {
	t.Helper()
	b := &bench{DB: pgtest.NewGlobal(t, Migrations()), now: time.Now().Truncate(time.Millisecond)}
	u, err := url.Parse(b.DSN)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(pg.RoleApp)
	b.app = u.String()
	if err := Setup(t.Context(), b.DSN); err != nil {
		t.Fatal(err)
	}
	return b
}

// time is what the tests' clocks show: where they run, they stay in step with the
// database's own however long the machine stands still between two leases.
func (b *bench) time() time.Time {
	if b.runs {
		return time.Now().Add(b.off)
	}
	return b.now
}

// service is a new process of idgen.
func (b *bench) service(t testing.TB) *service {
	t.Helper()
	pool, err := pg.OpenGlobal(context.Background(), b.app, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := newService(&store{pool: pool}, slog.New(slog.DiscardHandler))
	s.clock = b.time
	s.store.databaseClock = func(time.Time) time.Time { return b.time() }
	return s
}

func (b *bench) super(t testing.TB, sql string) {
	t.Helper()
	if _, err := b.Super.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// leases counts a kind's in the journal.
func (b *bench) leases(t testing.TB, kind string) (n int) {
	t.Helper()
	if err := b.Super.QueryRow(t.Context(), "SELECT count(*) FROM idgen.journal WHERE number = $1", number(kind)).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func order(size int64) idgenapi.LeaseRequest {
	return idgenapi.LeaseRequest{Kind: idgenapi.Order, Size: size, Holder: "test"}
}

func mustLease(t testing.TB, s *service, ask idgenapi.LeaseRequest) idgenapi.Lease {
	t.Helper()
	l, err := s.lease(t.Context(), ask)
	if err != nil {
		t.Fatalf("lease(%+v): %v", ask, err)
	}
	if l.Holders < 1 || l.Left < 0 {
		t.Errorf("lease(%+v) leaves room %+v", ask, l)
	}
	l.Left, l.Holders = 0, 0
	return l
}

func TestFreshDatabaseLeasesAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.service(t)
	at := id.SeqAt(b.now)
	for i, want := range []idgenapi.Lease{{Lo: at, Hi: at + 1000}, {Lo: at + 1000, Hi: at + 2000}} {
		if got := mustLease(t, s, order(1000)); got != want {
			t.Errorf("lease %d = %+v, want %+v", i, got, want)
		}
	}
	if got := mustLease(t, s, idgenapi.LeaseRequest{Kind: idgenapi.User, Size: 5}); got.Lo != at {
		t.Errorf("another kind begins at %d, want %d", got.Lo, at)
	}
	for range 7 {
		if _, err := s.lease(t.Context(), order(1_000_000)); err != nil && !errors.Is(err, idgenapi.ErrBudget) {
			t.Fatal(err)
		}
	}
	st, err := s.status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k := st.Kinds[slices.Index(idgenapi.Kinds(), idgenapi.Order)]
	if k.Hi != id.SeqAt(b.now.Add(id.Budget)) || k.BudgetUsed != 1 || b.leases(t, idgenapi.Order) != 8 || k.Changed || k.PausedForMS != 0 || k.YearsLeft < 80 || k.YearsLeft > 90 {
		t.Errorf("status of a kind with its budget used up: %+v", k)
	}
}

// Another incarnation pauses for budget + 5 s, whoever asks and however often
// idgen restarts, and then leases above anything that can be lost.
func TestChangedDatabasePauses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.service(t)
	first := mustLease(t, s, order(1000))
	b.super(t, "UPDATE idgen.kinds SET incarnation = '1/00000001/1'")
	began := b.now
	refused := func(after, left time.Duration) {
		t.Helper()
		b.now = began.Add(after)
		_, err := b.service(t).lease(t.Context(), order(1000))
		if !errors.Is(err, idgenapi.ErrPaused) || errs.From(err).RetryAfter != left {
			t.Fatalf("after %v: %v (%v left), want a pause with %v left", after, err, errs.From(err).RetryAfter, left)
		}
	}
	refused(0, Pause)
	refused(time.Second, Pause-time.Second)
	refused(Pause-time.Millisecond, time.Millisecond)
	st, err := s.status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o, u := st.Kinds[number(idgenapi.Order)-1], st.Kinds[number(idgenapi.User)-1]
	if o.PausedForMS != 1 || o.Changed || u.PausedForMS != 0 || !u.Changed {
		t.Errorf("status in a pause: order %+v, user %+v", o, u)
	}
	b.now = began.Add(Pause)
	if l := mustLease(t, b.service(t), order(1000)); l.Lo != id.SeqAt(b.now) || l.Lo < first.Hi+id.PerMilli*id.Budget.Milliseconds() {
		t.Errorf("after the pause: %+v", l)
	}
}

func TestMissingRowPauses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := mustLease(t, b.service(t), order(1_000_000))
	b.super(t, "DELETE FROM idgen.kinds")
	if err := Setup(t.Context(), b.DSN); err != nil { // not fresh: must not write rows
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		s := b.service(t)
		wg.Go(func() {
			if _, err := s.lease(t.Context(), order(10)); !errors.Is(err, idgenapi.ErrPaused) {
				t.Errorf("no row: %v, want a pause", err)
			}
		})
	}
	wg.Wait()
	var hi int64
	if err := b.Super.QueryRow(t.Context(), "SELECT hi FROM idgen.kinds WHERE kind = 'order'").Scan(&hi); err != nil || hi != l.Hi {
		t.Errorf("the new row begins at %d, %v, want the journal's %d", hi, err, l.Hi)
	}
	b.now = b.now.Add(Pause)
	if got := mustLease(t, b.service(t), order(10)); got.Lo < l.Hi {
		t.Errorf("leased %+v after %+v", got, l)
	}
}

func TestSetupTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.service(t)
	l := mustLease(t, s, order(10))
	if err := Setup(t.Context(), b.DSN); err != nil {
		t.Fatal(err)
	}
	if got := mustLease(t, s, order(10)); got.Lo != l.Hi {
		t.Errorf("leased %+v after %+v", got, l)
	}
}

func TestDatabaseRefusesWhatIDGenMustNotDo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.service(t)
	l := mustLease(t, s, order(1000))
	pool := s.store.pool
	for _, tc := range []struct{ name, sql, code string }{
		{"lower hi", "UPDATE idgen.kinds SET hi = hi - 1 WHERE kind = 'order'", "IG001"},
		{"another number", "UPDATE idgen.kinds SET number = 99 WHERE kind = 'order'", "IG001"},
		{"delete a row", "DELETE FROM idgen.kinds", "42501"},
		{"delete a lease", "DELETE FROM idgen.journal", "42501"},
		{"change a lease", "UPDATE idgen.journal SET lo = 1", "42501"},
		{"overlap the end", "INSERT INTO idgen.journal (number, lo, hi, holder) SELECT number, hi - 1, hi + 9, 'x' FROM idgen.journal", "23P01"},
		{"lie inside", "INSERT INTO idgen.journal (number, lo, hi, holder) SELECT number, lo + 1, lo + 2, 'x' FROM idgen.journal", "23P01"},
		{"an empty range", "INSERT INTO idgen.journal (number, lo, hi, holder) VALUES (4, 7, 7, 'x')", "23514"},
	} {
		_, err := pool.Exec(t.Context(), tc.sql)
		var pe *pgconn.PgError
		if !errors.As(err, &pe) || pe.Code != tc.code {
			t.Errorf("%s: %v, want %s", tc.name, err, tc.code)
		}
	}
	// The same range of another kind, and the one right behind, are fine.
	if _, err := pool.Exec(t.Context(), "INSERT INTO idgen.journal (number, lo, hi, holder) VALUES (5, $1, $2, 'x'), (4, $2, $2 + 1, 'x')", l.Lo, l.Hi); err != nil {
		t.Error(err)
	}
	// A row set back by hand: the journal knows better.
	b.super(t, "ALTER TABLE idgen.kinds DISABLE TRIGGER ALL; UPDATE idgen.kinds SET hi = 0; ALTER TABLE idgen.kinds ENABLE TRIGGER ALL")
	if got, err := s.lease(t.Context(), order(1000)); !errors.Is(err, errOverlap) {
		t.Errorf("lease after hi was set back = %+v, %v, want errOverlap", got, err)
	}
	b.now = b.now.Add(time.Minute)
	mustLease(t, s, order(1000)) // the time has passed it
}

// The incarnation is the same for every session and names this cluster.
func TestIncarnation(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var one, two, sysid string
	if err := b.Super.QueryRow(t.Context(), "SELECT idgen.incarnation(), system_identifier::text FROM pg_control_system()").Scan(&one, &sysid); err != nil {
		t.Fatal(err)
	}
	if err := b.service(t).store.pool.QueryRow(t.Context(), "SELECT idgen.incarnation()").Scan(&two); err != nil {
		t.Fatal(err)
	}
	if parts := strings.Split(one, "/"); one != two || len(parts) != 3 || parts[0] != sysid || len(parts[1]) != 8 {
		t.Errorf("incarnation %q as superuser, %q as the application", one, two)
	}
}
