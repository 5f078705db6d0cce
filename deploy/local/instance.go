package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// second is what the second instance of a service is called after the first.
const second = "-2"

// AddInstance starts a second instance of c1/order, as c1/order-2, at the spare
// address that the cell's gateway has in its list; or of global/idgen, which the
// global agent has in its list. Only these have one.
func (s *State) AddInstance(ctx context.Context, name string) (*Process, error) {
	first, err := s.Process(name)
	if err != nil {
		return nil, err
	}
	zone, err := 0, error(nil)
	if name != "global/idgen" {
		zone, err = strconv.Atoi(strings.TrimPrefix(first.Zone, "c"))
	}
	_, service, _ := strings.Cut(name, "/")
	if err != nil || (service != "order") == (zone > 0) {
		return nil, fmt.Errorf("%s has no spare address; c1/order and global/idgen have", name)
	}
	l := &layout{o: Options{PortBase: s.PortBase}}
	p := *first
	p.Name, p.Env = name+second, maps.Clone(first.Env)
	prefix := strings.ToUpper(service)
	p.Env[prefix+"_ADDR"], p.Env[prefix+"_INTERNAL_ADDR"] = l.addr(zone, portSpare), l.addr(zone, portSpareInternal)
	p.Ready = "http://" + p.Env[prefix+"_INTERNAL_ADDR"] + "/readyz"
	if have, err := s.Process(p.Name); err == nil && have.Alive() {
		return have, nil
	}
	if err := s.launch(ctx, []Process{p}); err != nil {
		return nil, err
	}
	return s.Process(p.Name)
}

// Remove ends a process and forgets it.
func (s *State) Remove(ctx context.Context, name string) error {
	p, err := s.Process(name)
	if err != nil {
		return err
	}
	if err := end(ctx, []*Process{p}); err != nil {
		return err
	}
	var rest []Process
	for _, other := range s.Processes {
		if other.Name != name {
			rest = append(rest, other)
		}
	}
	s.Processes = rest
	return s.save()
}

// StopAll ends processes at the same time and leaves them to Restart or Begin.
func (s *State) StopAll(ctx context.Context, names ...string) error {
	_, err := s.ended(ctx, names)
	return err
}

// Stop ends a process and leaves it to Restart. With kill it isn't asked first.
func (s *State) Stop(ctx context.Context, name string, kill bool) error {
	p, err := s.Process(name)
	if err != nil {
		return err
	}
	if !kill {
		return end(ctx, []*Process{p})
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	return p.Wait(ctx)
}

// Pause stops a process where it is, or lets it go on.
func (s *State) Pause(name string, on bool) error {
	p, err := s.Process(name)
	if err != nil {
		return err
	}
	if on {
		return p.Signal(syscall.SIGSTOP)
	}
	return p.Signal(syscall.SIGCONT)
}

// Restart starts processes again as they were, and waits until all are ready;
// those that run are ended first.
func (s *State) Restart(ctx context.Context, names ...string) error {
	again, err := s.ended(ctx, names)
	if err != nil {
		return err
	}
	return s.launch(ctx, again)
}

// Begin starts processes again as Restart does, and waits for nothing: what they
// need may come later.
func (s *State) Begin(ctx context.Context, names ...string) error {
	again, err := s.ended(ctx, names)
	if err != nil {
		return err
	}
	for i := range again {
		if err := again[i].start(s.logs()); err != nil {
			return err
		}
		s.note(again[i])
	}
	return s.save()
}

// Ready waits until processes say that they are ready; one that ends first is an
// error.
func (s *State) Ready(ctx context.Context, names ...string) error {
	for _, name := range names {
		p, err := s.Process(name)
		if err != nil {
			return err
		}
		if err := p.ready(ctx); err != nil {
			return fmt.Errorf("%w\n%s", err, s.lastLog(name))
		}
	}
	return nil
}

// ended ends processes, and gives them as they are to be started.
func (s *State) ended(ctx context.Context, names []string) ([]Process, error) {
	var all []*Process
	var out []Process
	for _, name := range names {
		p, err := s.Process(name)
		if err != nil {
			return nil, err
		}
		all, out = append(all, p), append(out, *p)
	}
	return out, end(ctx, all)
}

// RestartWith starts a process again with some variables changed, for a fault on
// purpose. The state file keeps it as it should be, so that Restart undoes it.
func (s *State) RestartWith(ctx context.Context, name string, env map[string]string) error {
	p, err := s.Process(name)
	if err != nil {
		return err
	}
	if err := end(ctx, []*Process{p}); err != nil {
		return err
	}
	wrong := *p
	wrong.Env = maps.Clone(p.Env)
	if wrong.Env == nil { // a Postgres has none of its own
		wrong.Env = map[string]string{}
	}
	maps.Copy(wrong.Env, env)
	right := p.Env
	err = s.launch(ctx, []Process{wrong})
	p, lost := s.Process(name)
	if lost != nil {
		return lost
	}
	p.Env = right
	if saved := s.save(); err == nil {
		err = saved
	}
	return err
}

// copySuffix and standbySuffix name what is made of a Postgres: its folder, and the
// standby's process.
const (
	copySuffix    = "-copy"
	standbySuffix = "-standby"
	lostSuffix    = "-lost"
)

// Backup copies a running Postgres of the global zone, which may be restored with
// Replace. With standby the copy runs at a spare port and follows.
func (s *State) Backup(ctx context.Context, name string, standby bool) error {
	p, err := s.Process(name)
	if err != nil {
		return err
	}
	to, args := p.Dir+copySuffix, []string{"-X", "stream", "-c", "fast", "--no-sync"}
	if standby {
		to, args = p.Dir+standbySuffix, append(args, "-R")
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	if err := give(to, p.Owner); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(p.Ready, "tcp://"))
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(p.Argv[0]), "pg_basebackup"), append(args, "-h", host, "-p", port, "-U", "postgres", "-w", "-D", to)...)
	cmd.Dir, cmd.Env = to, []string{"PGPASSWORD=" + s.Secrets.Super, "PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if cmd.SysProcAttr.Credential, err = credential(p.Owner); err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pg_basebackup of %s: %w: %s", name, err, tail(string(out), 5))
	}
	if !standby {
		return nil
	}
	l := &layout{o: Options{PortBase: s.PortBase}}
	follower := *p
	follower.Name, follower.Dir, follower.Argv = name+standbySuffix, to, slices.Clone(p.Argv)
	for i, arg := range follower.Argv {
		switch arg {
		case p.Dir:
			follower.Argv[i] = to
		case "port=" + port:
			follower.Argv[i] = fmt.Sprintf("port=%d", l.port(0, portRedis)) // the global zone has none
		}
	}
	follower.Ready = "tcp://" + l.addr(0, portRedis)
	return s.launch(ctx, []Process{follower})
}

