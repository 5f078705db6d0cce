package gateway

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"example.com/cellmart/services/user/userapi"
)

// Tokens of who has logged out everywhere are refused, later ones aren't; while the
// user service is away the last list stands.
func TestDeniedTokens(t *testing.T) {
	w := newWorld(t, "c1")
	c1, user := w.cells["c1"], w.userOf("c1")
	c1.gateway.denied = &denied{}
	token := as("user", user)
	do(t, c1.public, "GET", "/api/v1/me", "", token).want(t, 200, "", "c1")
	c1.services.answers(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/internal/denied" {
			return false
		}
		_, _ = io.WriteString(rw, fmt.Sprintf(`{"users":{"%s":7}}`, user))
		return true
	})
	users, err := c1.gateway.askDenied(t.Context())
	if err != nil || users[user] != 7 {
		t.Fatalf("denied %v, %v", users, err)
	}
	c1.gateway.denied.users.Store(&users)
	do(t, c1.public, "GET", "/api/v1/me", "", token).want(t, 401, "TOKEN_EXPIRED", "c1")
	do(t, c1.public, "GET", "/api/v1/categories", "", token).want(t, 200, "", "c1") // who only looks around
	if c1.gateway.denied.covers(userapi.Claims{User: user, IssuedAt: 8}) || c1.gateway.denied.covers(userapi.Claims{User: user + 1<<14}) {
		t.Error("a later token, or another user's, is refused")
	}
	c1.services.answers(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
	if _, err := c1.gateway.askDenied(t.Context()); err == nil {
		t.Error("no answer is no list")
	}
}

// A refresh token goes to its user's home; what isn't one is refused here.
func TestRefreshGoesHome(t *testing.T) {
	w := newWorld(t, "c1", "c2")
	user := w.userOf("c2")
	text := userapi.Refresh{User: user}.Text([]byte("a key that no gateway has"))
	a := do(t, w.cells["c1"].public, "POST", "/api/v1/sessions/refresh", fmt.Sprintf(`{"refresh_token":%q}`, text))
	a.want(t, 200, "", "c2")
	calls := w.cells["c2"].services.calls()
	if len(calls) == 0 || calls[len(calls)-1].Path != "/api/v1/sessions/refresh" {
		t.Errorf("c2's services saw %+v", calls)
	}
	do(t, w.cells["c1"].public, "POST", "/api/v1/sessions/refresh", `{"refresh_token":"x"}`).want(t, 401, "INVALID_TOKEN", "c1")
}
