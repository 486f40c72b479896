package ratelimit_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
)

// A statements is a pgx tracer that keeps the texts of the statements that are sent.
type statements struct {
	mu    sync.Mutex
	texts []string
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.texts = append(s.texts, data.SQL)
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *statements) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	texts := s.texts
	s.texts = nil
	return texts
}

// All policies of a request go to Postgres in one statement, and what an admitted request needs is that
// one alone. What a refusal gives back follows the answer, ahead of the next count.
func TestPoliciesShareOneRoundTrip(t *testing.T) {
	t.Parallel()
	var sent statements
	pool := testdb.Pool(t, testdb.New(t), func(c *pgxpool.Config) { c.ConnConfig.Tracer = &sent })
	limiter := newLimiter(t, postgresStore(t, pool), ratelimit.Config{Policies: []ratelimit.Policy{
		{Name: "burst", Limit: long(100)},
		{Name: "day", Limit: long(1000)},
		{Name: "site", Limit: long(1000), Key: ratelimit.Constant("site")},
		{Name: "token", Limit: long(1), Key: ratelimit.BearerToken, Optional: true},
	}})
	for _, fields := range [][]string{nil, {"Authorization", "Bearer abc"}} {
		if d := limiter.Check(request("203.0.113.7:1", fields...)); d.Outcome != ratelimit.Allowed || d.Err != nil {
			t.Errorf("outcome is %s, %v, want allowed", d.Outcome, d.Err)
		}
		if got := sent.take(); len(got) != 1 || !strings.Contains(got[0], "INSERT INTO") {
			t.Errorf("statements are %q, want one", got)
		}
	}
	if diff := cmp.Diff([]int64{2, 2, 2, 1}, counts(t, pool)); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

// An optional policy is skipped for requests without its key, and leaves no trace on them.
func TestOptionalPolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:00")
		handler := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{
			{Name: "token", Limit: ratelimit.PerMinute(1), Key: ratelimit.BearerToken, Optional: true},
			{Name: "ip", Limit: ratelimit.PerMinute(10)},
		}}).Handler(new(spy))
		const both = `"token";q=1;w=60, "ip";q=10;w=60`
		check(t, "no token", served("RateLimit-Policy", `"ip";q=10;w=60`, "RateLimit", `"ip";r=9;t=60`),
			serve(handler, request("203.0.113.7:1")))
		check(t, "unreadable token", served("RateLimit-Policy", `"ip";q=10;w=60`, "RateLimit", `"ip";r=8;t=60`),
			serve(handler, request("203.0.113.7:1", "Authorization", "Bearer a b")))
		check(t, "token", served("RateLimit-Policy", both, "RateLimit", `"token";r=0;t=60`),
			serve(handler, request("203.0.113.7:1", "Authorization", "Bearer abc")))
		check(t, "token again", tooMany("60", `"token"`, "RateLimit-Policy", both, "RateLimit", `"token";r=0;t=60`),
			serve(handler, request("203.0.113.7:1", "Authorization", "Bearer abc")))
		check(t, "no token again", served("RateLimit-Policy", `"ip";q=10;w=60`, "RateLimit", `"ip";r=6;t=60`),
			serve(handler, request("203.0.113.7:1")))
	})
}

