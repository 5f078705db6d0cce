package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/pg"
)

// secretsOfAll are the same in every zone.
var secretsOfAll = []string{"operator", "claims", "numbers", "cursors"}

const (
	superFile   = "pg-super" // the database's own container reads it too, by its group
	consoleFile = "console"  // the console's first password
)

// rolesOf are the database roles that get a password, by the name of its file.
func rolesOf() map[string]string {
	return map[string]string{
		superFile: "postgres", "pg-migrate": pg.RoleMigrate, "pg-app": pg.RoleApp, "pg-agent": pg.RoleAgent, "pg-applier": pg.RoleApplier,
	}
}

type keysConfig struct {
	Zone, Master, Dir string
	Cells             []string
}

func loadKeys(getenv func(string) string) (keysConfig, *env.Reader) {
	r := env.NewReader("KEYS", getenv)
	c := keysConfig{
		Zone:   r.Required("CELL", "whose keys: a cell, global or edge"),
		Cells:  r.List("CELLS", "", "all cells"),
		Master: r.String("MASTER", "/master", "folder with everyone's keys, made if missing; no service may read it"),
		Dir:    r.String("DIR", "/keys", "folder that gets what this zone needs"),
	}
	if z := c.Zone; z != "" && z != link.GlobalZone && z != link.EdgeName && !slices.Contains(c.Cells, z) {
		r.Fail("CELL", fmt.Sprintf("is %q, which CELLS doesn't have", z))
	}
	return c, r
}

func keysVars() []env.Var {
	_, r := loadKeys(func(string) string { return "" })
	return r.Vars()
}

// runKeys makes what is missing in the master folder and copies to the zone's
// folder what that zone needs and no other zone's key. It may run again, and at
// the same time as others: the first to come makes what all share.
func runKeys(_ context.Context, p cellkit.Process) error {
	c, r := loadKeys(p.Getenv)
	if err := r.Err(); err != nil {
		return cellkit.Usage{Err: err}
	}
	if err := os.MkdirAll(c.Master, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(c.Master, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // nothing was written
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if err := link.WritePKI(c.Master, append(slices.Clone(c.Cells), link.GlobalZone)); err != nil {
		return cellkit.Usage{Err: err}
	}
	_, err = os.Stat(filepath.Join(c.Master, consoleFile))
	first := errors.Is(err, fs.ErrNotExist) && c.Zone == link.GlobalZone
	copies, err := c.parts()
	if err != nil {
		return err
	}
	for to, from := range copies {
		if err := copyKey(filepath.Join(c.Dir, to), filepath.Join(c.Master, from)); err != nil {
			return err
		}
	}
	if !first {
		return nil
	}
	password, err := os.ReadFile(filepath.Join(c.Dir, consoleFile))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.Stdout, "console: the first operator is \"operator\" with the password %s (it's said once)\n", password)
	return err
}

// parts names the files of a zone: what they are called there and in the master
// folder. Secrets that the master folder lacks are made.
func (c keysConfig) parts() (map[string]string, error) {
	out := map[string]string{"ca.pem": "ca.pem", "control.pub": "control.pub"}
	pair := func(name string) {
		for _, kind := range []string{".pem", ".key"} {
			out[name+kind] = name + kind
		}
	}
	if c.Zone == link.EdgeName {
		pair(link.EdgeName)
		return out, nil
	}
	pair(link.AgentName(c.Zone))
	for _, name := range secretsOfAll {
		if _, err := secret(filepath.Join(c.Master, name)); err != nil {
			return nil, err
		}
		out[name] = name
	}
	if c.Zone == link.GlobalZone {
		out["control.key"] = "control.key"
		if _, err := secret(filepath.Join(c.Master, consoleFile)); err != nil {
			return nil, err
		}
		out[consoleFile] = consoleFile
		for _, cell := range c.Cells {
			out["token."+cell+".pub"] = "token." + cell + ".pub"
		}
	} else {
		out["token.key"] = "token." + c.Zone + ".key"
	}
	var lines strings.Builder
	roles := rolesOf()
	for _, file := range slices.Sorted(maps.Keys(roles)) {
		from := c.Zone + "." + file
		password, err := secret(filepath.Join(c.Master, from))
		if err != nil {
			return nil, err
		}
		out[file] = from
		fmt.Fprintf(&lines, "*:*:*:%s:%s\n", roles[file], password)
	}
	out["pgpass"] = c.Zone + ".pgpass"
	return out, os.WriteFile(filepath.Join(c.Master, out["pgpass"]), []byte(lines.String()), 0o600)
}

// secret reads a secret, or makes it.
func secret(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return string(b), err
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails, by its contract
	text := hex.EncodeToString(random)
	return text, whole(path, []byte(text), 0o600)
}

// copyKey leaves a file alone that has the same content: services read it.
func copyKey(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(to); err == nil && string(have) == string(b) {
		return nil
	}
	mode := fs.FileMode(0o600)
	if filepath.Base(to) == superFile {
		mode = 0o640
	}
	return whole(to, b, mode)
}

// whole writes a file that is complete or not there.
func whole(path string, b []byte, mode fs.FileMode) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
