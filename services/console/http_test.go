package console

import (
	"bufio"
	"context"
	"encoding/csv"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/cellmart/services/agent/agentapi"
)

// pagesOf is every page that an operator can open.
func pagesOf(f *fleet) []string {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.m.jobs = append(f.m.jobs, Job{ID: "abc", Kind: unplug, Args: Args{Cell: "c1"}, Operator: firstName, Reason: "why", State: agentapi.JobDone, At: time.Unix(1, 0)})
	return []string{
		"/", "/transfers", "/transfers/77", "/events", "/tour", "/password", "/jobs/abc", "/sign-in", "/act/unplug", "/act/unplug?cell=c1", "/act/plug?cell=c2",
		"/act/delay", "/act/delay?cell=c1&peer=c2&delay=50", "/act/drill", "/act/drill?drill=unplug&cell=c1", "/act/retry", "/act/retry?transfer=77", "/act/cancel?transfer=77",
	}
}

// inline finds what the policy forbids: a browser would drop it without a word.
var inline = regexp.MustCompile(`(?i)\sstyle=|<style|<script(?:>|\s+[^>]*>\s*[^<\s])|\son[a-z]+=|javascript:|(?:src|href|action)="(?:https?:)?//`)

func TestEveryPageInBothLanguages(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.start(t)
	wait(t, "all is known", func() bool { return len(f.snapshot().History["c1"]) > 2 && f.snapshot().Open["c2"].Has() })
	for _, tag := range tags {
		for _, path := range pagesOf(f) {
			got := f.do(t, http.MethodGet, path, nil, "Accept-Language", tag)
			l := langs(t)[tag]
			if got.StatusCode != http.StatusOK || !strings.Contains(got.text, `<html lang="`+l.T("lang.tag")+`"`) || !strings.Contains(got.text, "</html>") {
				t.Errorf("%s %s: %s\n%s", tag, path, got.Status, got.text)
			}
			if len(got.text) > 60_000 {
				t.Errorf("%s has %d bytes", path, len(got.text))
			}
			if bad := inline.FindString(got.text); bad != "" {
				t.Errorf("%s has %q, which its policy forbids", path, bad)
			}
			if n := strings.Count(got.text, "<h1>"); n != 1 {
				t.Errorf("%s has %d headings of the first level", path, n)
			}
			for _, part := range []string{`class="skip" href="#main"`, `<main id="main"`, "<title>", "lang=zh"} {
				if !strings.Contains(got.text, part) {
					t.Errorf("%s lacks %s", path, part)
				}
			}
			for _, id := range unlabelled(got.text) {
				t.Errorf("%s: the field %s has no label", path, id)
			}
		}
	}
}

// unlabelled gives the fields of a page that no label is for.
func unlabelled(page string) []string {
	var out []string
	for _, m := range regexp.MustCompile(`<(?:input|select) id="([^"]+)"`).FindAllStringSubmatch(page, -1) {
		if !strings.Contains(page, `<label for="`+m[1]+`"`) {
			out = append(out, m[1])
		}
	}
	return out
}

func TestInlineIsFound(t *testing.T) {
	t.Parallel()
	for text, bad := range map[string]bool{
		`<p style="x">`: true, `<style>`: true, `<script>x`: true, `<script type="module">x`: true, `<a onclick="x">`: true,
		`<a href="//evil">`: true, `<img src="https://evil">`: true, `<script type="module" src="/static/live.js"></script>`: false, `<a href="/x">only</a>`: false,
	} {
		if got := inline.MatchString(text); got != bad {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestEveryAnswerHasThePolicy(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for _, path := range append(pagesOf(f), "/nothing", "/static/console.css", "/static/live.js", "/static/", "/jobs/none", "/transfers/x", "/events.csv") {
		got := f.do(t, http.MethodGet, path, nil)
		if csp := got.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none';") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") {
			t.Errorf("%s: policy %q", path, csp)
		}
		if got.Header.Get("Cache-Control") != "no-store" || got.Header.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(got.Header.Get("Vary"), "Accept-Language") {
			t.Errorf("%s: headers %v", path, got.Header)
		}
	}
	for path, want := range map[string]int{"/nothing": 404, "/jobs/none": 404, "/transfers/x": 404, "/act/reboot": 404, "/act/reboot?cell=c1": 404, "/static/": 404} {
		if got := f.do(t, http.MethodGet, path, nil); got.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, got.Status, want)
		}
	}
}

