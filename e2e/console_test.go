//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// operator is a browser without JavaScript, signed in at the console.
type operator struct{ cookie string }

func signedIn(t testing.TB) *operator {
	t.Helper()
	o := &operator{}
	resp, _ := o.do(t, http.MethodPost, "/sign-in", url.Values{"name": {"operator"}, "password": {sys.Secrets.Console}})
	for _, c := range resp.Cookies() {
		if c.Name == "__Host-console" {
			o.cookie = c.Name + "=" + c.Value
		}
	}
	if o.cookie == "" {
		t.Fatalf("signing in: %s", resp.Status)
	}
	return o
}

func (o *operator) do(t testing.TB, method, path string, form url.Values) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, sys.Console+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	req.Header.Set("Cookie", o.cookie)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

// page opens one, within a time that no dead cell may lengthen: a source is given up
// only later.
func (o *operator) page(t testing.TB, path string) string {
	t.Helper()
	start := time.Now()
	resp, text := o.do(t, http.MethodGet, path, nil)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", path, resp.Status)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("%s took %s", path, took)
	}
	return text
}

// section cuts one panel out of a page.
func section(page, panel string) string {
	_, text, _ := strings.Cut(page, `aria-labelledby="h-`+panel+`"`)
	text, _, _ = strings.Cut(text, "</section>")
	return text
}

// row cuts the row of a table out of a panel.
func row(page, panel, name string) string {
	return regexp.MustCompile(`(?s)<tr><th scope="row">` + regexp.QuoteMeta(name) + `</th>.*?</tr>`).FindString(section(page, panel))
}

// act sees the preview of an action through to the job's end.
func (o *operator) act(t testing.TB, path, typed string) {
	t.Helper()
	_, form, ok := strings.Cut(o.page(t, path), `action="/jobs"`)
	if !ok {
		t.Fatalf("%s offers nothing", path)
	}
	values := url.Values{"typed": {typed}, "reason": {"e2e"}}
	for _, m := range regexp.MustCompile(`<input type="hidden" name="([a-z]+)" value="([^"]*)">`).FindAllStringSubmatch(form, -1) {
		values.Set(m[1], m[2])
	}
	resp, text := o.do(t, http.MethodPost, "/jobs", values)
	if resp.StatusCode != http.StatusSeeOther {
		t.Fatalf("%s: %s\n%s", path, resp.Status, text)
	}
	eventually(t, patience, "the job of "+path, func() (bool, string) {
		page := o.page(t, resp.Header.Get("Location"))
		if strings.Contains(page, "job-FAILED") {
			t.Fatalf("it failed:\n%s", page)
		}
		return strings.Contains(page, "job-DONE"), ""
	})
}

// isKnown finds a value that is known, or a panel whose source is.
var isKnown = regexp.MustCompile(`class="(badge )?known"`)

