//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// glance is how long a browser may take for one thing; a busy machine needs some.
const glance = 30 * time.Second

// skipped says so also where nobody reads a test's own words.
func skipped(t testing.TB, why string) {
	t.Helper()
	fmt.Fprintf(os.Stderr, "SKIPPED: %s: %s\n", t.Name(), why)
	t.Skip(why)
}

// chrome starts a headless browser; shots is where its pictures go.
func chrome(t *testing.T) (ctx context.Context, shots string) {
	t.Helper()
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		skipped(t, "there is no chromium (apt-get install chromium)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.WindowSize(1200, 900))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium has none for root
	}
	ctx, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, end := chromedp.NewContext(ctx)
	t.Cleanup(end)
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil {
		t.Fatalf("start %s: %v", program, err)
	}
	shots = filepath.Join(os.TempDir(), "cellmart-screenshots", t.Name()) // each test has its own
	if err := os.RemoveAll(shots); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(shots, 0o755); err != nil {
		t.Fatal(err)
	}
	return ctx, shots
}

// tab is somebody at a browser of their own: no cookie is shared with another tab.
type tab struct {
	t     *testing.T
	ctx   context.Context
	base  string
	shots string

	mu     sync.Mutex
	wrongs []string                   // what the browser complained about
	events int                        // that streams brought
	live   map[network.RequestID]bool // streams
}

func openTab(t *testing.T, browser context.Context, base, shots string) *tab {
	t.Helper()
	ctx, end := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(end)
	b := &tab{t: t, ctx: ctx, base: base, shots: shots, live: map[network.RequestID]bool{}}
	if err := chromedp.Listen(ctx, b.hear); err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, log.Enable, cdp.Empty{})
		return err
	}))
	return b
}

// hear notes what breaks the policy, and scripts that fail. An answer of 4xx or 5xx
// is no complaint: the test asks for some.
func (b *tab) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Source != "network" && e.Entry.Level == "error" || strings.Contains(e.Entry.Text, "Content Security Policy") {
			b.wrongs = append(b.wrongs, e.Entry.Text)
		}
	case *runtime.EventExceptionThrown:
		b.wrongs = append(b.wrongs, e.ExceptionDetails.Text)
	case *network.EventEventSourceMessageReceived:
		b.events++
	case *network.EventRequestWillBeSent:
		if e.Type == network.ResourceTypeEventSource {
			b.live[e.RequestID] = true
		}
	case *network.EventLoadingFailed:
		delete(b.live, e.RequestID)
	case *network.EventLoadingFinished:
		delete(b.live, e.RequestID)
	}
}

// complaints gives what the browser complained about, once.
func (b *tab) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.wrongs
	b.wrongs = nil
	return out
}

func (b *tab) streamed() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.events
}

// streams says how many are open.
func (b *tab) streams() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.live)
}

// hide has the page believe that its tab is in the background, or isn't any more.
func (b *tab) hide(hidden bool) {
	b.t.Helper()
	eval[bool](b, fmt.Sprintf(`Object.defineProperty(document, "hidden", {value: %v, configurable: true});
		document.dispatchEvent(new Event("visibilitychange"))`, hidden))
}

// limited gives one thing its time.
func (b *tab) limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(b.ctx, glance)
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := b.limited()
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.fail("%v", err)
	}
}

// fail ends the test with what the tab shows.
func (b *tab) fail(format string, a ...any) {
	b.t.Helper()
	b.shoot("failed")
	b.t.Fatalf("%s\nat %s:\n%s", fmt.Sprintf(format, a...), eval[string](b, "location.href"), b.text())
}

// eval gives an expression's value, the type's zero when there is none (a page is
// just being left).
func eval[T any](b *tab, js string) T {
	ctx, cancel := b.limited()
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](js, chromedp.EvalAwaitPromise))
	if err != nil && ctx.Err() != nil {
		b.t.Errorf("%.80s: %v", js, err)
	}
	return v
}

func (b *tab) text() string { return eval[string](b, "document.body?.innerText ?? ''") }

func (b *tab) path() string {
	u, err := url.Parse(eval[string](b, "location.href"))
	if err != nil {
		return ""
	}
	return u.RequestURI()
}

// open gets a page and gives its status.
func (b *tab) open(path string) int64 {
	b.t.Helper()
	return b.arrive(chromedp.Navigate(b.base + path))
}

// arrive does what leads to another page, and gives that one's status.
func (b *tab) arrive(steps ...chromedp.Action[chromedp.Void]) int64 {
	b.t.Helper()
	ctx, cancel := b.limited()
	defer cancel()
	res, err := chromedp.RunResponse(ctx, steps...)
	if err != nil {
		b.fail("no page: %v", err)
	}
	return int64(res.Status)
}