// A page of another origin, also of a sibling, drives nothing.
func TestScenario_W02_OtherOriginsDriveNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	form := url.Values{"kind": {unplug}, "cell": {"c1"}, "typed": {"c1"}, "reason": {"why"}, "job": {"abc"}}
	for _, header := range [][]string{
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"},
	} {
		for _, path := range []string{"/jobs", "/sign-in", "/sign-out", "/password"} {
			if got := f.do(t, http.MethodPost, path, form, header...); got.StatusCode != http.StatusForbidden {
				t.Errorf("%s with %v: %s, want 403", path, header, got.Status)
			}
		}
	}
	if n, _ := f.m.counts(); n > 0 {
		t.Errorf("%d jobs were kept", n)
	}
	if got := f.do(t, http.MethodPost, "/jobs", form, "Sec-Fetch-Site", "same-origin"); got.StatusCode != http.StatusSeeOther {
		t.Errorf("the own page: %s", got.Status)
	}
}

// No GET changes anything, whatever it's asked with.
func TestNoGetChangesAnything(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	_, before := f.m.counts()
	q := "?" + url.Values{"kind": {unplug}, "cell": {"c1"}, "typed": {"c1"}, "reason": {"why"}, "job": {"abc"}, "transfer": {"77"}}.Encode()
	for _, path := range []string{"/jobs", "/sign-out", "/act/unplug", "/act/cancel", "/", "/jobs/abc", "/events"} {
		f.do(t, http.MethodGet, path+q, nil)
	}
	if jobs, events := f.m.counts(); jobs > 0 || events != before {
		t.Errorf("%d jobs, %d events", jobs, events-before)
	}
	if got := f.do(t, http.MethodGet, "/", nil); got.StatusCode != http.StatusOK {
		t.Errorf("signed out by a GET: %s", got.Status)
	}
}

