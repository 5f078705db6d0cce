package route

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"example.com/cellmart/platform/routing"
)

// kept is how many snapshots stay: two older ones to fall back on.
const kept = 3

// A snapshot file is "<sha256 of the rest in hex>\n<signed table>". The name has
// the version, so the newest is found without reading all.
const (
	prefix = "route-"
	suffix = ".snapshot"
)

func fileName(version int64) string { return fmt.Sprintf("%s%019d%s", prefix, version, suffix) }

// Snapshot is what was found in a folder.
type Snapshot struct {
	Table   *routing.Table // nil when no file is sound
	Signed  []byte
	Skipped []error // newer files that were not sound, and why
}

// WriteSnapshot stores a signed table that the caller has verified, and removes
// all but the last three. After it returns the file survives a power cut; at no
// moment is there half a file under a snapshot's name. One process per folder
// writes (the agent).
func WriteSnapshot(dir string, signed []byte) error {
	version := claimed(signed)
	if version < 1 {
		return fmt.Errorf("%w: no snapshot of it: %.40q", routing.ErrTable, signed)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	sum := sha256.Sum256(signed)
	body := append([]byte(hex.EncodeToString(sum[:])+"\n"), signed...)
	if err := writeSynced(dir, filepath.Join(dir, fileName(version)), body); err != nil {
		return fmt.Errorf("write snapshot %d: %w", version, err)
	}
	names, err := snapshots(dir)
	if err != nil {
		return err
	}
	for _, name := range names[min(kept, len(names)):] {
		if name != fileName(version) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, name)))
		}
	}
	return err
}

// claimed is the version that a signed table says it has, which nobody has checked
// and which costs little to read; 0 for none.
func claimed(signed []byte) int64 {
	s, err := routing.ParseSigned(signed)
	if err != nil {
		return 0
	}
	var t struct {
		Version int64 `json:"version"`
	}
	if json.Unmarshal(s.Payload, &t) != nil {
		return 0
	}
	return t.Version
}

func writeSynced(dir, path string, body []byte) error {
	f, err := os.CreateTemp(dir, ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it's gone after the rename
	_, err = f.Write(body)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close()) // else the rename may be lost
}

// snapshots lists the names of snapshot files, newest first.
func snapshots(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && strings.HasSuffix(e.Name(), suffix) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	slices.Reverse(names)
	return names, nil
}

// ReadSnapshot finds the newest sound snapshot: whole (checksum), signed by key,
// valid, and of the version that its name says.
func ReadSnapshot(dir string, key ed25519.PublicKey) Snapshot {
	var out Snapshot
	names, err := snapshots(dir)
	if err != nil {
		out.Skipped = append(out.Skipped, err)
		return out
	}
	for _, name := range names {
		t, signed, err := readFile(filepath.Join(dir, name), key)
		if err != nil {
			out.Skipped = append(out.Skipped, fmt.Errorf("%s: %w", name, err))
			continue
		}
		out.Table, out.Signed = t, signed
		return out
	}
	return out
}

var errChecksum = errors.New("checksum does not match")

func readFile(path string, key ed25519.PublicKey) (*routing.Table, []byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	sum, signed, ok := bytes.Cut(b, []byte("\n"))
	want := sha256.Sum256(signed)
	if !ok || string(sum) != hex.EncodeToString(want[:]) {
		return nil, nil, errChecksum
	}
	t, err := routing.Open(key, signed)
	if err != nil {
		return nil, nil, err
	}
	if filepath.Base(path) != fileName(t.Version()) {
		return nil, nil, errors.New("has version " + strconv.FormatInt(t.Version(), 10))
	}
	return t, signed, nil
}
