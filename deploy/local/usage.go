package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTicks per second, as the kernel counts CPU time for /proc on every
// architecture that Go runs on.
const clockTicks = 100

// Usage is what a demo costs. A nil figure is unknown.
type Usage struct {
	Seconds float64  `json:"seconds"`   // measured over
	Cores   *float64 `json:"cpu_cores"` // mean; 0.3 = three tenths of one core
	PSS     *int64   `json:"pss_bytes"` // at the end: each page counted once, shared ones in shares
	Note    string   `json:"note,omitempty"`
}

// Usage measures all processes of the demo, Postgres's children included, for a
// while.
func (s *State) Usage(ctx context.Context, d time.Duration) (Usage, error) {
	begin := time.Now()
	before, _, err := s.spent()
	if err != nil {
		return Usage{}, err
	}
	if err := pause(ctx, d); err != nil {
		return Usage{}, err
	}
	after, pids, err := s.spent()
	if err != nil {
		return Usage{}, err
	}
	u := Usage{Seconds: time.Since(begin).Seconds()}
	cores := float64(after-before) / clockTicks / u.Seconds
	u.Cores = &cores
	var all []int
	for _, own := range pids {
		all = append(all, own...)
	}
	pss, err := PSS(all)
	if err != nil {
		u.Note = "memory is unknown: " + err.Error()
		return u, nil
	}
	u.PSS = &pss
	return u, nil
}

// CPU is the time that all processes of the demo have used so far, Postgres's
// children included.
func (s *State) CPU() (time.Duration, error) {
	ticks, _, err := s.spent()
	return time.Duration(ticks) * time.Second / clockTicks, err
}

// spent is the CPU time so far of the demo's processes, their children, and
// children that have ended, in ticks; pids are each process and its children.
func (s *State) spent() (ticks int64, pids map[int][]int, err error) {
	pids = map[int][]int{}
	ours := map[int]bool{}
	for i := range s.Processes {
		if p := &s.Processes[i]; p.Alive() {
			ours[p.PID] = true
		}
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, nil, err
	}
	type process struct {
		parent int
		ticks  int64
	}
	all := map[int]process{}
	for _, path := range stats {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		b, err := os.ReadFile(path)
		if err != nil {
			continue // gone
		}
		_, rest, _ := strings.Cut(string(b), ") ") // the name may hold anything
		f := strings.Fields(rest)
		if len(f) < 15 {
			continue
		}
		p := process{}
		p.parent, _ = strconv.Atoi(f[1])
		for _, field := range f[11:15] { // utime, stime, and those of waited-for children
			n, _ := strconv.ParseInt(field, 10, 64)
			p.ticks += n
		}
		all[pid] = p
	}
	for pid := range all {
		for up := pid; up > 1; up = all[up].parent {
			if ours[up] {
				ticks += all[pid].ticks
				pids[up] = append(pids[up], pid)
				break
			}
		}
	}
	return ticks, pids, nil
}

// PSS adds up the proportional set size of processes; one that is gone counts
// nothing.
func PSS(pids []int) (bytes int64, err error) {
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		switch {
		case errors.Is(err, fs.ErrNotExist) || err != nil && strings.Contains(err.Error(), "no such process"):
			continue
		case err != nil:
			return 0, err
		}
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
				n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
				if err != nil {
					return 0, fmt.Errorf("smaps_rollup of %d: %w", pid, err)
				}
				bytes += n << 10
				break
			}
		}
	}
	return bytes, nil
}
