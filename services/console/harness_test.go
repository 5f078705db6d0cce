package console

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/password"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/user/userapi"
)

// memory is records without a database. TestStore holds the real one against it.
type memory struct {
	down atomic.Bool

	mu       sync.Mutex
	hashes   map[string]string
	sessions map[sessionKey]session
	jobs     []Job
	log      []Event
}

func newMemory() *memory {
	return &memory{hashes: map[string]string{}, sessions: map[sessionKey]session{}}
}

// counts are those of the jobs and of the events.
func (m *memory) counts() (jobs, events int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.jobs), len(m.log)
}

// enter locks, or says that the database is down.
func (m *memory) enter() error {
	if m.down.Load() {
		return errs.ErrUnavailable
	}
	m.mu.Lock()
	return nil
}

func (m *memory) note(operator, what, subject, detail string) {
	m.log = append(m.log, Event{Seq: int64(len(m.log)) + 1, At: time.Now(), Operator: operator, What: what, Subject: subject, Detail: detail})
}

func (m *memory) operators(context.Context) (int, error) {
	if err := m.enter(); err != nil {
		return 0, err
	}
	defer m.mu.Unlock()
	return len(m.hashes), nil
}

func (m *memory) firstOperator(_ context.Context, name, hash string, tell func() error) (bool, error) {
	if err := m.enter(); err != nil {
		return false, err
	}
	defer m.mu.Unlock()
	if len(m.hashes) > 0 {
		return false, nil
	}
	if err := tell(); err != nil {
		return false, err
	}
	m.hashes[name] = hash
	m.note(name, eventOperator, name, "")
	return true, nil
}

func (m *memory) operatorHash(_ context.Context, name string) (string, error) {
	if err := m.enter(); err != nil {
		return "", err
	}
	defer m.mu.Unlock()
	return m.hashes[name], nil
}

func (m *memory) setHash(_ context.Context, name, old, hash string, keep sessionKey) (bool, error) {
	if err := m.enter(); err != nil {
		return false, err
	}
	defer m.mu.Unlock()
	if had, ok := m.hashes[name]; !ok || had != old {
		return false, nil
	}
	m.hashes[name] = hash
	for key, s := range m.sessions {
		if s.operator == name && key != keep {
			s.over = true
			m.sessions[key] = s
		}
	}
	m.note(name, eventPassword, name, "")
	return true, nil
}

func (m *memory) addSession(_ context.Context, key sessionKey, operator string, ends time.Time) error {
	if err := m.enter(); err != nil {
		return err
	}
	defer m.mu.Unlock()
	m.sessions[key] = session{operator: operator, ends: ends}
	m.note(operator, eventSignIn, "", "")
	return nil
}

func (m *memory) session(_ context.Context, key sessionKey) (string, time.Time, error) {
	if err := m.enter(); err != nil {
		return "", time.Time{}, err
	}
	defer m.mu.Unlock()
	s := m.sessions[key]
	if s.over || !time.Now().Before(s.ends) {
		return "", time.Time{}, nil
	}
	return s.operator, s.ends, nil
}

func (m *memory) endSession(_ context.Context, key sessionKey) error {
	if err := m.enter(); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if s, ok := m.sessions[key]; ok && !s.over {
		s.over = true
		m.sessions[key] = s
		m.note(s.operator, eventSignOut, "", "")
	}
	return nil
}

func (m *memory) addJob(_ context.Context, j Job) (Job, error) {
	if err := m.enter(); err != nil {
		return Job{}, err
	}
	defer m.mu.Unlock()
	if i := slices.IndexFunc(m.jobs, func(x Job) bool { return x.ID == j.ID }); i >= 0 {
		return m.jobs[i], nil
	}
	j.State, j.At = agentapi.JobOpen, time.Now()
	m.jobs = append(m.jobs, j)
	m.note(j.Operator, eventJob, j.Subject(), j.Kind+" "+j.ID+": "+j.Reason)
	return j, nil
}

func (m *memory) job(_ context.Context, id string) (Job, error) {
	if err := m.enter(); err != nil {
		return Job{}, err
	}
	defer m.mu.Unlock()
	if i := slices.IndexFunc(m.jobs, func(x Job) bool { return x.ID == id }); i >= 0 {
		return m.jobs[i], nil
	}
	return Job{}, errs.ErrNotFound
}

func (m *memory) openJobs(context.Context) ([]Job, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	var out []Job
	for _, j := range m.jobs {
		if j.State == agentapi.JobOpen {
			out = append(out, j)
		}
	}
	return out, nil
}

