package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/reconcile"
	"example.com/cellmart/platform/routing"
)

// Whatever a transfer's state, nothing differs: what is in flight is left out, and
// the hours are those of the beginning.
func TestNothingDiffersWhileMoneyMoves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(alice, bob, 10)
	w.send(alice, bob, 20)
	w.send(alice, nobody, 30)
	w.cancelled(alice, bob, 40)
	w.ago(5)
	w.send(alice, bob, 50)
	w.send(alice, anna, 60)
	w.send(bob, alice, 70)
	w.start(alice, bob, 80)
	_, m := w.start(alice, bob, 90)
	answer := w.take(m) // CREDITED, and the payer doesn't know yet
	for _, tc := range []struct {
		from      int
		to        string
		transfers int64
		hours     int
		open      int
	}{{0, "c2", 5, 2, 2}, {0, "c1", 1, 1, 0}, {1, "c1", 1, 1, 0}, {1, "c2", 0, 0, 0}} {
		p := w.compare(tc.from, tc.to)
		if p.Transfers != tc.transfers || p.Hours != tc.hours || p.Open != tc.open || len(p.Differences)+len(p.Differing)+len(p.NotCompared)+p.NotLooked != 0 {
			t.Errorf("%+v, want %d transfers of %d hours equal, and %d open", p, tc.transfers, tc.hours, tc.open)
		}
	}
	w.end(answer)
	if n := w.looks.Load(); n != 0 {
		t.Errorf("the digests are equal, and %d questions went to single transfers", n)
	}
	if p := w.compare(0, "c2"); p.Transfers != 6 || p.Open != 1 || len(p.Differences)+len(p.Differing) != 0 {
		t.Errorf("an end later: %+v", p)
	}
	r, err := reconcile.Run(t.Context(), w.agents(), reconcile.Ask{})
	if err != nil || !r.Equal() || r.Transfers != 8 || r.Open != 1 || len(r.Summary) != 4 {
		t.Errorf("all of it: %v, %+v", err, r)
	}
}

