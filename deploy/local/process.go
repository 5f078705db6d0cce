package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// start runs p as a process of its own session, its output appended to a log
// file, and notes its id and start time.
func (p *Process) start(logs string) error {
	log, err := os.OpenFile(filepath.Join(logs, strings.ReplaceAll(p.Name, "/", "-")+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the process writes through its own
	cmd := exec.Command(p.Argv[0], p.Argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.Dir, log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.Dir, "TZ=UTC", "LC_ALL=C.UTF-8"}
	for k, v := range p.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if cmd.SysProcAttr.Credential, err = credential(p.Owner); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.PID = cmd.Process.Pid
	p.Start, _ = startTime(p.PID)
	go cmd.Wait() //nolint:errcheck // only so that it doesn't stay a zombie of this program
	return nil
}

func credential(name string) (*syscall.Credential, error) {
	if name == "" || os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// startTime reads field 22 of /proc/PID/stat; ok is false for a process that is
// gone or a zombie.
func startTime(pid int) (ticks uint64, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	_, rest, found := strings.Cut(string(b), ") ") // the name may hold anything
	f := strings.Fields(rest)
	if !found || len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return 0, false
	}
	ticks, err = strconv.ParseUint(f[19], 10, 64)
	return ticks, err == nil
}

func (p *Process) isPostgres() bool { return filepath.Base(p.Argv[0]) == "postgres" }

// Alive says whether this very process runs, not another that got its id.
func (p *Process) Alive() bool {
	if p.PID == 0 {
		return false
	}
	t, ok := startTime(p.PID)
	return ok && t == p.Start
}

// Signal sends a signal if the process still runs.
func (p *Process) Signal(s syscall.Signal) error {
	if !p.Alive() {
		return fmt.Errorf("%s doesn't run", p.Name)
	}
	return syscall.Kill(p.PID, s)
}

// Wait returns when the process is gone.
func (p *Process) Wait(ctx context.Context) error {
	for p.Alive() {
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%s still runs: %w", p.Name, err)
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

var errDied = errors.New("ended while starting")

// ready waits until the process says it is ready.
func (p *Process) ready(ctx context.Context) error {
	client := &http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	for {
		if !p.Alive() {
			return fmt.Errorf("%s: %w", p.Name, errDied)
		}
		last := probe(ctx, client, p.Ready)
		if last == nil {
			return nil
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("%s is not ready: %w", p.Name, last)
		}
	}
}

func probe(ctx context.Context, client *http.Client, ready string) error {
	if addr, ok := strings.CutPrefix(ready, "tcp://"); ok {
		c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", addr)
		if err == nil {
			c.Close()
		}
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ready, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s says %s", ready, resp.Status)
	}
	return nil
}

// end asks processes to end, and kills those that don't within 8 s.
func end(ctx context.Context, all []*Process) error {
	for _, p := range all {
		sig := syscall.SIGTERM
		if p.isPostgres() {
			sig = syscall.SIGINT // fast shutdown: doesn't wait for clients
		}
		_ = p.Signal(sig) // it may be gone already
	}
	polite, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	for _, p := range all {
		if p.Wait(polite) == nil {
			continue
		}
		_ = p.Signal(syscall.SIGCONT)
		_ = p.Signal(hardest(p))
		hard, cancel := context.WithTimeout(ctx, 8*time.Second)
		err := p.Wait(hard)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// hardest ends a process that didn't want to. Postgres waits for readers of its
// log as long as they like; killed, it would leave processes behind that keep the
// next one from starting, so it's told to drop everything (it recovers from that).
func hardest(p *Process) syscall.Signal {
	if p.isPostgres() {
		return syscall.SIGQUIT
	}
	return syscall.SIGKILL
}
