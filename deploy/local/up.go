package local

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit/link"
)

// Way is how a state made here is marked.
const Way = "local"

// startLimit bounds how long each step of Up may take.
const startLimit = 90 * time.Second

func (o *Options) defaults() error {
	if o.Cells == 0 {
		o.Cells = 4
	}
	if o.Cells < 2 || o.Cells > 8 {
		return usage("--cells takes 2 to 8, not %d", o.Cells)
	}
	if o.PortBase == 0 {
		o.PortBase = 8080
	}
	if o.PortBase < 1024 || o.PortBase > 65000 {
		return usage("CELLMART_PORT_BASE takes 1024 to 65000, not %d", o.PortBase)
	}
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return err
	}
	o.Root = root
	if o.Bin == "" {
		o.Bin = filepath.Join(root, "bin", "cellmart")
	}
	if _, err := os.Stat(o.Bin); err != nil {
		return usage("%s is not built: scripts/demo builds it", o.Bin)
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	return nil
}

// Up starts a demo, or what is missing of one. On an error of a first start all
// that it started is ended again.
func Up(ctx context.Context, o Options) (*State, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	found, err := findPrograms()
	if err != nil {
		return nil, err
	}
	s, err := Load(o.Root)
	switch {
	case err == nil && s.Way != "local":
		return nil, usage("a demo run by %s is up here: scripts/demo down first", s.Way)
	case err == nil && !s.Complete: // cut off while it started: what there is may be half-made
		o.Log("an earlier start was cut off: beginning again")
		if err := s.stop(ctx); err != nil {
			return nil, err
		}
	case err == nil:
		if s.Way != Way {
			return nil, usage("a demo in containers is up here: scripts/demo down first")
		}
		if len(s.Cells) != o.Cells || s.PortBase != o.PortBase {
			return nil, usage("a demo with %d cells at port %d is up here: scripts/demo down first", len(s.Cells), s.PortBase)
		}
		return s, s.again(ctx, o)
	case !errors.Is(err, ErrNoDemo):
		return nil, err
	}
	s, err = first(ctx, o, found)
	if err != nil && s != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, s.stop(end))
	}
	return s, err
}

func first(ctx context.Context, o Options, found programs) (*State, error) {
	l := &layout{o: o, dir: filepath.Join(o.Root, ".demo"), secrets: newSecrets()}
	l.data = dataFolder(l.dir, found.pgUser)
	if err := freePorts(append(l.stores(found), l.services()...)); err != nil {
		return nil, err
	}
	for _, dir := range []string{l.dir, filepath.Join(l.dir, "logs"), l.data} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	zones := append([]string{"global"}, strings.Split(l.cells(), ",")...)
	if err := link.WritePKI(l.pki(), zones); err != nil {
		return nil, err
	}
	pub, err := link.LoadPublicKey(filepath.Join(l.pki(), "control.pub"))
	if err != nil {
		return nil, err
	}
	l.pubkey = base64.StdEncoding.EncodeToString(pub)
	s := l.state()
	if err := s.save(); err != nil {
		return nil, err
	}
	stores := l.stores(found)
	o.Log("making %d databases", o.Cells+2)
	if err := initDatabases(ctx, l, found, stores); err != nil {
		return s, err
	}
	o.Log("starting databases, caches and brokers")
	if err := s.launch(ctx, stores); err != nil {
		return s, err
	}
	o.Log("migrating")
	if err := migrate(ctx, l); err != nil {
		return s, err
	}
	o.Log("starting services")
	if err := s.launch(ctx, l.services()); err != nil {
		return s, err
	}
	s.Complete = true
	if err := s.save(); err != nil {
		return s, err
	}
	return s, s.seed(ctx, o)
}

func (l *layout) state() *State {
	super := func(zone, port int) string {
		return fmt.Sprintf("postgres://postgres:%s@%s/cellmart?sslmode=disable", l.secrets.Super, l.addr(zone, port))
	}
	at := func(zone int) Cell {
		return Cell{
			Name: cellName(zone), Agent: "http://" + l.addr(zone, portAgent), PG: super(zone, portPG), NATS: "nats://" + l.addr(zone, portNATS),
		}
	}
	s := &State{
		Way: Way, PortBase: l.o.PortBase, Edge: "http://" + l.edge(), Console: "http://" + l.console(), OperatorKey: l.secrets.Operator, Data: l.data,
		Global: at(0), IDGenPG: super(0, portIDGenPG), Control: "http://" + l.addr(0, portControl), Secrets: l.secrets, path: filepath.Join(l.dir, "state.json"),
	}
	for k := 1; k <= l.o.Cells; k++ {
		c := at(k)
		c.Gateway = "http://" + l.gateway(k)
		s.Cells = append(s.Cells, c)
	}
	return s
}

// dataFolder is inside the demo's folder, unless the user that Postgres runs as
// can't reach that: then a folder under /var/tmp, named after it.
func dataFolder(dir, owner string) string {
	if owner == "" {
		return filepath.Join(dir, "data")
	}
	for d := filepath.Dir(dir); ; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			h := fnv.New64a()
			fmt.Fprint(h, dir)
			return fmt.Sprintf("/var/tmp/cellmart-demo-%x", h.Sum64())
		}
		if d == filepath.Dir(d) {
			return filepath.Join(dir, "data")
		}
	}
}