// back goes back; a browser may have kept the page, so that nothing is loaded.
func (b *tab) back() {
	b.t.Helper()
	was := b.path()
	eval[bool](b, "history.back(); true")
	eventually(b.t, glance, "the page before "+was, func() (bool, string) {
		return b.path() != was && eval[string](b, "document.readyState") == "complete", b.path()
	})
}

// press clicks what leads to another page.
func (b *tab) press(selector string) int64 {
	b.t.Helper()
	return b.arrive(chromedp.Click(chromedp.CSS(selector)))
}

// fill types into fields, given as selector, text, ...
func (b *tab) fill(fields ...string) {
	b.t.Helper()
	for i := 0; i+1 < len(fields); i += 2 {
		ctx, cancel := b.limited()
		err := chromedp.Do(ctx, chromedp.Clear(chromedp.CSS(fields[i])), chromedp.SendKeys(chromedp.CSS(fields[i]), fields[i+1]))
		cancel()
		if err != nil {
			b.fail("fill %s: %v", fields[i], err)
		}
	}
}

// says waits until the page says all the words.
func (b *tab) says(words ...string) {
	b.t.Helper()
	for _, w := range words {
		eventually(b.t, patience, "the page says "+w, func() (bool, string) {
			text := b.text()
			return strings.Contains(text, w), b.path() + "\n" + text
		})
	}
}

// now checks that the page says the words without a wait.
func (b *tab) now(words ...string) {
	b.t.Helper()
	text := b.text()
	for _, w := range words {
		if !strings.Contains(text, w) {
			b.fail("the page doesn't say %q", w)
		}
	}
}

var unnamed = regexp.MustCompile(`[^a-zA-Z]+`)

// shoot keeps a picture of the page.
func (b *tab) shoot(name string) {
	b.t.Helper()
	ctx, cancel := b.limited()
	defer cancel()
	picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(60))
	if err == nil {
		err = os.WriteFile(filepath.Join(b.shots, strings.Trim(unnamed.ReplaceAllString(name, "-"), "-")+".jpg"), picture, 0o644)
	}
	if err != nil {
		b.t.Errorf("a picture of %s: %v", name, err)
	}
}

// set changes how the tab behaves.
func set[P any](b *tab, command cdp.Command[P, cdp.Empty], p P) {
	b.t.Helper()
	b.do(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, command, p)
		return err
	}))
}

func (b *tab) scheme(name string) {
	b.t.Helper()
	set(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
}

func (b *tab) scripts(on bool) {
	b.t.Helper()
	set(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on})
}

// forget drops a cookie, as the browser does at its end.
func (b *tab) forget(name string) {
	b.t.Helper()
	set(b, network.DeleteCookies, network.DeleteCookiesParams{Name: name, URL: b.base})
}

// logIn does it by the form.
func (b *tab) logIn(u *shopper) {
	b.t.Helper()
	if !strings.HasPrefix(b.path(), "/login") {
		b.open("/login")
	}
	eventually(b.t, patience, "the login of "+u.home+"'s user", func() (bool, string) {
		b.fill("#phone", u.phone, "#password", password)
		b.press("main form[action='/login'] button")
		return !strings.HasPrefix(b.path(), "/login"), b.text() // a new phone's copy may take a moment
	})
}

// axeVersion is pinned: a new rule must not break an old commit.
const axeVersion = "4.14.1"

// axe gets the accessibility checker from npm; it's kept by no repository and no
// build. Where it can't be had, why says so.
func axe(t *testing.T) (code, why string) {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		return "", "there is no npm to get axe-core by"
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	pack := exec.CommandContext(ctx, "npm", "pack", "--silent", "axe-core@"+axeVersion)
	pack.Dir = dir
	if out, err := pack.CombinedOutput(); err != nil {
		return "", fmt.Sprintf("npm has no axe-core: %v: %s", err, out)
	}
	packed, err := os.ReadFile(filepath.Join(dir, "axe-core-"+axeVersion+".tgz"))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(plain); ; {
		head, err := files.Next()
		if errors.Is(err, io.EOF) {
			t.Fatal("axe-core has no axe.min.js")
		}
		if err != nil {
			t.Fatal(err)
		}
		if head.Name == "package/axe.min.js" {
			code, err := io.ReadAll(files)
			if err != nil {
				t.Fatal(err)
			}
			return string(code), ""
		}
	}
}

// barriers gives what axe finds wrong with the page; with rules only by those.
func (b *tab) barriers(code string, rules ...string) []string {
	b.t.Helper()
	if code == "" {
		return nil
	}
	only := ""
	if len(rules) > 0 {
		only = `runOnly: ["` + strings.Join(rules, `","`) + `"],`
	}
	eval[bool](b, "if (!window.axe) {"+code+"} true")
	found := eval[*[]string](b, `axe.run(document, {`+only+` resultTypes: ["violations"]}).then(r =>
		r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.map(n => n.html).join(" | ")))`)
	if found == nil {
		b.fail("axe says nothing")
	}
	return *found
}
