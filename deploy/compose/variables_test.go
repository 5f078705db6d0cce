package compose

import (
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/deploy/local"
)

// known reads from docs/configuration.md, which is generated from the code, which
// variables each component has.
func known(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(root + "/docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	out, component := map[string][]string{}, ""
	for line := range strings.Lines(string(page)) {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			component = strings.TrimSpace(name)
		} else if cells := strings.Split(line, "|"); len(cells) > 3 && strings.Contains(cells[1], "_") {
			out[component] = append(out[component], strings.TrimSpace(cells[1]))
		}
	}
	if len(out["gateway"]) < 10 || len(out["agent"]) < 10 {
		t.Fatalf("read only %v", out)
	}
	return out
}

// given says which of a component's variables an environment has, and what in
// them must be the same wherever it runs.
func given(component string, vars []string, env map[string]string) map[string]string {
	prefix := strings.ToUpper(strings.ReplaceAll(component, "-", "_")) + "_"
	out := map[string]string{}
	for _, full := range vars {
		name := strings.TrimPrefix(full, prefix)
		for _, key := range []string{full, name, full + "_FILE", name + "_FILE"} {
			if v := env[key]; v != "" {
				out[full] = same(full, v, env["CELL"])
				break
			}
		}
	}
	if env["CELL"] == "global" {
		delete(out, "AGENT_PG_DSN") // not read there, nor is the next
		delete(out, "AGENT_APPLIER_DSN")
	}
	for _, name := range []string{"GOMAXPROCS", "GOGC"} {
		out[name] = env[name]
	}
	return out
}

// same is what of a value doesn't depend on addresses, folders and secrets.
func same(name, value, zone string) string {
	switch {
	case slices.Contains([]string{"AGENT_PEERS", "AGENT_TARGETS", "EDGE_CELLS"}, name):
		keys := map[string]bool{}
		for pair := range strings.SplitSeq(value, ",") {
			key, _, _ := strings.Cut(pair, "=")
			keys[key] = key != zone || name != "AGENT_PEERS" // the own one is left out
		}
		maps.DeleteFunc(keys, func(_ string, counts bool) bool { return !counts })
		return strings.Join(slices.Sorted(maps.Keys(keys)), " ")
	case strings.HasSuffix(name, "_DSN"):
		u, err := url.Parse(value)
		if err != nil {
			return err.Error()
		}
		return u.User.Username() + u.Path + " sslmode=" + u.Query().Get("sslmode")
	case strings.HasSuffix(name, "_CELL"), strings.HasSuffix(name, "_CELLS"), name == "CONTROL_INIT", name == "EDGE_REGIONS":
		return value
	}
	return "set"
}

// Both ways give each service the same variables: one that is forgotten in one of
// them takes its default there, and nobody notices.
func TestVariablesAreTheSameInBothWays(t *testing.T) {
	t.Parallel()
	vars := known(t)
	want := map[string]map[string]string{} // by c1-order
	for _, p := range local.Services(4) {
		want[strings.Replace(p.Name, "/", "-", 1)] = given(p.Argv[1], vars[p.Argv[1]], p.Env)
	}
	for _, tc := range []struct {
		name string
		args []string
	}{
		{"compose.yaml", nil},
		{"compose.split.yaml", []string{"-f", "compose.yaml", "-f", "compose.split.yaml"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := load(t, tc.args...)
			have := map[string]map[string]string{}
			for name, s := range m.Services {
				if !strings.HasPrefix(s.Image, "cellmart:") || oneShot(name) || strings.HasSuffix(name, "-2") {
					continue
				}
				zone, part, _ := strings.Cut(name, "-")
				for _, component := range s.Command { // one container may run several
					if zone == "edge" {
						have[zone] = given(component, vars[component], s.Environment)
					} else if component == part || part == "gateway" {
						have[zone+"-"+component] = given(component, vars[component], s.Environment)
					}
				}
			}
			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("-deploy/local +%s:\n%s", tc.name, diff)
			}
			if len(have) != 4*6+6 {
				t.Errorf("%d services were compared, want %d: %v", len(have), 4*6+6, slices.Sorted(maps.Keys(have)))
			}
		})
	}
}

// What is compared finds what is forgotten, and what is wrong.
func TestForgottenVariablesAreFound(t *testing.T) {
	t.Parallel()
	vars := []string{"ORDER_CELL", "ORDER_CELLS", "ORDER_PG_DSN", "ORDER_NUMBER_KEY", "ORDER_ADDR"}
	env := func(change ...string) map[string]string {
		out := map[string]string{
			"CELL": "c1", "CELLS": "c1,c2", "PG_DSN": "postgres://cellmart_app:x@h:1/cellmart?sslmode=disable", "ORDER_NUMBER_KEY": "n", "ORDER_ADDR": ":1",
		}
		for i := 0; i < len(change); i += 2 {
			delete(out, change[i])
			if change[i+1] != "" {
				out[change[i]] = change[i+1]
			}
		}
		return out
	}
	want := given("order", vars, env())
	for _, tc := range []struct {
		change []string
		same   bool
	}{
		{[]string{"ORDER_ADDR", "", "ADDR", ":8080"}, true},
		{[]string{"ORDER_NUMBER_KEY", "", "ORDER_NUMBER_KEY_FILE", "/keys/numbers"}, true},
		{[]string{"PG_DSN", "postgres://cellmart_app@postgres:5432/cellmart?sslmode=disable&passfile=/keys/pgpass"}, true},
		{[]string{"PG_DSN", "postgres://cellmart_agent@postgres:5432/cellmart?sslmode=disable"}, false},
		{[]string{"ORDER_NUMBER_KEY", ""}, false},
		{[]string{"CELLS", "c1"}, false},
		{[]string{"GOGC", "100"}, false},
	} {
		if diff := cmp.Diff(want, given("order", vars, env(tc.change...))); (diff == "") != tc.same {
			t.Errorf("%v: the same is %v, want %v: %s", tc.change, diff == "", tc.same, diff)
		}
	}
	for value, want := range map[string]string{"c1=a:1,c2=b:2,global=c:3": "c2 global", "c2=x:4,global=y:5": "c2 global", "c2=b:2": "c2"} {
		if got := same("AGENT_PEERS", value, "c1"); got != want {
			t.Errorf("peers %s = %q, want %q", value, got, want)
		}
	}
}
