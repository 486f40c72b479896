package ratelimit_test

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"pgregory.net/rapid"

	"github.com/krow/ratelimit"
)

// A caller is who sends a request, the address under which its peer is to be counted, and what it asks for.
type caller struct {
	peer, token string
	addr        string
	cost        int
	plan        string
}

// callers are few, so that they meet in buckets, and some are one and the same to a policy.
var callers = []caller{
	{"203.0.113.7:1", "", "203.0.113.7", 1, ""},
	{"203.0.113.7:2", "a", "203.0.113.7", 3, "same window"},
	{"[::ffff:203.0.113.7]:3", "b", "203.0.113.7", 1, "other window"},
	{"[2001:db8::1]:1", "a", "2001:db8::/64", 2, "unlimited"},
	{"[2001:db8::2]:1", "", "2001:db8::/64", 1, "same window"},
	{"@", "b", "", 4, ""},
	{"@", "", "", 1, "not valid"},
}

func (c caller) request() *http.Request {
	r := request(c.peer, "X-Cost", strconv.Itoa(c.cost), "X-Plan", c.plan)
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	return r
}

func costOf(r *http.Request) int {
	n, _ := strconv.Atoi(r.Header.Get("X-Cost"))
	return n
}

// A rule is a policy and whose requests it is to count together: a kind and a subject, or no subject.
type rule struct {
	ratelimit.Policy
	who   func(caller) (kind, subject string)
	plans map[string]ratelimit.Limit
}

// limit returns the limit of a caller.
func (r rule) limit(c caller) ratelimit.Limit {
	if limit, ok := r.plans[c.plan]; ok && c.plan != "not valid" {
		return limit
	}
	return r.Limit
}

// drawRules returns a valid configuration.
func drawRules(t *rapid.T, windows []time.Duration) []rule {
	keys := map[string]rule{
		"ip":    {Policy: ratelimit.Policy{Key: ratelimit.ClientIP}, who: func(c caller) (string, string) { return "ip", c.addr }},
		"token": {Policy: ratelimit.Policy{Key: ratelimit.BearerToken}, who: func(c caller) (string, string) { return "bearer", c.token }},
		"site":  {Policy: ratelimit.Policy{Key: ratelimit.Constant("site")}, who: func(caller) (string, string) { return "constant", "site" }},
	}
	rules := make([]rule, rapid.IntRange(1, 3).Draw(t, "policies"))
	for i := range rules {
		key := rapid.SampledFrom([]string{"ip", "token", "site"}).Draw(t, "key")
		r := keys[key]
		r.Name = fmt.Sprintf("%s-%d", key, i)
		r.Limit.Window = rapid.SampledFrom(windows).Draw(t, "window")
		r.Limit.Requests = rapid.IntRange(0, 8).Draw(t, "limit")
		r.Optional = i > 0 && rapid.Bool().Draw(t, "optional")
		r.OnFailure = rapid.SampledFrom([]ratelimit.FailureMode{ratelimit.FailOpen, ratelimit.FailClosed, ratelimit.FailLocal}).Draw(t, "on failure")
		if rapid.IntRange(0, 2).Draw(t, "cost") == 0 {
			r.Cost = costOf
		}
		if rapid.IntRange(0, 2).Draw(t, "plans") == 0 {
			r.plans = map[string]ratelimit.Limit{
				"same window":  {Requests: rapid.IntRange(0, 8).Draw(t, "plan's limit"), Window: r.Limit.Window},
				"other window": {Requests: rapid.IntRange(0, 8).Draw(t, "plan's limit"), Window: rapid.SampledFrom(windows).Draw(t, "plan's window")},
				"unlimited":    ratelimit.Unlimited(),
				"not valid":    {Requests: -2},
			}
			r.LimitFor = func(req *http.Request) ratelimit.Limit { return r.plans[req.Header.Get("X-Plan")] }
		}
		r.Sliding = rapid.IntRange(0, 2).Draw(t, "sliding") == 0
		r.DryRun = rapid.IntRange(0, 3).Draw(t, "dry run") == 0
		rules[i] = r
	}
	return rules
}

// withOtherLimits returns the rules as after a change of the configuration: they share the old ones' counts.
func withOtherLimits(t *rapid.T, rules []rule) []rule {
	changed := append([]rule(nil), rules...)
	for i := range changed {
		changed[i].Limit.Requests = rapid.IntRange(0, 8).Draw(t, "other limit")
	}
	return changed
}

func policies(rules []rule) []ratelimit.Policy {
	var all []ratelimit.Policy
	for _, r := range rules {
		all = append(all, r.Policy)
	}
	return all
}
