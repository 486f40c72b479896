package ratelimit_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
)

func TestFromContextOfOthers(t *testing.T) {
	t.Parallel()
	d, ok := ratelimit.FromContext(t.Context())
	if diff := cmp.Diff(ratelimit.Decision{}, d, equalDecisions); diff != "" || ok {
		t.Errorf("ok is %t, want false; decision (-want +got):\n%s", ok, diff)
	}
}

// One decision is what next, the handler of refusals, OnDecision and Check are told, each once.
func TestDecision(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:15")
		var seen decisions
		var observed *http.Request
		next, refused := new(spy), new(spy)
		limiter := newLimiter(t, memoryStore(t), ratelimit.Config{
			Policies: []ratelimit.Policy{
				{Name: "ip", Limit: ratelimit.PerMinute(1)},
				{Name: "token", Limit: ratelimit.PerHour(5), Key: ratelimit.BearerToken},
				{Name: "account", Limit: ratelimit.PerHour(5), Key: ratelimit.Header("X-Account"), Optional: true},
			},
			Refused:    refused,
			OnDecision: func(r *http.Request, d ratelimit.Decision) { observed = r; seen.observe(r, d) },
		})
		handler := limiter.Handler(next)
		result := func(policy string, limit ratelimit.Limit, kind string, outcome ratelimit.Outcome, remaining int, reset time.Duration) ratelimit.Result {
			return ratelimit.Result{Policy: policy, Limit: limit, Cost: 1, KeyKind: kind, Outcome: outcome, Counted: true, Remaining: remaining, Reset: reset}
		}

		r := request("203.0.113.7:1", "X-Account", "42")
		want := ratelimit.Decision{Outcome: ratelimit.Allowed, Results: []ratelimit.Result{
			result("ip", ratelimit.PerMinute(1), "ip", ratelimit.Allowed, 0, 45*time.Second),
			result("token", ratelimit.PerHour(5), "peer", ratelimit.Allowed, 4, time.Hour-15*time.Second),
			result("account", ratelimit.PerHour(5), "header-x-account", ratelimit.Allowed, 4, time.Hour-15*time.Second),
		}}
		serve(handler, r)
		if diff := cmp.Diff([]ratelimit.Decision{want}, seen.take(), equalDecisions); diff != "" {
			t.Errorf("observed of an admitted request (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, next.decision, equalDecisions); diff != "" || !next.decided {
			t.Errorf("decision in next's context (-want +got):\n%s", diff)
		}
		if observed != r {
			t.Error("OnDecision got another request than the limiter")
		}

		r = request("203.0.113.7:1", "Authorization", "Bearer abc")
		want = ratelimit.Decision{Outcome: ratelimit.Refused, RetryAfter: 45 * time.Second, Results: []ratelimit.Result{
			{Policy: "ip", Limit: ratelimit.PerMinute(1), Cost: 1, KeyKind: "ip", Outcome: ratelimit.Refused, Counted: true, Remembered: true, Reset: 45 * time.Second},
			{Policy: "token", Limit: ratelimit.PerHour(5), Cost: 1, KeyKind: "bearer", Outcome: ratelimit.Allowed},
		}}
		serve(handler, r)
		if diff := cmp.Diff([]ratelimit.Decision{want}, seen.take(), equalDecisions); diff != "" {
			t.Errorf("observed of a refused request (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, refused.decision, equalDecisions); diff != "" || !refused.decided {
			t.Errorf("decision in the context of Refused (-want +got):\n%s", diff)
		}
		if next.takeCalls() != 1 || refused.takeCalls() != 1 {
			t.Error("want one call of next and one of Refused")
		}

		if diff := cmp.Diff(want, limiter.Check(r), equalDecisions); diff != "" {
			t.Errorf("Check (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]ratelimit.Decision{want}, seen.take(), equalDecisions); diff != "" {
			t.Errorf("observed of Check (-want +got):\n%s", diff)
		}
	})
}

// A result names the bucket under which the store has the count, for those who look it up there.
func TestResultBucket(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, counters ratelimit.Store) {
		limiter := newLimiter(t, counters, ratelimit.Config{Secret: testSecret, Policies: []ratelimit.Policy{
			{Name: "ip", Limit: long(9)},
			{Name: "token", Limit: long(9), LimitFor: func(*http.Request) ratelimit.Limit { return ratelimit.PerDay(9) }, Key: ratelimit.BearerToken},
		}})
		results := limiter.Check(request("203.0.113.7:1", "Authorization", "Bearer abc")).Results
		buckets := []string{results[0].Bucket, results[1].Bucket}
		want := []string{
			ratelimit.Bucket(testSecret, "ip/8784h:", ratelimit.ClientIP(request("203.0.113.7:1"))),
			ratelimit.Bucket(testSecret, "token/24h:", ratelimit.BearerToken(request("", "Authorization", "Bearer abc"))),
		}
		if diff := cmp.Diff(want, buckets); diff != "" {
			t.Errorf("buckets (-want +got):\n%s", diff)
		}
		counts, err := counters.Get(t.Context(), []ratelimit.Hit{{Bucket: want[0], Window: ratelimit.MaxWindow}, {Bucket: want[1], Window: 24 * time.Hour}})
		if err != nil || counts[0].Total != 1 || counts[1].Total != 1 {
			t.Errorf("the store has %+v (error %v), want 1 in each", counts, err)
		}
	})
}

