package cellmart

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var mdLink = regexp.MustCompile(`\]\(([^)\s]+)(?:\s+"[^"]*")?\)`)

// deadLinks gives the relative links of a page that lead nowhere, or out of the
// repository. Code blocks are left out.
func deadLinks(file, text string, exists func(string) bool) []string {
	var out []string
	code := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
			continue
		}
		if code {
			continue
		}
		for _, m := range mdLink.FindAllStringSubmatch(line, -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target == "" || strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			p := path.Join(path.Dir(file), target)
			if !filepath.IsLocal(p) || path.IsAbs(target) || !exists(p) {
				out = append(out, m[1])
			}
		}
	}
	return out
}

func TestLinksInDocsResolve(t *testing.T) {
	t.Parallel()
	exists := func(p string) bool { _, err := os.Stat(p); return err == nil }
	walk(t, func(file string) {
		if !strings.HasSuffix(file, ".md") {
			return
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range deadLinks(file, string(text), exists) {
			t.Errorf("%s links to %s, which isn't there", file, link)
		}
		if n := bytes.Count(text, []byte("\n")); file == "README.md" && n > 150 {
			t.Errorf("README.md has %d lines, over 150: it's a door, not a house", n)
		}
	})
}

func TestDeadLinksAreFound(t *testing.T) {
	t.Parallel()
	exists := func(p string) bool { return p == "docs/a.md" || p == "README.md" }
	text := "[a](a.md#part) [up](../README.md \"title\") [web](https://example.com/x) [here](#x)\n" +
		"[gone](b.md) [out](../../etc) [abs](/docs/a.md)\n```\n[code](c.md)\n```\n"
	got := strings.Join(deadLinks("docs/x.md", text, exists), " ")
	if want := "b.md ../../etc /docs/a.md"; got != want {
		t.Errorf("deadLinks = %s, want %s", got, want)
	}
}

var testName = regexp.MustCompile("`(Test[A-Z]\\w*)`")

// A page that says which test holds something names one that is there.
func TestTestsNamedInDocsExist(t *testing.T) {
	t.Parallel()
	have := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	sources(t, func(file string, src []byte) {
		for _, m := range declared.FindAllSubmatch(src, -1) {
			have[string(m[1])] = strings.HasSuffix(file, "_test.go") || have[string(m[1])]
		}
	})
	named := 0
	walk(t, func(file string) {
		if !strings.HasSuffix(file, ".md") {
			return
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testName.FindAllStringSubmatch(string(text), -1) {
			named++
			if !have[m[1]] {
				t.Errorf("%s names %s, which no file has", file, m[1])
			}
		}
	})
	if named < 10 {
		t.Errorf("the pages name %d tests: this one looks in the wrong place", named)
	}
}
