package cellmart

import (
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

// commented says whether a file has a package comment with content.
func commented(t *testing.T, file string, src []byte) bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, src, parser.PackageClauseOnly|parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Doc != nil && strings.TrimSpace(parsed.Doc.Text()) != ""
}

// A package that nobody introduces has to be read whole; two introductions
// drift apart.
func TestEachPackageHasOneComment(t *testing.T) {
	t.Parallel()
	comments := map[string][]string{}
	sources(t, func(file string, src []byte) {
		dir := path.Dir(file)
		if strings.Contains(dir, "testdata") || strings.HasSuffix(file, "_test.go") {
			return
		}
		if _, ok := comments[dir]; !ok {
			comments[dir] = nil // counts also when no file has one
		}
		if commented(t, file, src) {
			comments[dir] = append(comments[dir], path.Base(file))
		}
	})
	for dir, files := range comments {
		slices.Sort(files)
		if len(files) != 1 {
			t.Errorf("package %s has %d package comments %v, want 1", dir, len(files), files)
		}
	}
}

func TestPackageCommentIsSeen(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]bool{
		"// Package x does.\npackage x\n":                 true,
		"//go:build e2e\n\n// Package x does.\npackage x": true,
		"// Far away.\n\npackage x\n":                     false,
		"//go:build e2e\n\npackage x\n":                   false,
		"package x\n\n// Package x does.\nvar y int\n":    false,
	} {
		if got := commented(t, "x.go", []byte(src)); got != want {
			t.Errorf("commented(%q) = %v, want %v", src, got, want)
		}
	}
}
