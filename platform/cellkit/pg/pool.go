package pg

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TxTimeout bounds one transaction, and each statement of it.
const TxTimeout = 2 * time.Second

// Open makes a pool for a cell's database. It doesn't wait for the database:
// what needs it is refused as Unavailable until it is there. Each connection
// first makes sure that the database belongs to that cell (SL010).
func Open(ctx context.Context, dsn, cell string, log *slog.Logger) (*pgxpool.Pool, error) {
	return open(ctx, dsn, log, func(ctx context.Context, c *pgx.Conn) error {
		if _, err := c.Exec(ctx, "SELECT cell.require($1)", cell); err != nil {
			log.Error("refused a database", "cell", cell, "error", err)
			return err
		}
		return nil
	})
}

// OpenGlobal makes a pool for a database of the global zone, which has no
// slots and no fence.
func OpenGlobal(ctx context.Context, dsn string, log *slog.Logger) (*pgxpool.Pool, error) {
	return open(ctx, dsn, log, nil)
}

func open(ctx context.Context, dsn string, _ *slog.Logger, check func(context.Context, *pgx.Conn) error) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("PG_DSN: %w", err)
	}
	if cfg.MaxConns < 8 {
		cfg.MaxConns = 8 // pgxpool's own default follows the cores
	}
	cfg.MaxConnIdleTime = 5 * time.Minute
	cfg.HealthCheckPeriod = 15 * time.Second
	cfg.ConnConfig.ConnectTimeout = 2 * time.Second
	cfg.AfterConnect = check
	rt := cfg.ConnConfig.RuntimeParams
	ms := fmt.Sprint(TxTimeout.Milliseconds())
	rt["statement_timeout"] = ms
	rt["idle_in_transaction_session_timeout"] = ms // a stopped process must not hold a slot's lock for long
	rt["default_transaction_isolation"] = "read committed"
	if rt["application_name"] == "" {
		rt["application_name"] = "cellmart"
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}
