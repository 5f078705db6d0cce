package user

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/user/userapi"
)

// loginsOf is a world with one user, whose cell's clock is the test's.
type loginsOf struct {
	*world
	user userapi.User

	mu  sync.Mutex
	now time.Time
}

func newLogins(t *testing.T) *loginsOf {
	t.Helper()
	w := &loginsOf{world: newWorld(t, "c1"), now: time.Now().UTC().Truncate(time.Second)}
	w.live()
	w.user = w.newUser("c1", w.phoneAt("c1", 0))
	w.cells["c1"].svc.now = func() time.Time {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.now
	}
	return w
}

func (w *loginsOf) later(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func (w *loginsOf) logIn() userapi.Session {
	w.t.Helper()
	var s userapi.Session
	w.as(w.user.ID, "POST", "/api/v1/sessions", fmt.Sprintf(`{"phone":%q,"password":"correct horse"}`, w.user.Phone), "").decode(w.t, &s)
	if s.RefreshToken == "" {
		w.t.Fatal("a session without a refresh token")
	}
	return s
}

// turn exchanges a refresh token; code is empty when that went well.
func (w *loginsOf) turn(token string) (s userapi.Session, code string) {
	w.t.Helper()
	a := w.as(w.user.ID, "POST", "/api/v1/sessions/refresh", fmt.Sprintf(`{"refresh_token":%q}`, token), "")
	if a.status == http.StatusCreated {
		a.decode(w.t, &s)
		return s, ""
	}
	var p struct {
		Code string `json:"code"`
	}
	a.decode(w.t, &p)
	return s, p.Code
}

func (w *loginsOf) denied() map[id.ID]int64 {
	w.t.Helper()
	var d userapi.Denied
	w.cells["c1"].ask("GET", "/internal/denied", "", 0, w.cells["c1"].slot(), "").decode(w.t, &d)
	return d.Users
}

func TestRefreshTokensTurn(t *testing.T) {
	t.Parallel()
	w := newLogins(t)
	first := w.logIn()
	w.later(time.Hour)
	second, code := w.turn(first.RefreshToken)
	if code != "" || second.RefreshToken == first.RefreshToken || second.User.ID != w.user.ID || !second.ExpiresAt.Equal(w.now.Add(userapi.TokenLife)) {
		t.Fatalf("%s: %+v", code, second)
	}
	w.later(turnGrace - time.Second) // the answer got lost, or two tabs asked
	if again, code := w.turn(first.RefreshToken); code != "" || again.RefreshToken != second.RefreshToken {
		t.Errorf("the same again soon: %q, another token %v", code, again.RefreshToken != second.RefreshToken)
	}
	third, code := w.turn(second.RefreshToken)
	if code != "" {
		t.Fatalf("the next turn: %s", code)
	}
	if len(w.denied()) != 0 {
		t.Errorf("denied %v", w.denied())
	}
	// A thief has the first one; or the thief was first, and this is its owner.
	other := w.logIn()
	if _, code := w.turn(first.RefreshToken); code != "TOKEN_REUSED" {
		t.Errorf("an old one: %q", code)
	}
	if got := w.denied()[w.user.ID]; got != w.now.Unix() {
		t.Errorf("tokens are denied up to %d, want %d", got, w.now.Unix())
	}
	for _, token := range []string{third.RefreshToken, first.RefreshToken} {
		if _, code := w.turn(token); code != "TOKEN_EXPIRED" {
			t.Errorf("of the login that is ended: %q", code)
		}
	}
	if _, code := w.turn(other.RefreshToken); code != "" {
		t.Errorf("another login of the same user: %s", code)
	}
	for _, bad := range []string{"", "x", tampered(other.RefreshToken), other.RefreshToken[:len(other.RefreshToken)-1], strings.Repeat("A", 50)} {
		if _, code := w.turn(bad); code != "INVALID_TOKEN" {
			t.Errorf("%q: %q", bad, code)
		}
	}
	unused := w.logIn()
	w.later(refreshLife)
	if _, code := w.turn(unused.RefreshToken); code != "TOKEN_EXPIRED" {
		t.Errorf("unused for 30 days: %q", code)
	}
}

// Two tabs at once: one turn, one token.
// A failover that lost the last turn: the browser has a later one than the row says.
// Only this shop makes them, so nobody took it from anybody.
func TestRefreshTokenThatWasLost(t *testing.T) {
	t.Parallel()
	w := newLogins(t)
	first := w.logIn()
	w.later(time.Hour)
	second, code := w.turn(first.RefreshToken)
	if code != "" {
		t.Fatal(code)
	}
	if _, err := w.cells["c1"].db.Super.Exec(t.Context(), "SET session_replication_role = replica; UPDATE users.sessions SET turn = turn - 1; SET session_replication_role = origin"); err != nil {
		t.Fatal(err)
	}
	w.later(time.Hour)
	third, code := w.turn(second.RefreshToken)
	if code != "" || len(w.denied()) != 0 {
		t.Fatalf("the lost turn: %s, denied %v", code, w.denied())
	}
	w.later(time.Hour)
	if _, code := w.turn(third.RefreshToken); code != "" {
		t.Errorf("the next: %s", code)
	}
	if _, code := w.turn(second.RefreshToken); code != "TOKEN_REUSED" {
		t.Errorf("an old one: %q", code)
	}
}

func TestRefreshAtOnce(t *testing.T) {
	t.Parallel()
	w := newLogins(t)
	first := w.logIn()
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := map[string]bool{}
	for range 5 {
		wg.Go(func() {
			s, code := w.turn(first.RefreshToken)
			mu.Lock()
			defer mu.Unlock()
			next[s.RefreshToken+code] = true
		})
	}
	wg.Wait()
	if len(next) != 1 {
		t.Errorf("5 at once got %v", next)
	}
}

func TestLogOut(t *testing.T) {
	t.Parallel()
	w := newLogins(t)
	here, there := w.logIn(), w.logIn()
	for range 2 {
		if a := w.as(w.user.ID, "POST", "/api/v1/sessions/end", fmt.Sprintf(`{"refresh_token":%q}`, here.RefreshToken), ""); a.status != http.StatusNoContent {
			t.Errorf("log out = %d %s", a.status, a.body)
		}
	}
	if _, code := w.turn(here.RefreshToken); code != "TOKEN_EXPIRED" {
		t.Errorf("after the logout: %q", code)
	}
	next, code := w.turn(there.RefreshToken)
	if code != "" || len(w.denied()) != 0 {
		t.Errorf("the other login: %q, denied %v", code, w.denied())
	}
	if a := w.as(w.user.ID, "DELETE", "/api/v1/sessions", "", ""); a.status != http.StatusNoContent {
		t.Fatalf("log out everywhere = %d %s", a.status, a.body)
	}
	if _, code := w.turn(next.RefreshToken); code != "TOKEN_EXPIRED" {
		t.Errorf("after the logout everywhere: %q", code)
	}
	// Logged in again within the same second: that token isn't among the refused.
	again := w.logIn()
	claims, err := userapi.Verify(w.table.Load(), again.Token, w.now)
	if until := w.denied()[w.user.ID]; err != nil || until == 0 || claims.IssuedAt <= until {
		t.Errorf("denied up to %d, the new token is of %d, %v", until, claims.IssuedAt, err)
	}
	w.later(userapi.TokenLife + 2*time.Minute)
	if len(w.denied()) != 0 {
		t.Errorf("longer than a token lives: %v", w.denied())
	}
}

// Logins don't pile up: the eleventh takes the seat that is unused for longest.
func TestSeatsAreFew(t *testing.T) {
	t.Parallel()
	w := newLogins(t)
	var all []userapi.Session
	for range seats + 1 {
		all = append(all, w.logIn())
		w.later(time.Minute)
	}
	var rows int
	if err := w.cells["c1"].db.Super.QueryRow(t.Context(), "SELECT count(*) FROM users.sessions WHERE user_id = $1", w.user.ID).Scan(&rows); err != nil || rows != seats {
		t.Errorf("%d rows, %v, want %d", rows, err, seats)
	}
	ended := 0
	for _, s := range all {
		if _, code := w.turn(s.RefreshToken); code != "" {
			ended++
		}
	}
	if ended > 2 { // the registration had a seat too
		t.Errorf("%d of %d logins ended", ended, len(all))
	}
}
