package idbank

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
)

// world is a cell's database with an agent's file.
type world struct {
	*pgtest.DB
	pool *pgxpool.Pool
	file File
}

func newWorld(t *testing.T) *world {
	t.Helper()
	db := pgtest.New(t)
	pool, err := pg.Open(t.Context(), db.AgentDSN, db.Cell, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &world{DB: db, pool: pool, file: File{filepath.Join(t.TempDir(), "ids.json")}}
}

func (w *world) bank(witness Witness) *Bank {
	return Open(Options{Cell: "c1", Database: Postgres{w.pool}, Witness: witness})
}

func (w *world) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := w.Super.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// keep copies what the database has of IDs; back puts it there again, as a
// restored copy of the database would.
func (w *world) keep(t *testing.T) {
	t.Helper()
	w.exec(t, "CREATE TABLE cell.old_life AS TABLE cell.id_life; CREATE TABLE cell.old_bank AS TABLE cell.id_bank; CREATE TABLE cell.old_machines AS TABLE cell.id_machines")
}

func (w *world) back(t *testing.T) {
	t.Helper()
	w.exec(t, `SET session_replication_role = replica;
		DELETE FROM cell.id_life; DELETE FROM cell.id_bank; DELETE FROM cell.id_machines;
		INSERT INTO cell.id_life TABLE cell.old_life; INSERT INTO cell.id_bank TABLE cell.old_bank; INSERT INTO cell.id_machines TABLE cell.old_machines;
		RESET session_replication_role`)
}

func (w *world) deposit(t *testing.T, kind string, lo, hi int64) {
	t.Helper()
	if err := (Postgres{w.pool}).Deposit(t.Context(), kind, Range{lo, hi}); err != nil {
		t.Fatal(err)
	}
}

func withdraw(t *testing.T, b *Bank, kind string, size int64, want Withdrawal) {
	t.Helper()
	got, err := b.Withdraw(t.Context(), WithdrawRequest{Kind: kind, Size: size, Holder: "test"})
	if err != nil || got != want {
		t.Errorf("withdraw %d of %s = %+v, %v, want %+v", size, kind, got, err, want)
	}
}

func numbers(t *testing.T, b *Bank, holder string, size int64) id.FallbackGrant {
	t.Helper()
	g, err := b.Fallback(t.Context(), FallbackRequest{Holder: holder, Size: size})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestWithdrawals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.bank(w.file)
	if _, err := b.Withdraw(t.Context(), WithdrawRequest{Kind: "order", Size: 10}); !errors.Is(err, ErrEmpty) {
		t.Errorf("an empty bank: %v", err)
	}
	w.deposit(t, "order", 2000, 3000)
	w.deposit(t, "order", 100, 1100)
	w.deposit(t, "user", 100, 200) // another kind's numbers are other numbers
	withdraw(t, b, "order", 600, Withdrawal{100, 700})
	withdraw(t, b, "order", 600, Withdrawal{700, 1100})
	withdraw(t, b, "user", 600, Withdrawal{100, 200})
	withdraw(t, b, "order", 1, Withdrawal{2000, 2001})
	if err := (Postgres{w.pool}).Deposit(t.Context(), "order", Range{2500, 3500}); err == nil {
		t.Error("a range that overlaps was taken into the bank")
	}
	look, err := Postgres{w.pool}.Look(t.Context())
	if err != nil || look.Stock["order"] != 999 || look.Stock["user"] != 0 || look.Counter != 4 || look.Losses != 0 {
		t.Errorf("%+v, %v", look, err)
	}
	for _, bad := range []WithdrawRequest{{Kind: "order"}, {Kind: "", Size: 1}, {Kind: "order", Size: id.MaxLease + 1}} {
		if _, err := b.Withdraw(t.Context(), bad); err == nil || errors.Is(err, ErrEmpty) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// dying fails to attest: the agent ends between the commit and the file.
type dying struct{ Witness }

func (dying) Attest(context.Context, Mark) error { return errors.New("killed") }

func TestKilledBetweenCommitAndFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deposit(t, "order", 100, 1100)
	b := w.bank(w.file)
	withdraw(t, b, "order", 100, Withdrawal{100, 200})
	first := numbers(t, b, "a", 1000)
	d := w.bank(dying{w.file})
	if _, err := d.Withdraw(t.Context(), WithdrawRequest{Kind: "order", Size: 100}); err == nil {
		t.Error("answered without a file")
	}
	if _, err := d.Fallback(t.Context(), FallbackRequest{Holder: "a", Size: 1000}); err == nil {
		t.Error("answered without a file")
	}
	b = w.bank(w.file) // the next agent
	withdraw(t, b, "order", 100, Withdrawal{300, 400})
	if g := numbers(t, b, "b", 1000); g.Machine == first.Machine && g.Lo < first.Hi+1000 {
		t.Errorf("%+v after %+v and one that nobody got", g, first)
	}
	if look, err := (Postgres{w.pool}).Look(t.Context()); err != nil || look.Losses != 0 {
		t.Errorf("%+v, %v: nothing went back", look, err)
	}
}

// An older copy of the database is found before anything is handed out of it; the
// bank is emptied and the machines go on above all that was out.
func TestOlderCopyOfTheDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deposit(t, "order", 100, 1100)
	w.deposit(t, "user", 100, 1100)
	b := w.bank(w.file)
	withdraw(t, b, "order", 100, Withdrawal{100, 200})
	w.keep(t)
	withdraw(t, b, "order", 100, Withdrawal{200, 300})
	var top int64
	for range 20 {
		top = max(top, numbers(t, b, "a", 5000).Hi)
	}
	w.back(t)
	for _, kind := range []string{"order", "user"} {
		if _, err := b.Withdraw(t.Context(), WithdrawRequest{Kind: kind, Size: 100}); !errors.Is(err, ErrEmpty) {
			t.Errorf("%s out of an older copy: %v, want an empty bank", kind, err)
		}
	}
	if _, err := b.Fallback(t.Context(), FallbackRequest{Holder: "a", Size: 10}); err != nil && !errors.Is(err, ErrAhead) {
		t.Error(err)
	}
	look, err := Postgres{w.pool}.Look(t.Context())
	if err != nil || look.Losses != 1 || !strings.Contains(look.Why, "went back") || look.LostAt == nil || len(look.Machines) != 8 {
		t.Errorf("%+v, %v", look, err)
	}
	for _, m := range look.Machines {
		if m.Ceiling < top {
			t.Errorf("machine %d begins at %d, below %d", m.Number, m.Ceiling, top)
		}
	}
	w.deposit(t, "order", 5000, 6000)
	withdraw(t, b, "order", 100, Withdrawal{5000, 5100})
}

// Each way in which what is remembered and the database don't fit.
func TestDatabaseThatIsNotTheOne(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, w *world, m Mark){
		"another system":   func(t *testing.T, w *world, m Mark) { m.System += "1"; attest(t, w, m) },
		"another timeline": func(t *testing.T, w *world, m Mark) { m.Timeline = "0000000F"; attest(t, w, m) },
		"ahead of it":      func(t *testing.T, w *world, m Mark) { m.Counter++; attest(t, w, m) },
		"no file":          func(t *testing.T, w *world, _ Mark) { remove(t, w) },
		"half a file": func(t *testing.T, w *world, _ Mark) {
			if err := os.Truncate(w.file.Path, 20); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.deposit(t, "order", 100, 1100)
			b := w.bank(w.file)
			withdraw(t, b, "order", 100, Withdrawal{100, 200})
			m, have, err := w.file.Recall(t.Context())
			if err != nil || !have || m.Counter != 1 || m.System == "" || m.Timeline == "" {
				t.Fatalf("%+v, %v, %v", m, have, err)
			}
			change(t, w, m)
			if _, err := b.Withdraw(t.Context(), WithdrawRequest{Kind: "order", Size: 100}); !errors.Is(err, ErrEmpty) {
				t.Errorf("withdraw: %v, want an empty bank", err)
			}
			if now, _, err := w.file.Recall(t.Context()); err != nil || now.System != m.System || now.Counter < 2 {
				t.Errorf("then remembered: %+v, %v", now, err)
			}
		})
	}
}

