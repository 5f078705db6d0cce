package cellmart

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "example.com/cellmart"

// technologies may be imported inside services/ only by files of that name, so
// that the rest of a service can be read and tested without them. run.go wires
// everything, and tests may too.
var technologies = []struct{ pkg, name, files string }{
	{"github.com/labstack/echo", "echo", "http"},
	{"github.com/jackc/pgx", "pgx", "store"},
	{"github.com/redis/go-redis", "go-redis", "cache"},
	{"github.com/nats-io/", "nats.go", "events"},
	{module + "/platform/cellkit/bus", "the bus", "events"},
	{"github.com/blevesearch/", "bleve", "index"},
}

// helpers are test libraries that any _test.go may use.
var helpers = []string{"github.com/google/go-cmp/"}

// unwanted are libraries that nobody may import.
var unwanted = []struct{ pkg, why string }{
	{"github.com/stretchr/testify", "tests use the standard library and go-cmp"},
	{"go.uber.org/mock", "neighbours are faked by hand"},
	{"github.com/golang/mock", "neighbours are faked by hand"},
}

// apiMayImport is all of this module that a service's api package needs: what it
// says must be usable by anyone, also without the rest of cellkit.
var apiMayImport = []string{"platform/cellkit/errs", "platform/cellkit/id", "platform/cellkit/call", "platform/routing"}

// pages are the folders of pages, and which service serves them.
var pages = map[string]string{
	"services/storefront": "services/gateway",
	"services/console":    "services/control",
}

// violations gives the reasons why a file may not import what it does.
func violations(file string, imports []string) []string {
	var out []string
	for _, imp := range imports {
		if why := forbidden(file, imp); why != "" {
			out = append(out, fmt.Sprintf("%s imports %s: %s", file, imp, why))
		}
	}
	return out
}

func forbidden(file, imp string) string {
	dir, base := path.Dir(file), path.Base(file)
	test := strings.HasSuffix(base, "_test.go")
	for _, u := range unwanted {
		if strings.HasPrefix(imp, u.pkg) {
			return u.why
		}
	}
	local, internal := strings.CutPrefix(imp, module+"/")
	switch {
	case within(dir, "platform"):
		return forbiddenInPlatform(dir, imp, local, internal, test)
	case within(dir, "services"):
		return forbiddenInServices(dir, base, imp, local, internal, test)
	case within(dir, "cmd/cellmart"):
		if internal && (within(local, "e2e") || within(local, "deploy")) {
			return "the services' binary is not made for one way of deploying"
		}
	case internal && within(local, "services") && !isAPI(local):
		return "only cmd/cellmart may import a service's inside, others use its api package"
	}
	return ""
}

func forbiddenInPlatform(dir, imp, local string, internal, test bool) string {
	switch {
	case internal && !within(local, "platform"):
		return "platform knows no service and no program"
	case within(dir, "platform/routing") && !standard(imp) && !within(local, "platform/routing") && !(test && helper(imp)):
		return "platform/routing is standard library only"
	case strings.HasPrefix(imp, "github.com/labstack/echo") && !within(dir, "platform/cellkit/web"):
		return "echo stops at cellkit/web and the services' http*.go"
	}
	return ""
}

func forbiddenInServices(dir, base, imp, local string, internal, test bool) string {
	switch {
	case internal && within(local, "services"):
		own := strings.Join(strings.Split(dir, "/")[:2], "/")
		if own == "services/storefront" && local != own && !within(local, own+"/") {
			return "the shop knows other services by the API that it asks only"
		}
		if local != own && !within(local, own+"/") && !isAPI(local) && pages[local] != own {
			return "other services are known by their api package only"
		}
	case internal && (within(local, "cmd") || within(local, "deploy") || within(local, "e2e")):
		return "a service doesn't know how it is deployed or tested"
	}
	if isAPI(dir) {
		if standard(imp) || test && (helper(imp) || imp == module+"/"+dir) {
			return ""
		}
		if slices.Contains(apiMayImport, local) {
			return ""
		}
		return "an api package imports the standard library, errs, id, routing and call only"
	}
	if test || base == "run.go" {
		return ""
	}
	if domain := path.Base(dir) + ".go"; base == domain && !standard(imp) && !isAPI(local) && !slices.Contains(apiMayImport, local) {
		return "the rules of a service need no infrastructure: standard library, errs, id, routing and api packages only"
	}
	for _, t := range technologies {
		if strings.HasPrefix(imp+"/", strings.TrimSuffix(t.pkg, "/")+"/") && !strings.HasPrefix(base, t.files) {
			return fmt.Sprintf("only run.go and %s*.go may use %s", t.files, t.name)
		}
	}
	return ""
}

