package console

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/agent/agentapi"
)

// cell is an agent that keeps faults and jobs, as far as operators drive it.
type cell struct {
	*httptest.Server
	mu     sync.Mutex
	faults map[string]agentapi.Fault
	side   *agentapi.Transfer
	jobs   map[string]agentapi.TransferJob
	asked  int  // for a job's state
	puts   int  // faults that were set
	deaf   bool // takes a fault and doesn't keep it
	mute   bool // doesn't say what is parked
}

func newCell(t *testing.T, name string) *cell {
	t.Helper()
	c := &cell{faults: map[string]agentapi.Fault{}, jobs: map[string]agentapi.TransferJob{}}
	mux := http.NewServeMux()
	say := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	mux.HandleFunc("PUT /admin/faults/{peer}", func(w http.ResponseWriter, r *http.Request) {
		var f agentapi.Fault
		if err := json.NewDecoder(r.Body).Decode(&f); err != nil {
			t.Error(err)
		}
		c.puts++
		if !c.deaf {
			delete(c.faults, r.PathValue("peer"))
			if f != (agentapi.Fault{}) {
				c.faults[r.PathValue("peer")] = f
			}
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /admin/status", func(w http.ResponseWriter, _ *http.Request) {
		say(w, agentapi.Status{Cell: name, Faults: c.faults})
	})
	mux.HandleFunc("GET /admin/transfers/parked", func(w http.ResponseWriter, _ *http.Request) {
		if c.mute {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		say(w, map[string]any{"items": []agentapi.ParkedTransfer{}})
	})
	mux.HandleFunc("GET /admin/transfers/{id}", func(w http.ResponseWriter, r *http.Request) {
		if c.side == nil {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			say(w, map[string]any{"status": 404, "code": "NOT_FOUND", "detail": "no"})
			return
		}
		say(w, c.side)
	})
	mux.HandleFunc("POST /admin/transfers/{id}/jobs", func(w http.ResponseWriter, r *http.Request) {
		var j agentapi.TransferJob
		if err := json.NewDecoder(r.Body).Decode(&j); err != nil {
			t.Error(err)
		}
		if had, ok := c.jobs[j.ID]; ok {
			say(w, had)
			return
		}
		j.State = agentapi.JobOpen
		c.jobs[j.ID] = j
		say(w, j)
	})
	mux.HandleFunc("GET /admin/transfers/jobs/{job}", func(w http.ResponseWriter, r *http.Request) {
		c.asked++
		j := c.jobs[r.PathValue("job")]
		j.State, j.Detail = agentapi.JobDone, "asked again"
		c.jobs[j.ID] = j
		say(w, j)
	})
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *cell) fault(peer string) agentapi.Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.faults[peer]
}

// with does something while no request is answered.
func (c *cell) with(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// kept are the jobs of transfers that it was asked for.
func (c *cell) kept() []agentapi.TransferJob {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.jobs))
}

// driven is a fleet whose cells can be driven.
type driven struct {
	*fleet
	one, two *cell
}

func newDriven(t *testing.T) *driven {
	t.Helper()
	d := &driven{newFleet(t), newCell(t, "c1"), newCell(t, "c2")}
	d.agents["c1"].BaseURL, d.agents["c2"].BaseURL = d.one.URL, d.two.URL
	return d
}

var hidden = regexp.MustCompile(`<input type="hidden" name="([a-z]+)" value="([^"]*)">`)

// preview opens an action's preview and gives the form that it offers.
func (f *fleet) preview(t *testing.T, path string) url.Values {
	t.Helper()
	got := f.do(t, http.MethodGet, path, nil)
	if got.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s\n%s", path, got.Status, got.text)
	}
	form := url.Values{}
	_, below, ok := strings.Cut(got.text, `action="/jobs"`)
	if !ok {
		t.Fatalf("%s offers no job\n%s", path, got.text)
	}
	for _, m := range hidden.FindAllStringSubmatch(below, -1) {
		form.Set(m[1], m[2])
	}
	return form
}

