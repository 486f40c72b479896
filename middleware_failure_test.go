package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// errDown is the error of a store that fails. Its text is nothing for clients.
var errDown = fmt.Errorf("%w: dial tcp 10.9.8.7:5432: connection refused", ratelimit.ErrUnavailable)

// A step is a request of a test, and what has to come of it.
type step struct {
	want    reply
	results []ratelimit.Result
}

// What each failure mode does while the store fails, alone and beside the others. Nothing of the
// error reaches the client.
func TestFailureModes(t *testing.T) {
	t.Parallel()
	policy := func(name string, n int, mode ratelimit.FailureMode) ratelimit.Policy {
		return ratelimit.Policy{Name: name, Limit: ratelimit.PerMinute(n), OnFailure: mode}
	}
	uncounted := func(name string, n int, outcome ratelimit.Outcome) ratelimit.Result {
		return ratelimit.Result{Policy: name, Limit: ratelimit.PerMinute(n), Cost: 1, KeyKind: "ip", Outcome: outcome}
	}
	local := func(name string, n int, outcome ratelimit.Outcome, remaining int) ratelimit.Result {
		return ratelimit.Result{Policy: name, Limit: ratelimit.PerMinute(n), Cost: 1, KeyKind: "ip", Outcome: outcome, Counted: true, Local: true, Remaining: remaining, Reset: 45 * time.Second}
	}
	openAllowed, closedUnavailable := uncounted("open", 1, ratelimit.Allowed), uncounted("closed", 1, ratelimit.Unavailable)
	const localPolicy = `"local";q=2;w=60`

	for _, test := range []struct {
		name     string
		policies []ratelimit.Policy
		steps    []step
	}{
		{"HD-35 open", []ratelimit.Policy{policy("open", 1, ratelimit.FailOpen)}, []step{
			{served(), []ratelimit.Result{openAllowed}},
			{served(), []ratelimit.Result{openAllowed}},
		}},
		{"closed", []ratelimit.Policy{policy("closed", 1, ratelimit.FailClosed)}, []step{
			{unavailable(), []ratelimit.Result{closedUnavailable}},
			{unavailable(), []ratelimit.Result{closedUnavailable}},
		}},
		{"local", []ratelimit.Policy{policy("local", 2, ratelimit.FailLocal)}, []step{
			{served("RateLimit-Policy", localPolicy, "RateLimit", `"local";r=1;t=45`), []ratelimit.Result{local("local", 2, ratelimit.Allowed, 1)}},
			{served("RateLimit-Policy", localPolicy, "RateLimit", `"local";r=0;t=45`), []ratelimit.Result{local("local", 2, ratelimit.Allowed, 0)}},
			{tooMany("45", `"local"`, "RateLimit-Policy", localPolicy, "RateLimit", `"local";r=0;t=45`), []ratelimit.Result{local("local", 2, ratelimit.Refused, 0)}},
		}},
		{"open and closed", []ratelimit.Policy{policy("open", 1, ratelimit.FailOpen), policy("closed", 1, ratelimit.FailClosed)}, []step{
			{unavailable(), []ratelimit.Result{openAllowed, closedUnavailable}},
		}},
		{"open and local", []ratelimit.Policy{policy("open", 1, ratelimit.FailOpen), policy("local", 1, ratelimit.FailLocal)}, []step{
			{served("RateLimit-Policy", `"local";q=1;w=60`, "RateLimit", `"local";r=0;t=45`), []ratelimit.Result{openAllowed, local("local", 1, ratelimit.Allowed, 0)}},
			{tooMany("45", `"local"`, "RateLimit-Policy", `"local";q=1;w=60`, "RateLimit", `"local";r=0;t=45`), []ratelimit.Result{openAllowed, local("local", 1, ratelimit.Refused, 0)}},
		}},
		{
			// What is not let through takes nothing from the local count either.
			"closed and local", []ratelimit.Policy{policy("closed", 1, ratelimit.FailClosed), policy("local", 1, ratelimit.FailLocal)}, []step{
				{unavailable(), []ratelimit.Result{closedUnavailable, local("local", 1, ratelimit.Allowed, 0)}},
				{unavailable(), []ratelimit.Result{closedUnavailable, local("local", 1, ratelimit.Allowed, 0)}},
			},
		},
		{
			"closed and a local that refuses", []ratelimit.Policy{policy("closed", 1, ratelimit.FailClosed), policy("local", 0, ratelimit.FailLocal)}, []step{
				{
					tooMany("45", `"local"`, "RateLimit-Policy", `"local";q=0;w=60`, "RateLimit", `"local";r=0;t=45`),
					[]ratelimit.Result{closedUnavailable, local("local", 0, ratelimit.Refused, 0)},
				},
			},
		},
		{
			"two locals", []ratelimit.Policy{policy("narrow", 1, ratelimit.FailLocal), policy("broad", 9, ratelimit.FailLocal)}, []step{
				{served("RateLimit-Policy", `"narrow";q=1;w=60, "broad";q=9;w=60`, "RateLimit", `"narrow";r=0;t=45`), []ratelimit.Result{local("narrow", 1, ratelimit.Allowed, 0), local("broad", 9, ratelimit.Allowed, 8)}},
				{tooMany("45", `"narrow"`, "RateLimit-Policy", `"narrow";q=1;w=60, "broad";q=9;w=60`, "RateLimit", `"narrow";r=0;t=45`), []ratelimit.Result{local("narrow", 1, ratelimit.Refused, 0), local("broad", 9, ratelimit.Allowed, 7)}},
				{tooMany("45", `"narrow"`, "RateLimit-Policy", `"narrow";q=1;w=60, "broad";q=9;w=60`, "RateLimit", `"narrow";r=0;t=45`), []ratelimit.Result{local("narrow", 1, ratelimit.Refused, 0), local("broad", 9, ratelimit.Allowed, 7)}},
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sleepUntil(t, "12:00:15")
				var log logbook
				var seen decisions
				next := new(spy)
				handler := newLimiter(t, failing(errDown), ratelimit.Config{Policies: test.policies, OnDecision: seen.observe, Logger: log.logger()}).Handler(next)
				for i, step := range test.steps {
					got := serve(handler, request("203.0.113.7:1"))
					check(t, fmt.Sprint("request ", i), step.want, got)
					want := ratelimit.Decision{Outcome: ratelimit.Allowed, Results: step.results, Err: ratelimit.ErrUnavailable}
					switch step.want.Status {
					case http.StatusTooManyRequests:
						want.Outcome, want.RetryAfter = ratelimit.Refused, 45*time.Second
					case http.StatusServiceUnavailable:
						want.Outcome, want.RetryAfter = ratelimit.Unavailable, time.Second
					}
					if diff := cmp.Diff([]ratelimit.Decision{want}, seen.take(), equalDecisions); diff != "" {
						t.Errorf("decision on request %d (-want +got):\n%s", i, diff)
					}
					if got, want := next.takeCalls() == 1, want.Outcome == ratelimit.Allowed; got != want {
						t.Errorf("request %d: next was called: %t, want %t", i, got, want)
					}
				}
				if got := len(log.records(t)); got != 1 {
					t.Errorf("%d records were logged, want 1:\n%s", got, log.String())
				}
			})
		})
	}
}