// Replace has a Postgres go as when the power fails, and puts the standby in its
// place, else the copy. A standby still waits to be promoted then.
func (s *State) Replace(ctx context.Context, name string) (standby bool, err error) {
	p, err := s.Process(name)
	if err != nil {
		return false, err
	}
	from := p.Dir + copySuffix
	if _, err := s.Process(name + standbySuffix); err == nil {
		standby, from = true, p.Dir+standbySuffix
		if err := s.Remove(ctx, name+standbySuffix); err != nil {
			return true, err
		}
		if p, err = s.Process(name); err != nil { // Remove made the list anew
			return true, err
		}
	}
	if err := p.Signal(syscall.SIGQUIT); err != nil {
		return standby, err
	}
	if err := p.Wait(ctx); err != nil {
		return standby, err
	}
	err = errors.Join(os.RemoveAll(p.Dir+lostSuffix), os.Rename(p.Dir, p.Dir+lostSuffix), os.Rename(from, p.Dir))
	if err != nil {
		return standby, err
	}
	return standby, s.launch(ctx, []Process{*p})
}

// Discard removes what Backup and Replace left of a Postgres, and has it run.
func (s *State) Discard(ctx context.Context, name string) error {
	var standby error
	if _, err := s.Process(name + standbySuffix); err == nil {
		standby = s.Remove(ctx, name+standbySuffix)
	}
	p, err := s.Process(name)
	if err != nil {
		return err
	}
	if _, err := os.Stat(p.Dir); errors.Is(err, fs.ErrNotExist) { // cut off between the renames
		if err := os.Rename(p.Dir+lostSuffix, p.Dir); err != nil {
			return err
		}
	}
	all := []error{standby}
	for _, suffix := range []string{copySuffix, standbySuffix, lostSuffix} {
		all = append(all, os.RemoveAll(p.Dir+suffix))
	}
	if !p.Alive() {
		all = append(all, s.launch(ctx, []Process{*p}))
	}
	return errors.Join(all...)
}

// KeepStore copies a NATS server's store as it is at one moment, as a disk's
// snapshot would be: the server stands still meanwhile, and knows nothing of it.
func (s *State) KeepStore(name string) error {
	p, dir, err := s.store(name)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir + copySuffix); err != nil {
		return err
	}
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return errors.Join(os.CopyFS(dir+copySuffix, os.DirFS(dir)), p.Signal(syscall.SIGCONT))
}

// LoseStore kills a NATS server, deletes its store, or puts back what KeepStore
// copied, and starts it again.
func (s *State) LoseStore(ctx context.Context, name string, back bool) error {
	p, dir, err := s.store(name)
	if err != nil {
		return err
	}
	if back {
		if _, err := os.Stat(dir + copySuffix); err != nil {
			return err
		}
	}
	if p.Alive() {
		if err := s.Stop(ctx, name, true); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if back {
		if err := os.Rename(dir+copySuffix, dir); err != nil {
			return err
		}
	}
	return s.launch(ctx, []Process{*p})
}

// DropStoreCopy removes what KeepStore made, and has the server run.
func (s *State) DropStoreCopy(ctx context.Context, name string) error {
	p, dir, err := s.store(name)
	if err != nil {
		return err
	}
	if err = os.RemoveAll(dir + copySuffix); err == nil && !p.Alive() {
		err = s.launch(ctx, []Process{*p})
	}
	return err
}

// store is a NATS server and its folder.
func (s *State) store(name string) (*Process, string, error) {
	p, err := s.Process(name)
	if err == nil && p.Env["NATS_DIR"] == "" {
		err = fmt.Errorf("%s has no store of messages", name)
	}
	if err != nil {
		return nil, "", err
	}
	return p, p.Env["NATS_DIR"], nil
}