// carry sends the form and waits for the job's end.
func (f *fleet) carry(t *testing.T, form url.Values, typed string) Job {
	t.Helper()
	form.Set("typed", typed)
	form.Set("reason", "a drill")
	got := f.do(t, http.MethodPost, "/jobs", form)
	to := got.Header.Get("Location")
	if got.StatusCode != http.StatusSeeOther || !strings.HasPrefix(to, "/jobs/") {
		t.Fatalf("%s to %q\n%s", got.Status, to, got.text)
	}
	j := f.ended(t, strings.TrimPrefix(to, "/jobs/"))
	page := f.do(t, http.MethodGet, to, nil)
	if !strings.Contains(page.text, "job-"+j.State) || !strings.Contains(page.text, "a drill") || !strings.Contains(page.text, "bin/cellctl ") {
		t.Errorf("the job's page:\n%s", page.text)
	}
	return j
}

// ended waits for a job's end.
func (f *fleet) ended(t *testing.T, id string) Job {
	t.Helper()
	var j Job
	wait(t, "job "+id+" ends", func() bool {
		var err error
		if j, err = f.m.job(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return j.State != agentapi.JobOpen
	})
	return j
}

func TestUnplugAndPlug(t *testing.T) {
	t.Parallel()
	d := newDriven(t)
	d.work(t)
	form := d.preview(t, "/act/unplug?cell=c1")
	if got := d.one.fault(everyone); got != (agentapi.Fault{}) {
		t.Fatalf("the preview did it: %+v", got)
	}
	if j := d.carry(t, form, "c1"); j.State != agentapi.JobDone || j.Operator != firstName {
		t.Errorf("%+v", j)
	}
	if got := d.one.fault(everyone); !got.CutIn || !got.CutOut || d.two.fault(everyone) != (agentapi.Fault{}) {
		t.Errorf("c1 has %+v", got)
	}
	d.carry(t, d.preview(t, "/act/plug?cell=c1"), "c1")
	if got := d.one.fault(everyone); got != (agentapi.Fault{}) {
		t.Errorf("plugged, c1 has %+v", got)
	}
	log, err := d.m.events(t.Context(), Filter{Subject: "c1"}, 10)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, e := range log {
		kinds = append(kinds, e.What)
	}
	if !slices.Equal(kinds, []string{eventDone, eventJob, eventDone, eventJob}) {
		t.Errorf("the log has %v", kinds)
	}
}

func TestDelayIsKeptAtOneEnd(t *testing.T) {
	t.Parallel()
	d := newDriven(t)
	d.work(t)
	d.two.with(func() { d.two.faults["c1"] = agentapi.Fault{DelayMS: 7} })
	if j := d.carry(t, d.preview(t, "/act/delay?cell=c1&peer=c2&delay=50"), "c1-c2"); j.State != agentapi.JobDone {
		t.Errorf("%+v", j)
	}
	if a, b := d.one.fault("c2"), d.two.fault("c1"); a != (agentapi.Fault{DelayMS: 50}) || b != (agentapi.Fault{}) {
		t.Errorf("c1 has %+v, c2 has %+v", a, b)
	}
}

func TestFaultThatIsntKeptFails(t *testing.T) {
	t.Parallel()
	d := newDriven(t)
	d.work(t)
	d.one.with(func() { d.one.deaf = true })
	if j := d.carry(t, d.preview(t, "/act/unplug?cell=c1"), "c1"); j.State != agentapi.JobFailed || !strings.Contains(j.Detail, "c1's agent has") {
		t.Errorf("%+v", j)
	}
}

func TestDeadCellFailsTheJob(t *testing.T) {
	t.Parallel()
	d := newDriven(t)
	d.work(t)
	d.one.Close()
	if j := d.carry(t, d.preview(t, "/act/unplug?cell=c1"), "c1"); j.State != agentapi.JobFailed || j.Detail == "" {
		t.Errorf("%+v", j)
	}
}

func TestTransferIsRetriedAndCancelled(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{retry, cancel} {
		d := newDriven(t)
		d.work(t)
		d.one.with(func() {
			d.one.side = &agentapi.Transfer{Cell: "c1", Source: &agentapi.Side{Slot: 5, State: "FROZEN", From: 1, To: 2, Amount: 100, Currency: "CNY"}}
		})
		j := d.carry(t, d.preview(t, "/act/"+kind+"?transfer=77"), "77")
		if j.State != agentapi.JobDone || j.Detail != "c1: asked again" {
			t.Errorf("%s: %+v", kind, j)
		}
		if len(d.one.kept()) != 1 || len(d.two.kept()) != 0 {
			t.Fatalf("%s: jobs %v, %v", kind, d.one.kept(), d.two.kept())
		}
		for _, kept := range d.one.kept() {
			if kept.What != kind || kept.Transfer != id.ID(77) || kept.Slot != 5 || kept.Reason != "a drill" || !agentapi.ValidJobID(kept.ID) {
				t.Errorf("%s: %+v", kind, kept)
			}
		}
	}
}

// Nothing is said to be left to do while a cell that may have it isn't heard.
func TestCellThatIsntHeardIsNamed(t *testing.T) {
	t.Parallel()
	d := newDriven(t)
	d.work(t)
	d.two.with(func() { d.two.mute = true })
	if got := d.do(t, http.MethodGet, "/act/retry?transfer=77", nil); !strings.Contains(got.text, "<li>c2: ") || strings.Contains(got.text, `action="/jobs"`) {
		t.Errorf("nothing to do, c2 isn't heard: %s\n%s", got.Status, got.text)
	}
	if _, err := d.acts.begin(t.Context(), Job{ID: "none", Kind: retry, Args: Args{Transfer: "77"}, Operator: firstName, Reason: "why"}); err != nil {
		t.Fatal(err)
	}
	if j := d.ended(t, "none"); j.State != agentapi.JobFailed || !strings.Contains(j.Detail, "not asked: c2: ") {
		t.Errorf("nothing to do, c2 isn't heard: %+v", j)
	}
	d.one.with(func() {
		d.one.side = &agentapi.Transfer{Cell: "c1", Source: &agentapi.Side{Slot: 5, State: "FROZEN", From: 1, To: 2, Amount: 100, Currency: "CNY"}}
	})
	if j := d.carry(t, d.preview(t, "/act/retry?transfer=77"), "77"); j.State != agentapi.JobDone || !strings.HasPrefix(j.Detail, "c1: asked again; not asked: c2: ") {
		t.Errorf("c1 has something to do, c2 isn't heard: %+v", j)
	}
	d.two.Close()
	if p, err := d.acts.plan(t.Context(), retry, Args{Transfer: "77"}); err != nil || len(p.Missing) != 1 || !strings.HasPrefix(p.Missing[0], "c2: ") {
		t.Errorf("c2 is dead: %q, %v", p.Missing, err)
	}
}

// Jobs of one cell or transfer are done one after the other, as they were asked for.
func TestOrderOfJobs(t *testing.T) {
	t.Parallel()
	a := newActions(nil, nil, nil, true)
	all := []Job{
		{ID: "a", Args: Args{Cell: "c1"}}, {ID: "b", Args: Args{Cell: "c2", Peer: "c1"}}, {ID: "c", Args: Args{Cell: "c2"}},
		{ID: "d", Args: Args{Transfer: "7"}}, {ID: "e", Args: Args{Transfer: "7"}}, {ID: "f", Args: Args{Cell: "c3"}},
	}
	step := func(name, want string, open ...Job) {
		t.Helper()
		got := ""
		for _, j := range a.take(open) {
			got += j.ID
		}
		if got != want {
			t.Errorf("%s: %q are begun, want %q", name, got, want)
		}
	}
	step("at first", "adf", all...)
	step("none has ended", "", all...)
	a.release("a")
	step("a list from before a's end", "", all...)
	step("a has ended", "b", all[1:]...)
	a.release("b")
	a.release("d")
	step("b and d have ended", "ce", all[2], all[4], all[5])
	for _, id := range []string{"c", "e", "f"} {
		a.release(id)
	}
	step("all have ended", "")
	if len(a.taken) > 0 {
		t.Errorf("kept in mind: %v", a.taken)
	}
}

// What waited for long is told so, and isn't begun.
func TestJobThatWaitedTooLong(t *testing.T) {
	t.Parallel()
	d := newDriven(t)
	ran := filepath.Join(t.TempDir(), "ran")
	d.acts.drills.cellctl = program(t, "touch "+ran)
	d.acts.now = func() time.Time { return time.Now().Add(stale + time.Second) }
	for _, j := range []Job{
		{ID: "cut", Kind: unplug, Args: Args{Cell: "c1"}, Operator: firstName, Reason: "why"},
		{ID: "drill", Kind: drill, Args: Args{Drill: "unplug", Cell: "c2"}, Operator: firstName, Reason: "why"},
	} {
		if _, err := d.acts.begin(t.Context(), j); err != nil {
			t.Fatal(err)
		}
	}
	d.work(t)
	for _, id := range []string{"cut", "drill"} {
		if j := d.ended(t, id); j.State != agentapi.JobFailed || !strings.Contains(j.Detail, "asked too long ago") {
			t.Errorf("%+v", j)
		}
	}
	if _, err := os.Stat(ran); err == nil || d.one.fault(everyone) != (agentapi.Fault{}) {
		t.Errorf("it was done: %+v, %v", d.one.fault(everyone), err)
	}
}

// A database that hangs holds jobs up until it goes on, and then they are done, once.
func TestJobsOfADatabaseThatHangs(t *testing.T) {
	t.Parallel()
	d := newDriven(t)
	db := &stopped{memory: d.m}
	db.reads.Store(true)
	db.ends.Store(true)
	d.acts.records, d.acts.answer = db, 50*time.Millisecond
	if _, err := d.acts.begin(t.Context(), Job{ID: "cut", Kind: unplug, Args: Args{Cell: "c1"}, Operator: firstName, Reason: "why"}); err != nil {
		t.Fatal(err)
	}
	d.work(t)
	wait(t, "open jobs are asked for again", func() bool { return db.asked.Load() > 1 })
	db.reads.Store(false)
	d.acts.rouse()
	wait(t, "its end is told again", func() bool { return db.told.Load() > 2 })
	db.ends.Store(false)
	if j := d.ended(t, "cut"); j.State != agentapi.JobDone {
		t.Errorf("%+v", j)
	}
	d.one.with(func() {
		if d.one.puts != 1 {
			t.Errorf("c1 was unplugged %d times", d.one.puts)
		}
	})
}

// A job that another process left open is done, with the same IDs: twice is once.
func TestOpenJobsAreDoneAfterAStart(t *testing.T) {
	t.Parallel()
	d := newDriven(t)
	d.one.with(func() {
		d.one.side = &agentapi.Transfer{Cell: "c1", Source: &agentapi.Side{Slot: 5, State: "FROZEN", From: 1, To: 2, Amount: 100, Currency: "CNY"}}
	})
	left, err := d.m.addJob(t.Context(), Job{ID: "left", Kind: cancel, Args: Args{Transfer: "77"}, Operator: firstName, Reason: "why"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.acts.do(t.Context(), left); err != nil { // killed before it was noted
		t.Fatal(err)
	}
	d.work(t)
	wait(t, "the job is done", func() bool {
		j, err := d.m.job(t.Context(), "left")
		return err == nil && j.State == agentapi.JobDone
	})
	if n := len(d.one.kept()); n != 1 {
		t.Errorf("the agent has %d jobs, want 1", n)
	}
}

// A second click finds the first one's job, and the page shows its state (S-W09).
func TestFormSentTwiceIsOneJob(t *testing.T) {
	t.Parallel()
	d := newDriven(t)
	form := d.preview(t, "/act/unplug?cell=c1")
	form.Set("typed", "c1")
	form.Set("reason", "why")
	first, second := d.do(t, http.MethodPost, "/jobs", form), d.do(t, http.MethodPost, "/jobs", form)
	if n, _ := d.m.counts(); n != 1 || first.Header.Get("Location") != second.Header.Get("Location") {
		t.Errorf("%d jobs, at %q and %q", n, first.Header.Get("Location"), second.Header.Get("Location"))
	}
}

func TestWhatIsRefused(t *testing.T) {
	t.Parallel()
	d := newDriven(t)
	good := url.Values{"kind": {unplug}, "cell": {"c1"}, "typed": {"c1"}, "reason": {"why"}, "job": {"abc"}}
	for _, tc := range []struct {
		name, field, value string
		status             int
		says               string
	}{
		{"another name typed", "typed", "c2", 422, "is not c1"},
		{"no name typed", "typed", "", 422, "is not c1"},
		{"no reason", "reason", " ", 422, "say why"},
		{"a long reason", "reason", strings.Repeat("x", 201), 422, "say why"},
		{"no cell", "cell", "", 422, "no such cell"},
		{"the global zone", "cell", "global", 422, "no such cell"},
		{"another cell", "cell", "c9", 422, "no such cell"},
		{"no job", "job", "", 422, "job"},
		{"a job that isn't one", "job", "../x", 422, "job"},
		{"another kind", "kind", "reboot", 404, "NOT_FOUND"},
	} {
		form := url.Values{}
		for k, v := range good {
			form[k] = v
		}
		form.Set(tc.field, tc.value)
		got := d.do(t, http.MethodPost, "/jobs", form)
		if got.StatusCode != tc.status || !strings.Contains(got.text, tc.says) {
			t.Errorf("%s: %s\n%s", tc.name, got.Status, got.text)
		}
	}
	if got := d.do(t, http.MethodGet, "/act/unplug?cell=c9&lang=zh", nil); got.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(got.text, "没有这个单元") {
		t.Errorf("in Chinese: %s\n%s", got.Status, got.text)
	}
	for _, path := range []string{"/act/delay?cell=c1&peer=c1&delay=5", "/act/delay?cell=c1&peer=c2&delay=-1", "/act/delay?cell=c1&peer=c2&delay=60001", "/act/delay?cell=c1&peer=c2&delay=x", "/act/retry?transfer=x"} {
		if got := d.do(t, http.MethodGet, path, nil); got.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(got.text, `role="alert"`) || strings.Contains(got.text, `action="/jobs"`) {
			t.Errorf("%s: %s\n%s", path, got.Status, got.text)
		}
	}
	d.m.down.Store(true)
	if got := d.do(t, http.MethodPost, "/jobs", good); got.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("without a database: %s", got.Status)
	}
	d.m.down.Store(false)
	if n, _ := d.m.counts(); n > 0 {
		t.Errorf("%d jobs were kept", n)
	}
}

// Where the console reaches cells over their links it cuts none: it couldn't mend it.
func TestLinksAreLeftAloneWhereTheyAreNeeded(t *testing.T) {
	t.Parallel()
	d := newDriven(t)
	d.acts.links = false
	for _, path := range []string{"/act/unplug?cell=c1", "/act/plug?cell=c1", "/act/delay?cell=c1&peer=c2&delay=5"} {
		got := d.do(t, http.MethodGet, path, nil)
		if got.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(got.text, "bin/cellctl ") || strings.Contains(got.text, `action="/jobs"`) {
			t.Errorf("%s: %s\n%s", path, got.Status, got.text)
		}
	}
}

// What a reason has in it can't leave its quotes in the shown line.
func TestLineIsSafeToPaste(t *testing.T) {
	t.Parallel()
	got := line(cancel, Args{Transfer: "77"}, "it's; rm -rf $HOME")
	if want := `bin/cellctl transfer --cancel --reason='it'\''s; rm -rf $HOME' 77`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
