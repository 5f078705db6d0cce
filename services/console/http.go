package console

import (
	"bytes"
	"embed"
	"encoding/csv"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
)

//go:embed templates/*.html
var templates embed.FS

//go:embed static
var static embed.FS

// policy lets a page have this origin's styles, scripts, pictures and requests, and
// nothing inline.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// sessionCookie is for this origin only: the browser refuses the name otherwise.
const sessionCookie = "__Host-console"

const (
	maxReason = 200
	listed    = 100
	exported  = 10_000
	keepLimit = 5 * time.Second
)

// server answers browsers.
type server struct {
	collector *collector
	sessions  *sessions
	actions   *actions
	records   records
	langs     map[string]*Lang
	pages     map[string]*template.Template
	shop      string // its public address; "" = the tour has no link there
	log       *slog.Logger
	now       func() time.Time
	stop      <-chan struct{} // its end ends the streams, so that they don't hold up the shutdown
	streams   atomic.Int64
	writes    time.Duration // limit of a stream's word
}

func newServer(c *collector, s *sessions, a *actions, r records, stop <-chan struct{}, log *slog.Logger) (*server, error) {
	langs, err := loadLangs()
	if err != nil {
		return nil, err
	}
	out := &server{collector: c, sessions: s, actions: a, records: r, langs: langs, pages: map[string]*template.Template{}, log: log, now: time.Now, stop: stop, writes: liveWrite}
	for _, name := range []string{"overview", "transfers", "transfer", "events", "act", "job", "tour", "password", "signin", "error"} {
		if out.pages[name], err = template.ParseFS(templates, "templates/layout.html", "templates/"+name+".html"); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// handler is all of it: cross-site posts are refused before anything else looks at them.
func (s *server) handler() (http.Handler, error) {
	files, err := fs.Sub(static, "static")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /static/{file}", func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, files, r.PathValue("file")) })
	mux.HandleFunc("GET /sign-in", s.handleSignInForm)
	mux.HandleFunc("POST /sign-in", s.handleSignIn)
	mux.HandleFunc("POST /sign-out", s.handleSignOut)
	mux.HandleFunc("GET /password", s.signedIn(s.handlePasswordForm))
	mux.HandleFunc("POST /password", s.signedIn(s.handlePassword))
	mux.HandleFunc("GET /{$}", s.signedIn(s.handleOverview))
	mux.HandleFunc("GET /transfers", s.signedIn(s.handleTransfers))
	mux.HandleFunc("GET /transfers/{id}", s.signedIn(s.handleTransfer))
	mux.HandleFunc("GET /tour", s.signedIn(s.handleTour))
	mux.HandleFunc("GET "+livePath, s.signedIn(s.handleLive))
	mux.HandleFunc("GET /events", s.signedIn(s.handleEvents))
	mux.HandleFunc("GET /events.csv", s.signedIn(s.handleExport))
	mux.HandleFunc("GET /act/{kind}", s.signedIn(s.handlePlan))
	mux.HandleFunc("POST /jobs", s.signedIn(s.handleBegin))
	mux.HandleFunc("GET /jobs/{id}", s.signedIn(s.handleJob))
	mux.HandleFunc("/", s.signedIn(func(w http.ResponseWriter, r *http.Request, operator string) {
		s.fail(w, r, operator, errs.ErrNotFound)
	}))
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.render(w, r, http.StatusForbidden, "error", "", "title.error", problemView{Code: "FORBIDDEN", Text: "error.cross"})
	}))
	return headers(cross.Handler(mux)), nil
}

// headers are every answer's.
func headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		h.Set("Vary", "Accept-Language, Cookie")
		next.ServeHTTP(w, r)
	})
}