func attest(t *testing.T, w *world, m Mark) {
	t.Helper()
	if err := w.file.Attest(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, w *world) {
	t.Helper()
	if err := os.Remove(w.file.Path); err != nil {
		t.Fatal(err)
	}
}

func TestCountersOnlyGoUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deposit(t, "order", 100, 1100)
	b := w.bank(w.file)
	withdraw(t, b, "order", 100, Withdrawal{100, 200})
	numbers(t, b, "a", 100)
	for _, sql := range []string{
		"UPDATE cell.id_life SET counter = counter - 1", "UPDATE cell.id_bank SET lo = lo - 1", "UPDATE cell.id_machines SET ceiling = ceiling - 1",
	} {
		if _, err := w.pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s was let through", sql)
		}
	}
	if _, err := w.App.Exec(t.Context(), "UPDATE cell.id_life SET counter = counter + 1"); err == nil {
		t.Error("the application's role may change the bank")
	}
}

// The bank fills towards a day's stock, while idgen has budget to spare.
func TestFill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	used, next := 0.1, id.SeqAt(time.Now())
	var asked []int64
	b := Open(Options{
		Cell: "c1", Database: Postgres{w.pool}, Witness: w.file,
		Lease: func(_ context.Context, kind string, floor, size int64) (int64, int64, error) {
			asked = append(asked, size)
			lo := max(next, floor)
			next = lo + size
			return lo, next, nil
		},
		Budgets: func(context.Context) (map[string]Budget, error) {
			return map[string]Budget{"order": {Used: used, YearsLeft: 88}}, nil
		},
	})
	report := func(process string, rate float64) {
		b.Heard(id.Report{Process: process, Kinds: []id.Stat{{Kind: "order", Rate: rate}}})
	}
	b.Fill(t.Context())
	if len(asked) != 0 {
		t.Errorf("asked for %v before any process was heard", asked)
	}
	report("c1/order/a", 10)
	report("c1/order/b", 10)
	for range 3 {
		b.Fill(t.Context())
	}
	if len(asked) != 2 || asked[0] != id.MaxLease || asked[0]+asked[1] != 20*24*3600 {
		t.Errorf("asked for %v, want a day at 20 a second", asked)
	}
	used = 0.5
	report("c1/order/a", 100)
	b.Fill(t.Context())
	if len(asked) != 2 {
		t.Error("filled with half of the budget used")
	}
	f := b.Figures(t.Context())
	if f.Bank == nil || len(f.Bank.Kinds) != 1 || f.Bank.Kinds[0].Stock != 20*24*3600 || *f.Bank.Kinds[0].Target != 110*24*3600 ||
		*f.Bank.Kinds[0].BudgetUsed != 0.5 || *f.Bank.Kinds[0].YearsLeft != 88 || len(f.Processes) != 2 || f.Processes[0].Process != "c1/order/a" {
		t.Errorf("figures %+v", f)
	}
	w.exec(t, "UPDATE cell.id_bank SET at = now() - interval '31 days' WHERE hi - lo = 1000000")
	if look, err := (Postgres{w.pool}).Look(t.Context()); err != nil || look.Stock["order"] != 20*24*3600-id.MaxLease {
		t.Errorf("%+v, %v: what is older than 30 days should be gone", look, err)
	}
}
