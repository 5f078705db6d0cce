package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestBadInputIsOneLineAndExitCodeTwo(t *testing.T) {
	root := t.TempDir() // no demo here
	for _, args := range []string{
		"nonsense", "cell", "cell weight", "cell weight c1", "cell weight c1 -1", "cell weight c1 many", "cell weigh c1 1", "cell weight c1 1", "unplug", "unplug c1 c2", "plug", "route", "route a b", "link c1", "link c1 c2 c3", "link c1 c2 --cut sideways",
		"link c1 c2 --delay -1s", "link c1 c2 --delay 2h", "link c1 c2 --delay soon", "transfer a b", "status x", "status -o yaml",
		"status --nosuch", "invariants now", "demo sideways", "status", "unplug c1", "invariants", "transfer", "demo status",
		"load x", "load --rate fast", "load --duration 1h", "load --duration 1ms", "drill", "drill book", "drill unplug c3", "drill unplug --cell",
		"plan x", "plan --qps 0", "plan --users -1", "plan --cells 1", "plan --nosuch", "plan --data much", "plan --link fast", "plan --measured",
		"drill unplug --sabotage=nats", "drill unplug --list", "drill db-down --sabotage=redis",
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append(strings.Fields(args), "--root", root), &out, &errs)
		if code != 2 || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("cellctl %s = %d, %q; want 2 and one line", args, code, errs.String())
		}
	}
}

func TestSabotageMayHaveAKind(t *testing.T) {
	for args, want := range map[string]string{
		"unplug": " ", "unplug --sabotage": "true ", "unplug --sabotage=agent": "agent agent", "--sabotage=redis unplug": "redis redis",
		"db-down --sabotage": "true ", "--sabotage instance": "true ",
	} {
		c := &cli{flags: newFlags()}
		var s sabotage
		c.flags.Var(&s, "sabotage", "")
		words, err := c.parse(strings.Fields(args), 1, 1)
		if err != nil {
			t.Errorf("%q: %v", args, err)
			continue
		}
		if kind, err := s.of(words[0]); err != nil || string(s)+" "+kind != want {
			t.Errorf("%q = %q, kind %q, %v; want %q", args, s, kind, err, want)
		}
	}
	for name, s := range map[string]sabotage{"unplug": "nats", "instance": "redis"} {
		if kind, err := s.of(name); err == nil {
			t.Errorf("drill %s --sabotage=%s = %q, want an error", name, s, kind)
		}
	}
}

func TestHelpNamesEveryVerb(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), nil, &out, &errs); code != 0 {
		t.Errorf("cellctl = %d", code)
	}
	for _, v := range verbs() {
		if !strings.Contains(out.String(), "cellctl "+v.name) {
			t.Errorf("help says nothing of %s", v.name)
		}
	}
}

func TestWordsAndFlagsInAnyOrder(t *testing.T) {
	for _, args := range []string{"-o json c1", "c1 -o json", "c1 -o=json"} {
		c := &cli{flags: newFlags()}
		words, err := c.parse(strings.Fields(args), 1, 1)
		if err != nil || len(words) != 1 || words[0] != "c1" || !c.json {
			t.Errorf("%q = %v, json %v, %v", args, words, c.json, err)
		}
	}
}