// FailLocal counts by itself as long as the store fails, no longer, and in each window anew.
func TestLocalCountEndsWithTheOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logbook
		var down atomic.Bool
		counters := memoryStore(t)
		handler := newLimiter(t, storeFunc{counters, func(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
			if down.Load() {
				return nil, errDown
			}
			return counters.Add(ctx, hits)
		}}, ratelimit.Config{
			Policies: []ratelimit.Policy{{Name: "default", Limit: ratelimit.PerMinute(10), OnFailure: ratelimit.FailLocal}}, Logger: log.logger(),
		}).Handler(new(spy))
		r := request("203.0.113.7:1")
		sleepUntil(t, "12:00:00")
		got := []map[int]int{statuses(handler, r, 6)}
		down.Store(true)
		got = append(got, statuses(handler, r, 15))
		down.Store(false)
		got = append(got, statuses(handler, r, 5)) // the store has counted 6
		down.Store(true)
		sleepUntil(t, "12:01:00")
		got = append(got, statuses(handler, r, 15))
		want := []map[int]int{{200: 6}, {200: 10, 429: 5}, {200: 4, 429: 1}, {200: 10, 429: 5}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("statuses (-want +got):\n%s", diff)
		}
	})
}

// unreachable returns the URL of a database on a port that nobody listens on.
func unreachable(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprintf("postgres://app:password-of-app@%s/db?sslmode=disable", l.Addr())
}

