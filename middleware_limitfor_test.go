package ratelimit_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
)

type planKey struct{}

// planned returns a request whose context says on which plan its caller is.
func planned(plan string) *http.Request {
	r := request("203.0.113.7:1")
	return r.WithContext(context.WithValue(r.Context(), planKey{}, plan))
}

func limitOfPlan(r *http.Request) ratelimit.Limit {
	plan, _ := r.Context().Value(planKey{}).(string)
	return map[string]ratelimit.Limit{
		"pro":      ratelimit.PerMinute(5),
		"bulk":     ratelimit.PerHour(100),
		"internal": ratelimit.Unlimited(),
		"blocked":  ratelimit.PerMinute(0),
		"broken":   {Requests: 5},
	}[plan]
}

// Each request has the limit of its plan. Those of one window share a count, so that whoever changes the plan has
// what the new one leaves (fault 40).
func TestLimitFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:00")
		next := new(spy)
		var log logbook
		handler := newLimiter(t, memoryStore(t), ratelimit.Config{
			Policies: []ratelimit.Policy{{Name: "call", Limit: ratelimit.PerMinute(2), LimitFor: limitOfPlan}},
			Logger:   log.logger(),
		}).Handler(next)
		fields := func(policy, left string) []string {
			return []string{"RateLimit-Policy", `"call";` + policy, "RateLimit", `"call";` + left}
		}
		const free, pro, bulk = "q=2;w=60", "q=5;w=60", "q=100;w=3600"
		for _, step := range []struct {
			plan string
			want reply
		}{
			{"", served(fields(free, "r=1;t=60")...)},
			{"internal", served()},
			{"", served(fields(free, "r=0;t=60")...)},
			{"", tooMany("60", `"call"`, fields(free, "r=0;t=60")...)},
			{"pro", served(fields(pro, "r=2;t=60")...)}, // 2 were counted, and one refused from memory
			{"pro", served(fields(pro, "r=1;t=60")...)},
			{"pro", served(fields(pro, "r=0;t=60")...)},
			{"pro", tooMany("60", `"call"`, fields(pro, "r=0;t=60")...)},
			{"bulk", served(fields(bulk, "r=99;t=3600")...)},
			{"internal", served()},
			{"blocked", tooMany("60", `"call"`, fields("q=0;w=60", "r=0;t=60")...)},
			{"broken", tooMany("60", `"call"`, fields(free, "r=0;t=60")...)},
		} {
			check(t, "plan "+step.plan, step.want, serve(handler, planned(step.plan)))
		}
		if !next.decided || next.decision.Outcome != ratelimit.Allowed || len(next.decision.Results) != 0 {
			t.Errorf("decision for internal is %+v, want allowed without results", next.decision)
		}
		records := log.records(t)
		if len(records) != 1 || !strings.Contains(log.String(), "Window is 0s, want 1s to 366 days") {
			t.Errorf("log is\n%s, want what is wrong with the plan that is not valid", log.String())
		}
	})
}

// A policy that is unlimited says so in the configuration, and leaves the others alone.
func TestUnlimitedPolicy(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{
		{Name: "off", Limit: ratelimit.Unlimited()},
		{Name: "on", Limit: long(1)},
	}})
	var got []string
	for range 2 {
		d := limiter.Check(request("203.0.113.7:1"))
		for _, r := range d.Results {
			got = append(got, r.Policy+" "+string(d.Outcome))
		}
	}
	if diff := cmp.Diff([]string{"on allowed", "on refused"}, got); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	for _, limit := range []ratelimit.Limit{{Requests: -1, Window: time.Minute}, {Requests: -2}} {
		if _, err := ratelimit.New(memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "a", Limit: limit}}}); err == nil {
			t.Errorf("%v is taken for a limit", limit)
		}
	}
}
