package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/store"
)

func openRatelimitPostgres(env *environment, quota quota) (*subject, error) {
	pool, err := env.pool(nil)
	if err != nil {
		return nil, err
	}
	counters, err := store.NewPostgres(pool, store.PostgresConfig{Schema: env.schema})
	if err != nil {
		return nil, err
	}
	return ours(counters, quota, pool.Close)
}

func openRatelimitMemory(_ *environment, quota quota) (*subject, error) {
	counters, err := store.NewMemory(store.MemoryConfig{MaxBuckets: 2*len(quota.keys) + 1_000})
	if err != nil {
		return nil, err
	}
	return ours(counters, quota, func() {})
}

// ours is the limiter on one of its stores. The level of the store is asked with the buckets that the
// middleware would make.
func ours(counters ratelimit.Store, quota quota, closeStore func()) (*subject, error) {
	limit := ratelimit.Limit{Requests: quota.requests, Window: window}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "bench", Limit: limit, Key: ratelimit.ClientIP, OnFailure: ratelimit.FailClosed}},
	})
	if err != nil {
		closeStore()
		return nil, err
	}
	rows := buckets(quota.keys)
	return &subject{
		decide: func(ctx context.Context, key int) (bool, error) {
			counts, err := counters.Add(ctx, []ratelimit.Hit{{Bucket: rows[key], Window: window, N: 1}})
			return err == nil && counts[0].Total <= int64(quota.requests), err
		},
		middleware: limiter.Handler,
		close:      closeStore,
	}, nil
}

// upsert is the one statement of a limiter without group commit, on the same table.
const upsert = `
	INSERT INTO {table} AS r (bucket, window_start, count, expires_at)
	VALUES ($1, date_bin($2, statement_timestamp(), 'epoch'), 1, date_bin($2, statement_timestamp(), 'epoch') + $2)
	ON CONFLICT (bucket, window_start) DO UPDATE SET count = r.count + 1
	RETURNING count`

// openOneStatement sends one statement for each request through a pool of pgx's default size: on the
// two cores of the machine where this was written, larger ones were slower on one key and no faster on many.
func openOneStatement(synchronousCommit bool) func(*environment, quota) (*subject, error) {
	return func(env *environment, quota quota) (*subject, error) {
		return statementPerRequest(env, quota, synchronousCommit, func(c *pgxpool.Config) {})
	}
}

// openBareUpsert is the least that a lone caller could pay: the same on one connection.
func openBareUpsert(env *environment, quota quota) (*subject, error) {
	return statementPerRequest(env, quota, false, func(c *pgxpool.Config) { c.MaxConns = 1 })
}

func statementPerRequest(env *environment, quota quota, synchronousCommit bool, configure func(*pgxpool.Config)) (*subject, error) {
	pool, err := env.pool(func(c *pgxpool.Config) {
		configure(c)
		if !synchronousCommit {
			c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
		}
	})
	if err != nil {
		return nil, err
	}
	sql := env.sql(upsert)
	rows := buckets(quota.keys)
	return &subject{
		decide: func(ctx context.Context, key int) (bool, error) {
			var count int64
			err := pool.QueryRow(ctx, sql, rows[key], window).Scan(&count)
			return err == nil && count <= int64(quota.requests), err
		},
		close: pool.Close,
	}, nil
}

// buckets returns what the limiter makes of keys, as far as length and spread go.
func buckets(keys []string) []string {
	buckets := make([]string, len(keys))
	for i, key := range keys {
		sum := sha256.Sum256([]byte(key))
		buckets[i] = "bench/1h:ip:" + hex.EncodeToString(sum[:])
	}
	return buckets
}
