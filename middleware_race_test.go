package ratelimit_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// Fault 65: everything that is public from 64 goroutines, for the race detector, while the store fails
// now and then and clients leave. What has been admitted by count is no more than the limits.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, counters ratelimit.Store) {
		var calls atomic.Int64
		faulty := storeFunc{counters, func(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
			if calls.Add(1)%7 == 0 {
				return nil, errDown
			}
			return counters.Add(ctx, hits)
		}}
		var log logbook
		var admitted atomic.Int64
		config := ratelimit.Config{
			Policies: []ratelimit.Policy{
				{Name: "user", Limit: long(100), Key: ratelimit.Header("X-User"), OnFailure: ratelimit.FailLocal},
				{Name: "site", Limit: long(500), Key: ratelimit.Constant("site"), OnFailure: ratelimit.FailOpen},
				{Name: "token", Limit: long(100), Key: ratelimit.FirstOf(ratelimit.BearerToken, ratelimit.Join(ratelimit.ClientIP, ratelimit.Header("X-User"))), Optional: true, OnFailure: ratelimit.FailClosed},
			},
			Secret: ratelimit.Secret("0123456789abcdef0123456789abcdef"), PartitionKey: true, Skip: ratelimit.IsPreflight, Logger: log.logger(),
			Headers: ratelimit.HeadersStructured | ratelimit.HeadersLegacy,
			OnDecision: func(_ *http.Request, d ratelimit.Decision) {
				if d.Outcome == ratelimit.Allowed && d.Err == nil {
					admitted.Add(1)
				}
			},
		}
		outer, inner := newLimiter(t, faulty, config), newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "inner", Limit: long(1e6)}}})
		shared := outer.Handler(inner.Handler(outer.Handler(new(spy))))
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				own := outer.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					d, _ := ratelimit.FromContext(r.Context())
					_ = fmt.Sprintf("%+v", d)
				}))
				for j := range 20 {
					r := request(fmt.Sprintf("203.0.113.%d:1", j), "X-User", fmt.Sprint(i%5), "Authorization", fmt.Sprintf("Bearer %d", j%3))
					serve(shared, r)
					serve(own, r)
					outer.Check(r)
					serve(own, r.WithContext(gone))
					_ = fmt.Sprintf("%v", outer)
				}
				if p, ok := counters.(*store.Postgres); ok {
					if _, err := p.Sweep(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if got := admitted.Load(); got == 0 || got > 500 {
			t.Errorf("%d requests were admitted by count, want some and at most 500", got)
		}
	})
}

// Fault 64: to build limiters and handlers starts nothing. synctest.Test fails if anything that was
// started in it is still there when its function returns.
func TestNothingIsStarted(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	synctest.Test(t, func(t *testing.T) {
		config := ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: long(10_000), OnFailure: ratelimit.FailLocal}}}
		counters := memoryStore(t)
		var handlers []http.Handler
		for range 1000 {
			limiter := newLimiter(t, counters, config)
			handlers = append(handlers, limiter.Handler(new(spy)))
			newLimiter(t, postgresStore(t, pool), config).Handler(new(spy))
		}
		limiter := newLimiter(t, counters, config)
		for range 1000 {
			handlers = append(handlers, limiter.Handler(new(spy)))
		}
		got := make(map[int]int)
		for _, handler := range handlers {
			got[serve(handler, request("203.0.113.7:1")).Status]++
		}
		if diff := cmp.Diff(map[int]int{200: 2000}, got); diff != "" {
			t.Errorf("statuses (-want +got):\n%s", diff)
		}
	})
}