// Compared again and again while transfers begin and end, none is ever taken for a
// difference, even when what has just begun isn't left out.
func TestComparedWhileMoneyMoves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(alice, bob, 1)
	done, looks := make(chan struct{}), make(chan int, 1)
	go func() {
		n := 0
		defer func() { looks <- n }()
		for ; ; n++ {
			r, err := reconcile.Run(t.Context(), w.agents(), reconcile.Ask{})
			if err != nil || len(r.Differences)+r.NotLooked+len(r.NotCompared) > 0 || r.Transfers == 0 {
				t.Errorf("%v, %+v", err, r)
			}
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	for n := range int64(30) {
		switch n % 3 {
		case 0:
			w.send(alice, bob, n+1)
		case 1:
			w.send(alice, nobody, n+1)
		case 2:
			w.cancelled(bob, anna, n+1)
		}
	}
	close(done)
	t.Logf("%d comparisons meanwhile", 1+<-looks)
	if r, err := reconcile.Run(t.Context(), w.agents(), reconcile.Ask{}); err != nil || !r.Equal() || r.Transfers != 31 || r.Open != 0 {
		t.Errorf("at rest: %v, %+v", err, r)
	}
}

// Each violation is named, and gone when it's undone.
func TestPlantedViolationsAreNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	paid, refused := w.send(alice, bob, 10), w.send(alice, nobody, 20)
	for range 5 {
		w.send(alice, bob, 1) // the others of that hour
	}
	w.ago(2)
	lone := id.Make(77, alice.Slot(), false)
	wait, _ := w.start(alice, bob, 7)
	const gone = "CREATE TABLE kept AS SELECT * FROM cell.credits; DELETE FROM cell.credits WHERE transfer_id = "
	const back = "DELETE FROM cell.credits; INSERT INTO cell.credits SELECT * FROM kept; DROP TABLE kept"
	for _, tc := range []struct {
		name      string
		cell      int
		do, undo  string
		kind      reconcile.Kind
		who       id.ID
		text      string
		differing bool
	}{
		{
			"one-sided credit", 1, fmt.Sprintf(`INSERT INTO cell.credits (slot, epoch, rev, transfer_id, kind, user_id, from_user, from_slot, amount, currency, state, begun_at)
				VALUES (%d, 1, 1, %d, 'transfer', %d, %d, %d, 500, 'CNY', 'CREDITED', now() - interval '3 h')`, bob.Slot(), lone, bob, alice, alice.Slot()),
			fmt.Sprintf("DELETE FROM cell.credits WHERE transfer_id = %d", lone), reconcile.NoSource, lone, "credit of transfer %s (CREDITED) has no source", true,
		},
		{"missing credit", 1, gone + "$1", back, reconcile.NoCredit, paid, "transfer %s is SETTLED, its destination has no credit", true},
		{"missing settle", 0, "UPDATE cell.transfers SET state = 'FROZEN', ended_at = NULL WHERE id = $1", "UPDATE cell.transfers SET state = 'SETTLED', ended_at = now() WHERE id = $1", reconcile.Forgotten, paid,
			"transfer %s is CREDITED, its source is FROZEN and asks no more", false},
		{"open, and nobody asks", 0, "UPDATE cell.outbox SET closed_at = now() WHERE key = '$2'", "UPDATE cell.outbox SET closed_at = NULL WHERE key = '$2'", reconcile.Forgotten, wait,
			"transfer %s is FROZEN and asks no more", false},
		{"amount changed", 1, "UPDATE cell.credits SET amount = 11 WHERE transfer_id = $1", "UPDATE cell.credits SET amount = 10 WHERE transfer_id = $1", reconcile.Fields, paid,
			"transfer %s: source says 10 CNY to " + bob.String() + ", destination 11 CNY to " + bob.String(), true},
		{"currency changed", 0, "UPDATE cell.transfers SET currency = 'USD' WHERE id = $1", "UPDATE cell.transfers SET currency = 'CNY' WHERE id = $1", reconcile.Fields, paid,
			"transfer %s: source says 10 USD to " + bob.String() + ", destination 10 CNY to " + bob.String(), true},
		{"payer changed", 1, "UPDATE cell.credits SET from_user = 5 WHERE transfer_id = $1", fmt.Sprintf("UPDATE cell.credits SET from_user = %d WHERE transfer_id = $1", alice), reconcile.Fields, paid,
			"transfer %s: source says 10 CNY to " + bob.String() + " from " + alice.String() + ", destination 10 CNY to " + bob.String() + " from 5", true},
		{"both CREDITED and REVERSED", 0, "UPDATE cell.transfers SET state = 'REVERSED' WHERE id = $1", "UPDATE cell.transfers SET state = 'SETTLED' WHERE id = $1", reconcile.Twice, paid,
			"transfer %s is both CREDITED and REVERSED", true},
		{"both CREDITED and REJECTED", 0, "UPDATE cell.transfers SET state = 'REJECTED' WHERE id = $1", "UPDATE cell.transfers SET state = 'SETTLED' WHERE id = $1", reconcile.Twice, paid,
			"transfer %s is both CREDITED and REJECTED", true},
		{"SETTLED and REFUSED", 1, "UPDATE cell.credits SET state = 'REFUSED' WHERE transfer_id = $1", "UPDATE cell.credits SET state = 'CREDITED' WHERE transfer_id = $1", reconcile.NotGiven, paid,
			"transfer %s is SETTLED, its destination says REFUSED", true},
		{"REVERSED without a refusal", 1, gone + "$3", back, reconcile.NoRefusal, refused, "transfer %s is REVERSED, its destination has no refusal", true},
		{"begun before hours were carried", 1, "UPDATE cell.credits SET begun_at = NULL WHERE transfer_id = $1",
			"UPDATE cell.credits SET begun_at = (SELECT begun_at FROM cell.credits WHERE transfer_id = $3) WHERE transfer_id = $1", "", paid, "", false},
	} {
		put := strings.NewReplacer("$1", paid.String(), "$2", wait.String(), "$3", refused.String())
		w.dbs[tc.cell].Plant(t, put.Replace(tc.do))
		r, err := reconcile.Run(t.Context(), w.agents(), reconcile.Ask{})
		w.dbs[tc.cell].Plant(t, put.Replace(tc.undo))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range r.Differences {
			got = append(got, fmt.Sprint(d.Kind, " ", d.From, d.To, " ", d.Text))
		}
		var want []string
		if tc.kind != "" {
			want = []string{fmt.Sprint(tc.kind, " c1c2 ", fmt.Sprintf(tc.text, tc.who))}
		}
		if d := cmp.Diff(want, got); d != "" || r.Equal() != (tc.kind == "") {
			t.Errorf("%s: equal %v, not compared %v (-want +got)\n%s", tc.name, r.Equal(), r.NotCompared, d)
		}
		if (len(r.Differing) > 0) != tc.differing {
			t.Errorf("%s: differing hours %+v", tc.name, r.Differing)
		}
	}
	if r, err := reconcile.Run(t.Context(), w.agents(), reconcile.Ask{}); err != nil || !r.Equal() {
		t.Errorf("all undone: %v, %+v", err, r)
	}
}

