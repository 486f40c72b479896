package ratelimit_test

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
)

// asking returns a request that asks for n.
func asking(n int) *http.Request { return request("203.0.113.7:1", "X-Cost", strconv.Itoa(n)) }

// A request is admitted if what it costs is left, to the last of it. One that is refused spends nothing.
func TestCost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:00")
		handler := newLimiter(t, memoryStore(t), ratelimit.Config{
			Policies: []ratelimit.Policy{{Name: "rows", Limit: ratelimit.PerMinute(10), Cost: costOf}},
		}).Handler(new(spy))
		const policy = `"rows";q=10;w=60`
		fields := func(left string) []string {
			return []string{"RateLimit-Policy", policy, "RateLimit", `"rows";r=` + left + `;t=60`}
		}
		check(t, "8 of 10", served(fields("2")...), serve(handler, asking(8)))
		check(t, "5 of 2", tooMany("60", `"rows"`, fields("2")...), serve(handler, asking(5)))
		check(t, "5 of 2 again, from memory", tooMany("60", `"rows"`, fields("2")...), serve(handler, asking(5)))
		check(t, "1 of 2", served(fields("1")...), serve(handler, asking(1)))
		check(t, "1 of 1", served(fields("0")...), serve(handler, asking(1)))
		check(t, "1 of 0", tooMany("60", `"rows"`, fields("0")...), serve(handler, asking(1)))
	})
}

// What will never fit says so: to wait is of no use then.
func TestCostAboveTheLimit(t *testing.T) {
	t.Parallel()
	handler := newLimiter(t, memoryStore(t), ratelimit.Config{
		Policies: []ratelimit.Policy{
			{Name: "all", Limit: long(1000)},
			{Name: "rows", Limit: long(10), Cost: costOf},
		},
	}).Handler(new(spy))
	const want = `"detail":"The request costs 11, and the limit is 10.","violated-policies":["rows"]}`
	for _, what := range []string{"by the store", "from memory"} {
		got := serve(handler, asking(11))
		if got.Status != http.StatusTooManyRequests || !strings.HasSuffix(got.Body, want+"\n") || got.Header.Get("Retry-After") == "" {
			t.Errorf("%s: reply is %+v, want 429 and %s", what, got, want)
		}
	}
	if got := statuses(handler, asking(10), 2); !cmp.Equal(map[int]int{200: 1, 429: 1}, got) {
		t.Errorf("statuses of requests for 10 are %v, want one that is served", got)
	}
}

// Whatever the function says, a request costs at least 1, and at most what a limit may be.
func TestCostOutOfBounds(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, memoryStore(t), ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "rows", Limit: long(ratelimit.MaxRequests), Cost: costOf}},
	})
	remaining := ratelimit.MaxRequests
	for _, test := range []struct{ says, costs int }{{0, 1}, {-5, 1}, {math.MinInt, 1}, {math.MaxInt, ratelimit.MaxRequests}} {
		result := limiter.Check(asking(test.says)).Results[0]
		if remaining -= 1; test.costs > 1 {
			remaining += 1 // refused
		}
		if result.Cost != test.costs || result.Remaining != remaining {
			t.Errorf("%d costs %d and leaves %d, want %d and %d", test.says, result.Cost, result.Remaining, test.costs, remaining)
		}
	}
}

// Through batches of many callers, what is counted is what was admitted, and no more than the limit.
func TestCostIsExact(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	const limit, callers, cost = 1000, 400, 3
	var seen decisions
	limiter := newLimiter(t, postgresStore(t, pool), ratelimit.Config{
		Policies:   []ratelimit.Policy{{Name: "rows", Limit: long(limit), Cost: costOf}},
		OnDecision: seen.observe,
	})
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() { limiter.Check(asking(cost)) })
	}
	wg.Wait()
	if got := seen.outcomes(); got[ratelimit.Allowed] != limit/cost {
		t.Errorf("outcomes are %v, want %d allowed", got, limit/cost)
	}
	if d := limiter.Check(asking(1)); d.Outcome != ratelimit.Allowed || d.Results[0].Remaining != 0 {
		t.Errorf("the last one that fits is %s and leaves %d, want allowed and 0", d.Outcome, d.Results[0].Remaining)
	}
	if diff := cmp.Diff([]int64{limit}, counts(t, pool)); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

// A dry run gives back what it would have refused, like the policy that it is to become.
func TestCostInADryRun(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, memoryStore(t), ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "rows", Limit: long(10), Cost: costOf, DryRun: true}},
		Logger:   new(logbook).logger(),
	})
	var got []ratelimit.Outcome
	for _, n := range []int{8, 5, 2, 1} {
		got = append(got, limiter.Check(asking(n)).Results[0].Outcome)
	}
	if diff := cmp.Diff([]ratelimit.Outcome{"allowed", "refused", "allowed", "refused"}, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}
