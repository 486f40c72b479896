package ratelimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
)

// asked returns a store that counts how often it is asked.
func asked(s ratelimit.Store) (ratelimit.Store, *atomic.Int64) {
	n := new(atomic.Int64)
	return storeFunc{s, func(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
		n.Add(1)
		return s.Add(ctx, hits)
	}}, n
}

// Whoever is told of a refusal from memory may keep the decision, and a store what it was asked: what comes later is not
// written over it.
func TestDecisionsFromMemoryAreKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testDecisionsFromMemoryAreKept)
}

func testDecisionsFromMemoryAreKept(t *testing.T) {
	var kept []ratelimit.Decision
	keep := func(_ http.ResponseWriter, r *http.Request) {
		d, _ := ratelimit.FromContext(r.Context())
		kept = append(kept, d)
	}
	config := ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: long(0), Key: ratelimit.Header("X-Client")}}}
	refused, told := config, config
	refused.Refused = http.HandlerFunc(keep)
	told.OnDecision = func(_ *http.Request, d ratelimit.Decision) { kept = append(kept, d) }
	checked := newLimiter(t, memoryStore(t), config)
	for name, ask := range map[string]http.Handler{
		"Check":      http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { kept = append(kept, checked.Check(r)) }),
		"Refused":    newLimiter(t, memoryStore(t), refused).Handler(new(spy)),
		"OnDecision": newLimiter(t, memoryStore(t), told).Handler(new(spy)),
	} {
		kept = nil
		var asked [][]ratelimit.Hit
		m := memoryStore(t)
		plain := newLimiter(t, storeFunc{m, func(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
			asked = append(asked, hits)
			return m.Add(ctx, hits)
		}}, config).Handler(new(spy))
		const clients = 100
		for range 2 { // the second time from memory
			for i := range clients {
				r := request("203.0.113.7:1", "X-Client", strconv.Itoa(i))
				serve(ask, r)
				serve(plain, r) // gives back what it has used
			}
		}
		buckets := make(map[string]bool)
		for _, d := range kept[clients:] {
			if r := d.Results[0]; !r.Remembered {
				t.Errorf("%s: decision is %+v, want one from memory", name, d)
			}
			buckets[d.Results[0].Bucket] = true
		}
		if len(buckets) != clients {
			t.Errorf("%s: %d decisions are on %d buckets, want one each", name, len(kept)-clients, len(buckets))
		}
		clear(buckets)
		for _, hits := range asked {
			buckets[hits[0].Bucket] = true
		}
		if len(buckets) != clients {
			t.Errorf("%s: %d hits are on %d buckets, want %d", name, len(asked), len(buckets), clients)
		}
	}
}

// A flood on a bucket that is over its limit costs the database a statement every five seconds, and
// what was in flight when the limit was reached. With several policies, what is given back meanwhile makes
// some callers ask again: a few statements for each that was in flight.
func TestFloodOfRefusals(t *testing.T) {
	t.Parallel()
	narrow := ratelimit.Policy{Name: "default", Limit: long(10)}
	t.Run("one policy", func(t *testing.T) {
		t.Parallel()
		testFlood(t, 8, 125_000, 12, narrow)
	})
	t.Run("several policies", func(t *testing.T) {
		t.Parallel()
		testFlood(t, 64, 5_000, 64*5_000/100, narrow, ratelimit.Policy{Name: "site", Limit: long(20), Key: ratelimit.Constant("site")})
	})
}

func testFlood(t *testing.T, callers, calls, most int, policies ...ratelimit.Policy) {
	var sent statements
	pool := testdb.Pool(t, testdb.New(t), func(c *pgxpool.Config) { c.ConnConfig.Tracer = &sent })
	limiter := newLimiter(t, postgresStore(t, pool), ratelimit.Config{Policies: policies})
	began := time.Now()
	var allowed atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			r := request("203.0.113.7:51234")
			for range calls {
				d := limiter.Check(r)
				switch {
				case d.Outcome == ratelimit.Allowed:
					allowed.Add(1)
				case d.Outcome != ratelimit.Refused || d.RetryAfter <= 0:
					t.Errorf("decision is %+v, want a refusal with a wait", d)
				}
			}
		})
	}
	wg.Wait()
	if n := allowed.Load(); n != 10 {
		t.Errorf("%d requests were allowed, want 10", n)
	}
	most *= 1 + int(time.Since(began)/(5*time.Second))
	if n := len(sent.take()); n > most {
		t.Errorf("%d requests took %d statements, want at most %d", callers*calls, n, most)
	}
}