func (m *memory) endJob(_ context.Context, j Job) error {
	if err := m.enter(); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if strings.Contains(j.Detail, "\x00") || !utf8.ValidString(j.Detail) {
		return errors.New("that is no text")
	}
	for i := range m.jobs {
		if x := &m.jobs[i]; x.ID == j.ID && x.State == agentapi.JobOpen {
			now := time.Now()
			x.State, x.Detail, x.Ended = j.State, j.Detail, &now
			what := eventDone
			if j.State == agentapi.JobFailed {
				what = eventFailed
			}
			m.note(j.Operator, what, j.Subject(), j.Kind+" "+j.ID+": "+j.Detail)
		}
	}
	return nil
}

func (m *memory) events(_ context.Context, f Filter, limit int) ([]Event, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	fits := func(want, is string) bool { return want == "" || want == is }
	var out []Event
	for _, e := range slices.Backward(m.log) {
		if (f.Before <= 0 || e.Seq < f.Before) && fits(f.Operator, e.Operator) && fits(f.What, e.What) && fits(f.Subject, e.Subject) && len(out) < limit {
			out = append(out, e)
		}
	}
	return out, nil
}

// stopped is a database that hangs, as Postgres does under SIGSTOP.
type stopped struct {
	*memory
	reads, ends atomic.Bool  // which of the questions hang
	asked, told atomic.Int64 // how many came
}

func (s *stopped) hang(ctx context.Context, hangs *atomic.Bool, came *atomic.Int64) error {
	came.Add(1)
	if !hangs.Load() {
		return nil
	}
	<-ctx.Done()
	return errs.ErrUnavailable.Because(ctx.Err())
}

func (s *stopped) session(ctx context.Context, key sessionKey) (string, time.Time, error) {
	if err := s.hang(ctx, &s.reads, &s.asked); err != nil {
		return "", time.Time{}, err
	}
	return s.memory.session(ctx, key)
}

func (s *stopped) openJobs(ctx context.Context) ([]Job, error) {
	if err := s.hang(ctx, &s.reads, &s.asked); err != nil {
		return nil, err
	}
	return s.memory.openJobs(ctx)
}

func (s *stopped) endJob(ctx context.Context, j Job) error {
	if err := s.hang(ctx, &s.ends, &s.told); err != nil {
		return err
	}
	return s.memory.endJob(ctx, j)
}

// fleet is a console over real servers, in front of a browser that keeps its cookies
// by hand: the session's is for secure origins only.
type fleet struct {
	*world
	m      *memory
	server *server
	acts   *actions
	site   *httptest.Server
	cookie string
}

const testPassword = "correct horse battery"

// newFleet is signed in; nothing is collected and no job is done until the test says so.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{world: newWorld(t), m: newMemory()}
	f.acts = newActions(f.agents, f.snapshot().Cells, f.m, true)
	f.acts.drills.cellctl = "/nothing/here"
	f.acts.ask, f.acts.limit = 500*time.Millisecond, 5*time.Second
	s := newSessions(f.m, password.New(2, 8, userapi.ErrBusy))
	if err := s.tryFirst(t.Context(), testPassword, io.Discard); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var err error
	if f.server, err = newServer(f.collector, s, f.acts, f.m, stop, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	h, err := f.server.handler()
	if err != nil {
		t.Fatal(err)
	}
	f.site = httptest.NewServer(h)
	t.Cleanup(func() { close(stop); f.site.Close() })
	f.signIn(t)
	return f
}

// work does jobs until the test's end.
func (f *fleet) work(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.acts.run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
}

// answer is a response that was read.
type answer struct {
	*http.Response
	text string
}

// do sends a request with the session's cookie, and follows nothing.
func (f *fleet) do(t *testing.T, method, path string, form url.Values, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.site.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if f.cookie != "" {
		req.Header.Set("Cookie", f.cookie)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp, string(b)}
}

func (f *fleet) signIn(t *testing.T) {
	t.Helper()
	got := f.do(t, http.MethodPost, "/sign-in", url.Values{"name": {firstName}, "password": {testPassword}, "next": {"/events"}})
	if got.StatusCode != http.StatusSeeOther || got.Header.Get("Location") != "/events" {
		t.Fatalf("signing in: %s to %q", got.Status, got.Header.Get("Location"))
	}
	for _, c := range got.Cookies() {
		if c.Name == sessionCookie {
			if !c.Secure || !c.HttpOnly || c.Path != "/" || c.Domain != "" || c.SameSite != http.SameSiteStrictMode {
				t.Errorf("the session's cookie is %s", c)
			}
			f.cookie = c.Name + "=" + c.Value
		}
	}
	if f.cookie == "" {
		t.Fatal("no session's cookie")
	}
}