// Fault 25: a request without a key is counted under its peer, or, if not even that has an address, under
// one key for all such. Neither is ever the key of a real client.
func TestRequestsWithoutKey(t *testing.T) {
	t.Parallel()
	counters := memoryStore(t)
	limiterBy := func(key ratelimit.KeyFunc) *ratelimit.Limiter {
		return newLimiter(t, counters, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: long(100), Key: key}}})
	}
	// All count under one name in one store: what keeps them apart is the key alone.
	for _, test := range []struct {
		name      string
		key       ratelimit.KeyFunc
		peer      string
		kind      string
		remaining int
	}{
		{"client", ratelimit.ClientIP, "203.0.113.7:1", "ip", 99},
		{"client's address, but no token", ratelimit.BearerToken, "203.0.113.7:2", "peer", 99},
		{"no API key, same peer", ratelimit.Header("X-API-Key"), "203.0.113.7:3", "peer", 98},
		{"key function that finds nothing, same peer", func(*http.Request) ratelimit.Key { return ratelimit.NewKey("account", "") }, "203.0.113.7:4", "peer", 97},
		{"other peer", ratelimit.BearerToken, "203.0.113.8:1", "peer", 99},
		{"empty peer", ratelimit.ClientIP, "", "none", 99},
		{"unix socket", ratelimit.ClientIP, "@", "none", 98},
		{"garbage", ratelimit.ClientIP, "garbage", "none", 97},
		{"unspecified", ratelimit.BearerToken, "0.0.0.0:1", "none", 96},
		{"constant like the stand-in", ratelimit.Constant("no address"), "", "constant", 99},
		{"key that is said to be a peer", func(*http.Request) ratelimit.Key { return ratelimit.NewKey("peer", "203.0.113.7") }, "203.0.113.7:1", "~", 99},
		{"client again", ratelimit.ClientIP, "203.0.113.7:5", "ip", 98},
	} {
		d := limiterBy(test.key).Check(request(test.peer))
		want := ratelimit.Decision{Outcome: ratelimit.Allowed, Results: []ratelimit.Result{{
			Policy: "default", Limit: long(100), Cost: 1, KeyKind: test.kind, Outcome: ratelimit.Allowed, Counted: true, Remaining: test.remaining,
		}}}
		got := &d.Results[0]
		got.Reset = 0
		if strings.HasPrefix(got.KeyKind, "~") {
			got.KeyKind = "~" // and a hash, which the tests of keys look at
		}
		if diff := cmp.Diff(want, d, equalDecisions); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// everyStore runs a test on each of the stores.
func everyStore(t *testing.T, test func(t *testing.T, s ratelimit.Store)) {
	t.Helper()
	t.Run("Memory", func(t *testing.T) {
		t.Parallel()
		test(t, memoryStore(t))
	})
	t.Run("Postgres", func(t *testing.T) {
		t.Parallel()
		test(t, postgresStore(t, testdb.Pool(t, testdb.New(t))))
	})
}

// G15: a caller that hammers the narrow limit takes nothing from others of the broad one.
func TestRefusalIsGivenBackToOtherPolicies(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, s ratelimit.Store) {
		handler := newLimiter(t, s, ratelimit.Config{Policies: []ratelimit.Policy{
			{Name: "user", Limit: long(5), Key: ratelimit.Header("X-User")},
			{Name: "site", Limit: long(10), Key: ratelimit.Constant("site")},
		}}).Handler(new(spy))
		for _, step := range []struct {
			user string
			n    int
			want map[int]int
		}{
			{"one", 10, map[int]int{200: 5, 429: 5}},
			{"two", 5, map[int]int{200: 5}},
			{"three", 2, map[int]int{429: 2}}, // the site has had exactly its 10
		} {
			if diff := cmp.Diff(step.want, statuses(handler, request("203.0.113.7:1", "X-User", step.user), step.n)); diff != "" {
				t.Errorf("user %s (-want +got):\n%s", step.user, diff)
			}
		}
		// What the site has refused was given back to the user in turn.
		own := newLimiter(t, s, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "user", Limit: long(5), Key: ratelimit.Header("X-User")}}})
		if d := own.Check(request("203.0.113.7:1", "X-User", "three")); d.Results[0].Remaining != 4 {
			t.Errorf("%d remain for user three, want 4", d.Results[0].Remaining)
		}
	})
}

// G15: a denial with a short wait and an allowance with a long one make a denial, in either order.
func TestDenialWins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:50")
		minute := ratelimit.Policy{Name: "minute", Limit: ratelimit.PerMinute(0)}
		day := ratelimit.Policy{Name: "day", Limit: ratelimit.PerDay(10)}
		for _, policies := range [][]ratelimit.Policy{{minute, day}, {day, minute}} {
			d := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: policies}).Check(request("203.0.113.7:1"))
			if d.Outcome != ratelimit.Refused || d.RetryAfter != 10*time.Second {
				t.Errorf("%s first: %s, retry after %v, want refused, 10s", policies[0].Name, d.Outcome, d.RetryAfter)
			}
		}
	})
}