// Fault 17: of nested limiters, the fields tell of all, and of the one that refuses if one does. What
// each of them decided is observed by itself; the context has it all.
func TestNestedLimiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:00")
		var seenOuter, seenInner decisions
		outer := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "outer", Limit: ratelimit.PerMinute(3)}}, OnDecision: seenOuter.observe})
		inner := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "inner", Limit: ratelimit.PerHour(2)}}, OnDecision: seenInner.observe})
		next := new(spy)
		handler := outer.Handler(inner.Handler(next))
		const policy = `"outer";q=3;w=60, "inner";q=2;w=3600`
		for i, want := range []reply{
			served("RateLimit-Policy", policy, "RateLimit", `"inner";r=1;t=3600`),
			served("RateLimit-Policy", policy, "RateLimit", `"inner";r=0;t=3600`),
			tooMany("3600", `"inner"`, "RateLimit-Policy", policy, "RateLimit", `"inner";r=0;t=3600`),
			tooMany("60", `"outer"`, "RateLimit-Policy", `"outer";q=3;w=60`, "RateLimit", `"outer";r=0;t=60`),
		} {
			check(t, []string{"first", "second", "third", "fourth"}[i], want, serve(handler, request("203.0.113.7:1")))
		}
		if got := next.takeCalls(); got != 2 {
			t.Errorf("next was called %d times, want 2", got)
		}
		want := ratelimit.Decision{Outcome: ratelimit.Allowed, Results: []ratelimit.Result{
			{Policy: "outer", Limit: ratelimit.PerMinute(3), Cost: 1, KeyKind: "ip", Outcome: ratelimit.Allowed, Counted: true, Remaining: 1, Reset: time.Minute},
			{Policy: "inner", Limit: ratelimit.PerHour(2), Cost: 1, KeyKind: "ip", Outcome: ratelimit.Allowed, Counted: true, Remaining: 0, Reset: time.Hour},
		}}
		if diff := cmp.Diff(want, next.decision, equalDecisions); diff != "" {
			t.Errorf("decision in the context (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[ratelimit.Outcome]int{ratelimit.Allowed: 3, ratelimit.Refused: 1}, seenOuter.outcomes()); diff != "" {
			t.Errorf("observed by the outer (-want +got):\n%s", diff)
		}
		inners := seenInner.take()
		if len(inners) != 3 || len(inners[0].Results) != 1 {
			t.Errorf("observed by the inner: %v, want 3 decisions of its own", inners)
		}
	})
}

