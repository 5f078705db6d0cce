package console

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/services/agent/agentapi"
)

// actView is the form of an action, and its preview when all of it was given.
type actView struct {
	Kind   string
	Args   Args
	Delay  string // as it was typed
	Zones  []string
	Cells  []string
	Drills []string
	Plan   *Plan
	Field  string // of the error
	Error  string
	Job    string // the ID that the job will have
	Reason string
	Typed  string
	Now    Head // what is known of the cell now
}

func argsOf(q url.Values) (Args, error) {
	a := Args{Cell: q.Get("cell"), Peer: q.Get("peer"), Transfer: strings.TrimSpace(q.Get("transfer")), Drill: q.Get("drill")}
	if text := q.Get("delay"); text != "" {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return a, errs.Field("delay", "is 0 to 60000 ms")
		}
		a.DelayMS = ms
	}
	return a, nil
}

// handlePlan shows the form of an action, and what it would do. It changes nothing.
func (s *server) handlePlan(w http.ResponseWriter, r *http.Request, operator string) {
	q := r.URL.Query()
	v := s.act(r, r.PathValue("kind"), q)
	asked := q.Has("cell") || q.Has("transfer")
	var err error
	if v.Args, err = argsOf(q); err == nil && asked {
		var p Plan
		if p, err = s.actions.plan(r.Context(), v.Kind, v.Args); err == nil {
			v.Plan, v.Job = &p, strings.ToLower(rand.Text())
		}
	}
	s.showAct(w, r, operator, v, err)
}

func (s *server) act(r *http.Request, kind string, q url.Values) actView {
	v := actView{Kind: kind, Delay: q.Get("delay"), Zones: s.actions.zones(), Cells: s.actions.cells, Drills: drillNames}
	view := s.viewer(r)
	if cell := q.Get("cell"); cell != "" {
		v.Now = head(view, view.s.Zones[cell], view.each)
	}
	return v
}

func (s *server) showAct(w http.ResponseWriter, r *http.Request, operator string, v actView, err error) {
	status := http.StatusOK
	if err != nil {
		e := errs.From(err)
		if e.Kind != errs.Invalid {
			s.fail(w, r, operator, err)
			return
		}
		v.Field, v.Error, status = e.Field, v.wrong(langOf(r, s.langs), e), http.StatusUnprocessableEntity
	}
	if !slices.Contains(actionKinds, v.Kind) {
		s.fail(w, r, operator, errs.ErrNotFound)
		return
	}
	s.render(w, r, status, "act", operator, "act."+v.Kind, v)
}

// wrong says what is wrong with a field, for people.
func (v actView) wrong(l *Lang, e *errs.Error) string {
	if e.Code == notHere {
		return l.T("wrong.here", line(v.Kind, v.Args, ""))
	}
	switch e.Field {
	case "cell":
		return l.T("wrong.cell")
	case "peer":
		return l.T("wrong.peer")
	case "delay":
		return l.T("wrong.delay")
	case "transfer":
		return l.T("wrong.transfer")
	case "typed":
		return l.T("wrong.typed", subject(v.Kind, v.Args))
	case "reason":
		return l.T("wrong.reason", maxReason)
	}
	return e.Message // only of a form that isn't the page's
}

// handleBegin keeps a job. The name has to be typed and a reason given; the job's ID
// came with the preview, so a form that is sent twice is one job.
func (s *server) handleBegin(w http.ResponseWriter, r *http.Request, operator string) {
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, operator, errs.Field("form", "can't be read"))
		return
	}
	q := r.PostForm
	v := s.act(r, q.Get("kind"), q)
	v.Job, v.Reason, v.Typed = q.Get("job"), strings.TrimSpace(q.Get("reason")), strings.TrimSpace(q.Get("typed"))
	var err error
	if v.Args, err = argsOf(q); err == nil {
		err = s.actions.check(v.Kind, v.Args)
	}
	if err != nil {
		s.showAct(w, r, operator, v, err)
		return
	}
	switch {
	case len(v.Job) > 32 || !agentapi.ValidJobID(v.Job):
		err = errs.Field("job", "is not a job's ID")
	case v.Typed != subject(v.Kind, v.Args):
		err = errs.Field("typed", "is not %s", subject(v.Kind, v.Args))
	case v.Reason == "" || len(v.Reason) > maxReason:
		err = errs.Field("reason", "say why, in 1 to %d bytes", maxReason)
	}
	if err != nil {
		if p, planned := s.actions.plan(r.Context(), v.Kind, v.Args); planned == nil {
			v.Plan = &p
		}
		s.showAct(w, r, operator, v, err)
		return
	}
	// The form may be gone by now: what it asked for is kept all the same.
	keep, done := context.WithTimeout(context.WithoutCancel(r.Context()), keepLimit)
	defer done()
	j, err := s.actions.begin(keep, Job{ID: v.Job, Kind: v.Kind, Args: v.Args, Operator: operator, Reason: v.Reason})
	if err != nil {
		s.fail(w, r, operator, err)
		return
	}
	http.Redirect(w, r, "/jobs/"+j.ID, http.StatusSeeOther)
}

// jobView is a job's page.
type jobView struct {
	Job
	Line string
}

func (s *server) handleJob(w http.ResponseWriter, r *http.Request, operator string) {
	j, err := s.records.job(r.Context(), r.PathValue("id"))
	if err != nil {
		s.fail(w, r, operator, err)
		return
	}
	s.render(w, r, http.StatusOK, "job", operator, "title.job", jobView{j, line(j.Kind, j.Args, j.Reason)})
}

// Stamp is the job's beginning, for a <time>.
func (j Job) Stamp() string { return j.At.UTC().Format(time.RFC3339) }
