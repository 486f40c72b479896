package otelratelimit_test

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/otelratelimit"
	"github.com/krow/ratelimit/store"
)

// One Metrics for a store and its limiter. It sends to the global provider, which main sets up with an exporter.
func ExampleNew() {
	metrics, err := otelratelimit.New(otelratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	pool, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	counters, err := store.NewPostgres(pool, store.PostgresConfig{
		OnFlush:   metrics.OnFlush,
		OnSweep:   metrics.OnSweep,
		OnBreaker: metrics.OnBreaker,
	})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Policies:   []ratelimit.Policy{{Name: "oauth.register", Limit: ratelimit.PerMinute(5)}},
		OnDecision: metrics.OnDecision,
	})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /oauth/register", limiter.Handler(http.NotFoundHandler()))
}