// What was seen is good until the window ends, and not a moment longer.
func TestRefusalsEndWithTheWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:57.5")
		s, n := asked(memoryStore(t))
		handler := newLimiter(t, s, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: ratelimit.PerMinute(1)}}}).Handler(new(spy))
		r := request("203.0.113.7:1")
		const policy = `"default";q=1;w=60`
		check(t, "first", served("RateLimit-Policy", policy, "RateLimit", `"default";r=0;t=3`), serve(handler, r))
		check(t, "second", tooMany("3", `"default"`, "RateLimit-Policy", policy, "RateLimit", `"default";r=0;t=3`), serve(handler, r))
		sleepUntil(t, "12:00:59.999")
		check(t, "in the last moment", tooMany("1", `"default"`, "RateLimit-Policy", policy, "RateLimit", `"default";r=0;t=1`), serve(handler, r))
		if got := n.Load(); got != 1 {
			t.Errorf("the store was asked %d times, want once", got)
		}
		sleepUntil(t, "12:01:00")
		check(t, "in the next window", served("RateLimit-Policy", policy, "RateLimit", `"default";r=0;t=60`), serve(handler, r))
		sleepUntil(t, "12:01:59.999999999") // the store is asked again
		check(t, "in its last nanosecond", tooMany("1", `"default"`, "RateLimit-Policy", policy, "RateLimit", `"default";r=0;t=1`), serve(handler, r))
		sleepUntil(t, "12:02:00")
		check(t, "in the third window", served("RateLimit-Policy", policy, "RateLimit", `"default";r=0;t=60`), serve(handler, r))
	})
}

// What was seen is good for five seconds: then the store is asked again, for its count may have been set
// back.
func TestRefusalsAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:10")
		m := memoryStore(t)
		s, n := asked(m)
		limiter := newLimiter(t, s, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: ratelimit.PerMinute(1)}}})
		r := request("203.0.113.7:1")
		limiter.Check(r)
		for range 100 {
			if d := limiter.Check(r); d.Outcome != ratelimit.Refused || !d.Results[0].Remembered {
				t.Fatalf("decision is %+v, want a refusal from memory", d)
			}
		}
		time.Sleep(5*time.Second - 1)
		limiter.Check(r)
		if got := n.Load(); got != 1 {
			t.Errorf("the store was asked %d times within five seconds, want once", got)
		}
		time.Sleep(time.Nanosecond)
		if d := limiter.Check(r); d.Outcome != ratelimit.Refused || d.Results[0].Remembered {
			t.Errorf("decision is %+v, want a refusal by the store", d)
		}
		if got := n.Load(); got != 2 {
			t.Errorf("the store was asked %d times, want twice", got)
		}
	})
}

// The wait for a slow store makes a remembered window end too early for the limiter rather than too
// late, and for the client too late rather than too early.
func TestRefusalsOfASlowStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:58")
		m := memoryStore(t)
		s, n := asked(storeFunc{m, func(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
			counts, err := m.Add(ctx, hits)
			time.Sleep(200 * time.Millisecond) // the way back
			return counts, err
		}})
		limiter := newLimiter(t, s, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: ratelimit.PerMinute(1)}}})
		r := request("203.0.113.7:1")
		limiter.Check(r)
		d := limiter.Check(r)
		if d.RetryAfter != 2*time.Second { // 1.8 s until the end, and the way back
			t.Errorf("RetryAfter is %v, want 2s", d.RetryAfter)
		}
		sleepUntil(t, "12:01:00")
		if d := limiter.Check(r); d.Outcome != ratelimit.Allowed || n.Load() != 2 {
			t.Errorf("decision in the next window is %+v", d)
		}
	})
}

// What is given back is taken off the memory too, at once.
func TestRefusalsAndGivingBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:00")
		s, n := asked(memoryStore(t))
		limiter := newLimiter(t, s, ratelimit.Config{Policies: []ratelimit.Policy{
			{Name: "account", Limit: ratelimit.PerMinute(1), Key: ratelimit.Header("X-Account")},
			{Name: "site", Limit: ratelimit.PerMinute(2), Key: ratelimit.Constant("site")},
		}})
		a, b := request("203.0.113.7:1", "X-Account", "a"), request("203.0.113.7:1", "X-Account", "b")
		limiter.Check(a) // account a is used up: remembered
		time.Sleep(5 * time.Second)
		// The store counts this one, the site's second, refuses it for the account, and gives it back.
		if d := limiter.Check(a); d.Outcome != ratelimit.Refused || d.Results[0].Remembered || d.Results[1].Outcome != ratelimit.Allowed {
			t.Fatalf("decision is %+v, want a refusal by the store for the account alone", d)
		}
		if d := limiter.Check(b); d.Outcome != ratelimit.Allowed {
			t.Errorf("decision is %+v, want the site's second request to pass", d)
		}
		before := n.Load()
		d := limiter.Check(request("203.0.113.7:1", "X-Account", "c"))
		if d.Outcome != ratelimit.Refused || !d.Results[1].Remembered || d.Results[0].Counted || n.Load() != before {
			t.Errorf("decision is %+v, want a refusal for the site from memory", d)
		}
	})
}

