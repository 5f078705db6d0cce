package user

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/user/userapi"
)

// operator is a cell's agent, which keeps jobs, and its user service, which does
// them.
type operator struct {
	t      *testing.T
	agent  *pgxpool.Pool
	worker transfer.Worker
	n      int
}

func (w *world) operator(cell string) *operator {
	w.t.Helper()
	c := w.cells[cell]
	pool, err := pg.Open(w.t.Context(), c.db.AgentDSN, cell, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(pool.Close)
	return &operator{t: w.t, agent: pool, worker: transfer.Worker{Pool: c.db.App, Next: w.Next, Unpark: c.bus.Unpark, Log: slog.New(slog.DiscardHandler)}}
}

// has something done, and gives what came of it.
func (o *operator) has(what transfer.Task, n id.ID, slot routing.Slot) transfer.Job {
	o.t.Helper()
	o.n++
	job := transfer.Job{ID: fmt.Sprintf("job-%d", o.n), Transfer: n, Slot: slot, What: what, Reason: "a test"}
	j, err := transfer.AskJob(o.t.Context(), o.agent, job)
	if err != nil || j.State != transfer.JobOpen || j.EndedAt != nil {
		o.t.Fatalf("ask for %s: %+v, %v", what, j, err)
	}
	waitFor(o.t, func() bool { // what is locked for a moment is done the next time
		if err := o.worker.Do(o.t.Context()); err != nil {
			o.t.Logf("%s: %v", what, err)
		}
		j, err = transfer.GetJob(o.t.Context(), o.agent, job.ID)
		return err != nil || j.State != transfer.JobOpen
	})
	if err != nil || j.EndedAt == nil {
		o.t.Fatalf("%s: %+v, %v", what, j, err)
	}
	if _, err := transfer.AskJob(o.t.Context(), o.agent, job); err != nil {
		o.t.Errorf("the same job once more: %v", err)
	}
	job.Slot++
	if _, err := transfer.AskJob(o.t.Context(), o.agent, job); !errors.Is(err, transfer.ErrOtherJob) {
		o.t.Errorf("another job with the same ID: %v", err)
	}
	return j
}

func (o *operator) wants(j transfer.Job, state, detail string) {
	o.t.Helper()
	if j.State != state || !strings.Contains(j.Detail, detail) {
		o.t.Errorf("%s is %s, %q, want %s and %q", j.What, j.State, j.Detail, state, detail)
	}
}

// An operator asks for a transfer back, has it asked again, also when its note is
// lost, and no money moves by that.
func TestOperatorCancelsAndRetries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	w.live()
	ann, bob := w.newUser("c1", w.phoneAt("c1", 0)).ID, w.newUser("c2", w.phoneAt("c1", 1)).ID
	w.deposit(ann, 1000)
	waitFor(t, w.quiet)
	w.setCut("c2", true)
	sent := w.pay(ann, bob, 300)
	o, db := w.operator("c1"), w.cells["c1"].db
	due := func() (n int) {
		t.Helper()
		if err := db.Super.QueryRow(t.Context(), "SELECT count(*) FROM cell.relay WHERE due <= now()").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, lost := range []string{"UPDATE cell.relay SET due = now() + interval '1 h', attempts = 9", "DELETE FROM cell.relay"} {
		db.Plant(t, lost)
		if n := due(); n != 0 {
			t.Fatalf("%d notes are due", n)
		}
		o.wants(o.has(transfer.TaskRetry, sent.ID, ann.Slot()), transfer.JobDone, "1 open, asked again")
		if n := due(); n != 1 {
			t.Errorf("%s: %d notes are due after it, want 1", lost, n)
		}
	}
	o.wants(o.has(transfer.TaskCancel, sent.ID, ann.Slot()), transfer.JobDone, "CANCELLING: slot "+bob.Slot().String()+" is asked, and decides")
	if got := w.told(ann, sent.ID); got.State != "CANCELLING" || got.Reason != "OPERATOR" || w.available(ann) != 700 {
		t.Errorf("%+v, ann has %d: a wish moved money", got, w.available(ann))
	}
	o.wants(o.has(transfer.TaskRetry, sent.ID, ann.Slot()), transfer.JobDone, "2 open, asked again")
	w.setCut("c2", false)
	waitFor(t, func() bool { s := w.told(ann, sent.ID).State; return s == "SETTLED" || s == "REVERSED" })
	waitFor(t, w.quiet)
	o.wants(o.has(transfer.TaskCancel, sent.ID, ann.Slot()), transfer.JobFailed, transfer.ErrEnded.Message)
	o.wants(o.has(transfer.TaskRetry, sent.ID, ann.Slot()), transfer.JobFailed, "nothing is open")
	o.wants(o.has(transfer.TaskCancel, sent.ID+1<<20, ann.Slot()), transfer.JobFailed, "no such thing")
	o.wants(o.has(transfer.TaskCancel, sent.ID, bob.Slot()), transfer.JobFailed, "isn't this cell's")
}

// A reversal is begun once, whatever comes between, from the payee's balance and
// then from what they owe.
func TestOperatorReverses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	w.live()
	ann, bob := w.newUser("c1", w.phoneAt("c1", 0)).ID, w.newUser("c2", w.phoneAt("c1", 1)).ID
	w.deposit(ann, 1000)
	sent := w.pay(ann, bob, 300)
	w.ended(ann, sent.ID, "SETTLED")
	if a := w.sure(bob, "POST", "/api/v1/wallet/withdrawals", `{"amount":200}`, "spent"); a.status != 201 {
		t.Fatalf("withdrawal = %d %s", a.status, a.body)
	}
	o := w.operator("c2")
	o.wants(o.has(transfer.TaskReverse, sent.ID, bob.Slot()), transfer.JobDone, "gives back 300 CNY, 200 of them owed")
	w.cells["c2"].db.Plant(t, "UPDATE cell.transfer_jobs SET state = 'OPEN', ended_at = NULL WHERE id = 'job-1'") // as at a promoted standby, asked again
	if err := o.worker.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	j, err := transfer.GetJob(t.Context(), o.agent, "job-1")
	if err != nil {
		t.Fatal(err)
	}
	o.wants(j, transfer.JobDone, "it was begun before, as transfer ")
	o.wants(o.has(transfer.TaskReverse, sent.ID, bob.Slot()), transfer.JobFailed, transfer.ErrRefundLimit.Message)
	o.wants(o.has(transfer.TaskReverse, sent.ID+1<<20, bob.Slot()), transfer.JobFailed, "no such thing")
	waitFor(t, func() bool { return w.available(ann) == 1000 })
	waitFor(t, w.quiet)
	var list userapi.Transfers
	w.sure(ann, "GET", "/api/v1/transfers", "", "").decode(t, &list)
	if len(list.Items) != 2 || list.Items[0].Kind != "refund" || list.Items[0].Memo != "reversed by the operator" {
		t.Errorf("ann's transfers: %+v, want no operator's reason in a memo", list.Items)
	}
	if got := w.told(ann, sent.ID); got.Refunded != 300 || w.available(bob) != 0 {
		t.Errorf("%+v, bob has %d", got, w.available(bob))
	}
}