// Fault 31: a name is a budget. Limiters that share it share the budget, and no two names do, however
// they and the keys may look when joined.
func TestNamesAreBudgets(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, s ratelimit.Store) {
		limiter := func(name string, limit ratelimit.Limit) *ratelimit.Limiter {
			return newLimiter(t, s, ratelimit.Config{Policies: []ratelimit.Policy{{Name: name, Limit: limit, Key: ratelimit.Header("X-Key")}}})
		}
		other := long(100)
		other.Window -= time.Millisecond
		for _, test := range []struct {
			limiter   *ratelimit.Limiter
			key       string
			remaining int
		}{
			{limiter("up", long(100)), "load:x", 99},
			{limiter("upl", long(100)), "oad:x", 99},
			{limiter("uplo", long(100)), "ad:x", 99},
			{limiter("upl", long(100)), "load:x", 99},
			{limiter("Up", long(100)), "load:x", 99},
			{limiter("up", long(100)), "load:X", 99},
			{limiter("up", other), "load:x", 99},
			{limiter("up", long(100)), "load:x", 98},
		} {
			d := test.limiter.Check(request("203.0.113.7:1", "X-Key", test.key))
			if got := d.Results[0]; got.Remaining != test.remaining {
				t.Errorf("%s with key %q: %d remain, want %d", got.Policy, test.key, got.Remaining, test.remaining)
			}
		}
	})
}

// G13: limiters of different windows on one store do not disturb each other.
func TestWindowsAreApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:00")
		counters := memoryStore(t)
		second := newLimiter(t, counters, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: ratelimit.PerSecond(2)}}}).Handler(new(spy))
		hour := newLimiter(t, counters, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: ratelimit.PerHour(8)}}}).Handler(new(spy))
		var got []int
		for range 10 {
			got = append(got, serve(second, request("203.0.113.7:1")).Status, serve(hour, request("203.0.113.7:1")).Status)
			time.Sleep(250 * time.Millisecond)
		}
		want := []int{
			200, 200, 200, 200, 429, 200, 429, 200, // in the first second
			200, 200, 200, 200, 429, 200, 429, 200, // in the next
			200, 429, 200, 429, // the hour has had its 8
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("statuses (-want +got):\n%s", diff)
		}
	})
}

// Fault 26: who invents a token for each request is still limited by address. Each token costs a row at most,
// which is deleted when its window is over.
func TestInventedTokens(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	counters := postgresStore(t, pool)
	handler := newLimiter(t, counters, ratelimit.Config{Policies: []ratelimit.Policy{
		{Name: "ip", Limit: long(5)},
		{Name: "token", Limit: long(5), Key: ratelimit.BearerToken, Optional: true},
	}}).Handler(new(spy))
	var mu sync.Mutex
	got := make(map[int]int)
	var wg sync.WaitGroup
	for worker := range 100 {
		wg.Go(func() {
			for i := range 20 {
				status := serve(handler, request("192.0.2.9:1", "Authorization", fmt.Sprintf("Bearer invented-%d-%d", worker, i))).Status
				mu.Lock()
				got[status]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff(map[int]int{200: 5, 429: 1995}, got); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
	if rows := len(counts(t, pool)); rows > 2001 {
		t.Errorf("there are %d rows, want at most one for each token and one for the address", rows)
	}
	if _, err := pool.Exec(t.Context(), `UPDATE rate_limits SET window_start = window_start - interval '2 years', expires_at = expires_at - interval '2 years'`); err != nil {
		t.Fatal(err)
	}
	if _, err := counters.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if rows := len(counts(t, pool)); rows != 0 {
		t.Errorf("%d rows are left when their windows are over", rows)
	}
}

// Fault 40: during a roll-out, limiters with the old and the new limit count in one store. Each applies its
// own limit to one count, and a window of another length is another count.
func TestLimitChanges(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, s ratelimit.Store) {
		limiter := func(limit ratelimit.Limit) *ratelimit.Limiter {
			return newLimiter(t, s, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: limit, Key: ratelimit.Header("X-Key")}}})
		}
		var last ratelimit.Decision
		use := func(l *ratelimit.Limiter, key string, n int) (admitted int) {
			for range n {
				if last = l.Check(request("203.0.113.7:1", "X-Key", key)); last.Outcome == ratelimit.Allowed {
					admitted++
				}
			}
			return admitted
		}

		if got := use(limiter(long(100)), "raised", 100); got != 100 {
			t.Errorf("%d admitted before the raise, want 100", got)
		}
		if got := use(limiter(long(150)), "raised", 1); got != 1 || last.Results[0].Remaining != 49 {
			t.Errorf("after the raise: %d admitted and %d remain, want 1 and 49", got, last.Results[0].Remaining)
		}

		if got := use(limiter(long(100)), "lowered", 60); got != 60 {
			t.Errorf("%d admitted before the lowering, want 60", got)
		}
		if got := use(limiter(long(40)), "lowered", 1); got != 0 || last.Results[0].Remaining != 0 {
			t.Errorf("after the lowering: %d admitted and %d remain, want none", got, last.Results[0].Remaining)
		}

		low, high := limiter(long(100)), limiter(long(150))
		admitted := 0
		for range 50 {
			admitted += use(low, "mixed", 1) + use(high, "mixed", 1)
		}
		if admitted != 100 {
			t.Errorf("%d admitted by both, want 100", admitted)
		}
		if got := use(high, "mixed", 60); got != 50 {
			t.Errorf("the higher limit admits %d more, want 50", got)
		}
		if got := use(low, "mixed", 1); got != 0 {
			t.Error("the lower limit admits a request when its 100 are gone")
		}

		shorter := long(10)
		shorter.Window /= 2
		if got := use(limiter(shorter), "mixed", 11); got != 10 {
			t.Errorf("another window admits %d, want 10", got)
		}
	})
}

