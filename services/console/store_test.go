package console

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/services/agent/agentapi"
)

// newStore is a store over a new database, as the application's role.
func newStore(t *testing.T) *store {
	t.Helper()
	u, err := url.Parse(pgtest.NewGlobal(t, Migrations()).DSN)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(pg.RoleApp)
	pool, err := pg.OpenGlobal(context.Background(), u.String(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &store{pool: pool}
}

// The other tests stand on memory: it has to do what the database does.
func TestRecords(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]records{"store": newStore(t), "memory": newMemory()} {
		t.Run(name, func(t *testing.T) { testRecords(t, r) })
	}
}

func testRecords(t *testing.T, r records) {
	ctx := t.Context()
	if hash, err := r.operatorHash(ctx, "operator"); hash != "" || err != nil {
		t.Fatalf("nobody's hash is %q, %v", hash, err)
	}
	for i, want := range []bool{false, true, false} {
		told := 0
		made, err := r.firstOperator(ctx, "operator", "hash", func() error {
			told++
			if i == 0 {
				return io.ErrClosedPipe
			}
			return nil
		})
		if made != want || (told > 0) != (i < 2) || errors.Is(err, io.ErrClosedPipe) != (i == 0) || err != nil && i > 0 {
			t.Errorf("first operator, time %d: %v, told %d times, %v", i, made, told, err)
		}
	}
	if n, err := r.operators(ctx); n != 1 || err != nil {
		t.Errorf("%d operators, %v", n, err)
	}
	if hash, err := r.operatorHash(ctx, "operator"); hash != "hash" || err != nil {
		t.Errorf("the hash is %q, %v", hash, err)
	}

	key, over, other := sessionKey{1}, sessionKey{2}, sessionKey{3}
	ends := time.Now().Add(time.Hour)
	if err := errors.Join(r.addSession(ctx, key, "operator", ends), r.addSession(ctx, over, "operator", time.Now().Add(-time.Second))); err != nil {
		t.Fatal(err)
	}
	if who, until, err := r.session(ctx, key); who != "operator" || until.Sub(ends).Abs() > time.Millisecond || err != nil {
		t.Errorf("the session is %q's until %s, %v", who, until, err)
	}
	for _, k := range []sessionKey{over, other} {
		if who, _, err := r.session(ctx, k); who != "" || err != nil {
			t.Errorf("session %v: %q, %v", k[:1], who, err)
		}
	}
	if err := errors.Join(r.endSession(ctx, key), r.endSession(ctx, key), r.endSession(ctx, other)); err != nil {
		t.Error(err)
	}
	if who, _, err := r.session(ctx, key); who != "" || err != nil {
		t.Errorf("after its end: %q, %v", who, err)
	}

	mine, others := sessionKey{4}, sessionKey{5}
	if err := errors.Join(r.addSession(ctx, mine, "operator", ends), r.addSession(ctx, others, "operator", ends)); err != nil {
		t.Fatal(err)
	}
	for old, want := range map[string]bool{"not it": false, "hash": true} {
		if done, err := r.setHash(ctx, "operator", old, "hash2", mine); done != want || err != nil {
			t.Errorf("another hash in place of %q: %v, %v", old, done, err)
		}
	}
	if hash, err := r.operatorHash(ctx, "operator"); hash != "hash2" || err != nil {
		t.Errorf("the hash is %q, %v", hash, err)
	}
	for k, want := range map[sessionKey]string{mine: "operator", others: ""} {
		if who, _, err := r.session(ctx, k); who != want || err != nil {
			t.Errorf("session %v after another password: %q, %v", k[:1], who, err)
		}
	}

	asked := Job{ID: "a", Kind: delay, Args: Args{Cell: "c1", Peer: "c2", DelayMS: 50}, Operator: "operator", Reason: "why"}
	first, err := r.addJob(ctx, asked)
	if err != nil || first.State != agentapi.JobOpen || first.Args != asked.Args || first.At.IsZero() || first.Ended != nil {
		t.Fatalf("%+v, %v", first, err)
	}
	changed := asked
	changed.Reason = "another"
	if again, err := r.addJob(ctx, changed); err != nil || again.Reason != "why" {
		t.Errorf("the same ID again is %+v, %v, want the first job", again, err)
	}
	if _, err := r.addJob(ctx, Job{ID: "b", Kind: unplug, Args: Args{Cell: "c2"}, Operator: "operator", Reason: "why"}); err != nil {
		t.Fatal(err)
	}
	if open, err := r.openJobs(ctx); err != nil || len(open) != 2 || open[0].ID != "a" || open[1].ID != "b" {
		t.Errorf("open: %+v, %v", open, err)
	}
	for _, bad := range []string{"a\x00b", "\xff"} {
		unstorable := first
		unstorable.State, unstorable.Detail = agentapi.JobDone, bad
		if err := r.endJob(ctx, unstorable); err == nil {
			t.Errorf("%q is kept", bad)
		}
		unstorable.Detail = storable(bad)
		unstorable.ID = "none"
		if err := r.endJob(ctx, unstorable); err != nil {
			t.Errorf("%q: %v", unstorable.Detail, err)
		}
	}
	first.State, first.Detail = agentapi.JobFailed, "no answer"
	late := first
	late.State, late.Detail = agentapi.JobDone, "late"
	if err := errors.Join(r.endJob(ctx, first), r.endJob(ctx, late)); err != nil {
		t.Error(err)
	}
	if j, err := r.job(ctx, "a"); err != nil || j.State != agentapi.JobFailed || j.Detail != "no answer" || j.Ended == nil {
		t.Errorf("%+v, %v, want the first end", j, err)
	}
	if _, err := r.job(ctx, "none"); !errs.IsKind(err, errs.NotFound) {
		t.Errorf("no such job: %v", err)
	}
	if open, err := r.openJobs(ctx); err != nil || len(open) != 1 || open[0].ID != "b" {
		t.Errorf("open: %+v, %v", open, err)
	}

	all, err := r.events(ctx, Filter{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for i, e := range all {
		kinds = append(kinds, e.What)
		if i > 0 && e.Seq >= all[i-1].Seq {
			t.Errorf("event %d after %d", e.Seq, all[i-1].Seq)
		}
	}
	slices.Reverse(kinds)
	if want := []string{eventOperator, eventSignIn, eventSignIn, eventSignOut, eventSignIn, eventSignIn, eventPassword, eventJob, eventJob, eventFailed}; !slices.Equal(kinds, want) {
		t.Errorf("the log has %v, want %v", kinds, want)
	}
	for _, tc := range []struct {
		f    Filter
		want int
	}{
		{Filter{What: eventSignIn}, 4}, {Filter{Subject: "c1-c2"}, 2}, {Filter{Operator: "operator"}, 10}, {Filter{Operator: "somebody"}, 0},
		{Filter{Before: all[2].Seq}, 7}, {Filter{What: eventJob, Subject: "c2"}, 1},
	} {
		if got, err := r.events(ctx, tc.f, 100); err != nil || len(got) != tc.want {
			t.Errorf("%+v gives %d events, %v, want %d", tc.f, len(got), err, tc.want)
		}
	}
	if got, err := r.events(ctx, Filter{}, 3); err != nil || len(got) != 3 || got[0].Seq != all[0].Seq {
		t.Errorf("the newest three: %+v, %v", got, err)
	}
}

// quietly tells nobody.
func quietly() error { return nil }

// The log can't be changed by what writes it.
func TestEventsAreAppendOnly(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if _, err := s.firstOperator(t.Context(), "operator", "hash", quietly); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`DELETE FROM console.events`, `UPDATE console.events SET detail = ''`, `TRUNCATE console.events`,
		`UPDATE console.operators SET name = ''`, `DELETE FROM console.sessions`, `UPDATE console.jobs SET reason = ''`,
	} {
		var pe *pgconn.PgError
		if _, err := s.pool.Exec(t.Context(), sql); !errors.As(err, &pe) {
			t.Errorf("%s: %v, want a refusal", sql, err)
		}
	}
	if all, err := s.events(t.Context(), Filter{}, 10); err != nil || len(all) != 1 {
		t.Errorf("%d events, %v", len(all), err)
	}
}

// Consoles that start at the same time make one first operator.
func TestOneFirstOperator(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var made atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			ok, err := s.firstOperator(t.Context(), firstName, "hash", quietly)
			if err != nil {
				t.Error(err)
			}
			if ok {
				made.Add(1)
			}
		})
	}
	wg.Wait()
	if n, err := s.operators(t.Context()); made.Load() != 1 || n != 1 || err != nil {
		t.Errorf("%d say that they made one, %d are there, %v", made.Load(), n, err)
	}
}
