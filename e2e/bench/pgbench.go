package main

import (
	"context"
	_ "embed"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/deploy/local"
	"example.com/cellmart/platform/cellkit"
)

//go:embed order.sql
var orderSQL string

//go:embed seed.sql
var seedSQL string

// baseDatabase is beside the cell's own, on the same server.
const baseDatabase = "bench"

// baseline runs order.sql with pgbench.
type baseline struct {
	program string
	state   *local.State
	super   *pgx.Conn // of the bench's database, for its counts
	args    []string
	env     []string
}

// findPgbench looks beside the demo's Postgres first, so that both are of one version.
func findPgbench(s *local.State) (string, error) {
	p, err := s.Process("c1/postgres")
	if err != nil {
		return "", err
	}
	beside := filepath.Join(filepath.Dir(p.Argv[0]), "pgbench")
	if _, err := os.Stat(beside); err == nil {
		return beside, nil
	}
	found, err := exec.LookPath("pgbench")
	if err != nil {
		return "", cellkit.Usage{Err: fmt.Errorf("pgbench is not installed (Debian: apt-get install postgresql-contrib)")}
	}
	return found, nil
}

// openBaseline makes the database the way the demo makes a cell's, and fills it.
func openBaseline(ctx context.Context, s *local.State, cellmart, dir string) (*baseline, error) {
	b := &baseline{state: s}
	var err error
	if b.program, err = findPgbench(s); err != nil {
		return nil, err
	}
	u, err := url.Parse(s.Cells[0].PG)
	if err != nil {
		return nil, err
	}
	u.Path = "/postgres"
	migrate := exec.CommandContext(ctx, cellmart, "migrate")
	migrate.Env = []string{
		"MIGRATE_KIND=cell", "MIGRATE_CELL=c1", "MIGRATE_ORDINAL=1", "MIGRATE_DATABASE=" + baseDatabase, "MIGRATE_SUPER_DSN=" + u.String(),
		"MIGRATE_PASSWORD_MIGRATE=" + s.Secrets.Migrate, "MIGRATE_PASSWORD_APP=" + s.Secrets.App,
		"MIGRATE_PASSWORD_AGENT=" + s.Secrets.Agent, "MIGRATE_PASSWORD_APPLIER=" + s.Secrets.Applier,
	}
	if out, err := migrate.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("migrate the baseline's database: %w: %s", err, out)
	}
	u.Path = "/" + baseDatabase
	if b.super, err = pgx.Connect(ctx, u.String()); err != nil {
		return nil, err
	}
	if _, err := b.super.Exec(ctx, seedSQL); err != nil {
		return nil, fmt.Errorf("seed the baseline's database: %w", err)
	}
	script := filepath.Join(dir, "order.sql")
	if err := os.WriteFile(script, []byte(orderSQL), 0o600); err != nil {
		return nil, err
	}
	b.args = []string{"-h", u.Hostname(), "-p", u.Port(), "-U", "cellmart_app", "-n", "-M", "prepared", "-f", script, "-c", fmt.Sprint(buyers)}
	b.args = append(b.args, defines(orderSQL)...)
	b.env = append(os.Environ(), "PGPASSWORD="+s.Secrets.App)
	return b, nil
}

// defines makes -D flags of the script's "-- var NAME VALUE" lines: pgbench's own
// variables are numbers.
func defines(script string) (flags []string) {
	for line := range strings.Lines(script) {
		if def, ok := strings.CutPrefix(strings.TrimSpace(line), "-- var "); ok {
			name, value, _ := strings.Cut(def, " ")
			flags = append(flags, "-D", name+"="+value)
		}
	}
	return flags
}

// measure is a round: CPU-milliseconds per order of pgbench and of its backends.
func (b *baseline) measure(ctx context.Context, client, server *[]float64) error {
	c, s, err := b.run(ctx, baseOrders)
	*client, *server = append(*client, c*1000/baseOrders), append(*server, s*1000/baseOrders)
	return err
}

// run places so many orders and gives the CPU-seconds of pgbench and of the
// backends of its database.
func (b *baseline) run(ctx context.Context, orders int) (client, server float64, err error) {
	before, err := cellCPU(b.state, baseDatabase, "c1")
	if err != nil {
		return 0, 0, err
	}
	cmd := exec.CommandContext(ctx, b.program, append(b.args, "-t", fmt.Sprint(orders/buyers), baseDatabase)...)
	cmd.Env = b.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, 0, fmt.Errorf("pgbench: %w: %s", err, out)
	}
	if want := fmt.Sprintf("number of transactions actually processed: %d/%d", orders, orders); !strings.Contains(string(out), want) {
		return 0, 0, fmt.Errorf("pgbench did not process %d orders: %s", orders, out)
	}
	after, err := cellCPU(b.state, baseDatabase, "c1")
	if err != nil {
		return 0, 0, err
	}
	client = cmd.ProcessState.UserTime().Seconds() + cmd.ProcessState.SystemTime().Seconds()
	return client, after.since(before).sum("postgres *"), nil // its backends have ended with it
}
