package ratelimit_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
)

// What is no request is counted under the keys given, in the buckets that requests with these keys have.
func TestAllow(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, counters ratelimit.Store) {
		limiter := newLimiter(t, counters, ratelimit.Config{Policies: []ratelimit.Policy{
			{Name: "token", Limit: long(2), Key: ratelimit.BearerToken, Optional: true},
			{Name: "user", Limit: long(3), Key: ratelimit.Header("X-User")},
			{Name: "site", Limit: long(5), Key: ratelimit.Constant("site")},
		}})
		user, site, token := ratelimit.NewKey("header-x-user", "ada"), ratelimit.NewKey("constant", "site"), ratelimit.NewKey("bearer", "abc")
		limiter.Check(request("203.0.113.7:1", "X-User", "ada", "Authorization", "Bearer abc"))
		for _, test := range []struct {
			name string
			keys []ratelimit.Key
			want []string
		}{
			{"a key for each", []ratelimit.Key{token, user, site}, []string{"bearer allowed 0", "header-x-user allowed 1", "constant allowed 3"}},
			{"no token", []ratelimit.Key{{}, user, site}, []string{"header-x-user allowed 0", "constant allowed 2"}},
			{"over a limit", []ratelimit.Key{{}, user, site}, []string{"header-x-user refused 0", "constant allowed 2"}},
			{"the last for all that are left", []ratelimit.Key{{}, site}, []string{"constant allowed 2", "constant allowed 1"}},
			{"no key", []ratelimit.Key{{}, {}, site}, []string{"none allowed 2", "constant allowed 0"}},
		} {
			var got []string
			d := limiter.Allow(t.Context(), test.keys...)
			for _, r := range d.Results {
				if !r.Counted { // refused from memory by another
					r.Remaining = 2
				}
				got = append(got, r.KeyKind+" "+string(r.Outcome)+" "+string(rune('0'+r.Remaining)))
			}
			if d.Err != nil {
				t.Error(d.Err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.name, diff)
			}
		}
	})
}

// The functions of the configuration find in the context what the caller has put there.
func TestAllowHasAContext(t *testing.T) {
	t.Parallel()
	var seen decisions
	limiter := newLimiter(t, memoryStore(t), ratelimit.Config{
		Policies: []ratelimit.Policy{{
			Name: "call", Limit: long(1), LimitFor: limitOfPlan,
			Cost: func(r *http.Request) int { return len(r.URL.Path) + len(r.Header) + 2 },
		}},
		OnDecision: seen.observe,
		Skip:       func(*http.Request) bool { return true },
	})
	ctx := context.WithValue(t.Context(), planKey{}, "bulk")
	d := limiter.Allow(ctx, ratelimit.NewKey("account", "ada"))
	if diff := cmp.Diff(d, seen.one(t), equalDecisions); diff != "" {
		t.Errorf("what OnDecision was told (-want +got):\n%s", diff)
	}
	if r := d.Results[0]; r.Limit != ratelimit.PerHour(100) || r.Cost != 2 || r.Remaining != 98 {
		t.Errorf("result is %+v, want one of 100/1h that has 98 left", r)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if d := limiter.Allow(gone, ratelimit.NewKey("account", "ada")); d.Outcome != ratelimit.Canceled || !errors.Is(d.Err, context.Canceled) {
		t.Errorf("outcome is %s with error %v, want canceled", d.Outcome, d.Err)
	}
}

// Keys that are missing are one that all share, and those that no policy is left for are not used.
func TestAllowWithoutKeys(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "a", Limit: long(10)}}})
	for _, test := range []struct {
		keys []ratelimit.Key
		kind string
		left int
	}{
		{nil, "none", 9},
		{make([]ratelimit.Key, 2), "none", 8},
		{[]ratelimit.Key{ratelimit.NewKey("account", "ada"), ratelimit.NewKey("account", "bob")}, "account", 9},
	} {
		if r := limiter.Allow(t.Context(), test.keys...).Results[0]; r.KeyKind != test.kind || r.Remaining != test.left {
			t.Errorf("%d keys: kind %s, %d remain, want %s and %d", len(test.keys), r.KeyKind, r.Remaining, test.kind, test.left)
		}
	}
}
