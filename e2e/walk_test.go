//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// S-W10: the README's walk works as printed. It is scripts/walk (a test in the
// root holds the two together), run here against the demo that is up; only its
// last line, which ends the demo, is left to this package.
func TestScenario_W10_Walk(t *testing.T) {
	scripts := filepath.Join(sys.root, "scripts")
	if err := os.MkdirAll(scripts, 0o755); err != nil {
		t.Fatal(err)
	}
	walk, err := os.ReadFile("../scripts/walk")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"walk": walk, "demo": []byte("#!/bin/sh\necho \"left up: $*\"\n")} {
		if err := os.WriteFile(filepath.Join(scripts, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { cellctl(t, "plug", "c3") })
	cmd := exec.CommandContext(t.Context(), filepath.Join(scripts, "walk"))
	cmd.Env = append(os.Environ(), fmt.Sprintf("CELLMART_PORT_BASE=%d", sys.PortBase))
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	atRest(t)
}
