package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// What counts of a transfer's CPU: this program began it; ours are the agents, user
// services, NATS servers and Postgres servers of both cells, the baseline's the
// Postgres servers.
var (
	ourParts  = []string{"client", "agent", "user", "nats", "postgres *"}
	baseParts = []string{"client", "postgres *"}
)

// bankCPU reads what this program ("client"), the services and the whole Postgres
// servers of some cells have used so far, in CPU-seconds. Other than cellCPU it has
// the servers' own processes too: both sides' flushes are theirs.
func (b *bank) bankCPU(cells ...string) (spent, error) {
	out := spent{}
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return nil, err
	}
	out["client"] = seconds(own.Utime) + seconds(own.Stime)
	for _, p := range b.d.state.Processes {
		for _, cell := range cells {
			if p.Zone != cell {
				continue
			}
			part := path.Base(p.Name)
			if part == "postgres" {
				if err := server(p.PID, out); err != nil {
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

func seconds(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

// leaving has processes that have ended, which their parent doesn't know yet.
const leaving = "postgres leaving"

// server adds up a Postgres server's processes by what they are.
func server(postmaster int, out spent) error {
	st, err := readStat(postmaster)
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	out["postgres ended"] += st.own + st.ended
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
		if len(title) == 0 { // it has ended, and its parent doesn't know yet
			out[leaving] += st.own
			continue
		}
		if part := serverPart(strings.Fields(string(bytes.ReplaceAll(title, []byte{0}, []byte{' '})))); part != "" {
			out["postgres "+part] += st.own
		}
	}
	return nil
}

// serverPart names a process of Postgres by its title: a backend by its role or the
// baseline's databases, others by what they do. "" is the superuser's, which is this program's looking.
func serverPart(title []string) string {
	switch {
	case len(title) < 2 || title[0] != "postgres:" || title[1] == "postgres":
		return ""
	case len(title) > 2 && (title[2] == twoPhaseDatabase || title[2] == plainDatabase):
		return "baseline"
	case len(title) > 2 && title[2] == limitDatabase:
		return "pgbench"
	}
	return title[1]
}

// measured is CPU-seconds and how long they took.
type measured struct {
	spent
	took time.Duration
}

// measure gives what f used in some cells, less what they use at rest.
func (b *bank) measure(rest measured, f func() error, cells ...string) (measured, error) {
	begun := time.Now()
	before, err := b.bankCPU(cells...)
	if err != nil {
		return measured{}, err
	}
	if err := f(); err != nil {
		return measured{}, err
	}
	after, err := b.bankCPU(cells...)
	if err != nil {
		return measured{}, err
	}
	out := measured{after.since(before), time.Since(begun)}
	for part, v := range rest.spent {
		out.spent[part] = max(0, out.spent[part]-v*out.took.Seconds()/rest.took.Seconds())
	}
	return out, nil
}

// atRest measures the cells with nothing to do.
func (b *bank) atRest(ctx context.Context, cells ...string) (measured, error) {
	return b.measure(measured{}, func() error { return pause(ctx, 6*time.Second) }, cells...)
}

// breakdown lists CPU-milliseconds for each of n transfers.
func (m measured) breakdown(n int, patterns ...string) string {
	var out []string
	for _, part := range sorted(m.spent) {
		if ms := (spent{part: m.spent[part]}).sum(patterns...) * 1000 / float64(n); ms >= 0.005 {
			out = append(out, fmt.Sprintf("%s %.2f", part, ms))
		}
	}
	return strings.Join(out, ", ")
}
