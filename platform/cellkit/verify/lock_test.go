package verify_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/verify"
	"example.com/cellmart/platform/routing"
)

// commit is one of the WAL: where its record ends, and its rows in the group.
type commit struct {
	at cdc.LSN
	n  int64
}

// The owner's snapshot has exactly what committed up to its position, in the slots
// of the group: what the WAL says up to there, and nothing else.
func TestPosition(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	exec(t, w.c1.Super, "SELECT pg_create_logical_replication_slot('judge_'||md5(current_database()), 'test_decoding')")
	defer func() { // also when the test has failed: a database with a slot can't be dropped
		_, _ = w.c1.Super.Exec(context.Background(), "SELECT pg_drop_replication_slot('judge_'||md5(current_database()))")
	}()
	stop, writers := make(chan struct{}), sync.WaitGroup{}
	defer writers.Wait()
	defer close(stop)
	for k := range 4 {
		writers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				slot := routing.Slot((i*7 + k*31) % 60)
				// What fails, for a transaction has 2 s and the machine may stand still for longer,
				// is told by the WAL too.
				_ = pg.InSlot(ctx, w.c1.App, pg.Entry{Slot: slot, Epoch: 3}, func(tx *pg.Tx) error {
					_, err := tx.Exec(ctx, "INSERT INTO kinds.things (slot, epoch, rev, id) VALUES ($1, 0, 0, $2)", slot, k*1_000_000+i)
					return err
				})
			}
		})
	}
	var slots []int32
	for s := range int32(40) { // writers are also in others
		slots = append(slots, s)
	}
	seen, before := int64(0), int64(0)
	var commits []commit
	late := time.Now().Add(time.Minute)
	quickest := math.Inf(1)
	for round := 0; round < 12 || seen < 3 && time.Now().Before(late); round++ {
		id := fmt.Sprint("round ", round)
		var snap struct {
			Busy   bool    `json:"busy"`
			LSN    cdc.LSN `json:"lsn"`
			LockMS float64 `json:"lock_ms"`
		}
		ask := func(op string, in map[string]any, out any) {
			t.Helper()
			in["id"] = id
			if err := w.cells["c1"].Admin(ctx, "POST", "/verify/"+op, in, out); err != nil {
				t.Fatal(err)
			}
		}
		ask("lock", map[string]any{"slots": slots}, &snap)
		if snap.Busy {
			continue
		}
		if snap.LockMS <= 0 {
			t.Errorf("the locks were held for %v ms", snap.LockMS)
		}
		quickest = min(quickest, snap.LockMS)
		var digests []struct{ N int64 }
		ask("digest", map[string]any{"tables": []string{"kinds.things"}, "slots": slots}, &digests)
		ask("close", map[string]any{}, nil)
		n := int64(0)
		for _, d := range digests {
			n += d.N
		}
		rows, err := w.c1.Super.Query(ctx, "SELECT lsn::text, data FROM pg_logical_slot_get_changes('judge_'||md5(current_database()), NULL, NULL)")
		if err != nil {
			t.Fatal(err)
		}
		var text, data string
		one := commit{}
		if _, err := pgx.ForEachRow(rows, []any{&text, &data}, func() error {
			var slot int
			if _, found, ok := strings.Cut(data, "table kinds.things: INSERT: slot[integer]:"); ok {
				if _, err := fmt.Sscanf(found, "%d ", &slot); err != nil {
					return err
				}
				if slot < 40 {
					one.n++
				}
			}
			if !strings.HasPrefix(data, "COMMIT") {
				return nil
			}
			err := one.at.UnmarshalText([]byte(text))
			commits, one = append(commits, one), commit{}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		more := int64(0)
		for _, c := range commits {
			if c.at <= snap.LSN {
				more += c.n
			}
		}
		if n != more {
			t.Errorf("round %d: %d rows in the snapshot, %d commits up to %s", round, n, more, snap.LSN)
		}
		if n > before {
			seen++
		}
		before = n
	}
	if seen < 3 {
		t.Errorf("writers got on in %d rounds only: nothing was tried", seen)
	}
	if quickest > 1000 {
		t.Errorf("the locks were held for %v ms at least", quickest)
	}
}

// A writer that stays inside isn't waited for longer than the bound; what is busy
// is compared later, or named; and no lock is left.
func TestBusy(t *testing.T) {
	w := newWorld(t)
	w.fill()
	ctx := t.Context()
	conn, err := w.c1.Super.Acquire(ctx) // its lock is a writer's, who isn't ended for being slow
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock_shared(4401, 130)"); err != nil {
		t.Fatal(err)
	}
	// Bound 40 ms, on a machine that does other things, and stands still now and then.
	for try, slowest := 1, w.keptOut(ctx); slowest > 1500*time.Millisecond; slowest = w.keptOut(ctx) {
		if try++; try > 5 {
			t.Errorf("a writer was kept out for %v, five times", slowest)
			break
		}
	}

	// The same by the whole way: only the half of the pair's slots that has the busy one is left out.
	r := w.verify(verify.Ask{})
	if len(r.NotCompared) != 1 || r.NotCompared[0].N != 50 || !strings.Contains(r.NotCompared[0].Reason, "writers were inside") || r.SlotsCompared != 150 || r.Equal() {
		t.Errorf("got %+v", r.NotCompared)
	}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_unlock_all()"); err != nil {
		t.Fatal(err)
	}
	w.noLocks(ctx)
	if r := w.verify(verify.Ask{}); !r.Equal() {
		t.Errorf("got %+v", r.NotCompared)
	}
}