// The console without JavaScript: it shows all that runs, unplugs a cell and plugs it
// in again. With a cell's agent, its bus and the global one hanging (S-R07, S-W08) it
// says what it doesn't know any more, the other cells' rows stay known, and no page
// is slower.
func TestConsole(t *testing.T) {
	o := signedIn(t)
	known := func(cell string) (bool, string) {
		got := row(o.page(t, "/"), "cells", cell)
		return strings.Contains(got, `class="badge known"`) && !strings.Contains(got, `<td class="failed">`), got
	}
	for _, c := range sys.Cells {
		eventually(t, patience, c.Name+" is known", func() (bool, string) { return known(c.Name) })
	}
	for _, panel := range []string{"route", "standby", "search", "ids", "invariants"} {
		eventually(t, patience, panel+" is known", func() (bool, string) {
			text := section(o.page(t, "/"), panel)
			return isKnown.MatchString(text) && !strings.Contains(text, `class="badge failed"`) && !strings.Contains(text, `class="badge unknown"`), text
		})
	}

	t.Cleanup(func() { cellctl(t, "plug", "c3") })
	o.act(t, "/act/unplug?cell=c3", "c3")
	linkIs(t, "c1", "c3", false)
	eventually(t, patience, "the console sees it", func() (bool, string) {
		got := row(o.page(t, "/"), "links", "c1 – c3")
		return strings.Contains(got, "badge down") && strings.Contains(got, "cut at c3"), got
	})
	for _, cell := range []string{"c1", "c2", "c4"} {
		if ok, got := known(cell); !ok {
			t.Errorf("%s, with c3 unplugged:\n%s", cell, got)
		}
	}
	o.act(t, "/act/plug?cell=c3", "c3")
	linkIs(t, "c1", "c3", true)

	stopped := []string{"c2/agent", "c2/nats", "global/nats"}
	signal := func(s syscall.Signal) {
		for _, name := range stopped {
			if err := process(t, name).Signal(s); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(func() { signal(syscall.SIGCONT) })
	signal(syscall.SIGSTOP)
	eventually(t, patience, "the console no longer knows c2", func() (bool, string) {
		got := row(o.page(t, "/"), "cells", "c2")
		return strings.Contains(got, `class="badge old"`) && strings.Contains(got, "ago)"), got
	})
	for _, cell := range []string{"c1", "c3", "c4"} {
		eventually(t, patience, cell+" is known all the same", func() (bool, string) { return known(cell) })
	}
	o.page(t, "/transfers")
	o.page(t, "/events")
	o.page(t, "/tour")
	signal(syscall.SIGCONT)
	eventually(t, patience, "c2 is known again", func() (bool, string) { return known("c2") })

	log := o.page(t, "/events?subject=c3")
	if n := strings.Count(log, "<td>c3</td>"); n < 4 {
		t.Errorf("%d events of c3, want both jobs and their ends:\n%s", n, log)
	}
	atRest(t)
	covered(t)
}

// confirm types the name and a reason into a preview, and waits for the job's end,
// which the page shows by itself.
func (b *tab) confirm(typed, equal string) {
	b.t.Helper()
	b.says(equal)
	b.fill("#typed", typed, "#reason", "in the browser")
	if got := b.press("form[action='/jobs'] button"); got != http.StatusOK {
		b.fail("the job's page = %d", got)
	}
	eventually(b.t, patience, "the job of "+typed+" is done", func() (bool, string) {
		return eval[bool](b, "!!document.querySelector('.job-DONE')"), b.text()
	})
	b.says(equal)
}

// calm says that nothing broke the policy, and no script failed.
func (b *tab) calm() {
	b.t.Helper()
	if wrongs := b.complaints(); len(wrongs) > 0 {
		b.t.Errorf("at %s the browser complains:\n%s", b.path(), strings.Join(wrongs, "\n"))
	}
}

// The console as operators have it: every action from its preview to the job's page,
// by keyboard where that is asked for, on pages that draw themselves anew.
func TestConsoleInTheBrowser(t *testing.T) {
	browser, shots := chrome(t)
	fmt.Fprintln(os.Stderr, "e2e: pictures of the console are in", shots)
	payer, payee := register(t, "c1"), register(t, "c3")
	payer.deposit(t, 1000)
	b := openTab(t, browser, sys.Console, shots)
	t.Cleanup(func() { cellctl(t, "plug", "c3"); cellctl(t, "link", "c1", "c2", "--cut", "none") })

	// signed in by keyboard alone: the skip link, then the form
	b.open("/tour?lang=en")
	b.do(chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter))
	if got := eval[string](b, "document.activeElement.id"); got != "main" {
		b.fail("the skip link leads to %q", got)
	}
	b.do(chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent("operator"), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(sys.Secrets.Console))
	if got := b.arrive(chromedp.KeyEvent(kb.Enter)); got != http.StatusOK || b.path() != "/tour?lang=en" {
		b.fail("signing in leads to %s, %d", b.path(), got)
	}

	// the tour: unplug c3, see who is hurt, send money there, operate on it, plug
	b.press("main a[href='/act/unplug']")
	b.do(chromedp.SetValue(chromedp.CSS("#cell"), "c3"))
	b.press("main form[method='get'] button")
	b.confirm("c3", "bin/cellctl unplug c3")
	b.shoot("unplug done")
	linkIs(t, "c1", "c3", false)
	b.open("/tour")
	eval[bool](b, "window.untouched = true")
	b.says("unplugged", "0 / 4", "3 / 4")
	send := func(amount int64) string {
		return payer.want(t, http.StatusAccepted, "POST", "/transfers", fresh("pay"), map[string]any{"to_user": payee.id, "amount": amount, "currency": "CNY"}).str("id")
	}
	first, second := send(70), send(80)
	eventually(t, patience, "the tour shows both transfers by itself", func() (bool, string) {
		return eval[bool](b, "[...document.querySelectorAll('tr')].some(r => r.cells[0].innerText == 'c1' && r.cells[6].innerText == '2')"), b.text()
	})
	if !eval[bool](b, "window.untouched") {
		t.Error("the tour was loaded again, not drawn anew")
	}
	b.shoot("tour")
	b.open("/transfers/" + first)
	b.says("FROZEN", "posted freeze")
	b.press("main a[href^='/act/retry']")
	b.confirm(first, "bin/cellctl transfer --retry")
	b.open("/act/cancel?transfer=" + second)
	b.confirm(second, "bin/cellctl transfer --cancel")
	b.open("/act/plug?cell=c3")
	b.fill("#typed", "c2", "#reason", "the wrong name")
	if got := b.press("form[action='/jobs'] button"); got != http.StatusUnprocessableEntity {
		b.fail("a wrong name = %d", got)
	}
	b.says("is not c3")
	b.confirm("c3", "bin/cellctl plug c3")
	linkIs(t, "c1", "c3", true)
	payer.transfer(t, first, "SETTLED")
	eventually(t, patience, "the cancelled transfer ends", func() (bool, string) {
		s := payer.do(t, "GET", "/transfers/"+second, "", nil)
		return s.str("state") == "REVERSED" || s.str("state") == "SETTLED", s.String()
	})
	b.open("/act/delay?cell=c1&peer=c2&delay=40")
	b.confirm("c1-c2", "bin/cellctl link --delay=40ms c1 c2")
	b.open("/")
	b.says("delay at c1: 40 ms")
	b.shoot("overview")
	b.scripts(false) // the same without JavaScript: the job's page is asked for again by hand
	b.open("/act/delay?cell=c1&peer=c2&delay=0")
	b.says("bin/cellctl link --delay=0s c1 c2")
	b.fill("#typed", "c1-c2", "#reason", "without JavaScript")
	b.press("form[action='/jobs'] button")
	eventually(t, patience, "the job is done", func() (bool, string) {
		b.press("main a[href^='/jobs/']")
		return eval[bool](b, "!!document.querySelector('.job-DONE')"), b.text()
	})
	b.scripts(true)
	b.open("/act/drill?drill=unplug&cell=c4") // TestDrills runs them
	b.says("bin/cellctl drill --short --cell=c4 unplug")
	job := regexp.MustCompile(`/jobs/[a-z0-9]+`).FindString(eval[string](b, "fetch('/events').then(r => r.text())"))
	b.calm()

	for name, part := range map[string]func(*testing.T){
		"S-W06 one stream, none while hidden": func(t *testing.T) { streams(t, b) },
		"no words: stale":                     func(t *testing.T) { silence(t, b) },
		"S-W02 sibling origin":                func(t *testing.T) { sibling(t, b) },
		"every page":                          func(t *testing.T) { barrierFree(t, b, first, job) },
	} {
		t.Run(name, func(t *testing.T) { b.t = t; part(t) })
	}
	b.t = t
	atRest(t)
	covered(t)
}

// S-W06: a tab has one stream, and none while nobody sees it.
func streams(t *testing.T, b *tab) {
	b.open("/tour")
	eval[bool](b, `(() => {
		window.streams = 1; // the one that the page began with
		const made = EventSource, close = made.prototype.close;
		made.prototype.close = function () { if (this.readyState !== made.CLOSED) streams--; close.call(this); };
		window.EventSource = new Proxy(made, { construct: (of, a) => (streams++, new of(...a)) });
		return true;
	})()`)
	see := func(hidden bool) int {
		return eval[int](b, fmt.Sprintf(`(Object.defineProperty(document, "hidden", {value: %v, configurable: true}),
			document.dispatchEvent(new Event("visibilitychange")), streams)`, hidden))
	}
	for range 3 {
		if n := see(true); n > 0 {
			t.Errorf("%d streams while hidden", n)
		}
		if n := see(false); n != 1 {
			t.Errorf("%d streams when seen again, want 1", n)
		}
	}
}

// A stream that has lost its connection without a word: the page says that it's stale,
// and asks by itself. It waits 40 s for that, here 50 ms.
func silence(t *testing.T, b *tab) {
	b.open("/tour?lang=en")
	eval[bool](b, `(() => {
		const after = window.setTimeout;
		window.setTimeout = (f, ms, ...a) => after(f, ms == 40000 ? 50 : ms, ...a);
		return true;
	})()`)
	b.hide(true)
	b.hide(false)
	eventually(t, patience, "the page says that it's stale", func() (bool, string) {
		return eval[bool](b, `!!document.querySelector("[data-live].stale") && document.querySelector("#say").className == "silent"`), b.text()
	})
	b.says("No news from the console")
	b.shoot("stale")
	const asked = `performance.getEntriesByName(location.href).filter(e => e.initiatorType == "fetch").length`
	before := eval[int](b, asked)
	eventually(t, patience, "it asks by itself", func() (bool, string) {
		return eval[int](b, asked) > before+1, b.text() // one may have been on its way
	})
}

// A page of a sibling origin, on another port of the same host, can't drive the
// console, though the browser sends the cookie along (S-W02).
func sibling(t *testing.T, b *tab) {
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<form method="post" action="%s/jobs"><input name="job" value="%s"><input name="kind" value="unplug"><input name="cell" value="c4">
			<input name="typed" value="c4"><input name="reason" value="none"><button>go</button></form>`, sys.Console, strings.Repeat("a", 26))
	}))
	t.Cleanup(site.Close)
	b.arrive(chromedp.Navigate(site.URL))
	eval[bool](b, "document.querySelector('button').click(), true")
	eventually(t, patience, "the answer to a sibling's post", func() (bool, string) {
		status := eval[int](b, "performance.getEntriesByType('navigation')[0].responseStatus")
		return b.path() == "/jobs" && status == http.StatusForbidden, fmt.Sprint(status, b.text())
	})
	if s, err := sys.agents["c4"].Status(t.Context()); err != nil || s.Faults["*"].CutIn {
		t.Errorf("c4 after it: %+v, %v", s.Faults, err)
	}
	b.complaints() // of the 403
}

// axe finds nothing on any page, in both languages and colour schemes, and the policy
// is broken by none. After the first look only what a language or a scheme can change
// is looked at again.
func barrierFree(t *testing.T, b *tab, transfer, job string) {
	if job == "" {
		t.Error("no job's page was found")
	}
	code, why := axe(t)
	if why != "" {
		skipped(t, why)
	}
	for _, path := range []string{
		"/", "/transfers", "/transfers/" + transfer, "/events", "/tour", "/password", "/sign-in", "/nothing", job,
		"/act/unplug?cell=c3", "/act/delay?cell=c1&peer=c2&delay=99999", "/act/drill?drill=unplug&cell=c3", "/act/retry?transfer=" + transfer,
	} {
		for _, lang := range []string{"en", "zh"} {
			b.open(path + map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")] + "lang=" + lang)
			for _, scheme := range []string{"light", "dark"} {
				b.scheme(scheme)
				var rules []string
				switch {
				case scheme == "dark":
					rules = []string{"color-contrast"}
				case lang != "en":
					rules = []string{"html-lang-valid", "valid-lang", "document-title", "label", "link-name", "button-name", "landmark-unique", "color-contrast"}
				}
				for _, found := range b.barriers(code, rules...) {
					t.Errorf("%s in %s, %s: %s", path, lang, scheme, found)
				}
			}
			b.calm()
		}
	}
}