// A request that is refused from memory names all policies that apply to it, and spends nothing on any.
func TestRefusalsOfSeveralPolicies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:15")
		m := memoryStore(t)
		handler := newLimiter(t, m, ratelimit.Config{Policies: []ratelimit.Policy{
			{Name: "ip", Limit: ratelimit.PerMinute(1)},
			{Name: "site", Limit: ratelimit.PerHour(10), Key: ratelimit.Constant("site")},
		}}).Handler(new(spy))
		const policies = `"ip";q=1;w=60, "site";q=10;w=3600`
		check(t, "first", served("RateLimit-Policy", policies, "RateLimit", `"ip";r=0;t=45`), serve(handler, request("203.0.113.7:1")))
		for range 20 {
			check(t, "refused", tooMany("45", `"ip"`, "RateLimit-Policy", policies, "RateLimit", `"ip";r=0;t=45`), serve(handler, request("203.0.113.7:1")))
		}
		check(t, "another caller", served("RateLimit-Policy", policies, "RateLimit", `"ip";r=0;t=45`), serve(handler, request("203.0.113.8:1")))
		if n := statuses(handler, request("203.0.113.9:1"), 1)[http.StatusOK]; n != 1 {
			t.Error("the site's limit was used up by requests that were refused")
		}
	})
}

// Of a burst that shares a statement, each request sees the counts of all others. What the narrow limit
// refuses must not stay in the broad one, neither in the store nor in memory, even where both refuse:
// the burst would shut everybody out until the broad window ends.
func TestBurstLeavesTheBroadLimitAlone(t *testing.T) {
	t.Parallel()
	const burst, narrow, broad = 200, 5, 20
	for name, s := range map[string]ratelimit.Store{
		"Postgres": postgresStore(t, testdb.Pool(t, testdb.New(t))),
		"Memory":   memoryStore(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter := newLimiter(t, s, ratelimit.Config{Policies: []ratelimit.Policy{
				{Name: "account", Limit: long(narrow), Key: ratelimit.Header("X-Account")},
				{Name: "site", Limit: long(broad), Key: ratelimit.Constant("site")},
			}})
			allowed := func(account string, n int) int64 {
				var allowed atomic.Int64
				var wg sync.WaitGroup
				for range n {
					wg.Go(func() {
						if d := limiter.Check(request("203.0.113.7:1", "X-Account", account)); d.Outcome == ratelimit.Allowed {
							allowed.Add(1)
						}
					})
				}
				wg.Wait()
				return allowed.Load()
			}
			if n := allowed("a", burst); n != narrow {
				t.Errorf("%d of a burst of %d were allowed, want %d", n, burst, narrow)
			}
			for i, account := range []string{"b", "c", "d"} {
				for range narrow {
					if n := allowed(account, 1); n != 1 {
						t.Errorf("a request of account %s was refused, of %d others", account, (broad-narrow)-i*narrow)
					}
				}
			}
			if n := allowed("e", 1); n != 0 {
				t.Errorf("a request over the site's limit was allowed")
			}
		})
	}
}

// Hanging up is no way around the memory, nor around giving back: what one caller spends so on a limit
// that others share is given back like that of any other refused request.
func TestHangingUpSpendsNothingOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:00")
		m := memoryStore(t)
		s, n := asked(storeFunc{m, func(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			counts, err := m.Add(ctx, hits)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return counts, err
		}})
		limiter := newLimiter(t, s, ratelimit.Config{Policies: []ratelimit.Policy{
			{Name: "account", Limit: ratelimit.PerMinute(1), Key: ratelimit.Header("X-Account")},
			{Name: "site", Limit: ratelimit.PerMinute(10), Key: ratelimit.Constant("site")},
		}})
		for range 50 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, cancel)
			if d := limiter.Check(request("203.0.113.7:1", "X-Account", "a").WithContext(ctx)); d.Outcome == ratelimit.Allowed {
				t.Errorf("decision is %+v for a client that has left", d)
			}
			cancel()
		}
		if got := n.Load(); got > 4 {
			t.Errorf("50 requests of one account asked the store %d times, want it once and once more in five seconds", got)
		}
		for i := range 9 {
			if d := limiter.Check(request("203.0.113.7:1", "X-Account", string(rune('b'+i)))); d.Outcome != ratelimit.Allowed {
				t.Errorf("decision is %+v for the %d. other account, want it allowed", d, i+1)
			}
		}
	})
}

// A refusal from memory: what a flood costs.
//
//	go test -run='^$' -bench=Remembered .
func BenchmarkRemembered(b *testing.B) {
	for name, config := range map[string]ratelimit.Config{
		"plain":  {},
		"secret": {Secret: make([]byte, 32)},
	} {
		config.Policies = []ratelimit.Policy{{Name: "default", Limit: long(0)}}
		limiter := newLimiter(b, memoryStore(b), config)
		r := request("203.0.113.7:51234")
		limiter.Check(r)
		b.Run("Check/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				limiter.Check(r)
			}
		})
		handler := limiter.Handler(new(spy))
		b.Run("Handler/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				handler.ServeHTTP(httptest.NewRecorder(), r)
			}
		})
	}
}
