package cellmart

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// calls that a file may not make, by package and function.
var calls = []struct {
	pkg, fn string
	tests   bool // forbidden in tests, else in production code
	why     string
}{
	{"time", "Sleep", true, "a test waits for a condition, with a limit"},
	{"slog", "SetDefault", false, "components share a process: loggers are passed"},
	{"prometheus", "MustRegister", false, "components share a process: each has its own registry"},
	{"flag", "Parse", false, "components share a process: settings come from env, commands own a FlagSet"},
}

// habits gives what a source file does that breaks parallel tests, several
// components in one process, or the safety of a path's ID.
func habits(file string, src []byte) ([]string, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, src, 0)
	if err != nil {
		return nil, err
	}
	var out []string
	found := func(pos token.Pos, why string) {
		out = append(out, fmt.Sprintf("%s:%d: %s", file, files.Position(pos).Line, why))
	}
	test := strings.HasSuffix(file, "_test.go")
	var bubbles []ast.Node // calls of synctest.Test: a sleep in there passes in no time
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Test" {
				if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == "synctest" {
					bubbles = append(bubbles, n)
				}
			}
		case *ast.FuncDecl:
			if n.Recv == nil && n.Name.Name == "init" {
				found(n.Pos(), "init() runs for everyone who imports this: make it a function that is called")
			}
		case *ast.SelectorExpr:
			pkg, ok := n.X.(*ast.Ident)
			for _, c := range calls {
				inside := slices.ContainsFunc(bubbles, func(b ast.Node) bool { return b.Pos() <= n.Pos() && n.Pos() < b.End() })
				if ok && pkg.Name == c.pkg && n.Sel.Name == c.fn && test == c.tests && !(c.fn == "Sleep" && inside) {
					found(n.Pos(), c.pkg+"."+c.fn+": "+c.why)
				}
			}
		case *ast.Field:
			if n.Tag == nil {
				return true
			}
			text, err := strconv.Unquote(n.Tag.Value)
			tag := reflect.StructTag(text)
			if _, ok := tag.Lookup("param"); err == nil && ok && tag.Get("json") != "-" {
				found(n.Pos(), `a param tag without json:"-" lets a body overwrite the path's ID (S-W13)`)
			}
		}
		return true
	})
	return out, nil
}

func TestHabits(t *testing.T) {
	t.Parallel()
	sources(t, func(file string, src []byte) {
		got, err := habits(file, src)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range got {
			t.Error(h)
		}
	})
}

func TestHabitsCheckerFindsPlantedOnes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ file, src, want string }{
		{"x.go", "func init() {}", "init() runs"},
		{"x.go", "type t struct{}; func (t) init() {}", ""},
		{"x_test.go", "func f() { time.Sleep(1) }", "time.Sleep"},
		{"x_test.go", "var f = time.Sleep", "time.Sleep"},
		{"x_test.go", "func f() { synctest.Test(t, func(t *testing.T) { time.Sleep(1) }) }", ""},
		{"x_test.go", "func f() { synctest.Test(t, g); time.Sleep(1) }", "time.Sleep"},
		{"x.go", "func f() { time.Sleep(1) }", ""},
		{"x_test.go", "func TestMain() { flag.Parse() }", ""},
		{"x.go", "func f() { slog.SetDefault(nil) }", "slog.SetDefault"},
		{"x.go", "type t struct { ID int `param:\"id\"` }", "S-W13"},
		{"x.go", "type t struct { ID int `param:\"id\" json:\"id\"` }", "S-W13"},
		{"x.go", "type t struct { ID int `param:\"id\" json:\"-\"` }", ""},
	} {
		got, err := habits(tc.file, []byte("package x\n"+tc.src))
		if text := strings.Join(got, "\n"); err != nil || tc.want == "" && text != "" || !strings.Contains(text, tc.want) {
			t.Errorf("%s %s: %q, %v, want %q", tc.file, tc.src, text, err, tc.want)
		}
	}
}

// machinePath finds a folder of somebody's own machine: it's dead after a clone.
var machinePath = regexp.MustCompile(`(?:^|[\s"'=(:@])/(?:work|root|home|Users)/\w[^\s"']*`)

// Text files are small, end lines with LF only (scripts die of CRLF: S-W10) and
// name nobody's own folders.
func TestFilesSurviveAClone(t *testing.T) {
	t.Parallel()
	walk(t, func(file string) {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > 1<<20 {
			return // a program that was built here; git ignores it
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(text, 0) >= 0 || strings.Contains(file, "testdata/fuzz/") {
			return
		}
		if bytes.Contains(text, []byte("\r\n")) {
			t.Errorf("%s has CRLF line ends", file)
		}
		if m := machinePath.Find(text); m != nil {
			t.Errorf("%s names a folder of one machine: %q", file, m)
		}
	})
	for text, want := range map[string]bool{"cd /ho" + "me/me/x": true, "\"/ro" + "ot/x\"": true, "GET /homepage": false, "http/wo" + "rk/": false} {
		if got := machinePath.MatchString(text); got != want {
			t.Errorf("machinePath on %q = %v, want %v", text, got, want)
		}
	}
}

// Limits that make a reader stop and think; breaking one with a reason is fine.
func TestSizesAreNoted(t *testing.T) {
	t.Parallel()
	sources(t, func(file string, src []byte) {
		limit := 400
		if strings.HasSuffix(file, "_test.go") {
			limit = 600
		}
		if n := bytes.Count(src, []byte("\n")); n > limit {
			t.Logf("%s has %d lines, over %d", file, n, limit)
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, file, src, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || strings.HasSuffix(file, "_test.go") {
				continue
			}
			if n := files.Position(f.End()).Line - files.Position(f.Pos()).Line + 1; n > 80 {
				t.Logf("%s: %s has %d lines, over 80", file, f.Name.Name, n)
			}
		}
	})
}
