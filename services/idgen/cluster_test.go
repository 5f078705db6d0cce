package idgen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/idgen/idgenapi"
)

// cluster is a Postgres server of the test's own, that can be killed, copied and
// put back.
type cluster struct {
	bin, dir, port string
	as             *syscall.Credential
	process        *exec.Cmd
	ended          chan struct{}
}

// newCluster knows where one will be; dir doesn't exist yet.
func newCluster(t *testing.T, root, name string) *cluster {
	t.Helper()
	bin, err := exec.Command("pg_config", "--bindir").Output()
	c := &cluster{bin: strings.TrimSpace(string(bin)), dir: filepath.Join(root, name)}
	if _, stat := os.Stat(filepath.Join(c.bin, "initdb")); err != nil || stat != nil {
		servers, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
		if len(servers) == 0 {
			t.Fatal("no Postgres server found (pg_config --bindir, /usr/lib/postgresql/*/bin; Debian: apt-get install postgresql)")
		}
		c.bin = filepath.Dir(servers[len(servers)-1])
	}
	if os.Geteuid() == 0 { // Postgres refuses to run as root
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.ParseUint(u.Uid, 10, 32)
		gid, _ := strconv.ParseUint(u.Gid, 10, 32)
		c.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(root, int(uid), int(gid)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, c.port, _ = net.SplitHostPort(l.Addr().String())
	l.Close()
	return c
}

func (c *cluster) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.bin, name), args...)
	cmd.Dir, cmd.Env = "/", []string{"LC_ALL=C.UTF-8", "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.as}
	return cmd
}

func (c *cluster) run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := c.command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
}

func (c *cluster) init(t *testing.T) {
	c.run(t, "initdb", "-D", c.dir, "-U", "postgres", "--auth=trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions")
}

func (c *cluster) start(t *testing.T) {
	t.Helper()
	c.process = c.command("postgres", "-D", c.dir, "-c", "listen_addresses=127.0.0.1", "-c", "port="+c.port, "-c", "unix_socket_directories=", "-c", "shared_buffers=16MB", "-c", "fsync=off")
	if err := c.process.Start(); err != nil {
		t.Fatal(err)
	}
	c.ended = make(chan struct{})
	go func() { _ = c.process.Wait(); close(c.ended) }()
	t.Cleanup(func() { c.end(syscall.SIGQUIT) })
	waitFor(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, c.dsn("postgres", "postgres"))
		if err == nil {
			_ = conn.Close(ctx)
		}
		return err == nil
	})
}

// end ends it; SIGQUIT is as good as the power going off, but leaves no children.
func (c *cluster) end(sig os.Signal) {
	_ = c.process.Process.Signal(sig) // it may have ended
	<-c.ended
}

// copyTo makes a copy of the running cluster, of now; a standby follows on.
func (c *cluster) copyTo(t *testing.T, to *cluster, standby bool) {
	args := []string{"-d", c.dsn("postgres", ""), "-D", to.dir, "-X", "stream", "-c", "fast", "--no-sync"}
	if standby {
		args = append(args, "-R")
	}
	c.run(t, "pg_basebackup", args...)
}

func (c *cluster) dsn(role, database string) string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%s/%s?sslmode=disable", role, c.port, database)
}

func (c *cluster) exec(t *testing.T, sql string) (out string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.dsn("postgres", "idgen"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), sql).Scan(&out); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatalf("%s: %v", sql, err)
	}
	return out
}