// keptOut has slots of which one is busy locked in vain, and tells how long another
// writer waited, whose slot is taken before the busy one is waited for.
func (w *world) keptOut(ctx context.Context) (slowest time.Duration) {
	w.t.Helper()
	stop, writer := make(chan struct{}), sync.WaitGroup{}
	writer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			start := time.Now()
			// It gets in or not: the time tells.
			_ = pg.InSlot(ctx, w.c1.App, pg.Entry{Slot: 101, Epoch: 3}, func(*pg.Tx) error { return nil })
			slowest = max(slowest, time.Since(start))
		}
	})
	var snap struct{ Busy bool }
	var slots []int32
	for s := int32(100); s < 200; s++ {
		slots = append(slots, s)
	}
	if err := w.cells["c1"].Admin(ctx, "POST", "/verify/lock", map[string]any{"id": "x", "slots": slots}, &snap); err != nil || !snap.Busy {
		w.t.Errorf("got %+v, %v; a writer is inside", snap, err)
	}
	close(stop)
	writer.Wait()
	w.noLocks(ctx)
	return slowest
}

func (w *world) noLocks(ctx context.Context) {
	w.t.Helper()
	var n int
	err := w.c1.Super.QueryRow(ctx, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&n)
	if err != nil || n != 0 {
		w.t.Errorf("%d slots are locked still (%v)", n, err)
	}
}

// Snapshots are few, and a wrong question is answered as one.
func TestQuestions(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ask := func(op string, in map[string]any) error {
		return w.cells["c1"].Admin(ctx, "POST", "/verify/"+op, in, nil)
	}
	for i := range 8 {
		if err := ask("lock", map[string]any{"id": fmt.Sprint(i), "slots": []int32{1}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask("lock", map[string]any{"id": "one more", "slots": []int32{1}}); err == nil {
		t.Error("a ninth snapshot is open")
	}
	for i := range 8 {
		if err := ask("close", map[string]any{"id": fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask("lock", map[string]any{"id": "a", "slots": []int32{1}}); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"closed":       ask("digest", map[string]any{"id": "1", "tables": []string{"kinds.things"}}),
		"no id":        ask("lock", map[string]any{"slots": []int32{1}}),
		"no operation": ask("drop", map[string]any{"id": "a"}),
		"other table":  ask("digest", map[string]any{"id": "a", "tables": []string{"cell.seal_key"}, "slots": []int32{1}}),
		"not a table":  ask("rows", map[string]any{"id": "a", "table": "kinds.things; DROP TABLE kinds.sums"}),
		"too many":     ask("lock", map[string]any{"id": "b", "slots": slices.Repeat([]int32{1}, 5000)}),
		"no hold":      ask("at", map[string]any{"id": "a"}),
		"not a copy":   ask("recopy", map[string]any{"source": "c2", "slots": []int32{1}}),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
