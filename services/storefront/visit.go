package storefront

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
)

// visit is one request of a browser.
type visit struct {
	*client
	shop  *Shop
	log   *slog.Logger
	w     http.ResponseWriter
	r     *http.Request
	lang  string
	guest []guestItem
	waits bool // the page that was written waits

	lapsed error // why the session couldn't go on, though it should
}

func (s *Shop) newVisit(api http.Handler, w http.ResponseWriter, r *http.Request) *visit {
	v := &visit{
		client: &client{api: api, ctx: r.Context(), requestID: r.Header.Get(call.HeaderRequestID), region: r.Header.Get("X-Region")},
		shop:   s, w: w, r: r,
	}
	v.token = cookieValue(r, cookieSession)
	v.guest = readGuest(cookieValue(r, cookieCart))
	asked := r.URL.Query().Get("lang")
	if live := r.URL.Query().Get("live"); slices.Contains(languages, live) { // of the page that is kept new
		v.lang = live
		return v
	}
	v.lang = s.language(asked, cookieValue(r, cookieLang), r.Header.Get("Accept-Language"))
	if asked == v.lang {
		setCookie(w, cookieLang, v.lang, 365*24*time.Hour)
	}
	return v
}

// The cookies. The prefix makes browsers hold them to this host, all of it, and
// to secure connections.
const (
	cookieSession = "__Host-session"
	cookieRefresh = "__Host-refresh"
	cookieCart    = "__Host-cart"
	cookieLang    = "__Host-lang"
)

func cookieValue(r *http.Request, name string) string {
	c, err := r.Cookie(name)
	if err != nil {
		return ""
	}
	return c.Value
}

// setCookie sets one for as long as life says; an empty value takes it back.
func setCookie(w http.ResponseWriter, name, value string, life time.Duration) {
	c := &http.Cookie{
		Name: name, Value: value, Path: "/", MaxAge: int(life / time.Second),
		HttpOnly: true, Secure: true, SameSite: http.SameSiteLaxMode,
	}
	if value == "" || c.MaxAge <= 0 {
		c.Value, c.MaxAge = "", -1
	}
	http.SetCookie(w, c)
}

// slot reads the slot out of the token, for the footer only: the API is who
// believes a token or not.
func (v *visit) slot() string {
	payload, _, _ := strings.Cut(v.token, ".")
	raw, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return ""
	}
	var claims struct {
		Slot *int `json:"slot"`
	}
	if json.Unmarshal(raw, &claims) != nil || claims.Slot == nil {
		return ""
	}
	return strconv.Itoa(*claims.Slot)
}

// refreshLife is how long somebody stays logged in without coming back.
const refreshLife = 30 * 24 * time.Hour

// keep has the browser keep a session.
func (v *visit) keep(s session) {
	v.token = s.Token
	setCookie(v.w, cookieSession, s.Token, time.Until(s.ExpiresAt))
	setCookie(v.w, cookieRefresh, s.Refresh, refreshLife) // none: whoever was here before mustn't go on
	v.w.Header().Set("Cache-Control", "no-store")
}

// logIn keeps the session and brings the guest's cart along.
func (v *visit) logIn(s session) {
	v.keep(s)
	v.mergeCart()
}

// goOn exchanges the refresh token of a browser whose session has run out. Refused
// for good it's thrown away, and the visitor is nobody; while the home is away it's
// kept, and pages of theirs say so.
func (v *visit) goOn() {
	token := cookieValue(v.r, cookieRefresh)
	if v.token != "" || token == "" {
		return
	}
	v.w.Header().Set("Cache-Control", "no-store")
	var s session
	_, err := v.do(ask{method: http.MethodPost, path: "/sessions/refresh", in: map[string]string{"refresh_token": token}}, &s)
	switch {
	case err == nil:
		v.keep(s)
	case errs.IsKind(err, errs.Unauthenticated) || errs.IsKind(err, errs.Invalid) || errs.IsKind(err, errs.NotFound):
		setCookie(v.w, cookieRefresh, "", 0)
	default:
		v.lapsed = err
	}
}

// form gives a field of the form, without the spaces around it.
func (v *visit) form(name string) string { return strings.TrimSpace(v.r.PostForm.Get(name)) }

// see answers a form: look there now.
func (v *visit) see(path string) error {
	v.w.Header().Set("Location", path)
	v.w.WriteHeader(http.StatusSeeOther)
	return nil
}

// newKey is an idempotency key for a new wish.
func newKey() string { return rand.Text() }

// key is the form's idempotency key; without one the form isn't ours.
func (v *visit) key() (string, error) {
	key := v.form("key")
	if len(key) < 16 || len(key) > 128 || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errForm
	}
	return key, nil
}

// local keeps a path to go on to after the login inside this shop.
func local(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(u.Path, "/") ||
		strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\r\n\t") {
		return "/"
	}
	return u.String()
}

// here is the page's own path and query, without the language.
func (v *visit) here() string {
	if v.r.Method != http.MethodGet && v.r.Method != http.MethodHead {
		return v.r.URL.EscapedPath()
	}
	return without(v.r.URL, "lang", "live")
}

// without gives a URL's path and query less some fields.
func without(u *url.URL, names ...string) string {
	q := u.Query()
	for _, name := range names {
		q.Del(name)
	}
	if len(q) == 0 {
		return u.EscapedPath()
	}
	return u.EscapedPath() + "?" + q.Encode()
}
