package main

import (
	"context"
	"strings"
	"testing"
)

// The lines are whole; their figures need more rounds than a test has.
func TestIDLines(t *testing.T) {
	rows, err := nextLines(t.Context(), 2000)
	if err != nil {
		t.Fatal(err)
	}
	numbers, err := numberLines(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range append(rows, numbers...) {
		if !strings.HasPrefix(r.Name, "ids/") || r.Ours == nil || r.Baseline == nil || r.Goal == "" {
			t.Errorf("line %+v", r)
		}
		if r.Name == "ids/next/allocs" && (*r.Ours != 0 || !*r.OK) {
			t.Errorf("Next allocates: %v", *r.Ours)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := numberLines(ctx, 100); err == nil {
		t.Error("measured after the end of ctx")
	}
}
