package local

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"example.com/cellmart/platform/cellkit"
)

// programs are what the demo takes from the system.
type programs struct {
	pgBin  string // folder with postgres and initdb
	pgUser string // who Postgres runs as, "" = whoever runs this
	redis  string
}

func usage(format string, args ...any) error { return cellkit.Usage{Err: fmt.Errorf(format, args...)} }

func findPrograms() (programs, error) {
	var p programs
	var err error
	if p.pgBin, err = findPostgres(); err != nil {
		return p, err
	}
	if p.redis, err = exec.LookPath("redis-server"); err != nil {
		return p, usage("redis-server is not installed (Debian: apt-get install redis-server)")
	}
	if os.Geteuid() == 0 { // Postgres refuses to run as root
		if _, err := user.Lookup("postgres"); err != nil {
			return p, usage("run by root, Postgres needs a user named postgres: %v", err)
		}
		p.pgUser = "postgres"
	}
	return p, nil
}

var pgVersion = regexp.MustCompile(`\b(\d+)(\.|devel|beta|rc)`)

func findPostgres() (string, error) {
	var dirs []string
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.Reverse(debian) // newest first
	for _, dir := range append(dirs, debian...) {
		out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
		if err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
			continue
		}
		if m := pgVersion.FindSubmatch(out); m != nil {
			if n, _ := strconv.Atoi(string(m[1])); n >= 15 {
				return dir, nil
			}
		}
	}
	return "", usage("no Postgres 15 or later found (pg_config --bindir, /usr/lib/postgresql/*/bin; Debian: apt-get install postgresql)")
}

// freePorts makes sure that all addresses can be listened on.
func freePorts(all []Process) error {
	for _, addr := range addresses(all) {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return usage("port %s is taken: end what uses it, or set CELLMART_PORT_BASE", addr)
		}
		l.Close()
	}
	return nil
}

// addresses are the loopback addresses that the processes will listen on.
func addresses(all []Process) []string {
	var out []string
	for _, p := range all {
		for k, v := range p.Env {
			if strings.HasSuffix(k, "_ADDR") && strings.HasPrefix(v, "127.0.0.1:") && !slices.Contains([]string{"LINK_ADDR", "REDIS_ADDR"}, k) {
				out = append(out, v)
			}
		}
		if addr, ok := strings.CutPrefix(p.Ready, "tcp://"); ok && !slices.Contains(out, addr) {
			out = append(out, addr)
		}
	}
	slices.Sort(out)
	return out
}
