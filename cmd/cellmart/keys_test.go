package main

import (
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
)

func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(dir, path))
		out[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Every zone makes the keys at the same time, as one-shot containers do: all get
// the same shared ones, their own private ones, and nobody else's.
func TestKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	zones := []string{"c1", "c2", "global", "edge"}
	var said strings.Builder // only the global zone says anything
	run := func() map[string]map[string]string {
		var group errgroup.Group
		for _, zone := range zones {
			group.Go(func() error {
				if err := os.MkdirAll(filepath.Join(dir, zone), 0o700); err != nil {
					return err
				}
				vars := map[string]string{"CELL": zone, "CELLS": "c1,c2", "KEYS_MASTER": filepath.Join(dir, "master"), "KEYS_DIR": filepath.Join(dir, zone)}
				p := cellkit.Process{Getenv: func(k string) string { return vars[k] }, Stdout: io.Discard}
				if zone == "global" {
					p.Stdout = &said
				}
				return runKeys(t.Context(), p)
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		out := map[string]map[string]string{}
		for _, zone := range zones {
			out[zone] = files(t, filepath.Join(dir, zone))
		}
		return out
	}
	got := run()
	cell := func(name string) []string {
		return []string{
			"agent." + name + ".key", "agent." + name + ".pem", "ca.pem", "claims", "control.pub", "cursors", "numbers", "operator",
			"pg-agent", "pg-app", "pg-applier", "pg-migrate", "pg-super", "pgpass", "token.key",
		}
	}
	global := slices.DeleteFunc(cell("global"), func(name string) bool { return name == "token.key" })
	global = append(global, "console", "control.key", "token.c1.pub", "token.c2.pub")
	want := map[string][]string{"c1": cell("c1"), "c2": cell("c2"), "global": global, "edge": {"ca.pem", "control.pub", "edge.key", "edge.pem"}}
	for _, zone := range zones {
		var names []string
		for name := range got[zone] {
			names = append(names, name)
		}
		slices.Sort(names)
		slices.Sort(want[zone])
		if diff := cmp.Diff(want[zone], names); diff != "" {
			t.Errorf("%s has other files (-want +got):\n%s", zone, diff)
		}
	}
	c1, c2 := got["c1"], got["c2"]
	for _, same := range append(slices.Clone(secretsOfAll), "ca.pem", "control.pub") {
		if c1[same] == "" || c1[same] != c2[same] || same != "ca.pem" && same != "control.pub" && c1[same] != got["global"][same] {
			t.Errorf("%s isn't the same everywhere", same)
		}
	}
	for _, own := range []string{"pg-super", "pg-app", "pgpass", "token.key"} {
		if c1[own] == c2[own] {
			t.Errorf("c1 and c2 have the same %s", own)
		}
	}
	if !strings.Contains(c1["pgpass"], "*:*:*:cellmart_app:"+c1["pg-app"]+"\n") {
		t.Errorf("pgpass has no line for the password of pg-app")
	}
	if info, err := os.Stat(filepath.Join(dir, "c1", "pg-app")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("pg-app: mode %v, %v", info.Mode(), err)
	}
	if diff := cmp.Diff(got, run()); diff != "" {
		t.Error("a second run changed keys:", diff)
	}
	if text := said.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, got["global"]["console"]) {
		t.Errorf("the console's first password is said %q, and once", text)
	}
}

func TestKeysRefusesUnknownZone(t *testing.T) {
	t.Parallel()
	vars := map[string]string{"CELL": "c9", "CELLS": "c1,c2", "KEYS_MASTER": t.TempDir()}
	err := runKeys(t.Context(), cellkit.Process{Getenv: func(k string) string { return vars[k] }})
	if err == nil || !strings.Contains(err.Error(), "c9") {
		t.Errorf("%v, want a word about c9", err)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	for _, tc := range []struct {
		urls []string
		ok   bool
	}{
		{[]string{server.URL + "/readyz"}, true},
		{[]string{server.URL + "/readyz", server.URL + "/other"}, false},
		{[]string{"http://127.0.0.1:1/"}, false},
		{nil, false},
	} {
		if err := runCheck(t.Context(), cellkit.Process{Args: tc.urls}); (err == nil) != tc.ok {
			t.Errorf("check %q: %v", tc.urls, err)
		}
	}
}
