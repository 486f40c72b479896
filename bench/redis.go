package main

import (
	"context"
	"net/http"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	ulredis "github.com/ulule/limiter/v3/drivers/store/redis"
)

// All go through a client of go-redis with its default pool, ten connections for each core, which was
// faster here than smaller and larger ones.

// openRedisRate is GCRA by a script, one round trip. It has no middleware.
func openRedisRate(env *environment, quota quota) (*subject, error) {
	client := env.redis()
	l := redis_rate.NewLimiter(client)
	limit := redis_rate.PerHour(quota.requests)
	return &subject{
		decide: func(ctx context.Context, key int) (bool, error) {
			result, err := l.Allow(ctx, quota.keys[key], limit)
			return err == nil && result.Allowed > 0, err
		},
		close: func() { client.Close() },
	}, nil
}

// openUluleRedis is a fixed window by a script, one round trip.
func openUluleRedis(env *environment, quota quota) (*subject, error) {
	client := env.redis()
	s, err := ulredis.NewStore(client)
	if err != nil {
		client.Close()
		return nil, err
	}
	return ulule(s, quota, func() { client.Close() }), nil
}

func ulule(s limiter.Store, quota quota, closeStore func()) *subject {
	l := limiter.New(s, limiter.Rate{Period: window, Limit: int64(quota.requests)})
	return &subject{
		decide: func(ctx context.Context, key int) (bool, error) {
			c, err := l.Get(ctx, quota.keys[key])
			return err == nil && !c.Reached, err
		},
		middleware: stdlib.NewMiddleware(l).Handler,
		close:      closeStore,
	}
}

// openThrottledRedis is GCRA by reading and then comparing and swapping, two round trips or more.
func openThrottledRedis(env *environment, quota quota) (*subject, error) {
	client := env.redis()
	s, err := goredisstore.NewCtx(client, "throttled:")
	if err != nil {
		client.Close()
		return nil, err
	}
	return gcra(s, quota, func() { client.Close() })
}

func gcra(s throttled.GCRAStoreCtx, quota quota, closeStore func()) (*subject, error) {
	l, err := throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{
		MaxRate: throttled.PerHour(quota.requests), MaxBurst: quota.requests - 1,
	})
	if err != nil {
		closeStore()
		return nil, err
	}
	limiter := throttled.HTTPRateLimiterCtx{RateLimiter: l, VaryBy: &throttled.VaryBy{RemoteAddr: true}}
	return &subject{
		decide: func(ctx context.Context, key int) (bool, error) {
			limited, _, err := l.RateLimitCtx(ctx, quota.keys[key], 1)
			return err == nil && !limited, err
		},
		middleware: func(next http.Handler) http.Handler { return limiter.RateLimit(next) },
		close:      closeStore,
	}, nil
}

// openIncrExpire is the least that a fixed window in Redis can be: INCR and EXPIRE in one pipeline.
func openIncrExpire(env *environment, quota quota) (*subject, error) {
	client := env.redis()
	return &subject{
		decide: func(ctx context.Context, key int) (bool, error) {
			var count *redis.IntCmd
			_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
				count = p.Incr(ctx, "bench:"+quota.keys[key])
				p.Expire(ctx, "bench:"+quota.keys[key], window)
				return nil
			})
			return err == nil && count.Val() <= int64(quota.requests), err
		},
		close: func() { client.Close() },
	}, nil
}