// What ends right after the payee's side was read was no difference before, and is
// none: the payer's end counts only if it was there first.
func TestEndedInBetween(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, m := w.start(alice, bob, 10)
	w.dbs[0].Plant(t, "UPDATE cell.outbox SET closed_at = now()") // so that it's looked at
	ended := false
	r := reconcile.New(reconcile.Options{Cell: "c1", Pool: w.dbs[0].App, Settled: time.Microsecond, Peers: map[string]reconcile.Caller{
		"c2": direct{r: func() *reconcile.Reconciler { return w.both[1] }, then: func(op string) {
			if op == "look" && !ended {
				ended = true
				w.end(w.take(m))
			}
		}},
	}})
	p, err := r.Compare(t.Context(), "c2", time.Now().Add(-2*time.Hour), time.Now().Add(time.Hour))
	if err != nil || !ended || len(p.Differences) != 0 {
		t.Errorf("transfer %s: ended %v, %v, %+v", n, ended, err, p)
	}
}

// More than can be looked at is counted, and not taken for equal.
func TestVeryManyDifferences(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(alice, bob, 10)
	w.dbs[1].Plant(t, fmt.Sprintf(`INSERT INTO cell.credits (slot, epoch, rev, transfer_id, kind, user_id, from_user, from_slot, amount, currency, state, begun_at)
		SELECT %d, 1, 1, (500000 + n)::bigint * 16384 + %[4]d, 'transfer', %[2]d, %[3]d, %[4]d, 1, 'CNY', 'CREDITED', now() - interval '90 minutes' FROM generate_series(1, 3000) n`, bob.Slot(), bob, alice, alice.Slot()))
	p := w.compare(0, "c2")
	if len(p.Differences) != 2000 || p.NotLooked != 1000 || len(p.Differing) != 1 || p.Differing[0].Payee.N != 3000 || p.Differing[0].Payee.Sum != "3000" || p.Differing[0].Payer.N != 0 {
		t.Errorf("%d differences, %d not looked at, hours %+v", len(p.Differences), p.NotLooked, p.Differing)
	}
}

// A slot that is elsewhere, and a cell that can't be asked, are named; what the
// rows of such slots say is no difference.
func TestWhatIsNotComparedIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(alice, bob, 10)
	w.dbs[1].Disown(t, bob.Slot(), bob.Slot(), "c3")
	w.dbs[1].Plant(t, "DELETE FROM cell.credits")
	p := w.compare(0, "c2")
	if d := cmp.Diff([]string{fmt.Sprintf("slots {[%d,%d)}: c2 doesn't own them yet", bob.Slot(), bob.Slot()+1)}, p.NotCompared); d != "" || len(p.Differences) != 0 {
		t.Errorf("%+v\n%s", p, d)
	}
	agents := w.agents()
	away := true
	agents["c2"] = direct{r: agents["c2"].r, away: &away}
	r, err := reconcile.Run(t.Context(), agents, reconcile.Ask{Since: time.Hour})
	if err != nil || r.Equal() || len(r.NotCompared) == 0 || r.NotCompared[0].From != "c2" || r.NotCompared[0].Reason != errAway.Error() {
		t.Errorf("%v, %+v", err, r)
	}
	if _, err := w.both[0].Compare(t.Context(), "c9", time.Now(), time.Now()); err == nil {
		t.Error("a comparison with a cell that nobody knows")
	}
	if _, err := reconcile.Run(t.Context(), agents, reconcile.Ask{Cells: []string{"c9"}}); err == nil {
		t.Error("a question for a cell that isn't there")
	}
}

// Around a promotion the old owner may still take a slot for its own, and not know
// what the new one has done: its word is no difference, until both know the same.
func TestTheirWordAtAnotherEpochIsNoDifference(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.send(alice, bob, 10)
	w.dbs[1].Plant(t, "DELETE FROM cell.credits")
	for _, tc := range []struct {
		db        int
		slot      routing.Slot
		differs   int
		unlearned bool
	}{{0, bob.Slot(), 0, true}, {1, bob.Slot(), 1, false}, {1, alice.Slot(), 0, true}, {0, alice.Slot(), 1, false}} {
		w.dbs[tc.db].Plant(t, fmt.Sprintf("UPDATE cell.slots SET epoch = epoch + 1 WHERE slot = %d", tc.slot))
		p := w.compare(0, "c2")
		if len(p.Differences) != tc.differs || tc.differs == 1 && p.Differences[0].Kind != reconcile.NoCredit || len(p.NotCompared) > 0 != tc.unlearned {
			t.Errorf("c%d knows another epoch of slot %d: %+v", tc.db+1, tc.slot, p)
		}
		if tc.unlearned && !strings.Contains(strings.Join(p.NotCompared, ""), n.String()) {
			t.Errorf("not compared: %v", p.NotCompared)
		}
	}
}