// A limiter whose store fails says nothing, and does not take away what one further out has said.
func TestNestedLimiterThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:00")
		var log logbook
		outer := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "outer", Limit: ratelimit.PerMinute(100)}}})
		next := new(spy)
		inner := func(mode ratelimit.FailureMode) http.Handler {
			return outer.Handler(newLimiter(t, failing(ratelimit.ErrReadOnly), ratelimit.Config{
				Policies: []ratelimit.Policy{{Name: "inner", Limit: ratelimit.PerMinute(1), OnFailure: mode}}, Logger: log.logger(),
			}).Handler(next))
		}
		check(t, "open inside", served("RateLimit-Policy", `"outer";q=100;w=60`, "RateLimit", `"outer";r=99;t=60`),
			serve(inner(ratelimit.FailOpen), request("203.0.113.7:1")))
		want := ratelimit.Decision{Outcome: ratelimit.Allowed, Err: ratelimit.ErrReadOnly, Results: []ratelimit.Result{
			{Policy: "outer", Limit: ratelimit.PerMinute(100), Cost: 1, KeyKind: "ip", Outcome: ratelimit.Allowed, Counted: true, Remaining: 99, Reset: time.Minute},
			{Policy: "inner", Limit: ratelimit.PerMinute(1), Cost: 1, KeyKind: "ip", Outcome: ratelimit.Allowed},
		}}
		if diff := cmp.Diff(want, next.decision, equalDecisions); diff != "" {
			t.Errorf("decision in the context (-want +got):\n%s", diff)
		}
		check(t, "closed inside", unavailable("RateLimit-Policy", `"outer";q=100;w=60`, "RateLimit", `"outer";r=98;t=60`),
			serve(inner(ratelimit.FailClosed), request("203.0.113.7:1")))
		// The other way round: what the outer could not count is told by the context, Err included.
		open := newLimiter(t, failing(ratelimit.ErrReadOnly), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "open", Limit: ratelimit.PerMinute(1)}}, Logger: log.logger()})
		check(t, "open outside", served("RateLimit-Policy", `"outer";q=100;w=60`, "RateLimit", `"outer";r=97;t=60`), serve(open.Handler(outer.Handler(next)), request("203.0.113.7:1")))
		if diff := cmp.Diff(error(ratelimit.ErrReadOnly), next.decision.Err, equalDecisions); diff != "" {
			t.Errorf("Err in the context (-want +got):\n%s", diff)
		}
	})
}

// Fault 35: one limiter around a mux and again around a route of it counts a request once. Two limiters
// count once each, even if they are alike and share their counts.
func TestSameLimiterTwice(t *testing.T) {
	t.Parallel()
	policies := []ratelimit.Policy{{Name: "default", Limit: long(10)}}
	next := new(spy)
	counters := memoryStore(t)
	limiter := newLimiter(t, counters, ratelimit.Config{Policies: policies})
	other := newLimiter(t, counters, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "other", Limit: long(10)}}})
	twin := newLimiter(t, counters, ratelimit.Config{Policies: policies})
	for _, test := range []struct {
		name    string
		handler http.Handler
		peer    string
		want    int // what remains after 4 requests
		results int
	}{
		{"once", limiter.Handler(next), "203.0.113.1:1", 6, 1},
		{"twice", limiter.Handler(limiter.Handler(next)), "203.0.113.2:1", 6, 1},
		{"twice around another", limiter.Handler(other.Handler(limiter.Handler(next))), "203.0.113.3:1", 6, 2},
		{"twin inside", limiter.Handler(twin.Handler(next)), "203.0.113.4:1", 2, 2},
	} {
		var remaining []int
		for range 4 {
			next.decision = ratelimit.Decision{}
			serve(test.handler, request(test.peer))
			for _, r := range next.decision.Results {
				if r.Policy == "default" {
					remaining = append(remaining, r.Remaining)
				}
			}
			if got := len(next.decision.Results); got != test.results {
				t.Errorf("%s: %d results, want %d", test.name, got, test.results)
			}
		}
		if got := remaining[len(remaining)-1]; got != test.want {
			t.Errorf("%s: %d remain, want %d", test.name, got, test.want)
		}
	}
}
