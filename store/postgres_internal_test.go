package store

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A pool as it comes returns when a context ends. One that something is plugged in to may not.
func TestIsPunctual(t *testing.T) {
	t.Parallel()
	handler := func(h ctxwatch.Handler) func(*pgxpool.Config) {
		return func(c *pgxpool.Config) {
			c.ConnConfig.BuildContextWatcherHandler = func(*pgconn.PgConn) ctxwatch.Handler { return h }
		}
	}
	for name, test := range map[string]struct {
		configure func(*pgxpool.Config)
		want      bool
	}{
		"as it comes":   {func(*pgxpool.Config) {}, true},
		"cancels first": {handler(&pgconn.CancelRequestContextWatcherHandler{DeadlineDelay: time.Second}), false},
		"late":          {handler(&pgconn.DeadlineContextWatcherHandler{DeadlineDelay: time.Second}), false},
		"panics": {func(c *pgxpool.Config) {
			c.ConnConfig.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler { panic(c.PID()) }
		}, false},
		"prepares": {func(c *pgxpool.Config) {
			c.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { return true, nil }
		}, false},
		"asks before": {func(c *pgxpool.Config) {
			//lint:ignore SA1019 BeforeAcquire is deprecated, and applications have it
			c.BeforeAcquire = func(context.Context, *pgx.Conn) bool { return true }
		}, false},
	} {
		config, err := pgxpool.ParseConfig("host=192.0.2.1")
		if err != nil {
			t.Fatal(err)
		}
		test.configure(config)
		pool, err := pgxpool.NewWithConfig(t.Context(), config) // which does not connect yet
		if err != nil {
			t.Fatal(err)
		}
		if got := isPunctual(pool); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
		if isPunctual(struct{ DB }{pool}) {
			t.Errorf("%s: what wraps a pool is taken for one", name)
		}
		pool.Close()
	}
}
