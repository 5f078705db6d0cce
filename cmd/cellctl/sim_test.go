package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestSimBadInput(t *testing.T) {
	for _, args := range []string{
		"nosuch", "vnodes nosuch", "--users 0", "--users -1", "--users 1", "--users many", "--users 999999999999", "--cells 0", "--cells 1", "--cells -4",
		"--cells 1000000", "--seed 0", "--seed -1", "--seed x", "--slots modulo", "--nosuch", "-o yaml", "VNODES",
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"sim"}, strings.Fields(args)...), &out, &errs)
		if code != 2 || strings.Count(errs.String(), "\n") != 1 || out.Len() > 0 {
			t.Errorf("cellctl sim %s = %d, %q, %d bytes out; want 2 and one line", args, code, errs.String(), out.Len())
		}
	}
}

// sim needs no demo and no folder, and answers only what it's asked.
func TestSimAnswersAsJSON(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), strings.Fields("sim -o json buckets doubling --users 2000 --root /nosuch"), &out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	var r map[string]any
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if len(r) != 3 || r["config"] == nil || r["buckets"] == nil || r["doubling"] == nil {
		t.Errorf("keys of %s", out.String())
	}
}