// A slot that was given away is the other cell's, at the next epoch, also while no
// table says so.
func TestGivenSlotIsTheirs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.send(alice, bob, 10)
	w.dbs[0].Plant(t, fmt.Sprintf("UPDATE cell.slots SET owner = 'c1', role = 'owner', state = 'given', given_to = 'c2' WHERE slot = %d", bob.Slot()))
	w.dbs[1].Plant(t, fmt.Sprintf("UPDATE cell.slots SET epoch = 2 WHERE slot = %d", bob.Slot()))
	w.dbs[1].Plant(t, "DELETE FROM cell.credits")
	if p := w.compare(0, "c1"); len(p.NotCompared) != 0 {
		t.Errorf("c1 with itself: %v", p.NotCompared)
	}
	if p := w.compare(0, "c2"); len(p.NotCompared) != 0 || len(p.Differences) != 1 || p.Differences[0].ID != n {
		t.Errorf("c1 with c2: %+v", p)
	}
}

// What takes too long is asked for in halves, by an operator and by the running look;
// only what is too much even so isn't compared.
func TestTooMuchIsHalved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(alice, bob, 10)
	w.ago(24 * 40)
	w.send(alice, bob, 20)
	w.ago(24 * 10)
	recent := w.send(alice, bob, 30)
	errSlow := errors.New("canceled for taking too long")
	most, never := 30*time.Hour, time.Time{}
	slow := func(op, question string) error {
		var q struct {
			Since, Until time.Time
			Scope        *struct{ Since, Until time.Time }
		}
		if err := json.Unmarshal([]byte(question), &q); err != nil {
			return err
		}
		if q.Scope != nil {
			q.Since, q.Until = q.Scope.Since, q.Scope.Until
		}
		old, limit := time.Since(q.Until) > 10*time.Minute, most
		if op == "digest" && !old {
			limit = 2*time.Hour + 2*time.Minute
		}
		if (op == "compare" || op == "digest") && (q.Until.Sub(q.Since) > limit || !q.Since.After(never) && q.Until.After(never)) {
			return errSlow
		}
		return nil
	}
	agents := w.agents()
	agents["c1"] = direct{r: agents["c1"].r, fail: slow}
	r, err := reconcile.Run(t.Context(), agents, reconcile.Ask{})
	if err != nil || !r.Equal() || r.Transfers != 3 {
		t.Errorf("by the operator: %v, %+v", err, r)
	}
	never = time.Now().Add(-24 * 20 * time.Hour)
	r, err = reconcile.Run(t.Context(), agents, reconcile.Ask{Cells: []string{"c1"}, Since: 24 * 60 * time.Hour})
	if err != nil || r.Equal() || r.Transfers != 3 || len(r.NotCompared) != 2 || !strings.Contains(r.NotCompared[0].Reason, errSlow.Error()) {
		t.Errorf("an hour fails, with each cell: %v, %+v", err, r)
	}
	most, never = 5*24*time.Hour, time.Time{}
	running := reconcile.New(reconcile.Options{
		Cell: "c1", Pool: w.dbs[0].App, Patience: 1, Settled: time.Microsecond, Slow: time.Nanosecond, Window: 12 * 24 * time.Hour,
		Peers: map[string]reconcile.Caller{"c2": direct{r: func() *reconcile.Reconciler { return w.both[1] }, fail: slow}},
	})
	var f reconcile.Figure
	eventually(t, "all hours are compared", func() bool {
		if _, err := running.Step(t.Context(), "c2"); err != nil {
			t.Fatal(err)
		}
		f = running.Figures()[1]
		return f.WholeMS != nil && f.RecentMS != nil
	})
	if f.Transfers != 3 || len(f.Differences) != 0 {
		t.Errorf("%+v, want transfer %s and two old ones", f, recent)
	}
}

