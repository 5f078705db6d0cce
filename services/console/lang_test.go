package console

import (
	"fmt"
	"io/fs"
	"maps"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/services/agent/agentapi"
)

func langs(t *testing.T) map[string]*Lang {
	t.Helper()
	all, err := loadLangs()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var verbs = regexp.MustCompile(`%[.0-9]*[a-z]`)

func TestLanguagesHaveTheSameKeys(t *testing.T) {
	t.Parallel()
	all := langs(t)
	en := all["en"].words
	for tag, l := range all {
		for key, text := range l.words {
			want, ok := en[key]
			switch {
			case !ok:
				t.Errorf("%s has %q, en hasn't", tag, key)
			case strings.TrimSpace(text) == "":
				t.Errorf("%s: %q is empty", tag, key)
			case !slices.Equal(verbs.FindAllString(text, -1), verbs.FindAllString(want, -1)):
				t.Errorf("%s: %q takes %v, in en %v", tag, key, verbs.FindAllString(text, -1), verbs.FindAllString(want, -1))
			}
		}
		for key := range en {
			if _, ok := l.words[key]; !ok {
				t.Errorf("%s lacks %q", tag, key)
			}
		}
	}
}

// keysUsed are the keys that the code and the templates name, and those that they
// put together.
func keysUsed(t *testing.T) map[string]bool {
	t.Helper()
	used := map[string]bool{}
	family := func(prefix string, of ...string) {
		for _, x := range of {
			used[prefix+"."+x] = true
		}
	}
	family("state", Known, Old, Failed, Unknown)
	family("link", "up", "down", "unknown")
	family("invariant", "ok", "violated", "unknown")
	family("chart", "traffic", "errors", "p99", "closed")
	family("job", agentapi.JobOpen, agentapi.JobDone, agentapi.JobFailed)
	family("event", eventKinds...)
	family("act", actionKinds...)
	family("about", actionKinds...)
	family("step", unplug, plug, drill)
	for i := 1; i <= 5; i++ {
		used[fmt.Sprintf("tour.%d", i)] = true
	}
	for _, k := range []errs.Kind{
		errs.Internal, errs.Invalid, errs.Unauthenticated, errs.Forbidden, errs.NotFound, errs.Conflict, errs.Unprocessable, errs.Misrouted, errs.Exhausted, errs.Unavailable,
	} {
		used["error."+k.String()] = true
	}
	literal := regexp.MustCompile(`\.T\(?\s?"([a-z0-9.]*[a-z0-9])"|"((?:title|step|error|password)\.[a-z]+)"`)
	look := func(text string) {
		for _, m := range literal.FindAllStringSubmatch(text, -1) {
			used[m[1]+m[2]] = true
		}
	}
	names, err := fs.Glob(templates, "templates/*.html")
	if err != nil || len(names) < 9 {
		t.Fatalf("templates: %v, %v", names, err)
	}
	for _, name := range names {
		b, err := templates.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		look(string(b))
	}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.HasSuffix(f.Name(), ".go") && !strings.HasSuffix(f.Name(), "_test.go") {
			b, err := os.ReadFile(f.Name())
			if err != nil {
				t.Fatal(err)
			}
			look(string(b))
		}
	}
	return used
}

func TestEveryTextIsThereAndUsed(t *testing.T) {
	t.Parallel()
	used, have := keysUsed(t), langs(t)["en"].words
	for _, key := range slices.Sorted(maps.Keys(used)) {
		if _, ok := have[key]; !ok {
			t.Errorf("nobody wrote the text %q", key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(have)) {
		if !used[key] {
			t.Errorf("nobody shows the text %q", key)
		}
	}
}

func TestLanguageOfARequest(t *testing.T) {
	t.Parallel()
	all := langs(t)
	for _, tc := range []struct{ query, cookie, accept, want string }{
		{"", "", "", "en"},
		{"", "", "zh-CN,zh;q=0.9,en;q=0.8", "zh"},
		{"", "", "fr, en-GB", "en"},
		{"", "", "fr", "en"},
		{"", "zh", "en", "zh"},
		{"en", "zh", "zh", "en"},
		{"xx", "yy", "zh", "zh"},
	} {
		r := httptest.NewRequest("GET", "/?lang="+tc.query, nil)
		r.Header.Set("Accept-Language", tc.accept)
		r.Header.Set("Cookie", langCookie+"="+tc.cookie)
		if got := langOf(r, all); got.Tag != tc.want {
			t.Errorf("%+v: %s", tc, got.Tag)
		}
	}
}

func TestSpans(t *testing.T) {
	t.Parallel()
	l := langs(t)["en"]
	for d, want := range map[time.Duration]string{
		0: "0 ms", 999 * time.Millisecond: "999 ms", 3 * time.Second: "3 s", 119 * time.Second: "119 s", 2 * time.Minute: "2 min", 3 * time.Hour: "3 h",
	} {
		if got := l.Span(d); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
}