// What is parked is listed, and handled again once its reason is mended: a question
// at the destination, and an answer at the source.
func TestOperatorRetriesWhatIsParked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "c1", "c2")
	stop := w.live()
	ann, bob := w.newUser("c1", w.phoneAt("c1", 0)).ID, w.newUser("c2", w.phoneAt("c1", 1)).ID
	w.deposit(ann, 1000)
	o, c1 := w.operator("c1"), w.cells["c1"]
	parked := func() (list []transfer.Parked) {
		t.Helper()
		list, err := transfer.ListParked(t.Context(), o.agent, "", 10)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	sent := w.pay(ann, bob, 300)
	w.ended(ann, sent.ID, "SETTLED")
	c1.db.Plant(t, "UPDATE cell.transfers SET refunded = amount") // damaged: no refund fits
	var back userapi.Transfer
	w.sure(bob, "POST", "/api/v1/transfers/"+sent.ID.String()+"/refunds", `{}`, "k").decode(t, &back)
	waitFor(t, func() bool { return len(parked()) == 1 })
	if p := parked()[0]; p.Kind != transfer.KindCredit || p.Transfer != back.ID.String() || p.Slot != ann.Slot() || p.From != bob.Slot() || !strings.Contains(p.Reason, "which didn't send that") {
		t.Errorf("parked: %+v", p)
	}
	o.wants(o.has(transfer.TaskRetry, back.ID, ann.Slot()), transfer.JobFailed, "stays parked")
	c1.db.Plant(t, "UPDATE cell.transfers SET refunded = 0; ALTER TABLE cell.credits ADD CONSTRAINT none CHECK (refund_of = 0) NOT VALID") // an error that nobody expects
	o.wants(o.has(transfer.TaskRetry, back.ID, ann.Slot()), transfer.JobFailed, "stays parked")
	c1.db.Plant(t, "ALTER TABLE cell.credits DROP CONSTRAINT none")
	o.wants(o.has(transfer.TaskRetry, back.ID, ann.Slot()), transfer.JobDone, "transfer.credit was parked, and is handled now")
	w.ended(bob, back.ID, "SETTLED")
	waitFor(t, w.quiet)
	c1.db.Plant(t, fmt.Sprintf("UPDATE cell.transfer_jobs SET state = 'OPEN', ended_at = NULL WHERE id = 'job-%d'", o.n)) // as if killed before its end
	if err := o.worker.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	j, err := transfer.GetJob(t.Context(), o.agent, fmt.Sprintf("job-%d", o.n))
	if err != nil {
		t.Fatal(err)
	}
	o.wants(j, transfer.JobDone, "transfer.credit was parked, and is handled now")
	if len(parked()) != 0 || w.available(ann) != 1000 {
		t.Errorf("parked %+v, ann has %d", parked(), w.available(ann))
	}

	waitFor(t, w.quiet)
	stop() // from here each message is delivered by hand
	sent = w.pay(ann, bob, 50)
	for i, what := range []string{"the question", "its answer"} {
		if i == 1 {
			c1.db.Plant(t, fmt.Sprintf("UPDATE cell.transfers SET state = 'REVERSED', ended_at = now() WHERE id = %d", sent.ID)) // damaged: an end that it hasn't
		}
		for _, r := range w.due() {
			waitFor(t, func() bool {
				res, _ := w.deliver(r)
				if res.Outcome == bus.Again {
					t.Logf("%s: %v", what, res.Err)
				}
				return res.Outcome != bus.Again
			})
		}
	}
	if n := len(parked()); n != 1 {
		t.Errorf("%d are parked, want the answer", n)
	}
	c1.db.Plant(t, fmt.Sprintf("UPDATE cell.transfers SET state = 'FROZEN', ended_at = NULL WHERE id = %d", sent.ID))
	stuck, err := transfer.ListStuck(t.Context(), o.agent, 0, 10)
	if err != nil || len(stuck) != 1 || !strings.Contains(string(stuck[0].Answer), "CREDITED") || !strings.Contains(stuck[0].Parked, "CREDITED") {
		t.Errorf("stuck: %+v, %v", stuck, err)
	}
	o.wants(o.has(transfer.TaskRetry, sent.ID, ann.Slot()), transfer.JobDone, "transfer.answer was parked, and is handled now")
	if got := w.told(ann, sent.ID); got.State != "SETTLED" || len(parked()) != 0 {
		t.Errorf("%+v, parked %+v", got, parked())
	}
}