// An hour in which several parts together have more rows than an answer takes is
// looked into all the same.
func TestBusyHour(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := fmt.Sprintf(`(SELECT id FROM (SELECT (500000 + n)::bigint * 16384 + %d AS id FROM generate_series(1, 700000) n) x WHERE (hashint8extended(id, 0) & 255) < 8)`, alice.Slot())
	w.dbs[0].Plant(t, fmt.Sprintf(`INSERT INTO cell.transfers (slot, epoch, rev, id, kind, from_user, to_user, to_slot, amount, currency, state, deadline, created_at, ended_at)
		SELECT %d, 1, 1, id, 'transfer', %d, %d, %d, 1, 'CNY', 'SETTLED', now(), date_trunc('hour', now()) - interval '90 min', now() FROM %s i`, alice.Slot(), alice, bob, bob.Slot(), ids))
	w.dbs[1].Plant(t, fmt.Sprintf(`INSERT INTO cell.credits (slot, epoch, rev, transfer_id, kind, user_id, from_user, from_slot, amount, currency, state, begun_at)
		SELECT %d, 1, 1, id, 'transfer', %d, %d, %d, 1, 'CNY', 'CREDITED', date_trunc('hour', now()) - interval '90 min' FROM %s i;
		UPDATE cell.credits SET amount = 2 WHERE transfer_id IN (SELECT min(transfer_id) FROM cell.credits GROUP BY hashint8extended(transfer_id, 0) & 255)`, bob.Slot(), bob, alice, alice.Slot(), ids))
	p := w.compare(0, "c2")
	if len(p.Differences) != 8 || p.NotLooked != 0 || p.Transfers <= 20_000 {
		t.Errorf("%d differences of %d transfers, %d parts not looked into, want 8 and 0", len(p.Differences), p.Transfers, p.NotLooked)
	}
}

// A difference shows up by itself, in the recent hours and in the old ones, and
// goes when it's mended; each figure has an age.
func TestRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(alice, bob, 10)
	w.ago(24 * 20)
	old := w.send(alice, bob, 20)
	w.ago(24 * 10)
	recent := w.send(alice, bob, 30)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.both[0].Run(ctx) }()
	defer func() { cancel(); <-done }()
	figure := func() reconcile.Figure {
		for _, f := range w.both[0].Figures() {
			if f.To == "c2" {
				return f
			}
		}
		return reconcile.Figure{}
	}
	has := func(ids ...id.ID) func() bool {
		return func() bool {
			var got []id.ID
			for _, d := range figure().Differences {
				got = append(got, d.ID)
			}
			return cmp.Equal(ids, got)
		}
	}
	eventually(t, "all three are compared", func() bool {
		f := figure()
		return f.RecentMS != nil && f.WholeMS != nil && f.Transfers == 3 && len(f.Differences) == 0 && f.Error == ""
	})
	change := "UPDATE cell.credits SET amount = amount %s 1 WHERE transfer_id = %s"
	w.dbs[1].Plant(t, fmt.Sprintf(change, "+", recent))
	eventually(t, "the recent one is named", has(recent))
	w.dbs[1].Plant(t, fmt.Sprintf(change, "+", old))
	eventually(t, "the old one too", has(old, recent))
	w.dbs[1].Plant(t, fmt.Sprintf(change, "-", recent))
	eventually(t, "the recent one is mended", has(old))
	cancel()
	<-done
	w.dbs[1].Plant(t, fmt.Sprintf(change, "-", old))
	if !has(old)() {
		t.Errorf("it stands still: %+v", figure())
	}
	if failed := w.both[0].Again(t.Context()); len(failed) != 0 || !has()() {
		t.Errorf("looked at again: %v, %+v", failed, figure())
	}
	eventually(t, "what is known gets old", func() bool { return *figure().RecentMS > 20 })
}

// What the running comparison knows isn't lost when the other cell can't be asked.
func TestRunningWithTheOtherCellAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.send(alice, bob, 10)
	away := false
	r := reconcile.New(reconcile.Options{
		Cell: "c1", Pool: w.dbs[0].App, Each: time.Millisecond, Patience: 1, Settled: time.Microsecond,
		Peers: map[string]reconcile.Caller{"c2": direct{r: func() *reconcile.Reconciler { return w.both[1] }, away: &away}},
	})
	w.dbs[1].Plant(t, "UPDATE cell.credits SET amount = 11")
	step := func(until func(reconcile.Figure) bool) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = r.Run(ctx) }()
		eventually(t, "a look", func() bool {
			all := r.Figures()
			return len(all) == 2 && until(all[1])
		})
		cancel()
		<-done
	}
	named := func(f reconcile.Figure) bool { return len(f.Differences) == 1 && f.Differences[0].ID == n }
	step(func(f reconcile.Figure) bool { return named(f) && f.RecentMS != nil && f.Error == "" })
	away = true
	step(func(f reconcile.Figure) bool { return named(f) && f.Error == errAway.Error() })
	if failed := r.Again(t.Context()); !errors.Is(failed["c2"], errAway) || !named(r.Figures()[1]) {
		t.Errorf("%v, %+v", failed, r.Figures())
	}
}

