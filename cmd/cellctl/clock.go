package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/cmd/cellctl/drill"
	"example.com/cellmart/deploy/compose"
	"example.com/cellmart/deploy/local"
	"example.com/cellmart/platform/cellkit/clock"
)

// clockSet is what the verb clock answers.
type clockSet struct {
	Cell     string `json:"cell"`
	OffsetMS int64  `json:"offset_ms"`
	Postgres bool   `json:"postgres"`
}

func setClock(ctx context.Context, c *cli, args []string) error {
	offset := c.flags.Duration("offset", 0, "how far the clock is set wrong: -1h, 90s; 0 = right again")
	postgres := c.flags.Bool("postgres", false, "the cell's Postgres too, which starts again for it (local processes, with libfaketime)")
	words, err := c.parse(args, 1, 1)
	if err != nil {
		return err
	}
	if offset.Abs() > clock.Most {
		return usage("--offset takes up to %v either way, not %v", clock.Most, *offset)
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	if _, err := f.zone(words[0]); err != nil {
		return err
	}
	if *postgres {
		if err := f.postgresClock(ctx, words[0], *offset); err != nil {
			return err
		}
	}
	if err := f.setClock(ctx, words[0], *offset); err != nil {
		return err
	}
	return c.print(clockSet{words[0], offset.Milliseconds(), *postgres}, func(w io.Writer) {
		fmt.Fprintf(w, "the clock of %s's processes is %v off within a second\n", words[0], *offset)
	})
}

// setClock has an agent set the clock, and reads it back.
func (f *fleet) setClock(ctx context.Context, zone string, d time.Duration) error {
	a, err := f.zone(zone)
	if err != nil {
		return err
	}
	if err := a.SetClock(ctx, d); err != nil {
		return err
	}
	s, err := a.Status(ctx)
	if err == nil && s.ClockOffsetMS != d.Milliseconds() {
		err = fmt.Errorf("%s's agent has an offset of %d ms, not %d", zone, s.ClockOffsetMS, d.Milliseconds())
	}
	return err
}

// postgresClock starts a cell's Postgres again under libfaketime, or without.
func (f *fleet) postgresClock(ctx context.Context, zone string, d time.Duration) error {
	if f.state.Way != local.Way {
		return usage("--postgres is for local processes: containers have the machine's clock")
	}
	part := zone + "/postgres"
	if d == 0 {
		return f.state.Restart(ctx, part)
	}
	libs, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if len(libs) == 0 {
		return usage("--postgres needs libfaketime, which is not installed (Debian: apt-get install libfaketime)")
	}
	// Durations go by the monotonic clock, which stays right.
	return f.state.RestartWith(ctx, part, map[string]string{
		"LD_PRELOAD": libs[0], "FAKETIME": fmt.Sprintf("%+ds", int64(d.Seconds())), "FAKETIME_DONT_FAKE_MONOTONIC": "1",
	})
}

// ids is the demo as drills about IDs break it.
type ids struct{ *fleet }

const idgenPostgres = "global/idgen-postgres"

// local refuses what only processes of this machine allow.
func (i ids) local() error {
	if i.state.Way == compose.Way {
		return drill.ErrLocalOnly
	}
	return nil
}

// SetClock is the verb.
func (i ids) SetClock(ctx context.Context, cell string, d time.Duration) error {
	return i.setClock(ctx, cell, d)
}

// Starve starts a part again with an agent that isn't there.
func (i ids) Starve(ctx context.Context, part string) (func(context.Context) error, error) {
	if err := i.local(); err != nil {
		return nil, err
	}
	undo := func(ctx context.Context) error { return i.state.Restart(ctx, part) }
	return undo, i.state.RestartWith(ctx, part, map[string]string{"AGENT_URL": "http://127.0.0.1:1"})
}

// Databases are those of the state file.
func (i ids) Databases() (map[string]string, error) {
	out := map[string]string{"idgen": i.state.IDGenPG}
	for _, c := range i.state.Cells {
		out[c.Name] = c.PG
	}
	return out, i.local()
}

// IDGen is the first instance's address.
func (i ids) IDGen() (string, error) {
	if err := i.local(); err != nil {
		return "", err
	}
	p, err := i.state.Process("global/idgen")
	if err != nil {
		return "", err
	}
	return "http://" + p.Env["IDGEN_ADDR"], nil
}

// Backup is pg_basebackup.
func (i ids) Backup(ctx context.Context, standby bool) error {
	if err := i.local(); err != nil {
		return err
	}
	return i.state.Backup(ctx, idgenPostgres, standby)
}

// Detach takes the primary's address from the standby.
func (i ids) Detach(ctx context.Context) error {
	p, err := i.state.Process(idgenPostgres + "-standby")
	if err != nil {
		return err
	}
	dsn := strings.Replace(i.state.IDGenPG, address(i.state.IDGenPG), address(p.Ready), 1)
	return onPostgres(ctx, dsn, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
}

// address is the host:port in a URL.
func address(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	if _, after, ok := strings.Cut(rest, "@"); ok {
		rest = after
	}
	at, _, _ := strings.Cut(rest, "/")
	return at
}

func onPostgres(ctx context.Context, dsn string, all ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	for ; err != nil; c, err = pgx.Connect(ctx, dsn) { // it listens before it lets anybody in
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
	defer c.Close(context.WithoutCancel(ctx))
	for _, sql := range all {
		if _, err := c.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// Replace puts what Backup made in the database's place.
func (i ids) Replace(ctx context.Context) error {
	standby, err := i.state.Replace(ctx, idgenPostgres)
	if err != nil {
		return err
	}
	if !standby {
		return onPostgres(ctx, i.state.IDGenPG)
	}
	return onPostgres(ctx, i.state.IDGenPG, "SELECT pg_promote()") // waits until it is
}

// Discard removes what is left.
func (i ids) Discard(ctx context.Context) error { return i.state.Discard(ctx, idgenPostgres) }