// instance is an idgen on the cluster whose clocks are moved at will.
func (c *cluster) instance(t *testing.T, offset *time.Duration) *service {
	t.Helper()
	pool, err := pg.OpenGlobal(context.Background(), c.dsn(pg.RoleApp, "idgen"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := newService(&store{pool: pool}, slog.New(slog.DiscardHandler))
	s.clock = func() time.Time { return time.Now().Add(*offset) }
	s.store.databaseClock = func(shows time.Time) time.Time { return shows.Add(*offset) }
	return s
}

// S-I01: idgen's database is replaced by a copy from before, and by a standby that
// is promoted while it runs, so that nothing but the timeline says so. Between the
// copy and the loss the whole budget was leased, far ahead of time; processes that
// never leased before, so without a floor, ask right after. Nobody gets any of it
// again, and without what the row remembers they would.
func TestScenario_I01_OldBackupAndPromotion(t *testing.T) {
	t.Parallel()
	root, err := os.MkdirTemp("/var/tmp", "idgen-test-") // the user that Postgres runs as can't reach t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	main := newCluster(t, root, "main")
	main.init(t)
	main.start(t)
	for _, err := range []error{
		pg.Setup(t.Context(), main.dsn("postgres", "postgres"), "idgen", nil),
		pg.Migrate(t.Context(), main.dsn(pg.RoleMigrate, "idgen"), Migrations()),
		Setup(t.Context(), main.dsn(pg.RoleMigrate, "idgen")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var offset time.Duration
	greedy := func(s *service) (last idgenapi.Lease) { // the budget to its end
		t.Helper()
		for last.Left = 1; last.Left > 0; {
			var err error
			if last, err = s.lease(t.Context(), order(1_000_000)); err != nil {
				t.Fatal(err)
			}
			if last.Left < 1_000_000 {
				break
			}
		}
		return last
	}
	mustLease(t, main.instance(t, &offset), order(10))

	lose := map[string]func() *cluster{
		"a copy from before": func() *cluster {
			old := newCluster(t, root, "old")
			main.copyTo(t, old, false)
			return old
		},
		"a standby": func() *cluster {
			standby := newCluster(t, root, "standby")
			main.copyTo(t, standby, true)
			standby.start(t)
			standby.exec(t, "ALTER SYSTEM SET primary_conninfo = ''") // from here on it's behind
			standby.exec(t, "SELECT pg_reload_conf()::text")
			waitFor(t, func() bool { return standby.exec(t, "SELECT count(*)::text FROM pg_stat_wal_receiver") == "0" })
			return standby
		},
	}
	for name, prepare := range lose {
		other := prepare()
		lost := greedy(main.instance(t, &offset))
		guarded := func(db *cluster) {
			t.Helper()
			s := db.instance(t, &offset)
			if _, err := s.lease(t.Context(), order(10)); !errors.Is(err, idgenapi.ErrPaused) {
				t.Fatalf("%s: %v, want a pause", name, err)
			}
			was := offset
			offset += Pause - time.Second
			if _, err := s.lease(t.Context(), order(10)); !errors.Is(err, idgenapi.ErrPaused) {
				t.Errorf("%s, a second before the pause ends: %v", name, err)
			}
			offset += time.Second + 100*time.Millisecond
			if l := mustLease(t, s, order(10)); l.Lo < lost.Hi {
				t.Errorf("%s: leased %+v, but all below %d was before", name, l, lost.Hi)
			}
			offset = was
		}
		if strings.Contains(name, "standby") {
			other.exec(t, "SELECT pg_promote()::text")
			waitFor(t, func() bool { return other.exec(t, "SELECT pg_is_in_recovery()::text") == "false" })
		} else {
			other.start(t)
		}
		// The guard off: the row is told that nothing happened.
		other.exec(t, "UPDATE idgen.kinds SET incarnation = idgen.incarnation() WHERE kind = 'order'")
		if l, err := other.instance(t, &offset).lease(t.Context(), order(10)); err != nil || l.Lo >= lost.Hi {
			t.Errorf("%s, without the guard: %+v, %v: no duplicate, so this proves nothing", name, l, err)
		}
		other.exec(t, "UPDATE idgen.kinds SET incarnation = (SELECT incarnation FROM idgen.kinds WHERE kind = 'user') WHERE kind = 'order'")
		guarded(other)
		other.end(syscall.SIGQUIT)
		offset += 2 * Pause // the budget is there again
	}

	// The server is killed and comes back by itself: a restart may have lost its end, too.
	mustLease(t, main.instance(t, &offset), order(10))
	main.end(syscall.SIGQUIT)
	main.start(t)
	if _, err := main.instance(t, &offset).lease(t.Context(), order(10)); !errors.Is(err, idgenapi.ErrPaused) {
		t.Errorf("after a restart: %v, want a pause", err)
	}
}
