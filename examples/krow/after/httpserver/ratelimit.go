package httpserver

import (
	"context"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/store"
)

// RateLimits are the limits of the server. All processes count together, in Postgres.
type RateLimits struct {
	register, call *ratelimit.Limiter
}

// NewRateLimits makes the table if it is not there, and returns the limits. The configuration is all that is the
// same for both of them.
func NewRateLimits(ctx context.Context, pool *pgxpool.Pool, config ratelimit.Config) (*RateLimits, error) {
	if err := migrations.Up(ctx, pool); err != nil {
		return nil, err
	}
	counters, err := store.NewPostgres(pool, store.PostgresConfig{Timeout: config.Deadline, Logger: config.Logger})
	if err != nil {
		return nil, err
	}
	config.Policies = []ratelimit.Policy{{
		Name: "oauth.register", Limit: ratelimit.PerMinute(5), Key: ratelimit.ClientIP, OnFailure: ratelimit.FailLocal,
	}}
	register, err := ratelimit.New(counters, config)
	if err != nil {
		return nil, err
	}
	config.Policies = []ratelimit.Policy{{
		Name: "mcp.call", Limit: ratelimit.PerMinute(60), Key: ratelimit.BearerToken, OnFailure: ratelimit.FailLocal,
	}}
	call, err := ratelimit.New(counters, config)
	if err != nil {
		return nil, err
	}
	return &RateLimits{register, call}, nil
}

// Register limits registrations by the client's address.
func (l *RateLimits) Register(next http.Handler) http.Handler { return l.register.Handler(next) }

// Call limits calls of tools by the token, which has been verified.
func (l *RateLimits) Call(next http.Handler) http.Handler { return l.call.Handler(next) }
