package httpserver

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/store"
)

// RateLimits are the limits of the server. Each process counts for itself and refuses by that; the shared ones are
// only tried out.
type RateLimits struct {
	register, call             *rateLimiter
	sharedRegister, sharedCall *ratelimit.Limiter
	log                        *slog.Logger
}

// NewRateLimits makes the table if it is not there, and returns the limits. The configuration is all that is the
// same for both of the shared ones. Close ends the clean-up.
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
		DryRun: true,
	}}
	register, err := ratelimit.New(counters, config)
	if err != nil {
		return nil, err
	}
	config.Policies = []ratelimit.Policy{{
		Name: "mcp.call", Limit: ratelimit.PerMinute(60), Key: ratelimit.BearerToken, OnFailure: ratelimit.FailLocal,
		DryRun: true,
	}}
	call, err := ratelimit.New(counters, config)
	if err != nil {
		return nil, err
	}
	return &RateLimits{
		register:       newRateLimiter(5, time.Minute),
		call:           newRateLimiter(60, time.Minute),
		sharedRegister: register,
		sharedCall:     call,
		log:            cmp.Or(config.Logger, slog.Default()),
	}, nil
}

// Close ends the clean-up.
func (l *RateLimits) Close() {
	l.register.Close()
	l.call.Close()
}

// Register limits registrations by the client's address.
func (l *RateLimits) Register(next http.Handler) http.Handler {
	return l.sharedRegister.Handler(l.limit(l.register, clientIP, next))
}

// Call limits calls of tools by the token, which has been verified.
func (l *RateLimits) Call(next http.Handler) http.Handler {
	return l.sharedCall.Handler(l.limit(l.call, bearerToken, next))
}

func (l *RateLimits) limit(old *rateLimiter, key func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		allowed := old.Allow(key(r))
		l.compare(r.Context(), allowed)
		if !allowed {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// compare logs where the map and Postgres do not agree. The bucket tells callers apart and is a hash.
func (l *RateLimits) compare(ctx context.Context, allowed bool) {
	old := ratelimit.Refused
	if allowed {
		old = ratelimit.Allowed
	}
	d, _ := ratelimit.FromContext(ctx)
	for _, r := range d.Results {
		if r.Outcome != old {
			l.log.InfoContext(ctx, "rate limits differ", "policy", r.Policy, "map", old, "shared", r.Outcome, "bucket", r.Bucket)
		}
	}
}

func clientIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// A rateLimiter admits so many requests of each key per window, which begins with the first of them.
type rateLimiter struct {
	limit  int
	window time.Duration
	done   chan struct{}

	mu      sync.Mutex
	entries map[string]*entry
}

type entry struct {
	count int
	end   time.Time
}

func newRateLimiter(limit int, window time.Duration) *rateLimiter {
	l := &rateLimiter{limit: limit, window: window, done: make(chan struct{}), entries: make(map[string]*entry)}
	go l.cleanUp()
	return l
}

// Allow counts a request and reports whether it is within the limit.
func (l *rateLimiter) Allow(key string) bool {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[key]
	if e == nil || !now.Before(e.end) {
		e = &entry{end: now.Add(l.window)}
		l.entries[key] = e
	}
	e.count++
	return e.count <= l.limit
}

func (l *rateLimiter) cleanUp() {
	ticker := time.NewTicker(l.window)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			l.mu.Lock()
			for key, e := range l.entries {
				if !now.Before(e.end) {
					delete(l.entries, key)
				}
			}
			l.mu.Unlock()
		case <-l.done:
			return
		}
	}
}

func (l *rateLimiter) Close() { close(l.done) }
