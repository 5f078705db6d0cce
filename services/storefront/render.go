package storefront

import (
	"bytes"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

// What the pages themselves refuse; fail has the words.
var (
	errNotFound    = errors.New("no such page")
	errNoSession   = errors.New("nobody is logged in")
	errCrossOrigin = errors.New("a form of another origin")
	errForm        = errors.New("not a form of this shop")
)

// page is what a template sees. P is what only that page has.
type page struct {
	v *visit

	Name    string // of the template
	Title   string
	Lang    string
	Users   bool // somebody is logged in
	Wait    bool // asked for again until it has come to its end
	Trouble *trouble
	Key     string // idempotency key of the page's form
	Seen    served
	Slot    string
	Cell    string // made the page
	P       any

	at string // where the page is found by GET
}

// trouble is what the error summary says.
type trouble struct {
	Text      string
	Field     string // of the form: its element's ID
	Cell      string // that is away
	RequestID string
	Again     bool // the same wish may be sent again
}

func readPages() (map[string]*template.Template, error) {
	names, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		return nil, err
	}
	base, err := template.New("layout.html").ParseFS(files, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, err
	}
	out := map[string]*template.Template{}
	for _, file := range names {
		name := strings.TrimSuffix(path.Base(file), ".html")
		if name == "layout" || name == "parts" {
			continue
		}
		own, err := base.Clone()
		if err != nil {
			return nil, err
		}
		if out[name], err = own.ParseFS(files, file); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// page begins a page; title is one of the words.
func (v *visit) page(name, title string, p any) *page {
	return &page{v: v, Name: name, Title: v.shop.text(v.lang, title), Lang: v.lang, P: p, at: v.here()}
}

// show writes a page with status 200.
func (v *visit) show(p *page) error { return v.write(http.StatusOK, p) }

func (v *visit) write(status int, p *page) error {
	p.Users, p.Cell, p.Slot = v.token != "", v.shop.cell, v.slot()
	p.Seen, v.waits = v.served(), p.Wait
	t, ok := v.shop.pages[p.Name]
	if !ok {
		return fmt.Errorf("no template %s", p.Name)
	}
	var out bytes.Buffer
	if err := t.Execute(&out, p); err != nil {
		return fmt.Errorf("page %s: %w", p.Name, err)
	}
	h := v.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Language", v.lang)
	h.Set("Content-Length", strconv.Itoa(out.Len()))
	v.w.WriteHeader(status)
	if v.r.Method != http.MethodHead {
		_, _ = out.WriteTo(v.w) // who can't be written to is gone
	}
	return nil
}

// fail answers with the page for an error. Somebody else's is 404 like what
// isn't there. What nobody foresaw shows the request id and nothing more.
func (v *visit) fail(err error) {
	var known *errs.Error
	errors.As(err, &known)
	switch {
	case errors.Is(err, errNoSession), known != nil && known.Kind == errs.Unauthenticated:
		v.toLogin(known != nil)
		return
	case errors.Is(err, errNotFound), known != nil && (known.Kind == errs.NotFound || known.Kind == errs.Forbidden):
		v.failPage(http.StatusNotFound, "notfound", "notfound.title", nil)
	case errors.Is(err, errCrossOrigin):
		v.failPage(http.StatusForbidden, "failed", "failed.title", &trouble{Text: v.text("failed.origin")})
	case errors.Is(err, errForm):
		v.failPage(http.StatusBadRequest, "failed", "failed.title", &trouble{Text: v.text("failed.form")})
	case known != nil && known.Kind == errs.Unavailable:
		v.w.Header().Set("Retry-After", strconv.FormatInt(max(1, int64((known.RetryAfter+time.Second-1)/time.Second)), 10))
		v.failPage(http.StatusServiceUnavailable, "away", "away.title", v.trouble(err))
	case known != nil && known.Kind != errs.Internal:
		v.failPage(known.HTTPStatus(), "failed", "failed.title", v.trouble(err))
	default:
		v.noted(err)
		v.failPage(http.StatusInternalServerError, "failed", "failed.title", &trouble{Text: v.text("failed.unknown"), RequestID: v.requestID})
	}
}

// noted logs what people aren't told.
func (v *visit) noted(err error) {
	v.log.ErrorContext(v.ctx, "page", "request_id", v.requestID, "method", v.r.Method, "path", v.r.URL.Path, "error", err)
}

func (v *visit) failPage(status int, name, title string, t *trouble) {
	p := v.page(name, title, nil)
	p.Trouble = t
	if v.r.Method != http.MethodGet && v.r.Method != http.MethodHead {
		p.at = "/"
	}
	if err := v.write(status, p); err != nil { // a template of ours is wrong
		v.noted(err)
		http.Error(v.w, "Something went wrong. Request "+v.requestID, http.StatusInternalServerError)
	}
}

// toLogin sends to the login, and back to where the visitor was: for a form, to
// the page that it was on.
func (v *visit) toLogin(over bool) {
	next := v.here()
	if over && cookieValue(v.r, cookieRefresh) != "" && v.r.Method == http.MethodGet && cookieValue(v.r, cookieSession) != "" {
		setCookie(v.w, cookieSession, "", 0) // it may go on by the refresh token
		_ = v.see(next)
		return
	}
	if v.r.Method != http.MethodGet && v.r.Method != http.MethodHead {
		next = "/"
		if u, err := url.Parse(v.r.Referer()); err == nil && u.Path != "" {
			next = local(u.RequestURI())
		}
	}
	q := url.Values{"next": {next}}
	if over {
		q.Set("over", "1")
		setCookie(v.w, cookieSession, "", 0)
	}
	_ = v.see("/login?" + q.Encode())
}

// trouble has the words for a refusal: by code, else by what may be done.
func (v *visit) trouble(err error) *trouble {
	var known *errs.Error
	if !errors.As(err, &known) || known.Kind == errs.Internal {
		return &trouble{Text: v.text("failed.unknown"), RequestID: v.requestID}
	}
	t := &trouble{Field: fieldOf(known.Field), Cell: known.Cell}
	switch {
	case v.shop.has("error." + known.Code):
		t.Text = v.text("error." + known.Code)
	case known.Kind == errs.Unavailable:
		t.Text = v.text("error.unavailable")
	default:
		t.Text = v.text("error.refused", known.Code)
	}
	if t.Cell != "" && known.Kind == errs.Unavailable {
		t.Text = v.text("error.cell", t.Cell)
	}
	if known.Code == errs.ErrUnknown.Code {
		t.Text = v.text("error.OUTCOME_UNKNOWN")
	}
	return t
}

// fieldWords name the fields of the forms.
var fieldWords = map[string]string{
	"phone": "login.phone", "password": "login.password", "name": "register.name", "group": "register.group",
	"amount": "transfer.amount", "memo": "transfer.memo", "quantity": "product.quantity",
	"recipient": "address.recipient", "line": "address.line", "city": "address.city", "postcode": "address.postcode",
}

// fieldOf gives the form's field for one of the API's, empty if no form has it.
func fieldOf(name string) string {
	if name == "to_phone" {
		name = "phone"
	}
	if fieldWords[name] == "" {
		return ""
	}
	return name
}

// FieldName names a form's field.
func (p *page) FieldName(field string) string { return p.T(fieldWords[field]) }

// again says that the same wish may be sent again under the same key: nobody
// knows that it was refused for good.
func again(e *errs.Error) bool {
	return e.Kind == errs.Unavailable || e.Kind == errs.Exhausted || e.Code == codeInFlight
}

// refused shows a form again with what is wrong with it, under a new key. A wish
// that is still open stays as it is, under its key: there is a button that sends it
// again. What isn't about the form is given back for fail.
func (v *visit) refused(err error, key string, form func() (*page, error)) error {
	var known *errs.Error
	if !errors.As(err, &known) || known.Kind == errs.Internal || known.Kind == errs.Unauthenticated ||
		known.Kind == errs.NotFound || known.Kind == errs.Forbidden {
		return err
	}
	open := again(known) && key != ""
	if open && !v.r.PostForm.Has("password") { // which isn't written back
		form = v.resendPage
	}
	p, formErr := form()
	if formErr != nil {
		return err // what the form shows is away, too
	}
	p.Trouble, p.Key = v.trouble(err), newKey()
	if p.Trouble.Again = open; open {
		p.Key = key
	}
	if again(known) {
		v.w.Header().Set("Retry-After", "1")
	}
	return v.write(known.HTTPStatus(), p)
}

// wanted is a form as it was sent.
type wanted struct {
	Action string
	Fields []field
}

type field struct{ Name, Value string }

// resendPage has the form as it was sent.
func (v *visit) resendPage() (*page, error) {
	w := wanted{Action: v.r.URL.EscapedPath()}
	for _, name := range slices.Sorted(maps.Keys(v.r.PostForm)) {
		w.Fields = append(w.Fields, field{name, v.r.PostForm.Get(name)})
	}
	p := v.page("resend", "away.title", w)
	p.at = "/"
	return p, nil
}

// wrong shows a form again whose field can't be what it should.
func (v *visit) wrong(field, text string, form func() (*page, error)) error {
	p, err := form()
	if err != nil {
		return err
	}
	p.Trouble, p.Key = &trouble{Text: v.text(text), Field: field}, newKey()
	return v.write(http.StatusBadRequest, p)
}

// T gives the words for a key in the page's language.
func (p *page) T(key string, args ...any) string { return p.v.text(key, args...) }

// Word gives the words for one of a fixed set that the API names; one that is new
// there is shown as it is.
func (p *page) Word(set, name string) string {
	if key := set + "." + name; p.v.shop.has(key) {
		return p.v.text(key)
	}
	return name
}

// Category gives the name of a category that the project brings; others have
// the name that the catalog says.
func (p *page) Category(c category) string {
	if key := "category." + c.ID; p.v.shop.has(key) {
		return p.v.text(key)
	}
	return c.Name
}

// Money writes an amount of minor units.
func (p *page) Money(amount int64, currency string) string {
	return currency + " " + decimal(amount, currency)
}

// Price is Money of what may be missing.
func (p *page) Price(m *money) string {
	if m == nil {
		return ""
	}
	return p.Money(m.Amount, m.Currency)
}

// When writes a time as machines read it.
func (p *page) When(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// At writes a time for people.
func (p *page) At(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// Asset is the address of a file of the shop.
func (p *page) Asset(name string) string { return p.v.shop.assetPath(name) }

// Form gives what was typed into a field.
func (p *page) Form(name string) string { return p.v.form(name) }

// Guests counts the SKUs in the cart of who isn't logged in.
func (p *page) Guests() int { return len(p.v.guest) }

// Path is the page's own address, for coming back to it.
func (p *page) Path() string { return p.at }

// langLink leads to the page in another language.
type langLink struct {
	Lang, Name, Href string
	Current          bool
}

// Langs lists the languages.
func (p *page) Langs() []langLink {
	sep := "?"
	if strings.Contains(p.at, "?") {
		sep = "&"
	}
	var out []langLink
	for _, l := range languages {
		out = append(out, langLink{Lang: l, Name: p.v.shop.text(l, "lang.name"), Href: p.at + sep + "lang=" + l, Current: l == p.Lang})
	}
	return out
}

// Plain writes an amount as a form's field takes it.
func (p *page) Plain(amount int64, currency string) string { return decimal(amount, currency) }
