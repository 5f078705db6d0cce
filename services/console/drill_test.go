package console

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/services/agent/agentapi"
)

// program is a real program in place of cellctl.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cellctl")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDrill(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ script, state, detail string }{
		{`echo "$@"`, agentapi.JobDone, "drill --root=/checkout --short --cell=c2 unplug"},
		{`echo "FAILED: people were hurt"; exit 1`, agentapi.JobFailed, "people were hurt"},
		{`head -c 100000 /dev/zero | tr '\0' x; echo end`, agentapi.JobDone, "xxxend"},
		{`[ -f /dev/stdout ] && [ -f /dev/stderr ] && echo "files, no pipes"`, agentapi.JobDone, "files, no pipes"}, // they outlive the console
		{`printf 'a\0b\377c'`, agentapi.JobDone, "abc"},
		{`echo "others: $(env | grep -vcE '^(PATH|HOME|PWD|OLDPWD|SHLVL|_)=')"`, agentapi.JobDone, "others: 0"}, // no key of the console's
	} {
		d := newDriven(t)
		d.acts.drills.cellctl, d.acts.drills.root = program(t, tc.script), "/checkout"
		d.work(t)
		j := d.carry(t, d.preview(t, "/act/drill?drill=unplug&cell=c2"), "unplug-c2")
		if j.State != tc.state || !strings.Contains(j.Detail, tc.detail) || len(j.Detail) > drillSays+100 {
			t.Errorf("%s: %s %.300q", tc.script, j.State, j.Detail)
		}
	}
}

// A drill that another process left open isn't begun again.
func TestDrillIsntBegunAgain(t *testing.T) {
	t.Parallel()
	d := newDriven(t)
	ran := filepath.Join(t.TempDir(), "ran")
	d.acts.drills.cellctl = program(t, "touch "+ran)
	left := Job{ID: "left", Kind: drill, Args: Args{Drill: "unplug", Cell: "c1"}, Operator: firstName, Reason: "why"}
	if _, err := d.m.addJob(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	d.work(t)
	wait(t, "the job ends", func() bool {
		j, err := d.m.job(t.Context(), "left")
		return err == nil && j.State == agentapi.JobFailed && strings.Contains(j.Detail, "stopped during the drill")
	})
	if _, err := os.Stat(ran); err == nil {
		t.Error("it was run")
	}
}

func TestOneDrillAtATime(t *testing.T) {
	t.Parallel()
	var d drills
	d.mine("a")
	d.mine("b")
	if err := d.enter("a"); err != nil {
		t.Fatal(err)
	}
	if err := d.enter("b"); err == nil {
		t.Error("two at the same time")
	}
	d.leave()
	d.mine("c")
	if err := d.enter("c"); err != nil {
		t.Error(err)
	}
	d.leave()
	if err := d.enter("c"); err == nil {
		t.Error("the same one again")
	}
}

// forgetful is a database that fails to keep a job's end so many times.
type forgetful struct {
	*memory
	fails atomic.Int64
}

func (f *forgetful) endJob(ctx context.Context, j Job) error {
	if f.fails.Add(-1) >= 0 {
		return errs.ErrUnavailable
	}
	return f.memory.endJob(ctx, j)
}

// What came of a drill is kept later when it can't be at once; the drill isn't run for
// that again.
func TestDrillWhoseEndIsntKeptRunsOnce(t *testing.T) {
	t.Parallel()
	d := newDriven(t)
	ran := filepath.Join(t.TempDir(), "ran")
	d.acts.drills.cellctl = program(t, "echo ran >> "+ran+"; echo the report")
	db := &forgetful{memory: d.m}
	db.fails.Store(1)
	d.acts.records = db
	d.work(t)
	if j := d.carry(t, d.preview(t, "/act/drill?drill=unplug&cell=c2"), "unplug-c2"); j.State != agentapi.JobDone || j.Detail != "the report" {
		t.Errorf("%+v", j)
	}
	if b, err := os.ReadFile(ran); err != nil || string(b) != "ran\n" {
		t.Errorf("it ran: %q, %v", b, err)
	}
}

func TestDrillsThatArentOffered(t *testing.T) {
	t.Parallel()
	d := newDriven(t)
	for _, path := range []string{"/act/drill?drill=control-down-cold-start&cell=c1", "/act/drill?drill=unplug&cell=c9", "/act/drill?drill=--help&cell=c1"} {
		if got := d.do(t, http.MethodGet, path, nil); got.StatusCode != http.StatusUnprocessableEntity || strings.Contains(got.text, `action="/jobs"`) {
			t.Errorf("%s: %s", path, got.Status)
		}
	}
	d.acts.drills.cellctl = ""
	if got := d.do(t, http.MethodGet, "/act/drill?drill=unplug&cell=c1", nil); got.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(got.text, "bin/cellctl drill --short --cell=c1 unplug") {
		t.Errorf("without cellctl: %s\n%s", got.Status, got.text)
	}
}
