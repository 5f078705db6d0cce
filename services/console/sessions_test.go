package console

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/password"
	"example.com/cellmart/services/user/userapi"
)

func TestScenario_W03_FirstPasswordIsPrintedOnce(t *testing.T) {
	t.Parallel()
	m := newMemory()
	s := newSessions(m, password.New(1, 4, userapi.ErrBusy))
	var out strings.Builder
	for range 2 {
		if err := s.tryFirst(t.Context(), "", &out); err != nil {
			t.Fatal(err)
		}
	}
	said := regexp.MustCompile(`password (\S+) `).FindAllStringSubmatch(out.String(), -1)
	if len(said) != 1 || len(said[0][1]) < 20 {
		t.Fatalf("printed: %q, want one long password", out.String())
	}
	if strings.Contains(m.hashes[firstName], said[0][1]) {
		t.Error("the password is kept as it is")
	}
	if _, _, err := s.signIn(t.Context(), firstName, said[0][1]); err != nil {
		t.Errorf("the printed password: %v", err)
	}
	other := newMemory()
	out.Reset()
	if err := newSessions(other, password.New(1, 4, userapi.ErrBusy)).tryFirst(t.Context(), "given", &out); err != nil || out.Len() > 0 {
		t.Errorf("a given password: printed %q, %v", out.String(), err)
	}
}

// unwritable is an output that is gone.
type unwritable struct{}

