package link

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit"
)

func mustTLS(t *testing.T) *tls.Config {
	t.Helper()
	dir := t.TempDir()
	if err := WritePKI(dir, []string{"c1"}); err != nil {
		t.Fatal(err)
	}
	conf, err := LoadTLS(filepath.Join(dir, EdgeName))
	if err != nil {
		t.Fatal(err)
	}
	return conf
}

func readAll(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[f.Name()] = string(b)
	}
	return out
}

func TestPKIKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pki")
	if err := WritePKI(dir, []string{"c1", GlobalZone}); err != nil {
		t.Fatal(err)
	}
	first := readAll(t, dir)
	for _, name := range []string{
		"ca.pem", "ca.key", "edge.pem", "edge.key", "agent.c1.pem", "agent.c1.key", "agent.global.pem", "agent.global.key",
		"control.key", "control.pub", "token.c1.key", "token.c1.pub",
	} {
		if first[name] == "" {
			t.Errorf("no %s", name)
		}
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(name) == ".key" && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", name, info.Mode())
		}
	}
	if len(first) != 12 {
		t.Errorf("%d files, want 12", len(first))
	}
	if err := WritePKI(dir, []string{"c1", "c2", GlobalZone}); err != nil {
		t.Fatal(err)
	}
	second := readAll(t, dir)
	for name, want := range first {
		if second[name] != want {
			t.Errorf("%s was written anew", name)
		}
	}
	if second["agent.c2.pem"] == "" || second["token.c2.key"] == "" {
		t.Error("the new zone got nothing")
	}
	// A lost half is made again, the whole pair.
	os.Remove(filepath.Join(dir, "agent.c1.key"))
	os.Remove(filepath.Join(dir, "control.pub"))
	if err := WritePKI(dir, []string{"c1", "c2", GlobalZone}); err != nil {
		t.Fatal(err)
	}
	third := readAll(t, dir)
	if third["agent.c1.pem"] == first["agent.c1.pem"] {
		t.Error("the certificate of a lost key was kept")
	}
	if _, err := LoadTLS(filepath.Join(dir, "agent.c1")); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(first["control.pub"], third["control.pub"]); diff != "" {
		t.Error(diff)
	}
}

func TestSigningKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := WritePKI(dir, []string{"c1"}); err != nil {
		t.Fatal(err)
	}
	priv, err := LoadSigningKey(filepath.Join(dir, "control.key"))
	if err != nil {
		t.Fatal(err)
	}
	pub, err := LoadPublicKey(filepath.Join(dir, "control.pub"))
	if err != nil {
		t.Fatal(err)
	}
	if !ed25519.Verify(pub, []byte("table"), ed25519.Sign(priv, []byte("table"))) {
		t.Error("control.pub doesn't verify what control.key signed")
	}
	if _, err := LoadSigningKey(filepath.Join(dir, "nosuch.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing key: %v", err)
	}
	if _, err := LoadPublicKey(filepath.Join(dir, "ca.pem")); err == nil {
		t.Error("a certificate was read as a public key")
	}
}

func TestPKICommand(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pki")
	for _, args := range [][]string{nil, {dir}, {dir, "C1"}, {dir, "../c1"}, {dir, "c1", "c1"}, {dir, EdgeName}} {
		err := RunPKI(context.Background(), cellkit.Process{Args: args})
		if !errors.As(err, new(cellkit.Usage)) {
			t.Errorf("pki %q = %v, want a usage error", args, err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a refused call left something")
	}
	var out bytes.Buffer
	if err := RunPKI(context.Background(), cellkit.Process{Args: []string{dir, "c1", GlobalZone}, Stdout: &out}); err != nil || out.Len() == 0 {
		t.Errorf("pki = %v, said %q", err, out.String())
	}
	if _, err := os.Stat(filepath.Join(dir, "token.global.key")); err == nil {
		t.Error("the global zone got a token key")
	}
}
