package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
)

// An operator looks at a caller without spending anything of its limits, and has it start anew.
func TestPeekAndReset(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, counters ratelimit.Store) {
		limiter := newLimiter(t, counters, ratelimit.Config{Policies: []ratelimit.Policy{
			{Name: "token", Limit: long(9), Key: ratelimit.BearerToken, Optional: true},
			{Name: "user", Limit: long(2), Key: ratelimit.Header("X-User")},
			{Name: "site", Limit: long(100), Key: ratelimit.Constant("site")},
		}})
		none, user, site := ratelimit.Key{}, ratelimit.NewKey("header-x-user", "ada"), ratelimit.NewKey("constant", "site")
		peek := func(want ...ratelimit.Result) {
			t.Helper()
			for range 2 {
				got, err := limiter.Peek(t.Context(), none, user, site)
				if err != nil {
					t.Fatal(err)
				}
				for i := range got {
					if got[i].Reset < 0 || got[i].Reset > ratelimit.MaxWindow {
						t.Errorf("%s ends in %v", got[i].Policy, got[i].Reset)
					}
					got[i].Reset = 0
				}
				if diff := cmp.Diff(want, got, equalDecisions); diff != "" {
					t.Errorf("results (-want +got):\n%s", diff)
				}
			}
		}
		result := func(policy, kind string, limit, remaining int, outcome ratelimit.Outcome) ratelimit.Result {
			return ratelimit.Result{Policy: policy, Limit: long(limit), Cost: 1, KeyKind: kind, Outcome: outcome, Counted: true, Remaining: remaining}
		}
		ask := func(want ratelimit.Outcome) {
			t.Helper()
			if d := limiter.Check(request("203.0.113.7:1", "X-User", "ada")); d.Outcome != want || d.Err != nil {
				t.Errorf("outcome is %s, %v, want %s", d.Outcome, d.Err, want)
			}
		}
		peek(result("user", "header-x-user", 2, 2, "allowed"), result("site", "constant", 100, 100, "allowed"))
		ask(ratelimit.Allowed)
		peek(result("user", "header-x-user", 2, 1, "allowed"), result("site", "constant", 100, 99, "allowed"))
		ask(ratelimit.Allowed)
		ask(ratelimit.Refused)
		peek(result("user", "header-x-user", 2, 0, "refused"), result("site", "constant", 100, 98, "allowed"))
		if err := limiter.Reset(t.Context(), none, user); err != nil { // the user's key is site's, too, which has none so
			t.Fatal(err)
		}
		peek(result("user", "header-x-user", 2, 2, "allowed"), result("site", "constant", 100, 98, "allowed"))
		ask(ratelimit.Allowed)
		peek(result("user", "header-x-user", 2, 1, "allowed"), result("site", "constant", 100, 97, "allowed"))
	})
}

// Another process goes on with what it remembers, for five seconds at most.
func TestResetInAnotherProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:00")
		counters := memoryStore(t)
		config := ratelimit.Config{Policies: []ratelimit.Policy{{Name: "call", Limit: ratelimit.PerHour(1)}}}
		one, other := newLimiter(t, counters, config), newLimiter(t, counters, config)
		r := request("203.0.113.7:1")
		one.Check(r)
		other.Check(r)
		if err := one.Reset(t.Context(), ratelimit.ClientIP(r)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5*time.Second - 1)
		if d := other.Check(r); d.Outcome != ratelimit.Refused || !d.Results[0].Remembered {
			t.Errorf("before five seconds the other decides %+v, want a refusal from memory", d)
		}
		time.Sleep(time.Nanosecond)
		if d := other.Check(r); d.Outcome != ratelimit.Allowed {
			t.Errorf("after five seconds the other decides %+v, want it allowed", d)
		}
	})
}

// What a process has counted by itself while its store was away is forgotten, too.
func TestResetOfLocalCounts(t *testing.T) {
	t.Parallel()
	counters := memoryStore(t)
	limiter := newLimiter(t, storeFunc{counters, func(context.Context, []ratelimit.Hit) ([]ratelimit.Count, error) {
		return nil, ratelimit.ErrUnavailable
	}}, ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "call", Limit: long(1), OnFailure: ratelimit.FailLocal}},
		Logger:   new(logbook).logger(),
	})
	r := request("203.0.113.7:1")
	limiter.Check(r)
	if err := limiter.Reset(t.Context(), ratelimit.ClientIP(r)); err != nil {
		t.Fatal(err)
	}
	if d := limiter.Check(r); d.Outcome != ratelimit.Allowed {
		t.Errorf("outcome is %s, want allowed", d.Outcome)
	}
}

// An operateStore is a store whose Get and Reset do what a function does.
type operateStore struct {
	ratelimit.Store
	do func(context.Context) error
}

func (s operateStore) Get(ctx context.Context, _ []ratelimit.Hit) ([]ratelimit.Count, error) {
	return nil, s.do(ctx)
}

func (s operateStore) Reset(ctx context.Context, _ []string) error { return s.do(ctx) }

// A store that fails is an error that can be told apart, within the deadline. Callers without a limit need no store.
func TestPeekAndResetFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, test := range map[string]struct {
			do   func(context.Context) error
			want error
		}{
			"unavailable": {func(context.Context) error { return errDown }, errDown},
			"hangs": {func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			}, ratelimit.ErrTimeout},
		} {
			limiter := newLimiter(t, operateStore{memoryStore(t), test.do}, ratelimit.Config{
				Policies: []ratelimit.Policy{{Name: "call", Limit: long(1), LimitFor: limitOfPlan}},
				Deadline: time.Second,
			})
			began := time.Now()
			results, err := limiter.Peek(t.Context(), ratelimit.NewKey("account", "ada"))
			if !errors.Is(err, test.want) || results != nil {
				t.Errorf("%s: Peek returned %v and error %v, want %v", name, results, err, test.want)
			}
			if err := limiter.Reset(t.Context(), ratelimit.NewKey("account", "ada")); !errors.Is(err, test.want) {
				t.Errorf("%s: Reset returned error %v, want %v", name, err, test.want)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("%s: both took %v, want a second each at most", name, took)
			}
			internal := context.WithValue(t.Context(), planKey{}, "internal")
			if results, err := limiter.Peek(internal); len(results) != 0 || err != nil {
				t.Errorf("%s: Peek returned %v and error %v of a caller without a limit", name, results, err)
			}
			if err := limiter.Reset(internal); err != nil {
				t.Errorf("%s: Reset returned error %v for a caller without a limit", name, err)
			}
		}
	})
}