// With too many open transfers nothing is compared: that is no comparison, and what
// was known stays an alarm.
func TestVeryManyOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.send(alice, bob, 10)
	w.dbs[1].Plant(t, "UPDATE cell.credits SET amount = 11")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.both[0].Run(ctx) }()
	defer func() { cancel(); <-done }()
	figure := func() (f reconcile.Figure) {
		for _, f = range w.both[0].Figures() {
			if f.To == "c2" {
				return f
			}
		}
		return f
	}
	named := func() bool { f := figure(); return len(f.Differences) == 1 && f.Differences[0].ID == n }
	eventually(t, "the difference is named", named)
	w.dbs[0].Plant(t, fmt.Sprintf(`INSERT INTO cell.transfers (slot, epoch, rev, id, kind, from_user, to_user, to_slot, amount, currency, state, deadline)
		SELECT %d, 1, 1, (500000 + n)::bigint * 16384 + %[1]d, 'transfer', %[2]d, %[3]d, %[4]d, 1, 'CNY', 'FROZEN', now() FROM generate_series(1, 20001) n`, alice.Slot(), alice, bob, bob.Slot()))
	const many = "more than 20000 transfers are open"
	eventually(t, "it says that it can't compare", func() bool { return figure().Error == many })
	eventually(t, "and its last look gets old", func() bool { return *figure().RecentMS > 100 })
	if !named() || figure().Error != many {
		t.Errorf("%+v", figure())
	}
	r, err := reconcile.Run(t.Context(), w.agents(), reconcile.Ask{Cells: []string{"c1"}})
	if err != nil || r.Equal() || len(r.NotCompared) != 1 || !strings.Contains(r.NotCompared[0].Reason, many) {
		t.Errorf("%v, %+v", err, r.NotCompared)
	}
}

// What was begun in vain has its pause too; only a cell that can't be asked costs
// nothing. To find the oldest transfer takes a look at all: after an error not at once
// again.
func TestFailedLooksHaveTheirPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(alice, bob, 10)
	var fails string
	oldest := 0
	r := reconcile.New(reconcile.Options{
		Cell: "c1", Pool: w.dbs[0].App, Patience: 1_000_000, Settled: time.Microsecond,
		Peers: map[string]reconcile.Caller{"c2": direct{r: func() *reconcile.Reconciler { return w.both[1] }, fail: func(op, q string) error {
			if strings.Contains(q, `"oldest":true`) {
				oldest++
				op = "oldest"
			}
			if op == fails {
				return errAway
			}
			return nil
		}}},
	})
	for _, tc := range []struct {
		op    string
		costs bool
	}{{"span", false}, {"digest", true}, {"oldest", true}, {"oldest", true}, {"oldest", true}} {
		fails = tc.op
		worked, err := r.Step(t.Context(), "c2")
		if err != nil || worked > 0 != tc.costs {
			t.Errorf("%s fails: a pause for %v, %v", tc.op, worked, err)
		}
		if f := r.Figures()[1]; !strings.Contains(f.Error, errAway.Error()) {
			t.Errorf("%s fails: %+v", tc.op, f)
		}
	}
	if oldest != 1 {
		t.Errorf("the oldest transfer was looked for %d times, want once", oldest)
	}
}

func TestBadQuestions(t *testing.T) {
	t.Parallel()
	r := reconcile.New(reconcile.Options{Cell: "c1"})
	for _, q := range [][2]string{{"nothing", "{}"}, {"digest", "{}"}, {"rows", "{}"}, {"compare", "{}"}, {"span", "x"}, {"look", `{"refs":[` + strings.Repeat(`{},`, 500) + `{}]}`}} {
		if out, err := r.Answer(t.Context(), q[0], []byte(q[1])); err == nil {
			t.Errorf("%s %.20s: %v", q[0], q[1], out)
		}
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-limit:
			t.Fatalf("not within a minute: %s", what)
		case <-tick.C:
		}
	}
}