// What else can be wrong with a Postgres, beside the faults of TestFaults, can be told from Decision.Err too,
// and is no refusal: in open mode the request passes, in closed mode it does not, and the client is told
// nothing of it.
func TestPostgresErrors(t *testing.T) {
	t.Parallel()
	sentinels := []error{ratelimit.ErrUnavailable, ratelimit.ErrTimeout, ratelimit.ErrReadOnly, ratelimit.ErrNoTable, ratelimit.ErrInvalidHit}
	exec := func(t *testing.T, pool *pgxpool.Pool, sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name string
		pool func(t *testing.T) *pgxpool.Pool
		want error
	}{
		{"unreachable", func(t *testing.T) *pgxpool.Pool { return testdb.Pool(t, unreachable(t)) }, ratelimit.ErrUnavailable},
		{"closed pool", func(t *testing.T) *pgxpool.Pool {
			pool := testdb.Pool(t, unreachable(t))
			pool.Close()
			return pool
		}, ratelimit.ErrUnavailable},
		{"P7 locked table", func(t *testing.T) *pgxpool.Pool {
			pool := testdb.Pool(t, testdb.New(t))
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
			if _, err := tx.Exec(t.Context(), "LOCK TABLE rate_limits"); err != nil {
				t.Fatal(err)
			}
			return pool
		}, ratelimit.ErrTimeout},
		{"P11 rows that a trigger keeps away", func(t *testing.T) *pgxpool.Pool {
			pool := testdb.Pool(t, testdb.New(t))
			exec(t, pool, `CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
			exec(t, pool, `CREATE TRIGGER nothing BEFORE INSERT ON rate_limits FOR EACH ROW EXECUTE FUNCTION nothing()`)
			return pool
		}, ratelimit.ErrUnavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			counters := postgresStore(t, test.pool(t), func(c *store.PostgresConfig) {
				if errors.Is(test.want, ratelimit.ErrTimeout) {
					c.Timeout = 50 * time.Millisecond
				}
			})
			for mode, want := range map[ratelimit.FailureMode]reply{ratelimit.FailOpen: served(), ratelimit.FailClosed: unavailable()} {
				var log logbook
				var seen decisions
				handler := newLimiter(t, counters, ratelimit.Config{
					Policies: []ratelimit.Policy{{Name: "default", Limit: long(0), OnFailure: mode}}, OnDecision: seen.observe, Logger: log.logger(),
				}).Handler(new(spy))
				check(t, mode.String(), want, serve(handler, request("203.0.113.7:1")))
				err := seen.one(t).Err
				var is []error
				for _, sentinel := range sentinels {
					if errors.Is(err, sentinel) {
						is = append(is, sentinel)
					}
				}
				if !slices.Equal(is, []error{test.want}) {
					t.Errorf("%s: error is %v: %v, want %v alone", mode, is, err, test.want)
				}
				if records := log.records(t); len(records) != 1 || records[0]["level"] != "ERROR" || records[0]["error"] != err.Error() {
					t.Errorf("%s: log is\n%s, want the error", mode, log.String())
				}
				if strings.Contains(log.String(), "password-of-app") {
					t.Errorf("the log holds the database's password:\n%s", log.String())
				}
			}
		})
	}
}

// What a Store of somebody else's may do wrong is a failure of the store, never a panic or a refusal.
func TestStoreErrors(t *testing.T) {
	t.Parallel()
	one := []ratelimit.Count{{Total: 1, Left: time.Second}}
	for _, test := range []struct {
		name   string
		counts []ratelimit.Count
		err    error
		want   error
	}{
		{"no counts", nil, nil, ratelimit.ErrUnavailable},
		{"less than the hit", []ratelimit.Count{{Total: 0, Left: time.Second}}, nil, ratelimit.ErrUnavailable},
		{"too many counts", slices.Concat(one, one), nil, ratelimit.ErrUnavailable},
		{"counts beside an error", one, errDown, ratelimit.ErrUnavailable},
		{"invalid hit", nil, fmt.Errorf("%w: why", ratelimit.ErrInvalidHit), ratelimit.ErrInvalidHit},
		{"error of its own", nil, errors.ErrUnsupported, errors.ErrUnsupported},
		{"deadline of its own", nil, context.DeadlineExceeded, ratelimit.ErrTimeout},
		{"cancellation of its own", nil, context.Canceled, context.Canceled},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var log logbook
			limiter := newLimiter(t, storeFunc{add: func(context.Context, []ratelimit.Hit) ([]ratelimit.Count, error) {
				return test.counts, test.err
			}}, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: long(9), OnFailure: ratelimit.FailClosed}}, Logger: log.logger()})
			want := ratelimit.Decision{Outcome: ratelimit.Unavailable, RetryAfter: time.Second, Err: test.want, Results: []ratelimit.Result{
				{Policy: "default", Limit: long(9), Cost: 1, KeyKind: "ip", Outcome: ratelimit.Unavailable},
			}}
			if diff := cmp.Diff(want, limiter.Check(request("203.0.113.7:1")), equalDecisions); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
			if len(log.records(t)) != 1 {
				t.Errorf("log is\n%s, want the error", log.String())
			}
		})
	}
}

// slow returns a store that answers after d, or gives up with the context. What it was asked to count
// it counts all the same, at once.
func slow(t testing.TB, d time.Duration) ratelimit.Store {
	counters := memoryStore(t)
	return storeFunc{counters, func(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
		counts, err := counters.Add(ctx, hits)
		select {
		case <-time.After(d):
			return counts, err
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting: %w", ctx.Err())
		}
	}}
}

// Fault 44: a decision comes within the deadline, whatever the store does.
func TestDeadline(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		deadline time.Duration // of the configuration
		store    time.Duration // how long it takes
		elapsed  time.Duration
		err      error
	}{
		{"default, just in time", 0, 250*time.Millisecond - 1, 250*time.Millisecond - 1, nil},
		{"default, late", 0, 800 * time.Millisecond, 250 * time.Millisecond, ratelimit.ErrTimeout},
		{"in time", 100 * time.Millisecond, 99 * time.Millisecond, 99 * time.Millisecond, nil},
		{"late", 100 * time.Millisecond, 800 * time.Millisecond, 100 * time.Millisecond, ratelimit.ErrTimeout},
		{"never", time.Second, time.Hour, time.Second, ratelimit.ErrTimeout},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log logbook
				limiter, err := ratelimit.New(slow(t, test.store), ratelimit.Config{
					Policies: []ratelimit.Policy{{Name: "default", Limit: long(100)}}, Deadline: test.deadline, Logger: log.logger(),
				})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				d := limiter.Check(request("203.0.113.7:1"))
				if got := time.Since(began); got != test.elapsed || d.Elapsed != test.elapsed {
					t.Errorf("it took %v and Elapsed is %v, want %v", got, d.Elapsed, test.elapsed)
				}
				if d.Outcome != ratelimit.Allowed || !errors.Is(d.Err, test.err) || (d.Err == nil) != (test.err == nil) {
					t.Errorf("outcome is %s, error %v, want allowed and %v", d.Outcome, d.Err, test.err)
				}
				if text := log.String(); (test.err == nil) != (text == "") || test.err != nil && !strings.Contains(text, fmt.Sprintf("no count within %v", test.elapsed)) {
					t.Errorf("log is\n%s, want nothing but the deadline in it", text)
				}
			})
		})
	}
}

// lockRows locks all rows of the table until the function that it returns is called.
func lockRows(t testing.TB, url string) (unlock func()) {
	t.Helper()
	tx, err := testdb.Pool(t, url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unlock = sync.OnceFunc(func() {
		if err := tx.Rollback(context.Background()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(unlock)
	if _, err := tx.Exec(t.Context(), "SELECT FROM rate_limits FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	return unlock
}

// A hit that comes too late for its decision is counted all the same.
func TestLateHitIsCounted(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	counters := postgresStore(t, testdb.Pool(t, url))
	config := ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: long(10)}}}
	patient := newLimiter(t, counters, config)
	var log logbook
	config.Deadline, config.Logger = time.Millisecond, log.logger()
	hasty := newLimiter(t, counters, config)
	patient.Check(request("203.0.113.7:1"))
	unlock := lockRows(t, url)
	if d := hasty.Check(request("203.0.113.7:1")); d.Outcome != ratelimit.Allowed || !errors.Is(d.Err, ratelimit.ErrTimeout) {
		t.Errorf("behind the lock: %s, %v, want to be let through by a timeout", d.Outcome, d.Err)
	}
	unlock()
	if d := patient.Check(request("203.0.113.7:1")); d.Results[0].Remaining != 7 {
		t.Errorf("%d remain, want 7 of 10", d.Results[0].Remaining)
	}
}

// Faults 49 and G9: a client that leaves, at whatever moment, is counted and not served. It is no error of
// anybody's, and costs it the request.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		limit int
		// store makes the store of it, and may have it cancel the request.
		store   func(t *testing.T, cancel context.CancelFunc) ratelimit.Store
		counted bool // whether the count is known when the client is gone
	}{
		{"before", 9, func(t *testing.T, cancel context.CancelFunc) ratelimit.Store {
			cancel()
			return memoryStore(t)
		}, true},
		{"during", 9, func(t *testing.T, cancel context.CancelFunc) ratelimit.Store {
			time.AfterFunc(50*time.Millisecond, cancel)
			return slow(t, 100*time.Millisecond)
		}, true},
		{"at once while the store is slow", 9, func(t *testing.T, cancel context.CancelFunc) ratelimit.Store {
			cancel()
			return slow(t, 100*time.Millisecond)
		}, true},
		{"after", 9, func(t *testing.T, cancel context.CancelFunc) ratelimit.Store {
			counters := memoryStore(t)
			return storeFunc{counters, func(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
				defer cancel()
				return counters.Add(ctx, hits)
			}}
		}, true},
		{"after, over the limit", 0, func(t *testing.T, cancel context.CancelFunc) ratelimit.Store {
			cancel()
			return memoryStore(t)
		}, true},
		{"when the store fails", 9, func(t *testing.T, cancel context.CancelFunc) ratelimit.Store {
			counters := memoryStore(t)
			first := true
			return storeFunc{counters, func(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
				counts, err := counters.Add(ctx, hits)
				if first {
					first = false
					cancel()
					return nil, errDown
				}
				return counts, err
			}}
		}, false},
	} {
		for _, mode := range []ratelimit.FailureMode{ratelimit.FailOpen, ratelimit.FailClosed, ratelimit.FailLocal} {
			t.Run(test.name+"/"+mode.String(), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					sleepUntil(t, "12:00:00")
					limit := ratelimit.PerMinute(test.limit)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					var seen decisions
					next := new(spy)
					limiter := newLimiter(t, test.store(t, cancel), ratelimit.Config{ // which fails the test if it logs
						Policies: []ratelimit.Policy{{Name: "default", Limit: limit, OnFailure: mode}}, OnDecision: seen.observe,
					})
					check(t, "reply to nobody", reply{499, header(), ""}, serve(limiter.Handler(next), request("203.0.113.7:1").WithContext(ctx)))
					if next.takeCalls() != 0 {
						t.Error("next was called")
					}
					want := ratelimit.Decision{Outcome: ratelimit.Canceled, Err: context.Canceled, Results: []ratelimit.Result{
						{Policy: "default", Limit: limit, Cost: 1, KeyKind: "ip", Outcome: ratelimit.Canceled},
					}}
					if test.counted {
						r := &want.Results[0]
						r.Counted, r.Remaining, r.Reset, r.Outcome = true, max(0, test.limit-1), time.Minute, ratelimit.Allowed
						if test.limit == 0 {
							r.Outcome = ratelimit.Refused
						}
					}
					if diff := cmp.Diff([]ratelimit.Decision{want}, seen.take(), equalDecisions); diff != "" {
						t.Errorf("decision (-want +got):\n%s", diff)
					}
					if d := limiter.Check(request("203.0.113.7:1")); d.Results[0].Remaining != max(0, test.limit-2) {
						t.Errorf("%d remain after the next request, want the first to be counted", d.Results[0].Remaining)
					}
				})
			})
		}
	}
}

// A request that runs out of its own time, which is shorter than the limiter's, was not left by its client:
// it gets a 503, counts, and is nothing to log. Whoever sets that time is to know of it.
func TestRequestDeadline(t *testing.T) {
	t.Parallel()
	for name, delay := range map[string]time.Duration{"during": time.Second, "before": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sleepUntil(t, "12:00:00")
				ctx, cancel := context.WithTimeout(t.Context(), delay/2)
				defer cancel()
				var seen decisions
				next := new(spy)
				limiter := newLimiter(t, slow(t, delay), ratelimit.Config{
					Policies: []ratelimit.Policy{{Name: "default", Limit: ratelimit.PerMinute(9)}}, OnDecision: seen.observe,
				})
				check(t, "reply", unavailable(), serve(limiter.Handler(next), request("203.0.113.7:1").WithContext(ctx)))
				d := seen.one(t)
				if d.Outcome != ratelimit.Unavailable || d.RetryAfter != time.Second || !errors.Is(d.Err, context.DeadlineExceeded) || d.Elapsed != delay/2 {
					t.Errorf("decision is %+v, want unavailable for the request's own deadline", d)
				}
				if next.takeCalls() != 0 {
					t.Error("next was called")
				}
				if d := limiter.Check(request("203.0.113.7:1")); d.Results[0].Remaining != 7 {
					t.Errorf("%d remain after the next request, want 7", d.Results[0].Remaining)
				}
			})
		})
	}
}

// GO-16 and G9 with real parts: a client that hangs up while Postgres counts its request, which a lock
// holds up. Nothing is logged and no 5xx is answered; the hit is counted.
func TestClientHangsUp(t *testing.T) {
	t.Parallel()
	protocols(t, func(t *testing.T, start func(http.Handler) *httptest.Server) {
		url := testdb.New(t)
		sent := make(chan struct{}, 8)
		pool := testdb.Pool(t, url, func(c *pgxpool.Config) { c.ConnConfig.Tracer = signal(sent) })
		var seen decisions
		next := new(spy)
		limited := newLimiter(t, postgresStore(t, pool), ratelimit.Config{ // which fails the test if it logs
			Policies: []ratelimit.Policy{{Name: "default", Limit: long(9), OnFailure: ratelimit.FailClosed}}, OnDecision: seen.observe,
		}).Handler(next)
		answered := make(chan int, 8)
		arrived := make(chan context.Context, 8)
		server := start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			arrived <- r.Context()
			status := &statusWriter{ResponseWriter: w, status: http.StatusOK}
			limited.ServeHTTP(status, r)
			answered <- status.status
		}))
		if got := get(t, server).Status; got != http.StatusOK {
			t.Fatalf("first request: %d, want 200", got)
		}
		<-sent
		<-answered
		<-arrived
		unlock := lockRows(t, url)
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			response, err := server.Client().Do(newGet(t, server.URL).WithContext(ctx))
			if err == nil {
				response.Body.Close()
			}
			failed <- err
		}()
		<-sent
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("the client got %v, want its own cancellation", err)
		}
		<-(<-arrived).Done() // the server has noticed
		unlock()
		if got := <-answered; got != 499 {
			t.Errorf("status is %d, want 499", got)
		}
		if got := get(t, server).Status; got != http.StatusOK {
			t.Errorf("third request: %d, want 200", got)
		}
		if got := next.takeCalls(); got != 2 {
			t.Errorf("next was called %d times, want 2", got)
		}
		if d := next.decision; len(d.Results) != 1 || d.Results[0].Remaining != 6 {
			t.Errorf("decision is %+v, want 6 of 9 to remain", d)
		}
		if diff := cmp.Diff(map[ratelimit.Outcome]int{ratelimit.Allowed: 2, ratelimit.Canceled: 1}, seen.outcomes()); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
	})
}

// A signal is a pgx tracer that tells that a statement is about to be sent.
type signal chan<- struct{}

func (s signal) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s <- struct{}{}
	return ctx
}

func (s signal) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A statusWriter is what a middleware for access logs puts around a ResponseWriter.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Errors come with every request and go to the log about once a second, with the number of those left out.
func TestLogOncePerSecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logbook
		limiter := newLimiter(t, failing(errDown), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: long(1)}}, Logger: log.logger()})
		for range 3 { // at 0 s, 0.5 s and 1 s
			for range 5 {
				limiter.Check(request("203.0.113.7:1"))
			}
			time.Sleep(500 * time.Millisecond)
		}
		time.Sleep(time.Hour)
		limiter.Check(request("203.0.113.7:1"))
		var want []map[string]any
		for _, leftOut := range []float64{0, 9, 4} {
			want = append(want, map[string]any{
				"level": "ERROR", "msg": "ratelimit: could not count a request", "outcome": "allowed", "error": errDown.Error(), "left_out": leftOut,
			})
		}
		got := log.records(t)
		for _, record := range got {
			delete(record, "time")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
	})
}
