package cellmart

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// faults are what has happened to others, each a public report; tests are named
// after them.
var faults = map[string]string{
	"R01": "killed between storing a table and handing it out, nothing can be published after",
	"R02": "a push is lost, the node stays on an old table for ever",
	"R03": "a router restarts with an empty table",
	"R04": "a moved tenant goes to the old cell, an unknown one to a default",
	"R07": "the page is empty because one of its sources failed",
	"R08": "a weak hash puts a ring's tokens side by side, one cell has nearly all",
	"F01": "a long transaction commits at the source after the switch",
	"F05": "the barrier's position is read before writes stopped",
	"M01": "after a crash the barrier says done, but the effect was rolled back",
	"M02": "an empty rollback is retried for ever",
	"M03": "an outbox read by ID skips rows that commit late",
	"M04": "the stream's dedupe forgets, or blocks what was never stored",
	"M05": "one duplicate rejects a whole batch",
	"M06": "a stream vanishes or loses its tail",
	"M07": "a sweeper overwrites a finished row",
	"M08": "negative amounts, parallel spends of one balance",
	"M09": "messages in another order after a partial failure",
	"M10": "CANCEL before CREDIT, the same ID with another amount",
	"M11": "NAK with delay starves the others; pull goes silent",
	"M12": "the payee moves, or fails over, in the middle of a transfer",
	"O01": "oversold between check and decrement",
	"O02": "a row lock held over a payment blocks other buyers",
	"O03": "the reserved counter drifts from the reservations",
	"O04": "the hold expires while the order pays: stuck, money spent",
	"O05": "captured, no order: confirm races the payment",
	"O06": "after a decline the cart can never complete",
	"O07": "double submit makes two orders",
	"O08": "a late event revives an ended order",
	"O09": "the order's event is out before its commit",
	"O10": "split seller orders lose lines",
	"O11": "the old price is charged",
	"O12": "pays for 1 of 10",
	"O13": "anyone reads or cancels others' orders",
	"O14": "killed between commit and publish",
	"I01": "a restored database issues an ID twice",
	"I02": "the clock steps back",
	"I03": "a cached block outlives the switch",
	"I04": "a claim begun again collides with itself",
	"I05": "a machine id from a private address repeats",
	"I06": "a new generator for each call repeats IDs",
	"I07": "two refills, segments out of order, callers wait",
	"I09": "the table depends on the order of cells, or on the version",
	"I10": "\"1\" and 1 are two keys",
	"I08": "a machine id is given to a second process, a rest is written back",
	"C01": "the change stream starts at the server's position and skips the backlog",
	"C02": "a slot is made again, changes are skipped silently",
	"C03": "rows share a position; a restart inside a transaction or a copy loses some",
	"C04": "WAL grows without bound on an idle cell",
	"C05": "a large transaction outlasts the sender's timeout",
	"C06": "it stops silently: the slot is active, and no change comes",
	"C07": "changes go round between two cells for ever",
	"C08": "an old change overwrites a new one, the deleted comes back",
	"C09": "rows that neither the copy nor the stream has",
	"C10": "a column is added on a running system",
	"C12": "the first messages are lost: a consumer started at the latest",
	"W01": "a page fails because an optional part is down, and shows the program's error",
	"W02": "a page of a sibling origin drives the console",
	"W03": "the console has a default password",
	"W05": "any certificate of the CA may call",
	"W06": "the seventh tab hangs: six connections for an origin",
	"W07": "a live stream dies at the server's write timeout",
	"W08": "what is dead is shown healthy, what has stopped as lag 0",
	"W09": "one click ends it, a second finds nothing, the page still shows the old state",
	"W10": "dead after a clone: line ends, start order, a wrong README command",
	"W11": "crash loop when a dependency is late or restarts",
	"W12": "an out-of-memory loop at the memory that is stated",
	"W13": "a wrapped 404 becomes a 500; a body overwrites the path's ID",
}

var (
	inName = regexp.MustCompile(`^TestScenario_([A-Z]\d\d)_`)
	inText = regexp.MustCompile(`\bS-([A-Z]\d\d)\b`)
)

// scenariosIn gives the tests of a file for each scenario: by a test's name, its
// comment, and what is said inside it.
func scenariosIn(name string, src []byte) (map[string][]string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, src, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") || f.Body == nil {
			continue
		}
		text := f.Doc.Text() + string(src[files.Position(f.Pos()).Offset:files.Position(f.End()).Offset])
		found := inText.FindAllStringSubmatch(text, -1)
		if m := inName.FindStringSubmatch(f.Name.Name); m != nil {
			found = append(found, m)
		}
		for _, m := range found {
			out[m[1]] = add(out[m[1]], f.Name.Name)
		}
	}
	return out, nil
}

const scenarioTable = "<!-- below: go test . -run TestScenariosDoc -update -->\n"

// docs/testing.md has each scenario that a test is about, with the test.
func TestScenariosDoc(t *testing.T) {
	t.Parallel()
	all := map[string][]string{}
	sources(t, func(file string, src []byte) {
		if !strings.HasSuffix(file, "_test.go") || path.Base(file) == "docs_scenarios_test.go" {
			return
		}
		found, err := scenariosIn(file, src)
		if err != nil {
			t.Fatal(err)
		}
		for id, tests := range found {
			for _, test := range tests {
				all[id] = add(all[id], "`"+path.Dir(file)+"` "+test)
			}
		}
	})
	want := "\n| | the fault | tests |\n|---|---|---|\n"
	for _, id := range slices.Sorted(maps.Keys(all)) {
		if faults[id] == "" {
			t.Errorf("S-%s of %s isn't in the list of faults in this file", id, all[id])
		}
		want += fmt.Sprintf("| S-%s | %s | %s |\n", id, faults[id], strings.Join(all[id], "<br>"))
	}
	checkGenerated(t, "docs/testing.md", scenarioTable, want, "go test . -run TestScenariosDoc -update")
}

// checkGenerated holds what stands below the mark in a page against what the
// code has, or writes it.
func checkGenerated(t *testing.T, page, mark, want, how string) {
	t.Helper()
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, below, ok := strings.Cut(string(have), mark)
	switch {
	case !ok:
		t.Fatalf("%s has no line %s", page, mark)
	case *update:
		if err := os.WriteFile(page, []byte(head+mark+want), 0o644); err != nil {
			t.Fatal(err)
		}
	case below != want:
		had := strings.Split(below, "\n")
		for line := range strings.SplitSeq(want, "\n") {
			if !slices.Contains(had, line) {
				t.Errorf("missing: %s", line)
			}
		}
		t.Errorf("%s isn't what the code has: %s", page, how)
	}
}

func TestScenariosAreFound(t *testing.T) {
	t.Parallel()
	got, err := scenariosIn("x_test.go", []byte("package x\n// S-A01: so.\nfunc TestX(t T) { run(\"S-B02 y\") }\nfunc TestScenario_C03_Z(t T) {}\n// S-D04\nfunc help() {}\n"))
	if want := "map[A01:[TestX] B02:[TestX] C03:[TestScenario_C03_Z]]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("scenariosIn = %v, %v, want %s", got, err, want)
	}
}