func within(p, dir string) bool {
	dir = strings.TrimSuffix(dir, "/")
	return p == dir || strings.HasPrefix(p, dir+"/")
}

// isAPI says whether a package is services/X/Xapi.
func isAPI(p string) bool {
	parts := strings.Split(p, "/")
	return len(parts) == 3 && parts[0] == "services" && parts[2] == parts[1]+"api"
}

func standard(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return !strings.Contains(first, ".")
}

func helper(imp string) bool {
	for _, h := range helpers {
		if strings.HasPrefix(imp, h) {
			return true
		}
	}
	return false
}

// sources calls f with every Go file of the module, tests and tagged ones too.
func sources(t *testing.T, f func(file string, src []byte)) {
	t.Helper()
	n := 0
	walk(t, func(file string) {
		if !strings.HasSuffix(file, ".go") {
			return
		}
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n++
		f(file, src)
	})
	if n < 10 {
		t.Fatalf("saw %d Go files: this test looks in the wrong place", n)
	}
}

// walk calls f with every file that could be in the repository.
func walk(t *testing.T, f func(file string)) {
	t.Helper()
	err := fs.WalkDir(os.DirFS("."), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (p == ".git" || p == ".demo" || p == "bin") {
			return fs.SkipDir
		}
		if d.Type().IsRegular() && p != ".git" { // of a worktree, .git is a file
			f(p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func importsOf(t *testing.T, file string, src []byte) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, spec := range parsed.Imports {
		imp, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, imp)
	}
	return out
}

func TestImports(t *testing.T) {
	t.Parallel()
	sources(t, func(file string, src []byte) {
		for _, v := range violations(file, importsOf(t, file, src)) {
			t.Error(v)
		}
	})
}

// manySlots says why a file may not use a transaction of several slots (R2).
func manySlots(file string, src []byte) string {
	if strings.HasSuffix(file, "_test.go") || within(path.Dir(file), "platform/cellkit/bus") || within(path.Dir(file), "platform/cellkit/pg") {
		return ""
	}
	for _, word := range []string{"pg.InSlots", "enter_many"} {
		if strings.Contains(string(src), word) {
			return file + " uses " + word + ": only the bus may have several slots in one transaction"
		}
	}
	return ""
}

func TestOnlyTheBusHasManySlots(t *testing.T) {
	t.Parallel()
	walk(t, func(file string) {
		if !strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, ".sql") {
			return
		}
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if why := manySlots(file, src); why != "" {
			t.Error(why)
		}
	})
	for file, src := range map[string]string{"services/user/store.go": "pg.InSlots(ctx, pool, nil, nil)", "services/order/migrations/0009_x.sql": "SELECT cell.enter_many($1, $2)"} {
		if manySlots(file, []byte(src)) == "" {
			t.Errorf("%s in %s isn't found", src, file)
		}
	}
}

func TestImportsCheckerFindsPlantedViolations(t *testing.T) {
	t.Parallel()
	const order, kit = module + "/services/order", module + "/platform/cellkit"
	for _, tc := range []struct {
		file, imp string
		want      string // a part of the reason, "" = allowed
	}{
		{"services/order/service.go", "github.com/jackc/pgx/v5", "only run.go and store*.go may use pgx"},
		{"services/order/store_lines.go", "github.com/jackc/pgx/v5", ""},
		{"services/order/run.go", "github.com/jackc/pgx/v5/pgxpool", ""},
		{"services/order/service_test.go", "github.com/jackc/pgx/v5", ""},
		{"services/order/service.go", "github.com/labstack/echo/v4", "only run.go and http*.go may use echo"},
		{"services/order/order.go", "github.com/labstack/echo/v4", "need no infrastructure"},
		{"services/order/order.go", kit + "/pg", "need no infrastructure"},
		{"services/order/order.go", module + "/services/user/userapi", ""},
		{"services/order/http.go", "github.com/labstack/echo/v4", ""},
		{"services/order/store.go", "github.com/redis/go-redis/v9", "cache*.go"},
		{"services/order/service.go", "github.com/nats-io/nats.go/jetstream", "events*.go"},
		{"services/order/service.go", kit + "/bus", "events*.go"},
		{"services/order/events_reply.go", kit + "/bus", ""},
		{"services/order/service.go", kit + "/web", ""},
		{"services/order/run.go", module + "/services/user", "by their api package only"},
		{"services/order/order_test.go", module + "/services/user", "by their api package only"},
		{"services/order/service.go", module + "/services/user/userapi", ""},
		{"services/order/service.go", module + "/services/user/orderapi", "by their api package only"},
		{"services/order/run.go", module + "/services/orders", "by their api package only"},
		{"services/order/run.go", order + "/orderapi", ""},
		{"services/order/run.go", module + "/deploy/local", "deployed"},
		{"services/gateway/http_page.go", module + "/services/storefront", ""},
		{"services/gateway/http_page.go", module + "/services/console", "by their api package only"},
		{"services/control/http_page.go", module + "/services/console", ""},
		{"services/order/http.go", module + "/services/storefront", "by their api package only"},
		{"services/storefront/client.go", order + "/orderapi", "by the API that it asks only"},
		{"services/storefront/client.go", kit + "/call", ""},
		{"services/order/orderapi/api.go", kit + "/call", ""},
		{"services/order/orderapi/api.go", kit + "/pg", "an api package imports"},
		{"services/order/orderapi/api.go", order, "an api package imports"},
		{"services/order/orderapi/api.go", module + "/services/user/userapi", "an api package imports"},
		{"services/order/orderapi/api.go", "golang.org/x/sync/errgroup", "an api package imports"},
		{"services/order/orderapi/api_test.go", "github.com/google/go-cmp/cmp", ""},
		{"platform/routing/table.go", "golang.org/x/sync/errgroup", "standard library only"},
		{"platform/routing/table.go", kit + "/errs", "standard library only"},
		{"platform/routing/table.go", "crypto/ed25519", ""},
		{"platform/routing/table_test.go", "github.com/google/go-cmp/cmp", ""},
		{"platform/cellkit/pg/pool.go", order + "/orderapi", "platform knows no service"},
		{"platform/cellkit/pg/pool_test.go", order, "platform knows no service"},
		{"platform/cellkit/pg/pool.go", "github.com/labstack/echo/v4", "echo stops"},
		{"platform/cellkit/web/server.go", "github.com/labstack/echo/v4", ""},
		{"cmd/cellmart/main.go", order, ""},
		{"cmd/cellmart/main.go", module + "/deploy/local", "one way of deploying"},
		{"cmd/cellctl/main.go", order, "only cmd/cellmart"},
		{"cmd/cellctl/main.go", module + "/deploy/local", ""},
		{"deploy/local/up.go", kit + "/link", ""},
		{"deploy/local/up.go", order, "only cmd/cellmart"},
		{"e2e/buy_test.go", order, "only cmd/cellmart"},
		{"e2e/buy_test.go", order + "/orderapi", ""},
		{"e2e/buy_test.go", "github.com/stretchr/testify/require", "standard library"},
	} {
		src := fmt.Sprintf("package x\n\nimport _ %q\n", tc.imp)
		got := strings.Join(violations(tc.file, importsOf(t, tc.file, []byte(src))), "\n")
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s importing %s: %q, want %q", tc.file, tc.imp, got, tc.want)
		}
	}
}
