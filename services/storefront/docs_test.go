package storefront

import (
	"io/fs"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// docs/pages.md has each page with its handler and a template that is there, and
// no other; every template is somewhere in it.
func TestPagesDoc(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/pages.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	row := regexp.MustCompile("(?m)^\\| `((?:GET|POST) [^`]+)` \\| `(\\w+)` \\| (.*?) \\| .* \\| (.*?)\\|$")
	have := map[string][]string{}
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		have[m[1]] = m[2:]
	}
	for _, r := range routes() {
		pattern := strings.TrimSuffix(r.pattern, "{$}")
		full := runtime.FuncForPC(reflect.ValueOf(r.do).Pointer()).Name()
		name := full[strings.LastIndex(full, ".")+1:]
		got := have[pattern]
		if got == nil {
			t.Errorf("docs/pages.md has no %s", pattern)
			continue
		}
		if got[0] != name || strings.Contains(got[2], "user") != r.users {
			t.Errorf("%s: the page says %v, it's %s, for users only: %v", pattern, got, name, r.users)
		}
		delete(have, pattern)
	}
	for pattern := range have {
		t.Errorf("docs/pages.md has %s, which isn't there", pattern)
	}
	templates, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range templates {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "templates/"), ".html")
		if name != "layout" && name != "parts" && !strings.Contains(text, "`"+name+"`") {
			t.Errorf("docs/pages.md doesn't say where the template %s is shown", name)
		}
	}
}
