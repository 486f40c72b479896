package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
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
	envLoad     = "RATELIMIT_BENCH_LOAD" // a load in JSON
)

// A load is what processes do at once on one table, each with so many callers.
type load struct {
	Instances int     `json:"instances"`
	Callers   int     `json:"callers"`
	Keys      int     `json:"keys"`
	Zipf      float64 `json:"zipf,omitempty"` // how uneven the keys are: 0 for even, or more than 1
}

// A loadResult is what the processes did together, each second.
type loadResult struct {
	PerSecond  float64 // decisions
	Statements float64
	Rows       float64
	CPU        float64 // seconds of cores, of the processes
	Database   float64 // the same, of those of the database, if that was asked for
}

// run measures a load for about d, after half of that to start, and what it takes of the database's cores if that is wanted
// and can be seen: see backendsOf.
func (l load) run(ctx context.Context, env environment, d time.Duration, database bool) (sum loadResult, err error) {
	self, err := os.Executable()
	if err != nil {
		return sum, err
	}
	fresh, err := env.fresh(ctx, 0)
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, fresh.drop(context.WithoutCancel(ctx))) }()
	what, err := json.Marshal(instanceLoad{l, d, database})
	if err != nil {
		return sum, err
	}
	each := make([]loadResult, l.Instances)
	errs := make([]error, l.Instances)
	var wg sync.WaitGroup
	for i := range l.Instances {
		wg.Go(func() {
			cmd := exec.CommandContext(ctx, self)
			cmd.Env = append(os.Environ(), envInstance+"="+fresh.postgresURL, envSchema+"="+fresh.schema, envLoad+"="+string(what))
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err == nil {
				err = json.Unmarshal(out, &each[i])
			}
			errs[i] = err
		})
	}
	wg.Wait()
	for _, e := range each {
		sum.PerSecond += e.PerSecond
		sum.Statements += e.Statements
		sum.Rows += e.Rows
		sum.CPU += e.CPU
		sum.Database += e.Database / float64(l.Instances) // each has seen all of it
	}
	return sum, errors.Join(errs...)
}

// An instanceLoad is what one of the processes is told.
type instanceLoad struct {
	load
	For      time.Duration
	Database bool
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

func instanceAt(ctx context.Context, url string) (did loadResult, err error) {
	var l instanceLoad
	if err := json.Unmarshal([]byte(os.Getenv(envLoad)), &l); err != nil {
		return did, err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return did, err
	}
	defer pool.Close()
	var statements, rows atomic.Int64
	s, err := store.NewPostgres(pool, store.PostgresConfig{
		Schema: os.Getenv(envSchema), Timeout: time.Minute,
		OnFlush: func(f store.FlushStats) { statements.Add(1); rows.Add(int64(f.Buckets)) },
	})
	if err != nil {
		return did, err
	}
	operation := adding(ctx, s, l.load)
	measure(ctx, l.Callers, l.For/2, operation) // until all have started
	serving, err := l.backends(pool)
	if err != nil {
		return did, err
	}
	statements.Store(0)
	rows.Store(0)
	cpu, began := cpuTime(), time.Now()
	sample := measure(ctx, l.Callers, l.For, operation)
	elapsed := time.Since(began).Seconds()
	did = loadResult{
		PerSecond:  sample.perSecond,
		Statements: float64(statements.Load()) / elapsed,
		Rows:       float64(rows.Load()) / elapsed,
		CPU:        (cpuTime() - cpu).Seconds() / elapsed,
	}
	served, err := l.backends(pool)
	if err != nil {
		return did, err
	}
	did.Database = served.since(serving).Seconds() / elapsed
	return did, sample.err
}

// backends are the processes that serve the load, or none if nobody wants to know.
func (l instanceLoad) backends(pool *pgxpool.Pool) (backends, error) {
	if !l.Database {
		return nil, nil
	}
	return backendsOf(pool.Config().ConnConfig.Database)
}

// adding returns operations that count one hit each, on one of the load's keys.
func adding(ctx context.Context, s *store.Postgres, l load) func() func() error {
	rows := buckets(addresses(l.Keys))
	return func() func() error {
		random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
		pick := func() int { return random.IntN(l.Keys) }
		if l.Zipf > 1 {
			zipf := rand.NewZipf(random, l.Zipf, 1, uint64(l.Keys-1))
			pick = func() int { return int(zipf.Uint64()) }
		}
		return func() error {
			_, err := s.Add(ctx, []ratelimit.Hit{{Bucket: rows[pick()], Window: window, N: 1}})
			return err
		}
	}
}