// signedIn lets operators through and sends others to sign in.
func (s *server) signedIn(next func(http.ResponseWriter, *http.Request, string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		operator, err := s.sessions.who(r.Context(), token(r))
		switch {
		case err != nil:
			s.fail(w, r, "", err)
		case operator == "" && r.Method == http.MethodGet:
			http.Redirect(w, r, "/sign-in?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
		case operator == "":
			http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
		default:
			s.collector.look()
			next(w, r, operator)
		}
	}
}

func token(r *http.Request) string {
	if c, err := r.Cookie(sessionCookie); err == nil {
		return c.Value
	}
	return ""
}

// pageView is what the layout is drawn from.
type pageView struct {
	L        *Lang
	Title    string
	Operator string
	Path     string // with its query but without lang, for the links to the other language
	Now      string
	Kinds    []string
	V        any
}

func (s *server) render(w http.ResponseWriter, r *http.Request, status int, name, operator, title string, v any) {
	l := langOf(r, s.langs)
	q := r.URL.Query()
	if asked := q.Get("lang"); s.langs[asked] != nil {
		http.SetCookie(w, &http.Cookie{Name: langCookie, Value: asked, Path: "/", MaxAge: 365 * 24 * 3600, HttpOnly: true, SameSite: http.SameSiteLaxMode})
	}
	q.Del("lang")
	path := r.URL.Path + "?"
	if r.Method != http.MethodGet {
		path = "/?" // a post has no address to come back to
	} else if len(q) > 0 {
		path += q.Encode() + "&"
	}
	var b bytes.Buffer
	view := pageView{L: l, Title: title, Operator: operator, Path: path, Now: s.now().UTC().Format(time.RFC3339), Kinds: actionKinds, V: v}
	if err := s.pages[name].ExecuteTemplate(&b, "layout", view); err != nil {
		s.log.Error("page", "page", name, "error", err)
		http.Error(w, "500", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}

// problemView is an error page.
type problemView struct{ Code, Text, Detail, RequestID string }

func (s *server) fail(w http.ResponseWriter, r *http.Request, operator string, err error) {
	e := errs.From(err)
	if e.HTTPStatus() >= 500 {
		s.log.Warn("console", "path", r.URL.Path, "error", err)
	}
	v := problemView{Code: e.Code, Text: "error." + e.Kind.String(), RequestID: call.RequestID(r.Context())}
	if e.HTTPStatus() < 500 {
		v.Detail = e.Message
	}
	if e.HTTPStatus() == http.StatusServiceUnavailable || e.HTTPStatus() == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	s.render(w, r, e.HTTPStatus(), "error", operator, "title.error", v)
}

func (s *server) viewer(r *http.Request) viewer {
	return viewer{s: s.collector.snapshot(), l: langOf(r, s.langs), now: s.now(), each: s.collector.each}
}

func (s *server) handleOverview(w http.ResponseWriter, r *http.Request, operator string) {
	s.render(w, r, http.StatusOK, "overview", operator, "title.overview", s.viewer(r).overview(s.collector.checkEach))
}

func (s *server) handleTransfers(w http.ResponseWriter, r *http.Request, operator string) {
	if text := strings.TrimSpace(r.URL.Query().Get("id")); text != "" {
		if _, err := id.Parse(text); err != nil {
			s.fail(w, r, operator, errs.Field("id", "is not a transfer's ID"))
			return
		}
		http.Redirect(w, r, "/transfers/"+text, http.StatusSeeOther)
		return
	}
	s.render(w, r, http.StatusOK, "transfers", operator, "title.transfers", s.viewer(r).transfers())
}

func (s *server) handleTransfer(w http.ResponseWriter, r *http.Request, operator string) {
	if _, err := id.Parse(r.PathValue("id")); err != nil {
		s.fail(w, r, operator, errs.ErrNotFound)
		return
	}
	k := s.actions.story(r.Context(), r.PathValue("id"))
	if len(k.Sides) == 0 && len(k.Missing) == 0 {
		s.fail(w, r, operator, errs.ErrNotFound)
		return
	}
	s.render(w, r, http.StatusOK, "transfer", operator, "title.transfer", k)
}

func (s *server) handleTour(w http.ResponseWriter, r *http.Request, operator string) {
	s.render(w, r, http.StatusOK, "tour", operator, "title.tour", s.viewer(r).tour(s.shop))
}

// eventsView is the log.
type eventsView struct {
	Filter Filter
	Kinds  []string
	Events []Event
	Older  string // the address of the page after this one; "" = there is none
	Export string
}

func filterOf(q url.Values) Filter {
	before, _ := strconv.ParseInt(q.Get("before"), 10, 64) // what is no number asks for the newest
	return Filter{Operator: q.Get("operator"), What: q.Get("what"), Subject: q.Get("subject"), Before: before}
}

func (f Filter) query() url.Values {
	q := url.Values{}
	for name, v := range map[string]string{"operator": f.Operator, "what": f.What, "subject": f.Subject} {
		if v != "" {
			q.Set(name, v)
		}
	}
	return q
}

func (s *server) handleEvents(w http.ResponseWriter, r *http.Request, operator string) {
	f := filterOf(r.URL.Query())
	all, err := s.records.events(r.Context(), f, listed+1)
	if err != nil {
		s.fail(w, r, operator, err)
		return
	}
	v := eventsView{Filter: f, Kinds: eventKinds, Events: all, Export: "/events.csv?" + f.query().Encode()}
	if len(all) > listed {
		v.Events = all[:listed]
		q := f.query()
		q.Set("before", strconv.FormatInt(all[listed-1].Seq, 10))
		v.Older = "/events?" + q.Encode()
	}
	s.render(w, r, http.StatusOK, "events", operator, "title.events", v)
}

func (s *server) handleExport(w http.ResponseWriter, r *http.Request, operator string) {
	all, err := s.records.events(r.Context(), filterOf(r.URL.Query()), exported)
	if err != nil {
		s.fail(w, r, operator, err)
		return
	}
	var b bytes.Buffer
	out := csv.NewWriter(&b)
	_ = out.Write([]string{"seq", "at", "operator", "what", "subject", "detail"}) // a buffer takes all
	for _, e := range all {
		_ = out.Write([]string{strconv.FormatInt(e.Seq, 10), e.At.UTC().Format(time.RFC3339Nano), plain(e.Operator), e.What, plain(e.Subject), plain(e.Detail)})
	}
	out.Flush()
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="events.csv"`)
	_, _ = w.Write(b.Bytes())
}

// plain keeps a spreadsheet from taking a text for a formula.
func plain(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0])) {
		return "'" + text
	}
	return text
}