func TestLanguageIsKept(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	got := f.do(t, http.MethodGet, "/events?what=job&lang=zh", nil)
	var kept string
	for _, c := range got.Cookies() {
		if c.Name == langCookie {
			kept = c.Name + "=" + c.Value
		}
	}
	if kept != langCookie+"=zh" || !strings.Contains(got.text, `href="/events?what=job&amp;lang=en"`) {
		t.Errorf("cookie %q\n%s", kept, got.text)
	}
	f.cookie += "; " + kept
	if got := f.do(t, http.MethodGet, "/", nil, "Accept-Language", "en"); !strings.Contains(got.text, `lang="zh-Hans"`) {
		t.Error("the next page is in another language")
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.m.mu.Lock()
	for i := range 230 {
		f.m.note("operator", eventJob, fmt.Sprintf("c%d", i%2+1), fmt.Sprintf("event number %d.", i))
	}
	f.m.note("operator", eventJob, "c1", "<script>alert(1)</script>")
	f.m.note("operator", eventJob, "=cmd()", "")
	f.m.mu.Unlock()
	got := f.do(t, http.MethodGet, "/events", nil)
	if n := strings.Count(got.text, "event number"); n != 98 || strings.Contains(got.text, "<script>alert") {
		t.Errorf("%d lines on the first page\n%s", n, got.text)
	}
	seen := map[string]bool{}
	path := "/events?subject=c1"
	for path != "" {
		got := f.do(t, http.MethodGet, path, nil)
		for _, line := range regexp.MustCompile(`event number \d+\.`).FindAllString(got.text, -1) {
			if seen[line] {
				t.Errorf("%s was there before", line)
			}
			seen[line] = true
		}
		path = ""
		if m := regexp.MustCompile(`href="([^"]+)" rel="next"`).FindStringSubmatch(got.text); m != nil {
			path = strings.ReplaceAll(m[1], "&amp;", "&")
		}
	}
	if len(seen) != 115 {
		t.Errorf("%d lines of c1, want 115", len(seen))
	}
	if _, err := f.m.addJob(t.Context(), Job{ID: "abc", Kind: unplug, Args: Args{Cell: "c7"}, Operator: firstName, Reason: "why"}); err != nil {
		t.Fatal(err)
	}
	if got := f.do(t, http.MethodGet, "/events?subject=c7", nil); !strings.Contains(got.text, `<a href="/jobs/abc">`) {
		t.Errorf("no way to the job:\n%s", got.text)
	}
	export := f.do(t, http.MethodGet, "/events.csv", nil)
	rows, err := csv.NewReader(strings.NewReader(export.text)).ReadAll()
	if err != nil || len(rows) != 1+2+230+2+1 || rows[2][4] != "'=cmd()" || !strings.Contains(export.Header.Get("Content-Disposition"), "attachment") {
		t.Errorf("%d rows, %v, %v", len(rows), err, rows[2])
	}
}

// A stream that ends by itself ends as it should, also when its last word was long ago:
// the browser's connection is still good.
func TestStreamEndsInOrder(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.server.writes = time.Second // the end comes later
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.site.URL+livePath, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Cookie", f.cookie)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() {
		t.Fatalf("no word: %v", lines.Err())
	}
	if got := f.do(t, http.MethodPost, "/sign-out", url.Values{}); got.StatusCode != http.StatusSeeOther {
		t.Fatalf("signing out: %s", got.Status)
	}
	f.change(func(*Snapshot) {})
	for lines.Scan() {
	}
	if err := lines.Err(); err != nil {
		t.Errorf("the stream's end: %v", err)
	}
}

// A page misses the console's words only when two of them didn't come.
func TestPageWaitsForTwoWords(t *testing.T) {
	t.Parallel()
	b, err := static.ReadFile("static/live.js")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`const silentAfter = (\d+);`).FindSubmatch(b)
	if m == nil {
		t.Fatal("it waits for none")
	}
	if ms, err := strconv.Atoi(string(m[1])); err != nil || time.Duration(ms)*time.Millisecond < 2*(liveEach+liveQuiet) {
		t.Errorf("it waits %d ms, words come each %s, %v", ms, liveEach+liveQuiet, err)
	}
}

// One stream per tab, let go when the tab leaves; it outlives the server's write
// timeout (S-W07).
func TestLiveStream(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	site := httptest.NewUnstartedServer(f.site.Config.Handler)
	site.Config.WriteTimeout = 500 * time.Millisecond // the second word comes later
	site.Start()
	t.Cleanup(site.Close)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, site.URL+livePath, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Cookie", f.cookie)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream" {
		t.Fatalf("%s, %q", resp.Status, ct)
	}
	lines := bufio.NewScanner(resp.Body)
	words := 0
	for words < 2 && lines.Scan() {
		if lines.Text() == "event: changed" {
			words++
			f.change(func(*Snapshot) {})
		}
	}
	if words != 2 {
		t.Errorf("%d words, %v", words, lines.Err())
	}
	leave()
	wait(t, "the stream is let go", func() bool { return f.server.streams.Load() == 0 })
	f.server.streams.Store(maxStreams)
	if got := f.do(t, http.MethodGet, livePath, nil); got.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one stream too many: %s", got.Status)
	}
	if n := f.server.streams.Load(); n != maxStreams {
		t.Errorf("%d streams are counted", n)
	}
}
