package storefront

import (
	"embed"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

//go:embed templates assets words
var files embed.FS

// Shop has what all pages share. But for the count it doesn't change once it is made.
type Shop struct {
	cell   string
	demo   func() []Login
	pages  map[string]*template.Template
	words  map[string]words
	assets map[string]asset
	cross  *http.CrossOriginProtection

	streams atomic.Int64  // that are open
	each    time.Duration // between two looks of a stream
}

// Login is one of the demo's accounts, as the seed writes them.
type Login struct {
	Name     string `json:"name"`
	Phone    string `json:"phone"`
	Password string `json:"password"`
	Role     string `json:"role"`
	Cell     string `json:"cell"`
}

// New reads the templates, words and files for the gateway of a cell. demo gives the
// demo's accounts that there are by now.
func New(cell string, demo func() []Login) (*Shop, error) {
	s := &Shop{cell: cell, demo: demo, cross: http.NewCrossOriginProtection(), each: streamEach}
	var err error
	if s.words, err = readWords(); err != nil {
		return nil, err
	}
	if s.assets, err = readAssets(); err != nil {
		return nil, err
	}
	if s.pages, err = readPages(); err != nil {
		return nil, err
	}
	return s, nil
}

// route is one page, or one thing that a form does.
type route struct {
	pattern string // of http.ServeMux
	do      func(*visit) error
	users   bool // who isn't logged in is sent to the login
}

func routes() []route {
	return []route{
		{"GET /{$}", (*visit).home, false},
		{"GET /categories/{category}", (*visit).category, false},
		{"GET /search", (*visit).search, false},
		{"GET /products/{id}", (*visit).product, false},
		{"GET /demo", (*visit).demo, false},

		{"GET /cart", (*visit).cart, false},
		{"POST /cart/items", (*visit).putItem, false},
		{"GET /checkout", (*visit).checkout, true},
		{"POST /checkout", (*visit).place, true},
		{"GET /orders", (*visit).orders, true},
		{"GET /orders/{number}", (*visit).order, true},
		{"POST /orders/{number}/cancel", (*visit).cancelOrder, true},

		{"GET /login", (*visit).loginForm, false},
		{"POST /login", (*visit).login, false},
		{"POST /logout", (*visit).logout, false},
		{"GET /register", (*visit).registerForm, false},
		{"POST /register", (*visit).register, false},
		{"GET /register/{id}", (*visit).registration, false},
		{"GET /account", (*visit).account, true},
		{"POST /account/name", (*visit).rename, true},
		{"POST /account/addresses", (*visit).addAddress, true},
		{"POST /account/addresses/{id}/delete", (*visit).dropAddress, true},

		{"GET /wallet", (*visit).wallet, true},
		{"GET /wallet/statement", (*visit).statement, true},
		{"POST /wallet/deposits", (*visit).deposit, true},
		{"POST /wallet/withdrawals", (*visit).withdraw, true},
		{"GET /transfers", (*visit).transfers, true},
		{"GET /transfers/new", (*visit).transferForm, true},
		{"POST /transfers/preview", (*visit).previewTransfer, true},
		{"POST /transfers", (*visit).sendTransfer, true},
		{"GET /transfers/{id}", (*visit).transfer, true},
		{"POST /transfers/{id}/cancel", (*visit).cancelTransfer, true},
	}
}

// Patterns lists the pages as "GET /orders/{number}", for who mounts them and
// counts by page.
func Patterns() []string {
	out := []string{"GET /assets/{version}/{name}", "GET /pictures/{category}/{name}"}
	for _, r := range routes() {
		out = append(out, strings.TrimSuffix(r.pattern, "{$}"))
	}
	return out
}

// Handler serves the pages; api is where /api/v1 is answered. What it doesn't
// tell people goes to the log (nil: nowhere).
func (s *Shop) Handler(api http.Handler, log *slog.Logger) http.Handler {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	mux := http.NewServeMux()
	for _, r := range routes() {
		mux.Handle(r.pattern, s.serve(api, log, r))
	}
	mux.HandleFunc("GET /assets/{version}/{name}", s.serveAsset)
	mux.HandleFunc("GET /pictures/{category}/{name}", servePicture)
	mux.Handle("/", s.serve(api, log, route{do: func(*visit) error { return errNotFound }}))
	return mux
}

// policy lets a page load its own style, script and pictures, and nothing else.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func setHeaders(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// serve is what is around every page.
func (s *Shop) serve(api http.Handler, log *slog.Logger, rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := s.newVisit(api, w, r)
		v.log = log
		setHeaders(w.Header())
		w.Header().Set("Vary", "Accept-Language, Cookie")
		w.Header().Set("Cache-Control", "private, no-cache")
		if v.token != "" {
			w.Header().Set("Cache-Control", "no-store")
		}
		if err := v.run(rt); err != nil {
			v.fail(err)
		}
	})
}

func (v *visit) run(rt route) error {
	if err := v.shop.cross.Check(v.r); err != nil {
		return fmt.Errorf("%w: %w", errCrossOrigin, err)
	}
	if err := v.r.ParseForm(); err != nil {
		return fmt.Errorf("%w: %w", errForm, err)
	}
	v.goOn()
	switch {
	case rt.users && v.lapsed != nil:
		return v.lapsed
	case rt.users && v.token == "":
		return errNoSession
	}
	if v.wantsStream() {
		return v.stream(rt)
	}
	return rt.do(v)
}
