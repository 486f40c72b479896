package store

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/krow/ratelimit/migrations"
)

const defaultTimeout = 250 * time.Millisecond

// PostgresConfig is the configuration of a [Postgres] store. The zero value is ready to use.
type PostgresConfig struct {
	// Schema is the name of the schema that holds the table rate_limits: a name alone, as it stands in
	// the catalog, without quotes. It is always written in front of the table, so that no
	// search_path matters. Defaults to "public".
	Schema string

	// Timeout is how long one statement may take, the wait for a connection included, from 10 ms to
	// an hour. How long a caller waits is another matter: see [ratelimit.Config].Deadline. All stores that
	// share a table should have the same.
	//
	// Waiting for a row that somebody has locked ends at two to four fifths of it, by lock_timeout, so that
	// the connection survives; only a store that meets a lock on the whole table loses it. Never
	// hold a lock on a row of the table: those hits of a process that share a statement with one on
	// that row fail with it, and the others wait behind them. Defaults to 250 ms.
	Timeout time.Duration

	// QueryExecMode is how pgx runs the statements, such as pgx.QueryExecModeExec behind a PgBouncer
	// that cannot handle prepared statements. It holds for this store alone and leaves the pool as
	// it is. Defaults to the pool's own mode.
	QueryExecMode pgx.QueryExecMode

	// Routed sends a statement for each bucket, all of them in one round trip, where an engine that spreads the table
	// over nodes needs that to know which to ask: Citus, for instance. Postgres alone counts many buckets some
	// times slower so. The pool must be a [Batcher], and its own query mode holds. Defaults to off.
	Routed bool

	// SynchronousCommit makes each statement wait until its counts are on disk, and with its synchronous
	// replicas, if the database is set up so. Without it a crash of the database or a fail-over may lose
	// the counts of the last moments, and a decision waits for neither a disk nor a replica. See
	// "Asynchronous Commit" in the Postgres manual.
	SynchronousCommit bool

	// SweepInterval is how often, about, a store that counts deletes expired rows by itself.
	// At least a second. Defaults to a minute.
	SweepInterval time.Duration

	// ManualSweep leaves the deleting of expired rows to calls of [Postgres.Sweep].
	ManualSweep bool

	// OnFlush, if set, is called after each counting statement, also by two at once. It must be quick, as hits
	// wait for it, must not use the store, and must not end its goroutine, as testing.T.FailNow does.
	OnFlush func(FlushStats)

	// OnSweep, if set, is called after each sweep, automatic or not, also by several at once.
	OnSweep func(SweepStats)

	// OnBreaker, if set, is called when the database is left alone because it keeps failing, with true, and with
	// false when it has answered again. It must be quick, as hits wait for it, and must not use the store.
	OnBreaker func(open bool)

	// Logger gets what no caller sees: the errors of sweeping and of giving back, and when the database is
	// left alone and is back.
	// Defaults to [slog.Default].
	Logger *slog.Logger
}

// FlushStats tell of one counting statement.
type FlushStats struct {
	Buckets int           // how many buckets it counted
	Hits    int64         // the sum of what it added to them
	Elapsed time.Duration // how long it took, the wait for a connection included
	Err     error         // why it failed, or nil
}

func (c PostgresConfig) validate() error {
	var errs []error
	if err := migrations.Schema(c.Schema).Validate(); err != nil {
		errs = append(errs, fmt.Errorf("ratelimit: PostgresConfig.Schema: %w", err))
	}
	if c.Timeout != 0 && (c.Timeout < 10*time.Millisecond || c.Timeout > time.Hour) {
		errs = append(errs, fmt.Errorf("ratelimit: PostgresConfig.Timeout is %v, want 10ms to 1h, or zero for %v", c.Timeout, defaultTimeout))
	}
	if c.SweepInterval != 0 && c.SweepInterval < time.Second {
		errs = append(errs, fmt.Errorf("ratelimit: PostgresConfig.SweepInterval is %v, want at least 1s, or zero for 1m; ManualSweep turns sweeping off", c.SweepInterval))
	}
	if c.QueryExecMode < 0 || c.QueryExecMode > pgx.QueryExecModeSimpleProtocol {
		errs = append(errs, fmt.Errorf("ratelimit: PostgresConfig.QueryExecMode is %d, want one of pgx's constants, or zero for the pool's own", c.QueryExecMode))
	}
	if c.Routed && c.QueryExecMode != 0 {
		errs = append(errs, fmt.Errorf("ratelimit: PostgresConfig.QueryExecMode is %v and Routed is set, want the mode to be the pool's", c.QueryExecMode))
	}
	return errors.Join(errs...)
}

func (c PostgresConfig) withDefaults() PostgresConfig {
	if c.Schema == "" {
		c.Schema = "public"
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.SweepInterval == 0 {
		c.SweepInterval = time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}