// Handlers of one's own for refusals get what the built-in ones get: the fields that are set already and
// the decision. What they answer is theirs.
func TestOwnHandlers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:15")
		var log logbook
		own := func(s *spy) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				s.ServeHTTP(w, r)
				w.Header().Set("X-Own", "yes")
				w.WriteHeader(http.StatusTeapot)
				fmt.Fprint(w, "own")
			})
		}
		next, refusals, failures := new(spy), new(spy), new(spy)
		config := ratelimit.Config{
			Policies: []ratelimit.Policy{{Name: "default", Limit: ratelimit.PerMinute(0), OnFailure: ratelimit.FailClosed}},
			Refused:  own(refusals), Unavailable: own(failures), Logger: log.logger(),
		}
		want := reply{http.StatusTeapot, header("X-Own", "yes", "Retry-After", "45", "Cache-Control", "no-store",
			"RateLimit-Policy", `"default";q=0;w=60`, "RateLimit", `"default";r=0;t=45`, "Content-Type", "text/plain; charset=utf-8"), "own"}
		got := serve(newLimiter(t, memoryStore(t), config).Handler(next), request("203.0.113.7:1"))
		got.Header.Set("Content-Type", "text/plain; charset=utf-8") // net/http adds it
		check(t, "refused", want, got)
		if d := refusals.decision; d.Outcome != ratelimit.Refused || d.RetryAfter != 45*time.Second || len(d.Results) != 1 {
			t.Errorf("decision of Refused is %+v", d)
		}

		want.Header = header("X-Own", "yes", "Retry-After", "1", "Cache-Control", "no-store", "Content-Type", "text/plain; charset=utf-8")
		got = serve(newLimiter(t, failing(ratelimit.ErrNoTable), config).Handler(next), request("203.0.113.7:1"))
		got.Header.Set("Content-Type", "text/plain; charset=utf-8")
		check(t, "unavailable", want, got)
		wantDecision := ratelimit.Decision{Outcome: ratelimit.Unavailable, RetryAfter: time.Second, Err: ratelimit.ErrNoTable, Results: []ratelimit.Result{
			{Policy: "default", Limit: ratelimit.PerMinute(0), Cost: 1, KeyKind: "ip", Outcome: ratelimit.Unavailable},
		}}
		if diff := cmp.Diff(wantDecision, failures.decision, equalDecisions); diff != "" {
			t.Errorf("decision of Unavailable (-want +got):\n%s", diff)
		}
		if next.takeCalls() != 0 || refusals.takeCalls() != 1 || failures.takeCalls() != 1 {
			t.Error("want one call of Refused, one of Unavailable and none of next")
		}
	})
}
