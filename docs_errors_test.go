package cellmart

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/errs"
)

var update = flag.Bool("update", false, "write the generated parts of docs/errors.md and docs/testing.md anew")

// refusal is one errs.New call: what a program may compare, what a person reads.
type refusal struct {
	kind, code, message, dir string
}

// unnamed stands for a code that is made while the program runs; only these files
// make such codes, of an answer's status or of somebody else's answer.
const unnamed = "?"

var makeCodes = []string{"platform/cellkit/web/errors.go", "platform/cellkit/call/problem.go"}

// madeByHand are the codes that no errs.New call with a constant makes.
var madeByHand = []refusal{
	{"Invalid", "INVALID_FIELD", "says what the field must be", "platform/cellkit/errs"},
}

// constants gives the text constants of a file.
func constants(file *ast.File) map[string]string {
	out := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range spec.Names {
			if i < len(spec.Values) {
				if text, ok := literal(spec.Values[i]); ok {
					out[name.Name] = text
				}
			}
		}
		return true
	})
	return out
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// text reads an expression as far as it is constant; the rest is "…". whole says
// that nothing was left out.
func text(e ast.Expr, named map[string]string) (s string, whole bool) {
	if s, ok := literal(e); ok {
		return s, true
	}
	switch e := e.(type) {
	case *ast.Ident:
		s, ok := named[e.Name]
		return s, ok
	case *ast.BinaryExpr:
		left, a := text(e.X, named)
		right, b := text(e.Y, named)
		return left + right, a && b
	}
	return "…", false
}

// refusals gives the errs.New calls of a file. A kind or code that isn't constant
// makes it unnamed.
func refusals(name string, src []byte) ([]refusal, error) {
	file, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
	if err != nil {
		return nil, err
	}
	named, dir := constants(file), path.Dir(name)
	var out []refusal
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 3 || !isErrsNew(call.Fun, file.Name.Name) {
			return true
		}
		kind, _ := call.Args[0].(*ast.SelectorExpr)
		word := ""
		if kind != nil {
			word = kind.Sel.Name
		} else if id, ok := call.Args[0].(*ast.Ident); ok && file.Name.Name == "errs" {
			word = id.Name
		}
		code, constant := text(call.Args[1], named)
		if word == "" || !constant {
			code = unnamed
		}
		message, _ := text(call.Args[2], named)
		out = append(out, refusal{word, code, message, dir})
		return true
	})
	return out, nil
}

func isErrsNew(fun ast.Expr, pkg string) bool {
	switch f := fun.(type) {
	case *ast.SelectorExpr:
		x, ok := f.X.(*ast.Ident)
		return ok && x.Name == "errs" && f.Sel.Name == "New"
	case *ast.Ident:
		return pkg == "errs" && f.Name == "New"
	}
	return false
}

// errorTables writes one table for each kind, codes sorted.
func errorTables(all []refusal) string {
	kinds := map[string]errs.Kind{
		"Internal": errs.Internal, "Invalid": errs.Invalid, "Unauthenticated": errs.Unauthenticated, "Forbidden": errs.Forbidden,
		"NotFound": errs.NotFound, "Conflict": errs.Conflict, "Unprocessable": errs.Unprocessable, "Misrouted": errs.Misrouted,
		"Exhausted": errs.Exhausted, "Unavailable": errs.Unavailable,
	}
	var b strings.Builder
	for _, word := range slices.SortedFunc(maps.Keys(kinds), func(x, y string) int { return kinds[x].Status() - kinds[y].Status() }) {
		rows := map[string][2][]string{} // code -> messages, folders
		for _, r := range all {
			if r.kind != word {
				continue
			}
			row := rows[r.code]
			row[0], row[1] = add(row[0], r.message), add(row[1], "`"+r.dir+"`")
			rows[r.code] = row
		}
		if len(rows) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %d %s\n\n| code | message | from |\n|---|---|---|\n", kinds[word].Status(), kinds[word])
		for _, code := range slices.Sorted(maps.Keys(rows)) {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", code, strings.Join(rows[code][0], "; "), strings.Join(rows[code][1], ", "))
		}
	}
	return b.String()
}

func add(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	list = append(list, s)
	slices.Sort(list)
	return list
}

const generated = "<!-- below: go test . -run TestErrorsDoc -update -->\n"

// docs/errors.md lists every stable code that the code has, and no other.
func TestErrorsDoc(t *testing.T) {
	t.Parallel()
	all := slices.Clone(madeByHand)
	sources(t, func(file string, src []byte) {
		if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "testdata/") {
			return
		}
		found, err := refusals(file, src)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range found {
			if r.code != unnamed {
				all = append(all, r)
			} else if !slices.Contains(makeCodes, file) {
				t.Errorf("%s makes an error whose kind or code isn't constant: programs can't compare it", file)
			}
		}
	})
	if len(all) < 30 {
		t.Fatalf("found %d refusals: this test looks in the wrong place", len(all))
	}
	checkGenerated(t, "docs/errors.md", generated, errorTables(all), "go test . -run TestErrorsDoc -update")
}

func TestRefusalsAreFound(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		`var e = errs.New(errs.Invalid, "A", "no").At("x")`:             "Invalid A no",
		`const r = "B"; var e = errs.New(errs.NotFound, r, "no "+f())`:  "NotFound B no …",
		`func f() error { return errs.New(errs.KindOf(1), g(), "no") }`: " ? no",
		`var e = New(errs.Invalid, "C", "no")`:                          "",
	} {
		found, err := refusals("x/x.go", []byte("package x\n"+src))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, r := range found {
			got = r.kind + " " + r.code + " " + r.message
		}
		if got != want {
			t.Errorf("refusals(%s) = %q, want %q", src, got, want)
		}
	}
}
