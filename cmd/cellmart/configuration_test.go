package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated part of docs/configuration.md anew")

const generated = "<!-- below: go test ./cmd/cellmart -run TestConfigurationDoc -update -->\n"

// settings writes one table of variables for each component.
func settings() string {
	cell := strings.NewReplacer("|", `\|`)
	var b strings.Builder
	for _, c := range components() {
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n", c.Name, strings.ToUpper(c.Doc[:1])+c.Doc[1:])
		if c.Vars == nil {
			continue
		}
		fmt.Fprintln(&b, "\n| variable | default | meaning |\n|---|---|---|")
		for _, v := range c.Vars() {
			def := ""
			switch {
			case v.Required:
				def = "(required)"
			case v.Default != "":
				def = "`" + cell.Replace(v.Default) + "`"
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", v.Name, def, cell.Replace(v.Doc))
		}
	}
	return b.String()
}

// docs/configuration.md lists every variable that the components read, and no other.
func TestConfigurationDoc(t *testing.T) {
	t.Parallel()
	const page = "../../docs/configuration.md"
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, below, ok := strings.Cut(string(have), generated)
	if !ok {
		t.Fatalf("docs/configuration.md has no line %s", generated)
	}
	want := settings()
	if *update {
		if err := os.WriteFile(page, []byte(head+generated+want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if below == want {
		return
	}
	had := strings.Split(below, "\n")
	for line := range strings.SplitSeq(want, "\n") {
		if !slices.Contains(had, line) {
			t.Errorf("missing: %s", line)
		}
	}
	t.Error("docs/configuration.md isn't what the code has: go test ./cmd/cellmart -run TestConfigurationDoc -update")
}

// Each variable says what it is for: `cellmart help NAME` has nothing else.
func TestEveryVariableIsExplained(t *testing.T) {
	t.Parallel()
	for _, c := range components() {
		if c.Vars == nil {
			continue
		}
		seen := map[string]bool{}
		for _, v := range c.Vars() {
			if strings.TrimSpace(v.Doc) == "" {
				t.Errorf("%s: %s has no meaning", c.Name, v.Name)
			}
			if seen[v.Name] {
				t.Errorf("%s: %s is read twice", c.Name, v.Name)
			}
			seen[v.Name] = true
		}
	}
}