func initDatabases(ctx context.Context, l *layout, found programs, stores []Process) error {
	pwfile := filepath.Join(l.data, "pw")
	if err := os.WriteFile(pwfile, []byte(l.secrets.Super+"\n"), 0o600); err != nil {
		return err
	}
	defer os.Remove(pwfile) //nolint:errcheck // goes with the folder, if not now
	if err := give(pwfile, found.pgUser); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for _, p := range stores {
		if !p.isPostgres() {
			continue
		}
		group.Go(func() error {
			// The folders above must let the user in that Postgres runs as.
			if err := errors.Join(os.MkdirAll(filepath.Dir(p.Dir), 0o755), os.Mkdir(p.Dir, 0o700)); err != nil {
				return err
			}
			if err := give(p.Dir, found.pgUser); err != nil {
				return err
			}
			cmd := exec.CommandContext(ctx, filepath.Join(found.pgBin, "initdb"), "-D", p.Dir, "-U", "postgres", "--pwfile", pwfile,
				"--auth=scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions")
			cmd.Dir = p.Dir
			var err error
			cmd.SysProcAttr = &syscall.SysProcAttr{}
			if cmd.SysProcAttr.Credential, err = credential(found.pgUser); err != nil {
				return err
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("initdb for %s: %w: %s", p.Name, err, tail(string(out), 5))
			}
			return nil
		})
	}
	return group.Wait()
}

func give(path, owner string) error {
	if owner == "" {
		return nil
	}
	u, err := user.Lookup(owner)
	if err != nil {
		return err
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return os.Chown(path, uid, gid)
}

func migrate(ctx context.Context, l *layout) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(3)
	for _, p := range l.migrations() {
		group.Go(func() error {
			cmd := exec.CommandContext(ctx, p.Argv[0], p.Argv[1:]...)
			for k, v := range p.Env {
				cmd.Env = append(cmd.Env, k+"="+v)
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", p.Name, err, tail(string(out), 5))
			}
			return nil
		})
	}
	return group.Wait()
}

// launch starts processes and waits until all are ready. The state file names
// each before it is waited for.
func (s *State) launch(ctx context.Context, all []Process) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for i := range all {
		if err := all[i].start(s.logs()); err != nil {
			return err
		}
		s.note(all[i])
		if err := s.save(); err != nil { // at once: whoever ends the demo must know of it
			return err
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := make(chan error, len(all))
	for i := range all {
		wg.Go(func() {
			err := all[i].ready(ctx)
			for errors.Is(err, errDied) && all[i].isPostgres() && pause(ctx, 300*time.Millisecond) == nil {
				mu.Lock()
				err = s.startAgain(&all[i])
				mu.Unlock()
				if err == nil {
					err = all[i].ready(ctx)
				}
			}
			if err != nil {
				failed <- fmt.Errorf("%w\n%s", err, s.lastLog(all[i].Name))
			}
		})
	}
	wg.Wait()
	close(failed)
	return <-failed // nil when there is none
}

// startAgain is for a Postgres that ended while starting: after a kill -9 its
// predecessor, or one of that one's backends, can still hold the folder for a
// moment.
func (s *State) startAgain(p *Process) error {
	if err := p.start(s.logs()); err != nil {
		return err
	}
	s.note(*p)
	return s.save()
}

func (s *State) note(p Process) {
	if have, err := s.Process(p.Name); err == nil {
		*have = p
		return
	}
	s.Processes = append(s.Processes, p)
}

func (s *State) logs() string { return filepath.Join(filepath.Dir(s.path), "logs") }

func (s *State) lastLog(name string) string {
	b, err := os.ReadFile(filepath.Join(s.logs(), strings.ReplaceAll(name, "/", "-")+".log"))
	if err != nil {
		return err.Error()
	}
	return tail(string(b), 8)
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// again starts what doesn't run any more.
func (s *State) again(ctx context.Context, o Options) error {
	var dead []Process
	for _, p := range s.Processes {
		if !p.Alive() {
			dead = append(dead, p)
		}
	}
	if len(dead) > 0 {
		o.Log("starting %d processes that had ended", len(dead))
		if err := s.launch(ctx, dead); err != nil {
			return err
		}
	}
	return s.seed(ctx, o)
}

func (s *State) seed(ctx context.Context, o Options) error {
	if !o.Seed || s.Seeded {
		return nil
	}
	o.Log("seeding through the public API")
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, o.Bin, "seed")
	var cells []string
	for _, c := range s.Cells {
		cells = append(cells, c.Name+"="+c.Gateway)
	}
	cmd.Env = []string{"SEED_GATEWAYS=" + strings.Join(cells, ","), "SEED_LOGINS=" + filepath.Join(filepath.Dir(s.path), "logins.json")}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("seed: %w: %s", err, tail(string(out), 5))
	}
	s.Seeded = true
	return s.save()
}

// Down ends all processes of the demo in root and removes what it made.
func Down(ctx context.Context, root string) error {
	s, err := Load(root)
	if err != nil {
		return err
	}
	return s.stop(ctx)
}

func (s *State) stop(ctx context.Context) error {
	var services, stores []*Process
	for i := range s.Processes {
		p := &s.Processes[i]
		switch filepath.Base(p.Argv[0]) {
		case "postgres", "redis-server":
			stores = append(stores, p)
		default:
			services = append(services, p)
		}
	}
	if err := errors.Join(end(ctx, services), end(ctx, stores)); err != nil {
		return err
	}
	if err := os.RemoveAll(s.Data); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(filepath.Dir(s.path))
}
