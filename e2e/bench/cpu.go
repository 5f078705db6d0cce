package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"example.com/cellmart/deploy/local"
)

// ticks of user and system time in a second, the same on every Linux.
const ticks = 100

// spent is CPU-seconds by part: a service's name, or "postgres <role>" for the
// backends of one role. Backends of which only Postgres's own count is left,
// because they have ended, are in "postgres ended".
type spent map[string]float64

func (s spent) since(before spent) spent {
	out := spent{}
	for part, v := range s {
		out[part] = v - before[part]
	}
	return out
}

// sum adds the parts that match any pattern (path.Match); no pattern adds all.
func (s spent) sum(patterns ...string) (total float64) {
	for part, v := range s {
		matched := len(patterns) == 0
		for _, p := range patterns {
			if ok, _ := path.Match(p, part); ok { // the patterns are constants
				matched = true
			}
		}
		if matched {
			total += v
		}
	}
	return total
}

// cellCPU reads what the processes of the cells have used so far. Of Postgres only
// backends of the given database count, not its writers, and not the superuser,
// which is this program.
func cellCPU(s *local.State, database string, cells ...string) (spent, error) {
	out := spent{}
	for _, p := range s.Processes {
		for _, cell := range cells {
			if p.Zone != cell {
				continue
			}
			part := path.Base(p.Name)
			if part == "postgres" {
				if err := backends(p.PID, database, out); err != nil {
					return nil, err
				}
				continue
			}
			st, err := readStat(p.PID)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.Name, err)
			}
			out[part] += st.own
		}
	}
	return out, nil
}

// backends adds up a postmaster's children by role.
func backends(postmaster int, database string, out spent) error {
	st, err := readStat(postmaster)
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	out["postgres ended"] += st.ended
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		st, err := readStat(pid)
		if errors.Is(err, fs.ErrNotExist) || err == nil && st.parent != postmaster {
			continue
		}
		if err != nil {
			return err
		}
		title, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue // it has just ended
		}
		if part := backend(strings.Fields(string(bytes.ReplaceAll(title, []byte{0}, []byte{' '}))), database); part != "" {
			out[part] += st.own
		}
	}
	return nil
}

// backend names the part of a process of Postgres by its title, "" for one that
// doesn't count: "postgres: ROLE DATABASE HOST(PORT) STATE". One that reads the WAL
// for search is "postgres: walsender ROLE HOST(PORT) STATE"; the bench's own
// database has none.
func backend(title []string, database string) string {
	switch {
	case len(title) < 4 || title[0] != "postgres:" || title[1] == "postgres":
		return ""
	case title[1] == "walsender" && title[2] != "postgres" && database != baseDatabase, title[2] == database:
		return "postgres " + title[1]
	}
	return ""
}

// stat is what is of use of /proc/PID/stat, times in seconds.
type stat struct {
	parent     int
	own, ended float64 // of the process, and of its children that have ended
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || err != nil && strings.Contains(err.Error(), "no such process") {
		return stat{}, fmt.Errorf("process %d: %w", pid, fs.ErrNotExist)
	}
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(b))
}

func parseStat(s string) (stat, error) {
	i := strings.LastIndex(s, ")") // the name may hold anything
	f := strings.Fields(s[i+1:])
	if i < 0 || len(f) < 15 {
		return stat{}, fmt.Errorf("not a stat line: %q", s)
	}
	var n [5]int64
	for k, field := range []int{1, 11, 12, 13, 14} { // parent, utime, stime, cutime, cstime
		v, err := strconv.ParseInt(f[field], 10, 64)
		if err != nil {
			return stat{}, fmt.Errorf("not a stat line: %w", err)
		}
		n[k] = v
	}
	return stat{parent: int(n[0]), own: float64(n[1]+n[2]) / ticks, ended: float64(n[3]+n[4]) / ticks}, nil
}