func (unwritable) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// An operator whose password nobody could read isn't made.
func TestFirstPasswordThatCantBePrinted(t *testing.T) {
	t.Parallel()
	m := newMemory()
	s := newSessions(m, password.New(1, 4, userapi.ErrBusy))
	if err := s.tryFirst(t.Context(), "", unwritable{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("unwritable: %v", err)
	}
	var out strings.Builder
	if err := s.tryFirst(t.Context(), "", &out); err != nil || !strings.Contains(out.String(), "password ") {
		t.Errorf("the next time: %q, %v", out.String(), err)
	}
}

// Who is refused is in the log, but not what was typed for a password.
func TestRefusedSignInsAreLogged(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for _, tc := range []struct{ name, pass, says string }{
		{firstName, "my other password", "operator=operator"}, {"my only password", "x", `operator=""`},
	} {
		var out strings.Builder
		f.server.log = slog.New(slog.NewTextHandler(&out, nil))
		f.do(t, http.MethodPost, "/sign-in", url.Values{"name": {tc.name}, "password": {tc.pass}})
		if got := out.String(); !strings.Contains(got, "sign-in refused") || !strings.Contains(got, tc.says) || strings.Contains(got, "password") {
			t.Errorf("%q is logged as %q", tc.name, got)
		}
	}
}

// A database that hangs holds up who is signed in for a second, and then seldom.
func TestSessionsOfADatabaseThatHangs(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	s, db, now := f.server.sessions, &stopped{memory: f.m}, time.Now()
	s.records, s.wait, s.now = db, 50*time.Millisecond, func() time.Time { return now }
	token, _, err := s.signIn(t.Context(), firstName, testPassword)
	if err != nil {
		t.Fatal(err)
	}
	db.reads.Store(true)
	ctx, done := context.WithTimeout(t.Context(), 20*time.Second)
	defer done()
	for i, step := range []struct {
		later time.Duration
		asked int64
	}{{0, 0}, {sessionEach, 1}, {0, 1}, {sessionSoon - 1, 1}, {1, 2}, {time.Second, 2}} {
		now = now.Add(step.later)
		if who, err := s.who(ctx, token); who != firstName || err != nil || ctx.Err() != nil || db.asked.Load() != step.asked {
			t.Errorf("%d: %q, %v, %v, asked %d times, want %d", i, who, err, ctx.Err(), db.asked.Load(), step.asked)
		}
	}
	if who, err := s.who(ctx, "somebody"); who != "" || !errs.IsKind(err, errs.Unavailable) || ctx.Err() != nil {
		t.Errorf("a token that nobody knows: %q, %v, %v", who, err, ctx.Err())
	}
	db.reads.Store(false)
	now = now.Add(sessionSoon)
	for range 2 {
		if who, err := s.who(ctx, token); who != firstName || err != nil || db.asked.Load() != 4 {
			t.Errorf("it goes on: %q, %v, asked %d times", who, err, db.asked.Load())
		}
		now = now.Add(sessionEach - 1)
	}
}

func TestSignIn(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	s := f.server.sessions
	for _, tc := range []struct{ name, pass string }{
		{firstName, "wrong"}, {firstName, ""}, {"nobody", testPassword}, {"", ""}, {firstName, strings.Repeat("x", 5000)},
	} {
		if token, _, err := s.signIn(t.Context(), tc.name, tc.pass); !errors.Is(err, errWrong) || token != "" {
			t.Errorf("%q, %.10q: %v", tc.name, tc.pass, err)
		}
	}
	token, ends, err := s.signIn(t.Context(), firstName, testPassword)
	if err != nil || len(token) < 40 || time.Until(ends) > sessionFor {
		t.Fatalf("%q until %s, %v", token, ends, err)
	}
	if _, ok := f.m.sessions[sessionKey([]byte(token)[:32])]; ok {
		t.Error("the token is kept as it is")
	}
	if who, err := s.who(t.Context(), token); who != firstName || err != nil {
		t.Errorf("who = %q, %v", who, err)
	}
	for _, bad := range []string{"", "x", token + "x", token[1:]} {
		if who, err := s.who(t.Context(), bad); who != "" || err != nil {
			t.Errorf("who(%.5q) = %q, %v", bad, who, err)
		}
	}
}

func TestTooManySignIns(t *testing.T) {
	t.Parallel()
	m := newMemory()
	s := newSessions(m, password.New(1, 0, userapi.ErrBusy)) // nobody may wait
	if err := s.tryFirst(t.Context(), "given", nil); !errors.Is(err, userapi.ErrBusy) {
		t.Fatalf("no place: %v", err)
	}
	if _, _, err := s.signIn(t.Context(), firstName, "given"); !errs.IsKind(err, errs.Exhausted) {
		t.Errorf("no place: %v, want a 429", err)
	}
}

// Whoever is signed in goes on reading while the database is down, and signed out is
// signed out.
func TestSessionsWithoutADatabase(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	s := f.server.sessions
	ctx, now := t.Context(), time.Now()
	s.now = func() time.Time { return now }
	token, ends, err := s.signIn(ctx, firstName, testPassword)
	if err != nil {
		t.Fatal(err)
	}
	f.m.down.Store(true)
	now = now.Add(time.Hour)
	if who, err := s.who(ctx, token); who != firstName || err != nil {
		t.Errorf("an hour later: %q, %v", who, err)
	}
	if who, err := s.who(ctx, "somebody"); who != "" || !errs.IsKind(err, errs.Unavailable) {
		t.Errorf("a token that nobody knows: %q, %v", who, err)
	}
	now = ends
	if who, err := s.who(ctx, token); who != "" || err != nil {
		t.Errorf("at its end: %q, %v", who, err)
	}
	now = ends.Add(-time.Hour)
	if err := s.signOut(ctx, token); !errs.IsKind(err, errs.Unavailable) {
		t.Errorf("signing out: %v", err)
	}
	f.m.down.Store(false)
	if who, err := s.who(ctx, token); who != "" || err != nil {
		t.Errorf("signed out here, the database wasn't told: %q, %v", who, err)
	}
}

// A session that ended somewhere else ends here within half a minute.
func TestSessionEndsElsewhere(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	here, now := f.server.sessions, time.Now()
	here.now = func() time.Time { return now }
	token, _, err := here.signIn(t.Context(), firstName, testPassword)
	if err != nil {
		t.Fatal(err)
	}
	if err := newSessions(f.m, here.hasher).signOut(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	now = now.Add(sessionEach)
	if who, err := here.who(t.Context(), token); who != "" || err != nil {
		t.Errorf("%q, %v", who, err)
	}
}

func TestSignInPages(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	signedIn := f.cookie
	f.cookie = ""
	if got := f.do(t, http.MethodGet, "/events?what=job", nil); got.StatusCode != http.StatusSeeOther || got.Header.Get("Location") != "/sign-in?next=%2Fevents%3Fwhat%3Djob" {
		t.Errorf("nobody: %s to %q", got.Status, got.Header.Get("Location"))
	}
	if got := f.do(t, http.MethodPost, "/jobs", url.Values{"kind": {unplug}, "cell": {"c1"}}); got.StatusCode != http.StatusSeeOther {
		t.Errorf("nobody's job: %s", got.Status)
	}
	if n, _ := f.m.counts(); n > 0 {
		t.Errorf("nobody has %d jobs", n)
	}
	got := f.do(t, http.MethodPost, "/sign-in", url.Values{"name": {firstName}, "password": {"wrong"}})
	if got.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(got.text, `role="alert"`) || !strings.Contains(got.text, `value="operator"`) || strings.Contains(got.text, "wrong\"") {
		t.Errorf("a wrong password: %s\n%s", got.Status, got.text)
	}
	f.m.down.Store(true)
	if got := f.do(t, http.MethodPost, "/sign-in", url.Values{"name": {firstName}, "password": {testPassword}}); got.StatusCode != http.StatusServiceUnavailable || got.Header.Get("Retry-After") == "" {
		t.Errorf("without a database: %s", got.Status)
	}
	f.cookie = signedIn
	for path, want := range map[string]int{"/": 200, "/transfers": 200, "/tour": 200, "/act/unplug?cell=c1": 200, "/events": 503, "/jobs/x": 503} {
		if got := f.do(t, http.MethodGet, path, nil); got.StatusCode != want {
			t.Errorf("%s without a database: %s, want %d", path, got.Status, want)
		}
	}
	f.m.down.Store(false)
	if got := f.do(t, http.MethodPost, "/sign-out", url.Values{}); got.StatusCode != http.StatusSeeOther {
		t.Errorf("signing out: %s", got.Status)
	}
	if got := f.do(t, http.MethodGet, "/", nil); got.StatusCode != http.StatusSeeOther {
		t.Errorf("with the old cookie: %s", got.Status)
	}
}

func TestPasswordIsChanged(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	other, _, err := f.server.sessions.signIn(t.Context(), firstName, testPassword)
	if err != nil {
		t.Fatal(err)
	}
	const another = "another horse battery"
	for _, tc := range []struct{ old, pass, again, says string }{
		{"wrong", another, another, "The present password is wrong."},
		{testPassword, another, "something else", "typed in two ways"},
		{testPassword, "short", "short", "12 to 200"},
	} {
		got := f.do(t, http.MethodPost, "/password", url.Values{"old": {tc.old}, "new": {tc.pass}, "again": {tc.again}})
		if got.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(got.text, tc.says) || strings.Contains(got.text, another) {
			t.Errorf("%+v: %s\n%s", tc, got.Status, got.text)
		}
	}
	if got := f.do(t, http.MethodPost, "/password", url.Values{"old": {testPassword}, "new": {another}, "again": {another}}); got.StatusCode != http.StatusOK {
		t.Fatalf("%s\n%s", got.Status, got.text)
	}
	if got := f.do(t, http.MethodGet, "/", nil); got.StatusCode != http.StatusOK {
		t.Errorf("the own session: %s", got.Status)
	}
	for _, s := range []*sessions{f.server.sessions, newSessions(f.m, f.server.sessions.hasher)} {
		if who, err := s.who(t.Context(), other); who != "" || err != nil {
			t.Errorf("the other session: %q, %v", who, err)
		}
	}
	for pass, want := range map[string]error{testPassword: errWrong, another: nil} {
		if _, _, err := f.server.sessions.signIn(t.Context(), firstName, pass); !errors.Is(err, want) {
			t.Errorf("signing in with %q: %v, want %v", pass, err, want)
		}
	}
}

func TestNextIsOfThisOrigin(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "/", "/": "/", "/events?a=b": "/events?a=b", "//evil.example": "/", "https://evil.example/": "/", `/\evil.example`: "/",
		"javascript:alert(1)": "/", "events": "/", "/a\r\nb": "/", "/%0d": "/%0d",
	} {
		if got := next(text); got != want {
			t.Errorf("next(%q) = %q, want %q", text, got, want)
		}
	}
}
