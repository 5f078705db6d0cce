package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestBackend(t *testing.T) {
	t.Parallel()
	for title, want := range map[string]string{
		"postgres: cellmart_app cellmart 127.0.0.1(5) idle":                 "postgres cellmart_app",
		"postgres: walsender cellmart_agent 127.0.0.1(5) START_REPLICATION": "postgres walsender",
		"postgres: walsender postgres 127.0.0.1(5) START_REPLICATION":       "",
		"postgres: cellmart_app bench 127.0.0.1(5) idle":                    "",
		"postgres: postgres cellmart 127.0.0.1(5) idle":                     "",
		"postgres: walwriter":                    "",
		"postgres: logical replication launcher": "",
		"/usr/bin/postgres -D /x -c y":           "",
	} {
		if got := backend(strings.Fields(title), "cellmart"); got != want {
			t.Errorf("backend(%s) = %q, want %q", title, got, want)
		}
		if got := backend(strings.Fields(title), baseDatabase); strings.Contains(title, "walsender") && got != "" {
			t.Errorf("backend(%s) of the bench's database = %q, want none", title, got)
		}
	}
}

func TestUntilSeen(t *testing.T) {
	t.Parallel()
	looks := 0
	write := func(broken bool) func(context.Context, int) (func(context.Context) error, error) {
		return func(context.Context, int) (func(context.Context) error, error) {
			return func(context.Context) error {
				if looks++; looks < 3 {
					return errNotFound
				}
				if broken {
					return errors.New("503")
				}
				return nil
			}, nil
		}
	}
	if took, err := untilSeen(t.Context(), 0, write(false)); err != nil || looks != 3 || took < 2*look {
		t.Errorf("seen after %d looks in %s, %v; want 3 with %s between them", looks, took, err, look)
	}
	looks = 0
	if _, err := untilSeen(t.Context(), 0, write(true)); err == nil || looks != 3 {
		t.Errorf("a look that fails: %v after %d", err, looks)
	}
}

func TestSearchableRows(t *testing.T) {
	t.Parallel()
	var products, orders, base []time.Duration
	for n := 1; n <= 100; n++ {
		products = append(products, time.Duration(n)*time.Millisecond)
		orders = append(orders, time.Duration(100+n)*time.Millisecond)
		base = append(base, time.Duration(n)*time.Microsecond)
	}
	rows := searchableRows(products, orders, base)
	if len(rows) != 2 || *rows[0].Ours != 101 || *rows[0].Baseline != 0.051 || *rows[1].Ours != 199 || *rows[1].Baseline != 0.1 {
		t.Errorf("rows %+v", rows)
	}
}
