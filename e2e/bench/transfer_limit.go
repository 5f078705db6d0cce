package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/pg"
)

//go:embed transfer.sql
var transferSQL string

// limitDatabase is beside the first cell's own.
const limitDatabase = "bench_limit"

// localLimit is what three local transactions cost alone, by pgbench.
type localLimit struct {
	b    *bank
	run  int
	args []string
	env  []string
	cpu  float64 // CPU-seconds of pgbench so far
}

func openLimit(ctx context.Context, b *bank) (*localLimit, error) {
	program, err := findPgbench(b.d.state)
	if err != nil {
		return nil, err
	}
	if err := migrateBench(ctx, b.d, 0, limitDatabase); err != nil {
		return nil, err
	}
	u, err := url.Parse(b.d.state.Cells[0].PG)
	if err != nil {
		return nil, err
	}
	super, err := pgx.Connect(ctx, inDatabase(u.String(), limitDatabase))
	if err != nil {
		return nil, err
	}
	defer super.Close(ctx)
	for _, q := range []string{
		"SET session_replication_role = replica", "SELECT cell.set_lease('infinity')",
		"INSERT INTO cell.slots (slot, epoch, owner, role) SELECT n, 1, 'c1', 'owner' FROM generate_series(0, 1999) n",
		fmt.Sprintf("INSERT INTO cell.wallets (slot, epoch, rev, user_id, currency, available, external) SELECT n, 1, 1, %d::bigint * 16384 + n, 'CNY', %d, -%[2]d FROM generate_series(0, 1999) n", int64(bankUser), bankFunds),
		"ANALYZE",
	} {
		if _, err := super.Exec(ctx, q); err != nil {
			return nil, fmt.Errorf("seed the limit's database: %w", err)
		}
	}
	script := filepath.Join(b.d.root, "transfer.sql")
	if err := os.WriteFile(script, []byte(transferSQL), 0o600); err != nil {
		return nil, err
	}
	l := &localLimit{b: b, args: []string{program, "-h", u.Hostname(), "-p", u.Port(), "-U", pg.RoleApp, "-n", "-M", "prepared", "-f", script, "-c", "16"}}
	l.args = append(l.args, defines(transferSQL)...)
	l.env = append(os.Environ(), "PGPASSWORD="+b.d.state.Secrets.App)
	return l, nil
}

var (
	pgbenchDone = regexp.MustCompile(`number of transactions actually processed: (\d+)`)
	pgbenchRate = regexp.MustCompile(`tps = ([0-9.]+)`)
)

// pay runs pgbench: -T and seconds, or -t and transfers of each client.
func (l *localLimit) pay(ctx context.Context, long ...string) (payments, error) {
	l.run++
	args := append(l.args[1:len(l.args):len(l.args)], "-D", fmt.Sprintf("base=%d", int64(bankFirst)+int64(l.run)<<28))
	args = append(append(args, long...), limitDatabase)
	cmd := exec.CommandContext(ctx, l.args[0], args...)
	cmd.Env = l.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return payments{}, fmt.Errorf("pgbench: %w: %s", err, out)
	}
	// While a backend ends, its time is nowhere for a moment.
	err = eventually(ctx, func() error {
		now, err := l.b.bankCPU(l.b.cells[0].name)
		_, one := now[leaving]
		_, other := now["postgres pgbench"]
		if err == nil && (one || other) {
			err = errors.New("backends of pgbench's are there")
		}
		return err
	})
	if err != nil {
		return payments{}, err
	}
	l.cpu += cmd.ProcessState.UserTime().Seconds() + cmd.ProcessState.SystemTime().Seconds()
	return parsePgbench(string(out))
}

// parsePgbench reads how many transactions there were, and how many a second.
func parsePgbench(out string) (payments, error) {
	done, rate := pgbenchDone.FindStringSubmatch(out), pgbenchRate.FindStringSubmatch(out)
	if done == nil || rate == nil {
		return payments{}, fmt.Errorf("pgbench says no figures: %s", out)
	}
	n, err := strconv.Atoi(done[1])
	if err != nil {
		return payments{}, err
	}
	tps, err := strconv.ParseFloat(rate[1], 64)
	if err != nil || tps <= 0 || n == 0 {
		return payments{}, fmt.Errorf("pgbench made nothing: %s", out)
	}
	return payments{begun: n, ended: n, window: time.Duration(float64(n) / tps * float64(time.Second))}, nil
}
