package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/store"
)

// The environment of a process that is one instance of several.
const (
	envInstance = "RATELIMIT_BENCH_INSTANCE" // the URL of the database
	envSchema   = "RATELIMIT_BENCH_SCHEMA"
	envKeys     = "RATELIMIT_BENCH_KEYS"
)

// instanceCallers is how many callers each instance has.
const instanceCallers = 64

// instances is what processes did together.
type instances struct {
	PerSecond  float64 // decisions
	Statements float64 // a second
}

// runInstances runs n processes that share one table.
func runInstances(ctx context.Context, env environment, n, keys int) (sum instances, err error) {
	self, err := os.Executable()
	if err != nil {
		return sum, err
	}
	fresh, err := env.fresh(ctx, 0)
	if err != nil {
		return sum, err
	}
	each := make([]instances, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			cmd := exec.CommandContext(ctx, self)
			cmd.Env = append(os.Environ(), envInstance+"="+fresh.postgresURL, envSchema+"="+fresh.schema, envKeys+"="+strconv.Itoa(keys))
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err == nil {
				err = json.Unmarshal(out, &each[i])
			}
			errs[i] = err
		})
	}
	wg.Wait()
	for i := range n {
		if errs[i] != nil {
			return sum, errs[i]
		}
		sum.PerSecond += each[i].PerSecond
		sum.Statements += each[i].Statements
	}
	return sum, fresh.drop(ctx)
}

// instance is such a process, if this is one: it prints what its callers did.
func instance() bool {
	url := os.Getenv(envInstance)
	if url == "" {
		return false
	}
	did, err := instanceAt(context.Background(), url)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(did)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	return true
}

func instanceAt(ctx context.Context, url string) (instances, error) {
	keys, err := strconv.Atoi(os.Getenv(envKeys))
	if err != nil {
		return instances{}, err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return instances{}, err
	}
	defer pool.Close()
	var statements atomic.Int64
	s, err := store.NewPostgres(pool, store.PostgresConfig{
		Schema: os.Getenv(envSchema), Timeout: time.Minute, OnFlush: func(store.FlushStats) { statements.Add(1) },
	})
	if err != nil {
		return instances{}, err
	}
	operation := adding(ctx, s, keys)
	measure(ctx, instanceCallers, curveSlice, operation) // until all have started
	statements.Store(0)
	began := time.Now()
	sample := measure(ctx, instanceCallers, 3*curveSlice, operation)
	return instances{sample.perSecond, float64(statements.Load()) / time.Since(began).Seconds()}, sample.err
}

// adding returns operations that count one hit each, on one of so many keys.
func adding(ctx context.Context, s *store.Postgres, keys int) func() func() error {
	rows := buckets(addresses(keys))
	r := run{workload: &workload{level: storeLevel, keys: keys}, subject: &subject{decide: func(ctx context.Context, key int) (bool, error) {
		_, err := s.Add(ctx, []ratelimit.Hit{{Bucket: rows[key], Window: window, N: 1}})
		return err == nil, err
	}}}
	return func() func() error { return r.operation(ctx, nil) }
}
