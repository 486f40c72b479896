package store_test

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/store"
	"github.com/krow/ratelimit/store/storetest"
)

func TestMemoryConforms(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		var elapsed atomic.Int64
		began := time.Now()
		m := store.NewMemoryAt(func() time.Time {
			return began.Add(time.Since(began) + time.Duration(elapsed.Load()))
		})
		return storetest.Subject{Store: m, Elapse: func(d time.Duration) { elapsed.Add(int64(d)) }}
	})
}

// A routed store has the mode of its pool.
func TestRoutedPostgresConforms(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	for name, mode := range queryModes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testdb.Pool(t, url, func(c *pgxpool.Config) {
				if mode != 0 {
					c.ConnConfig.DefaultQueryExecMode = mode
				}
			})
			storetest.Run(t, func(t *testing.T) storetest.Subject { return postgres(t, pool, store.PostgresConfig{Routed: true}) })
		})
	}
}

func TestPostgresConforms(t *testing.T) {
	t.Parallel()
	all := configs()
	all["synchronous commit"] = store.PostgresConfig{SynchronousCommit: true}
	for name, config := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testdb.Pool(t, testdb.New(t))
			storetest.Run(t, func(t *testing.T) storetest.Subject { return postgres(t, pool, config) })
		})
	}
}

// postgres returns a store in a schema of its own, which is cheaper than a database. Its statements
// get much more time than by default: the machines that run tests are busy. The name of the schema holds what
// must be quoted, and a dot that separates nothing (row 55).
func postgres(t *testing.T, pool *pgxpool.Pool, config store.PostgresConfig) storetest.Subject {
	t.Helper()
	config.Schema = fmt.Sprintf(`"%s".%s`, strings.ToLower(rand.Text()[:8]), t.Name()[:30])
	config.Timeout = time.Minute
	config.Logger = slog.New(slog.DiscardHandler) // the suite gives back what cannot be
	if err := migrations.Schema(config.Schema).Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	s, err := store.NewPostgres(pool, config)
	if err != nil {
		t.Fatal(err)
	}
	return storetest.Subject{Store: s, Elapse: func(d time.Duration) {
		sql := fmt.Sprintf(`UPDATE %s SET window_start = window_start - $1::bigint * interval '1 microsecond',
			expires_at = expires_at - $1::bigint * interval '1 microsecond'`, pgx.Identifier{config.Schema, "rate_limits"}.Sanitize())
		if _, err := pool.Exec(t.Context(), sql, d.Microseconds()); err != nil {
			t.Fatal(err)
		}
	}}
}
