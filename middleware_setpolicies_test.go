package ratelimit_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
)

// Policies that change leave the counts as they are, and what was remembered of refusals is a count: it refuses
// nobody under a limit that was raised.
func TestSetPolicies(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, counters ratelimit.Store) {
		limiter := newLimiter(t, counters, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "call", Limit: long(2)}}})
		handler := limiter.Handler(new(spy)) // made once, like a server's
		set := func(policies ...ratelimit.Policy) {
			if err := limiter.SetPolicies(policies); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		ask := func(n int) {
			for range n {
				reply := serve(handler, request("203.0.113.7:1"))
				fields, _, _ := strings.Cut(reply.Header.Get("RateLimit"), ";t=")
				got = append(got, fmt.Sprint(reply.Status, " ", fields))
			}
		}
		ask(4) // the last two are refused from memory
		set(ratelimit.Policy{Name: "call", Limit: long(3)})
		ask(2)
		set(ratelimit.Policy{Name: "call", Limit: long(1)})
		ask(1)
		set(ratelimit.Policy{Name: "other", Limit: long(1)}, ratelimit.Policy{Name: "call", Limit: long(100)})
		ask(1)
		var names []string
		for _, p := range limiter.Policies() {
			names = append(names, fmt.Sprint(p.Name, " ", p.Limit, " ", p.Key(request("203.0.113.7:1")).Kind()))
		}
		if want := []string{"other 1/8784h ip", "call 100/8784h ip"}; !slices.Equal(names, want) {
			t.Errorf("Policies() = %q, want %q", names, want)
		}
		want := []string{
			`200 "call";r=1`, `200 "call";r=0`, `429 "call";r=0`, `429 "call";r=0`,
			`200 "call";r=0`, `429 "call";r=0`,
			`429 "call";r=0`,
			`200 "other";r=0`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("replies (-want +got):\n%s", diff)
		}
	})
}

// Policies that are not valid are refused with all their mistakes, and the old ones stay.
func TestSetPoliciesThatAreNotValid(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "call", Limit: long(2)}}})
	err := limiter.SetPolicies([]ratelimit.Policy{{Name: "a b", Limit: long(1)}, {Name: "c"}})
	want := []string{
		`ratelimit: SetPolicies: policies[0].Name is "a b", want 1 to 64 ASCII letters, digits, '.', '_' and '-'`,
		"ratelimit: SetPolicies: policies[1].Limit.Window is 0s, want 1s to 366 days",
	}
	if diff := cmp.Diff(want, strings.Split(fmt.Sprint(err), "\n")); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	if err := limiter.SetPolicies(nil); fmt.Sprint(err) != "ratelimit: SetPolicies: policies is empty, want at least one" {
		t.Errorf("error without policies is %v", err)
	}
	if d := limiter.Check(request("203.0.113.7:1")); len(d.Results) != 1 || d.Results[0].Policy != "call" {
		t.Errorf("decision is %+v, want that of the old policy", d)
	}
}

// While policies change, each request is decided by the old ones or the new ones alone. The slice may be changed
// afterwards.
func TestSetPoliciesUnderLoad(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "a", Limit: long(1e6)}}})
	sets := [][]ratelimit.Policy{
		{{Name: "a", Limit: long(1e6)}},
		{{Name: "b", Limit: long(1e6), OnFailure: ratelimit.FailLocal}, {Name: "c", Limit: long(1e6)}},
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				var names []string
				for _, r := range limiter.Check(request("203.0.113.7:1")).Results {
					names = append(names, r.Policy)
				}
				if got := strings.Join(names, " "); got != "a" && got != "b c" {
					t.Errorf("policies are %q, want those of one configuration", got)
				}
			}
		})
	}
	for i := range 500 {
		policies := slices.Clone(sets[i%2])
		if err := limiter.SetPolicies(policies); err != nil {
			t.Error(err)
		}
		policies[0].Name = "changed"
	}
	wg.Wait()
}
