package store_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/store"
)

// A service that has a pool lends it to the store.
func ExampleNewPostgres() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	if err := migrations.Schema("limits").Up(ctx, pool); err != nil {
		log.Fatal(err)
	}
	counters, err := store.NewPostgres(pool, store.PostgresConfig{
		Schema:        "limits",
		QueryExecMode: pgx.QueryExecModeExec, // behind a PgBouncer that cannot handle prepared statements
	})
	if err != nil {
		log.Fatal(err)
	}
	counts, err := counters.Add(ctx, []ratelimit.Hit{{Bucket: "any", Window: time.Minute, N: 1}})
	fmt.Println(counts, err)
}

// A store with a pool of its own follows a fail-over, and never waits for what the service does with its pool.
func ExampleOpenPostgres() {
	counters, err := store.OpenPostgres("postgres://limiter@host1,host2/app", store.PostgresConfig{
		OnBreaker: func(open bool) { log.Println("the database is left alone:", open) },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer counters.Close()
}

// A cron job sweeps where the processes that count live too short, or are not to.
func ExamplePostgres_Sweep() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	counters, err := store.NewPostgres(pool, store.PostgresConfig{ManualSweep: true})
	if err != nil {
		log.Fatal(err)
	}
	deleted, err := counters.Sweep(ctx)
	fmt.Println(deleted, err)
}

// In a test, or in a service that only ever runs once.
func ExampleNewMemory() {
	counters, err := store.NewMemory(store.MemoryConfig{MaxBuckets: 10_000})
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		counts, err := counters.Add(context.Background(), []ratelimit.Hit{{Bucket: "any", Window: ratelimit.MaxWindow, N: 1}})
		fmt.Println(counts[0].Total, err)
	}
	// Output:
	// 1 <nil>
	// 2 <nil>
}
